package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/holdlock/holdlock"
)

// A record is a version, then fields until its end: a tag, and what the tag says. Numbers are unsigned varints. Programs of
// different releases add to one record, so a field that a program does not know would be lost by its next flush: it refuses the
// record instead (ErrNewer), and keeps its own counts for itself.
//
//	1 … 99   a counter: its value
//	100      the last flushes: how many, and the number of each
//	101 102  the histograms of holds and waits: the longest in µs, how many groups are not empty, and for each the distance from the
//	         group before and the count. Four fields of the histogram are one group, about a fifth wide: that is enough for every
//	         threshold, and keeps a record small
//	103 104  the last attempt, the last grant: seconds since 1970
//	105      a block: token, skips, first in seconds since 1970, seconds from there to the last
//	106      the last renewal that is told: seconds since 1970
//	107 108  the terms that lapsed, and those that were abandoned: how many, and the mark of each
//	109      the days of use: a bit for each
const version = 1

const (
	tagFlushes = 100 + iota
	tagHold
	tagWait
	tagLastTry
	tagLastGrant
	tagBlock
	tagLastHeld
	tagLapsedTerms
	tagAbandonedTerms
	tagUsed
)

// ErrNewer says that a record was written by a newer release.
var ErrNewer = errors.New("the record is of a newer holdlock; upgrade this one, or remove the record if there is no newer one (docs/review.md says how)")

// ErrDamaged says that a record cannot be read.
var ErrDamaged = errors.New("the record is damaged; nothing is added to it until it is removed (docs/review.md says how)")

// maxCount is more than can happen, and its sums do not overflow.
const maxCount = 1 << 50

// maxFlushes bounds the flush numbers in a record. See Recorder.
const maxFlushes = 4

func encode(u *Usage, flushes []uint32) []byte {
	b := []byte{version}
	num := func(n uint64) { b = binary.AppendUvarint(b, min(n, maxCount)) }
	for c, n := range u.Counts {
		if n > 0 {
			num(uint64(c))
			num(n)
		}
	}
	if len(flushes) > 0 {
		num(tagFlushes)
		num(uint64(len(flushes)))
		for _, f := range flushes {
			num(uint64(f))
		}
	}
	for i, h := range []*Histogram{&u.Hold, &u.Wait} {
		if h.Count() == 0 {
			continue
		}
		num(tagHold + uint64(i))
		num(uint64(h.max / time.Microsecond))
		counts := grouped(h.h.Export().Counts)
		fields := 0
		for _, n := range counts {
			if n > 0 {
				fields++
			}
		}
		num(uint64(fields))
		before := 0
		for i, n := range counts {
			if n > 0 {
				num(uint64(i - before))
				num(uint64(n))
				before = i
			}
		}
	}
	for i, t := range []time.Time{u.LastTry, u.LastGrant} {
		if !t.IsZero() {
			num(tagLastTry + uint64(i))
			num(uint64(t.Unix()))
		}
	}
	if !u.LastHeld.IsZero() {
		num(tagLastHeld)
		num(uint64(u.LastHeld.Unix()))
	}
	for i, list := range [][]TermMark{u.LapsedTerms, u.AbandonedTerms} {
		if len(list) == 0 {
			continue
		}
		num(tagLapsedTerms + uint64(i))
		list = lastTerms(list)
		num(uint64(len(list)))
		for _, m := range list {
			num(uint64(m))
		}
	}
	if u.Used != 0 {
		num(tagUsed)
		num(uint64(u.Used))
	}
	for _, k := range u.Blocks {
		num(tagBlock)
		b = binary.AppendUvarint(b, uint64(k.Token))
		num(k.Skips)
		num(uint64(k.First.Unix()))
		num(uint64(k.Last.Unix() - k.First.Unix()))
	}
	return b
}

// group is how many fields of a histogram are one in a record.
const group = 4

func grouped(counts []int64) []int64 {
	groups := make([]int64, (len(counts)+group-1)/group)
	total := int64(0)
	for i, n := range counts {
		groups[i/group] += n
		total += n
	}
	// Nobody asks for the shortest twentieth: it counts as one group. That never moves more than a twentieth, also when it is
	// done again at the next flush, because then the group is a twentieth already.
	for i := 0; i < len(groups)-1 && groups[i] < total/20; i++ {
		groups[i+1] += groups[i]
		groups[i] = 0
	}
	return groups
}

func decode(b []byte) (u *Usage, flushes []uint32, err error) {
	u = &Usage{}
	if len(b) == 0 {
		return u, nil, nil
	}
	if b[0] != version {
		if b[0] > version {
			return nil, nil, ErrNewer
		}
		return nil, nil, ErrDamaged
	}
	r := reader{b: b[1:]}
	for len(r.b) > 0 && !r.bad {
		switch tag := r.num(); {
		case r.bad:
		case tag > 0 && tag < uint64(counters):
			u.Counts[tag] = r.upTo(maxCount)
		case tag == tagFlushes:
			for range r.upTo(maxFlushes) {
				flushes = append(flushes, uint32(r.upTo(1<<32-1)))
			}
			r.bad = r.bad || len(flushes) > maxFlushes
		case tag == tagHold:
			r.histogram(&u.Hold)
		case tag == tagWait:
			r.histogram(&u.Wait)
		case tag == tagLastTry:
			u.LastTry = r.time()
		case tag == tagLastGrant:
			u.LastGrant = r.time()
		case tag == tagLastHeld:
			u.LastHeld = r.time()
		case tag == tagLapsedTerms:
			u.LapsedTerms = r.terms()
		case tag == tagAbandonedTerms:
			u.AbandonedTerms = r.terms()
		case tag == tagUsed:
			u.Used = uint16(r.upTo(1<<spanDays - 1))
		case tag == tagBlock:
			k := Block{Token: holdlock.Token(r.upTo(1 << 53)), Skips: r.upTo(maxCount), First: r.time()}
			k.Last = k.First.Add(time.Duration(r.upTo(1<<33)) * time.Second)
			if len(u.Blocks) == maxBlocks {
				r.bad = true
				break
			}
			u.Blocks = append(u.Blocks, k)
		default:
			return nil, nil, fmt.Errorf("%w (field %d)", ErrNewer, tag)
		}
	}
	if r.bad {
		return nil, nil, ErrDamaged
	}
	return u, flushes, nil
}

// reader reads numbers until the first that is not right.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) num() uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[size:]
	return n
}

// upTo reads a number that must not be larger than most.
func (r *reader) upTo(most uint64) uint64 {
	n := r.num()
	if n > most {
		r.bad, r.b = true, nil
		return 0
	}
	return n
}

func (r *reader) time() time.Time { return time.Unix(int64(r.upTo(1<<33)), 0).UTC() }

func (r *reader) terms() (list []TermMark) {
	for range r.upTo(maxTerms) {
		list = append(list, TermMark(r.upTo(1<<32-1)))
	}
	return list
}

func (r *reader) histogram(h *Histogram) {
	empty := hdrhistogram.New(least, most, digits).Export()
	groups := uint64(len(empty.Counts) / group)
	longest := time.Duration(r.upTo(uint64(most))) * time.Microsecond
	at := uint64(0)
	for range r.upTo(groups) {
		at += r.upTo(groups)
		n := r.upTo(maxCount)
		if r.bad || at >= groups {
			r.bad = true
			return
		}
		empty.Counts[at*group+group/2] += int64(n)
	}
	h.h, h.max = hdrhistogram.Import(empty), longest
}
