package jobs

import (
	"context"

	"github.com/schedulemesh/schedulemesh/ledger"
)

// Errors that callers can do something about. As in the ledger the Code is stable, and
// what is wrong with single fields of a Spec is in Fields ("invalid").
var (
	ErrUnknownJob  = &ledger.Error{Code: "unknown_job"}
	ErrJobExists   = &ledger.Error{Code: "job_exists"}              // the submission_id is another job's
	ErrImpossible  = &ledger.Error{Code: "no_cluster_large_enough"} // no cluster could ever take it; Detail is a Placement
	ErrNoClusters  = &ledger.Error{Code: "no_clusters"}             // none is configured
	ErrUnreachable = &ledger.Error{Code: "cluster_unreachable"}     // the cluster it is on does not answer
)

// Log is a piece of what a job printed, in UTF-8.
type Log struct {
	Text  string
	Next  int64 // offset in bytes behind Text
	Ended bool  // the job is over and Next is the end
	Kept  bool  // of the end that we kept, since the cluster does not have it any more
}

// API is what may be done with jobs, on every server of a database. All methods are
// safe for concurrent use; their errors are *ledger.Error where the caller can do something.
type API interface {
	// Submit takes a job: it is on disk when this returns. created is false when the same job was there.
	Submit(ctx context.Context, s Spec) (j Job, created bool, err error)
	// Job reads one.
	Job(ctx context.Context, submissionID string) (Job, error)
	// Wait reads one as soon as until says yes, or when ctx ends, which is no error.
	Wait(ctx context.Context, submissionID string, until func(Job) bool) (Job, error)
	// Find lists jobs, newest first.
	Find(ctx context.Context, f Filter) (Page, error)
	// Live counts the jobs that have not ended, by cluster ("": nowhere yet) and state.
	Live(ctx context.Context) (map[string]map[string]int, error)
	// Stop has a job stopped; one that is over already is just answered.
	Stop(ctx context.Context, submissionID, actor string) (Job, error)
	// Events is a job's history, oldest first.
	Events(ctx context.Context, submissionID string) ([]Event, error)
	// Logs reads at most limit bytes of what a job printed from an offset on; a negative offset counts from the end.
	Logs(ctx context.Context, submissionID string, offset, limit int64) (Log, error)
	// Follow hands over what a job prints from an offset on, until it is over, give fails or ctx ends.
	Follow(ctx context.Context, submissionID string, offset int64, give func(Log) error) error
	// Outside lists what others started on a cluster ("": on all), newest first, at most limit.
	Outside(ctx context.Context, cluster string, limit int) ([]Outside, error)
	// Changes is signalled (at least once after the last change) whenever a job or the state of a cluster
	// changed, on whatever server, until ctx ends.
	Changes(ctx context.Context) <-chan Change
}

// Change says what changed.
type Change int

// What may change.
const (
	JobsChanged Change = iota
	ClustersChanged
)
