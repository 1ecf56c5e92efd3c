package pghold

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/driver"
)

// server looks at what ends everything else.
func (x *examination) server() bool {
	var standby, readOnly bool
	var text string
	err := x.row(`SELECT pg_catalog.current_setting('server_version_num')::int, pg_catalog.current_setting('server_version'),
		pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('default_transaction_read_only')::boolean, current_user::text`, nil,
		&x.version, &text, &standby, &readOnly, &x.user)
	if err != nil {
		x.say("connection", driver.Refuse, err.Error(), noLock, "look at the server, and at what stands before it")
		return false
	}
	x.fine("connection", "as "+x.user)
	if x.version < 120000 {
		x.say("version", driver.Refuse, "PostgreSQL "+text, "holdlock uses what came with 12", "upgrade the server")
	} else {
		x.fine("version", "PostgreSQL "+text)
	}
	switch {
	case standby:
		x.say("role", driver.Refuse, "a standby (in recovery)", noLock+" here", "name the primary, or all hosts with target_session_attrs=read-write")
	case readOnly:
		x.say("role", driver.Refuse, "a primary, but default_transaction_read_only is on for this user or database", noLock,
			x.alter("default_transaction_read_only", "off"))
	default:
		x.fine("role", "primary")
	}
	return x.version >= 120000 && !standby && !readOnly
}

// alter is how a setting is changed for this user alone.
func (x *examination) alter(name, value string) string {
	return fmt.Sprintf("ALTER ROLE %s SET %s = %s (or for the database, or ALTER SYSTEM and SELECT pg_reload_conf())",
		pgx.Identifier{x.user}.Sanitize(), name, value)
}

// pooler finds out by behaviour what stands between, and says whether it shares connections by transaction.
func (x *examination) pooler() bool {
	other, err := x.connect()
	if err != nil {
		x.say("pooler", driver.Unseen, "a second connection failed: "+err.Error(), "it is not known", "this store needs a few connections")
		return false
	}
	defer hangUp(other)
	if err := mustBePinned(x.ctx, x.conn, other); err != nil {
		if pooled(err) != errPooled {
			x.unseen("pooler", err.Error(), "look at what stands between")
			return false
		}
		const direct = "name the server itself, or a pool in session mode (pgbouncer: pool_mode = session)"
		switch x.opts.Scope {
		case Sessions:
			x.say("pooler", driver.Refuse, "one that shares connections by transaction", "an advisory lock would belong to nobody", direct)
		case Rows:
			x.say("pooler", driver.Caution, "one that shares connections by transaction", "nobody can listen through it, so waiters ask once a second instead "+
				"of being told", direct)
		default:
			x.fine("pooler", "one that shares connections by transaction, which transactions do not mind")
		}
		return true
	}
	// The port from which the server sees us come is ours, unless something in between has connections of its own.
	var port *int
	mine, ok := x.conn.PgConn().Conn().LocalAddr().(*net.TCPAddr)
	if err := x.row("SELECT pg_catalog.inet_client_port()", nil, &port); err != nil || !ok || port == nil {
		x.fine("pooler", "none that shares connections")
		return false
	}
	switch {
	case *port == mine.Port:
		x.fine("pooler", "none")
	case x.opts.Scope == Rows:
		x.fine("pooler", "something stands between, and shares no connections: a pooler in session mode, a proxy, or a router")
	default:
		x.say("pooler", driver.Caution, "something stands between: a pooler in session mode, a proxy, or a router", "what ends a connection that it "+
			"thinks idle ends the locks on it", "no limit for idle clients there (pgbouncer: client_idle_timeout = 0, server_lifetime is no matter), or name the server itself")
	}
	return false
}

