
-- The functions of session locks. A term is a lease row, and beside it the session of its holder has the advisory lock of its key.
-- The row decides who holds: what it says is true also for programs that use lease rows. The advisory lock keeps others
-- out when the holder stands still past its time, and excludes transactions.

-- session_acquire is acquire for who has the advisory lock, and takes that if it is free. p_mine: this session has it already.
CREATE FUNCTION "holdlock".session_acquire(p_namespace text, p_key text, p_nonce text, p_ttl bigint, p_floor bigint, p_holder text,
	p_id bigint, p_mine boolean,
	OUT locked boolean,    -- this session has the advisory lock now
	OUT answer text,       -- as of acquire, or blocked: no term stands, but another session has the advisory lock
	OUT token bigint, OUT previous smallint, OUT prior text,
	OUT nonce text, OUT holder text, OUT acquired bigint, OUT remaining bigint, OUT state smallint, OUT broken text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	r "holdlock".lease;
	blocker record;
BEGIN
	locked := p_mine OR pg_try_advisory_lock(p_id);
	FOR try IN 1 .. 6 LOOP
		EXIT WHEN locked;
		SELECT * INTO r FROM "holdlock".lease l WHERE l.namespace = p_namespace AND l.key = p_key;
		IF r.state IN (1, 2) AND r.expiry > clock_timestamp() THEN
			EXIT WHEN r.state = 1 AND r.nonce = p_nonce;
			answer := 'held';
		ELSIF r.state = 1 THEN
			answer := 'blocked'; -- past its time, and its session lives
		ELSIF try = 6 THEN
			answer := 'blocked';
			SELECT a.pid, a.application_name, a.client_addr::text AS host INTO blocker
			FROM pg_locks k JOIN pg_stat_activity a ON a.pid = k.pid
			WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 1 AND k.classid = (p_id >> 32 & 4294967295)::oid
				AND k.objid = (p_id & 4294967295)::oid AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
			LIMIT 1;
			r.holder := json_build_object('pid', coalesce(blocker.pid, 0), 'host', coalesce(blocker.host, 'the server'),
				'label', 'backend of ' || coalesce(nullif(blocker.application_name, ''), 'an unnamed program'),
				'purpose', 'has the advisory lock in a transaction of its own')::text;
			r.token := 0;
			r.acquired := clock_timestamp();
		END IF;
		IF answer IS NOT NULL THEN
			token := r.token;
			nonce := coalesce(r.nonce, '');
			holder := r.holder;
			acquired := "holdlock".us(r.acquired);
			state := 1;
			IF answer = 'held' THEN
				state := r.state;
				remaining := "holdlock".us(r.expiry) - "holdlock".us(clock_timestamp());
			END IF;
			broken := r.broken;
			RETURN;
		END IF;
		-- Who has the advisory lock is about to write the row, or has just written that it is over.
		PERFORM pg_sleep(0.0005 * try);
		locked := pg_try_advisory_lock(p_id);
	END LOOP;
	SELECT a.answer, a.token, a.previous, a.prior, a.nonce, a.holder, a.acquired, a.remaining, a.state, a.broken
	INTO answer, token, previous, prior, nonce, holder, acquired, remaining, state, broken
	FROM "holdlock".acquire(p_namespace, p_key, p_nonce, p_ttl, p_floor, p_holder) a;
	IF answer <> 'granted' AND locked AND NOT p_mine THEN
		PERFORM pg_advisory_unlock(p_id);
		locked := false;
	END IF;
END $f$;

-- session_release is release, and gives back the advisory lock. If another session has that, it is told.
CREATE FUNCTION "holdlock".session_release(p_namespace text, p_key text, p_nonce text, p_keep bigint, p_undo boolean,
	p_id bigint, p_mine boolean, OUT answer text, OUT detail text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
BEGIN
	IF p_mine AND p_keep = 0 THEN
		-- If a crash of the server loses it, the key is taken until the term would have ended: there is no need to wait for the disk.
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
	SELECT r.answer, r.detail INTO answer, detail FROM "holdlock".release(p_namespace, p_key, p_nonce, p_keep, p_undo) r;
	IF p_mine THEN
		PERFORM pg_advisory_unlock(p_id);
	ELSE
		PERFORM "holdlock".session_drop(p_id, p_nonce);
	END IF;
END $f$;

-- session_break is break_term. If it ends the term at once, the session that has the advisory lock is told.
CREATE FUNCTION "holdlock".session_break(p_namespace text, p_key text, p_nonce text, p_by text, p_now boolean, p_id bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
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
