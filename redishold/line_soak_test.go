//go:build soak && linux

package redishold

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

var lineSoakFor = flag.Duration("line.soak", 2*time.Minute, "how long TestSoakLine lasts")

// Eight processes with several waiters each take turns at one lock for minutes, while half of them are killed, stopped and cut
// off at random, and give up some of their waits. Twins with a rule less are found out by the same checks.
//
//	go test -tags soak -run TestSoakLine -v ./redishold -line.soak 10m
func TestSoakLine(t *testing.T) {
	s := soakLine(t, "true", *lineSoakFor, nil)
	for _, wrong := range s.wrong() {
		t.Error(wrong)
	}
	s.clean()
	s.report()
	for twin, catches := range map[string]func(s *lineSoak) []string{
		"credulous": (*lineSoak).overlaps,  // it trusts stale messages
		"blind":     (*lineSoak).toTheDead, // it hands over to whoever is next, dead or alive
		"unfair":    (*lineSoak).starved,   // it hands over to whoever came last
		"sleepy":    (*lineSoak).asleep,    // its heartbeats do not look whether the term before is over
	} {
		t.Run("a "+twin+" twin", func(t *testing.T) {
			s := soakLine(t, twin, 2*time.Minute, catches)
			if len(s.found) == 0 {
				t.Error("nothing was found, so the checks tell nothing")
				return
			}
			t.Logf("found after %d turns, one of %d: %s", len(s.turns()), len(s.found), s.found[0])
		})
	}
}

const (
	soakProcesses = 8
	soakVictims   = 4 // of them, the last ones
	soakWaiters   = 4
)

// soakSettles is how long the effects of a death or a long pause last: until its process counts as dead and its claim is over,
// or until its term has ended.
const soakSettles = max(workerTTL, driver.Alive+driver.Provisional)

// soakBound is the longest time in which nobody has the key: what is above, a heartbeat, and the back-stop.
const soakBound = soakSettles + time.Second + pollBackStop

// pollBackStop is the longest pause of a waiter whose store has failed.
const pollBackStop = time.Second

type lineSoak struct {
	t        *testing.T
	twin     string
	store    *testenv.Redis
	resource *testenv.Redis
	proxies  []*testenv.Proxy // of the victims
	workers  []*helper

	strikes map[string]int
	deaths  map[int]time.Time // by pid
	stays   []time.Time       // when holders were killed that had the key for longer than a turn

	found []string // in a twin

	mu     sync.Mutex
	stalls []stall
}

// stall is a time in which the machine did not run the test.
type stall struct {
	end  time.Time
	took time.Duration
}

type soakTurn struct {
	who   string
	token uint64
	at    time.Time
}

// soakLine lets it happen for so long, or until something is found.
func soakLine(t *testing.T, twin string, length time.Duration, found func(*lineSoak) []string) *lineSoak {
	t.Helper()
	s := &lineSoak{
		t: t, twin: twin, store: testenv.StartRedis(t), resource: testenv.StartRedis(t),
		strikes: map[string]int{}, deaths: map[int]time.Time{},
	}
	for range soakVictims {
		s.proxies = append(s.proxies, testenv.StartProxy(t, s.store.Addr, nil))
	}
	for i := range soakProcesses {
		s.workers = append(s.workers, s.start(i))
	}
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(stop) })
	s.resource.Do(t, "SET", "go", "1")
	deadline := time.Now().Add(length)
	severe := time.Now().Add(time.Second)
	for time.Now().Before(deadline) && len(s.found) == 0 {
		if time.Now().After(severe) {
			s.severe(rand.N(soakVictims))
			severe = time.Now().Add(soakSettles + time.Second)
			if twin == "sleepy" { // a process that starts again would wake it
				severe = severe.Add(soakBound)
			}
		}
		s.slight(rand.N(soakVictims))
		time.Sleep(rand.N(time.Second))
		if found != nil {
			s.found = found(s)
		}
	}
	if found != nil { // what is wrong may not come to an end
		for _, h := range s.workers {
			h.kill(t)
		}
		s.workers = nil
	}
	s.resource.Do(t, "SET", "over", "1")
	for i, h := range s.workers {
		ended := make(chan error, 1)
		go func() { ended <- h.cmd.Wait() }()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("process %d: %v", i, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("process %d does not come to an end", i)
		}
	}
	close(stop)
	watching.Wait()
	return s
}

func (s *lineSoak) start(i int) *helper {
	w := worker{
		way: s.store.Addr, resource: s.resource.Addr, name: fmt.Sprint("p", i), twin: s.twin, waiters: soakWaiters,
	}
	if v := i - (soakProcesses - soakVictims); v >= 0 {
		w.way, w.cancels = s.proxies[v].Addr, s.twin != "sleepy"
	}
	h := startHelperAt(s.t, "work", w.String())
	h.line(s.t)
	return h
}

