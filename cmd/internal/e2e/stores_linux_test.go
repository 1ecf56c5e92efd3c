package e2e

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// sqliteFile returns a valid, empty database of one page, of some application and layout.
func sqliteFile(application, version uint32) string {
	const size = 4096
	p := make([]byte, size)
	copy(p, "SQLite format 3\x00")
	binary.BigEndian.PutUint16(p[16:], size)
	copy(p[18:], []byte{1, 1, 0, 64, 32, 32})
	for at, v := range map[int]uint32{24: 1, 28: 1, 44: 4, 48: 0, 56: 1, 60: version, 68: application, 92: 1, 96: 3045000} {
		binary.BigEndian.PutUint32(p[at:], v)
	}
	p[100] = 0x0d // an empty table leaf, which is the schema
	binary.BigEndian.PutUint16(p[105:], size)
	return string(p)
}

// lockFile makes the store and keeps its write lock, as a process does that was stopped inside a transaction.
func (b *box) lockFile() {
	b.t.Helper()
	b.makeStore()
	f, err := os.OpenFile(b.db+"-shm", os.O_RDWR, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { f.Close() })
	// WAL_WRITE_LOCK of the file format: https://sqlite.org/walformat.html, section 2.3.1. An open file description lock,
	// because this process has other tests.
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: 0, Start: 120, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		b.t.Fatal(err)
	}
}

