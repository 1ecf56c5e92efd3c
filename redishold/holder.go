package redishold

import (
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
