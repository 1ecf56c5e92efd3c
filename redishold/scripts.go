package redishold

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// The scripts are the steps of the contract. All begin with common.lua and then slots.lua or plain.lua, which differ in
// what a lock is made of.
var (
	//go:embed lua/common.lua
	luaCommon string
	//go:embed lua/slots.lua
	luaSlots string
	//go:embed lua/plain.lua
	luaPlain string
	//go:embed lua/acquire.lua
	luaAcquire string
	//go:embed lua/acquire_fast.lua
	luaAcquireFast string
	//go:embed lua/release_fast.lua
	luaReleaseFast string
	//go:embed lua/renew.lua
	luaRenew string
	//go:embed lua/release.lua
	luaRelease string
	//go:embed lua/break.lua
	luaBreak string
	//go:embed lua/look.lua
	luaLook string
	//go:embed lua/watch.lua
	luaWatch string
	//go:embed lua/leave.lua
	luaLeave string
	//go:embed lua/ledger.lua
	luaLedger string
	//go:embed lua/attend.lua
	luaAttend string
	//go:embed lua/job.lua
	luaJob string
	//go:embed lua/claim.lua
	luaClaim string
	//go:embed lua/finish.lua
	luaFinish string
	//go:embed lua/jobs.lua
	luaJobs string
	//go:embed lua/settle.lua
	luaSettle string
)

type script struct{ source, sha string }

type scripts struct {
	acquire, renew, release, breakTerm, look, watch, leave, attend, ledger *script
	claim, finish, jobs, settle                                            *script // of jobs; none with plain keys
}

// newScripts makes the scripts of a driver, with the names of its channels and of what says that a process is alive.
func newScripts(plain bool, channel, alive string) *scripts {
	head := fmt.Sprintf("local CHANNEL, ALIVE = '%s', %s\n", channel, alive) + luaCommon
	fastAcquire, fastRelease := luaAcquireFast, luaReleaseFast
	if plain {
		head += luaPlain
		fastAcquire, fastRelease = "", ""
	} else {
		head += luaSlots
	}
	s := func(body string) *script { return newScript(head + body) }
	all := &scripts{
		acquire: newScript(fastAcquire + head + luaAcquire), renew: s(luaRenew), release: newScript(fastRelease + head + luaRelease),
		breakTerm: s(luaBreak), look: s(luaLook), watch: s(luaWatch), leave: s(luaLeave), attend: s(luaAttend), ledger: s(luaLedger),
	}
	if !plain {
		head += luaJob
		within := func(name, body string) string { return "local function " + name + "()\n" + body + "\nend\n" }
		all.claim, all.finish = s(within("acquire", luaAcquire)+luaClaim), s(within("release", luaRelease)+luaFinish)
		all.jobs, all.settle = s(luaJobs), s(luaSettle)
	}
	return all
}

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source))
	return &script{source: source, sha: hex.EncodeToString(sum[:])}
}

// evalsha and eval are the two ways to call a script. Servers forget scripts whenever they like.
func (s *script) evalsha(ctx context.Context, keys []string, args []any) *redis.Cmd {
	return command(ctx, "evalsha", s.sha, keys, args)
}

func (s *script) eval(ctx context.Context, keys []string, args []any) *redis.Cmd {
	return command(ctx, "eval", s.source, keys, args)
}

func command(ctx context.Context, verb, what string, keys []string, args []any) *redis.Cmd {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, verb, what, len(keys))
	for _, k := range keys {
		all = append(all, k)
	}
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	cmd.SetFirstKeyPos(3)
	return cmd
}

// single is a command that the client library sends once only. A retry of its own would hide whether an error is certain,
// and take the time for one of ours.
type single struct{ *redis.Cmd }

// NoRetry is part of redis.Cmder.
func (single) NoRetry() bool { return true }

// call calls a script once and returns its reply.
func (d *Driver) call(ctx context.Context, s *script, keys []string, args ...any) (any, error) {
	r := &member{script: s, keys: keys, args: args}
	if d.shared != nil {
		return d.shared.do(ctx, r)
	}
	return bounded(ctx, d, func(ctx context.Context) (any, error) {
		cmd := sendOne(ctx, d.client, r)
		return cmd.Val(), cmd.Err()
	})
}
