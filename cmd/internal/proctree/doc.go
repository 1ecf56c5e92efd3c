// Package proctree finds, signals and kills all descendants of a process, also those that left its process group or
// session.
//
// On Linux it walks the tree in /proc. That the walk is complete rests on the root being a child subreaper
// (PR_SET_CHILD_SUBREAPER): a descendant whose parent dies becomes a child of the root, so it can leave the group and
// the session, but never the tree.
//
// # No wrong process is ever hit
//
// A process number may be reused between looking and signalling. Every process is therefore held by an open /proc/PID
// directory while it is identified and signalled: such a directory never comes to mean another process. It also works
// where /proc numbers processes by an outer pid namespace (unshare --pid without --mount-proc) and kill(2) would hit
// strangers. All PIDs of this package are those of /proc; Self says which one is ours.
//
// # Killing faster than they fork
//
// Kill first sends SIGSTOP down the tree, parents before their children, until a walk finds nobody new, and then SIGKILL
// to all. A stopped process does not fork and does not restart a child that dies, so the tree cannot grow away from under
// the walk. What was born in the very moment of the stop is found by the next Kill: callers repeat it until nothing is
// left, which the root learns from wait4 (ECHILD), not from here.
//
// # What it cannot see
//
// Processes that another user's process hides (mounts of /proc with hidepid), and processes that the work has asked
// someone else to start: a container engine, systemd, at, cron, ssh. On systems other than Linux every call fails with
// errors.ErrUnsupported.
package proctree
