package testenv

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// speaksAMQP sends the first bytes of the protocol and wants the server's greeting.
func speaksAMQP(t *testing.T, addr string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "AMQP\x00\x00\x09\x01")
	head := make([]byte, 11) // frame header, then class 10, method 10: Connection.Start
	if _, err := io.ReadFull(bufio.NewReader(conn), head); err != nil || head[0] != 1 || head[8] != 10 || head[10] != 10 {
		t.Errorf("the broker answers %v, %v", head, err)
	}
}

// alive says whether a process runs; one that is dead and not yet collected does not.
func alive(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// A broker starts, starts again after a kill, and leaves neither process nor file: not the node, its helpers, epmd, or a cookie.
func TestRabbitMQLeavesNothing(t *testing.T) {
	t.Parallel()
	var all []int
	var dir string
	t.Run("while it runs", func(t *testing.T) {
		r := StartRabbitMQ(t)
		dir = r.Dir
		speaksAMQP(t, r.Addr)
		all = append(descendants(r.PID()), r.PID())
		r.Restart(t)
		speaksAMQP(t, r.Addr)
		all = append(all, append(descendants(r.PID()), r.PID(), r.names.PID())...)
		if len(all) < 5 {
			t.Errorf("only %d processes: the helpers are missed", len(all))
		}
	})
	for _, pid := range all {
		Eventually(t, fmt.Sprintf("process %d has ended", pid), func() bool { return !alive(pid) })
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("its folder is still there: %v", err)
	}
}
