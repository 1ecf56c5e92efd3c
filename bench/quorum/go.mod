module github.com/holdlock/holdlock/bench/quorum

go 1.26.0

require (
	github.com/go-redsync/redsync/v4 v4.18.1
	github.com/holdlock/holdlock v0.1.0
	github.com/redis/go-redis/v9 v9.23.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
)

replace github.com/holdlock/holdlock => ../..
