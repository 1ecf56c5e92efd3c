//go:build unix

package redishold

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// A user who may not subscribe any more is told of once each time, and the process listens again when he may.
func TestRightToSubscribeTakenAway(t *testing.T) {
	t.Parallel()
	var log testenv.Output
	r, d, _ := restricted(t, documentedACL(t), &Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	d.hub.barredFor = 100 * time.Millisecond
	heard := make(chan driver.Push, 100)
	if err := d.Listen(t.Context(), func(p driver.Push) { heard <- p }); err != nil {
		t.Fatal(err)
	}
	channels := func() string { return r.Do(t, "PUBSUB", "CHANNELS", "holdlock:*") }
	for n := 1; n <= 2; n++ {
		r.Do(t, "ACL", "SETUSER", "locks", "resetchannels") // cuts it off
		testenv.Eventually(t, "it is told", func() bool { return strings.Count(log.String(), "may not subscribe") == n })
		for len(heard) > 0 {
			<-heard
		}
		r.Do(t, "ACL", "SETUSER", "locks", "&holdlock:*")
		testenv.Eventually(t, "it listens again", func() bool { return channels() != "" })
		testenv.Eventually(t, "the caller is told that messages were lost", func() bool { return len(heard) > 0 })
	}
	if got := strings.Count(log.String(), "may not subscribe"); got != 2 {
		t.Errorf("told %d times, want once each time", got)
	}
}

// A password that is not right any more is told of once, and the server is not asked again and again. The control is a server that
// is away, which is.
func TestSubscriptionWithAWrongPassword(t *testing.T) {
	t.Parallel()
	var log testenv.Output
	r, d, _ := restricted(t, documentedACL(t), &Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	d.hub.barredFor = time.Second
	if err := d.Listen(t.Context(), func(driver.Push) {}); err != nil {
		t.Fatal(err)
	}
	r.Do(t, "ACL", "SETUSER", "locks", "resetpass", ">other")
	r.Do(t, "CLIENT", "KILL", "USER", "locks")
	testenv.Eventually(t, "it is told", func() bool { return strings.Contains(log.String(), "is not let in") })
	tries := func() int {
		return count(r.Do(t, "INFO", "commandstats"), "cmdstat_auth") + count(r.Do(t, "INFO", "commandstats"), "cmdstat_hello")
	}
	before, start := tries(), time.Now()
	testenv.Eventually(t, "it is tried again", func() bool { return tries() >= before+6 })
	if took := time.Since(start); took < 2*time.Second {
		t.Errorf("tried several times in %v, want a second between the tries", took)
	}
	if n := strings.Count(log.String(), "is not let in"); n != 1 {
		t.Errorf("it was told %d times", n)
	}
	r.Do(t, "ACL", "SETUSER", "locks", ">secret")
	testenv.Eventually(t, "it listens again", func() bool { return r.Do(t, "PUBSUB", "CHANNELS", "holdlock:*") != "" })
}

// releasesWithout takes a place without the right to mark its lock, which is refused as a whole, and gives back a lock that is marked,
// which is done.
func releasesWithout(t *testing.T, r *testenv.Redis, d *Driver, right string) {
	t.Helper()
	holder, waiter := request("marked", time.Minute), request("marked", time.Minute)
	if _, err := d.Acquire(t.Context(), holder); err != nil {
		t.Fatal(err)
	}
	for i := range 2 { // the second does not find what the first has left
		waiter.First = i == 0
		if _, err := d.Enqueue(t.Context(), waiter); !errors.Is(err, driver.ErrNotApplied) {
			t.Errorf("taking a place: %v, want that it was refused", err)
		}
		if n := r.Do(t, "EXISTS", d.lineKey("marked")); n != "0" {
			t.Error("a place that was refused stands in line")
		}
	}
	r.Do(t, "ACL", "SETUSER", "locks", right)
	var held *driver.HeldError
	if _, err := d.Enqueue(t.Context(), waiter); !errors.As(err, &held) || held.Place != 1 {
		t.Errorf("with the right: %v, want the first place", err)
	}
	r.Do(t, "ACL", "SETUSER", "locks", "-"+strings.TrimPrefix(right, "+"))
	for _, req := range []*driver.AcquireRequest{waiter, holder} {
		if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Errorf("Release: %v", err)
		}
	}
	if _, taken, err := d.Inspect(t.Context(), "marked"); taken || err != nil {
		t.Errorf("after the release it is taken: %v, %v", taken, err)
	}
}

// A full server is named as such, in words that say what to do.
func TestFullServerIsNamed(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	r.Do(t, "CONFIG", "SET", "maxmemory", "1")
	_, err := d.Acquire(t.Context(), request("k", time.Minute))
	if !errors.Is(err, driver.ErrNotApplied) || !strings.Contains(err.Error(), "raise its maxmemory") {
		t.Errorf("%v, want that nothing was changed, and what to do", err)
	}
}

// Without the right to take the next one out of the line nobody takes a place, and a lock that is free is not given to whoever comes,
// nor its waiters left to ask without end. What was granted is given back, and that it was not passed on is told once. The control has
// the right.
func TestWithoutTheRightToPassOn(t *testing.T) {
	t.Parallel()
	var log testenv.Output
	r, d, c := restricted(t, documentedACL(t), &Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	holder, waiter, late := request("k", time.Minute), request("k", time.Minute), request("k", time.Minute)
	if _, err := d.Acquire(t.Context(), holder); err != nil {
		t.Fatal(err)
	}
	var held *driver.HeldError
	if _, err := d.Enqueue(t.Context(), waiter); !errors.As(err, &held) || held.Place != 1 {
		t.Fatalf("with the right: %v, want a place", err)
	}
	r.Do(t, "ACL", "SETUSER", "locks", "-lpop")
	names := func(what string, err error) {
		t.Helper()
		if errors.As(err, &held) || !errors.Is(err, driver.ErrNotApplied) || !strings.Contains(err.Error(), "LPOP") || !strings.Contains(err.Error(), "see Rights") {
			t.Errorf("%s: %v, want the right that is missing", what, err)
		}
	}
	for range 2 {
		_, err := d.Enqueue(t.Context(), late)
		names("Enqueue", err)
	}
	if n := r.Do(t, "LLEN", d.lineKey("k")); n != "1" {
		t.Errorf("%s places in line", n)
	}
	if _, err := newLock(t, c, "k", time.Minute).Acquire(t.Context()); err == nil || errors.Is(err, holdlock.ErrHeld) {
		t.Errorf("Acquire: %v, want a failure at once", err)
	}
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: holder.Ref}); err != nil {
		t.Errorf("Release: %v", err)
	}
	if got := strings.Count(log.String(), "could not be passed"); got != 1 {
		t.Errorf("it was told %d times: %s", got, log.String())
	}
	names("Attend", d.Attend(t.Context(), []*driver.AcquireRequest{waiter})[0].Err)
	_, err := d.Acquire(t.Context(), late)
	names("Acquire of a free lock with a line", err)
	_, err = d.Acquire(t.Context(), claiming("k", time.Minute, driver.Rerun))
	names("a claim", err)

	r.Do(t, "ACL", "SETUSER", "locks", "+lpop")
	if s := d.Attend(t.Context(), []*driver.AcquireRequest{waiter})[0]; !s.Granted {
		t.Errorf("with the right: %+v, want the grant", s)
	}
	// A holder who lacks it while others have it costs them a heartbeat.
	if _, err := d.Enqueue(t.Context(), late); !errors.As(err, &held) {
		t.Fatal(err)
	}
	r.Do(t, "ACL", "SETUSER", "locks", "-lpop")
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: waiter.Ref}); err != nil {
		t.Errorf("Release: %v", err)
	}
	other := openDriver(t, r.Addr, nil)
	if _, err := other.Acquire(t.Context(), request("k", time.Minute)); !errors.As(err, &held) {
		t.Errorf("whoever comes gets %v, want that it belongs to who waits", err)
	}
	if got := strings.Count(log.String(), "could not be passed"); got != 1 {
		t.Errorf("it was told %d times", got)
	}
}

