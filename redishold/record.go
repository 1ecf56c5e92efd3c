package redishold

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// The record of the job K is a string on the node of its slot: N:{:K}:d if it is done, else N:{:K}:j, so that the few jobs
// that need somebody are found by their names among the many that are done. It is changed by the scripts that start and end
// terms, and by settle.lua.
//
//	offset length
//	0      1   layout, "1"
//	1      1   state: O open, R running or, if its term is over, lapsed, S suspended, D done
//	2      1   why it is suspended: l a lapse, e an error, n the number of runs, else -
//	3      1   h if the last run is not to be followed by another one if it lapses, else -
//	4      1   what the last claim found: o open, l lapsed, - nothing
//	5      1   x if there was a result, too large to be kept, else -
//	6      16  from when on, µs since 1970, the record is as if it were not there; 0 if it is to last
//	22     16  token of the last run
//	38     16  when it was changed, µs
//	54     32  nonce of the last run; zeros once that has no more say
//	86     8   runs
//	94     8   lapses
//	102    28  lengths in bytes, of what follows without anything between: input, error, settled, 4 digits each; holder (JSON),
//	           result, 8 digits each
//
// All numbers are decimal. The key expires a second after the record does, and one that is to last ten years after it was
// last asked for.
const (
	recordHeader = 130
	maxHolder    = 99_999_999
	noNonce      = "00000000000000000000000000000000" // NOBODY of job.lua
	forever      = 10 * 365 * 24 * time.Hour          // what is to be kept for longer is kept until settled
)

// What the name of a record has more than that of its slot.
const (
	undoneEnd = ":j"
	doneEnd   = ":d"
)

// withRecord returns the keys that are a lock, and those that can be the record of the job.
func (d *Driver) withRecord(key string) []string {
	slot := d.slotKey(key)
	return []string{slot, slot + undoneEnd, slot + doneEnd}
}

// recordHead says whether s begins like a record. It is asked for every job, so it is no regular expression.
func recordHead(s string) bool {
	if len(s) < recordHeader || s[0] != '1' {
		return false
	}
	for i, signs := range [...]string{"ORSD", "-len", "-h", "-ol", "-x"} {
		if strings.IndexByte(signs, s[i+1]) < 0 {
			return false
		}
	}
	for i := 6; i < recordHeader; i++ {
		digit := s[i] >= '0' && s[i] <= '9'
		nonce := i >= 54 && i < 86 && s[i] >= 'a' && s[i] <= 'f'
		if !digit && !nonce {
			return false
		}
	}
	return true
}

// parseRecord reads a record. stands says whether the term of its last run does; whole, whether the result is in s.
func (d *Driver) parseRecord(key, s string, stands, whole bool) (j driver.Job, err error) {
	switch {
	case newer(s):
		return j, d.badRecord(key, "version")
	case !recordHead(s):
		return j, d.badRecord(key, "damaged")
	}
	number := func(from, to int) int64 {
		n, _ := strconv.ParseInt(s[from:to], 10, 64) // of digits, at most 16
		return n
	}
	j = driver.Job{
		Key: key, State: jobStates[s[1]], Why: jobCauses[s[2]], Before: jobBefore[s[4]], NoResult: s[5] == 'x',
		Token: driver.Token(number(22, 38)), Changed: time.UnixMicro(number(38, 54)),
		Runs: int(number(86, 94)), Lapses: int(number(94, 102)),
	}
	if j.State == driver.JobRunning && !stands {
		j.State = driver.JobLapsed
	}
	var texts [5]string // as in the table above, in that order
	at, lengths := recordHeader, 102
	for i, digits := range [...]int{4, 4, 4, 8, 8} {
		n := int(number(lengths, lengths+digits))
		lengths += digits
		if i == 4 && !whole {
			n = 0
		}
		if at+n > len(s) {
			return j, d.badRecord(key, "damaged")
		}
		texts[i] = s[at : at+n]
		at += n
	}
	if j.Holder, err = d.holder.parse(texts[3]); err != nil || at != len(s) {
		return j, d.badRecord(key, "damaged")
	}
	j.Input, j.Error, j.Settled = texts[0], texts[1], texts[2]
	// A settlement leaves no run that has a say, and counts none; nor does one that was undone.
	j.Judged = j.Settled != "" && s[54:86] == noNonce && (j.State == driver.JobDone || j.State == driver.JobOpen && j.Runs == 0)
	if texts[4] != "" {
		j.Result = []byte(texts[4])
	}
	return j, nil
}

var (
	jobStates = map[byte]driver.JobState{
		'O': driver.JobOpen, 'R': driver.JobRunning, 'S': driver.JobSuspended, 'D': driver.JobDone,
	}
	jobCauses = map[byte]driver.Cause{'-': driver.NoCause, 'l': driver.ByLapse, 'e': driver.ByError, 'n': driver.ByNumber}
	jobBefore = map[byte]driver.JobState{'o': driver.JobOpen, 'l': driver.JobLapsed}
)

// letter returns the sign of a value.
func letter[T comparable](signs map[byte]T, value T) string {
	for sign, v := range signs {
		if v == value {
			return string(sign)
		}
	}
	return "-"
}

// badRecord says why a record must not be acted upon. what is a word of the scripts.
func (d *Driver) badRecord(key, what string) error {
	at := d.slotKey(key) + undoneEnd + " or " + doneEnd
	kind := driver.ErrBadRecord
	switch what {
	case "version":
		kind = fmt.Errorf("%w: %w", kind, driver.ErrNewer)
		what = fmt.Sprintf("key %s was written by a newer holdlock, whose layout this one does not know; upgrade this program", at)
	case "kind":
		what = fmt.Sprintf("key %s is not of holdlock, but of another kind; choose another namespace", at)
	case "slot":
		what = fmt.Sprintf("whether it is running stands at key %s, which this holdlock cannot read; upgrade it if a newer one has written "+
			"that, else look at it, and delete it or use another namespace", d.slotKey(key))
	case "other":
		what = fmt.Sprintf("key %s is not that of the term that stands; somebody has changed it by hand", at)
	default:
		what = fmt.Sprintf("key %s is damaged; delete it once you know whether the job was done", at)
	}
	return fmt.Errorf("%w: %s (%w)", kind, what, driver.ErrNotApplied)
}

// keepMicros is for how long a record is to be kept, for the scripts: 0 is for ever.
func keepMicros(keep time.Duration) int64 {
	if keep > forever {
		return 0
	}
	return max(micros(keep), 1)
}
