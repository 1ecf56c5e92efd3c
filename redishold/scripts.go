package redishold

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"
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
	//go:embed lua/turn.lua
	luaTurn string
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
	//go:embed lua/giveup.lua
	luaGiveUp string
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

type script struct {
	source, sha string
	hash        any // the sha, as an argument
}

type scripts struct {
	acquire, renew, release, turn, breakTerm, look, watch, leave, attend, giveUp, ledger *script
	claim, finish, jobs, settle                                                          *script // of jobs; none with plain keys
}

// newScripts makes the scripts of a driver, with the names of its channels and of what says that a process is alive. gate
// stands before what they do, at a node of a quorum, which tells the tokens of terms that were released.
func newScripts(plain bool, channel, alive, gate string) *scripts {
	names := fmt.Sprintf("local CHANNEL, ALIVE, TELL = '%s', %s, %v\nlocal time = redis.call('TIME')\n", channel, alive, gate != "") + gate
	common := luaCommon
	if plain {
		common += luaPlain
	} else {
		common += luaSlots
	}
	head := names + common
	s := func(body string) *script { return newScript(head + body) }
	all := &scripts{
		acquire: s(luaAcquire), renew: s(luaRenew), release: s(luaRelease), breakTerm: s(luaBreak),
		look: s(luaLook), watch: s(luaWatch), leave: s(luaLeave), attend: s(luaAttend),
		ledger: s(luaLedger),
	}
	if !plain {
		// general is the scripts for one lock, behind a call that costs nothing as long as it is not made.
		all.turn = newScript(names + "local function general(what, KEYS, ARGV)\n" + common +
			"if what == 'R' then\n" + luaRelease + "else\n" + luaAcquire + "end\nend\n" + luaTurn)
		all.giveUp = s("local function release(ARGV)\n" + luaRelease + "end\n" + luaGiveUp)
		head += luaJob
		within := func(name, body string) string { return "local function " + name + "()\n" + body + "\nend\n" }
		all.claim, all.finish = s(within("acquire", luaAcquire)+luaClaim), s(within("release", luaRelease)+luaFinish)
		all.jobs, all.settle = s(luaJobs), s(luaSettle)
	}
	return all
}

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source))
	sha := hex.EncodeToString(sum[:])
	return &script{source, sha, sha}
}

// call calls a script once and returns its reply.
func (d *Driver) call(ctx context.Context, s *script, keys []string, args ...any) (any, error) {
	return d.make(ctx, &member{script: s, keys: keys, args: args})
}

func (d *Driver) make(ctx context.Context, r *member) (any, error) {
	if d.shared != nil {
		return d.shared.do(ctx, r)
	}
	n, err := d.nodeOf(ctx, r.keys[0])
	if err != nil {
		return nil, err
	}
	reply, err := boundedBy(ctx, d, n.hung, func(ctx context.Context) (any, error) {
		sendOne(ctx, d.client, r)
		return r.reply, r.err
	})
	d.lookAgain(ctx, err)
	return reply, err
}
