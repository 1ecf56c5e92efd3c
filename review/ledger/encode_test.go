package ledger

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
)

func someUsage(rng *rand.Rand) *Usage {
	u := &Usage{}
	second := func() time.Time { return time.Unix(1_700_000_000+rng.Int64N(1e7), 0).UTC() }
	for c := Attempts; c < counters; c++ {
		if rng.IntN(2) == 0 {
			u.Counts[c] = rng.Uint64N(1 << rng.UintN(50))
		}
	}
	for range rng.IntN(200) {
		u.Hold.Record(time.Duration(rng.Int64N(1 << rng.Int64N(50))).Truncate(time.Microsecond))
	}
	for range rng.IntN(20) {
		u.Wait.Record(time.Duration(rng.Int64N(int64(time.Hour))).Truncate(time.Microsecond))
	}
	if rng.IntN(2) == 0 {
		u.LastTry, u.LastGrant = second(), second()
	}
	if rng.IntN(2) == 0 {
		u.LastHeld = second()
	}
	for range rng.IntN(7) {
		u.LapsedTerms = append(u.LapsedTerms, TermMark(rng.Uint32()))
		u.AbandonedTerms = append(u.AbandonedTerms, TermMark(rng.Uint32()))
		u.Used |= 1 << rng.IntN(spanDays)
	}
	for range rng.IntN(7) {
		first := second()
		u.block(Block{holdlock.Token(rng.Uint64N(1 << 53)), rng.Uint64N(100), first, first.Add(time.Duration(rng.IntN(1000)) * time.Second)})
	}
	return u
}

// near says whether two durations are the same but for the width of a group.
func near(a, b time.Duration) bool {
	return a <= b*5/4+5*time.Microsecond && b <= a*5/4+5*time.Microsecond
}

// What is written is read, and a record that was cut or changed is never read as something it cannot be.
func TestEncode(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		u, flushes := someUsage(rng), []uint32{rng.Uint32N(1 << 28), 7}
		b := encode(u, flushes)
		got, gotFlushes, err := decode(b)
		if err != nil || !reflect.DeepEqual(gotFlushes, flushes) {
			t.Fatalf("decode: %v, flushes %v", err, gotFlushes)
		}
		if got.Used != u.Used || !slices.Equal(got.LapsedTerms, lastTerms(u.LapsedTerms)) || !slices.Equal(got.AbandonedTerms, lastTerms(u.AbandonedTerms)) {
			t.Fatalf("%+v is read as %+v", u, got)
		}
		if again := encode(got, gotFlushes); !bytes.Equal(again, b) {
			t.Fatalf("%x is read as %x", b, again)
		}
		if got.Hold.Count() != u.Hold.Count() || got.Hold.Max() != u.Hold.Max() || !near(got.Hold.Median(), u.Hold.Median()) {
			t.Fatalf("holds %d %s %s are read as %d %s %s", u.Hold.Count(), u.Hold.Max(), u.Hold.Median(), got.Hold.Count(), got.Hold.Max(), got.Hold.Median())
		}
	}
}

func TestDecodeBadInput(t *testing.T) {
	if u, _, err := decode(nil); err != nil || u.Counts != (Usage{}).Counts {
		t.Errorf("nothing is read as %v, %v", u, err)
	}
	for _, c := range []struct {
		b    string
		want error
	}{
		{"\x02", ErrNewer},
		{"\x00", ErrDamaged},
		{"\x01\x01", ErrDamaged},
		{"\x01\xff", ErrDamaged},
		{"\x01\x63\x01", ErrNewer},
		{"\x01\x64\x09", ErrDamaged},
		{"\x01\x65\x00\x01\xff\x7f\x01", ErrDamaged},
		{"\x01\x65\x00\xff\xff\x03", ErrDamaged},
		{"\x01\x6b\x65", ErrDamaged},
		{"\x01\x6c\x02\x01", ErrDamaged},
		{"\x01\x6d\x80\x08", ErrDamaged},
	} {
		if _, _, err := decode([]byte(c.b)); !errors.Is(err, c.want) {
			t.Errorf("%x: %v, want %v", c.b, err, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		f.Add(encode(someUsage(rng), []uint32{1}))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		u, flushes, err := decode(b)
		if err != nil {
			return
		}
		u.Merge(u)
		if _, _, err := decode(encode(u, flushes)); err != nil {
			t.Errorf("what was read cannot be written and read again: %v", err)
		}
	})
}

// Merging is counting together, in whatever order.
func TestMerge(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		a, b := someUsage(rng), someUsage(rng)
		a.Blocks, b.Blocks = nil, nil
		ab, ba := &Usage{}, &Usage{}
		ab.Merge(a)
		ab.Merge(b)
		ba.Merge(b)
		ba.Merge(a)
		if !bytes.Equal(encode(ab, nil), encode(ba, nil)) {
			t.Fatal("the order matters")
		}
		if ab.Hold.Count() != a.Hold.Count()+b.Hold.Count() || ab.Get(Granted) != a.Get(Granted)+b.Get(Granted) {
			t.Fatal("a sum is wrong")
		}
	}
}

// A term that many programs were skipped behind, one each, is found among many others.
func TestBlocks(t *testing.T) {
	var u Usage
	at := time.Unix(1_700_000_000, 0).UTC()
	for i := range 1000 {
		now := at.Add(time.Duration(i) * time.Minute)
		token := holdlock.Token(i)
		if i >= 300 && i < 600 {
			token = 300 // one stuck holder
		}
		var one Usage
		one.block(Block{token, 1, now, now})
		u.Merge(&one)
	}
	if len(u.Blocks) > maxBlocks {
		t.Errorf("%d blocks are kept", len(u.Blocks))
	}
	for _, b := range u.Blocks {
		if b.Token == 300 && b.Skips == 300 && b.Last.Sub(b.First) == 299*time.Minute {
			return
		}
	}
	t.Errorf("the stuck holder is not in %+v", u.Blocks)
}

// The size of a day's record of a busy lock, and that of 1,000 locks in 90 days.
func TestSize(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	var u Usage
	now := time.Unix(1_700_000_000, 0)
	for range 5000 {
		u.count(&holdlock.Event{Kind: holdlock.Granted, Contended: rng.IntN(4) == 0, Waited: time.Duration(rng.ExpFloat64() * 1e9)}, now)
		u.count(&holdlock.Event{Kind: holdlock.Released, Held: time.Duration(rng.ExpFloat64() * 1e10), TokenRead: true}, now)
		u.count(&holdlock.Event{Kind: holdlock.Skipped, Token: holdlock.Token(rng.Uint64N(1 << 50)), Contended: true}, now)
	}
	n := len(encode(&u, []uint32{1 << 27, 1 << 27, 1 << 27, 1 << 27}))
	t.Logf("%d bytes a record", n)
	if n > 260 {
		t.Errorf("a record of a busy day takes %d bytes", n)
	}
}
