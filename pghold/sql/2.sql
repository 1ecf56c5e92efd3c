-- Layout 2: the records of jobs that run once (driver/journal.go). Once released, this file is never changed.

-- One row for each job. It stands beside the lease row of its key and outlives it. Whoever changes it has locked that lease
-- row before, so the two change together and nobody waits for the other way round; only the collection removes rows whose time
-- is over without it.
CREATE TABLE "holdlock".job (
	namespace text        NOT NULL COLLATE "C",
	key       text        NOT NULL COLLATE "C",
	layout    smallint    NOT NULL,             -- of this row; a row of another layout is an error to whoever asks for the job
	state     smallint    NOT NULL,             -- 1 open, 2 running or, if its term is over, lapsed, 4 suspended, 5 done
	why       smallint    NOT NULL,             -- of suspended: 1 a lapse, 2 an error, 3 the number of runs
	nonce     text        NOT NULL,             -- of the term of the last run; empty once that has no more say
	hold      boolean     NOT NULL,             -- the last run is not to be followed by another one if it lapses
	before    smallint    NOT NULL,             -- what the last claim found: 0 nothing, 1 open, 2 lapsed
	input     text        NOT NULL,             -- fingerprint
	runs      integer     NOT NULL,
	lapses    integer     NOT NULL,
	token     bigint      NOT NULL,             -- of the last run
	holder    json        NOT NULL,             -- of the last run
	changed   timestamptz NOT NULL,
	expires   timestamptz NOT NULL,             -- from then on the row is as if it were not there; infinity: until it is settled
	no_result boolean     NOT NULL,             -- there was a result, too large to be kept
	error     text        NOT NULL,             -- how the last run failed that said so
	settled   text        NOT NULL,             -- which operator settled it, and why
	result    bytea,
	PRIMARY KEY (namespace, key)
);
-- For operators, who look for the few jobs among the many that are done.
CREATE INDEX job_undone ON "holdlock".job (namespace, key) WHERE state <> 5;
-- For collecting.
CREATE INDEX job_expires ON "holdlock".job (expires) WHERE layout = 1 AND expires < 'infinity';

-- called: a process that polls is to be told at its next poll, first in line or not.
ALTER TABLE "holdlock".waiter ADD COLUMN called boolean NOT NULL DEFAULT false;

-- job_fault says why a row must not be acted upon, or NULL.
CREATE FUNCTION "holdlock".job_fault(layout smallint, state smallint, why smallint, before smallint, runs integer, lapses integer,
	token bigint, holder json, size integer) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $f$
BEGIN
	IF layout <> 1 THEN
		RETURN 'it has layout ' || layout || ', and this release knows 1; upgrade this program';
	ELSIF state NOT IN (1, 2, 4, 5) THEN
		RETURN 'it is damaged: there is no state ' || state || '; remove the row from table job once you know whether the job was done';
	ELSIF why NOT BETWEEN 0 AND 3 OR before NOT BETWEEN 0 AND 2 OR runs < 0 OR lapses < 0 OR token < 0 OR size > 65536
		OR json_typeof(holder) <> 'object' THEN
		RETURN 'it is damaged; remove the row from table job once you know whether the job was done';
	END IF;
	RETURN NULL;
END $f$;

-- job_write makes the record what it is from now on. It is on disk before anybody is answered, whatever the default is: that a
-- job is done, or was begun where it must not run again, is not to be taken back by a power failure.
CREATE FUNCTION "holdlock".job_write(j "holdlock".job) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
BEGIN
	IF current_setting('synchronous_commit') = 'off' THEN
		PERFORM set_config('synchronous_commit', 'on', true); -- of this transaction
	END IF;
	INSERT INTO "holdlock".job VALUES (j.*) ON CONFLICT ON CONSTRAINT job_pkey DO UPDATE SET layout = excluded.layout,
		state = excluded.state, why = excluded.why, nonce = excluded.nonce, hold = excluded.hold, before = excluded.before,
		input = excluded.input, runs = excluded.runs, lapses = excluded.lapses, token = excluded.token, holder = excluded.holder,
		changed = excluded.changed, expires = excluded.expires, no_result = excluded.no_result, error = excluded.error,
		settled = excluded.settled, result = excluded.result;
END $f$;