// unprivileged makes cmd run as a user who is not root. The box is then open to that user.
func (b *box) unprivileged(cmd *exec.Cmd) *exec.Cmd {
	b.t.Helper()
	if os.Getuid() != 0 {
		return cmd
	}
	for _, dir := range []string{filepath.Dir(b.dir), b.dir} {
		if err := os.Chmod(dir, 0o777); err != nil {
			b.t.Fatal(err)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return cmd
}

// tree describes everything in the box but the output of its processes, content included.
func (b *box) tree() string {
	b.t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(b.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(b.dir, path)
		if strings.HasPrefix(name, "proc") && filepath.Dir(name) == "." {
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		content := ""
		if info.Mode().IsRegular() {
			content = fmt.Sprintf("%d bytes %x", info.Size(), sha256.Sum256([]byte(read(path))))
		}
		fmt.Fprintf(&out, "%s %v %s\n", name, info.Mode(), content)
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return out.String()
}

// oneLine fails the test unless text is one line that says what went wrong.
func oneLine(t *testing.T, text string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) == 2 && lines[1] == "holdlock: see holdlock --help" {
		lines = lines[:1]
	}
	if len(lines) != 1 || !strings.HasPrefix(lines[0], "holdlock: ") || len(lines[0]) < 25 {
		t.Errorf("not one line that says what is wrong: %q", text)
	}
}

// TestBadInput gives what cannot work, and looks whether anything was written.
func TestBadInput(t *testing.T) {
	t.Parallel()
	run := func(flags ...string) []string {
		return append(append([]string{"run"}, flags...), append([]string{"--"}, work("")...)...)
	}
	// The cases of a bad flag or name are those of the exit codes.
	for _, c := range codeCases()["64"] {
		t.Run("usage/"+c.name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			if strings.HasPrefix(c.name, "check of") {
				return // happens in a command that runs
			}
			before := b.tree()
			r := c.do(b)
			oneLine(t, r.err)
			if after := b.tree(); r.code != 64 || after != before || r.out != "" {
				t.Errorf("%+v; before:\n%safter:\n%s", r, before, after)
			}
		})
	}
	for _, c := range []struct {
		name    string
		prepare func(b *box)
		words   []string
	}{
		{"corrupt", func(b *box) { write(b.t, b.db, strings.Repeat("no database ", 1000)) }, []string{"not a database"}},
		{"short", func(b *box) { write(b.t, b.db, "localhost\n") }, []string{"not a database"}},
		{"one byte", func(b *box) { write(b.t, b.db, "\n") }, []string{"not a database"}},
		{"header alone", func(b *box) { write(b.t, b.db, sqliteFile(0x686f6c64, 1)[:1000]) }, []string{"no tables"}},
		{"no tables", func(b *box) { write(b.t, b.db, sqliteFile(0x686f6c64, 1)) }, []string{"no tables"}},
		{"foreign", func(b *box) { write(b.t, b.db, sqliteFile(0x12345678, 3)) }, []string{"another application"}},
		{"newer", func(b *box) { write(b.t, b.db, sqliteFile(0x686f6c64, 1000)) }, []string{"newer release"}},
		{"directory", func(b *box) { _ = os.Mkdir(b.db, 0o755) }, []string{"is a directory"}},
		{"fifo", func(b *box) { _ = unix.Mkfifo(b.db, 0o644) }, []string{"not a regular file"}},
		{"dangling link", func(b *box) { _ = os.Symlink("nowhere", b.db) }, []string{"symbolic link"}},
	} {
		t.Run("store/"+c.name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			c.prepare(b)
			before := b.tree()
			for _, args := range [][]string{run("job"), {"ls"}, {"inspect", "job"}, {"break", "job"}} {
				r := b.run(args...)
				oneLine(t, r.err)
				contains(t, "the error", r.err, append(c.words, b.db)...)
				if after := b.tree(); r.code != 69 || after != before || r.out != "" {
					t.Errorf("%v: %+v; before:\n%safter:\n%s", args, r, before, after)
				}
			}
		})
	}
	t.Run("read-only file", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		b.makeStore()
		for _, name := range []string{b.db, b.db + "-wal", b.db + "-shm"} {
			_ = os.Chmod(name, 0o444)
		}
		b.unprivileged(b.command("ls")) // opens the box
		before := b.tree()
		r := b.launch(b.unprivileged(b.command(run("job")...))).wait()
		oneLine(t, r.err)
		contains(t, "the error", r.err, b.db)
		if after := b.tree(); r.code != 69 || after != before {
			t.Errorf("%+v; before:\n%safter:\n%s", r, before, after)
		}
	})
	t.Run("before the file of this user is made", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		look := func(args ...string) result {
			cmd := b.unprivileged(b.command(args...))
			setenv(cmd, "HOLDLOCK_STORE", "XDG_STATE_HOME")
			return b.launch(cmd).wait()
		}
		look("version") // opens the box
		before := b.tree()
		for args, want := range map[string]string{
			"ls": "nothing is held in sqlite:" + b.path(".local/state/holdlock/locks.db"), "ls --json": "", "inspect job": "free",
			"jobs ls": "no job waits", "jobs ls --all": "no record", "jobs inspect job": "job",
		} {
			if r := look(strings.Fields(args)...); r.code != 0 || !strings.Contains(r.out+r.err, want) {
				t.Errorf("%s: %+v", args, r)
			}
		}
		if after := b.tree(); after != before {
			t.Errorf("before:\n%safter:\n%s", before, after)
		}
	})
	t.Run("HOME unset", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		cmd := b.unprivileged(b.command(run("job")...))
		setenv(cmd, "HOME", "HOLDLOCK_STORE", "XDG_STATE_HOME")
		before := b.tree()
		r := b.launch(cmd).wait()
		oneLine(t, r.err)
		contains(t, "the error", r.err, "HOME", "XDG_STATE_HOME")
		if after := b.tree(); r.code != 69 || after != before {
			t.Errorf("%+v; before:\n%safter:\n%s", r, before, after)
		}
	})
	t.Run("directory of another user", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		if err := os.Mkdir(b.path("theirs"), 0o555); err != nil {
			t.Fatal(err)
		}
		cmd := b.unprivileged(b.command(run("job")...))
		setenv(cmd, "HOLDLOCK_STORE=sqlite:"+b.path("theirs/state/locks.db"))
		before := b.tree()
		r := b.launch(cmd).wait()
		oneLine(t, r.err)
		if after := b.tree(); r.code != 69 || after != before {
			t.Errorf("%+v; before:\n%safter:\n%s", r, before, after)
		}
	})
}

// TestDefaultFile finds the file of a user who has named none, in a directory that nobody else may enter.
func TestDefaultFile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, state, want string }{
		{"XDG_STATE_HOME", "xdg", "xdg/holdlock/locks.db"},
		{"HOME", "", ".local/state/holdlock/locks.db"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			cmd := b.unprivileged(b.command("run", "job", "--", "echo", "built"))
			setenv(cmd, "HOLDLOCK_STORE")
			if c.state != "" {
				setenv(cmd, "XDG_STATE_HOME="+b.path(c.state))
			}
			if r := b.launch(cmd).wait(); r != (result{0, "built\n", ""}) {
				t.Fatalf("%+v", r)
			}
			for path, mode := range map[string]os.FileMode{c.want: 0o600, filepath.Dir(c.want): 0o700 | os.ModeDir} {
				if info, err := os.Stat(b.path(path)); err != nil || info.Mode() != mode {
					t.Errorf("%s: %v, %v; want mode %v", path, info, err, mode)
				}
			}
		})
	}
}

