// Package ledger is quota as data: lanes, transactions, the life of a task,
// loans, reconcile and verify.
//
// Every change runs in a transaction that holds SELECT … FOR UPDATE on the pools
// it touches; the decision core in memory is only a cache of what those rows
// say. Concurrent calls are combined by a lane into one transaction with an
// answer for each. Ledger knows Postgres and sched; it must not know HTTP, Ray
// or the bridge.
package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// Options of a ledger. The zero value works.
type Options struct {
	// Server names this process in leases; made up when empty.
	Server string
	// SingleTransactions runs a transaction for each call instead of lanes, to measure them.
	SingleTransactions bool
	// Now is the clock, time.Now when nil.
	Now func() time.Time
	// Jobs receives work for the agents after it is durable. It must not block.
	Jobs    func([]Job)
	Metrics *Metrics
	Logger  *slog.Logger
}

// Ledger is the door to quota and tasks. It is safe for concurrent use.
type Ledger struct {
	pool   *pgxpool.Pool
	q      *dbgen.Queries
	lane   *lane
	opts   Options
	feed   *feed
	stop   context.CancelFunc
	server string
	log    *slog.Logger

	mu      sync.Mutex
	waiting map[sched.ID]map[chan struct{}]bool
	spaces  map[string]int64 // namespaces known to exist
}

// Open loads the core from the database and starts the lane. Jobs left over from
// before are not announced: ask Work for them.
func Open(ctx context.Context, pool *pgxpool.Pool, opts Options) (*Ledger, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Server == "" {
		opts.Server = "server-" + uuidString(newID())
	}
	l := &Ledger{pool: pool, q: dbgen.New(pool), opts: opts, server: opts.Server, log: opts.Logger,
		waiting: map[sched.ID]map[chan struct{}]bool{}, spaces: map[string]int64{}}
	l.feed = newFeed(l)
	laneConns, err := laneConnections(ctx, pool)
	if err != nil {
		return nil, fmt.Errorf("ledger: connecting: %w", err)
	}
	l.lane = &lane{pool: laneConns, book: newBook(), in: make(chan *call, 4*maxBatch), stopped: make(chan struct{}), single: opts.SingleTransactions,
		server: opts.Server, now: opts.Now, log: opts.Logger, metrics: opts.Metrics, after: l.after}
	if err := l.lane.loadAll(ctx); err != nil {
		laneConns.Close()
		return nil, fmt.Errorf("ledger: loading: %w", err)
	}
	run, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	go l.lane.run(run)
	go l.feed.run(run)
	if err := l.ensureNamespace(ctx, "default"); err != nil {
		cancel()
		return nil, err
	}
	return l, nil
}

// Close stops the lane after the transaction under way. Agents keep running.
func (l *Ledger) Close() {
	l.stop()
	<-l.lane.stopped
	l.lane.pool.Close()
}

// laneConnections are the lane's own. Its statements address rows by key; a plan
// made while a table was small would scan it, and stay when it has grown. So
// scans are out of the question on these connections, and a statement is planned once.
func laneConnections(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Pool, error) {
	cfg := pool.Config().Copy()
	cfg.MaxConns, cfg.MinConns = 2, 1
	for _, name := range []string{"enable_seqscan", "enable_hashjoin", "enable_mergejoin"} {
		cfg.ConnConfig.RuntimeParams[name] = "off"
	}
	cfg.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	return pgxpool.NewWithConfig(ctx, cfg)
}

// after hands a committed batch's news to whoever waits for it.
func (l *Ledger) after(b *batch) {
	if len(b.jobs) > 0 && l.opts.Jobs != nil {
		l.opts.Jobs(b.jobs)
	}
	l.mu.Lock()
	for _, uid := range b.woken {
		for ch := range l.waiting[uid] {
			select {
			case ch <- struct{}{}:
			default:
			}
		}
	}
	l.mu.Unlock()
	l.opts.Metrics.events(b.events)
	l.feed.wake()
}

// watch returns a channel that is signalled after transitions of a row, and a func to end that.
func (l *Ledger) watch(uid sched.ID) (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting[uid] == nil {
		l.waiting[uid] = map[chan struct{}]bool{}
	}
	l.waiting[uid][ch] = true
	return ch, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.waiting[uid], ch)
		if len(l.waiting[uid]) == 0 {
			delete(l.waiting, uid)
		}
	}
}

