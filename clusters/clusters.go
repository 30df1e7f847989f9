// Package clusters knows the Ray clusters that jobs may go to: how they are
// configured, how they are, how much room they have, and how to speak to them.
//
// It reads clusters.yaml and what was changed since, asks each cluster's dashboard
// how it is, and is the client of Ray's Jobs REST. It decides nothing about jobs, and
// it must not know what a job of ours is, HTTP requests to us, or pages.
package clusters

import (
	"encoding/json"
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
)

// Spec is what is configured of a cluster. Its JSON is what the database keeps and
// what REST shows.
type Spec struct {
	Name        string          `json:"name"`
	HeadAddress string          `json:"head_address"`           // host:port of Ray Client or GCS; its host is the dashboard's unless that is given
	Dashboard   string          `json:"dashboard"`              // URL; never empty in a Spec that was read
	RuntimeEnv  json.RawMessage `json:"runtime_env,omitempty"`  // an object; env_vars always as a map
	Prefer      bool            `json:"prefer"`                 // a bonus where jobs are placed
	Weight      float64         `json:"weight"`                 // factor where jobs are placed; 1 when not given, above 0
	Tags        []string        `json:"tags,omitempty"`         // a bonus for jobs that share some
	Token       *Secret         `json:"token,omitempty"`        // sent as a bearer token
	Most        sched.Resources `json:"max_resources,omitzero"` // what it can grow to; the larger of this and what it has counts for "could ever"
}

// Secret says where a secret is; it is never kept or shown itself. One of both is set.
type Secret struct {
	Env  string `json:"env,omitempty"`
	File string `json:"file,omitempty"`
}

// Where a Spec in force was said.
const (
	FromFile  = "file"  // clusters.yaml
	FromAPI   = "api"   // REST, a page, the Python client
	FromLocal = "local" // the cluster whose agents this deployment runs
)

// Hold says that a cluster gets no new jobs.
type Hold struct {
	Held   bool       `json:"held"`
	Reason string     `json:"reason"`
	Actor  string     `json:"actor"`
	Since  *time.Time `json:"since"`
}

// Cluster is one cluster as it is configured and as it was last seen. It is a value
// that nobody changes.
type Cluster struct {
	Spec
	Source string
	Rev    int64 // counts changes of Spec and Hold
	Hold   Hold
	Status Status
}

// How a cluster is.
const (
	Healthy   = "healthy"   // jobs may go there
	Unhealthy = "unhealthy" // it does not answer, answers nonsense, or is another version than we speak
	Unseen    = "unseen"    // was not asked yet
)

// What the circuit breaker of a cluster does.
const (
	Closed   = "closed"    // lets everything through
	Open     = "open"      // lets nothing through until its delay is over
	HalfOpen = "half_open" // lets one probe through
)

// Status is how a cluster was when it was last asked. Its JSON is what the database keeps.
type Status struct {
	State      string          `json:"state"`             // Healthy, Unhealthy, Unseen
	Since      time.Time       `json:"since,omitzero"`    // of the state
	At         time.Time       `json:"at,omitzero"`       // of the last try
	SeenAt     time.Time       `json:"seen_at,omitzero"`  // of the last answer that could be used; what follows is of then
	Error      string          `json:"error,omitempty"`   // of the last try, a sentence for people
	Version    string          `json:"version,omitempty"` // of Ray
	Session    string          `json:"session,omitempty"` // of the head: another one means that every job it had is gone
	Total      sched.Resources `json:"total,omitzero"`
	Used       sched.Resources `json:"used,omitzero"`
	UsageKnown bool            `json:"usage_known"` // Ray says what is used only some seconds after its start
	Nodes      []Node          `json:"nodes,omitempty"`
	Latency    time.Duration   `json:"latency,omitempty"` // of the last answer
	Score      float64         `json:"score"`             // 0 to 1; 0 unless Healthy
	Reasons    []string        `json:"reasons,omitempty"` // why the score is not 1, the weightiest first
	Breaker    string          `json:"breaker"`           // Closed, Open, HalfOpen
	RetryAt    time.Time       `json:"retry_at,omitzero"` // of the next probe while Open
}

// Node is one machine of a cluster.
type Node struct {
	ID      string          `json:"id"`
	Address string          `json:"address"`
	Head    bool            `json:"head,omitempty"`
	Alive   bool            `json:"alive"`
	Total   sched.Resources `json:"total,omitzero"`
	Used    sched.Resources `json:"used,omitzero"`
}

// Could is the most that a cluster has or may grow to.
func (c Cluster) Could() sched.Resources { return c.Status.Total.Max(c.Most) }

// Sample is one point of a cluster's history.
type Sample struct {
	At    time.Time
	Score float64
	Total sched.Resources
	Used  sched.Resources
	Jobs  int
}
