package guard

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/holdlock/holdlock/cmd/internal/proctree"
	"github.com/holdlock/holdlock/internal/bootclock"
)

// The board is 32 bytes of memory without a name in any file system: a mark, an id, and the time of TERM by
// bootclock.Now, or 0 once TERM has been sent. It vanishes with the guard. The id tells it from whatever another process
// with the guard's number may have open under the same descriptor.
const (
	boardSize = 32
	boardMark = "holdlck1"
)

// A board publishes to the command how long it will be left alone.
type board struct {
	mem []byte
	env string // the value of LeaseEnv; empty if nothing is published
}

// openBoard makes a board that says 0 and lives as long as this process. If the system refuses one, nothing is published
// and whoever asks for the remaining time is told that it is not known.
func openBoard() *board {
	b, err := newBoard()
	if err != nil {
		return &board{mem: make([]byte, boardSize)}
	}
	return b
}

func newBoard() (*board, error) {
	self, err := proctree.Self()
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("lease", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	if err := unix.Ftruncate(fd, boardSize); err != nil {
		return nil, os.NewSyscallError("ftruncate", err)
	}
	mem, err := unix.Mmap(fd, 0, boardSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	copy(mem, boardMark)
	_, _ = rand.Read(mem[8:24]) // never fails
	env := fmt.Sprintf("/proc/%d/fd/%d#%x", self.PID, fd, mem[8:24])
	return &board{mem: mem, env: env}, nil
}

// set publishes the time of TERM; 0 says that it is over.
func (b *board) set(at time.Duration) { atomic.StoreInt64(boardTime(b.mem), int64(max(at, 0))) }

func boardTime(mem []byte) *int64 { return (*int64)(unsafe.Pointer(&mem[24])) }

// Remaining returns how much longer the command inside `holdlock run` will be left alone, that is, the time until TERM,
// and 0 once TERM has been sent. env is the value of $HOLDLOCK_LEASE. It asks the guard's memory, not holdlock, so it
// answers when holdlock is stopped, too.
//
// It fails closed: any error means that there is nothing to rely on. It can be asked only by the user that runs holdlock
// (or root), where /proc shows the guard: not through sudo to another user, nor from inside a container.
func Remaining(env string) (time.Duration, error) {
	if env == "" {
		return 0, errors.New("no lease: $" + LeaseEnv + " is not set (run this inside `holdlock run`)")
	}
	path, id, _ := strings.Cut(env, "#")
	want, err := hex.DecodeString(id)
	if err != nil || len(want) != 16 || !isBoardPath(path) {
		return 0, errors.New("no lease: $" + LeaseEnv + " is " + strconv.Quote(env) + ", which no holdlock has written")
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, fmt.Errorf("cannot tell whether the lease is held: the guard of this command is gone or hidden (%s: %w)", path, err)
	}
	defer unix.Close(fd)
	gone := errors.New("no lease: the guard of this command is gone")
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != boardSize {
		return 0, gone
	}
	mem, err := unix.Mmap(fd, 0, boardSize, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, gone
	}
	defer func() { _ = unix.Munmap(mem) }()
	if string(mem[:8]) != boardMark || !bytes.Equal(mem[8:24], want) {
		return 0, gone
	}
	at := time.Duration(atomic.LoadInt64(boardTime(mem)))
	return max(at-bootclock.Now(), 0), nil
}

// isBoardPath keeps Remaining from opening whatever file somebody has put into the variable.
func isBoardPath(path string) bool {
	var pid, fd int
	_, err := fmt.Sscanf(path, "/proc/%d/fd/%d", &pid, &fd)
	return err == nil && path == fmt.Sprintf("/proc/%d/fd/%d", pid, fd)
}
