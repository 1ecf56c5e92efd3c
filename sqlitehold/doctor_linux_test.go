package sqlitehold

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdlock/holdlock/driver"
)

func TestDoctor(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, path string)
		check string
		want  driver.Verdict
		word  string
	}{
		"good": {func(*testing.T, string) {}, "", driver.Fine, ""},
		"open to all": {func(t *testing.T, path string) {
			if err := os.Chmod(path, 0o666); err != nil {
				t.Fatal(err)
			}
		}, "rights", driver.Caution, "chmod o-w"},
		"directory open to all": {func(t *testing.T, path string) {
			if err := os.Chmod(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
		}, "rights", driver.Caution, "chmod o-w"},
		"file replaced": {func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, "use", driver.Refuse, "see the words"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "sub", "locks")
			d, err := NewDriver(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			c.spoil(t, path)
			worst := driver.Diagnosis{}
			for _, f := range d.Diagnose(t.Context(), driver.DoctorOptions{}) {
				if f.Verdict > worst.Verdict {
					worst = f
				}
			}
			if worst.Verdict != c.want || !strings.HasPrefix(worst.Check, c.check) || !strings.Contains(worst.Setting, c.word) {
				t.Errorf("the worst is %+v, want %s of %q", worst, c.want, c.check)
			}
		})
	}
}
