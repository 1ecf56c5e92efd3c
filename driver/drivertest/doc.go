// Package drivertest tests whether a store keeps the contract of package driver.
//
// A store's own tests call Run, which has one subtest for each rule and situation, named by the number of the rule
// (R1 … R10, as in the comment of package driver). They also call RunMutants, which spoils the store in about a
// hundred ways, one after the other, and fails unless the subtests that are meant to notice do: so a suite that looks away
// does not pass. RunBenchmarks measures what all stores have in common.
//
// The suite knows a store by its Traits and never by its name. Where a store says that it lacks an ability, or does not
// implement an optional interface, the lack is asserted.
//
// # Time
//
// A store in memory is tested in the virtual time of testing/synctest, every other one in real time, on machines that may
// be busy. So no case needs a call to be quick. That a term does not end early is checked to the nanosecond, which is
// possible because a delay can only make the check milder: a rival that is granted the key must have heard so at least
// one TTL after the first holder began to ask. That a term does not last too long is checked on what the store says
// (Term.Remaining) and by polling with much patience. The store's wall clock may differ from the suite's by clockSkew.
package drivertest
