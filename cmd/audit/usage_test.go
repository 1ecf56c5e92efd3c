package audit

import (
	"testing"
	"time"
)

func TestJoin(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	lock := func(name string, constant bool) Lock { return Lock{Kind: Holdlock, Name: Name{name, constant}} }
	c := Join([]Lock{
		lock("used", true), lock("unused", true), lock("idle", true), lock("tenant-…", false),
		{Kind: Redsync, Name: Name{"other", true}},
	}, []Usage{
		{"used", at.Add(-time.Hour)},
		{"used", at},
		{"idle", time.Time{}},
		{"tenant-7", at},
		{"removed", at},
		{"other", at},
		{"never", time.Time{}},
	})
	if len(c.Used) != 1 || c.Used[0].Lock.Name.Text != "used" || !c.Used[0].LastUsed.Equal(at) {
		t.Errorf("used: %+v", c.Used)
	}
	if len(c.Unused) != 2 || c.Unused[0].Name.Text != "unused" || c.Unused[1].Name.Text != "idle" {
		t.Errorf("unused: %+v", c.Unused)
	}
	if len(c.Computed) != 1 || c.Computed[0].Name.Text != "tenant-…" {
		t.Errorf("computed: %+v", c.Computed)
	}
	if len(c.Perhaps) != 1 || c.Perhaps[0].Lock != "tenant-7" {
		t.Errorf("perhaps: %+v", c.Perhaps)
	}
	if len(c.Undeclared) != 2 || c.Undeclared[0].Lock != "removed" || c.Undeclared[1].Lock != "other" {
		t.Errorf("undeclared: %+v", c.Undeclared)
	}
	if c := Join([]Lock{lock("cfg.Name", false)}, []Usage{{"any", at}}); len(c.Perhaps) != 1 || len(c.Undeclared) != 0 {
		t.Errorf("nothing is known of a name, and yet %+v", c)
	}
}

func TestCanBe(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"a…", "a", true},
		{"a…", "ab", true},
		{"a…", "b", false},
		{"…z", "xyz", true},
		{"…z", "xy", false},
		{"a…b…c", "a1b2c", true},
		{"a…b…c", "a1c2b", false},
		{"a…b…c", "abc", true},
		{"a…a", "a", false},
		{"cfg.Name", "x", true},
	} {
		if got := (Name{Text: c.pattern}).canBe(c.name); got != c.want {
			t.Errorf("%q can be %q: %v", c.pattern, c.name, got)
		}
	}
}
