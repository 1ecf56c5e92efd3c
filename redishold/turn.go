package redishold

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
)

// A turn is what nearly all calls are for: to take a lock, or to give it back. Both are one script, turn.lua, which does it
// for many locks at a time: to enter a script and to ask for the time costs the server as much as the work for one lock. So
// callers at the same time share not only the way to the server but also the call; see sharer. Each is packed in one text:
//
//	A or W  acquire; W takes a place in line if it has to wait
//	        nonce, 32; TTL in µs, 16 digits; floor, 16 digits; process, 16, of the place; holder, JSON
//	R       release, at once
//	        nonce, 32; id of this call, 16
//
// What is not said here goes by scripts of its own: PlainKeys, Replicas, undoing, and keeping a key after the end.
type turn struct {
	packed string

	// The answer: a word, with the time of the server, µs, or '?' and what the general script has answered.
	word byte
	now  driver.Token
	rest any
}

// Words of turn.lua.
const (
	wordGeneral = '?'
	wordKept    = 'K' // as in the answer of release.lua
)

// turns says whether this store has the script.
func (d *Driver) turns() bool { return d.scripts.turn != nil }

func (d *Driver) packAcquire(req *driver.AcquireRequest, holder string, wait bool) string {
	what := byte('A')
	if wait {
		what = 'W'
	}
	var b strings.Builder
	b.Grow(1 + 32 + 16 + 16 + 16 + len(holder))
	b.WriteByte(what)
	b.WriteString(req.Ref.Nonce)
	writeDigits(&b, uint64(micros(max(req.TTL, req.MinHold))))
	writeDigits(&b, uint64(req.Floor))
	b.WriteString(d.hub.id)
	b.WriteString(holder)
	return b.String()
}

func packRelease(nonce string) string { return "R" + nonce + randomHex(8) }

// grant is the grant of a word; see turn.lua.
func (t *turn) grant(floor driver.Token) driver.Grant {
	const horizon = 1_000_000 // µs: a floor is not followed further
	ending := driver.Released
	if t.word == 'n' {
		ending = driver.None
	}
	return driver.Grant{Token: max(t.now, min(floor, t.now+horizon)), Previous: ending}
}

// writeDigits writes n with 16 digits. A greater one becomes the greatest, which no clock reaches.
func writeDigits(b *strings.Builder, n uint64) {
	const digits = 16
	var d [digits]byte
	n = min(n, 9_999_999_999_999_999)
	for i := digits - 1; i >= 0; i-- {
		d[i] = byte('0' + n%10)
		n /= 10
	}
	b.Write(d[:])
}

// turn makes one call. On a Cluster what stands beside the slot is named if it is to be on the same node.
func (d *Driver) turn(ctx context.Context, key, packed string, beside bool) (turn, error) {
	r := &member{script: d.scripts.turn, slot: [1]string{d.slotKey(key)}, turn: turn{packed: packed}}
	r.keys = r.slot[:]
	if beside && d.cluster != nil {
		r.keys = d.withAll(key)
	}
	if _, err := d.make(ctx, r); err != nil {
		return turn{}, err // it may still be under way
	}
	return r.turn, nil
}

// answerTurns gives each of the calls that were sent together its part of the reply.
func answerTurns(members []*member, reply any, err error) {
	parts, _ := reply.([]any)
	text, ok := reply.(string)
	if len(parts) > 0 {
		text, ok = parts[0].(string)
		parts = parts[1:]
	}
	const digits = 16
	var now uint64
	if err == nil {
		if ok = ok && len(text) == digits+len(members); ok {
			now, err = strconv.ParseUint(text[:digits], 10, 64)
		}
		if !ok || err != nil || strings.Count(text[digits:], string(rune(wordGeneral))) != len(parts) {
			err = fmt.Errorf("the script answered %.200v", reply)
		}
	}
	for i, r := range members {
		if r.err = err; err != nil {
			continue
		}
		r.turn.now, r.turn.word = driver.Token(now), text[digits+i]
		if r.turn.word == wordGeneral {
			r.turn.rest, parts = parts[0], parts[1:]
			if reply, failed := r.turn.rest.(redis.Error); failed {
				r.err = reply
			}
		}
	}
}
