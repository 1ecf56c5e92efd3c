package redishold

import (
	"encoding/json"
	"sync/atomic"

	"github.com/holdlock/holdlock/driver"
)

// holderText remembers the last holder in JSON: a program describes itself in the same words again and again.
type holderText struct{ last atomic.Pointer[heldText] }

type heldText struct {
	holder driver.Holder
	text   string
}

func (h *holderText) json(holder driver.Holder) (string, error) {
	if last := h.last.Load(); last != nil && last.holder == holder {
		return last.text, nil
	}
	text, err := toJSON(holder)
	if err == nil {
		h.last.Store(&heldText{holder, text})
	}
	return text, err
}

// seededHolder is the holder of a term that other nodes of a quorum had before. They tell its token, and when it began, and so does this
// one, whatever its slot has.
type seededHolder struct {
	driver.Holder
	Since int64        `json:"since,omitempty"`        // µs since 1970
	Token driver.Token `json:"token,string,omitempty"` // last: renew.lua replaces it
}

func seeded(req *driver.AcquireRequest) (string, error) {
	s := seededHolder{Holder: req.Holder, Token: req.Seed}
	if !req.Since.IsZero() {
		s.Since = req.Since.UnixMicro()
	}
	return toJSON(s)
}

// parse reads a holder that a record names; mostly it is this program.
func (h *holderText) parse(text string) (holder driver.Holder, err error) {
	if last := h.last.Load(); last != nil && last.text == text {
		return last.holder, nil
	}
	err = json.Unmarshal([]byte(text), &holder)
	return holder, err
}