// watch notes when the machine stands still.
func (s *lineSoak) watch(stop chan struct{}) {
	const tick = 10 * time.Millisecond
	for before := time.Now(); ; {
		select {
		case <-stop:
			return
		case <-time.After(tick):
		}
		now := time.Now()
		if late := now.Sub(before) - tick; late > 5*tick {
			s.mu.Lock()
			s.stalls = append(s.stalls, stall{now, late})
			s.mu.Unlock()
		}
		before = now
	}
}

// slight does to a victim what costs nobody more than a moment.
func (s *lineSoak) slight(v int) {
	all := func([]byte) bool { return true }
	switch rand.N(5) {
	case 0:
		s.strikes["a reply lost"]++
		rule, _ := once(testenv.LoseReply, all)
		s.proxies[v].SetScript(rule)
	case 1:
		s.strikes["a request lost"]++
		rule, _ := once(testenv.Cut, all)
		s.proxies[v].SetScript(rule)
	case 2, 3:
		s.strikes["all connections cut"]++
		s.proxies[v].CutAll()
	case 4:
		s.strikes["stopped for up to 500 ms"]++
		s.pause(s.victim(v), rand.N(500*time.Millisecond))
	}
}

// severe does to a victim what costs the others a claim or a term.
func (s *lineSoak) severe(v int) {
	h := s.victim(v)
	kind := rand.N(5)
	switch s.twin { // what finds it out soon
	case "credulous":
		kind = 3
	case "blind", "sleepy":
		kind = 0
	case "unfair":
		return
	}
	switch kind {
	case 0, 1:
		s.strikes["killed"]++
		s.kill(v)
	case 2:
		name := fmt.Sprint("p", soakProcesses-soakVictims+v)
		s.resource.Do(s.t, "DEL", "stays")
		s.resource.Do(s.t, "SET", "stay", name)
		testenv.Eventually(s.t, "it has the key and stays", func() bool { return s.resource.Do(s.t, "EXISTS", "stays") == "1" })
		s.resource.Do(s.t, "DEL", "stay")
		d := openDriver(s.t, s.store.Addr, nil)
		confirmed := false
		for begun := time.Now(); !confirmed && time.Since(begun) < workerTTL; time.Sleep(10 * time.Millisecond) {
			term, ok := present(s.t, d, "k")
			confirmed = ok && term.Remaining > driver.Provisional
		}
		s.strikes["killed while it has the key"]++
		s.stays = append(s.stays, s.kill(v))
	case 3:
		s.strikes["stopped for 3 s to 5 s"]++
		s.pause(h, driver.Provisional+200*time.Millisecond+rand.N(1800*time.Millisecond))
	case 4:
		s.strikes["stopped for 0.5 s to 3 s"]++
		s.pause(h, 500*time.Millisecond+rand.N(2500*time.Millisecond))
	}
}

func (s *lineSoak) victim(v int) *helper { return s.workers[soakProcesses-soakVictims+v] }

func (s *lineSoak) pause(h *helper, d time.Duration) {
	testenv.Stop(s.t, h.cmd.Process.Pid)
	time.Sleep(d)
	h.signal(s.t, syscall.SIGCONT)
}

func (s *lineSoak) kill(v int) time.Time {
	h := s.victim(v)
	h.kill(s.t)
	now := time.Now()
	s.deaths[h.cmd.Process.Pid] = now
	i := soakProcesses - soakVictims + v
	s.workers[i] = s.start(i)
	return now
}

// turns are those that the resource has seen, in their order.
func (s *lineSoak) turns() (all []soakTurn) {
	for line := range strings.Lines(s.resource.Do(s.t, "LRANGE", "turns", "0", "-1")) {
		var turn soakTurn
		var us int64
		if _, err := fmt.Sscan(line, &turn.who, &turn.token, &us); err != nil {
			s.t.Fatal(err)
		}
		turn.at = time.UnixMicro(us)
		all = append(all, turn)
	}
	return all
}

// wrong is all that is not as promised.
func (s *lineSoak) wrong() (wrong []string) {
	wrong = append(wrong, s.overlaps()...)
	wrong = append(wrong, s.toTheDead()...)
	turns := s.turns()
	if len(turns) < 2000 {
		wrong = append(wrong, fmt.Sprintf("%d turns are too few to tell anything", len(turns)))
	}
	for i := 1; i < len(turns); i++ {
		if turns[i].token <= turns[i-1].token {
			wrong = append(wrong, fmt.Sprintf("token %d after %d", turns[i].token, turns[i-1].token))
		}
	}
	wrong = append(wrong, s.asleep()...)
	wrong = append(wrong, s.starved()...)
	for i := range soakProcesses - soakVictims {
		if n := s.resource.Do(s.t, "HLEN", fmt.Sprint("counts of p", i)); n != "0" {
			wrong = append(wrong, fmt.Sprintf("p%d, to which nothing was done: %s", i, s.counts(fmt.Sprint(" of p", i))))
		}
	}
	return wrong
}

// overlaps are writes of holders who believed in a term that was over.
func (s *lineSoak) overlaps() (found []string) {
	return slices.Collect(strings.Lines(s.resource.Do(s.t, "LRANGE", "overlaps", "0", "-1")))
}

