package redishold

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
)

// Diagnose implements driver.Doctor. INFO, CONFIG and CLUSTER are not among the rights that locks need: without them those
// checks are not seen. On a Cluster every primary is looked at.
func (d *Driver) Diagnose(ctx context.Context, opts driver.DoctorOptions) []driver.Diagnosis {
	if opts.TTL == 0 {
		opts.TTL = 30 * time.Second
	}
	x := &examination{d: d, ctx: ctx, ttl: opts.TTL}
	x.sentinels()
	if !x.reachable() {
		return x.found
	}
	x.useEverything()
	x.roundTrip()
	if d.cluster == nil {
		x.server(d.client, "")
		return x.found
	}
	x.clusterState()
	for _, node := range x.primaries() {
		x.server(node, node.Options().Addr)
	}
	return x.found
}

// examination is one Diagnose.
type examination struct {
	d      *Driver
	ctx    context.Context
	ttl    time.Duration
	node   string  // of a Cluster
	quorum *quorum // that the server is a node of, or nil
	found  []driver.Diagnosis
}

func (x *examination) say(check string, v driver.Verdict, found, harm, setting string) {
	if strings.Contains(setting, "CONFIG SET") {
		setting += "; then CONFIG REWRITE, or the same in the server's file, or a restart undoes it"
	}
	if x.node != "" {
		check += " of " + x.node
	}
	x.found = append(x.found, driver.Diagnosis{Check: check, Verdict: v, Found: found, Harm: harm, Setting: setting})
}

func (x *examination) fine(check, found string) { x.say(check, driver.Fine, found, "", "") }

func (x *examination) unseen(check string, err error) {
	x.say(check, driver.Unseen, err.Error(), "it is not known", "ask somebody who may look, or allow this user to")
}

// ask makes one call within a budget.
func ask[T any](x *examination, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(x.ctx, 5*time.Second)
	defer cancel()
	return bounded(ctx, x.d, f)
}

func (x *examination) reachable() bool {
	_, err := ask(x, func(ctx context.Context) (string, error) { return x.d.client.Ping(ctx).Result() })
	if err == nil || redis.HasErrorPrefix(err, "MISCONF") { // which keeps a server from answering even that
		return true
	}
	x.say("connection", driver.Refuse, err.Error(), "no lock can be taken", connectionAdvice(err))
	return false
}

func connectionAdvice(err error) string {
	switch {
	case errors.As(err, new(tls.RecordHeaderError)):
		return "the server does not speak TLS at this port: redis:// instead of rediss://, or its TLS port"
	case redis.HasErrorPrefix(err, "NOAUTH"), redis.HasErrorPrefix(err, "WRONGPASS"):
		return "the user or the password is wrong"
	case redis.HasErrorPrefix(err, "LOADING"):
		return "the server is reading its data; try again when it has"
	case redis.HasErrorPrefix(err, "MASTERDOWN"):
		return "this is a replica that has lost its primary: use the address of the primary"
	}
	return "look at the address, the network, TLS and the server"
}

// useEverything does all that locks do, on a lock of its own.
func (x *examination) useEverything() {
	req := &driver.AcquireRequest{
		Ref: driver.Ref{Key: "holdlock-doctor/" + randomHex(4), Nonce: randomHex(16)}, TTL: time.Minute,
		Holder: driver.Holder{Label: "holdlock doctor"},
	}
	type none = struct{}
	steps := []struct {
		what string
		do   func(ctx context.Context) error
	}{
		{"acquire", func(ctx context.Context) error { _, err := x.d.Acquire(ctx, req); return err }},
		{"renew", func(ctx context.Context) error {
			_, err := x.d.Renew(ctx, &driver.RenewRequest{Ref: req.Ref, TTL: time.Minute})
			return err
		}},
		{"list", func(ctx context.Context) error { _, err := x.d.List(ctx, "holdlock-doctor/", "", 1); return err }},
		{"wait", func(ctx context.Context) error {
			_, stop, err := x.d.Watch(ctx, req.Ref.Key)
			if err == nil {
				stop()
			}
			return err
		}},
		{"stand in line", func(ctx context.Context) error { return x.standInLine(ctx, req) }},
		{"release", func(ctx context.Context) error { return x.d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref}) }},
	}
	bad := false
	for _, s := range steps {
		_, err := ask(x, func(ctx context.Context) (none, error) { return none{}, s.do(ctx) })
		if err == nil {
			continue
		}
		bad = true
		v, harm := driver.Refuse, "locks do not work"
		switch s.what {
		case "stand in line":
			harm = "whoever finds a lock taken fails at once and cannot wait, or waits in vain"
		case "wait":
			v, harm = driver.Caution, "waiters poll, and are woken late"
		case "list":
			v, harm = driver.Caution, "holdlock ls and review do not work"
		}
		x.say("use", v, fmt.Sprintf("cannot %s: %v", s.what, err), harm, useAdvice(err))
		if s.what == "acquire" {
			break
		}
	}
	if x.quorum == nil && !bad { // a quorum keeps no counts
		x.counts()
	}
	if !bad {
		x.fine("use", "acquire, renew, list, wait, stand in line and release work")
	}
}

