package sqlitehold

import (
	"context"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// An inbox is the socket by which this process is woken. Each datagram is a key, or a key and forAll. Anyone on the machine may send one: it
// is a hint, and nothing worse comes of a false one than an attempt too many.
type inbox struct {
	conn    *net.UnixConn
	address string
	cancel  context.CancelFunc // ends a delivery that is under way
	done    chan struct{}
}

// listen opens an inbox and calls deliver for each key that arrives, one at a time, on a goroutine that close ends.
func listen(address string, deliver func(ctx context.Context, key string)) (*inbox, error) {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	in := &inbox{conn, address, cancel, make(chan struct{})}
	go func() {
		defer close(in.done)
		buf := make([]byte, 2048) // keys are shorter
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			deliver(ctx, string(buf[:n]))
		}
	}()
	return in, nil
}

// close ends the goroutine and returns the keys that have arrived and were not delivered.
func (in *inbox) close() (keys []string) {
	if raw, err := in.conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			buf := make([]byte, 2048)
			for {
				n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
				if err == unix.EINTR {
					continue
				}
				if err != nil {
					return
				}
				keys = append(keys, string(buf[:n]))
			}
		})
	}
	in.conn.Close()
	in.cancel()
	<-in.done
	return keys
}

// The outcomes of send.
type delivery int

const (
	sent    delivery = iota
	refused          // nobody has that address: the process is gone, or has stopped to watch
	unsent           // it may live, but cannot be told: its inbox is full, or we are not allowed
)

// An outbox is the socket from which other processes are woken. It is made when it is first needed.
type outbox struct {
	mu sync.Mutex
	fd int // 0 if there is none
}

// send puts a key into the inbox of another process. It never waits.
func (o *outbox) send(address, key string) delivery {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fd == 0 {
		fd, err := newSocket()
		if err != nil {
			return unsent
		}
		o.fd = fd
	}
	to := &unix.SockaddrUnix{Name: address}
	return outcome(func() error { return unix.Sendto(o.fd, []byte(key), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, to) })
}

func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fd != 0 {
		_ = unix.Close(o.fd)
		o.fd = 0
	}
}

// isListening says whether a process has that address, or may have it.
func isListening(address string) bool {
	fd, err := newSocket()
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	return refused != outcome(func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: address}) })
}

func newSocket() (fd int, err error) {
	return unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
}

// outcome makes a call of the system and says what it means.
func outcome(f func() error) delivery {
	for {
		switch f() {
		case unix.EINTR:
			continue
		case nil:
			return sent
		case unix.ECONNREFUSED:
			return refused
		default:
			return unsent
		}
	}
}
