// Package guard stands between `holdlock run` and the command: it ends the command and all its descendants before the
// lease can pass on, whatever happens to holdlock.
//
// # Why a process of its own
//
// A process that is stopped (SIGSTOP, ^Z), frozen out of its store, or killed cannot stop anybody else, but its lease
// runs out all the same, and then another machine starts the same job beside the one that still runs. So the deadline
// is held by a second, small process that no terminal key and no signal meant for holdlock reaches:
//
//	shell
//	 └─ holdlock         process group H   takes and renews the lease, forwards signals
//	     └─ guard        own session       knows the deadline, ends the work, is deaf to signals
//	         └─ command  process group H   and everything that it starts
//
// holdlock executes itself again as the guard (Main is the first thing in main). Two pipes join them: holdlock sends the
// command to start, each new deadline, signals to pass on and the wish to end; the guard reports start, exit status and
// what it had to kill. The end of the first pipe tells the guard that holdlock is gone.
//
// The command is in holdlock's own process group, not in the guard's: so it is in the foreground of the terminal when
// holdlock is, may read from it, gets ^C from the kernel, and ^Z stops it together with holdlock, without anybody calling
// tcsetpgrp. It inherits the file descriptors 0, 1 and 2 and no other. To get it there, the guard itself starts in group H
// and leaves for a session of its own as soon as the command runs. (A group of its own in the same session would not do:
// the death of the command would then make an orphan of group H, and the kernel hangs up orphaned groups.)
//
// # The timeline
//
// D is the deadline: the moment at which all work must be dead, by the clock that goes on during suspend. Every renewal
// of the lease moves it to later, never to earlier. The lead is a quarter of the grace, at most 50 ms: the dying must be
// over at D, not begin there.
//
//	                      TERM                    KILL     D
//	──────────────────────┼───────────────────────┼────────┼──────────────▶
//	 work                 │        grace          │  lead  │ lease may pass on (after the margin)
//
// No renewal in time: TERM (and CONT, for those that are stopped) to all descendants at D - lead - grace, KILL at D - lead.
//
// TERM, INT, HUP and QUIT that are passed on are followed by CONT as well.
//
// holdlock is gone, or asks for the end: TERM now, KILL after the grace, but never later than D - lead.
//
// The command has ended and left descendants behind: these get a moment (Config.Settle, a quarter of the grace, at most
// 250 ms) to end by themselves, as the tee of a shell's process substitution does; then TERM, and KILL after the grace.
// With LeaveBackground they stay.
//
// Once TERM has gone out the end is settled: the command may have begun to tear down, and a half-ended job is worse than
// an ended one. A renewal that arrives later gives the command its full grace if TERM had come late (after a suspend, say),
// and nothing beyond.
//
// KILL is repeated until no descendant is left. What refuses it (another user's process, one in an uninterruptible wait)
// is reported after a second; the guard goes on trying for as long as the lease is renewed, because the lease must not be
// given back while work may be alive. Five seconds after KILL, but not before D, it gives up.
//
// # What the command can ask
//
// The guard publishes the time of TERM in memory that the command can read through /proc ($HOLDLOCK_LEASE, see
// Remaining), so that `holdlock check --need 2s` has an answer when holdlock itself is stopped. It reads 0 from before
// TERM is sent.
//
// # When the guard itself fails
//
// If the guard is killed, the kernel kills the command (PR_SET_PDEATHSIG), and its other descendants become children of
// holdlock, which kills them. If the guard is stopped or hangs, holdlock kills its descendants at D, and then the guard: at
// once if it is stopped, else after ten seconds. For that the process that called Start must run.
//
// # What is not promised
//
//   - holdlock and the guard both killed (or one killed and one stopped): the command dies with the guard, its background
//     processes live on.
//   - A command that is setuid, or has file capabilities, loses the death signal of the kernel; it is then killed by
//     holdlock like an orphan, if the kernel permits that.
//   - What is sent to the whole process group in the first moment, until the guard has left it, reaches the guard too: a
//     KILL then ends holdlock, guard and command together.
//   - Work that the command had others start (a container engine, systemd, at, cron, ssh) is not a descendant.
//   - A signal sent to holdlock alone with `kill -INT` or `kill -QUIT` while it is in the foreground of a terminal is taken
//     for ^C or ^\, which the command has got already, and is not passed on. TERM always is.
//   - A process that runs while its guard is frozen with it (docker pause, a suspended machine) may act for a moment after
//     waking, before the guard does. Right before a side effect, work asks for the remaining time.
//
// # Systems
//
//	                               Linux              other Unix          Windows
//	guard process                  yes                yes                 no
//	command's process group        holdlock's         its own             -
//	reads the terminal, ^Z, fg     yes                no (SIGTTIN)        -
//	^C                             kernel             forwarded           console
//	ends                           all descendants    its process group   the command alone
//	TERM before KILL               yes                yes                 no
//	holdlock stopped or killed     ended in time      ended in time       command lives on
//	guard killed                   holdlock kills     holdlock kills      -
//	                               the rest           the process group
//	Remaining                      yes                no                  no
//	clock                          CLOCK_BOOTTIME     wall, checked 4/s   wall, checked 4/s
//
// "No" for Remaining means an error: it fails closed.
package guard
