-- What locks have done, one record for each lock and day, for reviews.
CREATE TABLE "holdlock".usage (
	namespace text    NOT NULL COLLATE "C",
	day       integer NOT NULL,             -- since 1970, UTC; 0: what the lock is declared as
	lock      text    NOT NULL COLLATE "C",
	record    bytea   NOT NULL,             -- of package review/ledger
	PRIMARY KEY (namespace, day, lock)
) WITH (fillfactor = 70);
