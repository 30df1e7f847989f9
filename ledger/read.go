package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// task makes the answer for a row in the book.
func (b *book) task(r *row, spec *Spec) Task {
	t := Task{UID: r.uid, Namespace: r.space.name, Kind: r.kind, TaskID: r.taskID, Pool: r.poolName, Managed: r.pool != nil, State: r.state, Phase: r.phase,
		Attempt: r.attempt, Priority: r.priority, Labels: r.labels, Request: r.request, Held: r.held, AgentName: r.agentName, ActorName: r.actorName,
		RayNS: r.rayNS, ActorID: r.actorID, Node: string(r.node), Seat: seatOf(r), PID: r.pid, Estimate: r.estimate, MaxRuntime: r.maxRuntime,
		OnPreempted: r.onPreempted, OnFailure: r.onFailure, MaxAttempts: r.maxAttempts, Preemptions: r.preemptions, PreemptedBy: r.preemptedBy,
		Code: r.code, Reason: r.reason, SubmittedAt: r.submitted, QueuedAt: r.queued, StartedAt: r.started, EndedAt: r.ended,
		QueueTimeout: r.more().queueTimeout, RetryBackoff: r.more().retryBackoff}
	if spec != nil {
		t.Spec = *spec
	}
	return t
}

func taskOf(t dbgen.Task, namespace string) (Task, error) {
	out := Task{UID: t.Uid.Bytes, Namespace: namespace, Kind: Kind(t.Kind), Pool: t.PoolName, Managed: t.PoolID != nil, State: State(t.State), Phase: t.Phase,
		Attempt: int(t.Attempt), Priority: sched.Milli(t.Priority), Labels: labelsOf(t.Labels), AgentName: t.AgentName, ActorName: t.ActorName,
		RayNS: t.RayNamespace, ActorID: t.ActorID, Node: t.NodeID, PID: int(t.Pid), Estimate: ms(t.EstimateMs), MaxRuntime: ms(t.MaxRuntimeMs),
		OnPreempted: t.OnPreempted, OnFailure: t.OnFailure, MaxAttempts: int(t.MaxAttempts), Preemptions: int(t.Preemptions),
		PreemptedBy: idsOf(t.PreemptedBy), Code: t.Code, Reason: t.Reason, Result: t.Result, SavedState: t.SavedState,
		SubmittedAt: t.SubmittedAt, QueuedAt: orZero(t.QueuedAt), StartedAt: orZero(t.StartedAt), EndedAt: orZero(t.EndedAt), Actor: t.Actor,
		QueueTimeout: ms(t.QueueTimeoutMs), RetryBackoff: ms(t.RetryBackoffMs)}
	if t.TaskID != nil {
		out.TaskID = *t.TaskID
	}
	err := errors.Join(out.Request.UnmarshalJSON(t.Request), out.Held.UnmarshalJSON(t.Held), json.Unmarshal(t.Spec, &out.Spec))
	return out, err
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// Task gives the live task of an id, or the latest that had it.
func (l *Ledger) Task(ctx context.Context, ns, taskID string) (Task, error) {
	row, err := l.q.TaskByID(ctx, dbgen.TaskByIDParams{Namespace: ns, TaskID: &taskID})
	if errors.Is(err, pgx.ErrNoRows) {
		return Task{}, refuse(ErrUnknownTask, "there is no task %q in namespace %q", taskID, ns)
	}
	if err != nil {
		return Task{}, l.lane.outward(err)
	}
	return l.filled(ctx, row.Task, row.Namespace, row.Seat)
}

// errForgotten is told to who waits for something that was cleared with its namespace.
var errForgotten = refuse(ErrUnknownTask, "it is gone: its namespace was cleared meanwhile")

func (l *Ledger) taskByUID(ctx context.Context, uid sched.ID) (Task, error) {
	row, err := l.q.TaskByUID(ctx, pgUUID(uid))
	if errors.Is(err, pgx.ErrNoRows) {
		return Task{}, errForgotten
	}
	if err != nil {
		return Task{}, l.lane.outward(err)
	}
	return l.filled(ctx, row.Task, row.Namespace, row.Seat)
}

func (l *Ledger) filled(ctx context.Context, row dbgen.Task, ns, seat string) (Task, error) {
	t, err := taskOf(row, ns)
	if err != nil {
		return t, err
	}
	t.Seat = readSeat(seat)
	one := []Task{t}
	err = l.tellWaiting(ctx, one)
	return one[0], err
}

// WaitTask waits until a task runs or has ended. When ctx ends first, the task is
// answered as it is then, without an error.
func (l *Ledger) WaitTask(ctx context.Context, ns string, uid sched.ID) (Task, error) {
	ch, unwatch := l.watch(uid)
	defer unwatch()
	for {
		t, err := l.taskByUID(context.WithoutCancel(ctx), uid)
		if err != nil || t.State == Running || !t.State.Live() || ctx.Err() != nil {
			return t, err
		}
		select {
		case <-ch:
		case <-time.After(time.Second): // another server may have moved it
		case <-ctx.Done():
		}
	}
}

// Tasks lists tasks, newest first.
func (l *Ledger) Tasks(ctx context.Context, ns string, f TaskFilter) (Page[Task], error) {
	limit := pageSize(f.Limit)
	p := dbgen.ListTasksParams{Namespace: ns, Live: f.Live, Pool: f.Pool, Txt: f.Text, Labels: labelsJSON(f.Labels), RowLimit: int32(limit + 1), States: []string{}}
	for _, s := range f.States {
		p.States = append(p.States, string(s))
	}
	if f.Cursor != "" {
		id, err := uuid.Parse(f.Cursor)
		if err != nil {
			return Page[Task]{}, invalid("cursor", "is not one that a list gave: start without one")
		}
		p.Before = pgtype.UUID{Bytes: id, Valid: true}
	}
	if f.Text != "" {
		if err := clean("text", f.Text, maxName); err != nil {
			return Page[Task]{}, err
		}
	}
	rows, err := l.q.ListTasks(ctx, p)
	if err != nil {
		return Page[Task]{}, l.lane.outward(err)
	}
	var out Page[Task]
	for i, t := range rows {
		if i == limit {
			out.Next = uuidString(out.Items[limit-1].UID)
			break
		}
		x, err := listed(t, ns)
		if err != nil {
			return out, err
		}
		out.Items = append(out.Items, x)
	}
	return out, l.tellWaiting(ctx, out.Items)
}

// listed makes a task of a row of a list: without spec, result and saved state.
func listed(t dbgen.ListTasksRow, ns string) (Task, error) {
	x := Task{UID: t.Uid.Bytes, Namespace: ns, Kind: Kind(t.Kind), TaskID: deref(t.TaskID), Pool: t.PoolName, Managed: t.PoolID != nil, State: State(t.State),
		Phase: t.Phase, Attempt: int(t.Attempt), Priority: sched.Milli(t.Priority), Labels: labelsOf(t.Labels), AgentName: t.AgentName,
		ActorName: t.ActorName, RayNS: t.RayNamespace, ActorID: t.ActorID, Node: t.NodeID, Seat: readSeat(t.Seat), PID: int(t.Pid), Estimate: ms(t.EstimateMs), MaxRuntime: ms(t.MaxRuntimeMs),
		OnPreempted: t.OnPreempted, OnFailure: t.OnFailure, MaxAttempts: int(t.MaxAttempts), Preemptions: int(t.Preemptions), Code: t.Code, Reason: t.Reason,
		Result: t.Result, SubmittedAt: t.SubmittedAt, QueuedAt: orZero(t.QueuedAt), StartedAt: orZero(t.StartedAt), EndedAt: orZero(t.EndedAt), Actor: t.Actor,
		Spec: Spec{ActorClass: text(t.ActorClass), PickledName: text(t.PickledName)}}
	return x, errors.Join(x.Request.UnmarshalJSON(t.Request), x.Held.UnmarshalJSON(t.Held))
}

func text(v any) string {
	switch s := v.(type) {
	case string:
		return s
	case *string:
		return deref(s)
	}
	return ""
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func pageSize(n int) int {
	if n <= 0 {
		return 50
	}
	return min(n, 500)
}

// Counts gives how many live tasks are in each state.
func (l *Ledger) Counts(ctx context.Context, ns string) (map[State]int, error) {
	rows, err := l.q.CountByPool(ctx, ns)
	if err != nil {
		return nil, l.lane.outward(err)
	}
	out := map[State]int{}
	for _, r := range rows {
		out[State(r.State)] += int(r.N)
	}
	return out, nil
}

// TaskEvents is the timeline of the tasks that had this id, oldest first.
func (l *Ledger) TaskEvents(ctx context.Context, ns, taskID string) ([]Event, error) {
	t, err := l.Task(ctx, ns, taskID)
	if err != nil {
		return nil, err
	}
	rows, err := l.q.TaskEvents(ctx, pgUUIDs([]sched.ID{t.UID}))
	if err != nil {
		return nil, l.lane.outward(err)
	}
	out := make([]Event, 0, len(rows))
	for _, e := range rows {
		out = append(out, eventOf(e, ns))
	}
	return out, nil
}

func eventOf(e dbgen.TaskEvent, ns string) Event {
	return Event{ID: e.ID, At: e.At, Namespace: ns, TaskUID: e.TaskUid.Bytes, TaskID: e.TaskID, Pool: e.PoolName, Attempt: int(e.Attempt), Type: e.Type,
		Actor: e.Actor, Code: e.Code, Message: e.Message, Detail: e.Detail, PolicyVersion: int(e.PolicyVersion)}
}

// Namespaces lists the namespaces by name.
func (l *Ledger) Namespaces(ctx context.Context) ([]string, error) {
	out, err := l.q.NamespaceNames(ctx)
	if err != nil {
		return nil, l.lane.outward(err)
	}
	return out, nil
}

// Pool gives one pool with its balances.
func (l *Ledger) Pool(ctx context.Context, ns, name string) (Pool, error) {
	all, err := l.Pools(ctx, ns)
	if err != nil {
		return Pool{}, err
	}
	for _, p := range all {
		if p.Name == name {
			return p, nil
		}
	}
	return Pool{}, refuse(ErrUnknownPool, "there is no pool %q in namespace %q", name, ns)
}

// Pools lists the pools of a namespace by name.
func (l *Ledger) Pools(ctx context.Context, ns string) ([]Pool, error) {
	tx, err := l.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, l.lane.outward(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	q := dbgen.New(tx)
	rows, err := q.PoolsOf(ctx, ns)
	if err != nil {
		return nil, l.lane.outward(err)
	}
	ids := make([]int64, 0, len(rows))
	at := map[int64]int{}
	out := make([]Pool, 0, len(rows))
	for i, p := range rows {
		ids = append(ids, p.ID)
		at[p.ID] = i
		out = append(out, Pool{Namespace: ns, Name: p.Name, Cluster: p.Cluster, Labels: labelsOf(p.Labels), TargetAgents: int(p.TargetAgents),
			PlacementStrategy: p.PlacementStrategy, PGPoolConfig: p.PgPoolConfig, Version: p.Version, CreatedAt: p.CreatedAt,
			MaxRuntime: ms(p.MaxRuntimeMs), Hold: Hold{p.Hold, p.HoldReason, p.HoldActor, orZero(p.HeldAt), orZero(p.DrainUntil)}})
	}
	balances, err := q.Balances(ctx, ids)
	if err != nil {
		return nil, l.lane.outward(err)
	}
	for _, b := range balances {
		p := &out[at[b.PoolID]]
		p.Balances = append(p.Balances, Balance{Resource: b.Resource, Capacity: b.Capacity, Reserved: b.Reserved, Used: b.Used, Borrowed: b.Borrowed, Lent: b.Lent})
	}
	for i := range out {
		slices.SortStableFunc(out[i].Balances, func(x, y Balance) int { return rank(x.Resource) - rank(y.Resource) })
	}
	loans, err := q.LoansOf(ctx, ids)
	if err != nil {
		return nil, l.lane.outward(err)
	}
	for _, x := range loans {
		lent := Loan{Lender: out[at[x.LenderID]].Name, Borrower: out[at[x.BorrowerID]].Name, Resource: x.Resource, Amount: x.Amount}
		out[at[x.LenderID]].Loans = append(out[at[x.LenderID]].Loans, lent)
		out[at[x.BorrowerID]].Loans = append(out[at[x.BorrowerID]].Loans, lent)
	}
	groups, err := q.GroupsOf(ctx, ids)
	if err != nil {
		return nil, l.lane.outward(err)
	}
	tellGroups(groups, out, at)
	counts, err := q.CountByPool(ctx, ns)
	if err != nil {
		return nil, l.lane.outward(err)
	}
	for _, c := range counts {
		for i := range out {
			if out[i].Name != c.PoolName {
				continue
			}
			if State(c.State) == Queued {
				out[i].Queued += int(c.N)
			} else {
				out[i].Running += int(c.N)
			}
		}
	}
	return out, nil
}

func rank(resource string) int {
	if at := slices.Index([]string{"cpu", "gpu", "memory"}, resource); at >= 0 {
		return at
	}
	return 3
}

func agentOf(t dbgen.Task, ns string) Agent {
	a := Agent{UID: t.Uid.Bytes, Name: t.AgentName, Namespace: ns, Pool: t.PoolName, State: State(t.State), Labels: labelsOf(t.Labels), Node: t.NodeID,
		ActorName: t.ActorName, RayNS: t.RayNamespace, ActorID: t.ActorID, PID: int(t.Pid), CreatedAt: t.SubmittedAt, ReadyAt: orZero(t.StartedAt), Code: t.Code, Reason: t.Reason}
	_ = a.Request.UnmarshalJSON(t.Request)
	var spec Spec
	_ = json.Unmarshal(t.Spec, &spec)
	a.ActorClass = spec.ActorClass
	if a.ActorClass == "" {
		a.ActorClass = spec.PickledName
	}
	return a
}

// Agents lists live agents by name.
func (l *Ledger) Agents(ctx context.Context, ns string, limit int, cursor string) (Page[Agent], error) {
	return l.agents(ctx, ns, AgentFilter{Limit: limit, Cursor: cursor})
}

func (l *Ledger) tasksOn(ctx context.Context, ns string, agents []Agent, names []string) error {
	on, err := l.q.TasksOnAgents(ctx, dbgen.TasksOnAgentsParams{Namespace: ns, Names: names})
	if err != nil {
		return l.lane.outward(err)
	}
	for _, t := range on {
		for i := range agents {
			if agents[i].Name == t.AgentName {
				agents[i].TaskIDs = append(agents[i].TaskIDs, deref(t.TaskID))
			}
		}
	}
	return nil
}

// Agent gives an agent by its name or its task's id: the live one, or the latest.
func (l *Ledger) Agent(ctx context.Context, ns, name string) (Agent, error) {
	t, err := l.q.AgentByName(ctx, dbgen.AgentByNameParams{Namespace: ns, Name: name})
	if errors.Is(err, pgx.ErrNoRows) {
		return Agent{}, refuse(ErrUnknownAgent, "there is no agent %q in namespace %q", name, ns)
	}
	if err != nil {
		return Agent{}, l.lane.outward(err)
	}
	one := []Agent{agentOf(t, ns)}
	if !one[0].State.Live() {
		return one[0], nil
	}
	return one[0], l.oneAgentTasks(ctx, ns, &one[0])
}

func (l *Ledger) oneAgentTasks(ctx context.Context, ns string, a *Agent) error {
	one := []Agent{*a}
	err := l.tasksOn(ctx, ns, one, []string{a.Name})
	*a = one[0]
	return err
}

func (l *Ledger) agentByUID(ctx context.Context, ns string, uid sched.ID) (Agent, error) {
	row, err := l.q.TaskByUID(ctx, pgUUID(uid))
	if errors.Is(err, pgx.ErrNoRows) {
		return Agent{}, errForgotten
	}
	if err != nil {
		return Agent{}, l.lane.outward(err)
	}
	a := agentOf(row.Task, ns)
	if row.Task.Kind == string(KindTask) && row.Task.TaskID != nil {
		a.TaskIDs = []string{*row.Task.TaskID}
	}
	return a, nil
}

// WaitAgent waits until an agent is ready or has ended, or ctx ends.
func (l *Ledger) WaitAgent(ctx context.Context, ns string, uid sched.ID) (Agent, error) {
	if _, err := l.WaitTask(ctx, ns, uid); err != nil {
		return Agent{}, err
	}
	return l.agentByUID(context.WithoutCancel(ctx), ns, uid)
}

func preemptionOf(p dbgen.Preemption, ns string) Preemption {
	out := Preemption{ID: p.ID, Namespace: ns, PreemptorUID: p.PreemptorUid.Bytes, PreemptorTask: p.PreemptorTask, PreemptorPool: p.PreemptorPool,
		VictimUID: p.VictimUid.Bytes, VictimTask: p.VictimTask, AgentName: p.AgentName, Pool: p.PoolName, Priority: sched.Milli(p.Priority), Reason: p.Reason,
		Score: sched.Micro(p.Score), Explanation: p.Explanation, PolicyVersion: int(p.PolicyVersion), Phase: p.Phase, Loan: p.Loan,
		CancelSuccess: p.CancelSuccess, CancelError: p.CancelError, SaveError: p.SaveError, SavedState: p.SavedState, DecidedAt: p.DecidedAt,
		CancelledAt: orZero(p.CancelledAt), SavedAt: orZero(p.SavedAt), GoneAt: orZero(p.GoneAt), RunningAt: orZero(p.RunningAt), Actor: p.Actor}
	_ = out.Taken.UnmarshalJSON(p.Taken)
	return out
}

// Preemptions lists who made way, latest first.
func (l *Ledger) Preemptions(ctx context.Context, ns string, limit int, cursor string) (Page[Preemption], error) {
	limit = pageSize(limit)
	var before int64
	if cursor != "" {
		n, err := strconv.ParseInt(cursor, 10, 64)
		if err != nil || n <= 0 {
			return Page[Preemption]{}, invalid("cursor", "is not one that a list gave: start without one")
		}
		before = n
	}
	rows, err := l.q.ListPreemptions(ctx, dbgen.ListPreemptionsParams{Namespace: ns, Before: before, RowLimit: int32(limit + 1)})
	if err != nil {
		return Page[Preemption]{}, l.lane.outward(err)
	}
	var out Page[Preemption]
	for i, p := range rows {
		if i == limit {
			out.Next = strconv.FormatInt(out.Items[limit-1].ID, 10)
			break
		}
		out.Items = append(out.Items, preemptionOf(p, ns))
	}
	return out, nil
}

// Preemption gives one by its number.
func (l *Ledger) Preemption(ctx context.Context, ns string, id int64) (Preemption, error) {
	p, err := l.q.PreemptionByID(ctx, dbgen.PreemptionByIDParams{Namespace: ns, ID: id})
	if errors.Is(err, pgx.ErrNoRows) {
		return Preemption{}, refuse(ErrUnknown, "there is no preemption %d in namespace %q", id, ns)
	}
	if err != nil {
		return Preemption{}, l.lane.outward(err)
	}
	return preemptionOf(p, ns), nil
}

// Stats are the seeds' figures, with the latest 20 preemptions.
func (l *Ledger) Stats(ctx context.Context, ns string) (Stats, error) {
	rows, err := l.q.PreemptionCounts(ctx, ns)
	if err != nil {
		return Stats{}, l.lane.outward(err)
	}
	var s Stats
	for _, r := range rows {
		s.Total += r.N
		s.FailedCancels += r.FailedCancels
		switch r.Reason {
		case "same_pool_preemption":
			s.SamePool += r.N
		case "cross_pool_preemption":
			s.CrossPool += r.N
		case "label_based_preemption":
			s.Label += r.N
		}
	}
	counts, err := l.Counts(ctx, ns)
	if err != nil {
		return Stats{}, err
	}
	s.RunningTasks = int64(counts[Running] + counts[Launching] + counts[Reserved])
	recent, err := l.Preemptions(ctx, ns, 20, "")
	s.Recent = recent.Items
	return s, err
}

// Verify recomputes every balance from tasks and loans and describes each difference.
func (l *Ledger) Verify(ctx context.Context) ([]string, error) { return Verify(ctx, l.pool) }

// Verify recomputes every balance of a database from its tasks and loans.
func Verify(ctx context.Context, conn dbgen.DBTX) ([]string, error) {
	q := dbgen.New(conn)
	rows, err := q.Differences(ctx)
	if err != nil {
		return nil, fmt.Errorf("ledger: verify: %w", err)
	}
	var out []string
	for _, d := range rows {
		out = append(out, fmt.Sprintf("%s/%s %s: reserved %d is %d, used %d is %d, borrowed %d is %d, lent %d is %d (ledger, then recomputed)",
			d.Namespace, d.Pool, d.Resource, d.Reserved, d.TrueReserved, d.Used, d.TrueUsed, d.Borrowed, d.TrueBorrowed, d.Lent, d.TrueLent))
	}
	orphans, err := q.OrphanHolders(ctx)
	if err != nil {
		return nil, fmt.Errorf("ledger: verify: %w", err)
	}
	for _, o := range orphans {
		out = append(out, fmt.Sprintf("task %s (%s) holds quota of pool %s, which is gone", uuidString(o.Uid.Bytes), deref(o.TaskID), o.PoolName))
	}
	return out, nil
}
