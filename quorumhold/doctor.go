package quorumhold

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// firstTrips is how many ways there and back the first answer of a server takes that has restarted: to connect, to greet, to hear that it
// does not know the script, and to send that.
const firstTrips = 4

// doctorBudget is what the examination of one node may take.
const doctorBudget = 20 * time.Second

// Diagnose implements driver.Doctor. It asks the doctor of each node, and looks at what is a matter of all of them. What one node
// refuses is a warning as long as a majority is well.
func (d *Driver) Diagnose(ctx context.Context, opts driver.DoctorOptions) (found []driver.Diagnosis) {
	if opts.TTL == 0 {
		opts.TTL = 30 * time.Second
	}
	say := func(check string, v driver.Verdict, what, harm, setting string) {
		found = append(found, driver.Diagnosis{Check: check, Verdict: v, Found: what, Harm: harm, Setting: setting})
	}
	byNode, abstain := d.askDoctors(ctx, opts)
	d.diagnoseNumber(say)
	d.diagnoseIndependence(say)
	if opts.TTL > d.opts.MaxTTL {
		say("TTL", driver.Refuse, fmt.Sprintf("%s, and the quorum's MaxTTL is %s", opts.TTL, d.opts.MaxTTL), "such a lock is refused",
			"a larger MaxTTL in all programs (holdlock --quorum-max-ttl), or a shorter TTL")
	}
	well, granting := d.diagnoseNodes(byNode, abstain, say)
	disagreements(d.nodes, byNode, say)
	if granting >= d.need {
		d.diagnoseUse(ctx, opts.TTL, byNode, say)
	}
	for i, of := range byNode {
		for _, f := range of {
			if f.Verdict == driver.Refuse && well >= d.need { // what it says of all locks is so at this node only
				f.Verdict, f.Harm = driver.Caution, "here: "+f.Harm
			}
			f.Check += " of " + d.nodes[i].name
			found = append(found, f)
		}
	}
	return found
}

type sayer = func(check string, v driver.Verdict, what, harm, setting string)

// askDoctors examines all nodes at once, and says for how much longer each abstains.
func (d *Driver) askDoctors(ctx context.Context, opts driver.DoctorOptions) (out [][]driver.Diagnosis, abstain []time.Duration) {
	out, abstain = make([][]driver.Diagnosis, len(d.nodes)), make([]time.Duration, len(d.nodes))
	var all sync.WaitGroup
	for i, n := range d.nodes {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, doctorBudget)
			defer cancel()
			doctor, ok := driver.As[driver.Doctor](n.Driver)
			if !ok {
				out[i] = []driver.Diagnosis{{
					Check: "node", Verdict: driver.Unseen, Found: "there is no doctor for this kind of store",
					Harm: "it is not known", Setting: "look at it yourself",
				}}
				return
			}
			out[i] = doctor.Diagnose(ctx, opts)
			if a, ok := driver.As[Abstainer](n.Driver); ok && !refuses(out[i]) {
				abstain[i], _ = a.Abstains(ctx) // what goes wrong here has gone wrong above
			}
		})
	}
	all.Wait()
	return out, abstain
}

func refuses(of []driver.Diagnosis) bool {
	return slices.ContainsFunc(of, func(f driver.Diagnosis) bool { return f.Verdict == driver.Refuse })
}

func (d *Driver) diagnoseNumber(say sayer) {
	n := len(d.nodes)
	survives := n - d.need
	found := fmt.Sprintf("%d, of which %d may fail", n, survives)
	switch {
	case survives == 0:
		say("number of nodes", driver.Caution, found, "one failure, and no lock can be taken or renewed", "3 or 5 nodes")
	case n%2 == 0:
		say("number of nodes", driver.Caution, found, fmt.Sprintf("%d nodes survive as many failures with fewer that can fail", n-1), fmt.Sprintf("%d or %d nodes", n-1, n+1))
	default:
		say("number of nodes", driver.Fine, found, "", "")
	}
}

// diagnoseIndependence compares the addresses: more about what nodes share cannot be seen from here.
func (d *Driver) diagnoseIndependence(say sayer) {
	byHost := map[string][]string{}
	var hosts []string
	for _, n := range d.nodes {
		addr, _, _ := strings.Cut(n.name, "/")
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			host = n.name
		}
		if byHost[host] == nil {
			hosts = append(hosts, host)
		}
		byHost[host] = append(byHost[host], n.name)
	}
	most := ""
	for _, h := range hosts {
		if len(byHost[h]) > len(byHost[most]) {
			most = h
		}
	}
	switch shared := len(byHost[most]); {
	case shared > len(d.nodes)-d.need && shared > 1:
		say("independence", driver.Caution, fmt.Sprintf("%s are on one machine", strings.Join(byHost[most], ", ")), "when it fails there is no majority", "put each node on a machine of its own")
	case shared > 1:
		say("independence", driver.Caution, fmt.Sprintf("%s are on one machine", strings.Join(byHost[most], ", ")), "when it fails they fail together, and the quorum "+
			"survives less than its number says", "put each node on a machine of its own")
	default:
		say("independence", driver.Fine, "the addresses differ; what else nodes share (power, disks, a hypervisor) cannot be seen from here", "", "")
	}
}

