package ledger

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// Declaration is what a program has declared a lock as.
type Declaration struct {
	TTL, MaxHold, MinHold time.Duration
	RenewOff              bool
	DoubleRun             holdlock.DoubleRun
	Guard                 holdlock.Guard
	Purpose, AcceptRisk   string
	Shadow                bool

	First, Last driver.Day // when it was in use
	Used        uint64     // the days of that, as far as they are known, up to 64: bit i is i days before Last. See UsedOn
	Told        driver.Day // when a program said last, without using it, that it still has it; zero if none has. See KnownOn
	At          time.Time  // when a program declared it last, to the millisecond; zero if only an older release has
	Host        string     // that declared it last
}

// Same says whether two declarations agree in everything that matters to a review of differences: all but the texts.
func (d *Declaration) Same(o *Declaration) bool {
	a, b := *d, *o
	for _, x := range []*Declaration{&a, &b} {
		x.Purpose, x.AcceptRisk, x.Host, x.First, x.Last, x.Told, x.Used, x.At = "", "", "", 0, 0, 0, 0, time.Time{}
	}
	return a == b
}

// UsedOn says whether it is known to have been in use on a day. A setting that was taken back and came again was not in use all the
// time from First to Last. Of what an older release has written only these two are known, and nothing of more than 64 days before Last.
func (d *Declaration) UsedOn(day driver.Day) bool {
	return day <= d.Last && d.used()>>(d.Last-day)&1 == 1
}

// KnownOn returns the last day on which a program is known to have it, whether it used the lock or not. A program tells of a lock that
// it does not use about once a week, and only if it uses another one.
func (d *Declaration) KnownOn() driver.Day { return max(d.Last, d.Told) }

// used returns the days, bit i for i days before Last.
func (d *Declaration) used() uint64 {
	if d.Used != 0 || d.Last < d.First {
		return d.Used
	}
	return 1 | 1<<(d.Last-d.First)
}

// use marks a day, not before Last.
func (d *Declaration) use(day driver.Day) {
	d.Used, d.Last = d.used()<<(day-d.Last)|1, day
}

const (
	maxDeclarations = 4
	maxText         = 200 // bytes of Purpose, AcceptRisk and Host that are kept
)

// wireDeclaration is the form in the store; times are in ms. A release that does not know a field leaves it out when it writes, so
// nothing may depend on one that came later.
type wireDeclaration struct {
	TTL     int64  `json:"ttl"`
	MaxHold int64  `json:"max,omitempty"` // -1 is for ever
	MinHold int64  `json:"min,omitempty"`
	Off     bool   `json:"off,omitempty"`
	Double  uint8  `json:"dr,omitempty"`
	Guard   uint8  `json:"gd,omitempty"`
	Purpose string `json:"p,omitempty"`
	Risk    string `json:"ar,omitempty"`
	First   int32  `json:"f"`
	Last    int32  `json:"l"`
	Host    string `json:"h,omitempty"`
	Shadow  bool   `json:"sh,omitempty"`
	At      int64  `json:"at,omitempty"` // since 1970
	Used    uint64 `json:"u,omitempty"`
	Told    int32  `json:"t,omitempty"`
}

type wireDeclarations struct {
	Version int               `json:"v"`
	List    []wireDeclaration `json:"d"`
}

func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "")
}

func encodeDeclarations(list []Declaration) []byte {
	w := wireDeclarations{Version: version}
	for _, d := range list {
		maxHold := d.MaxHold.Milliseconds()
		if d.MaxHold == holdlock.Forever {
			maxHold = -1
		}
		w.List = append(w.List, wireDeclaration{
			d.TTL.Milliseconds(), maxHold, d.MinHold.Milliseconds(), d.RenewOff, uint8(d.DoubleRun), uint8(d.Guard),
			clip(d.Purpose), clip(d.AcceptRisk), int32(d.First), int32(d.Last), clip(d.Host), d.Shadow, 0, d.used(), int32(d.Told),
		})
		if !d.At.IsZero() {
			w.List[len(w.List)-1].At = d.At.UnixMilli()
		}
	}
	b, _ := json.Marshal(w) // cannot fail
	return b
}

