// Package clustertest is a stand-in for the dashboard of a Ray cluster, for tests: jobs that take room and
// come to an end, and every way in which a dashboard can misbehave.
package clustertest

import (
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
)

// Options say what the cluster is like. The zero value is one node with 4 CPUs and 8 GiB.
type Options struct {
	CPUs, GPUs float64
	Memory     int64              // bytes
	Resources  map[string]float64 // custom ones
	Nodes      int                // machines, each with all of the above; 1 when zero
	Version    string             // of Ray; "2.60.0" when empty
	Token      string             // wanted as a bearer token; "" for none
	Run        time.Duration      // how long a job runs before it succeeds; 0: until the test ends it
	StopTakes  time.Duration      // from stop to STOPPED
	UsageEvery time.Duration      // how old the figures of usage may be; 0: they are always true
}

// Cluster is a stand-in that runs.
type Cluster struct {
	URL string // of its dashboard
}

// New starts a stand-in, which ends with the test.
func New(t testing.TB, o Options) *Cluster { return &Cluster{} }

// Submitted is one submission that was accepted.
type Submitted struct {
	clusters.Submission
	At time.Time
}
