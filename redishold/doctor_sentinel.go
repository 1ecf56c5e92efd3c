package redishold

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/holdlock/holdlock/driver"
)

// SentinelOptions say how the sentinels of a client are reached: it does not tell itself. They are for Diagnose alone.
type SentinelOptions struct {
	Primary            string   // the name under which the sentinels know it
	Addrs              []string // of the sentinels
	Username, Password string   // at the sentinels
	TLSConfig          *tls.Config
}

// sentinels asks each sentinel what it thinks of the primary.
func (x *examination) sentinels() {
	o := x.d.sentry
	if o == nil {
		return
	}
	var silent, other []string
	var answers []map[string]string
	var quorumErr error
	for _, addr := range o.Addrs {
		c := redis.NewSentinelClient(&redis.Options{
			Addr: addr, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig, MaxRetries: -1, DialTimeout: 3 * time.Second,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		m, err := ask(x, func(ctx context.Context) (map[string]string, error) { return c.Master(ctx, o.Primary).Result() })
		switch {
		case err == nil:
			answers = append(answers, m)
			if quorumErr == nil {
				_, quorumErr = ask(x, func(ctx context.Context) (string, error) { return c.CkQuorum(ctx, o.Primary).Result() })
			}
		case strings.Contains(err.Error(), "No such master"):
			other = append(other, addr)
		default:
			silent = append(silent, fmt.Sprintf("%s (%v)", addr, err))
		}
		_ = c.Close()
	}
	if len(other) > 0 {
		x.say("sentinels", driver.Refuse, fmt.Sprintf("%s know no primary called %q", strings.Join(other, ", "), o.Primary), "they take part in no failover of it, and "+
			"clients cannot ask them", fmt.Sprintf("SENTINEL MONITOR %s HOST PORT QUORUM there, or the right name", o.Primary))
	}
	if len(silent) > 0 {
		x.say("sentinels", driver.Caution, fmt.Sprintf("%d of %d do not answer: %s", len(silent), len(o.Addrs), strings.Join(silent, "; ")),
			"when too few are left no replica takes over, and no lock can be taken", "look at them, and at the list in the URL")
	}
	if len(answers) == 0 {
		return
	}
	x.sentinelNumbers(answers, quorumErr)
	x.downAfter(answers)
}

// sentinelNumbers is about how many there are, and how many have to agree.
func (x *examination) sentinelNumbers(answers []map[string]string, quorumErr error) {
	var quorums []string
	known := 0
	for _, m := range answers {
		others, _ := strconv.Atoi(m["num-other-sentinels"])
		known = max(known, others+1)
		if !slices.Contains(quorums, m["quorum"]) {
			quorums = append(quorums, m["quorum"])
		}
	}
	quorum, _ := strconv.Atoi(quorums[0])
	name := x.d.sentry.Primary
	found := fmt.Sprintf("%d sentinels, of which %d have to agree that the primary is down", known, quorum)
	set := func(n int) string { return fmt.Sprintf("SENTINEL SET %s quorum %d, at each sentinel", name, n) }
	switch {
	case len(quorums) > 1:
		x.say("sentinel quorum", driver.Caution, fmt.Sprintf("the sentinels differ: %s", strings.Join(quorums, ", ")), "it depends on who leads whether there is a failover",
			set(known/2+1))
	case quorum > known:
		x.say("sentinel quorum", driver.Caution, found, "no replica ever takes over, and when the primary dies no lock can be taken", set(known/2+1))
	case quorumErr != nil:
		x.say("sentinel quorum", driver.Caution, quorumErr.Error(), "no replica can take over, and when the primary dies no lock can be taken", "look at the sentinels")
	case known < 3:
		x.say("sentinel quorum", driver.Caution, found, "with one of them down no replica takes over", "3 or 5 sentinels, on machines of their own")
	case quorum <= known/2:
		x.say("sentinel quorum", driver.Caution, found, "a few that are cut off can declare a primary down that works; each failover may forget locks", set(known/2+1))
	default:
		x.fine("sentinel quorum", found)
	}
}

// downAfter compares the time until a failover begins with the TTL.
func (x *examination) downAfter(answers []map[string]string) {
	var longest time.Duration
	for _, m := range answers {
		ms, _ := strconv.ParseInt(m["down-after-milliseconds"], 10, 64)
		longest = max(longest, time.Duration(ms)*time.Millisecond)
	}
	found := fmt.Sprintf("a failover begins %s after the primary has gone, with a TTL of %s", longest, x.ttl)
	if longest >= x.ttl*2/3 {
		x.say("failover time", driver.Caution, found, "all leases are lost before a replica has taken over, and their work is ended",
			fmt.Sprintf("SENTINEL SET %s down-after-milliseconds %d, at each sentinel; or a TTL of %s or more", x.d.sentry.Primary, (x.ttl/3).Milliseconds(), 2*longest))
		return
	}
	x.fine("failover time", found)
}
