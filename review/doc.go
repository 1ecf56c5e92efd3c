// Package review judges locks by what they have done: which are about to hurt, and which may go.
//
// The rules are pure functions of a lock's record (package ledger) and a period. Their thresholds are in docs/review.md and, in the
// same order, in rules.go. Statistics are honest about small numbers: a rate is judged by the bound of its Wilson interval (Wilson,
// Probable inference, JASA 22, 1927) that is milder on the lock; that nothing has happened in n attempts bounds its rate by 3/n at 95%
// (Hanley, Lippman-Hand, JAMA 249, 1983); and quantiles are given only where enough values lie beyond them.
package review
