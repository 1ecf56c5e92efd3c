package review

import (
	"fmt"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
)

// A lock that is taken in the caller's own transaction has no expiry, no token and no release of its own: it ends with the
// transaction, which nobody sees. Whether the server made somebody wait for it is known to the server only.

// onlyInTx says that all attempts were in transactions.
func (s *subject) onlyInTx() bool {
	n := s.Get(ledger.InTx)
	return n > 0 && n >= s.Get(ledger.Attempts)
}

// unclear tells of attempts of which nobody knows whether they met somebody, as the end of a sentence.
func (s *subject) unclear() string {
	n := s.Get(ledger.Unclear)
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; of %d more, in transactions, only the server knows whether it made them wait", n)
}

// inTransactions gives the answers of the sheet that differ for such a lock, in its order.
func inTransactions(s *subject, t driver.Traits, answers []Answer) {
	n := s.Get(ledger.InTx)
	unused := t.Transactional && !s.lock.Partial && s.declared != nil && s.Get(ledger.Attempts)+s.Get(ledger.Refused) == 0 // of a client that has nothing else
	if !s.onlyInTx() && !unused {
		if n > 0 {
			some := fmt.Sprintf("; %d of %d attempts were in transactions, where it has no expiry, ends with the transaction and cannot be released before", n, s.Get(ledger.Attempts))
			answers[0].Why += some
			answers[2].Why += some
		}
		return
	}
	answers[0].Verdict, answers[0].Why = "no expiry", "it is taken in transactions, and lasts as long as they do: no TTL ends it"
	answers[1].Why = "it is taken in transactions: the server gives it back when they end, and nobody else can; whether other code locks the same thing is for holdlock audit"
	answers[2].Verdict = "free at once if its holder dies, never if it hangs"
	answers[2].Why = "it ends with its transaction: at once if the program or its connection dies; one that hangs with its transaction open blocks it " +
		"for ever, unless the server ends that (idle_in_transaction_session_timeout)"
	if s.starved() {
		answers[2].Why += "; nobody has got it " + since(s.LastGrant)
	}
	if s.doubleRun() == holdlock.Harmful {
		answers[3].Verdict = "has the database"
		answers[3].Why = "declared harmful, and taken inside the transaction of its writes: lock and writes commit or vanish together; effects elsewhere can still happen twice"
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
