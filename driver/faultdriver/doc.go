// Package faultdriver wraps a driver and lets its calls go wrong: requests get lost, replies get lost, both come late, the
// store hangs or fails. It is for tests of what stands above a driver.
//
// A Script decides what happens to each call. On fails chosen calls, Seeded fails calls at random and yet the same ones
// for the same seed, First combines scripts. A function of one's own can do the rest:
//
//	d := faultdriver.New(inner, func(c faultdriver.Call) faultdriver.Fault {
//		if c.Op == faultdriver.Renew && c.Key == "job/7" {
//			return faultdriver.Fault{Lose: true} // it is renewed, and the holder does not hear of it
//		}
//		return faultdriver.Fault{}
//	})
//
// # Optional interfaces
//
// The wrapper has the methods of all optional interfaces of package driver, and a method Unwrap. driver.As therefore finds
// in it exactly what the wrapped driver has; a caller who uses a bare type assertion and calls a method that the wrapped
// driver lacks gets an error that wraps errors.ErrUnsupported.
//
// Time is taken from package time alone, so it works inside testing/synctest.
package faultdriver
