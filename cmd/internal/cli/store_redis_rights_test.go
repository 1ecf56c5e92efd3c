//go:build unix

package cli

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// The user of docs/stores/redis.md can do all that operators do, and the server has nothing to refuse.
func TestRedisOperatorsNeedTheDocumentedRightsOnly(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/stores/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(doc), "ACL SETUSER locks on >PASSWORD ")
	line, _, _ = strings.Cut(line, "\n")
	rights := strings.Fields(line)
	if len(rights) == 0 {
		t.Fatal("docs/stores/redis.md has no line ACL SETUSER locks on >PASSWORD")
	}
	for _, c := range []struct {
		name, query string
		more        []string
		want        string // what ls shows of the key
	}{
		{"slots", "", nil, "charge-card/42"},
		{"plain keys", "?plain_keys=true", []string{"~charge-card/*", "+pttl"}, "charge-card/42"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := testenv.StartRedis(t)
			r.Do(t, append(append([]string{"ACL", "SETUSER", "locks", "on", ">" + oddPassword}, rights...), c.more...)...)
			url := "redis://locks:" + oddPassword + "@" + r.Addr + c.query
			d, err := openStore(url, "")
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			req := &driver.AcquireRequest{
				Ref: driver.Ref{Key: "charge-card/42", Nonce: strings.Repeat("ab", 16)}, TTL: time.Hour,
				Holder: driver.Holder{Host: "worker", PID: 7, Purpose: "calls the payments API"},
			}
			g, err := d.Acquire(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			do := func(want string, args ...string) string {
				t.Helper()
				var out, said bytes.Buffer
				code := Main(append(args, "--store", url), &out, &said)
				all := out.String() + said.String()
				if code != 0 || !strings.Contains(all, want) || strings.Contains(all, oddPassword) {
					t.Errorf("holdlock %s: exit %d, %s", strings.Join(args, " "), code, all)
				}
				return all
			}
			do(c.want, "ls")
			do("calls the payments API", "inspect", "charge-card/42")
			token := strconv.FormatUint(uint64(g.Token), 10)
			do("--token "+token, "break", "charge-card/42")
			do("broke lock", "break", "charge-card/42", "--token", token, "--reason", "test", "--now")
			do("free", "inspect", "charge-card/42")
			do("nothing is held", "ls")
			if _, err := d.Acquire(t.Context(), &driver.AcquireRequest{
				Ref: driver.Ref{Key: "charge-card/42", Nonce: strings.Repeat("cd", 16)}, TTL: time.Hour,
			}); err != nil {
				t.Errorf("after the break: %v", err)
			}
			if log := r.Do(t, "ACL", "LOG"); log != "" {
				t.Errorf("the server has refused something: %s", log)
			}
		})
	}
}
