package cli

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// jobsCmd shows and settles the jobs that run --once and package once keep records of.
type jobsCmd struct {
	Ls      jobsLsCmd      `cmd:"" help:"List the jobs that wait for an operator: suspended, and lapsed ones."`
	Inspect jobsInspectCmd `cmd:"" help:"Show what is known of a job."`
	Settle  jobsSettleCmd  `cmd:"" help:"Decide about a job. Shows it first; --token does it."`
}

type jobsLsCmd struct {
	Prefix string `arg:"" optional:"" help:"Only jobs whose lock's name starts so."`
	All    bool   `help:"All jobs: running, open and done ones too."`
}

// Run lists jobs.
func (l *jobsLsCmd) Run(g *globals) error {
	return g.withClient(func(ctx context.Context, c *holdlock.Client) error {
		w := tabwriter.NewWriter(g.stdout, 0, 0, 2, ' ', 0)
		enc := json.NewEncoder(g.stdout)
		n := 0
		unread := unread{g: g}
		for i, err := range c.Jobs(ctx, l.Prefix, !l.All) {
			if err != nil {
				if err := unread.pass(err); err != nil {
					return cmp.Or(w.Flush(), err) // what was read until now is shown
				}
				continue
			}
			if s := i.Job.State; !l.All && s != driver.JobSuspended && s != driver.JobLapsed {
				continue
			}
			if n++; g.JSON {
				if err := enc.Encode(jobFields(i)); err != nil {
					return err
				}
				continue
			}
			if n == 1 {
				fmt.Fprintln(w, "JOB\tSTATE\tRUNS\tLAST RUN\tSINCE\tTOKEN\tWHY")
			}
			fmt.Fprintf(w, "%s\t%v\t%d\t%s\t%s\t%d\t%s\n", lockName(i.Name, i.Key), i.Job.State, i.Job.Runs, jobHolder(i), ago(i.Job.Changed),
				i.Job.Token, readable(why(i)))
		}
		if n == 0 && unread.n == 0 && !g.JSON { // what could not be read may wait for an operator
			what := "no job waits for an operator"
			if l.All {
				what = "there is no record of a job"
			}
			fmt.Fprintf(g.stderr, "holdlock: %s in %s\n", what, readable(c.Traits().Location))
		}
		return cmp.Or(w.Flush(), unread.err())
	})
}

type jobsInspectCmd struct {
	Job string `arg:"" help:"LOCK or LOCK/KEY."`
}

// Run shows one job.
func (i *jobsInspectCmd) Run(g *globals) error {
	name, key, err := holdlock.ParseName(i.Job)
	if err != nil {
		return err
	}
	return g.withClient(func(ctx context.Context, c *holdlock.Client) error {
		_, err := g.showJob(ctx, c, name, key)
		return err
	})
}

// showJob prints what is known of a job.
func (g *globals) showJob(ctx context.Context, c *holdlock.Client, name, key string) (holdlock.JobInfo, error) {
	info, known, err := c.Job(ctx, name, key)
	if err != nil {
		return info, err
	}
	if !known {
		info = holdlock.JobInfo{Name: name, Key: key, Store: c.Traits().Location}
	}
	if g.JSON {
		return info, json.NewEncoder(g.stdout).Encode(jobFields(info))
	}
	w := tabwriter.NewWriter(g.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "job\t%s\nstate\t%s\n", lockName(name, key), jobState(info))
	if known {
		if text := why(info); text != "" {
			fmt.Fprintf(w, "why\t%s\n", readable(text))
		}
		fmt.Fprintf(w, "since\t%s\nlast run\t%s\nruns\t%d, of which %d lapsed\ntoken\t%d\n", ago(info.Job.Changed), jobHolder(info),
			info.Job.Runs, info.Job.Lapses, info.Job.Token)
		if info.Job.Error != "" {
			fmt.Fprintf(w, "last error\t%s\n", readable(info.Job.Error))
		}
		if info.Job.Settled != "" {
			when := ""
			if !info.Job.Judged {
				when = " (before its last run)"
			}
			fmt.Fprintf(w, "settled by\t%s%s\n", readable(info.Job.Settled), when)
		}
		if info.Job.State == driver.JobDone && len(info.Job.Result) > 0 {
			fmt.Fprintf(w, "result\t%s\n", readable(string(info.Job.Result)))
		}
	}
	fmt.Fprintf(w, "store\t%s\n", readable(info.Store))
	return info, w.Flush()
}

