package sqlitehold

import (
	"context"
	"net"

	"golang.org/x/sys/unix"
)

// An inbox is the socket by which this process is woken. Each datagram is a key. Anyone on the machine may send one: it
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

// send puts a key into the inbox of another process. It never waits.
func send(address, key string) delivery {
	return withSocket(func(fd int) error {
		return unix.Sendto(fd, []byte(key), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, &unix.SockaddrUnix{Name: address})
	})
}

// isListening says whether a process has that address, or may have it.
func isListening(address string) bool {
	return refused != withSocket(func(fd int) error { return unix.Connect(fd, &unix.SockaddrUnix{Name: address}) })
}

func withSocket(f func(fd int) error) delivery {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return unsent
	}
	defer unix.Close(fd)
	for {
		switch f(fd) {
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
