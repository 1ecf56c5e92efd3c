package cli

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
)

type versionCmd struct{}

// Run prints what was built.
func (*versionCmd) Run(g *globals) error {
	version, revision := "devel", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if v := info.Main.Version; v != "" && v != "(devel)" {
			version = v
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	if g.JSON {
		return json.NewEncoder(g.stdout).Encode(map[string]string{
			"version": version, "revision": revision, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
		})
	}
	if revision != "" {
		revision = " " + revision
	}
	_, err := fmt.Fprintf(g.stdout, "holdlock %s%s %s %s/%s\n", version, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