type jobsSettleCmd struct {
	Job      string        `arg:"" help:"LOCK or LOCK/KEY."`
	Token    uint64        `help:"The run that is judged, by the token that a first run has shown. Without it nothing is done." placeholder:"N"`
	Done     bool          `help:"The job is done: it does not run again." xor:"decision"`
	RunAgain bool          `help:"Let the job run again; the next delivery does." xor:"decision"`
	Reason   string        `help:"Why; kept with the record. Required with --token." placeholder:"TEXT"`
	Keep     time.Duration `help:"How long the record is kept from now on." default:"168h"`
	Again    bool          `help:"Overrule the decision of whoever has settled this run before."`
}

// Run shows the job, and settles it if its last run is named by its token.
func (s *jobsSettleCmd) Run(g *globals) error {
	name, key, err := holdlock.ParseName(s.Job)
	switch {
	case err != nil:
		return err
	case s.Token == 0 && (s.Done || s.RunAgain || s.Reason != "" || s.Again):
		return usage("name the run to judge with --token; holdlock jobs settle JOB shows it")
	case s.Token != 0 && s.Done == s.RunAgain:
		return usage("--token needs --done or --run-again")
	case s.Token != 0 && s.Reason == "":
		return usage("--token needs --reason: say why the job is settled so")
	case s.Keep <= 0:
		return usage(fmt.Sprintf("--keep %s is not allowed: it must be positive", s.Keep))
	}
	return g.withClient(func(ctx context.Context, c *holdlock.Client) error {
		if s.Token == 0 {
			info, err := g.showJob(ctx, c, name, key)
			if err == nil && info.Job.State != 0 {
				g.say("dry-run", fmt.Sprintf("nothing was changed; to settle this job: holdlock jobs settle --token %d --reason WHY "+
					"--done %s, or with --run-again", info.Job.Token, lockWord(name, key)), nil)
			}
			return err
		}
		by := user() + ": " + s.Reason
		err := c.Settle(ctx, name, key, holdlock.Token(s.Token), holdlock.SettleOptions{By: by, Done: s.Done, Keep: s.Keep, Again: s.Again})
		if err != nil {
			return err
		}
		text := "job %s is open: the next delivery runs it"
		if s.Done {
			text = "job %s is marked done"
		}
		g.say("settled", fmt.Sprintf(text, lockName(name, key)), nil)
		return nil
	})
}

// why says why a job does not run, or how its last run failed.
func why(i holdlock.JobInfo) string {
	switch i.Job.State {
	case driver.JobSuspended:
		return i.Job.Why.String()
	case driver.JobLapsed:
		return driver.ByLapse.String()
	case driver.JobOpen:
		return i.Job.Error
	default:
		return ""
	}
}

func jobState(i holdlock.JobInfo) string {
	if i.Job.State == 0 {
		return "unknown"
	}
	return i.Job.State.String()
}

func jobHolder(i holdlock.JobInfo) string {
	return readable(who(i.Job.Holder))
}

func ago(t time.Time) string {
	return fmt.Sprintf("%s (%s)", t.Format(time.DateTime), time.Since(t).Round(time.Second))
}

// jobFields is the JSON form of a job: a contract.
func jobFields(i holdlock.JobInfo) map[string]any {
	out := map[string]any{"lock": i.Name, "store": i.Store, "state": jobState(i)}
	if i.Key != "" {
		out["key"] = i.Key
	}
	if i.Job.State == 0 {
		return out
	}
	j := i.Job
	out["runs"], out["lapses"], out["token"] = j.Runs, j.Lapses, strconv.FormatUint(uint64(j.Token), 10)
	out["since"] = j.Changed.UTC().Format(time.RFC3339Nano)
	out["host"], out["pid"], out["label"] = j.Holder.Host, j.Holder.PID, j.Holder.Label
	for name, text := range map[string]string{"why": why(i), "error": j.Error, "settled_by": j.Settled} {
		if text != "" {
			out[name] = text
		}
	}
	if j.Judged {
		out["judged"] = true
	}
	if len(j.Result) > 0 {
		out["result_base64"] = base64.StdEncoding.EncodeToString(j.Result)
	}
	return out
}

// jobFieldsOf are the fields of an error that says what is known of a job.
func jobFieldsOf(err error) map[string]any {
	var about *holdlock.JobError
	if !errors.As(err, &about) {
		return nil
	}
	return map[string]any{"job": jobFields(holdlock.JobInfo{Name: about.Name, Key: about.Key, Store: about.Store, Job: about.Job})}
}
