-- Layout 1. "holdlock" stands for the schema of the user's choice; schema.go puts that in.
-- Once released, this file is never changed. A later layout is a file of its own.

-- One row for each key of a lease-row store. A key's row is its token counter too, so it stays for a day after its last use.
CREATE TABLE "holdlock".lease (
	namespace text        NOT NULL COLLATE "C",
	key       text        NOT NULL COLLATE "C", -- LOCK or LOCK/KEY
	nonce     text        NOT NULL,             -- names the term; empty once it is released
	state     smallint    NOT NULL,             -- 1 held, 2 released but cooling until expiry, 3 over before expiry
	token     bigint      NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
	expiry    timestamptz NOT NULL,             -- by the server's clock; from then on the key is free
	acquired  timestamptz NOT NULL,             -- when the term started
	used      timestamptz NOT NULL,             -- the last change
	holder    text        NOT NULL,             -- JSON; for people
	broken    text,                             -- which operator ended the term, and why
	previous  smallint    NOT NULL,             -- how the term before ended: 0 unknown, 1 released, 2 lapsed, 3 broken
	prior     text,                             -- the term before, if it was not released: JSON
	PRIMARY KEY (namespace, key)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Nonces of acquires that were given up and may still arrive. Kept for some minutes.
CREATE TABLE "holdlock".undone (
	nonce text        PRIMARY KEY COLLATE "C",
	until timestamptz NOT NULL
);

-- Processes that wait for a key, in their order. A crash of the server may empty it: they poll as well.
CREATE UNLOGGED TABLE "holdlock".waiter (
	seq       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	namespace text        NOT NULL COLLATE "C",
	key       text        NOT NULL COLLATE "C",
	channel   text        NOT NULL, -- on which the process listens; its number is the advisory lock that the process holds
	alive     bigint      NOT NULL, -- an advisory lock that the listening session holds for as long as it lives
	since     timestamptz NOT NULL
);
CREATE INDEX waiter_key ON "holdlock".waiter (namespace, key, seq);

-- Names, tokens and holders of advisory locks: PostgreSQL itself knows them by number alone.
CREATE TABLE "holdlock".advisory (
	id        bigint      PRIMARY KEY,          -- LockID(namespace, key)
	namespace text        NOT NULL COLLATE "C",
	key       text        NOT NULL COLLATE "C",
	token     bigint      NOT NULL DEFAULT 0 CHECK (token BETWEEN 0 AND 9007199254740991),
	nonce     text        NOT NULL DEFAULT '',
	holder    text        NOT NULL DEFAULT '',  -- JSON; of the session that has it, or had it last
	since     timestamptz,                      -- when that began
	used      timestamptz NOT NULL,
	ending    smallint    NOT NULL DEFAULT 0,   -- how the last term ended, as far as its holder could say: as lease.previous
	broken    text
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