-- claim is acquire with a claim on the job that the key names. Both rows are judged by one reading of the clock. The answers
-- are those of acquire, with their second part in detail; with granted j is the record as it is now. And
--   done, suspended, other   j answers; other: it was begun with another input
--   stopped                  j answers: it is suspended since this very request
--   bad                      the record cannot be read; detail says why
--   unclaimed                the term is the caller's, and was begun without a claim
CREATE FUNCTION "holdlock".claim(p_namespace text, p_key text, p_nonce text, p_ttl bigint, p_floor bigint, p_holder text,
	p_input text, p_hold boolean, p_max_runs bigint, p_keep bigint, OUT answer text, OUT detail text, OUT j "holdlock".job)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	r "holdlock".lease;
	now timestamptz;
	now_us bigint;
	next bigint;
	made bigint;            -- the token of the lease row that was made here
	ending smallint := 0;
	earlier text;           -- as lease.prior
	fresh boolean := false; -- the lease row was made here
	known boolean;          -- there is a record
	live boolean;
	mine boolean;
BEGIN
	IF current_setting('transaction_read_only') = 'on' THEN
		RAISE SQLSTATE '25006' USING MESSAGE = 'cannot lock in a read-only transaction';
	END IF;
	-- Most duplicates end here: what is done or suspended is so, and nothing is locked or written.
	SELECT * INTO j FROM "holdlock".job x WHERE x.namespace = p_namespace AND x.key = p_key;
	IF FOUND AND j.nonce <> p_nonce THEN
		detail := "holdlock".job_fault(j.layout, j.state, j.why, j.before, j.runs, j.lapses, j.token, j.holder, octet_length(j.result));
		IF detail IS NOT NULL THEN
			answer := 'bad';
			RETURN;
		ELSIF j.state IN (4, 5) AND j.expires > clock_timestamp() THEN
			answer := CASE WHEN p_input <> '' AND j.input <> '' AND j.input <> p_input THEN 'other'
				WHEN j.state = 5 THEN 'done' ELSE 'suspended' END;
			RETURN;
		END IF;
	END IF;
	-- And most that come while their twin runs end here, likewise.
	SELECT * INTO r FROM "holdlock".lease l WHERE l.namespace = p_namespace AND l.key = p_key;
	IF r.state IN (1, 2) AND r.expiry > clock_timestamp() AND NOT (r.state = 1 AND r.nonce = p_nonce)
		AND (j.key IS NULL OR j.nonce <> p_nonce AND (p_input = '' OR j.input IN ('', p_input))) THEN
		answer := 'held';
		detail := "holdlock".term_json(r);
		RETURN;
	END IF;

	-- The lease row is locked first. One that is not there is made as if the key were granted, and removed if it is not.
	LOOP
		SELECT * INTO r FROM "holdlock".lease l WHERE l.namespace = p_namespace AND l.key = p_key FOR UPDATE;
		EXIT WHEN FOUND;
		now := clock_timestamp();
		now_us := extract(epoch FROM now) * 1000000;
		next := greatest(now_us, least(p_floor, now_us + 1000000));
		IF next > 9007199254740991 THEN
			answer := 'exhausted';
			RETURN;
		END IF;
		INSERT INTO "holdlock".lease (namespace, key, nonce, state, token, expiry, acquired, used, holder, previous)
		VALUES (p_namespace, p_key, p_nonce, 1, next, now + p_ttl * interval '1 microsecond', now, now, p_holder, 0)
		ON CONFLICT DO NOTHING;
		fresh := FOUND;
		made := next;
		EXIT WHEN fresh;
	END LOOP;
	SELECT * INTO j FROM "holdlock".job x WHERE x.namespace = p_namespace AND x.key = p_key;
	known := FOUND;
	IF NOT fresh THEN
		now := clock_timestamp(); -- the only reading that counts
		now_us := extract(epoch FROM now) * 1000000;
		next := greatest(r.token + 1, now_us, least(p_floor, now_us + 1000000));
	END IF;
	live := NOT fresh AND r.state IN (1, 2) AND r.expiry > now;
	mine := live AND r.state = 1 AND r.nonce = p_nonce;

	<<judge>> BEGIN
		IF known THEN
			detail := "holdlock".job_fault(j.layout, j.state, j.why, j.before, j.runs, j.lapses, j.token, j.holder, octet_length(j.result));
			IF detail IS NOT NULL THEN
				answer := 'bad';
				EXIT judge;
			END IF;
			next := greatest(next, j.token + 1); -- the counter may have been collected since
		END IF;
		IF mine AND NOT (known AND j.nonce = p_nonce AND j.state = 2) THEN
			answer := 'unclaimed';
			EXIT judge;
		ELSIF mine AND r.broken IS NULL THEN
			-- The answer was lost: the caller counts from this try.
			UPDATE "holdlock".lease l SET expiry = greatest(l.expiry, now + p_ttl * interval '1 microsecond'), used = now
			WHERE l.namespace = p_namespace AND l.key = p_key;
			answer := 'granted';
			detail := concat(r.token, ' ', r.previous, ' ' || r.prior);
			EXIT judge;
		END IF;
		IF known AND NOT live AND j.state = 2 AND j.nonce = p_nonce THEN
			-- The claim of this very request was not heard before its term ran out, so nothing was run under it.
			j.runs := j.runs - 1;
			j.nonce := '';
			IF j.before = 1 THEN
				j.state := 1;
			ELSIF j.before = 2 THEN -- lapsed, as it was; and only a run that did not hold is followed by another one
				j.lapses := j.lapses - 1;
				j.hold := false;
			ELSE
				known := false;
			END IF;
		END IF;
		IF known AND j.expires <= now AND NOT (live AND j.state = 2 AND j.nonce = r.nonce) THEN
			known := false;
		END IF;
		IF NOT known THEN
			j := ROW(p_namespace, p_key, 1, 1, 0, '', false, 0, '', 0, 0, 0, p_holder, now, now, false, '', '', NULL)::"holdlock".job;
		ELSIF p_input <> '' AND j.input <> '' AND j.input <> p_input THEN
			answer := 'other';
			IF j.state = 2 AND NOT (live AND r.state = 1 AND j.nonce = r.nonce) THEN
				j.state := 3; -- as it is shown; nothing is written
			END IF;
			EXIT judge;
		ELSIF j.state IN (4, 5) THEN
			answer := CASE j.state WHEN 5 THEN 'done' ELSE 'suspended' END;
			EXIT judge;
		END IF;
		IF NOT fresh AND (r.undone_until > now AND strpos(r.undone, p_nonce) > 0 OR r.nonce = p_nonce AND r.state IN (2, 3)) THEN
			answer := 'undone';
			EXIT judge;
		ELSIF live THEN
			answer := 'held';
			detail := "holdlock".term_json(r);
			EXIT judge;
		END IF;
		IF p_max_runs > 0 AND j.runs >= p_max_runs THEN
			j.why := 3;
		ELSE
			j.why := 0;
		END IF;
		IF j.state = 2 AND (j.hold OR p_hold) THEN
			j.why := 1;
		END IF;
		IF known AND j.state = 2 THEN
			j.lapses := j.lapses + 1;
		END IF;
		IF j.why <> 0 THEN
			j.state := 4;
			j.nonce := '';
			j.changed := now;
			j.expires := 'infinity';
			PERFORM "holdlock".job_write(j);
			answer := 'stopped';
			EXIT judge;
		ELSIF next > 9007199254740991 THEN
			answer := 'exhausted';
			EXIT judge;
		END IF;

		IF NOT fresh THEN
			ending := CASE WHEN r.broken IS NOT NULL THEN 3 WHEN r.state = 1 THEN 2 WHEN r.state = 0 THEN 0
				WHEN r.prior IS NOT NULL THEN r.previous ELSE 1 END; -- as in acquire
			IF ending IN (2, 3) THEN
				earlier := CASE WHEN r.broken IS NULL AND r.state <> 1 THEN r.prior ELSE "holdlock".term_json(r) END;
			END IF;
		END IF;
		IF NOT fresh OR next <> made THEN
			UPDATE "holdlock".lease l SET nonce = p_nonce, state = 1, token = next, expiry = now + p_ttl * interval '1 microsecond',
				acquired = now, used = now, holder = p_holder, broken = NULL, previous = ending, prior = earlier,
				undone = CASE WHEN r.undone_until > now THEN r.undone ELSE '' END,
				undone_until = CASE WHEN r.undone_until > now THEN r.undone_until END
			WHERE l.namespace = p_namespace AND l.key = p_key;
		END IF;
		j.before := CASE WHEN NOT known THEN 0 WHEN j.state = 2 THEN 2 ELSE 1 END;
		j.state := 2;
		j.nonce := p_nonce;
		j.hold := p_hold;
		j.input := coalesce(nullif(j.input, ''), p_input);
		j.runs := j.runs + 1;
		j.token := next;
		j.holder := p_holder;
		j.changed := now;
		j.expires := CASE WHEN p_hold THEN 'infinity' ELSE now + p_keep * interval '1 microsecond' END;
		PERFORM "holdlock".job_write(j);
		answer := 'granted';
		detail := concat(next, ' ', ending, ' ' || earlier);
	END judge;
	IF fresh AND answer <> 'granted' THEN
		DELETE FROM "holdlock".lease l WHERE l.namespace = p_namespace AND l.key = p_key;
	END IF;
