package quorumhold

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// ErrMismatch says that a node cannot take part in this quorum. It is another node as well, or belongs to another quorum. Stores wrap
// it in what they answer; to ask them again does not help.
var ErrMismatch = errors.New("node does not fit")

// NoMajorityError says that too few nodes did what was asked, and what each of the others said. It is not an answer about
// the lock. The nodes' own errors are reached with errors.As.
type NoMajorityError struct {
	Verb, Key      string
	Did            int // nodes that did what was asked
	Answered       int // nodes that answered anything, these included
	Of, Need       int
	Abstaining     int           // nodes that have lost their data and wait until all leases they may have forgotten are over
	Nodes          []NodeFailure // of those that did not
	certain        bool          // nothing has come of it, and nothing will
	interruptedErr error         // why the call ended early, if it did
	apart          time.Duration // a majority granted, and has not agreed on a token for so long
}

// A NodeFailure is what one node said instead.
type NodeFailure struct {
	Name string
	Err  error
}

// spoke says whether a node has answered, be it that it cannot tell.
func spoke(err error) bool { return err != nil && !silent(err) }

// errPending stands for the answer of a node that has not answered yet.
var errPending = errors.New("no answer yet")

// fail adds what node name has said instead, if anything, when the call has taken so long.
func (e *NoMajorityError) fail(name string, err error, took time.Duration) {
	if err == nil {
		return
	}
	if err == errPending {
		err = unanswered(took)
	}
	if spoke(err) {
		e.Answered++
	}
	e.Nodes = append(e.Nodes, NodeFailure{name, err})
}

// unanswered says that a node has not answered yet. How long that is says nothing where the others have decided at once.
func unanswered(took time.Duration) error {
	if took < pauseMax {
		return errPending
	}
	return fmt.Errorf("no answer after %s", took.Round(time.Millisecond))
}

// Error says how many nodes answered and what was wrong with the others.
func (e *NoMajorityError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "quorumhold: %s %q: ", e.Verb, e.Key)
	switch {
	case e.Answered < e.Need:
		fmt.Fprintf(&b, "unreachable (%d of %d answered, %d needed)", e.Answered, e.Of, e.Need)
	case e.Did >= e.Need:
		fmt.Fprintf(&b, "granted by %d of %d, of which no majority agreed on a token within %s: they are slow, or clocks differ by more than %s",
			e.Did, e.Of, e.apart.Round(time.Millisecond), tokenLead)
	case e.Abstaining > 0:
		fmt.Fprintf(&b, "no majority (%d of %d agreed, %d needed, %d abstain)", e.Did, e.Of, e.Need, e.Abstaining)
	default:
		fmt.Fprintf(&b, "no majority (%d of %d agreed, %d needed)", e.Did, e.Of, e.Need)
	}
	if e.interruptedErr != nil {
		fmt.Fprintf(&b, ": %v", e.interruptedErr)
	}
	var reasons []string
	names := map[string][]string{}
	for _, n := range e.Nodes {
		r := n.reason(e.Verb, e.Key)
		if names[r] == nil {
			reasons = append(reasons, r)
		}
		names[r] = append(names[r], n.Name)
	}
	for _, r := range reasons {
		noun := "node"
		if len(names[r]) > 1 {
			noun = "nodes"
		}
		fmt.Fprintf(&b, "; %s %s: %s", noun, strings.Join(names[r], ", "), r)
	}
	return b.String()
}

// reason is the node's error without what the whole says already, so that nodes with one reason have one text.
func (n NodeFailure) reason(verb, key string) string {
	text := n.Err.Error()
	if _, rest, ok := strings.Cut(text, fmt.Sprintf("%s %q: ", verb, key)); ok {
		text = rest
	}
	for _, end := range []string{" (" + driver.ErrNotApplied.Error() + ")", "\n" + driver.ErrNotApplied.Error()} {
		text = strings.TrimSuffix(text, end)
	}
	text = strings.ReplaceAll(text, "\n", "; ")
	var dial *net.OpError
	if errors.As(n.Err, &dial) && dial.Op == "dial" && dial.Addr != nil {
		text = strings.Replace(text, fmt.Sprintf("dial %s %s: ", dial.Net, dial.Addr), "", 1)
	}
	return text
}

// elsewhere is what a node has said about one lock, told to those who ask for another: it does not name the first.
type elsewhere struct{ error }

var ofLock = regexp.MustCompile(`^\w+: \w+ "`)

// Error is the text without the names of the package, the call and the lock.
func (e elsewhere) Error() string {
	text := e.error.Error()
	at := ofLock.FindString(text)
	if at == "" {
		return text
	}
	name, err := strconv.QuotedPrefix(text[len(at)-1:])
	if err != nil {
		return text
	}
	return strings.TrimPrefix(text[len(at)-1+len(name):], ": ")
}

func (e elsewhere) Unwrap() error { return e.error }

// Unwrap returns the failures of the nodes, for errors.As; why the call ended; driver.ErrNotApplied if nothing has come
// of it; and driver.ErrDamaged if what stands on so many nodes cannot be read that the others are no majority.
func (e *NoMajorityError) Unwrap() []error {
	var all []error
	if e.interruptedErr != nil {
		all = append(all, e.interruptedErr)
	}
	if e.certain {
		all = append(all, driver.ErrNotApplied)
	}
	if e.Abstaining > 0 && e.Answered >= e.Need {
		all = append(all, driver.ErrAbstains)
	}
	damaged, newer := 0, 0
	for _, n := range e.Nodes {
		all = append(all, foreign{n.Err})
		if errors.Is(n.Err, driver.ErrDamaged) {
			damaged++
		}
		if errors.Is(n.Err, driver.ErrNewer) {
			newer++
		}
	}
	if e.certain && damaged > e.Of-e.Need { // without these there is no majority
		all = append(all, driver.ErrDamaged)
		if newer > 0 {
			all = append(all, driver.ErrNewer)
		}
	}
	return all
}

// foreign is an error of a node inside of one of the quorum. What a node says with the words of the contract, such as that
// it has changed nothing, does not hold for the quorum, so only its own errors shine through.
type foreign struct{ error }

// Is reports whether the error is target, unless that is a word of the contract.
func (f foreign) Is(target error) bool {
	for _, word := range []error{
		driver.ErrGone, driver.ErrBroken, driver.ErrNotApplied, driver.ErrTokenPassed, driver.ErrClosed, driver.ErrAbstains,
		driver.ErrDamaged, driver.ErrNewer, context.Canceled,
	} {
		if target == word {
			return false
		}
	}
	return errors.Is(f.error, target)
}

// As finds the error in the node's error.
func (f foreign) As(target any) bool {
	if _, ok := target.(**driver.HeldError); ok {
		return false
	}
	return errors.As(f.error, target)
}

func failure(verb, key string, err error) error {
	return fmt.Errorf("quorumhold: %s %q: %w", verb, key, err)
}
