//go:build unix

package redishold

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/quorumhold"
)

// says wants all words in a text.
func says(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s says nothing of %q: %s", what, w, text)
		}
	}
}

// What is said about nodes of the quorum that bear a mark which keeps them out, by whoever asks for a lock, the doctor and
// InitQuorum.
func saidOfMarks(t *testing.T, addrs []string) (acquired error, found []driver.Diagnosis, initialised error) {
	t.Helper()
	d := openQuorum(t, addrs, nil)
	found = d.Diagnose(t.Context(), driver.DoctorOptions{})
	if _, acquired = d.Acquire(t.Context(), request("k", time.Second)); acquired == nil {
		t.Fatal("it was granted")
	}
	clients, closeAll := dialAll(addrs)
	defer closeAll()
	if initialised = InitQuorum(t.Context(), clients, nil); initialised == nil {
		t.Fatal("it was declared new")
	}
	return acquired, found, initialised
}

const markKey = "holdlock:q:quorum"

// A list with a slip in it leaves its mark at the servers that it reaches. Everybody says how to get out of that, and it works.
func TestAWrongListIsGotOutOf(t *testing.T) {
	t.Parallel()
	servers := startServers(t, 4)
	addrs := testenv.Addrs(servers)
	right := addrs[:3]
	if _, err := openQuorum(t, []string{right[0], right[2], addrs[3]}, nil).Acquire(t.Context(), request("k", time.Second)); err == nil {
		t.Fatal("a new quorum has granted at once")
	}
	acquired, found3, initialised := saidOfMarks(t, right)
	advice := []string{"DEL " + markKey, "none of its jobs has run for its MaxTTL", "abstains for 31s", "in the same spelling"}
	says(t, "Acquire", acquired.Error(), append(advice, addrs[3])...)
	says(t, "InitQuorum", initialised.Error(), append(advice, addrs[3], "nothing was changed")...)
	found(t, found3, "mark of "+right[0], driver.Refuse, "DEL "+markKey)
	for _, s := range servers {
		s.Do(t, "DEL", markKey)
	}
	initQuorum(t, right, nil)
	if _, err := openQuorum(t, right, nil).Acquire(t.Context(), request("k", time.Second)); err != nil {
		t.Errorf("without the marks: %v", err)
	}
}

// Marks of different quorums are told apart, and from the quorum's own.
func TestInitNamesEachMark(t *testing.T) {
	t.Parallel()
	servers := startServers(t, 5)
	addrs := testenv.Addrs(servers)
	first := []string{addrs[0], addrs[3], addrs[4]}
	initQuorum(t, first, &QuorumOptions{MaxTTL: 40 * time.Second})
	if _, err := openQuorum(t, []string{addrs[1], addrs[3], addrs[4]}, nil).Acquire(t.Context(), request("k", time.Second)); err == nil {
		t.Fatal("two nodes of another quorum have granted")
	}
	_, _, err := saidOfMarks(t, addrs[:3])
	of := func(addr string) string {
		for part := range strings.SplitSeq(err.Error(), addr+"/0: ") {
			if strings.HasPrefix(part, "node does not fit") {
				text, _, _ := strings.Cut(part, "and here")
				return text
			}
		}
		return ""
	}
	says(t, "of the first node", of(addrs[0]), "MaxTTL 40s", addrs[0])
	says(t, "of the second node", of(addrs[1]), "MaxTTL 30s", addrs[1], addrs[3])
	says(t, "of the third node", err.Error(), addrs[2]+"/0 bears the mark of this quorum, which is in use")
}

// A mark that cannot be read is called that, and where it stands; one of a newer release is not called damaged.
func TestDamagedMarks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil []string
		word  string
	}{
		"empty":         {[]string{"SET", markKey, ""}, "is damaged"},
		"text":          {[]string{"SET", markKey, "hello"}, "is damaged"},
		"half":          {[]string{"SET", markKey, "1\n0123\n"}, "is damaged"},
		"another kind":  {[]string{"HSET", markKey, "f", "v"}, "is damaged"},
		"a newer one":   {[]string{"SET", markKey, "2\nwhat will be"}, "newer holdlock"},
		"the tenth one": {[]string{"SET", markKey, "10\nwhat will be"}, "newer holdlock"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := startServers(t, 3)
			addrs := testenv.Addrs(servers)
			initQuorum(t, addrs, nil)
			d := openQuorum(t, addrs, nil)
			req := request("k", time.Minute/2)
			if _, err := d.Acquire(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			allHave(t, servers, req.Ref.Nonce) // who is late would write the mark anew
			for _, s := range servers {
				s.Do(t, "DEL", markKey)
				s.Do(t, c.spoil...)
			}
			_, renewed := d.Renew(t.Context(), &driver.RenewRequest{Ref: req.Ref, TTL: time.Minute / 2})
			acquired, all, initialised := saidOfMarks(t, addrs)
			words := []string{c.word, "the key " + markKey}
			if c.word == "is damaged" {
				words = append(words, "DEL "+markKey+" at this node")
			}
			says(t, "Acquire", acquired.Error(), words...)
			says(t, "InitQuorum", initialised.Error(), words...)
			if renewed == nil {
				t.Error("a renewal went past the mark")
			} else {
				says(t, "Renew", renewed.Error(), words...)
			}
			if errors.Is(acquired, quorumhold.ErrMismatch) == false {
				t.Errorf("%v is no ErrMismatch", acquired)
			}
			found(t, all, "mark of ", driver.Refuse, c.word)
			found(t, all, "majority", driver.Refuse, "0 of 3")
			if c.word != "is damaged" {
				return
			}
			for _, s := range servers {
				s.Do(t, "DEL", markKey)
			}
			initQuorum(t, addrs, nil)
			if _, err := d.Acquire(t.Context(), request("other", time.Second)); err != nil {
				t.Errorf("without the marks: %v", err)
			}
		})
	}
}

