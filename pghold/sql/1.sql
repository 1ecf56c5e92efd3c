-- Layout 1. "holdlock" stands for the schema of the user's choice; schema.go puts that in.
-- Once released, this file is never changed. A later layout is a file of its own.

-- One row for each key of a lease-row store. A key's row is its token counter too, so it stays for a day after its last use.
CREATE TABLE "holdlock".lease (
	namespace text        NOT NULL COLLATE "C",
	key       text        NOT NULL COLLATE "C", -- LOCK or LOCK/KEY
	nonce     text        NOT NULL,             -- names the term
	state     smallint    NOT NULL,             -- 0 never held, 1 held, 2 released and cooling until expiry, 3 over
	token     bigint      NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
	expiry    timestamptz NOT NULL,             -- by the server's clock; from then on the key is free, and if its state is 0 or 3 it is already
	acquired  timestamptz NOT NULL,             -- when the term started
	used      timestamptz NOT NULL,             -- the last change
	holder    text        NOT NULL,             -- JSON; for people
	broken    text,                             -- which operator ended the term, and why
	previous  smallint    NOT NULL,             -- how the term before ended: 0 unknown, 1 released, 2 lapsed, 3 broken
	prior     text,                             -- the term before, if it was not released: JSON
	undone    text        NOT NULL DEFAULT '',  -- nonces of acquires that were given up and may still be on their way
	undone_until timestamptz,                   -- how long that is remembered
	PRIMARY KEY (namespace, key)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Those who wait for a key, in their order. A crash of the server empties it: whoever waits polls as well.
CREATE UNLOGGED TABLE "holdlock".waiter (
	namespace text        NOT NULL COLLATE "C",
	key       text        NOT NULL COLLATE "C",
	since     timestamptz NOT NULL,
	channel   text        NOT NULL, -- on which their process listens
	watch     text        NOT NULL, -- names one of them within the process
	alive     bigint,               -- an advisory lock that the listening session holds for as long as it lives; NULL: it polls
	seen      timestamptz NOT NULL, -- when a process that polls did so last
	PRIMARY KEY (namespace, key, since, channel, watch)
) WITH (fillfactor = 60);
CREATE INDEX waiter_channel ON "holdlock".waiter (channel);

-- Where the collection of old rows goes on.
CREATE UNLOGGED TABLE "holdlock".hand (
	namespace text NOT NULL COLLATE "C" PRIMARY KEY,
	key       text NOT NULL COLLATE "C"
);

-- The names of advisory locks that programs take in their transactions: PostgreSQL itself knows them by number alone.
CREATE TABLE "holdlock".name (
	id        bigint      PRIMARY KEY,          -- LockID(namespace, key)
	namespace text        NOT NULL COLLATE "C",
	key       text        NOT NULL COLLATE "C",
	used      timestamptz NOT NULL              -- to an hour
);

-- Jobs that are done, written in the job's own transaction.
CREATE TABLE "holdlock".done (
	namespace   text        NOT NULL COLLATE "C",
	key         text        NOT NULL COLLATE "C",
	done_at     timestamptz NOT NULL,
	keep_until  timestamptz NOT NULL,           -- from then on the record may be removed
	fingerprint bytea,                          -- of what was asked for: the same key for another job is an error
	result      bytea,
	PRIMARY KEY (namespace, key)
);
CREATE INDEX done_keep_until ON "holdlock".done (keep_until);

-- The functions of the lease rows. Each is one step of the store, called by one statement that is a transaction. They run
-- at READ COMMITTED, where each statement in them sees what was committed before it, and read the clock after they have
-- locked the row, so that nothing is judged by the time at which a wait began. Durations are in microseconds.

-- us is a time in microseconds since 1970.
CREATE FUNCTION "holdlock".us(p timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $f$ SELECT (extract(epoch FROM p) * 1000000)::bigint $f$;

-- term_json describes a term to people and drivers. Times are in microseconds.
CREATE FUNCTION "holdlock".term_json(r "holdlock".lease) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
BEGIN
	RETURN json_build_object('nonce', r.nonce, 'state', r.state, 'token', r.token, 'holder', r.holder, 'broken', r.broken,
		'acquired', "holdlock".us(r.acquired), 'remaining', "holdlock".us(r.expiry) - "holdlock".us(clock_timestamp()));
END $f$;

-- acquire takes a key that is free, re-arms a term that is the caller's already, and otherwise says who has it. It answers
-- with a word, and what belongs to it behind a space:
--   granted TOKEN PREVIOUS [PRIOR]   as lease.previous and lease.prior
--   held JSON                        the term, as in term_json
--   undone                           that nonce was given up, or given back, before
--   exhausted                        there are no tokens left
CREATE FUNCTION "holdlock".acquire(p_namespace text, p_key text, p_nonce text, p_ttl bigint, p_floor bigint, p_holder text)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	r "holdlock".lease;
	now timestamptz;
	now_us bigint;
	next bigint;
	ending smallint;
	before text;
	live boolean;
BEGIN
	IF current_setting('transaction_read_only') = 'on' THEN
		-- A replica must not answer with what it knows, which may be old.
		RAISE SQLSTATE '25006' USING MESSAGE = 'cannot lock in a read-only transaction';
	END IF;
	LOOP
		SELECT * INTO r FROM "holdlock".lease l WHERE l.namespace = p_namespace AND l.key = p_key;
		IF NOT FOUND THEN
			now := clock_timestamp();
			now_us := extract(epoch FROM now) * 1000000;
			next := greatest(now_us, least(p_floor, now_us + 1000000));
			IF next > 9007199254740991 THEN
				RETURN 'exhausted';
			END IF;
			INSERT INTO "holdlock".lease (namespace, key, nonce, state, token, expiry, acquired, used, holder, previous)
			VALUES (p_namespace, p_key, p_nonce, 1, next, now + p_ttl * interval '1 microsecond', now, now, p_holder, 0)
			ON CONFLICT DO NOTHING;
			IF FOUND THEN
				RETURN 'granted ' || next || ' 0';
			END IF;
		ELSIF r.state IN (1, 2) AND r.expiry > clock_timestamp() AND NOT (r.state = 1 AND r.nonce = p_nonce) THEN
			RETURN 'held ' || "holdlock".term_json(r); -- as most attempts on a key that is taken: nothing has been written
		END IF;
		SELECT * INTO r FROM "holdlock".lease l WHERE l.namespace = p_namespace AND l.key = p_key FOR UPDATE;
		CONTINUE WHEN NOT FOUND; -- its counter was collected meanwhile
		now := clock_timestamp();
		live := r.state IN (1, 2) AND r.expiry > now;
		IF r.undone_until > now AND strpos(r.undone, p_nonce) > 0 OR r.nonce = p_nonce AND r.state IN (2, 3) THEN
			RETURN 'undone';
		ELSIF live AND r.state = 1 AND r.nonce = p_nonce AND r.broken IS NULL THEN
			-- The answer was lost: the caller counts from this try.
			UPDATE "holdlock".lease l SET expiry = greatest(l.expiry, now + p_ttl * interval '1 microsecond'), used = now
			WHERE l.namespace = p_namespace AND l.key = p_key;
			RETURN concat('granted ', r.token, ' ', r.previous, ' ' || r.prior);
		ELSIF live THEN
			RETURN 'held ' || "holdlock".term_json(r);
		END IF;
		now_us := extract(epoch FROM now) * 1000000;
		next := greatest(r.token + 1, now_us, least(p_floor, now_us + 1000000));
		IF next > 9007199254740991 THEN
			RETURN 'exhausted';
		END IF;
		ending := CASE WHEN r.broken IS NOT NULL THEN 3 WHEN r.state = 1 THEN 2 WHEN r.state = 0 THEN 0
			WHEN r.prior IS NOT NULL THEN r.previous ELSE 1 END; -- the last one was undone
		IF ending IN (2, 3) THEN
			before := CASE WHEN r.broken IS NULL AND r.state <> 1 THEN r.prior ELSE "holdlock".term_json(r) END;
		END IF;
		UPDATE "holdlock".lease l SET nonce = p_nonce, state = 1, token = next, expiry = now + p_ttl * interval '1 microsecond',
			acquired = now, used = now, holder = p_holder, broken = NULL, previous = ending, prior = before,
			undone = CASE WHEN r.undone_until > now THEN r.undone ELSE '' END,
			undone_until = CASE WHEN r.undone_until > now THEN r.undone_until END
		WHERE l.namespace = p_namespace AND l.key = p_key;
		RETURN concat('granted ', next, ' ', ending, ' ' || before);
	END LOOP;
END $f$;

-- renew renews terms, each as if alone. Callers give keys in ascending order, so that two batches never wait for each other.
CREATE FUNCTION "holdlock".renew(p_namespace text, p_keys text[], p_nonces text[], p_ttls bigint[], p_floors bigint[])
RETURNS TABLE (answer text, -- renewed, gone, broken, passed (the token is past the floor)
	token bigint, detail text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	r "holdlock".lease;
	now timestamptz;
BEGIN
	FOR i IN 1 .. cardinality(p_keys) LOOP
		token := NULL;
		detail := NULL;
		SELECT * INTO r FROM "holdlock".lease l WHERE l.namespace = p_namespace AND l.key = p_keys[i] FOR UPDATE;
		now := clock_timestamp();
		IF NOT FOUND THEN
			answer := 'gone';
		ELSIF r.nonce <> p_nonces[i] THEN
			answer := 'gone';
			-- If an operator ended it, and there is a successor by now, the successor's row still tells.
			IF r.previous = 3 AND r.prior::json ->> 'nonce' = p_nonces[i] THEN
				answer := 'broken';
				detail := r.prior::json ->> 'broken';
			END IF;
		ELSIF r.broken IS NOT NULL THEN
			answer := 'broken';
			detail := r.broken;
		ELSIF r.state <> 1 OR r.expiry <= now THEN
			answer := 'gone';
			IF r.state = 1 THEN
				detail := 'its time ran out ' || (now - r.expiry)::text || ' ago';
			END IF;
		ELSIF p_floors[i] <> 0 AND p_floors[i] < r.token THEN
			answer := 'passed';
			token := r.token;
		ELSE
			token := CASE WHEN p_floors[i] = 0 THEN r.token ELSE p_floors[i] END;
			UPDATE "holdlock".lease l
			SET expiry = greatest(l.expiry, now + p_ttls[i] * interval '1 microsecond'), used = now, token = renew.token
			WHERE l.namespace = p_namespace AND l.key = p_keys[i];
			answer := 'renewed';
		END IF;
		RETURN NEXT;
	END LOOP;
END $f$;

-- wake takes the first who waits for a key and lives out of the line, and tells its process. One who polls stays in line and
-- finds out.
CREATE FUNCTION "holdlock".wake(p_namespace text, p_key text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	w "holdlock".waiter;
	place tid;
BEGIN
	LOOP
		SELECT f.ctid INTO place FROM "holdlock".waiter f WHERE f.namespace = p_namespace AND f.key = p_key
		ORDER BY f.since, f.channel, f.watch LIMIT 1 FOR UPDATE;
		IF NOT FOUND THEN
			RETURN;
		END IF;
		SELECT * INTO w FROM "holdlock".waiter f WHERE f.ctid = place;
		IF w.alive IS NULL AND w.seen > clock_timestamp() - interval '4 seconds' THEN
			RETURN;
		END IF;
		DELETE FROM "holdlock".waiter f WHERE f.ctid = place;
		IF w.alive IS NOT NULL AND NOT pg_try_advisory_xact_lock_shared(w.alive) THEN
			PERFORM pg_notify(w.channel, w.watch);
			RETURN;
		END IF;
		-- Nobody holds that lock, so the session that listened has ended; or it has not polled for long.
	END LOOP;
END $f$;

-- release ends a term; with p_undo it also makes sure that an acquire which is still on its way starts none, and leaves to be
-- told how the term before ended, because nothing was done under this one. It answers
-- released, gone or broken, and why behind a space. If it had to wait for the row the term may have run out meanwhile; it
-- has had no successor then, and is ended all the same.
CREATE FUNCTION "holdlock".release(p_namespace text, p_key text, p_nonce text, p_keep bigint, p_undo boolean)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	r "holdlock".lease;
	now timestamptz := clock_timestamp();
	answer text := 'gone';
BEGIN
	UPDATE "holdlock".lease l SET state = CASE WHEN p_keep > 0 THEN 2 ELSE 3 END, expiry = now + p_keep * interval '1 microsecond',
		used = now, holder = '', broken = NULL, previous = CASE WHEN p_undo THEN l.previous ELSE 0 END, prior = CASE WHEN p_undo THEN l.prior END
	WHERE l.namespace = p_namespace AND l.key = p_key AND l.nonce = p_nonce AND l.state = 1 AND l.expiry > now;
	IF FOUND THEN
		IF EXISTS (SELECT FROM "holdlock".waiter w WHERE w.namespace = p_namespace AND w.key = p_key) THEN
			PERFORM "holdlock".wake(p_namespace, p_key);
		END IF;
		RETURN 'released';
	END IF;
	IF p_undo THEN
		-- The acquire may be inserting the row at this moment. Then this waits for it.
		INSERT INTO "holdlock".lease (namespace, key, nonce, state, token, expiry, acquired, used, holder, previous)
		VALUES (p_namespace, p_key, '', 0, 1, now, now, now, '', 0) ON CONFLICT DO NOTHING;
	END IF;
	SELECT * INTO r FROM "holdlock".lease l WHERE l.namespace = p_namespace AND l.key = p_key FOR UPDATE;
	IF NOT FOUND THEN
		RETURN answer;
	END IF;
	now := clock_timestamp();
	IF r.nonce = p_nonce AND r.state = 1 AND r.expiry > now AND p_undo THEN
		UPDATE "holdlock".lease l SET state = 3, expiry = now, holder = '', broken = NULL
		WHERE l.namespace = p_namespace AND l.key = p_key;
		PERFORM "holdlock".wake(p_namespace, p_key);
		answer := 'released';
	ELSIF r.nonce = p_nonce AND r.broken IS NOT NULL THEN
		answer := 'broken ' || r.broken;
	ELSIF r.nonce = p_nonce AND r.state = 1 THEN
		answer := 'gone its time ran out ' || (now - r.expiry)::text || ' ago';
	END IF;
	IF p_undo THEN
		UPDATE "holdlock".lease l SET used = now, undone_until = now + interval '5 minutes',
			undone = p_nonce || CASE WHEN l.undone_until > now THEN left(l.undone, 3200) ELSE '' END
		WHERE l.namespace = p_namespace AND l.key = p_key;
	END IF;
	RETURN answer;
END $f$;

-- break_term marks a term, or with p_now ends it.
CREATE FUNCTION "holdlock".break_term(p_namespace text, p_key text, p_nonce text, p_by text, p_now boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	r "holdlock".lease;
	now timestamptz;
BEGIN
	SELECT * INTO r FROM "holdlock".lease l WHERE l.namespace = p_namespace AND l.key = p_key FOR UPDATE;
	now := clock_timestamp();
	IF r.key IS NULL OR r.nonce <> p_nonce OR r.state <> 1 OR r.expiry <= now THEN
		RETURN false;
	END IF;
	UPDATE "holdlock".lease l SET broken = p_by, state = CASE WHEN p_now THEN 3 ELSE 1 END, used = now
	WHERE l.namespace = p_namespace AND l.key = p_key;
	IF p_now THEN
		PERFORM "holdlock".wake(p_namespace, p_key);
	END IF;
	RETURN true;
END $f$;

-- stand puts somebody in line for a key. It has the row of the key locked meanwhile: a release that is being committed is waited
-- for, and one that comes later sees this place. Otherwise both could look before the other has written. It says whether the key is free at this moment: then nobody would wake them.
CREATE FUNCTION "holdlock".stand(p_namespace text, p_key text, p_since bigint, p_channel text, p_watch text, p_alive bigint,
	OUT since bigint, OUT free boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	now timestamptz := clock_timestamp();
	place timestamptz := coalesce(to_timestamp(0) + p_since * interval '1 microsecond', now);
BEGIN
	PERFORM set_config('synchronous_commit', 'off', true); -- a lock on a row is no news for the disk
	PERFORM FROM "holdlock".lease l WHERE l.namespace = p_namespace AND l.key = p_key FOR SHARE;
	-- It may stand there already, with a session that has ended.
	INSERT INTO "holdlock".waiter VALUES (p_namespace, p_key, place, p_channel, p_watch, p_alive, now)
	ON CONFLICT ON CONSTRAINT waiter_pkey DO UPDATE SET alive = excluded.alive, seen = excluded.seen;
	since := "holdlock".us(place);
	free := NOT EXISTS (SELECT FROM "holdlock".lease l
		WHERE l.namespace = p_namespace AND l.key = p_key AND l.state IN (1, 2) AND l.expiry > clock_timestamp());
END $f$;

-- leave takes somebody out of the line. Who has been taken out already was woken: if the key is free all the same, the next
-- one is woken instead.
CREATE FUNCTION "holdlock".leave(p_namespace text, p_key text, p_channel text, p_watch text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
BEGIN
	DELETE FROM "holdlock".waiter w WHERE w.namespace = p_namespace AND w.key = p_key
		AND w.channel = p_channel AND w.watch = p_watch;
	IF NOT FOUND AND NOT EXISTS (SELECT FROM "holdlock".lease l
		WHERE l.namespace = p_namespace AND l.key = p_key AND l.state IN (1, 2) AND l.expiry > clock_timestamp()) THEN
		PERFORM "holdlock".wake(p_namespace, p_key);
	END IF;
END $f$;

-- poll is for processes that cannot listen. It takes those of a process out of the line that are first in line for a key
-- which is free, and keeps the places of the others.
CREATE FUNCTION "holdlock".poll(p_channel text) RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	now timestamptz := clock_timestamp();
BEGIN
	UPDATE "holdlock".waiter w SET seen = now WHERE w.channel = p_channel AND w.seen < now - interval '1 second';
	RETURN QUERY DELETE FROM "holdlock".waiter w WHERE w.channel = p_channel
		AND NOT EXISTS (SELECT FROM "holdlock".lease l
			WHERE l.namespace = w.namespace AND l.key = w.key AND l.state IN (1, 2) AND l.expiry > now)
		AND NOT EXISTS (SELECT FROM "holdlock".waiter o WHERE o.namespace = w.namespace AND o.key = w.key
			AND (o.since, o.channel, o.watch) < (w.since, w.channel, w.watch)
			AND (o.alive IS NOT NULL OR o.seen > now - interval '4 seconds'))
	RETURNING w.watch;
END $f$;

-- collect removes rows of keys that were last used a day ago, among the next p_rows of a namespace, and those in line whose
-- process has ended. One process at a time does it. It returns how many keys it removed.
CREATE FUNCTION "holdlock".collect(p_namespace text, p_rows int) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	past timestamptz := clock_timestamp() - interval '24 hours';
	first text;
	last text;
	seen int;
	removed int;
BEGIN
	DELETE FROM "holdlock".waiter d WHERE d.ctid = ANY (ARRAY(SELECT w.ctid FROM "holdlock".waiter w
		WHERE w.seen < clock_timestamp() - interval '1 minute' ORDER BY w.ctid LIMIT 100 FOR UPDATE SKIP LOCKED))
		AND (d.alive IS NULL OR pg_try_advisory_xact_lock_shared(d.alive));
	DELETE FROM "holdlock".name d WHERE d.ctid = ANY (ARRAY(SELECT n.ctid FROM "holdlock".name n
		WHERE n.used < past - interval '1 hour' LIMIT p_rows FOR UPDATE SKIP LOCKED));
	INSERT INTO "holdlock".hand VALUES (p_namespace, '') ON CONFLICT DO NOTHING;
	SELECT h.key INTO first FROM "holdlock".hand h WHERE h.namespace = p_namespace FOR UPDATE SKIP LOCKED;
	IF NOT FOUND THEN
		RETURN 0;
	END IF;
	SELECT count(*), max(s.key) INTO seen, last FROM (SELECT l.key FROM "holdlock".lease l
		WHERE l.namespace = p_namespace AND l.key > first ORDER BY l.key LIMIT p_rows) s;
	DELETE FROM "holdlock".lease d WHERE d.ctid = ANY (ARRAY(SELECT l.ctid FROM "holdlock".lease l
		WHERE l.namespace = p_namespace AND l.key > first AND l.key <= last
			AND l.used < past AND (l.state IN (0, 3) OR l.expiry < past) FOR UPDATE SKIP LOCKED));
	GET DIAGNOSTICS removed = ROW_COUNT;
	UPDATE "holdlock".hand h SET key = CASE WHEN seen < p_rows THEN '' ELSE last END WHERE h.namespace = p_namespace;
	RETURN removed;
END $f$;
