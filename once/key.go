package once

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// Key returns the idempotency key of the job that a lock and its key name: 32 hexadecimal digits, the same for all runs of
// the job, on every machine, store and release. Hand it to outside services that take such a key (many call the header
// Idempotency-Key), so that they recognise the request of a second run. It is made of the names alone: if several stages share
// one account at such a service, let the lock's name tell them apart.
func Key(lock *holdlock.Lock) string { return keyOf(lock.Name(), lock.Key()) }

func keyOf(name, key string) string {
	// The name holds no slash, so no two jobs have one text.
	sum := sha256.Sum256([]byte("holdlock once 1\x00" + name + "/" + key))
	return hex.EncodeToString(sum[:16])
}

// jobName is the job as people type it.
func jobName(lock *holdlock.Lock) string {
	if lock.Key() == "" {
		return lock.Name()
	}
	return lock.Name() + "/" + lock.Key()
}

type contextKey struct{}

// KeyFrom returns the idempotency key of the job whose run ctx belongs to, or "" if it belongs to none. So a client deep
// below can send it without being handed it.
func KeyFrom(ctx context.Context) string {
	key, _ := ctx.Value(contextKey{}).(string)
	return key
}

// short makes a text fit for a record.
func short(text string) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "?"), "\x00", "?")
	if len(text) <= driver.MaxJobText {
		return text
	}
	text = text[:driver.MaxJobText-len("…")]
	for !utf8.ValidString(text) { // the cut went through a letter
		text = text[:len(text)-1]
	}
	return text + "…"
}
