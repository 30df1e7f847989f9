package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/sched/replay"
)

// Bounds of a backtest. It reads what was, never the lane, but it takes a processor.
const (
	mostHistory   = 1_000_000 // tasks replayed
	usualHistory  = 24 * time.Hour
	longestLast   = 10 * 365 * 24 * time.Hour
	usualDiffs    = 50
	mostDiffs     = 1000
	progressEvery = 250 * time.Millisecond
)

// BacktestRequest asks what would have been under another policy.
type BacktestRequest struct {
	// Draft has the fields of the policy that would be different, as PolicyChange.Patch.
	Draft json.RawMessage
	// From and To bound the history; or Last, up to now. Nothing at all is the last day.
	From, To time.Time
	Last     time.Duration
	Limit    int // of differences listed; 0 = 50, at most 1000
	// MostTasks refuses a longer history; 0 = a million, which is the most.
	MostTasks int
}

// BacktestProgress says how far a backtest is. Tasks are replayed first, then what
// still runs or waits is let end.
type BacktestProgress struct {
	Tasks, Of int       // submissions replayed
	Simulated time.Time // where in time that is
}

// BacktestResult is the same history under two policies.
type BacktestResult struct {
	PolicyVersion int            // of the active policy
	Changes       []sched.Change // from it to the draft
	Warnings      []string       // what is odd about the draft
	From, To      time.Time
	Tasks         int // submissions replayed
	// LeftOut counts submissions that could not be replayed, by why: never_ran (nobody
	// knows for how long they would have), pool_gone.
	LeftOut map[string]int
	// Guessed is how many of the tasks had not ended by themselves: how long they would
	// have run is their estimate, and at least as long as they did.
	Guessed int

	Active, Draft replay.Summary
	Different     int // tasks that would have been preempted more or less often
	Differences   []PreemptedDifferently
}

// PreemptedDifferently is a task that another policy would have preempted more or
// less often.
type PreemptedDifferently struct {
	TaskID   string
	Pool     string
	Priority sched.Milli
	At       time.Time // of the first preemption, under either
	// How often under each policy; and by whom and why the first time, when it was.
	Active, Draft             int
	ActiveBy, DraftBy         string
	ActiveReason, DraftReason sched.Reason
}

// Backtest replays what was submitted in a span of time, as the tables tell it, under
// the active policy and under a draft. Both start with the pools as they are now, by
// quota alone, in a world where nothing fails and handovers take replay.Usual; so compare
// the two with each other rather than with what really happened. progress may be nil; it
// is called a few times a second. ErrBusy says that enough are under way.
func (l *Ledger) Backtest(ctx context.Context, ns string, req BacktestRequest, progress func(BacktestProgress)) (BacktestResult, error) {
	var out BacktestResult
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return out, err
	}
	now := l.now()
	if err := req.complete(now); err != nil {
		return out, err
	}
	active, err := l.Policy(ctx, ns)
	if err != nil {
		return out, err
	}
	draft, warnings, err := l.CheckPolicy(ctx, ns, req.Draft)
	if err != nil {
		return out, err
	}
	out.PolicyVersion, out.Changes, out.Warnings = active.Version, sched.Diff(active.Policy, draft), warnings
	out.From, out.To, out.LeftOut = req.From, req.To, map[string]int{}

	select {
	case l.backtests <- struct{}{}:
		defer func() { <-l.backtests }()
	default:
		return out, refuse(ErrBusy, "%d backtests are under way, which is the most at once: wait for one to end", cap(l.backtests))
	}
	size, err := l.q.HistorySize(ctx, dbgen.HistorySizeParams{Namespace: ns, Until: req.To, Since: &req.From, Most: int32(req.MostTasks + 1)})
	if err != nil {
		return out, l.lane.outward(err)
	}
	if int(size) > req.MostTasks {
		return out, invalid("from", "there are more than %d tasks between %s and %s, which is the most a backtest replays: choose a shorter time",
			req.MostTasks, req.From.Format(time.RFC3339), req.To.Format(time.RFC3339))
	}
	pools, err := l.Pools(ctx, ns)
	if err != nil {
		return out, err
	}
	diff := preemptedDifferently{}
	t := &backtest{out: &out, of: int(size), progress: progress, told: now}
	for side, p := range []sched.Policy{active.Policy, draft} {
		cfg := replay.Config{Policy: p, Latencies: replay.Usual, Preempted: func(v replay.Preemption) { diff.note(side, v) }}
		for _, pool := range pools {
			cfg.Pools = append(cfg.Pools, replay.Pool{Name: pool.Name, Cluster: pool.Cluster, Labels: pool.Labels, Capacity: capacityOf(pool)})
		}
		if t.sides[side], err = replay.New(cfg); err != nil {
			return out, err
		}
	}
	if err := t.run(ctx, l, ns, now); err != nil {
		var known *Error
		if errors.As(err, &known) || ctx.Err() != nil {
			return out, err
		}
		return out, l.lane.outward(err)
	}
	out.Active, out.Draft = t.sides[0].Summary(), t.sides[1].Summary()
	out.Differences, out.Different = diff.list(req.Limit)
	return out, nil
}