// Ready reports whether the database answers and the lane runs.
func (l *Ledger) Ready(ctx context.Context) error {
	if err := l.pool.Ping(ctx); err != nil {
		return &Error{Code: ErrUnavailable.Code, Message: "the database cannot be reached", cause: err}
	}
	return l.lane.look(ctx, func(*book) {})
}

// ensureNamespace makes a namespace on first use and puts it in the book.
func (l *Ledger) ensureNamespace(ctx context.Context, name string) error {
	l.mu.Lock()
	_, known := l.spaces[name]
	l.mu.Unlock()
	if known {
		return nil
	}
	if name == "" || len(name) > 200 {
		return invalid("namespace", "must have 1 to 200 bytes")
	}
	if err := clean("namespace", name, 200); err != nil {
		return err
	}
	doc, err := json.Marshal(sched.DefaultPolicy())
	if err != nil {
		return err
	}
	if err := l.q.CreateNamespace(ctx, dbgen.CreateNamespaceParams{Name: name, Document: doc, Now: l.now()}); err != nil {
		return l.lane.outward(err)
	}
	row, err := l.q.NamespacePolicy(ctx, name)
	if err != nil {
		return l.lane.outward(err)
	}
	policy, err := policyOf(row.Document)
	if err != nil {
		return err
	}
	err = l.lane.look(ctx, func(b *book) {
		if b.spaces[name] == nil {
			b.addSpace(row.ID, name, int(row.PolicyVersion), policy)
		}
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.spaces[name] = row.ID
	l.mu.Unlock()
	return nil
}

func (l *Ledger) now() time.Time { return l.opts.Now().UTC().Truncate(time.Microsecond) }

// Limits of what a submission may carry, in bytes.
const (
	maxName       = 200
	maxLabelKey   = 200
	maxLabelValue = 1000
	maxLabels     = 64
)

func cleanLabels(labels sched.Labels) error {
	if len(labels) > maxLabels {
		return invalid("labels", "has %d labels, at most %d are allowed", len(labels), maxLabels)
	}
	for k, v := range labels {
		if k == "" {
			return invalid("labels", "has an empty key")
		}
		if err := clean("labels", k, maxLabelKey); err != nil {
			return err
		}
		if err := clean("labels."+k, v, maxLabelValue); err != nil {
			return err
		}
	}
	return nil
}

func choice(field, value, fallback string, allowed ...string) (string, error) {
	if value == "" {
		return fallback, nil
	}
	for _, a := range allowed {
		if value == a {
			return value, nil
		}
	}
	return "", invalid(field, "is %q: must be one of %s", value, strings.Join(allowed, ", "))
}

// check makes a submission complete and finds what is wrong with it, before a lane sees it.
func (s *Submission) check() (err error) {
	for _, f := range [...]struct {
		field, value string
		needed       bool
	}{{"task_id", s.TaskID, true}, {"pool", s.Pool, true}, {"agent_name", s.AgentName, false}, {"actor_class", s.Spec.ActorClass, false}} {
		if f.value == "" && f.needed {
			return invalid(f.field, "is missing")
		}
		if err := clean(f.field, f.value, maxName); err != nil {
			return err
		}
	}
	if err := cleanLabels(s.Labels); err != nil {
		return err
	}
	if s.Spec.ActorClass == "" && s.Spec.Pickled == nil {
		return invalid("actor_class", "is missing: give an import path such as package.module:Class")
	}
	if s.Spec.ActorClass != "" && !strings.Contains(s.Spec.ActorClass, ":") {
		return invalid("actor_class", "is %q: must be package.module:Class", s.Spec.ActorClass)
	}
	if s.Request.IsZero() {
		return invalid("resources", "is empty: say what the task needs, such as {\"cpu\": 1}")
	}
	if s.Estimate < 0 || s.MaxRuntime < 0 || s.LaunchTimeout < 0 {
		return invalid("estimated_duration", "and other times must not be negative")
	}
	if s.OnInsufficient, err = choice("on_insufficient", s.OnInsufficient, Fail, Fail, Queue); err != nil {
		return err
	}
	if s.OnPreempted, err = choice("on_preempted", s.OnPreempted, Stop, Stop, Requeue); err != nil {
		return err
	}
	if s.OnFailure, err = choice("on_failure", s.OnFailure, Stop, Stop, Requeue); err != nil {
		return err
	}
	if s.MaxAttempts == 0 {
		s.MaxAttempts = 1
		if s.OnFailure == Requeue {
			s.MaxAttempts = 3
		}
	}
	if s.MaxAttempts < 0 || s.MaxAttempts > 1000 {
		return invalid("max_attempts", "is %d: must be 1 to 1000", s.MaxAttempts)
	}
	if s.LaunchTimeout == 0 {
		s.LaunchTimeout = 60 * time.Second
	}
	return nil
}

// fingerprint is the hash that tells the same body from another one. Pickles stay
// out of it: the same class pickles differently from run to run.
func (s *Submission) fingerprint() string {
	h := sha256.New()
	actor := s.Actor
	s.Actor = ""
	_ = json.NewEncoder(h).Encode(s)
	s.Actor = actor
	return string(h.Sum(nil)[:16])
}

// Submit admits a task: it gets its quota, takes it from others under the policy,
// waits in line, or is refused with the reason. The same id with the same body gives
// the same task again.
func (l *Ledger) Submit(ctx context.Context, ns string, s Submission) (Task, error) {
	if err := s.check(); err != nil {
		return Task{}, err
	}
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return Task{}, err
	}
	a := &admission{uid: newID(), ns: ns, kind: KindTask, sub: s, hash: s.fingerprint()}
	err := l.lane.submit(ctx, &call{plan: poolOf(ns, s.Pool), do: func(b *batch) error { return b.submit(a) }})
	return a.task, err
}

// on runs do on a live task of a namespace, under the locks it needs.
func (l *Ledger) on(ctx context.Context, ns, taskID string, do func(*batch, *row) error) (Task, error) {
	var out Task
	var uid sched.ID
	err := l.lane.submit(ctx, &call{
		plan: func(b *book) []*pool {
			if s := b.spaces[ns]; s != nil {
				return rowPools(b, s.tasks[taskID])
			}
			return nil
		},
		do: func(b *batch) error {
			var r *row
			if s := b.spaces[ns]; s != nil {
				r = s.tasks[taskID]
			}
			if r == nil {
				return refuse(ErrUnknownTask, "there is no live task %q in namespace %q", taskID, ns)
			}
			b.need(rowPools(b.book, r)...)
			uid = r.uid
			return do(b, r)
		},
	})
	if err != nil {
		return out, err
	}
	return l.taskByUID(ctx, uid)
}

// Complete ends a task as done: a submission's agent is stopped, a registered task's stays.
// Completing a task that has ended already answers it as it is.
func (l *Ledger) Complete(ctx context.Context, ns, taskID, actor string) (Task, error) {
	return l.end(ctx, ns, taskID, Completed, actor)
}

// Cancel ends a task whatever it does: it leaves the queue, or its agent is stopped.
func (l *Ledger) Cancel(ctx context.Context, ns, taskID, actor string) (Task, error) {
	return l.end(ctx, ns, taskID, Cancelled, actor)
}

func (l *Ledger) end(ctx context.Context, ns, taskID string, to State, actor string) (Task, error) {
	reason := ""
	if to == Cancelled && actor != "" {
		reason = "by " + actor
	}
	t, err := l.on(ctx, ns, taskID, func(b *batch, r *row) error { return b.stop(r, to, "", reason, actor) })
	if errors.Is(err, ErrUnknownTask) {
		return l.Task(ctx, ns, taskID)
	}
	return t, err
}

// Patch changes priority, labels or estimate of a live task.
func (l *Ledger) Patch(ctx context.Context, ns, taskID string, p TaskPatch) (Task, error) {
	if p.Labels != nil {
		if err := cleanLabels(*p.Labels); err != nil {
			return Task{}, err
		}
	}
	return l.on(ctx, ns, taskID, func(b *batch, r *row) error { b.patch(r, p); return nil })
}

// Restore runs a preempted task again from its saved state, as soon as there is room.
func (l *Ledger) Restore(ctx context.Context, ns, taskID, actor string) (Task, error) {
	t, err := l.Task(ctx, ns, taskID)
	if err != nil {
		return Task{}, err
	}
	err = l.lane.submit(ctx, &call{
		plan: poolOf(ns, t.Pool),
		do: func(b *batch) error {
			// Under the pool's lock, so what is read is what is.
			rows, err := l.reread(ctx, []sched.ID{t.UID})
			if err != nil {
				return err
			}
			if len(rows) == 0 {
				return refuse(ErrUnknownPool, "pool %q of task %q is gone: submit the task anew", t.Pool, taskID)
			}
			return b.restore(rows[0], actor)
		},
	})
	if err != nil {
		return Task{}, err
	}
	return l.taskByUID(ctx, t.UID)
}

// reread makes rows of tasks that may have ended. Only a lane may call it.
func (l *Ledger) reread(ctx context.Context, uids []sched.ID) ([]*row, error) {
	if len(uids) == 0 {
		return nil, nil
	}
	found, err := l.q.TasksByUID(ctx, pgUUIDs(uids))
	if err != nil {
		return nil, err
	}
	var out []*row
	for _, t := range found {
		r, err := l.lane.row(dbgen.LiveTasksRow(t))
		if err != nil {
			return nil, err
		}
		if r != nil {
			out = append(out, r)
		}
	}
	return out, nil
}

// Register says that a task runs on an agent. The same registration twice is one.
func (l *Ledger) Register(ctx context.Context, ns string, g Registration) (Task, error) {
	for _, f := range [...][2]string{{"task_id", g.TaskID}, {"agent_name", g.AgentName}, {"pool", g.Pool}} {
		if f[1] == "" {
			return Task{}, invalid(f[0], "is missing")
		}
		if err := clean(f[0], f[1], maxName); err != nil {
			return Task{}, err
		}
	}
	if err := cleanLabels(g.Labels); err != nil {
		return Task{}, err
	}
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return Task{}, err
	}
	sum := sha256.New()
	same := g
	same.Actor = ""
	_ = json.NewEncoder(sum).Encode(same)
	var out Task
	uid := newID()
	err := l.lane.submit(ctx, &call{plan: poolOf(ns, g.Pool), do: func(b *batch) error {
		return b.register(uid, ns, g, string(sum.Sum(nil)[:16]), &out)
	}})
	return out, err
}

