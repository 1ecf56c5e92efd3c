// Package redishold keeps locks in Redis or Valkey: one server, a primary behind Sentinel, or a Cluster.
//
// # Layout
//
// A lock is one string key, the slot: who holds it, until when by the server's clock, the last fencing token, how the last
// term ended. Every step is one call of a script that reads and writes that key, so nothing is ever half done. A slot
// outlives its term by a day, because the next token has to be larger than the last; it always has an expiry. That is
// also why the end of a term is written in the slot and is not the expiry of the key: what a successor is told about its
// predecessor would vanish with it, and be written twice to prevent that.
//
// The file wire.go has the format. It carries a version; a program that meets a newer one refuses to guess.
//
// # What it promises
//
// One Redis gives exclusion while it keeps its data and its clock does not step. A restart without data, or a failover to
// a replica that has not got the lock, forgets it while its holder works; the holder is told by its next renewal, and the
// next token is larger all the same, as long as the clocks are not wrong too. See docs/stores/redis.md.
package redishold
