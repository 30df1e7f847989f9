// Package agents is the worker pool between the ledger and Ray: it turns the
// ledger's intents into agents in a cluster, and reports back what happened.
//
// The ledger's rows are the truth; a job is only their announcement. Every step
// here may be repeated: launches are idempotent by launch id, reports name the
// attempt they are about. Agents knows the ledger and the bridge; it must not know
// HTTP, SQL or how a decision is made.
package agents

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// Options of a worker pool.
type Options struct {
	Ledger  *ledger.Ledger
	Bridge  bridge.Bridge
	Cluster string // default "local"
	// URL is what the claim inside Ray says about where the server answers.
	URL string
	// Workers bounds launches under way at once, default 256.
	Workers int
	// Grace is how long a launch waits for a sidecar that is down before it fails, default 15 s.
	Grace time.Duration
	// Figures receives what agents report about themselves; nil drops it.
	Figures func(ctx context.Context, namespace, agent string, figures json.RawMessage) error
	Metrics *Metrics
	Logger  *slog.Logger
}

// Pool carries out jobs on one cluster.
type Pool struct {
	o      Options
	l      *ledger.Ledger
	b      bridge.Bridge
	log    *slog.Logger
	slots  chan struct{}
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	up      atomic.Bool
	hello   atomic.Pointer[bridge.Hello] // of the cluster that was claimed last
	upMu    sync.Mutex
	upCh    chan struct{} // closed when up
	downErr error

	mu     sync.Mutex
	active map[activeKey]bool
}

type activeKey struct {
	kind    ledger.JobKind
	uid     sched.ID
	attempt int
}

// Timings of the loops.
const (
	workEvery      = 3 * time.Second
	nodesEvery     = 5 * time.Second
	reconcileEvery = 30 * time.Second
	slowLaunch     = 40 * time.Millisecond // a launch that takes longer is shown as launching
	killTimeout    = 30 * time.Second
)

// New makes a pool that does nothing until Start.
func New(o Options) *Pool {
	o = o.withDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	return &Pool{o: o, l: o.Ledger, b: o.Bridge, log: o.Logger, slots: make(chan struct{}, o.Workers), ctx: ctx, cancel: cancel,
		upCh: make(chan struct{}), active: map[activeKey]bool{}}
}