// limit is a setting in ms; ok is false if the server has none by that name.
func (x *examination) limit(name string) (d time.Duration, ok bool) {
	var text *string
	err := x.row("SELECT (SELECT setting FROM pg_catalog.pg_settings WHERE name = $1)", []any{name}, &text)
	if err != nil || text == nil {
		return 0, false
	}
	ms, err := strconv.ParseInt(*text, 10, 64)
	return time.Duration(ms) * time.Millisecond, err == nil
}

// shortest is less than which a statement of ours may take on a server that is busy.
const shortest = time.Second

// timeouts are those by which the server ends statements, transactions and sessions.
func (x *examination) timeouts() {
	bad := len(x.found)
	check := func(name string, wrong bool, d time.Duration, harm string) {
		if wrong {
			x.say("timeouts", driver.Caution, fmt.Sprintf("%s is %s for this user", name, d), harm, x.alter(name, "0"))
		}
	}
	for _, name := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout"} {
		d, ok := x.limit(name)
		if !ok || d == 0 {
			continue
		}
		tx := x.opts.Scope == Transactions
		switch name {
		case "statement_timeout", "lock_timeout":
			if tx {
				check(name, d < x.opts.TTL, d, "a wait for a lock is over before its own deadline, and so is any long statement of the job")
			} else if x.opts.Scope == Rows { // session locks set it on their connections
				check(name, d < shortest, d, "a renewal that is slow once is cut off, and the lease is lost after a few of them")
			}
		case "idle_in_transaction_session_timeout":
			check(name, tx && d < x.opts.TTL, d, fmt.Sprintf("a job that is busy elsewhere for %s between two statements loses its transaction and its lock", d))
		case "idle_session_timeout": // stores set it on connections that must stay
			check(name, tx && d < x.opts.TTL, d, "session advisory locks of your own end with the session")
		case "transaction_timeout":
			check(name, tx && d < x.opts.TTL, d, "the server ends the transaction, and its lock, in the middle of the job")
			check(name, !tx && d < shortest, d, "a renewal that is slow once ends its connection")
		}
	}
	if len(x.found) == bad {
		x.fine("timeouts", "none that would end a lock")
	}
}

// keepalives say how long the lock of a machine that has vanished stays. Leases end by themselves, and session locks set them.
func (x *examination) keepalives() {
	if x.opts.Scope != Transactions {
		return
	}
	if _, tcp := x.conn.PgConn().Conn().LocalAddr().(*net.TCPAddr); !tcp {
		x.fine("keepalives", "not needed: this is a local socket")
		return
	}
	var idle, interval, count, user int
	err := x.row(`SELECT pg_catalog.current_setting('tcp_keepalives_idle')::int, pg_catalog.current_setting('tcp_keepalives_interval')::int,
		pg_catalog.current_setting('tcp_keepalives_count')::int, (SELECT setting::int FROM pg_catalog.pg_settings WHERE name = 'tcp_user_timeout')`,
		nil, &idle, &interval, &count, &user)
	if err != nil {
		x.unseen("keepalives", err.Error(), "look at tcp_keepalives_idle")
		return
	}
	after := time.Duration(idle+interval*count) * time.Second
	found := fmt.Sprintf("tcp_keepalives_idle %d s, and %d more %d s apart", idle, count, interval)
	if after > 5*time.Minute {
		x.say("keepalives", driver.Caution, found, fmt.Sprintf("the lock of a machine that has lost its power or network stays taken for %s", after),
			x.alter("tcp_keepalives_idle", "60")+", tcp_keepalives_interval = 10, tcp_keepalives_count = 3")
		return
	}
	x.fine("keepalives", found)
}

