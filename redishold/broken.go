package redishold

// broken are rules of the sharing of calls that tests switch off, to see that they are needed. A caller who is sent by himself
// meets none of them.
type broken struct {
	// Each caller gets his own answer.
	mixed bool // turns go with those of other scripts
	same  bool // all who share a call get the answer of the first one
	twice bool // what has ended can end once more, otherwise

	// Who leaves harms nobody.
	own   bool // a pipeline goes by the context of its first member
	first bool // a pipeline has the deadline of its first member

	// What was not sent is told, if that is certain.
	stays bool // who leaves stays in the queue
	sure  bool // whoever is not answered is told that nothing was sent
	vague bool // nobody is told that nothing was sent

	// Flights that hang are replaced, so many at a time.
	patient  bool // they are waited for
	endless  bool // there is no bound
	returned bool // one that was replaced goes on when it returns

	// What the server does not know is sent again, once.
	forgotten bool // it is not
	everybody bool // for the others of the pipeline too
	bare      bool // the client library may send it again, and drops answers in front of a failure

	// After close nothing is sent.
	open    bool // new calls are made
	pending bool // those who queue stay in the queue

	// Budgets end in time.
	forever bool // nobody looks
	later   bool // one that ends before those that are looked after is not
	once    bool // nobody looks for the next one

	// Nobody waits for company.
	company bool // whoever finds somebody under way waits until he is back
	rest    bool // those who find no room in a pipeline wait until it is back
	long    bool // pipelines have no greatest length
}
