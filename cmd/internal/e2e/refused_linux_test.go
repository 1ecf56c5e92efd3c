package e2e

import (
	"strings"
	"syscall"
	"testing"

	"github.com/holdlock/holdlock/internal/testenv"
)

// TestAWaitEndsWhenTheStoreRefuses: a command that stands in line ends when the store does not let it in any more, or what stands there
// is damaged, as one that begins then does. The control is a store that is only full, and is waited out.
func TestAWaitEndsWhenTheStoreRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refuse [][]string
		code   int
		word   string
	}{
		"password": {[][]string{{"ACL", "SETUSER", "locks", "resetpass", ">other"}, {"CLIENT", "KILL", "USER", "locks"}}, 69, "WRONGPASS"},
		"rights":   {[][]string{{"ACL", "SETUSER", "locks", "-evalsha", "-eval"}}, 69, "see Rights"},
		"damaged":  {[][]string{{"SET", "holdlock:{:job}", "garbage"}}, 65, "holdlock:{:job}"},
		"full":     {[][]string{{"CONFIG", "SET", "maxmemory", "1"}}, 0, "is still waited for"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := testenv.StartRedis(t)
			r.Do(t, "ACL", "SETUSER", "locks", "on", ">secret", "~*", "&*", "+@all")
			b := newBox(t)
			b.onRedis("redis://" + r.Addr)
			first := b.start("run", "job", "--ttl", "2m", "--", "sleep", "600")
			eventually(t, "the lock is held", func() bool { return r.Do(t, "EXISTS", "holdlock:{:job}") == "1" })
			b.onRedis("redis://locks:secret@" + r.Addr)
			waiter := b.start("run", "job", "--wait", "forever", "--", "echo", "ran")
			eventually(t, "it stands in line", func() bool { return r.Do(t, "EXISTS", "holdlock:{:job}:q") == "1" })
			for _, do := range c.refuse {
				r.Do(t, do...)
			}
			if c.code == 0 {
				eventually(t, "it is told", func() bool { return strings.Contains(waiter.stderr(), c.word) })
				r.Do(t, "CONFIG", "SET", "maxmemory", "0")
			}
			if c.code != 0 {
				if out := waiter.wait(); out.code != c.code || out.out != "" || !strings.Contains(out.err, c.word) || strings.Contains(out.err, "still waited for") {
					t.Errorf("%+v, want %d with %q", out, c.code, c.word)
				}
			}
			first.signal(syscall.SIGTERM)
			first.wait()
			if c.code == 0 {
				if out := waiter.wait(); out.code != 0 || out.out != "ran\n" {
					t.Errorf("%+v, want that it ran", out)
				}
			}
		})
	}
}
