package ledger

import (
	"encoding/json"
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
	Host        string     // that declared it last
}

// Same says whether two declarations agree in everything that matters to a review of differences: all but the texts.
func (d *Declaration) Same(o *Declaration) bool {
	a, b := *d, *o
	for _, x := range []*Declaration{&a, &b} {
		x.Purpose, x.AcceptRisk, x.Host, x.First, x.Last = "", "", "", 0, 0
	}
	return a == b
}

const (
	maxDeclarations = 4
	maxText         = 200 // bytes of Purpose, AcceptRisk and Host that are kept
)

// wireDeclaration is the form in the store; times are in ms.
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
			clip(d.Purpose), clip(d.AcceptRisk), int32(d.First), int32(d.Last), clip(d.Host), d.Shadow,
		})
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
		list = append(list, Declaration{
			TTL: ms(d.TTL), MaxHold: maxHold, MinHold: ms(d.MinHold), RenewOff: d.Off, DoubleRun: holdlock.DoubleRun(d.Double),
			Guard: holdlock.Guard(d.Guard), Purpose: d.Purpose, AcceptRisk: d.Risk, Shadow: d.Shadow,
			First: driver.Day(d.First), Last: driver.Day(d.Last), Host: d.Host,
		})
	}
	return list, nil
}

// declare adds a declaration that was in use on a day. Of too many the one that has not been in use for longest goes.
func declare(list []Declaration, d Declaration) []Declaration {
	d.Purpose, d.AcceptRisk, d.Host = clip(d.Purpose), clip(d.AcceptRisk), clip(d.Host)
	d.TTL, d.MinHold = d.TTL.Truncate(time.Millisecond), d.MinHold.Truncate(time.Millisecond)
	if d.MaxHold != holdlock.Forever {
		d.MaxHold = d.MaxHold.Truncate(time.Millisecond)
	}
	for i := range list {
		if have := &list[i]; have.Same(&d) {
			if d.Last >= have.Last {
				have.Purpose, have.AcceptRisk, have.Host, have.Last = d.Purpose, d.AcceptRisk, d.Host, d.Last
			}
			have.First = min(have.First, d.First)
			return list
		}
	}
	list = append(list, d)
	slices.SortStableFunc(list, func(a, b Declaration) int { return int(b.Last) - int(a.Last) })
	return list[:min(len(list), maxDeclarations)]
}
