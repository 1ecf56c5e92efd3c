//go:build !linux

package sqlitehold

import "errors"

func becomeUser(string) error { return errors.New("only on Linux") }
func limitFiles(int) error    { return errors.New("only on Linux") }

var systemChildren map[string]func([]string) error
