// Package testenv starts private real servers for tests, and puts faults between them and the tests: proxies that cut,
// delay and swallow, and clocks that step.
//
// Every server listens on a free loopback port, keeps its files in a temporary folder and is ended by its process id when
// the test ends; on Linux also when the test itself is killed. A server that is not installed fails the test in CI and
// where HOLDLOCK_TEST_REQUIRE is set, and skips it, saying so, elsewhere.
package testenv
