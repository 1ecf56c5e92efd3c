package fence_test

import (
	"context"
	"errors"
	"testing"

	"github.com/holdlock/holdlock/fence"
	"github.com/holdlock/holdlock/fence/fencetest"
)

// value is a variable behind a fence.
type value struct {
	marks   fence.Memory
	content string
}

func (v *value) Begin(_ context.Context, c fence.Claim) (content string, err error) {
	err = v.marks.Do(c, func() error { content = v.content; return nil })
	return content, err
}

func (v *value) Write(_ context.Context, c fence.Claim, content string) error {
	return v.marks.Do(c, func() error { v.content = content; return nil })
}

func (v *value) Read(context.Context) (string, error) { return v.content, nil }

func TestMemory(t *testing.T) {
	fencetest.Run(t, func(*testing.T) fencetest.Resource { return &value{} })
}

// Marks of different locks and keys have nothing to do with each other.
func TestLocksApart(t *testing.T) {
	var m fence.Memory
	for _, c := range []fence.Claim{{Name: "a", Token: 9}, {Name: "a", Key: "k", Token: 5}, {Name: "b", Token: 1}} {
		if err := m.Mark(t.Context(), c); err != nil {
			t.Errorf("claim of %s: %v", c.Lock(), err)
		}
	}
	if err := m.Mark(t.Context(), fence.Claim{Name: "a", Token: 8}); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a stale claim: %v", err)
	}
}

func TestFromEnv(t *testing.T) {
	for _, c := range []struct{ lock, key, token, want string }{
		{"report", "", "1764400000000000", "report"},
		{"report", "7/8", "12", "report/7/8"},
		{"", "", "12", ""},
		{"report", "", "", ""},
		{"report", "", "0", ""},
		{"report", "", "-1", ""},
		{"report", "", "9007199254740993", ""},
	} {
		t.Setenv("HOLDLOCK_LOCK", c.lock)
		t.Setenv("HOLDLOCK_KEY", c.key)
		t.Setenv("HOLDLOCK_TOKEN", c.token)
		claim, err := fence.FromEnv()
		if (err == nil) != (c.want != "") || err == nil && claim.Lock() != c.want {
			t.Errorf("%+v gives %q, %v", c, claim.Lock(), err)
		}
		if err != nil && !errors.Is(err, fence.ErrNoClaim) {
			t.Errorf("%+v gives %v, want ErrNoClaim", c, err)
		}
	}
}
