package sqlitehold

import (
	"database/sql"
	"encoding/json"
	"math"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A moment is one reading of the clocks. Everything in one step is judged by the same moment.
type moment struct {
	now  int64 // nanoseconds since boot
	wall time.Time
}

func (e *env) moment() moment { return moment{int64(e.now()), e.wall()} }

func (m moment) micro() int64 { return m.wall.UnixMicro() }

// after returns the clock d from now, or as far as it goes.
func (m moment) after(d time.Duration) int64 {
	if int64(d) > math.MaxInt64-m.now {
		return math.MaxInt64
	}
	return m.now + int64(d)
}

// A record is the row of a key.
type record struct {
	nonce    string
	state    int
	token    int64
	boot     string
	expiry   int64
	written  int64
	acquired int64
	used     int64
	holder   string
	broken   sql.NullString
	previous int
	prior    sql.NullString
}

func (w *writer) record(namespace, key string) (r record, known bool, err error) {
	known, err = w.row(describeStatement, []any{namespace, key}, &r.nonce, &r.state, &r.token, &r.boot, &r.expiry,
		&r.written, &r.acquired, &r.used, &r.holder, &r.broken, &r.previous, &r.prior)
	return r, known, err
}

func (r *record) term(key string, now int64) driver.Term {
	t := driver.Term{
		Key: key, Nonce: r.nonce, Token: driver.Token(r.token), Acquired: time.UnixMicro(r.acquired),
		Remaining: time.Duration(max(0, r.expiry-now)), Cooling: r.state == stateCooling, Broken: r.broken.String,
	}
	// It is for people only; if it cannot be read the rest is still worth showing.
	_ = json.Unmarshal([]byte(r.holder), &t.Holder)
	return t
}

// priorJSON is what acquireStatement writes to term.prior.
type priorJSON struct {
	Nonce    string `json:"nonce"`
	Token    uint64 `json:"token"`
	Holder   string `json:"holder"`
	Acquired int64  `json:"acquired"`
	Broken   string `json:"broken"`
}

// grant is the answer to an acquire, from the row as it is then.
func grant(key string, token int64, previous int, prior sql.NullString) driver.Grant {
	g := driver.Grant{Token: driver.Token(token), Previous: driver.Ending(previous)}
	if !prior.Valid {
		return g
	}
	var p priorJSON
	if json.Unmarshal([]byte(prior.String), &p) != nil {
		return g // for people only
	}
	g.Prior = &driver.Term{
		Key: key, Nonce: p.Nonce, Token: driver.Token(p.Token), Acquired: time.UnixMicro(p.Acquired), Broken: p.Broken,
	}
	_ = json.Unmarshal([]byte(p.Holder), &g.Prior.Holder)
	return g
}
