module github.com/holdlock/holdlock

go 1.26.0
