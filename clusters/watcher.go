package clusters

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Book is what a Watcher needs of a Registry.
type Book interface {
	All() []Cluster
	Get(name string) (Cluster, bool)
	Changes(ctx context.Context) <-chan struct{}
	SaveStatus(ctx context.Context, statuses map[string]Status) error
	Sample(ctx context.Context, samples map[string]Sample) error
}

// WatcherOptions are the settings of a Watcher; the zero value is good.
type WatcherOptions struct {
	// OnStatus is called after each probe, for one cluster one call after the other, for several at once.
	OnStatus func(name string, before, now Status)
	// Jobs gives how many of our jobs are alive on a cluster: it is asked more often where there are some.
	Jobs     func(name string) int
	Metrics  prometheus.Registerer // nil: none
	Logger   *slog.Logger
	Busy     time.Duration // between probes where something happens; 2 s
	Idle     time.Duration // between probes elsewhere; 5 s
	Timeout  time.Duration // of one question of a probe; 5 s
	Parallel int           // probes at once; 128
	Sample   time.Duration // between points of a cluster's history; 15 s
}

const (
	saveEvery   = time.Second
	retryFailed = time.Second // after a probe that failed, while the breaker is closed
)

// Watcher has the clients of all clusters of a registry, and while it runs asks every cluster how it is. Every
// server has one; only on the one that looks after jobs it runs.
type Watcher struct {
	book  Book
	o     WatcherOptions
	gauge *gauges
	slots chan struct{}

	mu      sync.Mutex
	running bool
	all     map[string]*watched
}

// watched is one cluster, as long as its dashboard and its token are configured the same.
type watched struct {
	spec    Spec
	plain   *Ray // for probes
	client  *Ray // through the breaker
	breaker *breaker
	poke    chan struct{}
	stop    context.CancelFunc // nil: not probed

	// What follows is changed by its own probes alone, under the watcher's lock.
	status  Status
	dirty   bool      // since it was saved
	recent  []bool    // of the last probes, whether they failed
	latency float64   // smoothed, in seconds
	unknown time.Time // since when it does not say what is used
	restart time.Time // when its head was seen to have started anew
}

// NewWatcher makes a watcher; Run has it work.
func NewWatcher(book Book, o WatcherOptions) *Watcher {
	for d, fallback := range map[*time.Duration]time.Duration{&o.Busy: 2 * time.Second, &o.Idle: 5 * time.Second, &o.Timeout: 5 * time.Second, &o.Sample: 15 * time.Second} {
		if *d <= 0 {
			*d = fallback
		}
	}
	if o.Parallel <= 0 {
		o.Parallel = 128
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Watcher{book: book, o: o, gauge: newGauges(o.Metrics), slots: make(chan struct{}, o.Parallel), all: map[string]*watched{}}
}

// Run watches until ctx ends. It may be called again then.
func (w *Watcher) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var probing sync.WaitGroup
	defer w.clear(false)
	defer probing.Wait()
	defer cancel()
	w.clear(true)
	changes := w.book.Changes(ctx)
	save, sample := time.NewTicker(saveEvery), time.NewTicker(w.o.Sample)
	defer save.Stop()
	defer sample.Stop()
	for {
		w.reconcile(ctx, &probing)
		select {
		case <-ctx.Done():
			return
		case _, ok := <-changes:
			if !ok {
				changes = nil
			}
		case <-save.C:
			w.save(ctx)
		case <-sample.C:
			w.sample(ctx)
		}
	}
}

// clear begins anew, from what the registry says: how clusters are was another server's to say meanwhile.
func (w *Watcher) clear(running bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = running
	for name, c := range w.all {
		w.drop(name, c)
	}
}

// reconcile begins to probe what is new, and leaves what is gone.
func (w *Watcher) reconcile(ctx context.Context, probing *sync.WaitGroup) {
	all := w.book.All()
	w.mu.Lock()
	defer w.mu.Unlock()
	there := make(map[string]bool, len(all))
	for _, c := range all {
		there[c.Name] = true
		known := w.entry(c)
		if known.stop != nil {
			continue
		}
		probe, stop := context.WithCancel(ctx)
		known.stop = stop
		known.breaker.probed.Store(true)
		probing.Go(func() { w.watch(probe, c.Name, known) })
	}
	for name, c := range w.all {
		if !there[name] {
			w.drop(name, c)
		}
	}
}

