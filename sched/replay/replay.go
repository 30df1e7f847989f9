// Package replay lets tasks pass through pools in simulated time, decided by the
// product's own core: history under another policy (backtest), or a workload
// that nobody has run yet (simulation).
//
// It is pure as sched is. Callers hand in tasks in the order of their arrival,
// and, to learn what decisions cost, a clock. The same input gives the same
// answer. Memory is for what is live: an ended task leaves nothing but counts.
//
// What is simulated is what the ledger books: quota reserved with the decision,
// victims that hold on until they are gone, loans and their return, the order of
// the queue. What Ray does is a few fixed latencies, and it never fails.
package replay

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/schedulemesh/schedulemesh/sched"
)

// Task is a submission.
type Task struct {
	Name     string
	At       sched.Time // when it arrives; tasks are submitted in this order
	Pool     string
	Priority sched.Milli
	Labels   sched.Labels // shared, never modified
	Request  sched.Resources
	// Duration is how long it has to run, in milliseconds, over all its attempts.
	Duration sched.Time
	Estimate sched.Time // what it says that will be; 0 = it says nothing
	// Queue makes it wait when there is no room (on_insufficient); else it is refused.
	Queue bool
	// Patience is how long it waits at a time (queue_timeout), in milliseconds; 0 = for ever.
	Patience sched.Time
	// Requeue makes it go on later when it was preempted (on_preempted); else it has ended.
	Requeue bool
	// Checkpoint is how often it saves its state by itself, in milliseconds: when it is
	// preempted, what it did since then is lost. 0 = it saves when it is told to stop, and
	// loses nothing.
	Checkpoint sched.Time
	// Idle is an agent without a task: it holds quota, takes nothing from others and is never taken.
	Idle bool
}

// Pool is quota of one cluster.
type Pool struct {
	Name     string
	Cluster  string
	Capacity sched.Resources
	Labels   sched.Labels
}

// Latencies are what each step of a handover takes, in milliseconds.
type Latencies struct {
	Cancel sched.Time // until a victim has stopped
	Save   sched.Time // until its state is saved and it is seen gone
	Launch sched.Time // until an agent is ready
}

// Usual are latencies as measured on a small cluster: cancel and save of a
// victim that answers at once, launch on a worker that is warm.
var Usual = Latencies{Cancel: 100, Save: 100, Launch: 90}

// Preemption is one task that made way.
type Preemption struct {
	At         sched.Time
	Victim     string
	Number     int64 // of the victim: 1 for the first task that was submitted, and so on
	VictimPool string
	Priority   sched.Milli // of the victim
	By         string
	ByPool     string
	ByPriority sched.Milli
	Reason     sched.Reason
	Score      sched.Micro
	Ran        sched.Time // this attempt, in milliseconds
	Lost       sched.Time // of its work, in milliseconds
}

// Config is what does not change while a replay runs.
type Config struct {
	Policy    sched.Policy
	Pools     []Pool
	Nodes     []sched.Node // all of them empty; none: quota alone decides
	Latencies Latencies
	// Classes are the priorities at which a class begins, for waiting times; nil: DefaultClasses.
	Classes []sched.Milli
	// Clock reads nanoseconds of real time, to measure decisions; nil: they are not measured.
	Clock func() int64
	// Preempted is told of every preemption, in order; nil: nobody is.
	Preempted func(Preemption)
}

// DefaultClasses splits priorities below 3, from 3, from 5 (the default), and from 8.
var DefaultClasses = []sched.Milli{3_000, 5_000, 8_000}

// Replay is one under way. It is not safe for concurrent use.
type Replay struct {
	cfg   Config
	core  *sched.Core
	nodes *sched.Nodes
	now   sched.Time
	begun bool

	pools  map[string]*pool
	live   map[sched.ID]*job
	free   []*job // ended, to be used again
	due    dueHeap
	last   uint64
	turn   uint64
	drain  []*pool
	rooms  map[sched.NodeID]*sched.Agenda // when what sits on a node is expected to end
	recent []loss                         // of the last minute

	walk uint64     // through elders
	next []elder    // of it; reused
	ids  []sched.ID // found by it; reused

	measures
}

// pool is a pool with what is booked on it.
type pool struct {
	Pool
	held, borrowed, lent sched.Resources
	loans                []loan // where it borrows, oldest first
	line                 sched.Line
	ends                 sched.Agenda // when what is held is expected to come free
	moves                bool         // its line may: it is in drain
	preempted            int          // within the last minute

	ran, waited sched.Time // of its tasks, for fairness
}

type loan struct {
	lender *pool
	amount sched.Resources
}

type loss struct {
	at   sched.Time
	pool *pool
}