// PreemptRequest names a running task, or the agent it runs on.
type PreemptRequest struct {
	TaskID    string
	AgentName string
	Actor     string
}

// Preempt cancels and saves a task by hand; its agent stays. It returns when that
// is done, or with what is known when ctx ends.
func (l *Ledger) Preempt(ctx context.Context, ns string, p PreemptRequest) (Preemption, error) {
	taskID := p.TaskID
	if taskID == "" {
		agent, err := l.Agent(ctx, ns, p.AgentName)
		if err != nil {
			return Preemption{}, err
		}
		if len(agent.TaskIDs) == 0 {
			return Preemption{}, refuse(ErrUnknownTask, "agent %q runs no task", p.AgentName)
		}
		taskID = agent.TaskIDs[0]
	}
	attempt := 0
	var uid sched.ID
	var ch <-chan struct{}
	var unwatch func()
	_, err := l.on(ctx, ns, taskID, func(b *batch, r *row) error {
		if p.AgentName != "" && r.agentName != p.AgentName {
			return refuse(ErrWrongState, "task %q runs on agent %q, not on %q", r.taskID, r.agentName, p.AgentName)
		}
		uid, attempt = r.uid, r.attempt
		if unwatch != nil {
			unwatch()
		}
		ch, unwatch = l.watch(r.uid)
		return b.preemptByHand(r, p.Actor)
	})
	if unwatch != nil {
		defer unwatch()
	}
	if err != nil {
		return Preemption{}, err
	}
	for {
		row, err := l.q.PreemptionOfVictim(ctx, dbgen.PreemptionOfVictimParams{VictimUid: pgUUID(uid), VictimAttempt: int32(attempt)})
		if err != nil {
			return Preemption{}, l.lane.outward(err)
		}
		if out := preemptionOf(row, ns); out.Phase == phaseGone || out.Phase == phaseUndone {
			return out, nil
		} else if ctx.Err() != nil {
			return out, nil
		}
		select {
		case <-ch:
		case <-time.After(time.Second):
		case <-ctx.Done():
			return Preemption{}, ctx.Err()
		}
	}
}