// A node that has restarted with its data and was not asked since abstains from its start, not from the first request on.
func TestDoctorOnANodeThatIsUpForLong(t *testing.T) {
	t.Parallel()
	const maxTTL = 2 * time.Second
	var servers []*testenv.Redis
	for range 3 {
		servers = append(servers, testenv.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always"))
	}
	addrs := testenv.Addrs(servers)
	opts := &QuorumOptions{MaxTTL: maxTTL}
	initQuorum(t, addrs, opts)
	d := openQuorum(t, addrs, opts)
	for _, s := range servers {
		s.Restart(t)
	}
	var all []driver.Diagnosis
	testenv.Eventually(t, "the nodes are up for longer than they abstain", func() bool {
		all = d.Diagnose(t.Context(), driver.DoctorOptions{TTL: maxTTL})
		for _, f := range all {
			if strings.HasPrefix(f.Check, "mark of ") && f.Verdict != driver.Fine {
				says(t, "the mark", f.Found, "has restarted", "abstains for")
				return false
			}
		}
		return true
	})
	if _, err := d.Acquire(t.Context(), request("k", time.Second)); err != nil {
		t.Errorf("the doctor says it grants, and yet: %v", err)
	}
	for _, f := range all {
		if strings.HasPrefix(f.Check, "majority") && f.Verdict != driver.Fine {
			t.Errorf("%+v", f)
		}
	}
}

// What no holdlock has written stands where a lock should be, at a majority: they have answered, and the key is named.
func TestQuorumOfDamagedSlots(t *testing.T) {
	t.Parallel()
	servers := startServers(t, 3)
	addrs := testenv.Addrs(servers)
	initQuorum(t, addrs, nil)
	d := openQuorum(t, addrs, nil)
	key := openDriver(t, addrs[0], &Options{Namespace: "holdlock:q"}).slotKey("k")
	for _, s := range servers[:2] {
		s.Do(t, "HSET", key, "f", "v")
	}
	ref := request("k", time.Second)
	_, acquired := d.Acquire(t.Context(), ref)
	_, _, inspected := d.Inspect(t.Context(), "k")
	_, renewed := d.Renew(t.Context(), &driver.RenewRequest{Ref: ref.Ref, TTL: time.Second})
	for verb, err := range map[string]error{
		"Acquire": acquired, "Inspect": inspected, "Renew": renewed,
		"Break": d.Break(t.Context(), &driver.BreakRequest{Ref: ref.Ref, By: "test", Now: true}),
	} {
		var e *quorumhold.NoMajorityError
		if !errors.As(err, &e) || e.Answered < 2 || strings.Contains(err.Error(), "unreachable") || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v, want that a majority has answered, and the key", verb, err)
		}
	}
}

// pass lets the mark of a server grow older, as if nobody had used it for that long.
func pass(t *testing.T, s *testenv.Redis, long time.Duration) {
	t.Helper()
	lines := strings.Split(s.Do(t, "GET", markKey), "\n")
	if len(lines) != 7 {
		t.Fatalf("the mark is %q", lines)
	}
	for _, i := range []int{3, 4} { // since when all is remembered, and when it was written
		at, err := strconv.ParseInt(lines[i], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		lines[i] = fmt.Sprint(max(0, at-long.Microseconds()))
	}
	left := markLeft(t, s) - long
	s.Do(t, "SET", markKey, strings.Join(lines, "\n"), "KEEPTTL")
	s.Do(t, "PEXPIRE", markKey, fmt.Sprint(left.Milliseconds())) // it is gone if nothing is left
}

// markLeft is for how long a server keeps its mark if nobody uses it.
func markLeft(t *testing.T, s *testenv.Redis) time.Duration {
	t.Helper()
	ms, err := strconv.ParseInt(s.Do(t, "PTTL", markKey), 10, 64)
	if err != nil || ms < 0 {
		t.Fatalf("the mark has no expiry, or there is none: %d, %v", ms, err)
	}
	return time.Duration(ms) * time.Millisecond
}

// A quorum that is used once a year is not a new one each time, and one that is used once a day pushes the expiry on.
func TestTheMarkOutlivesPauses(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	servers := startServers(t, 3)
	addrs := testenv.Addrs(servers)
	initQuorum(t, addrs, nil)
	d := openQuorum(t, addrs, &QuorumOptions{NodeTimeout: 15 * time.Second})
	acquire := func() error {
		t.Helper()
		req := request("k", 30*time.Second)
		_, err := d.Acquire(t.Context(), req)
		if err == nil {
			allHave(t, servers, req.Ref.Nonce)
			err = d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref})
		}
		return err
	}
	for _, pause := range []time.Duration{0, 31 * day, 366 * day, 2 * day} {
		for _, s := range servers {
			pass(t, s, pause)
		}
		if err := acquire(); err != nil {
			t.Fatalf("after %s: %v", pause, err)
		}
		for _, s := range servers {
			if left := markLeft(t, s); left < 399*day || left > 400*day {
				t.Errorf("%s after the last use it is kept for %s", pause, left)
			}
		}
	}
	for _, s := range servers {
		pass(t, s, 401*day)
	}
	if err := acquire(); !errors.Is(err, driver.ErrAbstains) {
		t.Errorf("without marks: %v", err)
	}
}
