//go:build unix

package sqlitehold

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// R1: a file that has another name is refused by either, since who opens it by the other one has another log.
func TestHardLink(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	d := open(t, path)
	mustAcquire(t, d, "job", time.Hour)
	other := filepath.Join(t.TempDir(), "other.db")
	check(t, os.Link(path, other))
	for _, name := range []string{other, path} {
		if again, err := NewDriver(name, nil); err == nil {
			again.Close()
			t.Errorf("%s was opened", name)
		} else if !strings.Contains(err.Error(), "hard link") || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var said bool
	for _, x := range d.Diagnose(ctx, driver.DoctorOptions{}) {
		said = said || x.Check == "names" && x.Verdict == driver.Refuse
	}
	if !said {
		t.Error("the doctor says nothing")
	}
	check(t, os.Remove(other))
	open(t, path)
}

// A symbolic link is not another name: the path is resolved.
func TestSymbolicLinkIsOneName(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	mustAcquire(t, open(t, path), "job", time.Hour)
	other := filepath.Join(t.TempDir(), "other.db")
	check(t, os.Symlink(path, other))
	if _, err := open(t, other).Acquire(ctx, acquire("job", time.Hour)); !isHeld(err) {
		t.Errorf("by a symbolic link: %v, want held", err)
	}
}

// Whoever makes the file gives it a second name for a moment. If it is killed then, the name is removed by the next one.
func TestMakerKilled(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	open(t, path)
	left := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".123.new")
	check(t, os.Link(path, left))
	open(t, path)
	if _, err := os.Lstat(left); !os.IsNotExist(err) {
		t.Errorf("the name that was left is still there: %v", err)
	}
}
