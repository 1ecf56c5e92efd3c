package sqlitehold

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/bootclock"
)

const (
	storeClock   = driver.BootClock
	bootIDNeeded = true
)

const bootIDFile = "/proc/sys/kernel/random/boot_id"

// bootName names the present boot by the kernel's boot_id, or not at all if what is read there may not be that.
func bootName() string {
	var st unix.Statfs_t
	err := unix.Statfs(bootIDFile, &st)
	alone, known := mountedAlone(bootIDFile)
	switch id := bootclock.ID(); {
	case id == "":
		return ""
	case err != nil || st.Type != unix.PROC_SUPER_MAGIC || alone || !known:
		return someBoot
	default:
		return id
	}
}

// mountedAlone says whether path is a mount of its own. It is not known before Linux 5.8.
func mountedAlone(path string) (alone, known bool) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, 0, &st); err != nil {
		return false, false
	}
	const root = unix.STATX_ATTR_MOUNT_ROOT
	return st.Attributes&root != 0, st.Attributes_mask&root != 0
}

// netNamespace names the network namespace of this process, which is how far its abstract sockets reach. It is empty if
// /proc does not tell.
func netNamespace() string {
	name, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return ""
	}
	return name
}

var statFileSystem = func(path string) (fileSystem, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fileSystem{}, fmt.Errorf("statfs %s: %w", path, err)
		}
		return classifyFileSystem(uint32(st.Type)), nil
	}
}

// classifyFileSystem knows the file systems on which SQLite must not be used by several processes: those whose locks, or
// whose memory maps, are not shared by all who can reach the file. The numbers are those of statfs(2); package unix does
// not name the ones that live outside the kernel's own tree.
func classifyFileSystem(magic uint32) fileSystem {
	switch magic {
	case unix.NFS_SUPER_MAGIC:
		return fileSystem{shared: "NFS"}
	case unix.SMB_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC:
		return fileSystem{shared: "SMB"}
	case unix.AFS_SUPER_MAGIC, unix.AFS_FS_MAGIC:
		return fileSystem{shared: "AFS"}
	case unix.CODA_SUPER_MAGIC:
		return fileSystem{shared: "Coda"}
	case unix.NCP_SUPER_MAGIC:
		return fileSystem{shared: "NCP"}
	case unix.V9FS_MAGIC:
		return fileSystem{shared: "9P"}
	case unix.CEPH_SUPER_MAGIC:
		return fileSystem{shared: "Ceph"}
	case unix.OCFS2_SUPER_MAGIC:
		return fileSystem{shared: "OCFS2"}
	case unix.FUSE_SUPER_MAGIC:
		return fileSystem{shared: "FUSE or virtiofs"}
	case 0x01161970:
		return fileSystem{shared: "GFS2"}
	case 0x0bd00bd0:
		return fileSystem{shared: "Lustre"}
	case 0x47504653:
		return fileSystem{shared: "GPFS"}
	case 0x19830326:
		return fileSystem{shared: "BeeGFS"}
	case 0x20030528:
		return fileSystem{shared: "OrangeFS"}
	case 0xaad7aaea:
		return fileSystem{shared: "PanFS"}
	case 0x786f4256:
		return fileSystem{shared: "VirtualBox shared folder"}
	case 0xbacbacbc:
		return fileSystem{shared: "VMware shared folder"}
	case 0x7c7c6673:
		return fileSystem{shared: "Parallels shared folder"}
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return fileSystem{memory: "tmpfs"}
	}
	return fileSystem{}
}
