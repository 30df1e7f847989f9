// Package clustertest is a stand-in for the dashboard of a Ray cluster, for tests: jobs that take room and
// come to an end, and the ways in which a dashboard can misbehave. It answers what package clusters asks as
// Ray 2.60 does; a test in clusters runs against both.
package clustertest

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
)

// Options say what the cluster is like. The zero value is one node with 4 CPUs and 8 GiB, on which jobs run until
// the test ends them.
type Options struct {
	CPUs, GPUs float64
	Memory     int64              // bytes
	Resources  map[string]float64 // custom ones
	Nodes      int                // machines, each with all of the above; 1 when zero
	Version    string             // of Ray; 2.60.0 when empty
	Token      string             // wanted as a bearer token; "": none
	StartTakes time.Duration      // from a submission that fits to RUNNING
	StopTakes  time.Duration      // from a stop to STOPPED
	Run        time.Duration      // how long a job runs before it succeeds; 0: until the test ends it
	// Fate says how a job goes on, in place of Run.
	Fate func(s clusters.Submission) Fate
	// FarAgents has the agents of the nodes, which know byte ranges of logs, out of reach.
	FarAgents bool
}

// Fate is how a job goes on once it runs.
type Fate struct {
	After  time.Duration // until it ends; 0: until the test ends it
	Status string        // SUCCEEDED when empty
	Prints string        // at its start
}

// Submitted is one submission that was accepted.
type Submitted struct {
	clusters.Submission
	At time.Time
}

// Cluster is a stand-in that runs. All methods are safe for concurrent use.
type Cluster struct {
	URL string // of its dashboard

	t       testing.TB
	o       Options
	address string
	mux     *http.ServeMux
	ended   atomic.Bool

	mu       sync.Mutex
	server   *http.Server // nil while it is down
	listener net.Listener
	session  string
	token    string
	noUsage  bool
	nodes    []*node
	jobs     map[string]*job
	order    []*job // as submitted
	accepted []Submitted
	calls    []string
	faults   []*armed
	packages map[string][]byte
}

var made atomic.Int64

// New starts a stand-in, which ends with the test.
func New(t testing.TB, o Options) *Cluster {
	t.Helper()
	if o.CPUs == 0 && o.GPUs == 0 && o.Memory == 0 && o.Resources == nil {
		o.CPUs, o.Memory = 4, 8<<30
	}
	o.Nodes = max(o.Nodes, 1)
	if o.Version == "" {
		o.Version = "2.60.0"
	}
	c := &Cluster{t: t, o: o, token: o.Token, packages: map[string][]byte{}}
	c.begin()
	c.mux = c.routes()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.address = listener.Addr().String()
	c.URL = "http://" + c.address
	c.serve(listener)
	t.Cleanup(func() {
		c.ended.Store(true)
		c.Down()
	})
	return c
}

// begin is a new life of the head: it knows nothing of what was.
func (c *Cluster) begin() {
	n := made.Add(1)
	c.session = fmt.Sprintf("session_%s_%d", time.Now().Format("2006-01-02_15-04-05_000000"), n)
	c.jobs, c.order, c.nodes = map[string]*job{}, nil, nil
	for i := range c.o.Nodes {
		c.nodes = append(c.nodes, &node{id: fmt.Sprintf("%08x%048x", n, i), address: fmt.Sprintf("127.0.0.%d", i+1), alive: true, used: map[string]float64{}})
	}
}

func (c *Cluster) serve(listener net.Listener) {
	server := &http.Server{Handler: http.HandlerFunc(c.handle), ReadHeaderTimeout: time.Minute}
	c.mu.Lock()
	c.server, c.listener = server, listener
	c.mu.Unlock()
	go func() { _ = server.Serve(listener) }()
}

// Down closes the dashboard: connections are refused, and those that are open cut. Jobs go on.
func (c *Cluster) Down() {
	c.mu.Lock()
	server, listener := c.server, c.listener
	c.server = nil
	c.mu.Unlock()
	if server != nil {
		_ = listener.Close() // the server may not know it yet
		_ = server.Close()
	}
}

// Up opens the dashboard again, at the same address.
func (c *Cluster) Up() {
	c.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		listener, err := net.Listen("tcp", c.address)
		if err == nil {
			c.serve(listener)
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// NewSession starts the head anew: all its jobs are gone.
func (c *Cluster) NewSession() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.order {
		j.forget()
	}
	c.begin()
}

// SetToken has another bearer token wanted; "" for none.
func (c *Cluster) SetToken(token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = token
}

// HideUsage has the cluster not say what is used, as in Ray's first seconds.
func (c *Cluster) HideUsage(hide bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noUsage = hide
}

// KillNode takes a machine away; what runs on it fails.
func (c *Cluster) KillNode(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[i]
	n.alive, n.diedAt = false, time.Now()
	for _, j := range c.order {
		if j.on == n && !j.over() {
			c.end(j, clusters.RayFailed, "Job failed because the node it ran on died.", nil)
		}
	}
}

// Session is the name of the head's life.
func (c *Cluster) Session() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

// Accepted gives all submissions that were accepted, in all sessions, in order: for "never twice".
func (c *Cluster) Accepted() []Submitted {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.accepted)
}

// Package gives what was uploaded under a name.
func (c *Cluster) Package(name string) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	data, ok := c.packages[name]
	return data, ok
}