// standInLine takes a place behind a lock that is held, is handed the lock, and takes it again for the first one.
func (x *examination) standInLine(ctx context.Context, first *driver.AcquireRequest) error {
	if !x.d.traits.FIFO {
		return nil
	}
	next := *first
	next.Ref.Nonce = randomHex(16)
	_, err := x.d.Enqueue(ctx, &next)
	if !errors.As(err, new(*driver.HeldError)) {
		return err
	}
	if err := x.d.Release(ctx, &driver.ReleaseRequest{Ref: first.Ref}); err != nil {
		return err
	}
	s := x.d.Attend(ctx, []*driver.AcquireRequest{&next})[0]
	if s.Err == nil && !s.Granted {
		s.Err = errors.New("the lock was not passed on")
	}
	first.Ref.Nonce = next.Ref.Nonce
	return s.Err
}

// counts looks at the records of what locks do, which nobody misses until a review knows nothing.
func (x *examination) counts() {
	_, err := ask(x, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, x.d.ReadRecords(ctx, 0, 0, func(driver.Day, string, []byte) error { return nil })
	})
	if err != nil {
		x.say("counts", driver.Caution, err.Error(), "what locks do is not counted: reviews know nothing, and holdlock run spools in vain", useAdvice(err))
	}
}

func useAdvice(err error) string {
	switch {
	case redis.HasErrorPrefix(err, "NOPERM"), strings.Contains(err.Error(), "lacks a right"):
		return "ACL SETUSER with the rights that docs/stores/redis.md lists"
	case redis.HasErrorPrefix(err, "READONLY"):
		return "this is a replica: use the address of the primary, or redis+sentinel://"
	case redis.HasErrorPrefix(err, "OOM"):
		return "CONFIG SET maxmemory to more, or make room"
	case redis.HasErrorPrefix(err, "MISCONF"):
		return "the server cannot write its data: look at its disk and log"
	case redis.HasErrorPrefix(err, "NOREPLICAS"):
		return "too few replicas are connected for min-replicas-to-write: look at them"
	case redis.HasErrorPrefix(err, "CLUSTERDOWN"):
		return "slots of the Cluster are not served: redis-cli --cluster check"
	}
	return "see the words of the server"
}

// roundTrip compares the time of a call with the TTL, and the two clocks.
func (x *examination) roundTrip() {
	const calls = 15
	var took []time.Duration
	var offset time.Duration
	for range calls {
		sent := time.Now()
		server, err := ask(x, func(ctx context.Context) (time.Time, error) { return x.d.client.Time(ctx).Result() })
		d := time.Since(sent)
		if err != nil {
			x.unseen("round trip", err)
			return
		}
		if len(took) == 0 || d < slices.Min(took) { // the quickest answer says most about the clock
			offset = server.Sub(sent.Add(d / 2))
		}
		took = append(took, d)
	}
	slices.Sort(took)
	found := fmt.Sprintf("median %s, slowest of %d %s, with a TTL of %s", took[calls/2].Round(10*time.Microsecond), calls,
		took[calls-1].Round(10*time.Microsecond), x.ttl)
	if took[calls-1] > x.ttl/10 {
		x.say("round trip", driver.Caution, found, "a few slow renewals, and the lease is lost", "a TTL of "+(20*took[calls-1]).Round(time.Second).String()+" or more, or a nearer server")
	} else {
		x.fine("round trip", found)
	}
	found = fmt.Sprintf("the server's clock is %s from this machine's", offset.Round(time.Millisecond))
	if offset.Abs() > time.Second {
		x.say("clock", driver.Caution, found, "if the server loses its data and its clock is behind, tokens can repeat; a step to correct it ends terms early",
			"run an NTP daemon that slews, on both")
	} else {
		x.fine("clock", found)
	}
}

// primaries are the nodes of a Cluster that have slots.
func (x *examination) primaries() (nodes []*redis.Client) {
	var mu sync.Mutex
	_ = x.d.cluster.ForEachMaster(x.ctx, func(_ context.Context, c *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, c)
		return nil
	})
	slices.SortFunc(nodes, func(a, b *redis.Client) int { return strings.Compare(a.Options().Addr, b.Options().Addr) })
	return nodes
}

func (x *examination) clusterState() {
	text, err := ask(x, func(ctx context.Context) (string, error) { return x.d.cluster.ClusterInfo(ctx).Result() })
	if err != nil {
		x.unseen("cluster", err)
		return
	}
	info := fields(text)
	state := fmt.Sprintf("state %s, %s of 16384 slots, %s failing", info["cluster_state"], info["cluster_slots_ok"], info["cluster_slots_fail"])
	if info["cluster_state"] != "ok" || info["cluster_slots_ok"] != "16384" {
		x.say("cluster", driver.Refuse, state, "locks whose slots are not served cannot be taken", "redis-cli --cluster check, then --cluster fix")
		return
	}
	x.fine("cluster", state)
}

// fields reads the answer of INFO.
func fields(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			m[name] = value
		}
	}
	return m
}

var errNoInfo = errors.New("INFO tells nothing of it")
