// Package audit lists the locks in Go code and finds six faults in how they are used.
//
// It sees holdlock's own locks and hand-written ones: Redis keys that are set only if absent (go-redis, redigo, rueidis,
// valkey-go, wrappers of the same shape, Lua scripts), redsync, redislock, rueidislock, advisory locks of PostgreSQL in SQL
// text, and etcd's concurrency package. What it recognises it recognises by type: a method counts because of the package
// and type that declare it, or because of its whole signature, and never because of its name alone.
//
// # What it says, and what it does not
//
// For every lock and each of the six faults there is one of four answers: ok, fault, unknown, and none where the question
// makes no sense (an advisory lock has no value to guess). A fault is reported only if the code in sight shows it:
// the analysis follows constants, local variables that are assigned once, and the objects that hold a lock, within one
// package. Where a value comes from elsewhere (a parameter, a field, a function) the answer is unknown, with the reason.
// So a clean report is no proof; the unknowns are the list of what a person has to look at.
//
// A Redis key that is set if absent need not be a lock: caches and counters do it too. It is called a lock if something
// around it says so: a word such as lock, mutex, lease or leader in the key, in the names of the function, of its receiver
// or of the result, or a deferred deletion of the same key. Otherwise it is listed as a possible lock and not accused.
//
// # Using it
//
// Load and Run serve the command holdlock audit. Analyzer is the same rules for go vet -vettool and for any
// multichecker; its diagnostics are the faults, its result is the inventory of the package. Join compares an inventory with
// what was used. The package needs golang.org/x/tools, which is why it lives in the command's module: a program that uses the
// library downloads none of it.
package audit
