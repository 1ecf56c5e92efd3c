package redishold

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/holdlock/holdlock/driver"
)

// A turn is what nearly all calls are for: to take a lock, or to give it back. Both are one script, turn.lua, which does it
// for many locks at a time: to enter a script and to ask for the time costs the server as much as the work for one lock. So
// callers at the same time share not only the way to the server but also the call; see sharer. Each is packed in one text:
//
//	A, W, N acquire; W takes a place in line if it has to wait, N likewise and cannot stand there already
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
	last driver.Token // of the term before
	rest any
}

// Words of turn.lua.
const (
	wordGeneral = '?'
	wordKept    = 'K' // as in the answer of release.lua
	wordNone    = 'n' // granted, and there was no term before
	wordTold    = 't' // granted, and the term before was released; its token follows
)

// turns says whether this store has the script.
func (d *Driver) turns() bool { return d.scripts.turn != nil }

func (d *Driver) packAcquire(req *driver.AcquireRequest, holder string, wait bool) string {
	what := byte('A')
	switch {
	case wait && req.First:
		what = 'N'
	case wait:
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

func packRelease(nonce string) string {
	var b [1 + 32 + 16]byte
	var id [8]byte
	binary.BigEndian.PutUint64(id[:], rand.Uint64()) // to be told from others, and no secret
	return string(hex.AppendEncode(append(append(b[:0], 'R'), nonce...), id[:]))
}

// grant is the grant of a word; see turn.lua.
func (t *turn) grant(floor driver.Token) driver.Grant {
	const horizon = 1_000_000 // µs: a floor is not followed further
	ending := driver.Released
	if t.word == wordNone {
		ending = driver.None
	}
	return driver.Grant{Token: max(t.now, min(floor, t.now+horizon)), Previous: ending, PriorToken: t.last}
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
	if err == nil && (!ok || readTurns(members, text, parts) != nil) {
		err = fmt.Errorf("the script answered %.200v", reply)
	}
	for _, r := range members {
		if r.err = err; err == nil {
			r.err = refused(r.turn.rest)
		}
	}
}

var errTurns = errors.New("not an answer of the script")

// readTurns reads what was answered: the time, a word for each, and what the general script has answered to those with a ?.
func readTurns(members []*member, text string, rest []any) error {
	now, text, err := cutDigits(text)
	if err != nil {
		return err
	}
	for _, r := range members {
		if text == "" {
			return errTurns
		}
		r.turn.now, r.turn.word, text = now, text[0], text[1:]
		switch r.turn.word {
		case wordTold:
			if r.turn.last, text, err = cutDigits(text); err != nil {
				return err
			}
		case wordGeneral:
			if len(rest) == 0 {
				return errTurns
			}
			r.turn.rest, rest = rest[0], rest[1:]
		}
	}
	if text != "" || len(rest) > 0 {
		return errTurns
	}
	return nil
}

// cutDigits reads a number of 16 digits.
func cutDigits(text string) (n driver.Token, rest string, err error) {
	const digits = 16
	if len(text) < digits {
		return 0, "", errTurns
	}
	u, err := strconv.ParseUint(text[:digits], 10, 64)
	return driver.Token(u), text[digits:], err
}