// TestFileSizeLimit stands in for a full disk where no file system can be mounted: every write fails.
func TestFileSizeLimit(t *testing.T) {
	t.Parallel()
	for _, exists := range []bool{false, true} {
		t.Run(fmt.Sprintf("exists=%v", exists), func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			if exists {
				b.run("run", "job", "--", "true")
			}
			// The messages go through a pipe, because the limit is one of all regular files.
			cmd := b.program("sh", "-c", `{ (ulimit -f 0; exec "$0" run job -- touch ran); echo "code $?"; } 2>&1 | cat`, holdlockPath)
			r := b.launch(cmd).wait()
			message, code, _ := strings.Cut(strings.TrimSpace(r.out), "\ncode ")
			oneLine(t, message)
			if code != "69" || b.ran() {
				t.Errorf("code %s, ran %v; want 69: %s", code, b.ran(), r.out)
			}
			if r := b.run("run", "job", "--", "echo", "built"); r.out != "built\n" {
				t.Errorf("afterwards: %+v", r)
			}
		})
	}
}

// TestFullDisk fills a small file system, and then makes it read-only.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	script := `mount -t tmpfs -o size=256k none "$1" && cd "$1" || exit 50
try() { "$0" run job --store "sqlite:$1" -- sh -c 'echo ran' 2>&1; echo "code $?"; }
cat /dev/zero >fill 2>/dev/null
echo "= full and new"; try "$1/new.db"
rm fill new.db*
echo "= enough"; try "$1/locks.db"
cat /dev/zero >fill 2>/dev/null
echo "= full"; try "$1/locks.db"
rm fill
echo "= enough again"; try "$1/locks.db"
mount -o remount,ro none "$1" || exit 50
echo "= read-only"; try "$1/locks.db"
echo "= read-only and new"; try "$1/new.db"
ls -A "$1"`
	if err := os.Mkdir(b.path("disk"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := b.launch(b.program("unshare", namespaces(t, "--mount", "sh", "-c", script, holdlockPath, b.path("disk"))...)).wait()
	if r.code == 50 {
		t.Fatalf("cannot mount: %+v", r)
	}
	parts := make(map[string]string)
	for part := range strings.SplitSeq(r.out, "= ") {
		title, text, _ := strings.Cut(part, "\n")
		parts[title] = text
	}
	for title, ok := range map[string]bool{
		"full and new": false, "enough": true, "enough again": true, "read-only": false, "read-only and new": false,
	} {
		text := parts[title]
		if ok {
			if text != "ran\ncode 0\n" {
				t.Errorf("%s: %q", title, text)
			}
			continue
		}
		message, code, _ := strings.Cut(text, "\ncode ")
		oneLine(t, message)
		if !strings.HasPrefix(code, "69") || strings.Contains(message, "ran\n") {
			t.Errorf("%s: %q, want 69 and nothing run", title, text)
		}
	}
	// The log beside the file has room of its own left, so a full disk need not stop a step. If it does, it says so.
	if text := parts["full"]; text != "ran\ncode 0\n" && !strings.HasSuffix(text, "code 69\n") {
		t.Errorf("full: %q", text)
	}
	t.Logf("%s", r.out)
}

// namespaces returns the arguments of unshare for a test that needs a namespace of its own, as root or not. Where the
// system permits none, the test is skipped; HOLDLOCK_TEST_REQUIRE=unshare makes that a failure.
func namespaces(t testing.TB, args ...string) []string {
	t.Helper()
	probe := []string{"--mount", "true"}
	if os.Getuid() != 0 {
		probe = append([]string{"--map-root-user"}, probe...)
		args = append([]string{"--map-root-user"}, args...)
	}
	if out, err := exec.Command("unshare", probe...).CombinedOutput(); err != nil {
		if strings.Contains(os.Getenv("HOLDLOCK_TEST_REQUIRE"), "unshare") {
			t.Fatalf("unshare: %v: %s", err, out)
		}
		t.Skipf("no namespaces here: unshare: %v: %s", err, out)
	}
	return args
}
