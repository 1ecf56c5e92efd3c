package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/cmd/lab/child"
	"github.com/holdlock/holdlock/internal/pguser"
)

// A Postgres is one PostgreSQL server with a data directory of its own. It listens on a loopback port and trusts everybody,
// for as long as the lab runs.
type Postgres struct {
	URL string

	port int
	data string
	proc *child.Process
	out  *output
}

const installPostgres = "apt-get install postgresql"

// StartPostgres makes a data directory, which takes a second or two, and starts a server on it.
func (d *Dir) StartPostgres(ctx context.Context) (*Postgres, error) {
	initdb, err := postgresProgram("initdb")
	if err != nil {
		return nil, err
	}
	if _, err := postgresProgram("postgres"); err != nil {
		return nil, err
	}
	// Its user may not make directories in ours.
	home := d.Path("postgres")
	if err := errors.Join(os.Mkdir(home, 0o700), pguser.Own(home)); err != nil {
		return nil, err
	}
	p := &Postgres{data: filepath.Join(home, "data")}
	cmd := pguser.As(exec.Command(initdb, "-D", p.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"))
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := child.Run(ctx, cmd); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, out.last())
	}
	for range attempts {
		if p.port, err = freePort(); err != nil {
			return nil, err
		}
		p.URL = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", p.port)
		if err = p.start(ctx); err == nil {
			return p, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

func (p *Postgres) start(ctx context.Context) error {
	program, err := postgresProgram("postgres")
	if err != nil {
		return err
	}
	cmd := pguser.As(exec.Command(program, "-D", p.data, "-p", strconv.Itoa(p.port), "-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_connections=100", "-c", "log_timezone=UTC"))
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	p.out = &output{}
	cmd.Stdout, cmd.Stderr = p.out, p.out
	proc, err := child.Start(cmd)
	if err != nil {
		return err
	}
	p.proc = proc
	err = until(ctx, "postgres is ready", func() bool { return p.proc.Err() != nil || p.ready(ctx) })
	if err == nil {
		err = p.proc.Err()
	}
	if err != nil {
		p.Kill()
		return fmt.Errorf("%w: %s", err, p.out.last())
	}
	return nil
}

func (p *Postgres) ready(ctx context.Context) bool {
	conn, err := p.Connect(ctx)
	if err != nil {
		return false
	}
	return conn.Close(ctx) == nil
}

// Connect opens a connection.
func (p *Postgres) Connect(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, p.URL) }

// Kill ends it at once, without a checkpoint, as a crash would, and with it all its processes.
func (p *Postgres) Kill() { p.proc.End(syscall.SIGQUIT, 10*time.Second) }

// Restart kills it and starts it again on the same port, with the data that it has.
func (p *Postgres) Restart(ctx context.Context) error {
	p.Kill()
	return until(ctx, "postgres starts again", func() bool { return p.start(ctx) == nil })
}

// postgresProgram finds a program of the server. Debian keeps them out of PATH, one directory for each version; the newest
// is taken.
func postgresProgram(name string) (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	best, newest := "", -1
	for _, path := range found {
		version, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))) // 0 if it is none
		if version > newest {
			best, newest = path, version
		}
	}
	if best != "" && err == nil {
		return best, nil
	}
	path, err := find(name, installPostgres)
	if err != nil && errors.As(err, new(*MissingError)) {
		return "", &MissingError{"PostgreSQL (" + name + ")", installPostgres}
	}
	return path, err
}
