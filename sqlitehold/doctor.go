package sqlitehold

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// lowSpace is when a disk is called nearly full. The database and its log take a few MB.
const lowSpace = 100 << 20

// Diagnose implements driver.Doctor.
func (d *Driver) Diagnose(ctx context.Context, opts driver.DoctorOptions) (found []driver.Diagnosis) {
	say := func(check string, v driver.Verdict, what, harm, setting string) {
		found = append(found, driver.Diagnosis{Check: check, Verdict: v, Found: what, Harm: harm, Setting: setting})
	}
	d.diagnoseUse(ctx, opts, say)
	if d.env.fileSystem == nil {
		say("file system", driver.Unseen, "its kind is not known on this system", "on a network file system locks do not exclude", "use a local disk")
	} else if fsys, err := d.env.fileSystem(d.path); err != nil {
		say("file system", driver.Unseen, err.Error(), "on a network file system locks do not exclude", "use a local disk")
	} else if fsys.memory != "" {
		say("file system", driver.Fine, fsys.memory+": the file goes with a reboot, and so do all who hold locks", "", "")
	} else {
		say("file system", driver.Fine, "a local one", "", "")
	}
	if err := checkNames(d.path); err != nil {
		say("names", driver.Refuse, err.Error(), "who opens the file by the other name is not excluded", "give it one name")
	} else {
		say("names", driver.Fine, "the file has one name, and is mounted with its directory", "", "")
	}
	if d.boot == someBoot {
		say("boot", driver.Fine, "boot_id is not the machine's here (as in systemd-nspawn and LXC); a reboot is seen by the clock, or its terms end after their TTL at most", "", "")
	}
	diagnoseRights(d.path, say)
	if free, err := freeSpace(d.path); err != nil {
		say("free space", driver.Unseen, err.Error(), "on a full disk no lock can be taken", "look yourself: df")
	} else if free < lowSpace {
		say("free space", driver.Caution, fmt.Sprintf("%d MB", free>>20), "on a full disk no lock can be taken or renewed", "make room, or move the file")
	} else {
		say("free space", driver.Fine, fmt.Sprintf("%d MB", free>>20), "", "")
	}
	return found
}

type sayer = func(check string, v driver.Verdict, what, harm, setting string)

// diagnoseUse takes a lock of its own and gives it back.
func (d *Driver) diagnoseUse(ctx context.Context, opts driver.DoctorOptions, say sayer) {
	ttl := opts.TTL
	if ttl == 0 {
		ttl = 30 * time.Second
	}
	var b [20]byte
	_, _ = rand.Read(b[:])
	ref := driver.Ref{Key: "holdlock-doctor/" + hex.EncodeToString(b[:4]), Nonce: hex.EncodeToString(b[4:])}
	start := time.Now()
	_, err := d.Acquire(ctx, &driver.AcquireRequest{Ref: ref, TTL: time.Minute, Holder: driver.Holder{Label: "holdlock doctor"}})
	if err == nil {
		err = d.Release(ctx, &driver.ReleaseRequest{Ref: ref})
	}
	took := time.Since(start)
	switch {
	case err != nil:
		say("use", driver.Refuse, err.Error(), "locks do not work", "see the words of the error")
	case took > ttl/5:
		say("use", driver.Caution, fmt.Sprintf("a lock and its release took %s, with a TTL of %s", took.Round(time.Millisecond), ttl),
			"a few slow renewals, and the lease is lost", "look at the disk and at who else writes to the file; or a longer TTL")
	default:
		say("use", driver.Fine, fmt.Sprintf("a lock and its release took %s", took.Round(10*time.Microsecond)), "", "")
	}
}

// diagnoseRights looks at who else may write to the file.
func diagnoseRights(path string, say sayer) {
	for _, p := range []string{path, filepath.Dir(path)} {
		info, err := os.Stat(p)
		if err != nil {
			say("rights", driver.Unseen, err.Error(), "who may write to it may take and break locks", "look yourself: ls -ld "+p)
			continue
		}
		// A sticky directory lets only owners remove a file.
		if mode := info.Mode(); mode.Perm()&0o002 != 0 && mode&os.ModeSticky == 0 {
			say("rights", driver.Caution, fmt.Sprintf("everybody may write to %s (mode %04o)", p, mode.Perm()),
				"any user of this machine can break locks, or replace the file under their holders", "chmod o-w "+p)
		} else {
			say("rights", driver.Fine, fmt.Sprintf("%s has mode %04o", p, mode.Perm()), "", "")
		}
	}
}
