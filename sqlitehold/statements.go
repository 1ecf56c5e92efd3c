package sqlitehold

// The statements. Each one that changes something is a transaction of its own, so its steps happen together or not at
// all, and a process can be stopped inside it only for the microseconds that it takes.
//
// The times are read just before the statement and handed in. If the process is stopped in between they are old when it
// runs, and every use of them errs to the safe side: an old time finds fewer keys free, and gives a term that ends earlier,
// yet never before TTL has passed since the caller began to count.
//
// A term is live while its expiry is ahead and the machine has not been rebooted since. Two boots that have names and not the
// same one are two. Where one of them has no name only the row can prove a reboot, and a statement does not ask it for that,
// since it compares with a time that may be old: see env.stands.

const acquireLive = `t.expiry > ?6 AND (t.boot = ?5 OR '` + someBoot + `' IN (t.boot, ?5))`

// ?1 namespace, ?2 key, ?3 nonce, ?4 TokenAfter with nothing before, ?5 boot, ?6 now, ?7 expiry, ?8 wall clock, ?9 holder.
// It takes a key that is free, and re-arms a term that is the caller's already; it changes nothing, and returns no row, if
// the key is taken. So behind WHERE a live term is always the caller's own.
const acquireStatement = `
INSERT INTO term AS t (namespace, key, nonce, state, token, boot, expiry, written, acquired, used, holder, previous)
VALUES (?1, ?2, ?3, 1, ?4, ?5, ?7, ?6, ?8, ?8, ?9, 0)
ON CONFLICT (namespace, key) DO UPDATE SET
	nonce    = excluded.nonce,
	state    = 1,
	token    = iif(` + acquireLive + `, t.token, max(t.token + 1, excluded.token)),
	boot     = excluded.boot,
	written  = excluded.written,
	expiry   = iif(` + acquireLive + `, max(t.expiry, excluded.expiry), excluded.expiry),
	acquired = iif(` + acquireLive + `, t.acquired, excluded.acquired),
	used     = excluded.used,
	holder   = excluded.holder,
	broken   = NULL,
	previous = CASE
		WHEN ` + acquireLive + ` THEN t.previous
		WHEN t.broken IS NOT NULL THEN 3
		WHEN t.state = 1 THEN 2
		WHEN t.previous > 1 THEN t.previous -- the last one was undone
		ELSE 1 END,
	prior    = CASE
		WHEN ` + acquireLive + ` THEN t.prior
		WHEN t.broken IS NOT NULL OR t.state = 1 THEN json_object('nonce', t.nonce, 'token', t.token,
			'holder', t.holder, 'acquired', t.acquired, 'broken', t.broken)
		ELSE t.prior END
WHERE NOT (` + acquireLive + `) OR (t.nonce = ?3 AND t.state = 1 AND t.broken IS NULL)
RETURNING token, previous, prior`

// ?1 namespace, ?2 key, ?3 nonce, ?4 boot, ?5 now, ?6 expiry, ?7 wall clock, ?8 floor or 0.
const renewStatement = `
UPDATE term SET expiry = max(expiry, ?6), written = ?5, used = ?7, token = iif(?8 = 0, token, ?8)
WHERE namespace = ?1 AND key = ?2 AND nonce = ?3 AND state = 1 AND expiry > ?5 AND (boot = ?4 OR '` + someBoot + `' IN (boot, ?4))
	AND broken IS NULL AND (?8 = 0 OR ?8 >= token)
RETURNING token`

// ?1 namespace, ?2 key, ?3 nonce, ?4 boot, ?5 now, ?6 state after, ?7 expiry, ?8 wall clock, ?9 net, ?10 whether to undo.
// What is left is the token counter, and after an undo how the term before ended, as the next one is to be told that. The
// first waiter in line is looked up in the same step.
const releaseStatement = `
UPDATE term SET nonce = '', state = ?6, expiry = ?7, written = ?5, used = ?8, holder = '', broken = NULL,
	previous = iif(?10, previous, 0), prior = iif(?10, prior, NULL)
WHERE namespace = ?1 AND key = ?2 AND nonce = ?3 AND state = 1 AND expiry > ?5 AND (boot = ?4 OR '` + someBoot + `' IN (boot, ?4))
RETURNING ` + firstWaiter

