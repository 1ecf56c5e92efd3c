package pghold

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// sessionName is what the connections of session locks call themselves, so that people know what they are and Break ends
// no others.
const sessionName = "holdlock session"

var (
	errPooled = errors.New("a pooler that shares connections by transaction is in between, and then an advisory lock belongs to nobody: " +
		"two programs can get it at once, and it outlives both. Connect to PostgreSQL directly, or to a pool in session mode; or use lease " +
		"rows (pghold.Open, or postgres:// on the command line), which work behind any pooler")
	errStandbyServer = errors.New("it is a standby, whose advisory locks exclude nobody on the primary; " +
		"name the primary, or all hosts with target_session_attrs=read-write")
)

// keepaliveSlack is how much longer than the TTL a server takes at least to notice that the machine of a client is gone.
const (
	keepaliveInterval = 5
	keepaliveCount    = 3
	maxKeepalive      = 32767 // s
)

// lookAround finds out whether session locks can work here, with two connections, and how many the server has room for.
func (d *SessionDriver) lookAround(ctx context.Context) error {
	config := d.config.Copy()
	config.DefaultQueryExecMode = execMode // this may be a pooler
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return refusedParameter(err)
	}
	opened := []*pgx.Conn{conn}
	defer func() { hangUp(opened...) }()
	other, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	opened = append(opened, other)
	if err := mustBePinned(ctx, conn, other); err != nil {
		return err
	}
	var standby bool
	var version, locks, conns, prepared int
	err = conn.QueryRow(ctx, `SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('server_version_num')::int,
		pg_catalog.current_setting('max_locks_per_transaction')::int, pg_catalog.current_setting('max_connections')::int,
		pg_catalog.current_setting('max_prepared_transactions')::int`).Scan(&standby, &version, &locks, &conns, &prepared)
	switch {
	case err != nil:
		return err
	case standby:
		return errStandbyServer
	case d.opts.OnFrozen == Expire && version < 140000:
		return fmt.Errorf("OnFrozen: Expire needs PostgreSQL 14, this is %d; use Block, or lease rows", version/10000)
	}
	d.capacity = locks * (conns + prepared)
	d.maxLocks = d.opts.MaxLocks
	if d.maxLocks == 0 {
		d.maxLocks = max(1, d.capacity/4)
	}
	return nil
}

// mustBePinned finds out by behaviour whether a connection has a backend of its own. A pooler gives the backend of an idle
// client to the next one: either that one gets an advisory lock that is taken, or this one finds itself elsewhere.
func mustBePinned(ctx context.Context, conn, other *pgx.Conn) error {
	if err := mustBePrivate(ctx, conn, other); err != nil {
		return pooled(err)
	}
	for range 2 {
		probe := randomID()
		var first, second, third int32
		var got, shared, mine bool
		const try = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_try_advisory_lock($1)"
		const back = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_advisory_unlock($1)"
		err := conn.QueryRow(ctx, try, probe).Scan(&first, &got)
		if err == nil {
			err = other.QueryRow(ctx, try, probe).Scan(&second, &shared)
		}
		if err == nil {
			err = conn.QueryRow(ctx, back, probe).Scan(&third, &mine)
		}
		if err != nil {
			return err
		}
		if first == second || shared || third != first || !mine {
			return errPooled
		}
	}
	return nil
}

// pooled says what to do if err is about a pooler.
func pooled(err error) error {
	if errors.Is(err, errPooler) {
		return errPooled
	}
	return err
}

// refusedParameter adds advice to the error of a pooler that does not know a setting.
func refusedParameter(err error) error {
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "08P01" {
		return fmt.Errorf("%w (if this is a pooler: session locks need a connection to the server itself, or a pool in session mode)", err)
	}
	return err
}

// A setting is one that the lock depends on.
type setting struct{ name, value string }