// A client for one server on a node of a Cluster is told which client it takes, by every call for several locks. A client for Clusters
// is the control.
func TestClientForOneServerOnACluster(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t, "--cluster-enabled", "yes")
	r.Do(t, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	testenv.Eventually(t, "it serves all slots", func() bool { return strings.Contains(r.Do(t, "CLUSTER", "INFO"), "cluster_state:ok") })
	for _, right := range []bool{false, true} {
		var rdb redis.UniversalClient = client(r.Addr)
		if right {
			rdb = redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{r.Addr}, MaintNotificationsConfig: noMaintenance, DisableIdentity: true})
		}
		d, err := NewDriver(rdb, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = d.Close(), rdb.Close() })
		var renewals []*driver.RenewRequest
		var places []*driver.AcquireRequest
		for _, key := range []string{"a", "b"} {
			req := request(key+digit(right), time.Minute)
			if _, err := d.Acquire(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			place := request(key+digit(right), time.Minute)
			var held *driver.HeldError
			if _, err := d.Enqueue(t.Context(), place); !errors.As(err, &held) {
				t.Fatal(err)
			}
			renewals, places = append(renewals, &driver.RenewRequest{Ref: req.Ref, TTL: time.Minute}), append(places, place)
		}
		_, list := d.List(t.Context(), "", "", 10)
		for what, err := range map[string]error{
			"RenewBatch": d.RenewBatch(t.Context(), renewals)[1].Err, "Attend": d.Attend(t.Context(), places)[1].Err, "List": list,
		} {
			told := errors.Is(err, driver.ErrDenied) && errors.Is(err, driver.ErrNotApplied) && strings.Contains(err.Error(), "redis+cluster://")
			if right && err != nil || !right && !told {
				t.Errorf("with a client for Clusters: %v; %s: %v", right, what, err)
			}
		}
	}
}