func (o Options) withDefaults() Options {
	if o.Cluster == "" {
		o.Cluster = "local"
	}
	if o.Workers == 0 {
		o.Workers = 256
	}
	if o.Grace == 0 {
		o.Grace = 15 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Start connects to the sidecar and begins to work.
func (p *Pool) Start() {
	p.wg.Go(p.follow)
	p.wg.Go(p.tick)
}

// Stop leaves agents running in Ray; who works on them next finds what is unfinished.
func (p *Pool) Stop(ctx context.Context) error {
	p.cancel()
	done := make(chan struct{})
	go func() { p.wg.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Up reports whether the sidecar answers, and why not.
func (p *Pool) Up() (bool, error) {
	p.upMu.Lock()
	defer p.upMu.Unlock()
	return p.up.Load(), p.downErr
}

func (p *Pool) setUp(hello bridge.Hello) {
	p.hello.Store(&hello)
	p.upMu.Lock()
	defer p.upMu.Unlock()
	if !p.up.Swap(true) {
		close(p.upCh)
	}
	p.downErr = nil
}

func (p *Pool) setDown(err error) {
	p.upMu.Lock()
	defer p.upMu.Unlock()
	p.downErr = err
	if p.up.Swap(false) {
		p.upCh = make(chan struct{})
	}
}

// waitUp waits until the sidecar answers, at most d.
func (p *Pool) waitUp(d time.Duration) bool {
	p.upMu.Lock()
	ch := p.upCh
	p.upMu.Unlock()
	if p.up.Load() {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ch:
		return true
	case <-t.C:
	case <-p.ctx.Done():
	}
	return false
}

// Enqueue takes jobs; it never blocks. A job that is already under way is dropped.
func (p *Pool) Enqueue(jobs []ledger.Job) {
	for _, j := range jobs {
		if p.ctx.Err() != nil {
			return
		}
		k := activeKey{j.Kind, j.UID, j.Attempt}
		p.mu.Lock()
		busy := p.active[k]
		p.active[k] = true
		p.mu.Unlock()
		if busy {
			continue
		}
		p.wg.Go(func() {
			defer func() {
				p.mu.Lock()
				delete(p.active, k)
				p.mu.Unlock()
			}()
			switch j.Kind {
			case ledger.JobLaunch:
				select {
				case p.slots <- struct{}{}:
					defer func() { <-p.slots }()
				case <-p.ctx.Done():
					return
				}
				p.launch(j)
			case ledger.JobTake:
				p.take(j)
			case ledger.JobStop:
				p.stop(j)
			case ledger.JobMakeGroup:
				p.makeGroup(j)
			case ledger.JobDropGroup:
				p.dropGroup(j)
			}
		})
	}
}

// tick runs what happens on timers.
func (p *Pool) tick() {
	work, nodes, reconcile := time.NewTicker(workEvery), time.NewTicker(nodesEvery), time.NewTicker(reconcileEvery)
	defer work.Stop()
	defer nodes.Stop()
	defer reconcile.Stop()
	p.claimWork()
	for {
		select {
		case <-work.C:
			p.claimWork()
		case <-nodes.C:
			if p.up.Load() {
				p.complain("reading nodes", p.readNodes())
			}
		case <-reconcile.C:
			if p.up.Load() {
				p.complain("reconciling", p.reconcile())
			}
		case <-p.ctx.Done():
			return
		}
	}
}

func (p *Pool) complain(what string, err error) {
	if err != nil && p.ctx.Err() == nil {
		p.log.Warn(what+" failed", "cluster", p.o.Cluster, "error", err)
	}
}

// claimWork finds what a server before this one left, and jobs that were lost on the way.
func (p *Pool) claimWork() {
	jobs, err := p.l.Work(p.ctx)
	p.complain("claiming work", err)
	p.Enqueue(jobs)
}

func (p *Pool) readNodes() error {
	nodes, err := p.b.Nodes(p.ctx)
	if err != nil {
		return err
	}
	var out []sched.Node
	for _, n := range nodes {
		if !n.Alive {
			continue
		}
		total := resourcesOf(n.Total)
		out = append(out, sched.Node{ID: sched.NodeID(n.ID), Cluster: p.o.Cluster, Total: total, Room: total.Sub(resourcesOf(n.Foreign)).Positive()})
	}
	p.o.Metrics.nodes(len(out))
	return p.l.SetNodes(p.ctx, p.o.Cluster, out)
}

func resourcesOf(r bridge.Resources) sched.Resources {
	var out sched.Resources
	for name, v := range r {
		out = out.With(name, v)
	}
	return out
}

func wireResources(r sched.Resources) bridge.Resources {
	out := bridge.Resources{}
	r.Each(func(name string, v int64) {
		if v != 0 {
			out[name] = v
		}
	})
	return out
}

// report tells the ledger something until it heard: what happened in Ray has
// happened, whatever the database does right now. A report on an attempt that is
// over is no error.
func (p *Pool) report(what string, f func() error) error {
	wait := 20 * time.Millisecond
	for {
		err := f()
		switch {
		case err == nil, errors.Is(err, ledger.ErrWrongState), errors.Is(err, ledger.ErrUnknownTask), errors.Is(err, ledger.ErrUnknownGroup), p.ctx.Err() != nil, errors.Is(err, ledger.ErrClosed):
			return err
		}
		p.log.Warn("the ledger did not take a report; trying again", "report", what, "error", err)
		if !p.sleep(wait) {
			return err
		}
		wait = min(2*wait, 2*time.Second)
	}
}

func (p *Pool) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.ctx.Done():
		return false
	}
}