// settings are those of a session with terms of one TTL. No server may end it while a holder may trust its lease.
func (d *SessionDriver) settings(ttl time.Duration) []setting {
	idle := "0"
	if d.opts.OnFrozen == Expire {
		idle = strconv.FormatInt(int64((ttl+time.Millisecond-1)/time.Millisecond), 10)
	}
	silent := int64((ttl + time.Second - 1) / time.Second)
	// TCP has an idle time and an interval of up to 32767 s, and up to 127 probes. With a TTL of more than a month a machine
	// that has vanished is given up before its term is over, which its row outlives.
	interval, count := int64(keepaliveInterval), int64(keepaliveCount)
	if more := silent - maxKeepalive; more > 0 {
		count = 100
		interval = min(max(interval, (more+count-1)/count), maxKeepalive)
	}
	return []setting{
		{"search_path", "pg_catalog, pg_temp"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"statement_timeout", "0"},
		{"lock_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"idle_session_timeout", idle},
		{"tcp_keepalives_idle", strconv.FormatInt(min(silent, maxKeepalive), 10)},
		{"tcp_keepalives_interval", strconv.FormatInt(interval, 10)},
		{"tcp_keepalives_count", strconv.FormatInt(count, 10)},
		{"tcp_user_timeout", strconv.FormatInt(min((silent+interval*count)*1000, 1<<31-1), 10)},
	}
}

// dial makes a connection for terms of one TTL.
func (d *SessionDriver) dial(ctx context.Context, ttl time.Duration) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, d.config)
	if err != nil {
		return nil, err
	}
	if err := d.prepare(ctx, conn, ttl); err != nil {
		hangUp(conn)
		return nil, err
	}
	return conn, nil
}

// prepare sets what the connection needs, and makes sure of it.
func (d *SessionDriver) prepare(ctx context.Context, conn *pgx.Conn, ttl time.Duration) error {
	wanted := d.settings(ttl)
	names, values := make([]string, len(wanted)), make([]string, len(wanted))
	for i, w := range wanted {
		names[i], values[i] = w.name, w.value
	}
	// In statements of their own, so that a pooler would show: what is set in one is not there in the next.
	var pid int32
	err := conn.QueryRow(ctx, `SELECT pg_catalog.pg_backend_pid() WHERE (
		SELECT count(pg_catalog.set_config(q.name, q.value, false)) FROM unnest($1::text[], $2::text[]) AS q (name, value)
		WHERE pg_catalog.current_setting(q.name, true) IS NOT NULL) > 0`, execMode, names, values).Scan(&pid)
	if err != nil {
		return fmt.Errorf("settings of the connection: %w", err)
	}
	if _, err := conn.Exec(ctx, `LISTEN "holdlock session"`); err != nil {
		return err
	}
	return verify(ctx, conn, wanted, names, pid)
}

// verify reads the settings back.
func verify(ctx context.Context, conn *pgx.Conn, wanted []setting, names []string, pid int32) error {
	rows, err := conn.Query(ctx, `SELECT name, setting, pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery()
		FROM pg_catalog.pg_settings WHERE name = ANY ($1)`, execMode, names)
	if err != nil {
		return err
	}
	defer rows.Close()
	have := map[string]string{}
	for rows.Next() {
		var name, value string
		var now int32
		var standby bool
		if err := rows.Scan(&name, &value, &now, &standby); err != nil {
			return err
		}
		if now != pid {
			return errPooled
		}
		if standby {
			return errStandbyServer
		}
		have[name] = value
	}
	if err := rows.Err(); err != nil {
		return err
	}
	local := conn.PgConn().Conn().LocalAddr().Network() == "unix" // there is no network that could fail
	for _, w := range wanted {
		got, there := have[w.name]
		if !there || got == w.value || local && strings.HasPrefix(w.name, "tcp_") {
			continue
		}
		return fmt.Errorf("%w: %s is %s on this connection, and it was set to %s", errSetting, w.name, got, w.value)
	}
	return nil
}

var errSetting = errors.New("the server might end a session while its holder trusts in it")
