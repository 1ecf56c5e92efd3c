
-- The functions of session locks. A term is a lease row, and beside it the session of its holder has the advisory lock of
-- its key. The row decides who holds: what it says is true also for programs that use lease rows. The advisory lock keeps
-- others out when the holder stands still past its time, and excludes transactions.

-- The common cases are plain statements of the driver (session_sql.go); the functions are for what is left.

-- session_acquire is acquire by a session that has the advisory lock, if p_got, or that did not get it. p_mine: it has had it
-- before, and keeps it if the term is refused. The answers are those of acquire, and
--   rearmed TOKEN PREVIOUS [PRIOR]   the term is the caller's, and its advisory lock is another session's
--   blocked JSON                     no term stands, but another session has the advisory lock: who, as far as is known
CREATE FUNCTION "holdlock".session_acquire(p_namespace text, p_key text, p_nonce text, p_ttl bigint, p_floor bigint, p_holder text,
	p_id bigint, p_got boolean, p_mine boolean)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	answer text;
BEGIN
	IF NOT p_got THEN
		RETURN "holdlock".session_contend(p_namespace, p_key, p_nonce, p_ttl, p_floor, p_holder, p_id);
	END IF;
	answer := "holdlock".acquire(p_namespace, p_key, p_nonce, p_ttl, p_floor, p_holder);
	IF NOT p_mine AND answer NOT LIKE 'granted %' THEN
		PERFORM pg_advisory_unlock(p_id);
	END IF;
	RETURN answer;
END $f$;

-- session_contend is what session_acquire does when another session has the advisory lock.
CREATE FUNCTION "holdlock".session_contend(p_namespace text, p_key text, p_nonce text, p_ttl bigint, p_floor bigint, p_holder text,
	p_id bigint)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	r "holdlock".lease;
	blocker record;
BEGIN
	FOR try IN 1 .. 6 LOOP
		SELECT * INTO r FROM "holdlock".lease l WHERE l.namespace = p_namespace AND l.key = p_key;
		IF r.state IN (1, 2) AND r.expiry > clock_timestamp() THEN
			IF r.state = 1 AND r.nonce = p_nonce THEN
				RETURN regexp_replace("holdlock".acquire(p_namespace, p_key, p_nonce, p_ttl, p_floor, p_holder), '^granted ', 'rearmed ');
			END IF;
			RETURN 'held ' || "holdlock".term_json(r);
		ELSIF r.state = 1 THEN
			RETURN 'blocked ' || "holdlock".term_json(r); -- past its time, and its session lives
		END IF;
		-- Who has the advisory lock is about to write the row, or has just written that it is over.
		PERFORM pg_sleep(0.0005 * try);
		IF pg_try_advisory_lock(p_id) THEN
			RETURN "holdlock".session_acquire(p_namespace, p_key, p_nonce, p_ttl, p_floor, p_holder, p_id, true, false);
		END IF;
	END LOOP;
	SELECT a.pid, a.application_name, a.client_addr::text AS host INTO blocker
	FROM pg_locks k JOIN pg_stat_activity a ON a.pid = k.pid
	WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 1 AND k.database = a.datid
		AND a.datname = current_database() AND k.classid::bigint << 32 | k.objid::bigint = p_id
	LIMIT 1;
	RETURN 'blocked ' || json_build_object('nonce', '', 'state', 1, 'token', 0, 'acquired', "holdlock".us(clock_timestamp()),
		'remaining', 0, 'holder', json_build_object('pid', coalesce(blocker.pid, 0), 'host', coalesce(blocker.host, 'the server'),
		'label', 'backend of ' || coalesce(nullif(blocker.application_name, ''), 'an unnamed program'),
		'purpose', 'has the advisory lock itself')::text);
END $f$;

-- session_give_back is release by the session that has, or with p_mine false had, the advisory lock.
CREATE FUNCTION "holdlock".session_give_back(p_namespace text, p_key text, p_nonce text, p_keep bigint, p_undo boolean, p_id bigint, p_mine boolean)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	answer text := "holdlock".release(p_namespace, p_key, p_nonce, p_keep, p_undo);
BEGIN
	IF p_mine THEN
		PERFORM pg_advisory_unlock(p_id);
	END IF;
	RETURN answer;
END $f$;

-- session_waited says whether somebody waits for a key. It is a function so that it looks after the statement that calls it
-- has begun.
CREATE FUNCTION "holdlock".session_waited(p_namespace text, p_key text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $f$
BEGIN
	RETURN EXISTS (SELECT FROM "holdlock".waiter w WHERE w.namespace OPERATOR(pg_catalog.=) p_namespace AND w.key OPERATOR(pg_catalog.=) p_key);
END $f$;

-- session_release is release by another session. The one that has the advisory lock is told.
CREATE FUNCTION "holdlock".session_release(p_namespace text, p_key text, p_nonce text, p_keep bigint, p_undo boolean, p_id bigint)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	answer text := "holdlock".release(p_namespace, p_key, p_nonce, p_keep, p_undo);
BEGIN
	PERFORM "holdlock".session_drop(p_id, p_nonce);
	RETURN answer;
END $f$;

-- session_break is break_term. If it ends the term at once, the session that has the advisory lock is told.
CREATE FUNCTION "holdlock".session_break(p_namespace text, p_key text, p_nonce text, p_by text, p_now boolean, p_id bigint)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
BEGIN
	IF NOT "holdlock".break_term(p_namespace, p_key, p_nonce, p_by, p_now) THEN
		RETURN false;
	END IF;
	IF p_now THEN
		PERFORM "holdlock".session_drop(p_id, p_nonce);
	END IF;
	RETURN true;
END $f$;

-- session_drop tells all sessions that a term is over, unless nobody has its advisory lock.
CREATE FUNCTION "holdlock".session_drop(p_id bigint, p_nonce text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
BEGIN
	IF NOT pg_try_advisory_xact_lock(p_id) THEN
		PERFORM pg_notify('holdlock session', p_id || ' ' || p_nonce);
	END IF;
END $f$;
