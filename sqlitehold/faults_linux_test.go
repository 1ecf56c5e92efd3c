package sqlitehold

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdlock/holdlock/driver"
)

func tokenText(t driver.Token) string { return fmt.Sprint(uint64(t)) }

// When the disk is full no new key can be taken, which is said, and what is held goes on.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	d := open(t, tempFile(t))
	held, _ := mustAcquire(t, d, "held", time.Hour)
	_, err := d.writer.once("PRAGMA max_page_count = 20", new(int))
	check(t, err)
	for i := range 10_000 {
		if _, err = d.Acquire(ctx, acquire(fmt.Sprintf("key %d %s", i, strings.Repeat("x", 500)), time.Hour)); err != nil {
			break
		}
	}
	if err == nil || isHeld(err) || !errors.Is(err, driver.ErrNotApplied) || !strings.Contains(err.Error(), "full") {
		t.Fatalf("Acquire on a full disk: %v", err)
	}
	if _, err := d.Acquire(ctx, acquire("held", time.Hour)); !isHeld(err) {
		t.Errorf("Acquire of a held key on a full disk: %v", err)
	}
	if _, err := d.Renew(ctx, &driver.RenewRequest{Ref: held, TTL: time.Hour}); err != nil {
		t.Errorf("Renew on a full disk: %v", err)
	}
	check(t, d.Release(ctx, release(held)))
	_, err = d.writer.once("PRAGMA max_page_count = 100000", new(int))
	check(t, err)
	mustAcquire(t, d, "when there is room again", time.Hour)
}

// When a write fails it is not known whether the transaction happened, and nothing is claimed.
func TestWriteFails(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	mustAcquire(t, open(t, path), "held", time.Hour)
	c := start(t, "fill", path, "300000")
	got := c.expect("error")
	if !strings.HasPrefix(got, "false false ") || !strings.Contains(got, "reading or writing the file failed") ||
		strings.Contains(got, driver.ErrNotApplied.Error()) {
		t.Errorf("Acquire when the file cannot grow: %s", got)
	}
	// Others are not affected.
	d := open(t, path)
	if _, err := d.Acquire(ctx, acquire("held", time.Hour)); !isHeld(err) {
		t.Errorf("Acquire of a held key by another process: %v", err)
	}
	mustAcquire(t, d, "free", time.Hour)
}

// A file that this user cannot write is refused when it is opened, not when it is needed.
func TestNotWritable(t *testing.T) {
	t.Parallel()
	const nobody = "65534"
	for name, tt := range map[string]struct {
		prepare func(t *testing.T, dir, path string)
		want    string
	}{
		"a file for reading": {func(t *testing.T, dir, path string) {
			check(t, open(t, path).Close())
			check(t, os.Chmod(path, 0o444))
			check(t, os.Chmod(path+"-wal", 0o666))
			check(t, os.Chmod(path+"-shm", 0o666))
		}, "check its owner and mode"},
		"a file of someone else": {func(t *testing.T, dir, path string) {
			check(t, open(t, path).Close())
			check(t, os.Chmod(path, 0o000))
		}, "cannot be opened for writing"},
		"a directory for reading": {func(t *testing.T, dir, path string) {
			check(t, os.Chmod(dir, 0o555))
		}, "permission denied"},
		"a directory for reading, with the file": {func(t *testing.T, dir, path string) {
			check(t, os.WriteFile(path, nil, 0o666))
			check(t, os.Chmod(path, 0o666))
			check(t, os.Chmod(dir, 0o555))
		}, "check owners and modes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "locks.db")
			for up := dir; up != os.TempDir() && up != "/"; up = filepath.Dir(up) {
				check(t, os.Chmod(up, 0o755)) // another user has to get here
			}
			tt.prepare(t, dir, path)
			t.Cleanup(func() { os.Chmod(dir, 0o755) })
			c := start(t, "open", path, "job", nobody)
			c.expect("ready")
			c.stdin.Close()
			if got := c.expect("failed:"); !strings.Contains(got, tt.want) || !strings.Contains(got, path) {
				t.Errorf("error %q, want %q and the path", got, tt.want)
			}
		})
	}
}

// A file that is removed or replaced under its users: those who come later are not excluded, so the users must know.
func TestFileRemoved(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		remove  []string
		replace bool
	}{
		{"removed", []string{"", "-wal", "-shm"}, false},
		{"replaced", []string{"", "-wal", "-shm"}, true},
		{"without its log", []string{"-wal"}, false},
		{"without its index", []string{"-shm"}, false},
		{"without log and index", []string{"-wal", "-shm"}, false}, // as people do to get rid of stale ones
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := tempFile(t)
			d := open(t, path)
			held, _ := mustAcquire(t, d, "held", time.Hour)
			for _, suffix := range tt.remove {
				check(t, os.Remove(path+suffix))
			}
			if tt.replace {
				mustAcquire(t, open(t, path), "held", time.Hour)
			}
			_, err := d.Acquire(ctx, acquire("free", time.Hour))
			_, renewErr := d.Renew(ctx, &driver.RenewRequest{Ref: held, TTL: time.Hour})
			for call, err := range map[string]error{"Acquire": err, "Renew": renewErr} {
				if !errors.Is(err, errReplaced) || !errors.Is(err, driver.ErrNotApplied) || errors.Is(err, driver.ErrGone) {
					t.Errorf("%s: %v", call, err)
				}
			}
		})
	}
}

func TestClassifyFileSystem(t *testing.T) {
	t.Parallel()
	for magic, want := range map[uint32]fileSystem{
		unix.NFS_SUPER_MAGIC: {shared: "NFS"}, unix.CIFS_SUPER_MAGIC: {shared: "SMB"}, unix.SMB2_SUPER_MAGIC: {shared: "SMB"},
		unix.SMB_SUPER_MAGIC: {shared: "SMB"}, unix.AFS_SUPER_MAGIC: {shared: "AFS"}, unix.AFS_FS_MAGIC: {shared: "AFS"},
		unix.CODA_SUPER_MAGIC: {shared: "Coda"}, unix.NCP_SUPER_MAGIC: {shared: "NCP"}, unix.V9FS_MAGIC: {shared: "9P"},
		unix.CEPH_SUPER_MAGIC: {shared: "Ceph"}, unix.OCFS2_SUPER_MAGIC: {shared: "OCFS2"},
		unix.FUSE_SUPER_MAGIC: {shared: "FUSE or virtiofs"},
		0x01161970:            {shared: "GFS2"}, 0x0bd00bd0: {shared: "Lustre"}, 0x47504653: {shared: "GPFS"},
		unix.TMPFS_MAGIC: {memory: "tmpfs"},
		// Those of local disks, and what containers put on top of them.
		unix.EXT4_SUPER_MAGIC: {}, unix.XFS_SUPER_MAGIC: {}, unix.BTRFS_SUPER_MAGIC: {}, unix.F2FS_SUPER_MAGIC: {},
		unix.OVERLAYFS_SUPER_MAGIC: {}, 0x2fc12fc1 /* ZFS */ : {},
	} {
		if got := classifyFileSystem(magic); got != want {
			t.Errorf("%#x is taken for %+v, want %+v", magic, got, want)
		}
	}
	if kind, err := statFileSystem("/proc"); err != nil || kind != (fileSystem{}) {
		t.Errorf("/proc is taken for %+v, %v", kind, err)
	}
	if _, err := statFileSystem("/does/not/exist"); err == nil {
		t.Error("statfs of nothing succeeded")
	}
}