// Evaluation asks who would be preempted for a task that does not exist.
type Evaluation struct {
	Pool     string
	Priority sched.Milli
	Labels   sched.Labels
	Request  *sched.Resources // nil: every eligible task is a candidate
	Limit    int              // of candidates; 0 = 100
}

// EvaluationResult answers an Evaluation.
type EvaluationResult struct {
	ShouldPreempt bool
	Candidates    []sched.Candidate
	Decision      *sched.Decision // with a request
	PolicyVersion int
}

// Evaluate changes nothing.
func (l *Ledger) Evaluate(ctx context.Context, ns string, e Evaluation) (EvaluationResult, error) {
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return EvaluationResult{}, err
	}
	limit := e.Limit
	if limit == 0 {
		limit = 100
	}
	var out EvaluationResult
	err := l.lane.look(ctx, func(b *book) {
		s := b.spaces[ns]
		began := time.Now()
		in := sched.Incoming{Pool: e.Pool, Priority: e.Priority, Labels: e.Labels}
		now := sched.Time(l.now().UnixMilli())
		out.PolicyVersion = s.policyVersion
		if e.Request == nil {
			out.Candidates = s.core.Candidates(in, now, limit)
			out.ShouldPreempt = len(out.Candidates) > 0
		} else {
			in.Request = *e.Request
			d := s.core.Decide(in, now)
			out.Decision = &d
			out.ShouldPreempt = d.Outcome == sched.Preempt
			for _, v := range d.Victims {
				out.Candidates = append(out.Candidates, v.Tasks...)
			}
		}
		l.opts.Metrics.evaluated(time.Since(began))
	})
	return out, err
}