// starved says whether those to whom nothing was done had unequal shares, once there were turns enough.
func (s *lineSoak) starved() (found []string) {
	turns := s.turns()
	least, most := s.shares(turns)
	if len(turns) > 1000 && (least == 0 || float64(most) > 1.05*float64(least)+1) {
		found = append(found, fmt.Sprintf("%d to %d turns of a waiter to whom nothing was done", least, most))
	}
	return found
}

// toTheDead are hand-overs to processes that were dead for longer than they may count as alive.
func (s *lineSoak) toTheDead() (found []string) {
	for line := range strings.Lines(s.resource.Do(s.t, "LRANGE", "lapses", "0", "-1")) {
		var pid int
		var us int64
		if _, err := fmt.Sscan(line, &pid, &us); err != nil {
			s.t.Fatal(err)
		}
		const slack = time.Second // for what was on its way
		died, ok := s.deaths[pid]
		if after := time.UnixMicro(us).Sub(died); ok && after > driver.Alive+slack {
			found = append(found, fmt.Sprintf("process %d was granted the key %v after its death", pid, after))
		}
	}
	return found
}

// asleep are the times in which nobody had the key although somebody waited, that were too long. The last one may go on.
func (s *lineSoak) asleep() (found []string) {
	turns := s.turns()
	if s.resource.Do(s.t, "EXISTS", "over") == "0" {
		turns = append(turns, soakTurn{at: time.Now()})
	}
	for i := 1; i < len(turns); i++ {
		if idle, allowed := s.idle(turns[i-1].at, turns[i].at); idle > allowed {
			found = append(found, fmt.Sprintf("nobody had the key for %v, want %v at most", idle, allowed))
		}
	}
	return found
}

// idle says how long the key may have stood idle between two turns, and how long it may have.
func (s *lineSoak) idle(from, to time.Time) (idle, allowed time.Duration) {
	for _, died := range s.stays {
		if died.After(from) && died.Before(to) {
			from = died
		}
	}
	allowed = soakBound
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.stalls {
		if st.end.After(from) && st.end.Add(-st.took).Before(to) {
			allowed += st.took
		}
	}
	return to.Sub(from), allowed
}

// shares are the turns of the waiters to whom nothing was done.
func (s *lineSoak) shares(turns []soakTurn) (least, most int) {
	n := map[string]int{}
	for _, turn := range turns {
		if i, err := strconv.Atoi(turn.who[1:strings.IndexByte(turn.who, '/')]); err == nil && i < soakProcesses-soakVictims {
			n[turn.who]++
		}
	}
	least = len(turns)
	for _, k := range n {
		least, most = min(least, k), max(most, k)
	}
	if len(n) != (soakProcesses-soakVictims)*soakWaiters {
		least = 0
	}
	return least, most
}

func (s *lineSoak) counts(of string) string {
	return strings.ReplaceAll(s.resource.Do(s.t, "HGETALL", "counts"+of), "\n", " ")
}

// clean checks that nothing stays behind in the store.
func (s *lineSoak) clean() {
	d := openDriver(s.t, s.store.Addr, nil)
	testenv.Eventually(s.t, "nothing is left but the slot of ended terms", func() bool {
		left, err := leftovers((site{addrs: []string{s.store.Addr}}).dial, "holdlock")
		_, taken := present(s.t, d, "k")
		return err == nil && len(left) == 0 && !taken && s.store.Do(s.t, "PUBSUB", "CHANNELS", "*") == ""
	})
	if n, err := (site{servers: []*testenv.Redis{s.store}}).eternal(); err != nil || n != 0 {
		s.t.Errorf("%d keys without expiry, %v", n, err)
	}
	if n := s.store.Do(s.t, "DBSIZE"); n != "1" {
		s.t.Errorf("%s keys, want the slot alone", n)
	}
}

func (s *lineSoak) report() {
	turns := s.turns()
	least, most := s.shares(turns)
	var longest, wait time.Duration
	last := map[string]time.Time{}
	for i, turn := range turns {
		if i > 0 {
			idle, _ := s.idle(turns[i-1].at, turn.at)
			longest = max(longest, idle)
		}
		if at, ok := last[turn.who]; ok && turn.who < fmt.Sprint("p", soakProcesses-soakVictims) {
			wait = max(wait, turn.at.Sub(at))
		}
		last[turn.who] = turn.at
	}
	var stood time.Duration
	for _, st := range s.stalls {
		stood = max(stood, st.took)
	}
	s.t.Logf("%d turns of %d processes with %d waiters each; %v", len(turns), soakProcesses, soakWaiters, s.strikes)
	s.t.Logf("waiters to whom nothing was done: %d to %d turns, %.3f; at most %v from one turn to the next",
		least, most, float64(most)/float64(least), wait.Round(time.Millisecond))
	s.t.Logf("nobody had the key for %v at most, allowed %v; the machine stood still for %v at most",
		longest.Round(time.Millisecond), soakBound, stood.Round(time.Millisecond))
	s.t.Logf("of the others: %s, %s terms lapsed", s.counts(""), s.resource.Do(s.t, "LLEN", "lapses"))
}
