// Package fencehttp carries fencing tokens over HTTP.
//
// The caller's side is a Transport: it adds to each request the lock and the token of the lease that the work runs under,
// and an idempotency key if there is one. The service's side is Handler, a middleware that answers 409 to a stale token.
//
//	Fencing-Lock: charge-card%2F42      the lock, percent-encoded
//	Fencing-Token: 1764400000000000     decimal
//	Idempotency-Key: 5f1d7a84db00d2fc…  of the job, the same for every attempt; sent if Transport.IdempotencyKey gives one
//
// A middleware is a filter and not yet a fence: between its look at the mark and the handler's write a later holder can
// come. The fence is a check in the step that writes. So the handler finds the claim in its context (fence.FromContext) and
// shows it to the fence of its database in the transaction that writes, fence.SQL for one. Where it does that, the
// middleware still saves the work and gives one answer to all stale callers.
//
// What it does not do: it does not tell who sent a request; anybody who may call the service may send any token, so a caller
// that invents a large one locks the others out. It does not make a service idempotent: the Idempotency-Key is for services that know it.
package fencehttp
