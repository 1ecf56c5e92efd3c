//go:build unix

package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const installRabbitMQ = "apt-get install rabbitmq-server"

// A RabbitMQ is one broker, a node of its own that knows no other. Its user is guest, with password guest.
type RabbitMQ struct {
	*Process
	Addr string // host:port
	Dir  string // all that it writes, its cookie too

	names *Process // epmd, which every Erlang node wants to find
	node  string
	ports [3]int // of AMQP, of the node, of epmd
}

// StartRabbitMQ starts a broker until the test ends. It takes some seconds.
func StartRabbitMQ(tb testing.TB) *RabbitMQ {
	tb.Helper()
	server := rabbitmqServer(tb)
	epmd := need(tb, "epmd", installRabbitMQ)
	var err error
	for range 5 { // a port may have been taken meanwhile
		dir, mkErr := os.MkdirTemp("", "holdlock-mq-") // not tb.TempDir, whose long path ends up in names of files
		if mkErr != nil {
			tb.Fatalf("a directory for rabbitmq: %v", mkErr)
		}
		r := &RabbitMQ{Dir: dir}
		for i := range r.ports {
			r.ports[i] = freePort(tb)
		}
		r.Addr = fmt.Sprintf("127.0.0.1:%d", r.ports[0])
		r.node = fmt.Sprintf("holdlock-%d@localhost", r.ports[0])
		// In the foreground, so that it is this test's to end; one that the node starts outlives it.
		r.names = startUntilEnd(tb, exec.Command(epmd, "-port", strconv.Itoa(r.ports[2]), "-address", "127.0.0.1"))
		if err = r.start(tb, server); err == nil {
			tb.Cleanup(r.end)
			return r
		}
		r.end()
	}
	tb.Fatalf("rabbitmq-server does not start: %v", err)
	return nil
}

// rabbitmqServer finds the broker's own script. The one in PATH insists on a user and a folder of the system.
func rabbitmqServer(tb testing.TB) string {
	tb.Helper()
	found, _ := filepath.Glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")
	if len(found) > 0 {
		return found[len(found)-1]
	}
	return need(tb, "rabbitmq-server", installRabbitMQ)
}

func (r *RabbitMQ) start(tb testing.TB, server string) error {
	tb.Helper()
	in := func(name string) string { return filepath.Join(r.Dir, name) }
	for name, text := range map[string]string{"plugins": "[].\n", "rabbitmq.conf": "handshake_timeout = 120000\n", "env.conf": ""} {
		if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	cmd := exec.Command(server)
	cmd.Env = append(os.Environ(),
		"HOME="+r.Dir, "ERL_EPMD_PORT="+strconv.Itoa(r.ports[2]),
		// With this set the script becomes the node, instead of a parent that has to be told to end it.
		"RUNNING_UNDER_SYSTEMD=1", "NOTIFY_SOCKET=",
		"RABBITMQ_NODENAME="+r.node, "RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		"RABBITMQ_NODE_PORT="+strconv.Itoa(r.ports[0]), "RABBITMQ_DIST_PORT="+strconv.Itoa(r.ports[1]),
		"RABBITMQ_CONF_ENV_FILE="+in("env.conf"), "RABBITMQ_CONFIG_FILE="+in("rabbitmq"), "RABBITMQ_ENABLED_PLUGINS_FILE="+in("plugins"),
		"RABBITMQ_MNESIA_BASE="+in("mnesia"), "RABBITMQ_LOG_BASE="+in("log"), "RABBITMQ_LOGS=-", "RABBITMQ_UPGRADE_LOG="+in("upgrade.log"),
		"RABBITMQ_PID_FILE="+in("pid"), "RABBITMQ_GENERATED_CONFIG_DIR="+in("config"), "RABBITMQ_SCHEMA_DIR="+in("schema"),
		// Few threads, none of which spins while it waits: tests have other processes to run.
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
	)
	r.Process = startUntilEnd(tb, cmd)
	// It needs some seconds of processor time, which can take minutes on a machine that is busy.
	for give := time.Now().Add(5 * time.Minute); !strings.Contains(r.out.String(), "Server startup complete"); time.Sleep(10 * time.Millisecond) {
		if err := r.ended(); err != nil {
			return err
		}
		if time.Now().After(give) {
			r.Kill()
			tb.Fatalf("rabbitmq-server is not ready after five minutes: %s", r.out.String())
		}
	}
	return nil
}

// Kill ends the broker and its helper processes at once. It may be called again.
func (r *RabbitMQ) Kill() {
	select {
	case <-r.done: // its number may be another process's by now
		return
	default:
	}
	// The helpers first: those of a dead parent cannot be found any more. None may be born meanwhile.
	_ = r.cmd.Process.Signal(syscall.SIGSTOP)
	for _, pid := range descendants(r.PID()) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	r.Process.Kill()
}

// Restart kills the broker and starts it again, on the same port and with the files it has.
func (r *RabbitMQ) Restart(tb testing.TB) {
	tb.Helper()
	r.Kill()
	server := rabbitmqServer(tb)
	if err := r.start(tb, server); err != nil {
		tb.Fatalf("rabbitmq-server does not start again on %s: %v", r.Addr, err)
	}
}

// end leaves nothing.
func (r *RabbitMQ) end() {
	if r.Process != nil {
		r.Kill()
	}
	r.names.Kill()
	_ = os.RemoveAll(r.Dir)
}

// URL returns where the broker is.
func (r *RabbitMQ) URL() string { return RabbitMQURL(r.Addr) }

// RabbitMQURL returns where a broker or a proxy of one is.
func RabbitMQURL(addr string) string { return "amqp://guest:guest@" + addr + "/" }

func descendants(pid int) (all []int) {
	for _, child := range childrenOf(pid) {
		all = append(append(all, child), descendants(child)...)
	}
	return all
}
