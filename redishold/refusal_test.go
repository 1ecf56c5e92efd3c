//go:build unix

package redishold

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// Of calls that travel together each hears its own answer, also when the server refuses some of them in words of which the client
// library makes something: it stops in the middle of a list then. The twins answer such errors as they are.
func TestEachHearsItsOwnRefusal(t *testing.T) {
	t.Parallel()
	const full = "OOM"
	for sign, c := range map[string]struct {
		refuse, back [][]string
		all          bool // takes no write at all
	}{
		full:         {refuse: [][]string{{"CONFIG", "SET", "maxmemory", "1"}}, back: [][]string{{"CONFIG", "SET", "maxmemory", "0"}}},
		"READONLY":   {refuse: [][]string{{"REPLICAOF", "127.0.0.1", "1"}}, back: [][]string{{"REPLICAOF", "NO", "ONE"}}, all: true},
		"NOREPLICAS": {refuse: [][]string{{"CONFIG", "SET", "min-replicas-to-write", "1"}}, back: [][]string{{"CONFIG", "SET", "min-replicas-to-write", "0"}}, all: true},
	} {
		t.Run(sign, func(t *testing.T) {
			t.Parallel()
			r := testenv.StartRedis(t)
			play := func(break_ func(*Driver)) []string {
				r.Do(t, "FLUSHALL")
				d := openDriver(t, r.Addr, nil)
				break_(d)
				mine, taken := request("mine", time.Minute), request("taken", time.Minute)
				grant(t, d, mine)
				grant(t, d, taken)
				for _, cmd := range c.refuse {
					r.Do(t, cmd...)
				}
				wrong := refusedTogether(t, d, mine.Ref, sign, c.all)
				for _, cmd := range c.back {
					r.Do(t, cmd...)
				}
				return wrong
			}
			for _, wrong := range play(func(*Driver) {}) {
				t.Error(wrong)
			}
			if c.all {
				return // the answer to all is the twin's too
			}
			const text = "answer = {'!', answer.err}"
			if twin := play(func(d *Driver) {
				source := strings.Replace(d.scripts.turn.source, text, "", 1)
				if source == d.scripts.turn.source {
					t.Fatal("there is nothing to switch off")
				}
				d.scripts.turn = newScript(source)
			}); len(twin) == 0 {
				t.Error("the twin is not noticed: does the client library read such lists now?")
			}
		})
	}
}

// refusedTogether sends calls of all kinds in one pipeline, while the server refuses to write, and says what is wrong with the answers.
func refusedTogether(t *testing.T, d *Driver, mine driver.Ref, sign string, all bool) (wrong []string) {
	t.Helper()
	say := newScript("return {ARGV[1]}")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	taking := func(key string) *member {
		req := request(key, time.Minute)
		return &member{
			ctx: ctx, script: d.scripts.turn, keys: []string{d.slotKey(key)}, turn: turn{packed: d.packAcquire(req, "{}", false)},
		}
	}
	saying := func(text string) *member {
		return &member{ctx: ctx, script: say, keys: []string{text}, args: []any{text}}
	}
	free, taken, other, gives := taking("free"), taking("taken"), taking("other"), taking("mine")
	gives.turn.packed = packRelease(mine.Nonce)
	first, last := saying("first"), saying("last")
	batch := []*member{free, first, taken, other, gives, last}
	d.shared.send(batch)
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for name, m := range map[string]*member{"first": first, "last": last} {
		if got := fmt.Sprint(m.reply); m.err != nil || got != fmt.Sprint([]any{name}) {
			complain("%s heard %s, %v", name, got, m.err)
		}
	}
	for name, m := range map[string]*member{"free": free, "other": other} {
		var reply redis.Error
		if !errors.As(m.err, &reply) || !strings.Contains(reply.Error(), sign) {
			complain("%s heard %c %v, %v; want %s", name, m.turn.word, m.turn.rest, m.err, sign)
		}
	}
	if all {
		for name, m := range map[string]*member{"taken": taken, "mine": gives} {
			if m.err == nil || !strings.Contains(m.err.Error(), sign) {
				complain("%s heard %c %v, %v; want %s", name, m.turn.word, m.turn.rest, m.err, sign)
			}
		}
		return wrong
	}
	if word, _, err := answer(taken.turn.rest); taken.err != nil || err != nil || word != "H" {
		complain("one who asked for what is taken heard %s, %v, %v", word, err, taken.err)
	}
	if word, _, err := answer(gives.turn.rest); gives.err != nil || err != nil || word != "K" { // decided by general: a full server takes it as put does
		complain("one who gave back heard %c %v, %v", gives.turn.word, gives.turn.rest, gives.err)
	}
	return wrong
}
