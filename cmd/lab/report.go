package lab

import (
	"time"

	"github.com/holdlock/holdlock/cmd/lab/resource"
)

// A Report is what a run of the lab has found.
type Report struct {
	Seed        uint64        `json:"seed"`
	Full        bool          `json:"full"`
	Took        time.Duration `json:"took_ns"`
	Experiments []Experiment  `json:"experiments"`
}

// An Experiment is one mechanism under one fault.
type Experiment struct {
	Mechanism Mechanism       `json:"mechanism"`
	Fault     Fault           `json:"fault"`
	NotRun    string          `json:"not_run,omitempty"` // why, if it was not
	Counts    resource.Counts `json:"counts"`            // of all cases
	Trials    int             `json:"trials"`            // of each case
	// Surprise says what is not as it must be; empty if all is. An experiment that has failed is one.
	Surprise string        `json:"surprise,omitempty"`
	Cases    []Case        `json:"cases,omitempty"`
	Took     time.Duration `json:"took_ns"`

	inapplicable bool
}

// A Case is one schedule that was carried out.
type Case struct {
	Title    string          `json:"title"`
	Job      string          `json:"job"`
	Repeated int             `json:"repeated,omitempty"` // how often it was void before, because the machine was too slow
	Expiry   time.Duration   `json:"expiry_ns"`          // of the lock that is to expire
	Counts   resource.Counts `json:"counts"`
	Events   []Event         `json:"events"`
}

// An Event is one point of a timeline.
type Event struct {
	At    time.Duration `json:"at_ns"` // since the case began
	Who   string        `json:"who"`   // a worker, or "lab" for what the lab did to them and to the servers
	What  string        `json:"what"`
	Text  string        `json:"text,omitempty"`
	Until time.Duration `json:"until_ns,omitempty"` // until when the worker believed then to hold the lock; see resource.Entry
	Token uint64        `json:"token,omitempty,string"`
}

// What events are about, besides the outcomes of steps in package worker.
const (
	Asks      = "asks"
	Waits     = "waits" // inside the server, for a transaction that is under way
	Begins    = "begins"
	Writes    = "writes"
	Stale     = "writes, stale" // accepted, although a later run had begun
	IsRefused = "is refused"    // by the resource
	Ends      = "ends"
	GivesUp   = "stops" // because the lock is lost, or by itself
	Releases  = "releases"
	Stopped   = "stopped"
	Continued = "continued"
	WasKilled = "killed"
	Happens   = "fault" // to a server

	RolledBack = "rolled back" // later; the resource has never seen it
)