func (p *pool) room() sched.Resources {
	return p.Capacity.Add(p.borrowed).Sub(p.lent).Sub(p.held)
}

// New prepares a replay. It refuses what no replay could make sense of.
func New(cfg Config) (*Replay, error) {
	if errs := cfg.Policy.Validate(); len(errs) > 0 {
		return nil, sched.FieldErrors(errs)
	}
	if cfg.Classes == nil {
		cfg.Classes = DefaultClasses
	}
	if !slices.IsSorted(cfg.Classes) {
		return nil, fmt.Errorf("priority classes must be in ascending order, not %v", cfg.Classes)
	}
	if l := cfg.Latencies; l.Cancel < 0 || l.Save < 0 || l.Launch < 0 {
		return nil, fmt.Errorf("latencies must be 0 or more, not %+v", l)
	}
	r := &Replay{cfg: cfg, nodes: sched.NewNodes(), pools: make(map[string]*pool, len(cfg.Pools)), live: map[sched.ID]*job{}, rooms: map[sched.NodeID]*sched.Agenda{}}
	for _, n := range cfg.Nodes {
		r.nodes.Put(n)
		r.rooms[n.ID] = &sched.Agenda{}
	}
	r.core = sched.NewCore(cfg.Policy, r.nodes)
	var capacity sched.Resources
	for _, p := range cfg.Pools {
		if r.pools[p.Name] != nil {
			return nil, fmt.Errorf("there are two pools %q", p.Name)
		}
		r.pools[p.Name] = &pool{Pool: p}
		r.pools[p.Name].line.SetAgeing(cfg.Policy.AgeingWeight)
		r.changed(r.pools[p.Name])
		capacity = capacity.Add(p.Capacity)
	}
	r.measures.init(cfg, capacity)
	return r, nil
}

// Now is the simulated time.
func (r *Replay) Now() sched.Time { return r.now }

// Elapsed is the simulated time since the first arrival, in milliseconds.
func (r *Replay) Elapsed() sched.Time { return r.now - r.begin }

// Live is how many tasks are there: running, on their way in or out, and waiting.
func (r *Replay) Live() int { return len(r.live) }

// Running is how many tasks run.
func (r *Replay) Running() int { return int(r.running) }

// Submit lets the time pass until the task arrives, and decides about it.
func (r *Replay) Submit(t Task) error {
	switch {
	case r.begun && t.At < r.now:
		return fmt.Errorf("task %q arrives at %d ms, before the one submitted last, at %d ms: tasks must come in the order of their arrival", t.Name, t.At, r.now)
	case t.Duration < 0 || t.Estimate < 0 || t.Patience < 0 || t.Checkpoint < 0:
		return fmt.Errorf("task %q has a negative time", t.Name)
	case t.At > maxTime || t.Duration > maxTime || t.Patience > maxTime:
		return fmt.Errorf("task %q has a time beyond reason: the most are %d ms", t.Name, maxTime)
	}
	if !r.begun {
		r.begun, r.now = true, t.At
		r.start(t.At)
	}
	r.Advance(t.At)
	r.arrive(t)
	r.settle()
	return nil
}

// maxTime keeps sums of times within 64 bits; it is the year 2286.
const maxTime sched.Time = 10_000_000_000_000

// Advance lets the time pass, and what is due happen.
func (r *Replay) Advance(to sched.Time) {
	for len(r.due) > 0 && r.due[0].at <= to {
		j := r.due[0]
		r.pass(j.at)
		r.due.remove(j)
		r.happen(j)
		r.settle()
	}
	r.pass(to)
}

// Step lets the next thing happen; false when nothing more will: all has ended, or
// waits for what never comes.
func (r *Replay) Step() bool {
	if len(r.due) == 0 {
		return false
	}
	r.Advance(r.due[0].at)
	return true
}

// pass moves the clock.
func (r *Replay) pass(to sched.Time) {
	if to <= r.now {
		return
	}
	r.measures.pass(r.now, to)
	r.now = to
	for len(r.recent) > 0 && to-r.recent[0].at >= minute {
		p := r.recent[0].pool
		r.recent = r.recent[1:]
		p.preempted--
		r.changed(p)
	}
}

const minute sched.Time = 60_000

// changed tells the core what a pool has now.
func (r *Replay) changed(p *pool) {
	r.core.PutPool(sched.Pool{Name: p.Name, Cluster: p.Cluster, Free: p.room(), Ceiling: p.Capacity, Labels: p.Labels, Preempted: p.preempted})
}

func (r *Replay) newID() (id sched.ID) {
	r.last++
	binary.BigEndian.PutUint64(id[8:], r.last)
	return id
}