END $f$;

-- wake_all takes all who wait for a key out of the line and tells them. Those who poll are told at their next poll.
CREATE FUNCTION "holdlock".wake_all(p_namespace text, p_key text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	w "holdlock".waiter;
BEGIN
	FOR w IN DELETE FROM "holdlock".waiter f WHERE f.namespace = p_namespace AND f.key = p_key AND f.alive IS NOT NULL RETURNING * LOOP
		PERFORM pg_notify(w.channel, w.watch);
	END LOOP;
	UPDATE "holdlock".waiter f SET called = true WHERE f.namespace = p_namespace AND f.key = p_key;
END $f$;

-- poll, as in layout 1, and it also takes those out that were called.
CREATE OR REPLACE FUNCTION "holdlock".poll(p_channel text) RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	now timestamptz := clock_timestamp();
BEGIN
	UPDATE "holdlock".waiter w SET seen = now WHERE w.channel = p_channel AND w.seen < now - interval '1 second';
	RETURN QUERY DELETE FROM "holdlock".waiter w WHERE w.channel = p_channel AND (w.called
		OR NOT EXISTS (SELECT FROM "holdlock".lease l
			WHERE l.namespace = w.namespace AND l.key = w.key AND l.state IN (1, 2) AND l.expiry > now)
		AND NOT EXISTS (SELECT FROM "holdlock".waiter o WHERE o.namespace = w.namespace AND o.key = w.key
			AND (o.since, o.channel, o.watch) < (w.since, w.channel, w.watch)
			AND (o.alive IS NOT NULL OR o.seen > now - interval '4 seconds')))
	RETURNING w.watch;
END $f$;

-- finish is release with a record of how the run has ended, in one step. The answers are those of release, and
--   recorded      it was sent before
--   unclaimed     the term has no claim on the job; nothing was changed
--   bad WHY       the record cannot be read; nothing was changed
CREATE FUNCTION "holdlock".finish(p_namespace text, p_key text, p_nonce text, p_keep bigint, p_state bigint, p_why bigint,
	p_result bytea, p_no_result boolean, p_error text, p_kept bigint)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	r "holdlock".lease;
	j "holdlock".job;
	now timestamptz;
	fault text;
	claimed boolean;
BEGIN
	SELECT * INTO r FROM "holdlock".lease l WHERE l.namespace = p_namespace AND l.key = p_key FOR UPDATE;
	SELECT * INTO j FROM "holdlock".job x WHERE x.namespace = p_namespace AND x.key = p_key;
	claimed := FOUND AND j.nonce = p_nonce;
	now := clock_timestamp();
	fault := "holdlock".job_fault(j.layout, j.state, j.why, j.before, j.runs, j.lapses, j.token, j.holder, octet_length(j.result));
	IF fault IS NOT NULL THEN
		RETURN 'bad ' || fault;
	ELSIF r.key IS NULL OR r.nonce <> p_nonce OR r.state <> 1 OR r.expiry <= now THEN
		IF claimed AND j.state = p_state THEN
			RETURN 'recorded';
		ELSIF r.nonce = p_nonce AND r.broken IS NOT NULL THEN
			RETURN 'broken ' || r.broken;
		ELSIF r.nonce = p_nonce AND r.state = 1 THEN
			RETURN 'gone its time ran out ' || (now - r.expiry)::text || ' ago';
		END IF;
		RETURN 'gone';
	ELSIF NOT claimed OR j.state <> 2 THEN
		RETURN 'unclaimed';
	END IF;
	UPDATE "holdlock".lease l SET state = CASE WHEN p_keep > 0 THEN 2 ELSE 3 END, expiry = now + p_keep * interval '1 microsecond',
		used = now, holder = '', broken = NULL, previous = 0, prior = NULL
	WHERE l.namespace = p_namespace AND l.key = p_key;
	j.state := p_state;
	j.why := p_why;
	j.changed := now;
	j.expires := CASE WHEN p_state = 4 THEN 'infinity' ELSE now + p_kept * interval '1 microsecond' END;
	j.result := p_result;
	j.no_result := p_no_result;
	j.error := p_error;
	PERFORM "holdlock".job_write(j);
	IF EXISTS (SELECT FROM "holdlock".waiter w WHERE w.namespace = p_namespace AND w.key = p_key) THEN
		IF p_state = 1 THEN
			PERFORM "holdlock".wake(p_namespace, p_key);
		ELSE
			PERFORM "holdlock".wake_all(p_namespace, p_key);
		END IF;
	END IF;
	RETURN 'released';
END $f$;

-- give_up is release of an acquire that got no answer. What that has claimed of a job is as it was before.
CREATE FUNCTION "holdlock".give_up(p_namespace text, p_key text, p_nonce text, p_keep bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	answer text := "holdlock".release(p_namespace, p_key, p_nonce, p_keep, true); -- now the lease row is locked
BEGIN
	DELETE FROM "holdlock".job x WHERE x.namespace = p_namespace AND x.key = p_key
		AND x.nonce = p_nonce AND x.state = 2 AND x.layout = 1 AND x.before = 0;
	IF NOT FOUND THEN
		UPDATE "holdlock".job x SET runs = x.runs - 1, nonce = '', state = CASE x.before WHEN 1 THEN 1 ELSE 2 END,
			lapses = x.lapses - CASE x.before WHEN 2 THEN 1 ELSE 0 END, hold = x.hold AND x.before <> 2
		WHERE x.namespace = p_namespace AND x.key = p_key AND x.nonce = p_nonce AND x.state = 2 AND x.layout = 1;
	END IF;
	RETURN answer;
END $f$;

-- settle is an operator's decision about a job that is not running. It answers settled, changed WHAT, held JSON or bad WHY.
CREATE FUNCTION "holdlock".settle(p_namespace text, p_key text, p_token bigint, p_by text, p_done boolean, p_result bytea, p_keep bigint, p_seen bigint)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	r "holdlock".lease;
	j "holdlock".job;
	now timestamptz;
	fault text;
	stands boolean;
BEGIN
	LOOP
		SELECT * INTO r FROM "holdlock".lease l WHERE l.namespace = p_namespace AND l.key = p_key FOR UPDATE;
		EXIT WHEN FOUND;
		IF NOT EXISTS (SELECT FROM "holdlock".job x WHERE x.namespace = p_namespace AND x.key = p_key) THEN
			RETURN 'changed there is no record';
		END IF;
		now := clock_timestamp();
		INSERT INTO "holdlock".lease (namespace, key, nonce, state, token, expiry, acquired, used, holder, previous)
		VALUES (p_namespace, p_key, '', 0, 1, now, now, now, '', 0) ON CONFLICT DO NOTHING;
	END LOOP;
	SELECT * INTO j FROM "holdlock".job x WHERE x.namespace = p_namespace AND x.key = p_key;
	IF NOT FOUND THEN
		RETURN 'changed there is no record';
	END IF;
	now := clock_timestamp();
	stands := j.state = 2 AND j.nonce <> '' AND r.nonce = j.nonce AND r.state = 1 AND r.expiry > now;
	fault := "holdlock".job_fault(j.layout, j.state, j.why, j.before, j.runs, j.lapses, j.token, j.holder, octet_length(j.result));
	IF fault IS NOT NULL THEN
		RETURN 'bad ' || fault;
	ELSIF j.expires <= now AND NOT stands THEN
		RETURN 'changed there is no record';
	ELSIF j.token <> p_token THEN
		RETURN 'changed its token is ' || j.token;
	ELSIF p_seen <> 0 AND "holdlock".us(j.changed) <> p_seen THEN
		RETURN 'changed it has changed since';
	ELSIF stands THEN
		RETURN 'held ' || "holdlock".term_json(r);
	END IF;
	j.state := CASE WHEN p_done THEN 5 ELSE 1 END;
	j.why := 0;
	j.nonce := '';
	j.changed := now;
	j.expires := now + p_keep * interval '1 microsecond';
	j.settled := p_by;
	j.no_result := false;
	j.result := CASE WHEN p_done THEN p_result END;
	IF NOT p_done THEN
		j.runs := 0;
		j.lapses := 0;
	END IF;
	PERFORM "holdlock".job_write(j);
	RETURN 'settled';
END $f$;

-- collect_jobs removes up to p_rows records whose time is over, of all namespaces, and returns how many. One whose run still
-- has its term stays.
CREATE FUNCTION "holdlock".collect_jobs(p_rows int) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	now timestamptz := clock_timestamp();
	removed int;
BEGIN
	DELETE FROM "holdlock".job d WHERE d.ctid = ANY (ARRAY(SELECT x.ctid FROM "holdlock".job x
		WHERE x.layout = 1 AND x.expires < 'infinity' AND x.expires <= now
			AND NOT (x.state = 2 AND EXISTS (SELECT FROM "holdlock".lease l WHERE l.namespace = x.namespace AND l.key = x.key
				AND l.nonce = x.nonce AND l.state = 1 AND l.expiry > now))
		ORDER BY x.expires LIMIT p_rows FOR UPDATE OF x SKIP LOCKED));
	GET DIAGNOSTICS removed = ROW_COUNT;
	RETURN removed;
END $f$;