// lockTable is shared by all clients of the server.
func (x *examination) lockTable() {
	var used, each, conns, prepared int
	err := x.row(`SELECT (SELECT count(*) FROM pg_catalog.pg_locks WHERE NOT fastpath), pg_catalog.current_setting('max_locks_per_transaction')::int,
		pg_catalog.current_setting('max_connections')::int, pg_catalog.current_setting('max_prepared_transactions')::int`, nil,
		&used, &each, &conns, &prepared)
	if err != nil {
		x.unseen("lock table", err.Error(), "look at pg_locks")
		return
	}
	room := each * (conns + prepared)
	found := fmt.Sprintf("%d of about %d locks are in use", used, room)
	if used > room/4*3 {
		x.say("lock table", driver.Caution, found, "when it is full statements of all clients fail, and waiters cannot register",
			fmt.Sprintf("max_locks_per_transaction = %d and a restart, or look at who has them: SELECT pid, count(*) FROM pg_locks GROUP BY 1 ORDER BY 2 DESC", 2*each))
		return
	}
	x.fine("lock table", found)
}

func (x *examination) connections() {
	var used, most, reserved int
	err := x.row(`SELECT (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE datid IS NOT NULL), pg_catalog.current_setting('max_connections')::int,
		pg_catalog.current_setting('superuser_reserved_connections')::int`, nil, &used, &most, &reserved)
	if err != nil {
		x.unseen("connections", err.Error(), "look at pg_stat_activity")
		return
	}
	found := fmt.Sprintf("%d of %d are open", used, most-reserved)
	if used*10 >= (most-reserved)*9 {
		x.say("connections", driver.Caution, found, "new ones are refused, and then no lock can be taken or renewed",
			fmt.Sprintf("max_connections = %d and a restart, or a pooler, or look at who holds them", 2*most))
		return
	}
	x.fine("connections", found)
}

// durability is about a crash of the server's machine.
func (x *examination) durability() {
	var fsync, pages bool
	var commit string
	err := x.row(`SELECT pg_catalog.current_setting('fsync')::boolean, pg_catalog.current_setting('full_page_writes')::boolean,
		pg_catalog.current_setting('synchronous_commit')`, nil, &fsync, &pages, &commit)
	const lost = "a crash of the machine forgets terms and tokens of the last moments: two can hold, and a token can come twice"
	switch {
	case err != nil:
		x.unseen("durability", err.Error(), "look at fsync and synchronous_commit")
	case !fsync:
		x.say("durability", driver.Caution, "fsync is off", lost+"; the database itself can be destroyed", "ALTER SYSTEM SET fsync = on, SELECT pg_reload_conf()")
	case !pages:
		x.say("durability", driver.Caution, "full_page_writes is off", "a crash of the machine can destroy the database", "ALTER SYSTEM SET full_page_writes = on, SELECT pg_reload_conf()")
	case commit == "off":
		x.say("durability", driver.Caution, "synchronous_commit is off for this user", lost, x.alter("synchronous_commit", "on"))
	default:
		x.fine("durability", "fsync on, synchronous_commit "+commit)
	}
}

// standbys are what a failover would make the primary.
func (x *examination) standbys() {
	var names, commit string
	var all, hidden, synced int
	err := x.row(`SELECT pg_catalog.current_setting('synchronous_standby_names'), pg_catalog.current_setting('synchronous_commit'), count(*),
		count(*) FILTER (WHERE sync_state IS NULL), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) FROM pg_catalog.pg_stat_replication`, nil,
		&names, &commit, &all, &hidden, &synced)
	waits := slices.Contains([]string{"on", "remote_write", "remote_apply"}, commit)
	const forget = "a failover can forget a term that stands: two can hold, until the first one's next renewal"
	switch {
	case err != nil:
		x.unseen("standbys", err.Error(), "look at pg_stat_replication")
	case names != "" && all == 0 && waits:
		x.say("standbys", driver.Refuse, fmt.Sprintf("none is connected, and commits wait for %s", names), "every step of a lock hangs", "look at the standby; or "+
			"ALTER SYSTEM SET synchronous_standby_names = '', SELECT pg_reload_conf()")
	case all == 0:
		x.fine("standbys", "none is connected")
	case names == "":
		x.say("standbys", driver.Caution, fmt.Sprintf("%d connected, and no commit waits for them (synchronous_standby_names is empty)", all), forget,
			"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)', SELECT pg_reload_conf(); and synchronous_commit = on")
	case !waits:
		x.say("standbys", driver.Caution, fmt.Sprintf("%d connected, and synchronous_commit is %s for this user", all, commit), forget, x.alter("synchronous_commit", "on"))
	case hidden > 0 && synced == 0:
		x.unseen("standbys", fmt.Sprintf("%d connected; whether one is synchronous this user may not see", all), fmt.Sprintf("GRANT pg_read_all_stats TO %s",
			pgx.Identifier{x.user}.Sanitize()))
	case synced == 0:
		x.say("standbys", driver.Refuse, fmt.Sprintf("%d connected, and none of them is one that commits wait for (%s)", all, names), "every step of a lock hangs",
			"look at synchronous_standby_names and at application_name in the standby's primary_conninfo")
	default:
		x.fine("standbys", fmt.Sprintf("%d connected, %d synchronous", all, synced))
	}
}

