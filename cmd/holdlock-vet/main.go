// Command holdlock-vet finds faults of distributed locks under go vet:
//
//	go vet -vettool=$(which holdlock-vet) ./...
//
// It has the rules of holdlock audit and reports faults only; the inventory is holdlock audit's. Tests and generated files are
// left out unless -holdlock.tests and -holdlock.generated ask for them.
package main

import (
	"golang.org/x/tools/go/analysis/unitchecker"

	"github.com/holdlock/holdlock/cmd/audit"
)

func main() { unitchecker.Main(audit.NewAnalyzer()) }
