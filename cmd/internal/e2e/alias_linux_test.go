package e2e

import (
	"strings"
	"testing"
)

// R1: a container with a boot_id of its own, as systemd-nspawn and LXC make one, is on the same machine all the same.
func TestOwnBootID(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	write(t, b.path("id"), "6ad2bb31-0d4a-4a4c-9c0d-0b6f8f4b7f11\n")
	const until = `until [ -e "$0" ]; do sleep 0.05; done`
	holder := b.start("run", "job", "--", "sh", "-c", ": > held; "+until, b.path("stop"))
	eventually(t, "the job runs", func() bool { return exists(b.path("held")) })
	const inside = `mount --bind "$1" /proc/sys/kernel/random/boot_id || exit 50
"$0" run job -- true; echo "first $?"
"$0" run free -- sh -c ': > inside; until [ -e more ]; do sleep 0.05; done'; echo "second $?"
"$0" run job -- true; echo "third $?"`
	other := b.launch(b.program("unshare", namespaces(t, "--mount", "sh", "-c", inside, holdlockPath, b.path("id"))...))
	eventually(t, "the container holds a lock", func() bool { return exists(b.path("inside")) || other.ended() })
	if r := b.run("run", "free", "--", "true"); r.code != 75 {
		t.Errorf("what the container holds: %+v, want 75", r)
	}
	write(t, b.path("stop"), "")
	holder.wait()
	write(t, b.path("more"), "")
	r := other.wait()
	if r.code == 50 {
		t.Fatalf("cannot mount: %+v", r)
	}
	if r.out != "first 75\nsecond 0\nthird 0\n" {
		t.Errorf("in the container: %+v", r)
	}
}

// R1: a file that is mounted without its directory is refused.
func TestFileMountedAlone(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.run("run", "job", "--", "true")
	const inside = `mkdir dir && : >dir/a.db && mount --bind "$1" dir/a.db || exit 50
"$0" run job --store sqlite:dir/a.db -- touch ran`
	r := b.launch(b.program("unshare", namespaces(t, "--mount", "sh", "-c", inside, holdlockPath, b.db)...)).wait()
	if r.code == 50 {
		t.Fatalf("cannot mount: %+v", r)
	}
	oneLine(t, r.err)
	if r.code != 69 || b.ran() || !strings.Contains(r.err, "mount its directory") {
		t.Errorf("%+v; want 69, and what to do", r)
	}
}
