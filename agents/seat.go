package agents

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/ledger"
)

// Seat is this server's place at a Ray cluster. Of several servers on a database one
// holds the cluster's lease: it opens the way to the sidecar and runs a Pool. The
// others leave the cluster's work to it, and take its place when it dies.
type Seat struct {
	o      Options
	open   func(context.Context) (bridge.Bridge, error)
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	pool *Pool // while this server leads
	err  error // why it could not begin to
}

// NewSeat makes a seat; Options.Bridge is what open gives, each time this server
// becomes the one that leads. It is closed again when that ends.
func NewSeat(o Options, open func(context.Context) (bridge.Bridge, error)) *Seat {
	o = o.withDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	return &Seat{o: o, open: open, ctx: ctx, cancel: cancel}
}

// Start contends for the cluster.
func (s *Seat) Start() {
	s.o.Ledger.Contend(s.o.Cluster)
	s.wg.Go(s.run)
}

// Stop leaves agents running in Ray. The lease goes when the ledger is closed.
func (s *Seat) Stop(ctx context.Context) error {
	s.cancel()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Seat) run() {
	for s.ctx.Err() == nil {
		leads, changed := s.o.Ledger.Leads(s.o.Cluster)
		if leads {
			s.lead()
			continue
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
		}
	}
}

// lead runs a pool until the lease is lost.
func (s *Seat) lead() {
	b, err := s.open(s.ctx)
	if err != nil {
		s.set(nil, err)
		s.o.Logger.Error("the sidecar cannot be reached or started", "cluster", s.o.Cluster, "error", err)
		select {
		case <-time.After(time.Second):
		case <-s.ctx.Done():
		}
		return
	}
	o := s.o
	o.Bridge = fenced{b, func(ctx context.Context) error { return s.mayAct(ctx) }}
	p := New(o)
	s.set(p, nil)
	p.Start()
	for {
		leads, changed := s.o.Ledger.Leads(s.o.Cluster)
		if !leads || s.ctx.Err() != nil {
			break
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
		}
	}
	s.set(nil, nil)
	if s.ctx.Err() == nil {
		s.o.Logger.Warn("another server leads now", "cluster", s.o.Cluster)
	}
	_ = p.Stop(context.Background())
	_ = b.Close()
}

func (s *Seat) set(p *Pool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool, s.err = p, err
}

func (s *Seat) current() (*Pool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pool, s.err
}

// Enqueue takes jobs, if they are this server's to do: the one that leads finds them
// in the ledger.
func (s *Seat) Enqueue(jobs []ledger.Job) {
	if p, _ := s.current(); p != nil {
		p.Enqueue(jobs)
	}
}

// Up reports whether somebody runs the cluster's agents, and why not.
func (s *Seat) Up() (bool, error) {
	p, err := s.current()
	if p != nil {
		return p.Up()
	}
	if err != nil {
		return false, err
	}
	if name, _ := s.o.Ledger.Leader(s.o.Cluster); name != "" && name != s.o.Ledger.Server() {
		return true, nil
	}
	return false, nil
}

// Hello is what the sidecar said when it was connected last: of the cluster whose
// agents this server runs. Nothing until then, and on a server that does not lead.
func (s *Seat) Hello() bridge.Hello {
	if p, _ := s.current(); p != nil {
		if hello := p.hello.Load(); hello != nil {
			return *hello
		}
	}
	return bridge.Hello{}
}

// Ask has the sidecar say it again. On a server that does not lead there is none.
func (s *Seat) Ask(ctx context.Context) (bridge.Hello, error) {
	p, err := s.current()
	if p == nil {
		return bridge.Hello{}, err
	}
	return p.b.Hello(ctx)
}

// Logs reads what a task's agent printed, as Pool.Logs does. Only the server that
// leads can.
func (s *Seat) Logs(ctx context.Context, ns, taskID, stream string, offset, limit int64) (string, int64, bool, error) {
	if p, _ := s.current(); p != nil {
		return p.Logs(ctx, ns, taskID, stream, offset, limit)
	}
	if _, _, err := s.o.Ledger.LaunchOf(ctx, ns, taskID); err != nil {
		return "", 0, false, err
	}
	return "", 0, false, s.elsewhere("the log cannot be read")
}

var errFenced = errors.New("this server could not renew its lease")

// mayAct waits until this server holds its lease for certain.
func (s *Seat) mayAct(ctx context.Context) error {
	for !s.o.Ledger.MayAct(s.o.Cluster) {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(errFenced, ctx.Err())
		}
	}
	return nil
}

// fenced is a bridge whose holder acts only while it holds its lease for certain: one
// that hung, or lost the database, waits until it knows again, or is stopped.
type fenced struct {
	bridge.Bridge
	mayAct func(context.Context) error
}

func (f fenced) Launch(ctx context.Context, r bridge.LaunchRequest) (bridge.Launched, error) {
	if err := f.mayAct(ctx); err != nil {
		return bridge.Launched{}, err
	}
	return f.Bridge.Launch(ctx, r)
}

func (f fenced) Run(ctx context.Context, launchID string, e bridge.Entry) error {
	if err := f.mayAct(ctx); err != nil {
		return err
	}
	return f.Bridge.Run(ctx, launchID, e)
}

func (f fenced) Cancel(ctx context.Context, launchID, taskID string, timeout time.Duration) (bridge.CancelResult, error) {
	if err := f.mayAct(ctx); err != nil {
		return bridge.CancelResult{}, err
	}
	return f.Bridge.Cancel(ctx, launchID, taskID, timeout)
}

func (f fenced) SaveState(ctx context.Context, launchID string, timeout time.Duration) (bridge.SavedState, error) {
	if err := f.mayAct(ctx); err != nil {
		return bridge.SavedState{}, err
	}
	return f.Bridge.SaveState(ctx, launchID, timeout)
}

func (f fenced) Call(ctx context.Context, r bridge.CallRequest) (bridge.CallResult, error) {
	if err := f.mayAct(ctx); err != nil {
		return bridge.CallResult{}, err
	}
	return f.Bridge.Call(ctx, r)
}

func (f fenced) Kill(ctx context.Context, launchID string, timeout time.Duration) error {
	if err := f.mayAct(ctx); err != nil {
		return err
	}
	return f.Bridge.Kill(ctx, launchID, timeout)
}

func (f fenced) EnsureGroup(ctx context.Context, r bridge.GroupRequest) (bridge.Group, error) {
	if err := f.mayAct(ctx); err != nil {
		return bridge.Group{}, err
	}
	return f.Bridge.EnsureGroup(ctx, r)
}

func (f fenced) RemoveGroup(ctx context.Context, name string, timeout time.Duration) error {
	if err := f.mayAct(ctx); err != nil {
		return err
	}
	return f.Bridge.RemoveGroup(ctx, name, timeout)
}