// layout compares the schema with what this program knows.
func (x *examination) layout() bool {
	err := checkLayout(x.ctx, x.conn, x.opts.Schema)
	if x.opts.Scope == Transactions && err != nil && !strings.Contains(err.Error(), "newer") {
		x.unseen("schema", err.Error(), "only Once needs it: holdlock migrate --grant "+x.user)
		return false
	}
	if err != nil {
		x.say("schema", driver.Refuse, err.Error(), noLock, "holdlock migrate --grant "+x.user+", by an administrator")
		return false
	}
	x.fine("schema", x.opts.Schema)
	return true
}

// rights looks at each table and function.
func (x *examination) rights() bool {
	var tables, functions []string
	err := x.row(`SELECT
		(SELECT coalesce(array_agg(DISTINCT c.relname::text), '{}') FROM pg_catalog.pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS r
			WHERE c.relnamespace = to_regnamespace($1) AND c.relkind = 'r' AND (c.relname <> 'layout' OR r = 'SELECT') AND NOT has_table_privilege(c.oid, r)),
		(SELECT coalesce(array_agg(DISTINCT p.proname::text), '{}') FROM pg_catalog.pg_proc p
			WHERE p.pronamespace = to_regnamespace($1) AND NOT has_function_privilege(p.oid, 'EXECUTE'))`,
		[]any{pgx.Identifier{x.opts.Schema}.Sanitize()}, &tables, &functions)
	schema, user := pgx.Identifier{x.opts.Schema}.Sanitize(), pgx.Identifier{x.user}.Sanitize()
	switch {
	case err != nil:
		x.unseen("rights", err.Error(), "look at GRANTs on schema "+schema)
	case len(tables) > 0:
		x.say("rights", driver.Refuse, "not all of SELECT, INSERT, UPDATE and DELETE on "+quoted(tables), "locks do not work, or records are not kept",
			fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON %s.%s TO %s; or holdlock migrate --grant", schema, pgx.Identifier{tables[0]}.Sanitize(), user))
		return false
	case len(functions) > 0:
		x.say("rights", driver.Refuse, "no EXECUTE on "+quoted(functions), "locks do not work", fmt.Sprintf("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA %s TO %s", schema, user))
		return false
	default:
		x.fine("rights", "on all tables and functions of "+schema)
	}
	return true
}

// transaction takes and ends a lock as Lock does.
func (x *examination) transaction() {
	tx, err := x.conn.Begin(x.ctx)
	if err == nil {
		_, err = tx.Exec(x.ctx, "SELECT pg_catalog.pg_advisory_xact_lock($1)", randomID())
		if end := tx.Rollback(x.ctx); err == nil {
			err = end
		}
	}
	if err != nil {
		x.say("use", driver.Refuse, err.Error(), "locks do not work", useAdvice(err))
		return
	}
	x.fine("use", "a lock in a transaction works")
}