// entry finds what belongs to a cluster, made anew when it is reached another way than before.
func (w *Watcher) entry(c Cluster) *watched {
	old := w.all[c.Name]
	if old != nil && old.spec.Dashboard == c.Dashboard && reflect.DeepEqual(old.spec.Token, c.Token) {
		return old
	}
	if old != nil {
		w.drop(c.Name, old)
		c.Status = Status{} // what was seen was seen elsewhere
	}
	if c.Status.State == "" {
		c.Status.State = Unseen
	}
	c.Status.Breaker = Closed
	var token func() (string, error)
	if c.Token != nil {
		token = c.Token.Read
	}
	known := &watched{spec: c.Spec, breaker: newBreaker(firstDelay), poke: make(chan struct{}, 1), status: c.Status, dirty: old != nil}
	known.plain = NewRay(c.Dashboard, token, RayOptions{Timeout: w.o.Timeout})
	gated := *NewRay(c.Dashboard, token, RayOptions{})
	gated.gate = known.breaker
	known.client = &gated
	w.all[c.Name] = known
	return known
}

func (w *Watcher) drop(name string, c *watched) {
	if c.stop != nil {
		c.stop()
	}
	c.breaker.probed.Store(false) // who still holds the client is not kept from anything
	c.plain.Close()
	c.client.Close()
	delete(w.all, name)
	w.gauge.forget(name)
}

// Poke has a cluster probed now, unless its breaker is open.
func (w *Watcher) Poke(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.all[name]; c != nil {
		select {
		case c.poke <- struct{}{}:
		default:
		}
	}
}

// Status is how a cluster was when it was last asked from here; not ok where Run does not.
func (w *Watcher) Status(name string) (s Status, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.all[name]
	if c == nil || c.stop == nil {
		return Status{}, false
	}
	return c.status, true
}

// Client gives the client of a cluster that is configured. Where Run works it goes through the breaker: while that
// is open calls fail at once, with an error that is ErrOpen and says that nothing was sent.
func (w *Watcher) Client(name string) (*Ray, bool) {
	c, ok := w.book.Get(name)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !ok {
		if old := w.all[name]; old != nil && !w.running {
			w.drop(name, old)
		}
		return nil, false
	}
	return w.entry(c).client, true
}

// watch probes one cluster at its pace.
func (w *Watcher) watch(ctx context.Context, name string, c *watched) {
	for pause := time.Duration(0); ; {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-c.poke:
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case w.slots <- struct{}{}:
		}
		pause = w.probe(ctx, name, c)
		<-w.slots
	}
}

// probe asks once, and gives the time until the next probe.
func (w *Watcher) probe(ctx context.Context, name string, c *watched) time.Duration {
	var measured Status
	began := time.Now()
	asked, err := c.breaker.probe(ctx, func() (err error) {
		measured, err = c.plain.Status(ctx)
		return err
	})
	if ctx.Err() != nil {
		return 0
	}
	now := time.Now()
	if !asked {
		_, retry := c.breaker.state(now)
		return max(retry.Sub(now), 10*time.Millisecond)
	}
	w.mu.Lock()
	if w.all[name] != c { // it went meanwhile
		w.mu.Unlock()
		return 0
	}
	before := c.status
	c.learn(measured, err, now)
	after := c.status
	w.gauge.probed(name, now.Sub(began), err != nil, after)
	w.mu.Unlock()
	if before.State != after.State {
		w.o.Logger.Info("cluster is now "+after.State, "cluster", name, "was", before.State, "error", after.Error)
	}
	if w.o.OnStatus != nil {
		w.o.OnStatus(name, before, after)
	}
	switch {
	case after.Breaker != Closed:
		return max(after.RetryAt.Sub(now), 10*time.Millisecond)
	case err != nil:
		return jittered(retryFailed)
	case !after.Used.IsZero() || w.o.Jobs != nil && w.o.Jobs(name) > 0:
		return jittered(w.o.Busy)
	}
	return jittered(w.o.Idle)
}

