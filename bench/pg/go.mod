module github.com/holdlock/holdlock/bench/pg

go 1.26.0

replace github.com/holdlock/holdlock => ../..

require (
	cirello.io/pglock v1.16.0
	github.com/allisson/go-pglock/v3 v3.0.0
	github.com/holdlock/holdlock v0.0.0-00010101000000-000000000000
	github.com/jackc/pgx/v5 v5.13.0
	github.com/lib/pq v1.10.9
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)