// Explain says of each live task whether it would make way for a newcomer, and why not.
func (l *Ledger) Explain(ctx context.Context, ns string, e Evaluation) ([]sched.Verdict, error) {
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return nil, err
	}
	var out []sched.Verdict
	err := l.lane.look(ctx, func(b *book) {
		in := sched.Incoming{Pool: e.Pool, Priority: e.Priority, Labels: e.Labels}
		if e.Request != nil {
			in.Request = *e.Request
		}
		out = b.spaces[ns].core.Explain(in, sched.Time(l.now().UnixMilli()), e.Limit)
	})
	return out, err
}

// CreateAgent makes an agent that waits for work.
func (l *Ledger) CreateAgent(ctx context.Context, ns string, a AgentSubmission) (Agent, error) {
	s := Submission{TaskID: a.Name, Pool: a.Pool, Request: a.Request, Labels: a.Labels, AgentName: a.Name, Spec: a.Spec,
		LaunchTimeout: a.LaunchTimeout, Actor: a.Actor}
	if s.TaskID == "" {
		return Agent{}, invalid("name", "is missing")
	}
	if a.Request.IsZero() {
		s.Request = sched.Resources{CPU: 1} // replaced by the pool's agent size
	}
	if err := s.check(); err != nil {
		return Agent{}, err
	}
	s.Request = a.Request
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return Agent{}, err
	}
	adm := &admission{uid: newID(), ns: ns, kind: KindAgent, sub: s}
	err := l.lane.submit(ctx, &call{plan: poolOf(ns, s.Pool), do: func(b *batch) error { return b.submit(adm) }})
	if err != nil {
		return Agent{}, err
	}
	return l.agentByUID(ctx, ns, adm.uid)
}

// DeleteAgent stops an agent, found by its name or its task's id. With a task still
// running on it, force is needed. One that is already gone is a success.
func (l *Ledger) DeleteAgent(ctx context.Context, ns, name string, force bool, actor string) error {
	find := func(b *book) *row {
		s := b.spaces[ns]
		if s == nil {
			return nil
		}
		if r := s.agents[name]; r != nil {
			return r
		}
		if r := s.tasks[name]; r != nil {
			return b.rows[r.agentID()]
		}
		return nil
	}
	return l.lane.submit(ctx, &call{
		plan: func(b *book) []*pool { return rowPools(b, find(b)) },
		do: func(b *batch) error {
			r := find(b.book)
			if r == nil || r.pool == nil {
				return nil
			}
			b.need(rowPools(b.book, r)...)
			if !force {
				if r.kind == KindTask && r.state != Stopping {
					return refuse(ErrWrongState, "agent %q runs task %q: complete or preempt the task first, or use force", r.agentName, r.taskID)
				}
				for _, t := range r.pool.rows {
					if t.kind == KindRegistered && t.agentUID == r.uid {
						return refuse(ErrWrongState, "agent %q runs task %q: complete or preempt the task first, or use force", r.agentName, t.taskID)
					}
				}
			}
			return b.stop(r, Cancelled, "agent_deleted", "its agent was deleted", actor)
		},
	})
}