// complete fills in what was left out, and refuses what cannot be.
func (r *BacktestRequest) complete(now time.Time) error {
	switch {
	case r.Last != 0 && !(r.From.IsZero() && r.To.IsZero()):
		return invalid("last", "cannot go with from or to: give one of them")
	case r.Last < 0 || r.Last > longestLast:
		return invalid("last", "must be more than 0 s and at most ten years, not %v", r.Last)
	}
	if r.Last == 0 {
		r.Last = usualHistory
	}
	if r.To.IsZero() {
		r.To = now
	}
	if r.From.IsZero() {
		r.From = r.To.Add(-r.Last)
	}
	if !r.From.Before(r.To) {
		return invalid("from", "%s is not before %s", r.From.Format(time.RFC3339), r.To.Format(time.RFC3339))
	}
	if r.Limit == 0 {
		r.Limit = usualDiffs
	}
	r.Limit = min(max(r.Limit, 0), mostDiffs)
	if r.MostTasks <= 0 || r.MostTasks > mostHistory {
		r.MostTasks = mostHistory
	}
	return nil
}

func capacityOf(p Pool) (c sched.Resources) {
	for _, b := range p.Balances {
		c = c.With(b.Resource, b.Capacity)
	}
	return c
}

// backtest is one under way.
type backtest struct {
	out      *BacktestResult
	sides    [2]*replay.Replay // under the active policy, under the draft
	of       int
	progress func(BacktestProgress)
	told     time.Time
	calls    int
}

func (t *backtest) run(ctx context.Context, l *Ledger, ns string, now time.Time) error {
	rows, err := l.pool.Query(ctx, dbgen.HistorySQL, now, ns, t.out.To, t.out.From)
	if err != nil {
		return err
	}
	defer rows.Close()
	known := newRowReader(nil, nil) // shares labels and amounts that rows have in common
	for rows.Next() {
		r, err := pgx.RowToStructByPos[dbgen.HistoryRow](rows)
		if err != nil {
			return err
		}
		task, left, err := t.task(&r, known, now)
		if err != nil {
			return err
		}
		if left != "" {
			t.out.LeftOut[left]++
			continue
		}
		t.out.Tasks++
		for _, side := range t.sides {
			if err := side.Submit(task); err != nil {
				return err
			}
		}
		if err := t.tell(ctx, l, task.At); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	rows.Close() // its connection serves others while the rest is simulated
	for _, side := range t.sides {
		for side.Step() {
			if err := t.tell(ctx, l, side.Now()); err != nil {
				return err
			}
		}
	}
	return nil
}

// task says how a submission is replayed, or why it cannot be.
func (t *backtest) task(r *dbgen.HistoryRow, known *rowReader, now time.Time) (task replay.Task, left string, err error) {
	request, err := known.amountsOf(r.Request)
	if err != nil {
		return task, "", err
	}
	task = replay.Task{Name: r.Name, At: sched.Time(r.SubmittedAt.UnixMilli()), Pool: r.PoolName, Priority: sched.Milli(r.Priority), Labels: known.labelsOf(r.Labels),
		Request: request, Duration: sched.Time(max(r.RanMs, 0)), Estimate: sched.Time(r.EstimateMs), Patience: sched.Time(r.QueueTimeoutMs),
		Queue: r.OnInsufficient == Queue, Requeue: r.OnPreempted == Requeue, Idle: r.Kind == string(KindAgent)}
	if !r.HasPool {
		return task, "pool_gone", nil
	}
	switch State(r.State) {
	case Completed:
	case Cancelled, Failed:
		// It ended before its time, by somebody's hand or a mistake of its own: so it does
		// here. One that never ran was withdrawn from the queue, and is here too.
		if !r.Started && State(r.State) == Cancelled && r.EndedAt != nil {
			task.Duration = task.Estimate
			task.Patience = max(sched.Time(r.EndedAt.Sub(r.SubmittedAt).Milliseconds()), 1)
			t.out.Guessed++
		}
	default: // it is live, or was preempted for good
		if !task.Idle {
			t.out.Guessed++
			task.Duration = max(task.Duration, task.Estimate)
		}
	}
	if !r.Started && task.Duration == 0 {
		return task, "never_ran", nil
	}
	return task, "", nil
}

// tell passes on how far it is, now and then, and ends when nobody listens any more.
func (t *backtest) tell(ctx context.Context, l *Ledger, at sched.Time) error {
	if t.calls++; t.calls%256 != 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if now := time.Now(); t.progress != nil && now.Sub(t.told) >= progressEvery {
		t.told = now
		t.progress(BacktestProgress{Tasks: t.out.Tasks, Of: t.of, Simulated: time.UnixMilli(int64(at)).UTC()})
	}
	return nil
}

// preemptedDifferently keeps, by submission, how its preemptions differ so far.
type preemptedDifferently map[int64]*PreemptedDifferently

func (d preemptedDifferently) note(side int, v replay.Preemption) {
	p := d[v.Number]
	if p == nil {
		p = &PreemptedDifferently{TaskID: v.Victim, Pool: v.VictimPool, Priority: v.Priority, At: time.UnixMilli(int64(v.At)).UTC()}
		d[v.Number] = p
	}
	count, by, reason := &p.Active, &p.ActiveBy, &p.ActiveReason
	if side == 1 {
		count, by, reason = &p.Draft, &p.DraftBy, &p.DraftReason
	}
	if *count++; *count == 1 {
		*by, *reason = v.By, v.Reason
	}
	if at := time.UnixMilli(int64(v.At)).UTC(); at.Before(p.At) {
		p.At = at
	}
}

// list gives the first that differ, by time, and how many do.
func (d preemptedDifferently) list(limit int) (out []PreemptedDifferently, all int) {
	numbers := make([]int64, 0, len(d))
	for n, p := range d {
		if p.Active != p.Draft {
			numbers = append(numbers, n)
		}
	}
	slices.SortFunc(numbers, func(a, b int64) int {
		if c := d[a].At.Compare(d[b].At); c != 0 {
			return c
		}
		return int(a - b)
	})
	for _, n := range numbers[:min(limit, len(numbers))] {
		out = append(out, *d[n])
	}
	return out, len(numbers)
}
