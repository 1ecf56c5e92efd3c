
-- The functions of session locks. A term is a lease row, and beside it the session of its holder has the advisory lock of
-- its key. The row decides who holds: what it says is true also for programs that use lease rows. The advisory lock keeps
-- others out when the holder stands still past its time, and excludes transactions.

-- session_acquire is acquire for who has the advisory lock, and takes that if it is free. p_mine: this session has it already.
-- Its answers are those of acquire, where granted means that this session has the advisory lock now, and
--   rearmed TOKEN PREVIOUS [PRIOR]   the term is the caller's, and its advisory lock is another session's
--   blocked JSON                     no term stands, but another session has the advisory lock: who, as far as is known
CREATE FUNCTION "holdlock".session_acquire(p_namespace text, p_key text, p_nonce text, p_ttl bigint, p_floor bigint, p_holder text,
	p_id bigint, p_mine boolean)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	r "holdlock".lease;
	blocker record;
	answer text;
	locked boolean := p_mine OR pg_try_advisory_lock(p_id);
BEGIN
	FOR try IN 1 .. 6 LOOP
		EXIT WHEN locked;
		SELECT * INTO r FROM "holdlock".lease l WHERE l.namespace = p_namespace AND l.key = p_key;
		IF r.state IN (1, 2) AND r.expiry > clock_timestamp() THEN
			EXIT WHEN r.state = 1 AND r.nonce = p_nonce;
			RETURN 'held ' || "holdlock".term_json(r);
		ELSIF r.state = 1 THEN
			RETURN 'blocked ' || "holdlock".term_json(r); -- past its time, and its session lives
		ELSIF try = 6 THEN
			SELECT a.pid, a.application_name, a.client_addr::text AS host INTO blocker
			FROM pg_locks k JOIN pg_stat_activity a ON a.pid = k.pid
			WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 1 AND k.database = a.datid
				AND a.datname = current_database() AND k.classid::bigint << 32 | k.objid::bigint = p_id
			LIMIT 1;
			RETURN 'blocked ' || json_build_object('nonce', '', 'state', 1, 'token', 0, 'acquired', "holdlock".us(clock_timestamp()),
				'remaining', 0, 'holder', json_build_object('pid', coalesce(blocker.pid, 0), 'host', coalesce(blocker.host, 'the server'),
				'label', 'backend of ' || coalesce(nullif(blocker.application_name, ''), 'an unnamed program'),
				'purpose', 'has the advisory lock itself')::text);
		END IF;
		-- Who has the advisory lock is about to write the row, or has just written that it is over.
		PERFORM pg_sleep(0.0005 * try);
		locked := pg_try_advisory_lock(p_id);
	END LOOP;
	answer := "holdlock".acquire(p_namespace, p_key, p_nonce, p_ttl, p_floor, p_holder);
	IF locked AND NOT p_mine AND NOT starts_with(answer, 'granted ') THEN
		PERFORM pg_advisory_unlock(p_id);
	ELSIF NOT locked AND starts_with(answer, 'granted ') THEN
		RETURN 'rearmed' || substr(answer, 8);
	END IF;
	RETURN answer;
END $f$;

-- session_release is release, and gives back the advisory lock. If another session has that, it is told.
CREATE FUNCTION "holdlock".session_release(p_namespace text, p_key text, p_nonce text, p_keep bigint, p_undo boolean,
	p_id bigint, p_mine boolean)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	answer text;
BEGIN
	IF p_mine AND p_keep = 0 THEN
		-- If a crash of the server loses it, the key is taken until the term would have ended: there is no need to wait for the disk.
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
	answer := "holdlock".release(p_namespace, p_key, p_nonce, p_keep, p_undo);
	IF p_mine THEN
		PERFORM pg_advisory_unlock(p_id);
	ELSE
		PERFORM "holdlock".session_drop(p_id, p_nonce);
	END IF;
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