// diagnoseNodes counts the nodes that are well, which are those that refuse nothing, and those of them that grant: the others abstain.
func (d *Driver) diagnoseNodes(byNode [][]driver.Diagnosis, abstain []time.Duration, say sayer) (well, granting int) {
	var bad, abstaining []string
	var left []time.Duration
	for i, of := range byNode {
		switch {
		case refuses(of):
			bad = append(bad, d.nodes[i].name)
		case abstain[i] > 0:
			abstaining, left = append(abstaining, d.nodes[i].name), append(left, abstain[i])
		default:
			granting++
		}
	}
	well = granting + len(abstaining)
	found := fmt.Sprintf("%d of %d nodes are well, %d are needed", well, len(d.nodes), d.need)
	if len(bad) > 0 {
		found += ": not " + strings.Join(bad, ", ")
	}
	const see = "see what is said of these nodes"
	switch {
	case well < d.need:
		say("majority", driver.Refuse, found, "no lock can be taken or renewed", see)
		return well, granting
	case granting < d.need:
		slices.Sort(left)
		wait := time.Duration(math.Ceil(left[d.need-granting-1].Seconds())) * time.Second
		say("majority", driver.Refuse, fmt.Sprintf("%s; %s of them abstain, so %d can grant", found, strings.Join(abstaining, ", "), granting),
			fmt.Sprintf("no lock can be taken for %s at least; those that are held are renewed", wait), "wait; "+see)
		return well, granting
	case len(abstaining) > 0:
		found += "; " + strings.Join(abstaining, ", ") + " of them abstain for now"
	}
	switch {
	case granting == d.need && granting < len(d.nodes):
		harm := "one failure more, and no lock can be taken or renewed"
		if well > d.need {
			harm = "one failure more, and no lock can be taken until nodes no longer abstain"
		}
		say("majority", driver.Caution, found, harm, see)
	case granting < len(d.nodes):
		say("majority", driver.Caution, found, "the quorum survives fewer failures", see)
	default:
		say("majority", driver.Fine, found, "", "")
	}
	return well, granting
}

// disagreements are rules that hold at some nodes only.
func disagreements(nodes []*node, byNode [][]driver.Diagnosis, say sayer) {
	for _, check := range []string{"version", "eviction", "persistence", "durability"} {
		var texts []string
		who := map[string][]string{}
		for i, of := range byNode {
			for _, f := range of {
				if f.Check != check || f.Verdict == driver.Unseen {
					continue
				}
				if who[f.Found] == nil {
					texts = append(texts, f.Found)
				}
				who[f.Found] = append(who[f.Found], nodes[i].name)
			}
		}
		if len(texts) < 2 {
			continue
		}
		var parts []string
		for _, text := range texts {
			parts = append(parts, fmt.Sprintf("%s at %s", text, strings.Join(who[text], ", ")))
		}
		say("agreement", driver.Caution, "nodes differ in "+check+": "+strings.Join(parts, "; "), "a failure that some survive others do not, and which ones decides "+
			"whether a lock is lost", "give all nodes the same settings and version")
	}
}

// diagnoseUse takes a lock of the quorum's, unless that would be the first thing that some nodes hear of it.
func (d *Driver) diagnoseUse(ctx context.Context, ttl time.Duration, byNode [][]driver.Diagnosis, say sayer) {
	for _, of := range byNode {
		if slices.ContainsFunc(of, func(f driver.Diagnosis) bool { return f.Check == "mark" && f.Verdict >= driver.Caution }) {
			say("use", driver.Unseen, "not tried, because nodes abstain or are new", "it is not known", "see the marks of the nodes, and ask again")
			return
		}
	}
	var b [20]byte
	_, _ = rand.Read(b[:]) // cannot fail
	const lasts = 10 * time.Second
	req := &driver.AcquireRequest{
		Ref: driver.Ref{Key: "holdlock-doctor/" + hex.EncodeToString(b[:4]), Nonce: hex.EncodeToString(b[4:])},
		TTL: min(lasts, d.opts.MaxTTL), Holder: driver.Holder{Label: "holdlock doctor"},
	}
	ctx, cancel := context.WithTimeout(ctx, doctorBudget)
	defer cancel()
	var took []time.Duration
	_, err := d.Acquire(ctx, req)
	for range 10 {
		if err != nil {
			break
		}
		sent := time.Now()
		_, err = d.Renew(ctx, &driver.RenewRequest{Ref: req.Ref, TTL: req.TTL})
		took = append(took, time.Since(sent))
	}
	if end := d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref}); err == nil {
		err = end
	}
	switch {
	case errors.Is(err, driver.ErrAbstains):
		say("use", driver.Refuse, err.Error(), "no lock can be taken meanwhile", "wait")
		return
	case err != nil:
		say("use", driver.Refuse, err.Error(), "locks do not work", "see what is said of the nodes")
		return
	}
	say("use", driver.Fine, "acquire, renew and release work", "", "")
	slices.Sort(took)
	slowest := took[len(took)-1]
	found := fmt.Sprintf("the majority answers within %s, the slowest of %d took %s, with a TTL of %s", took[len(took)/2].Round(10*time.Microsecond), len(took),
		slowest.Round(10*time.Microsecond), ttl)
	if slowest > ttl/10 {
		say("round trip", driver.Caution, found, "a few slow renewals, and the lease is lost", "a TTL of "+(20*slowest).Round(time.Second).String()+" or more, or nearer nodes")
		return
	}
	if typical := took[len(took)/2]; typical > d.opts.NodeTimeout/firstTrips {
		enough := (firstTrips*typical + time.Second - 1).Truncate(time.Second)
		say("round trip", driver.Caution, fmt.Sprintf("%s and a NodeTimeout of %s", found, d.opts.NodeTimeout),
			fmt.Sprintf("a node that has restarted takes up to %d round trips for its first answer, so it is taken for one that hangs", firstTrips),
			fmt.Sprintf("a NodeTimeout of %s or more (holdlock --timeout %s), or nearer nodes", enough, greeting*enough))
		return
	}
	say("round trip", driver.Fine, found, "", "")
}
