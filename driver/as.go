package driver

// As returns d as the optional interface T (Waiter, Lister, …) and whether it can do that.
//
// Use it instead of a type assertion. A driver that wraps another one says so by a method Unwrap() Driver; it may then
// have the methods of every optional interface, and can still do no more than what it wraps. A Queue is one only if its
// Traits say FIFO, a Journal only if they say what its Records survive: whether a store keeps a line, or records, can depend
// on how it is opened.
func As[T any](d Driver) (T, bool) {
	t, ok := d.(T)
	_, queue := any(&t).(*Queue)
	_, journal := any(&t).(*Journal)
	if ok && (queue && !d.Traits().FIFO || journal && d.Traits().Records == NoRecords) {
		var none T
		return none, false
	}
	if w, wraps := d.(interface{ Unwrap() Driver }); ok && wraps {
		if _, ok = As[T](w.Unwrap()); !ok {
			var none T
			return none, false
		}
	}
	return t, ok
}
