// Package e2e holds the tests of the holdlock command from outside, as a user meets it: the real binary, real processes,
// real signals, one store file for each test. It has nothing to import.
//
// The tests need Linux. What they start carries a mark in its environment, and after each test nothing with that mark may
// be left running.
package e2e