// jittered keeps clusters from being asked all at the same moment.
func jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.85 + 0.3*rand.Float64()))
}

// learn makes the next status of what a probe brought.
func (c *watched) learn(measured Status, err error, now time.Time) {
	before := c.status
	next := measured
	if err != nil {
		next = before
		next.State, next.Error = Unhealthy, describe(err)
		if measured.Version != "" { // it answered, if not well
			next.Version, next.Session = measured.Version, measured.Session
		}
	} else {
		next.State, next.SeenAt = Healthy, now
		switch {
		case before.Session != "" && before.Session != next.Session:
			c.restart = now
		case !next.UsageKnown: // the last that was known is nearer than nothing
			next.Used = before.Used.Min(next.Total)
		}
		if next.UsageKnown {
			c.unknown = time.Time{}
		} else if c.unknown.IsZero() {
			c.unknown = now
		}
		if c.latency == 0 {
			c.latency = measured.Latency.Seconds()
		}
		c.latency += 0.3 * (measured.Latency.Seconds() - c.latency)
	}
	next.At = now
	next.Since = before.Since
	if next.State != before.State || next.Since.IsZero() {
		next.Since = now
	}
	c.recent = append(c.recent, err != nil)
	c.recent = c.recent[max(len(c.recent)-recentProbes, 0):]
	next.Breaker, next.RetryAt = c.breaker.state(now)
	next.Score, next.Reasons = health(c.vitals(next, now))
	c.status, c.dirty = next, true
}

// describe says what is wrong with a cluster without saying where it is, which those who read it know.
func describe(err error) string {
	var call *CallError
	if errors.As(err, &call) {
		return call.Err.Error()
	}
	return err.Error()
}

func (c *watched) vitals(s Status, now time.Time) vitals {
	v := vitals{
		healthy: s.State == Healthy, problem: s.Error, silent: now.Sub(s.SeenAt), never: s.SeenAt.IsZero(), probes: len(c.recent),
		latency: time.Duration(c.latency * float64(time.Second)), restarts: !c.restart.IsZero(), restart: now.Sub(c.restart),
	}
	for _, failed := range c.recent {
		if failed {
			v.failed++
		}
	}
	if !c.unknown.IsZero() {
		v.unknown = now.Sub(c.unknown)
	}
	for _, n := range s.Nodes {
		if n.Alive {
			v.nodes++
		} else {
			v.dead++
		}
	}
	return v
}

// save has the registry keep what changed since it was saved last.
func (w *Watcher) save(ctx context.Context) {
	w.mu.Lock()
	changed := map[string]Status{}
	for name, c := range w.all {
		if c.dirty {
			changed[name] = c.status
			c.dirty = false
		}
	}
	w.mu.Unlock()
	if len(changed) == 0 {
		return
	}
	err := w.book.SaveStatus(ctx, changed)
	if err == nil || ctx.Err() != nil {
		return
	}
	w.o.Logger.Warn("how clusters are could not be saved; it is tried again", "error", err)
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range changed {
		if c := w.all[name]; c != nil {
			c.dirty = true
		}
	}
}

// sample has the registry keep a point of each cluster's history.
func (w *Watcher) sample(ctx context.Context) {
	now := time.Now()
	points := map[string]Sample{}
	w.mu.Lock()
	for name, c := range w.all {
		if c.stop != nil && c.status.State != Unseen {
			points[name] = Sample{At: now, Score: c.status.Score, Total: c.status.Total, Used: c.status.Used}
		}
	}
	w.mu.Unlock()
	for name, p := range points {
		if w.o.Jobs != nil {
			p.Jobs = w.o.Jobs(name)
			points[name] = p
		}
	}
	if len(points) == 0 {
		return
	}
	if err := w.book.Sample(ctx, points); err != nil && ctx.Err() == nil {
		w.o.Logger.Warn("a point of the history of clusters could not be saved", "error", err)
	}
}
