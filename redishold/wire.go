package redishold

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// The wire format, version 1. Programs of different releases share a server, so it changes only together with the version,
// and testdata/wire1.golden holds it fast.
//
// The slot of key K in namespace N is N:{:K}. The braces make all keys of a lock live on one node of a Cluster: the colon
// is there because a tag must not be empty, and a } in K ends the tag early in the same way for all keys of K. The line of
// waiters is the list N:{:K}:q and that of watchers N:{:K}:w; a slot ends in }, so they never meet.
//
//	offset length
//	0      1   version, "1"
//	1      1   state: H held, B broken, R released (cooling while free lies ahead), N no term yet
//	2      1   + if waiters or watchers may stand beside the slot, else -
//	3      16  free: when the key becomes free, µs since 1970 by the server's clock; 0 if that needs no clock
//	19     16  token, decimal
//	35     16  H, B: when the term started, µs; R: the id of the call that released it
//	51     32  nonce of the term
//	83     1   how the term before ended: n none, r released, l lapsed, b broken; R: n, or of a term that was undone
//	           how the one before ended, with u instead of n
//	84         four lines, each begun by a newline:
//	           holder, JSON, at a node of a quorum with the token of the term if others had it before; by whom it was broken, a JSON string, or empty;
//	           prior: token, start, nonce, holder, tab, by whom broken, of the term before if it lapsed or was broken; at
//	           a node of a quorum its token alone if it was released;
//	           undone: nonces not to be granted any more, each followed by 16 digits: until when
//
// A place in line is: nonce, 32; process, 16; TTL in µs, 16 digits; holder, JSON. The process is alive while the key
// N:p:PROCESS exists, on a Cluster N:{:K}:p:PROCESS. What is published on N:w:PROCESS is the number of a watcher, or of a
// hand-over: nonce, 32; token, 16; how long the term lasts, µs, 16; how the term before ended, 1; prior, as above.
//
// For as long as a term that was broken at once would have lasted, N:{:K}:b:NONCE is by whom it was, a JSON string.
//
// A value of another version is left alone and reported.
const headerLen = 84

// slotKey, lineKey, watchersKey and channel name what belongs to a key.
func (d *Driver) slotKey(key string) string { return d.prefix + key + "}" }
func (d *Driver) lineKey(key string) string { return d.prefix + key + "}:q" }
func (d *Driver) channel() string           { return d.ns + ":w:" }

// watchersKey names the line of watchers.
func (d *Driver) watchersKey(key string) string {
	if d.plain {
		return d.plainSlotKey(key) + ":w"
	}
	return d.prefix + key + "}:w"
}

// alive is what the scripts call ALIVE.
func (d *Driver) alive() string {
	if d.cluster != nil {
		return "nil"
	}
	return "'" + d.ns + ":p:'"
}

// parseSlot returns the term in a slot as of now (µs); ok is false if the key is free.
func parseSlot(key, s string, now int64) (t driver.Term, ok bool, err error) {
	if s == "" {
		return t, false, nil
	}
	lines := strings.SplitN(s, "\n", 5)
	if s[0] != '1' || len(lines) != 5 || len(lines[0]) != headerLen {
		return t, false, errVersion(s)
	}
	free, err := strconv.ParseInt(s[3:19], 10, 64)
	if err != nil {
		return t, false, fmt.Errorf("the slot is damaged: %w", err)
	}
	if free <= now {
		return t, false, nil
	}
	token, err := strconv.ParseUint(s[19:35], 10, 64)
	if err != nil {
		return t, false, fmt.Errorf("the slot is damaged: %w", err)
	}
	t = driver.Term{Key: key, Token: driver.Token(token), Remaining: time.Duration(free-now) * time.Microsecond}
	switch s[1] {
	case 'R':
		t.Cooling = true
		return t, true, nil
	case 'F':
		t.Nonce, t.Holder.Label = s[51:83], "another program (plain key)"
		return t, true, nil
	}
	t.Nonce = s[51:83]
	t.Broken = parseText(lines[2])
	t.Acquired, err = parseTime(s[35:51])
	parseHolder(&t, lines[1])
	return t, true, err
}

// parsePrior returns the term before, or nil.
func parsePrior(key, s string) (*driver.Term, error) {
	if s == "" {
		return nil, nil
	}
	if len(s) < 32 {
		return nil, fmt.Errorf("the slot is damaged: prior %q", s)
	}
	token, err := strconv.ParseUint(s[:16], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("the slot is damaged: %w", err)
	}
	t := &driver.Term{Key: key, Token: driver.Token(token)}
	if t.Acquired, err = parseTime(s[16:32]); err != nil {
		return nil, err
	}
	s = s[32:]
	if len(s) > 32 && s[0] != '{' { // the first programs that wrote this version left it out
		t.Nonce, s = s[:32], s[32:]
	}
	holder, broken, _ := strings.Cut(s, "\t")
	t.Broken = parseText(broken)
	parseHolder(t, holder)
	return t, nil
}

func parseTime(s string) (time.Time, error) {
	us, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("the slot is damaged: %w", err)
	}
	return time.UnixMicro(us), nil
}

// parseHolder is lenient: this is for people, but for what a term has at other nodes, its token and start.
func parseHolder(t *driver.Term, text string) {
	var h seededHolder
	if json.Unmarshal([]byte(text), &h) != nil {
		return
	}
	if t.Holder = h.Holder; h.Token != 0 {
		t.Token = h.Token
	}
	if h.Since != 0 {
		t.Acquired = time.UnixMicro(h.Since)
	}
}

// parseText is lenient likewise.
func parseText(s string) (text string) {
	if json.Unmarshal([]byte(s), &text) != nil {
		return ""
	}
	return text
}

func toJSON(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}

func endingOf(s string) driver.Ending {
	switch s {
	case "r":
		return driver.Released
	case "l":
		return driver.Lapsed
	case "b":
		return driver.Broken
	default:
		return driver.None
	}
}

var errKind = errors.New("it is not a string, so of another program: delete it, or choose another namespace")

// errVersion is about a slot of another version than 1. s is what it begins with, or "".
func errVersion(s string) error {
	if newer(s) {
		return fmt.Errorf("the key holds %.20q, which is of a newer wire version than 1: it was written by a newer holdlock; upgrade this one (%w)", s, driver.ErrNewer)
	}
	return fmt.Errorf("the key holds %.20q, which is not of wire version 1: it was damaged, or written by another program", s)
}

// newer says whether a slot or record is of a version that is not known yet: its first sign is its version.
func newer(s string) bool { return s != "" && s[0] >= '2' && s[0] <= '9' }
