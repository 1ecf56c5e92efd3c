package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/holdlock/holdlock"
)

// say tells a person, or with --json a program, something on stderr. kind is one word that does not change between
// releases; fields are for --json.
func (g *globals) say(kind, text string, fields map[string]any) {
	if !g.JSON {
		fmt.Fprintf(g.stderr, "holdlock: %s\n", plain(text))
		return
	}
	out := map[string]any{"event": kind, "message": text}
	for k, v := range fields {
		out[k] = v
	}
	b, err := json.Marshal(out)
	if err != nil {
		b = []byte(`{"event":"internal"}`) // cannot happen: the fields are plain values
	}
	fmt.Fprintf(g.stderr, "%s\n", b)
}

// plain makes one line of a text and escapes what a terminal would act upon: names, labels, paths and reasons in it come
// from others.
func plain(text string) string {
	var b strings.Builder
	indented := false
	for _, r := range text {
		if indented && (r == '\t' || r == ' ') { // what some libraries begin a further line with
			continue
		}
		indented = r == '\n'
		switch {
		case r == '\n':
			b.WriteString("; ")
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		}
	}
	return b.String()
}

// heldFields are the fields of an error that says who has the lock.
func heldFields(err error) map[string]any {
	var h *holdlock.HeldError
	if !errors.As(err, &h) {
		return nil
	}
	free := h.FreeIn
	if h.Overdue {
		free = 0 // as it is listed
	}
	return map[string]any{"holder": fieldsOf(holdlock.Info{
		Name: h.Name, Key: h.Key, Store: h.Store, Token: h.Token, Holder: h.Holder, Since: h.Since, FreeIn: free,
		Cooling: h.Cooling, Broken: h.Broken,
	})}
}

// fieldsOf is the JSON form of a held lock: a contract. A token is a string, because many readers hold numbers in 53 bits.
func fieldsOf(i holdlock.Info) map[string]any {
	out := map[string]any{
		"lock": i.Name, "store": i.Store, "state": state(i), "token": strconv.FormatUint(uint64(i.Token), 10),
		"free_in_ms": i.FreeIn.Milliseconds(),
	}
	if i.Key != "" {
		out["key"] = i.Key
	}
	if i.Broken != "" {
		out["broken_by"] = i.Broken
	}
	if !i.Cooling {
		out["since"] = i.Since.UTC().Format(time.RFC3339Nano)
		out["host"], out["pid"], out["label"], out["purpose"] = i.Holder.Host, i.Holder.PID, i.Holder.Label, i.Holder.Purpose
	}
	return out
}

func state(i holdlock.Info) string {
	switch {
	case i.Cooling:
		return "cooling"
	case i.FreeIn == 0:
		return "frozen" // past its time, and kept by a session whose process stands still
	case i.Broken != "":
		return "broken"
	default:
		return "held"
	}
}

// who names a holder. Not every program gives a label.
func who(h holdlock.Holder) string {
	text := fmt.Sprintf("pid %d on %s", h.PID, h.Host)
	if h.Label != "" {
		text = h.Label + ", " + text
	}
	return text
}

// lockName is LOCK or LOCK/KEY as it is typed, quoted if it would not be readable on one line of a terminal.
func lockName(name, key string) string {
	if key != "" {
		name += "/" + key
	}
	return readable(name)
}

// readable quotes text that holds what a terminal would not show as it is, or act upon.
func readable(s string) string {
	for _, r := range s {
		if !unicode.IsPrint(r) || r == '"' {
			return strconv.Quote(s)
		}
	}
	return s
}