// ?1 namespace, ?2 key, ?3 nonce, ?4 boot, ?5 now, ?6 state after, ?7 expiry if it is to be sooner, ?8 wall clock, ?9 net,
// ?10 by whom and why.
const breakStatement = `
UPDATE term SET broken = ?10, state = ?6, expiry = min(expiry, ?7), used = ?8
WHERE namespace = ?1 AND key = ?2 AND nonce = ?3 AND state = 1 AND expiry > ?5 AND (boot = ?4 OR '` + someBoot + `' IN (boot, ?4))
RETURNING ` + firstWaiter

const firstWaiter = `(SELECT address FROM waiter
	WHERE namespace = ?1 AND key = ?2 AND (boot = ?4 OR '` + someBoot + `' IN (boot, ?4)) AND net = ?9 ORDER BY seq LIMIT 1)`

// Ends a row of which it is proved that it was written before a reboot, if it still is that row. ?1 namespace, ?2 key, ?3
// nonce, ?4 token, ?5 written, ?6 now.
const outdatedStatement = `
UPDATE term SET expiry = ?6 WHERE namespace = ?1 AND key = ?2 AND nonce = ?3 AND token = ?4 AND written = ?5`

// Ends a row in time that may have been written before a reboot, if it still is that row: see env.ends. ?1 namespace, ?2 key, ?3 nonce,
// ?4 token, ?5 used, ?6 expiry, ?7 now.
const unsureStatement = `
UPDATE term SET expiry = ?6, written = ?7
WHERE namespace = ?1 AND key = ?2 AND nonce = ?3 AND token = ?4 AND used = ?5 AND written = 0`

// What is known about a key. ?1 namespace, ?2 key.
const describeStatement = `
SELECT nonce, state, token, boot, expiry, written, acquired, used, holder, broken, previous, prior
FROM term WHERE namespace = ?1 AND key = ?2`

// A page of terms, found in two steps so that no statement reads more than a bounded number of rows, however few of them
// are live: the key at which to stop, and the live terms up to it. ?1 namespace, ?2 first key, ?3 key after which to
// start, ?4 end of the keys.
const (
	listEndStatement = `SELECT key FROM term WHERE namespace = ?1 AND key >= ?2 AND key > ?3 AND key < ?4
ORDER BY key LIMIT 1 OFFSET ?5`
	listStatement = `
SELECT key, nonce, state, token, boot, expiry, written, acquired, used, holder, broken
FROM term WHERE namespace = ?1 AND key >= ?2 AND key > ?3 AND key < ?4 AND expiry > ?6
	AND (boot = ?5 OR '` + someBoot + `' IN (boot, ?5))
ORDER BY key`
)

const (
	watchStatement = `INSERT INTO waiter (namespace, key, net, address, boot, since) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
RETURNING seq`
	// A seq is used again once its row and all behind it are gone; with the address it names one watch.
	unwatchStatement = `DELETE FROM waiter WHERE seq = ?1 AND address = ?2`
	lineStatement    = `SELECT seq, address FROM waiter
WHERE namespace = ?1 AND key = ?2 AND (boot = ?3 OR '` + someBoot + `' IN (boot, ?3)) AND net = ?4 ORDER BY seq LIMIT ?5`
)

// Collecting, see collect.go.
const (
	lastStatement    = `SELECT max(id) FROM term`
	stepEndStatement = `SELECT id FROM term WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?2`
	// ?1 after, ?2 up to, ?3 boot, ?4 the boot clock CounterTTL ago, ?5 the wall clock CounterTTL ago. How long a key of
	// another boot has been idle is known by the wall clock alone. One of a boot without a name is kept until the clock since
	// boot has passed it by a day: at most the uptime of the boot it is of, and a day.
	collectStatement = `DELETE FROM term WHERE id > ?1 AND id <= ?2
	AND iif(boot = ?3 OR '` + someBoot + `' IN (boot, ?3), expiry < ?4, used < ?5)`
	oldWaitersStatement = `SELECT seq, address FROM waiter WHERE (boot = ?1 OR '` + someBoot + `' IN (boot, ?1)) AND net = ?2 ORDER BY seq LIMIT ?3`
	// ?1 boot, ?2 net, ?3 the boot clock an hour ago.
	strayWaitersStatement = `DELETE FROM waiter WHERE NOT (boot = ?1 OR '` + someBoot + `' IN (boot, ?1)) OR (net <> ?2 AND since < ?3)`
)
