package jobs

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/clusters/clustertest"
	"github.com/schedulemesh/schedulemesh/db"
	"github.com/schedulemesh/schedulemesh/testdb"
)

// fleet is stand-in clusters that are asked how they are, quicker than a Watcher would.
type fleet struct {
	ctx context.Context

	mu      sync.Mutex
	rays    map[string]*clusters.Ray
	known   map[string]clusters.Cluster
	shown   []clusters.Cluster
	changes map[chan struct{}]bool
}

const probeEvery = 40 * time.Millisecond

func newFleet(t *testing.T) *fleet {
	return &fleet{ctx: t.Context(), rays: map[string]*clusters.Ray{}, known: map[string]clusters.Cluster{}, changes: map[chan struct{}]bool{}}
}

func (f *fleet) add(name, url string, change ...func(*clusters.Cluster)) {
	ray := clusters.NewRay(url, nil, clusters.RayOptions{Timeout: time.Second})
	c := clusters.Cluster{Spec: clusters.Spec{Name: name, Weight: 1, Dashboard: url}, Status: clusters.Status{State: clusters.Unseen}}
	for _, do := range change {
		do(&c)
	}
	f.mu.Lock()
	f.rays[name], f.known[name] = ray, c
	f.mu.Unlock()
	f.probe(name, ray)
	go func() {
		for f.ctx.Err() == nil {
			time.Sleep(probeEvery)
			f.probe(name, ray)
		}
	}()
}

func (f *fleet) probe(name string, ray *clusters.Ray) {
	ctx, cancel := context.WithTimeout(f.ctx, 500*time.Millisecond)
	defer cancel()
	now, err := ray.Status(ctx)
	f.mu.Lock()
	c := f.known[name]
	if err != nil {
		if c.Status.State != clusters.Unseen {
			c.Status.State = clusters.Unhealthy
		}
		c.Status.Error, c.Status.At = err.Error(), time.Now()
	} else {
		c.Status = now
		c.Status.State, c.Status.Score, c.Status.At, c.Status.SeenAt = clusters.Healthy, 1, time.Now(), time.Now()
	}
	f.known[name] = c
	f.mu.Unlock()
	f.show()
}

func (f *fleet) show() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shown = nil
	for _, name := range slices.Sorted(maps.Keys(f.known)) {
		f.shown = append(f.shown, f.known[name])
	}
	for ch := range f.changes {
		poke(ch)
	}
}

func (f *fleet) All() []clusters.Cluster {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shown
}

func (f *fleet) Get(name string) (clusters.Cluster, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.known[name]
	return c, ok
}

func (f *fleet) Changes(context.Context) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	ch := make(chan struct{}, 1)
	f.changes[ch] = true
	return ch
}

func (f *fleet) client(name string) (Ray, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.rays[name]
	return r, ok
}

// lease is held by one service at a time.
type lease struct {
	mu      sync.Mutex
	holder  string
	changed chan struct{}
}

func (l *lease) give(to string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holder = to
	close(l.changed)
	l.changed = make(chan struct{})
}

// seen is a lease as one service sees it.
type seen struct {
	*lease
	me string
}

func (s seen) Contend(string) {}
func (s seen) Leads(string) (bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holder == s.me, s.changed
}
func (s seen) MayAct(string) bool { leads, _ := s.Leads(""); return leads }

// rig is a service on a database of its own, with stand-in clusters.
type rig struct {
	*Service
	t     *testing.T
	pool  *pgxpool.Pool
	fleet *fleet
	lease *lease
	o     Options
	stop  func() // and wait
}

func open(t *testing.T, change ...func(*Options)) *rig {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testdb.Migrated(t, db.Key(), db.Migrate))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	f := newFleet(t)
	r := &rig{t: t, pool: pool, fleet: f, lease: &lease{holder: "first", changed: make(chan struct{})}}
	r.o = Options{Fleet: f, Client: f.client, Deployment: "test", LostAfter: 700 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))}
	for _, do := range change {
		do(&r.o)
	}
	return r.begin("first")
}

// begin is a service under a name, on the same database and clusters.
func (r *rig) begin(name string) *rig {
	x := *r
	x.o.Leases = seen{r.lease, name}
	x.Service = Open(x.pool, x.o)
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan struct{})
	go func() { x.Run(ctx); close(done) }()
	x.stop = func() { cancel(); <-done }
	r.t.Cleanup(x.stop)
	return &x
}

// cluster adds a stand-in.
func (r *rig) cluster(name string, o clustertest.Options, change ...func(*clusters.Cluster)) *clustertest.Cluster {
	r.t.Helper()
	c := clustertest.New(r.t, o)
	r.fleet.add(name, c.URL, change...)
	return c
}

func (r *rig) submit(s Spec) Job {
	r.t.Helper()
	if s.Entrypoint == "" {
		s.Entrypoint = "python /a/x.py"
	}
	j, created, err := r.Submit(r.t.Context(), s)
	if err != nil || !created {
		r.t.Fatalf("%v, created %v: %s", err, created, sayErr(err))
	}
	return j
}

// becomes waits until a job is in a state, or in the way that ok says.
func (r *rig) becomes(id, state string, ok ...func(Job) bool) Job {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	yes := func(j Job) bool {
		return j.State == state && !slices.ContainsFunc(ok, func(f func(Job) bool) bool { return !f(j) })
	}
	j, err := r.Wait(ctx, id, yes)
	if err != nil {
		r.t.Fatal(err)
	}
	if !yes(j) {
		r.t.Fatalf("%s is %s (%s %s) on %q, attempt %d, tried %+v, and not %s\n%s", id, j.State, j.Code, j.Reason, j.Cluster, j.Attempt, j.Tried, state, r.story(id))
	}
	return j
}

func on(cluster string) func(Job) bool { return func(j Job) bool { return j.Cluster == cluster } }
func code(c string) func(Job) bool     { return func(j Job) bool { return j.Code == c } }

// story is a job's history in words.
func (r *rig) story(id string) string {
	events, err := r.Events(r.t.Context(), id)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for _, e := range events {
		lines = append(lines, strings.TrimSpace(e.Type+" "+e.Cluster+" "+e.Code+" "+e.Message))
	}
	return strings.Join(lines, "\n")
}

func (r *rig) kinds(id string) (out []string) {
	r.t.Helper()
	events, err := r.Events(r.t.Context(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range events {
		out = append(out, e.Type)
	}
	return out
}

func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("not in 20 s: %s", what)
		}
	}
}

// ids are the submissions that a cluster accepted, in order.
func ids(c *clustertest.Cluster) (out []string) {
	for _, s := range c.Accepted() {
		out = append(out, s.SubmissionID)
	}
	return out
}

func sayErr(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
