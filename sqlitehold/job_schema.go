package sqlitehold

// The records of jobs, in layout 2 of the file. A record stands beside the term of its key and outlives it, and the boot.
// Its times are of the wall clock, since no other one goes on over a reboot.
const (
	createJob = `CREATE TABLE job (
	id        INTEGER PRIMARY KEY,
	namespace TEXT    NOT NULL,
	key       TEXT    NOT NULL,
	layout    INTEGER NOT NULL, -- of this row; a row of another layout is an error to whoever asks for the job
	state     INTEGER NOT NULL, -- 1 open, 2 running or, if its term is over, lapsed, 4 suspended, 5 done
	why       INTEGER NOT NULL, -- of suspended: 1 a lapse, 2 an error, 3 the number of runs
	nonce     TEXT    NOT NULL, -- of the term of the last run; empty once that has no more say
	hold      INTEGER NOT NULL, -- 1: the last run is not to be followed by another one if it lapses
	before    INTEGER NOT NULL, -- what the last claim found: 0 nothing, 1 open, 2 lapsed
	input     TEXT    NOT NULL, -- fingerprint
	runs      INTEGER NOT NULL,
	lapses    INTEGER NOT NULL,
	token     INTEGER NOT NULL, -- of the last run
	holder    TEXT    NOT NULL, -- of the last run: JSON
	changed   INTEGER NOT NULL, -- microseconds since 1970
	expires   INTEGER NOT NULL, -- likewise: from then on the row is as if it were not there
	no_result INTEGER NOT NULL, -- 1: there was a result, too large to be kept
	error     TEXT    NOT NULL, -- how the last run failed that said so
	settled   TEXT    NOT NULL, -- which operator settled it, and why
	result    BLOB,
	UNIQUE (namespace, key)
) STRICT`

	// For operators, who look for the few jobs among the many that are done.
	createJobUndone = `CREATE INDEX job_undone ON job (namespace, key) WHERE state <> 5`
	// For collecting.
	createJobExpires = `CREATE INDEX job_expires ON job (expires) WHERE expires < 9223372036854775807`
)

const jobLayout = 1

// The values of job.state. There is no lapsed one: that is for the row of the term to say.
const (
	jobOpen      = 1
	jobRunning   = 2
	jobSuspended = 4
	jobDone      = 5
)

// The values of job.before.
const (
	beforeNothing = iota
	beforeOpen
	beforeLapsed
)

const jobColumns = `layout, state, why, nonce, hold, before, input, runs, lapses, token, holder, changed, expires,
	no_result, error, settled, result`

// ?1 namespace, ?2 key.
const jobStatement = `SELECT ` + jobColumns + ` FROM job WHERE namespace = ?1 AND key = ?2`

// The row as it is from now on: ?1 namespace, ?2 key, then jobColumns.
const writeJobStatement = `
INSERT INTO job (namespace, key, ` + jobColumns + `)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)
ON CONFLICT (namespace, key) DO UPDATE SET layout = excluded.layout, state = excluded.state, why = excluded.why,
	nonce = excluded.nonce, hold = excluded.hold, before = excluded.before, input = excluded.input, runs = excluded.runs,
	lapses = excluded.lapses, token = excluded.token, holder = excluded.holder, changed = excluded.changed,
	expires = excluded.expires, no_result = excluded.no_result, error = excluded.error, settled = excluded.settled,
	result = excluded.result`

const removeJobStatement = `DELETE FROM job WHERE namespace = ?1 AND key = ?2`

// A page of jobs, without results, each with what says whether its term stands. What another release means by expires is not known
// here, so its rows are shown, and told to be unreadable. ?1 namespace, ?2 first key, ?3 key after
// which to start, ?4 end of the keys, ?5 now in µs since 1970, ?6 limit.
const (
	jobsSelect = `
SELECT j.key, j.layout, j.state, j.why, j.nonce, j.hold, j.before, j.input, j.runs, j.lapses, j.token, j.holder, j.changed,
	j.expires, j.no_result, j.error, j.settled, coalesce(t.nonce, ''), coalesce(t.boot, ''), coalesce(t.expiry, 0),
	coalesce(t.written, 0)
FROM job j LEFT JOIN term t ON t.namespace = j.namespace AND t.key = j.key
WHERE j.namespace = ?1 AND j.key >= ?2 AND j.key > ?3 AND j.key < ?4 AND (j.expires > ?5 OR j.layout <> 1)`
	jobsStatement       = jobsSelect + ` ORDER BY j.key LIMIT ?6`
	undoneJobsStatement = jobsSelect + ` AND j.state <> 5 ORDER BY j.key LIMIT ?6`
)

// ?1 now in µs since 1970, ?2 how many at most.
const collectJobsStatement = `DELETE FROM job WHERE id IN (
	SELECT id FROM job WHERE expires <= ?1 AND expires < 9223372036854775807 AND layout = 1 ORDER BY expires LIMIT ?2)`