func decodeDeclarations(b []byte) ([]Declaration, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var w wireDeclarations
	if err := json.Unmarshal(b, &w); err != nil {
		return nil, ErrDamaged
	}
	if w.Version > version {
		return nil, ErrNewer
	}
	var list []Declaration
	for _, d := range w.List {
		ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
		maxHold := ms(d.MaxHold)
		if d.MaxHold < 0 {
			maxHold = holdlock.Forever
		}
		if d.Double > uint8(holdlock.Harmful) || d.Guard > uint8(holdlock.IdempotencyKey) {
			return nil, ErrNewer
		}
		var at time.Time
		if d.At > 0 {
			at = time.UnixMilli(d.At).UTC()
		}
		list = append(list, Declaration{
			TTL: ms(d.TTL), MaxHold: maxHold, MinHold: ms(d.MinHold), RenewOff: d.Off, DoubleRun: holdlock.DoubleRun(d.Double),
			Guard: holdlock.Guard(d.Guard), Purpose: d.Purpose, AcceptRisk: d.Risk, Shadow: d.Shadow,
			First: driver.Day(d.First), Last: driver.Day(d.Last), Told: driver.Day(d.Told), Used: d.Used, At: at, Host: d.Host,
		})
	}
	slices.SortStableFunc(list, newest) // an older release may have written it in another order
	return list, nil
}

// newest orders declarations: the one that was in use last comes first. On the day of a change both were, so of those the one comes
// first that a program has declared last: a program that runs on with the old one has declared it long ago. Where that is not
// known, it is the one that came up last. The rest only makes the order the same for everybody.
func newest(a, b Declaration) int {
	return cmp.Or(cmp.Compare(b.Last, a.Last), b.At.Compare(a.At), cmp.Compare(b.First, a.First),
		cmp.Compare(b.TTL, a.TTL), cmp.Compare(b.MaxHold, a.MaxHold), cmp.Compare(b.MinHold, a.MinHold), cmp.Compare(b.DoubleRun, a.DoubleRun),
		cmp.Compare(b.Guard, a.Guard), cmp.Compare(fmt.Sprint(b.RenewOff, b.Shadow), fmt.Sprint(a.RenewOff, a.Shadow)), newestTexts(a, b))
}

// newestTexts is for declarations that differ in their texts only.
func newestTexts(a, b Declaration) int {
	return cmp.Or(cmp.Compare(b.Last, a.Last), b.At.Compare(a.At),
		cmp.Compare(b.Host, a.Host), cmp.Compare(b.Purpose, a.Purpose), cmp.Compare(b.AcceptRisk, a.AcceptRisk))
}

// declare adds a declaration that was in use on a day. Of too many the one that has not been in use for longest goes.
func declare(list []Declaration, d Declaration) []Declaration {
	d.Purpose, d.AcceptRisk, d.Host = clip(d.Purpose), clip(d.AcceptRisk), clip(d.Host)
	d.TTL, d.MinHold = d.TTL.Truncate(time.Millisecond), d.MinHold.Truncate(time.Millisecond)
	if d.MaxHold != holdlock.Forever {
		d.MaxHold = d.MaxHold.Truncate(time.Millisecond)
	}
	d.Used = d.used()
	same := slices.IndexFunc(list, func(have Declaration) bool { return have.Same(&d) })
	if same < 0 {
		list = append(list, d)
	} else {
		have := &list[same]
		first, last, told, at := min(have.First, d.First), max(have.Last, d.Last), max(have.Told, d.Told), later(have.At, d.At)
		used := have.used()<<(last-have.Last) | d.Used<<(last-d.Last)
		if newestTexts(d, *have) < 0 {
			*have = d
		}
		have.First, have.Last, have.Told, have.Used, have.At = first, last, told, used, at
	}
	slices.SortStableFunc(list, newest)
	return list[:min(len(list), maxDeclarations)]
}
