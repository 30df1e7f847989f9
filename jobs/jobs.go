// Package jobs is what becomes of a submitted job: where it goes, how it is submitted
// there once and not twice, how it is followed to its end.
//
// Jobs are rows; one server at a time, the one with the lease, moves them on, all may
// take and show them. Where a job goes is decided by place.go alone, which is pure. The package
// must not know HTTP requests to us or pages; what Ray's answers mean is in package clusters.
package jobs

import (
	"encoding/json"
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
)

// States of a job. The first two are ours, before Ray knows of it, the rest are Ray's, and UNKNOWN
// that the cluster it is on does not answer.
const (
	Queued     = "QUEUED"
	Submitting = "SUBMITTING"
	Pending    = "PENDING"
	Running    = "RUNNING"
	Unknown    = "UNKNOWN"
	Succeeded  = "SUCCEEDED"
	Failed     = "FAILED"
	Stopped    = "STOPPED"
)

// Ended reports whether a job in this state is over.
func Ended(state string) bool { return state == Succeeded || state == Failed || state == Stopped }

// What is reserved for a job that has requirements.
const (
	ReserveEntrypoint = "entrypoint" // Ray keeps them for the entrypoint's process
	ReserveNone       = "none"       // nothing: the job's own Ray tasks and actors use them; they count where jobs are placed
)

// What a job may be tried again after.
const (
	ClusterLost = "cluster_lost" // its cluster did not answer for long, or its head started anew
	NodeLost    = "node_lost"    // the node its entrypoint ran on is gone
)

// Spec is what somebody asks for.
type Spec struct {
	Entrypoint       string
	SubmissionID     string            // "": one is made, sub_…
	JobID            string            // "": one is made, job_…; need not be unique
	RuntimeEnv       json.RawMessage   // an object; nil: none
	Metadata         map[string]string // what the caller said, without what we add in Ray
	Tags             []string
	PreferredCluster string
	Requirements     sched.Resources // on one machine with ReserveEntrypoint
	Reserve          string          // "": ReserveEntrypoint
	Priority         sched.Milli     // 5 unless said; in the queue alone
	QueueTimeout     time.Duration   // 0: waits for ever
	MaxRetries       int
	RetryOn          []string // ClusterLost, NodeLost; nil with MaxRetries > 0: both
	SubmittedBy      string
}

// Job is a job and what became of it. It is a value that nobody changes.
type Job struct {
	UID sched.ID
	Spec
	State           string
	Code            string // why, for programs; "" when things just went well
	Reason          string // why, for people
	Attempt         int    // from 1
	Cluster         string // where it is, or was last; "": nowhere yet
	RayID           string // its submission_id in Ray: SubmissionID, with the attempt behind it after the first
	Session         string // of the Ray head that accepted it
	MergedEnv       json.RawMessage
	Placement       *Placement // of the last placement; while it waits, of the last try
	Tried           []Tried    // clusters that did not take this attempt
	StopRequestedBy string
	StopRequestedAt *time.Time
	ExitCode        *int
	ErrorType       string
	Message         string // Ray's
	LogTail         string // the end of what it printed, kept when it ended; not in lists
	CreatedAt       time.Time
	QueuedAt        time.Time
	PlacedAt        *time.Time
	AcceptedAt      *time.Time
	StartedAt       *time.Time
	EndedAt         *time.Time
	Rev             int64
	QueuePosition   int      // from 1 while it waits; else 0
	Notes           []string // what the caller should know of how it was taken, such as an unknown preferred cluster
}

// Tried is a cluster that did not take a submission.
type Tried struct {
	Cluster string    `json:"cluster"`
	Why     string    `json:"why"`
	At      time.Time `json:"at"`
	Refused bool      `json:"refused"` // it said no; else it just did not answer, and may be asked again
}

// Event is one line of a job's history.
type Event struct {
	ID      int64
	At      time.Time
	Type    string // a state in lower case, or placed, submit_failed, lost, found_again, retry, stop_requested, stray_stopped
	Actor   string
	Attempt int
	Cluster string
	Code    string
	Message string
	Detail  json.RawMessage
}

// Outside is a job that others started on one of our clusters.
type Outside struct {
	Cluster    string
	RayID      string
	Kind       string // SUBMISSION, DRIVER
	Entrypoint string
	State      string
	Message    string
	Metadata   map[string]string
	StartedAt  *time.Time
	EndedAt    *time.Time
	SeenAt     time.Time
}

// Filter selects jobs. The zero value selects all, newest first.
type Filter struct {
	States   []string
	Cluster  string
	JobID    string
	Tags     []string          // all of them
	Metadata map[string]string // all of them
	Text     string            // in submission_id, job_id or entrypoint of the newest 50,000 jobs
	After    time.Time         // created at or after
	Before   time.Time         // created before
	Limit    int
	Cursor   string
}

// Page is one page of a list of jobs; Next is the cursor of the next.
type Page struct {
	Items []Job
	Next  string
	Total int            // of all pages, by state and all other filters; at most MostCounted of each state, and with a filter among the newest 50,000
	Count map[string]int // by state, of the other filters alone
}
