package ledger

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// What the dashboard reads beyond what the REST API does: counts, filters, and the
// figures of a day. All of it goes straight to Postgres, like read.go.

// MostCounted is where counting the rows of a list ends: beyond, a count is −1.
const MostCounted = 10_000

// readError maps an error of a read. A reader who went away is nobody's fault.
func (l *Ledger) readError(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return l.lane.outward(err)
}

func counted(n int64) int {
	if n > MostCounted {
		return -1
	}
	return int(n)
}

// Extent is how much there is in a namespace.
type Extent struct{ Pools, LiveTasks, Agents int }

// Extent counts pools, live tasks and agents; zero for a namespace nobody made.
func (l *Ledger) Extent(ctx context.Context, ns string) (Extent, error) {
	row, err := l.q.ViewFrame(ctx, ns)
	if errors.Is(err, pgx.ErrNoRows) {
		return Extent{}, nil
	}
	if err != nil {
		return Extent{}, l.readError(err)
	}
	return Extent{Pools: int(row.Pools), LiveTasks: int(row.Tasks), Agents: int(row.Agents)}, nil
}

// CountTasks counts the tasks a filter lets through, −1 when there are more than MostCounted.
func (l *Ledger) CountTasks(ctx context.Context, ns string, f TaskFilter) (int, error) {
	p := dbgen.ViewCountTasksParams{Namespace: ns, Live: f.Live, Pool: f.Pool, Txt: f.Text, Labels: labelsJSON(f.Labels), States: []string{}, Most: MostCounted + 1}
	for _, s := range f.States {
		p.States = append(p.States, string(s))
	}
	n, err := l.q.ViewCountTasks(ctx, p)
	if err != nil {
		return 0, l.readError(err)
	}
	return counted(n), nil
}

// PoolTasks lists the live tasks of a pool that do not wait, highest priority first.
func (l *Ledger) PoolTasks(ctx context.Context, ns, pool string, limit int) ([]Task, error) {
	rows, err := l.q.ViewPoolTasks(ctx, dbgen.ViewPoolTasksParams{Namespace: ns, Pool: pool, RowLimit: int32(pageSize(limit))})
	if err != nil {
		return nil, l.readError(err)
	}
	out := make([]Task, len(rows))
	for i, r := range rows {
		if out[i], err = listed(dbgen.ListTasksRow(r), ns); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Line gives a page of who stands in line for a pool, after so many, and how many stand
// in it in all. Who failed and is tried again later stands in no line meanwhile.
func (l *Ledger) Line(ctx context.Context, ns, pool string, after, limit int) (tasks []Task, all int, err error) {
	limit = pageSize(limit)
	err = l.lane.look(ctx, func(b *book) {
		s := b.spaces[ns]
		if s == nil || s.pools[pool] == nil {
			return
		}
		p := s.pools[pool]
		all = p.line.Len()
		var rows []*row
		at := 0
		for id := range p.line.All() {
			if at++; at <= after {
				continue
			}
			if len(rows) == limit {
				break
			}
			rows = append(rows, b.rows[id])
		}
		told := b.outlooks(p, rows, l.now())
		for _, r := range rows {
			t := b.task(r, nil)
			told[r.uid].tell(&t)
			tasks = append(tasks, t)
		}
	})
	return tasks, all, err
}

// QueueHeads gives who is first in line, by pool name.
func (l *Ledger) QueueHeads(ctx context.Context, ns string) (map[string]Task, error) {
	out := map[string]Task{}
	err := l.lane.look(ctx, func(b *book) {
		s := b.spaces[ns]
		if s == nil {
			return
		}
		for name, p := range s.pools {
			if head := b.head(p); head != nil {
				t := b.task(head, nil)
				t.QueuePosition = 1
				out[name] = t
			}
		}
	})
	return out, err
}

// WhyQueued asks the core why rows that wait cannot start now. What their rows say of it
// is as old as the last time they were tried. A row that could start is left out: it
// is about to.
func (l *Ledger) WhyQueued(ctx context.Context, uids ...sched.ID) (map[sched.ID]sched.Refusal, error) {
	out := map[sched.ID]sched.Refusal{}
	err := l.lane.look(ctx, func(b *book) {
		now := sched.Time(l.now().UnixMilli())
		for _, id := range uids {
			r := b.rows[id]
			if r == nil || r.state != Queued {
				continue
			}
			if r.pool.hold.on() {
				out[id] = sched.Refusal{Code: codePoolHeld, Message: r.pool.hold.sentence("pool " + r.poolName)}
				continue
			}
			d := r.space.core.Decide(b.incoming(r), now)
			if d.Outcome == sched.Refuse {
				out[id] = d.Refusal
			}
		}
	})
	return out, err
}

// Standing is what a list says of a task that its row does not.
type Standing struct {
	Since    time.Time // when it came into the state it is in
	Position int       // in the queue, 1 is next; 0 when it does not wait
}

// Standings gives the standing of each of some tasks.
func (l *Ledger) Standings(ctx context.Context, ns string, tasks []Task) (map[sched.ID]Standing, error) {
	out := make(map[sched.ID]Standing, len(tasks))
	var passing []pgtype.UUID
	var waiting []sched.ID
	for _, t := range tasks {
		switch {
		case t.State == Queued:
			out[t.UID] = Standing{Since: t.QueuedAt}
			if t.QueuedAt.IsZero() {
				out[t.UID] = Standing{Since: t.SubmittedAt}
			}
			waiting = append(waiting, t.UID)
		case t.State == Running && !t.StartedAt.IsZero():
			out[t.UID] = Standing{Since: t.StartedAt}
		case !t.State.Live():
			out[t.UID] = Standing{Since: t.EndedAt}
		default:
			passing = append(passing, pgUUID(t.UID))
		}
	}
	if len(passing) > 0 {
		rows, err := l.q.ViewSince(ctx, passing)
		if err != nil {
			return nil, l.readError(err)
		}
		for _, r := range rows {
			out[r.Uid.Bytes] = Standing{Since: r.Since}
		}
	}
	if len(waiting) > 0 {
		if err := l.lane.look(ctx, func(b *book) {
			for _, id := range waiting {
				if r := b.rows[id]; r != nil && r.pool != nil {
					s := out[id]
					s.Position = r.pool.line.Position(id)
					out[id] = s
				}
			}
		}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// TaskReport is everything about one task.
type TaskReport struct {
	Task
	OnInsufficient string
	Pickled        bool
	Latest         bool         // no later task has its id
	Gang           []string     // with which tasks it waits: all start together or none does
	Earlier        []sched.ID   // earlier tasks of the same id, latest first
	Events         []Event      // oldest first
	Handovers      []Preemption // in which it made way, or was made way for; latest first
}

// TaskReport reads a task by its id, or by its uid.
func (l *Ledger) TaskReport(ctx context.Context, ns, ref string) (TaskReport, error) {
	found, err := l.q.TaskByID(ctx, dbgen.TaskByIDParams{Namespace: ns, TaskID: &ref})
	row, seat := found.Task, found.Seat
	if id, bad := uuid.Parse(ref); errors.Is(err, pgx.ErrNoRows) && bad == nil {
		var byUID dbgen.TaskByUIDRow
		byUID, err = l.q.TaskByUID(ctx, pgUUID(sched.ID(id)))
		if row, seat = byUID.Task, byUID.Seat; err == nil && (byUID.Namespace != ns || row.Kind == string(KindAgent)) {
			err = pgx.ErrNoRows
		}
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return TaskReport{}, refuse(ErrUnknownTask, "there is no task %q in namespace %q", ref, ns)
	}
	if err != nil {
		return TaskReport{}, l.readError(err)
	}
	out := TaskReport{OnInsufficient: row.OnInsufficient, Pickled: len(row.Pickled) > 0}
	if out.Task, err = l.filled(ctx, row, ns, seat); err != nil {
		return out, err
	}
	if out.State == Queued {
		if out.Gang, err = l.waitsWith(ctx, out.UID); err != nil {
			return out, err
		}
	}
	uids, err := l.q.TaskUIDs(ctx, dbgen.TaskUIDsParams{Namespace: ns, TaskID: row.TaskID})
	if err != nil {
		return out, l.readError(err)
	}
	out.Latest = len(uids) == 0 || uids[0] == row.Uid
	for _, id := range uids {
		if slices.Compare(id.Bytes[:], row.Uid.Bytes[:]) < 0 {
			out.Earlier = append(out.Earlier, id.Bytes)
		}
	}
	events, err := l.q.TaskEvents(ctx, []pgtype.UUID{row.Uid})
	if err != nil {
		return out, l.readError(err)
	}
	for _, e := range events {
		out.Events = append(out.Events, eventOf(e, ns))
	}
	ids, err := l.q.ViewPreemptionsOf(ctx, pgUUID(out.UID))
	if err != nil {
		return out, l.readError(err)
	}
	if len(ids) == 0 {
		return out, nil
	}
	out.Handovers, err = l.handovers(ctx, ns, ids)
	return out, err
}

// waitsWith names the other tasks of a gang that a row waits with, sorted.
func (l *Ledger) waitsWith(ctx context.Context, uid sched.ID) (names []string, err error) {
	err = l.lane.look(ctx, func(b *book) {
		r := b.rows[uid]
		if r == nil || r.gang() == (sched.ID{}) {
			return
		}
		for _, m := range b.gangs[r.gang()] {
			if m != r {
				names = append(names, m.taskID)
			}
		}
	})
	slices.Sort(names)
	return names, err
}

// handovers reads preemptions by their ids, which are sorted, latest first, with the
// sizes of what was saved.
func (l *Ledger) handovers(ctx context.Context, ns string, ids []int64) ([]Preemption, error) {
	rows, err := l.q.ViewPreemptions(ctx, dbgen.ViewPreemptionsParams{Namespace: ns, Ids: ids, Before: ids[0] + 1, Sizes: true, RowLimit: int32(len(ids))})
	if err != nil {
		return nil, l.readError(err)
	}
	out := make([]Preemption, len(rows))
	for i, r := range rows {
		out[i] = handoverOf(r, ns)
	}
	return out, nil
}

func handoverOf(p dbgen.ViewPreemptionsRow, ns string) Preemption {
	out := Preemption{ID: p.ID, Namespace: ns, PreemptorUID: p.PreemptorUid.Bytes, PreemptorTask: p.PreemptorTask, PreemptorPool: p.PreemptorPool,
		PreemptorAttempt: int(p.PreemptorAttempt), VictimAttempt: int(p.VictimAttempt), StateSize: p.StateSize,
		VictimUID: p.VictimUid.Bytes, VictimTask: p.VictimTask, AgentName: p.AgentName, Pool: p.PoolName, Priority: sched.Milli(p.Priority), Reason: p.Reason,
		Score: sched.Micro(p.Score), Explanation: p.Explanation, PolicyVersion: int(p.PolicyVersion), Phase: p.Phase, Loan: p.Loan,
		CancelSuccess: p.CancelSuccess, CancelError: p.CancelError, SaveError: p.SaveError, DecidedAt: p.DecidedAt,
		CancelledAt: orZero(p.CancelledAt), SavedAt: orZero(p.SavedAt), GoneAt: orZero(p.GoneAt), RunningAt: orZero(p.RunningAt), Actor: p.Actor}
	if p.CancellingAt.Unix() != 0 {
		out.CancellingAt = p.CancellingAt
	}
	_ = out.Taken.UnmarshalJSON(p.Taken)
	return out
}

// AgentFilter narrows a list of agents.
type AgentFilter struct {
	Pool, Text string
	Limit      int
	Cursor     string
}

// FindAgents lists live agents by name, and counts them all.
func (l *Ledger) FindAgents(ctx context.Context, ns string, f AgentFilter) (Page[Agent], int, error) {
	n, err := l.q.ViewCountAgents(ctx, dbgen.ViewCountAgentsParams{Namespace: ns, Pool: f.Pool, Txt: f.Text})
	if err != nil {
		return Page[Agent]{}, 0, l.readError(err)
	}
	page, err := l.agents(ctx, ns, f)
	return page, int(n), err
}

func (l *Ledger) agents(ctx context.Context, ns string, f AgentFilter) (Page[Agent], error) {
	limit := pageSize(f.Limit)
	after := ""
	if f.Cursor != "" {
		b, err := base64.RawURLEncoding.DecodeString(f.Cursor)
		if err != nil {
			return Page[Agent]{}, invalid("cursor", "is not one that a list gave: start without one")
		}
		after = string(b)
	}
	rows, err := l.q.ViewAgents(ctx, dbgen.ViewAgentsParams{Namespace: ns, After: after, Pool: f.Pool, Txt: f.Text, RowLimit: int32(limit + 1)})
	if err != nil {
		return Page[Agent]{}, l.readError(err)
	}
	var out Page[Agent]
	var names []string
	for i, t := range rows {
		if i == limit {
			out.Next = base64.RawURLEncoding.EncodeToString([]byte(out.Items[limit-1].Name))
			break
		}
		a := Agent{UID: t.Uid.Bytes, Name: t.AgentName, Namespace: ns, Pool: t.PoolName, State: State(t.State), Labels: labelsOf(t.Labels), Node: t.NodeID,
			ActorName: t.ActorName, RayNS: t.RayNamespace, ActorID: t.ActorID, PID: int(t.Pid), CreatedAt: t.SubmittedAt, ReadyAt: orZero(t.StartedAt),
			Code: t.Code, Reason: t.Reason, ActorClass: t.Class}
		if err := a.Request.UnmarshalJSON(t.Request); err != nil {
			return out, err
		}
		out.Items = append(out.Items, a)
		names = append(names, t.AgentName)
	}
	return out, l.tasksOn(ctx, ns, out.Items, names)
}

// PreemptionFilter narrows the history of preemptions. Zero fields do not narrow.
type PreemptionFilter struct {
	Reason string
	Pool   string // on either side
	Task   string // on either side
	Limit  int
	Cursor string
}

// FindPreemptions lists who made way, latest first and without saved states, and
// counts them, −1 when there are more than MostCounted.
func (l *Ledger) FindPreemptions(ctx context.Context, ns string, f PreemptionFilter) (Page[Preemption], int, error) {
	limit := pageSize(f.Limit)
	before, err := numberCursor(f.Cursor)
	if err != nil {
		return Page[Preemption]{}, 0, err
	}
	rows, err := l.q.ViewPreemptions(ctx, dbgen.ViewPreemptionsParams{Namespace: ns, Ids: []int64{}, Before: before, Reason: f.Reason, Pool: f.Pool, Task: f.Task, RowLimit: int32(limit + 1)})
	if err != nil {
		return Page[Preemption]{}, 0, l.readError(err)
	}
	n, err := l.q.ViewCountPreemptions(ctx, dbgen.ViewCountPreemptionsParams{Namespace: ns, Reason: f.Reason, Pool: f.Pool, Task: f.Task, Most: MostCounted + 1})
	if err != nil {
		return Page[Preemption]{}, 0, l.readError(err)
	}
	var out Page[Preemption]
	for i, p := range rows {
		if i == limit {
			out.Next = strconv.FormatInt(out.Items[limit-1].ID, 10)
			break
		}
		out.Items = append(out.Items, handoverOf(p, ns))
	}
	return out, counted(n), nil
}

func numberCursor(cursor string) (int64, error) {
	if cursor == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(cursor, 10, 64)
	if err != nil || n <= 0 {
		return 0, invalid("cursor", "is not one that a list gave: start without one")
	}
	return n, nil
}

// PreemptionReport is one preemption with what was decided together with it.
type PreemptionReport struct {
	Preemption
	Together  []Preemption // those of the same decision, this one included, in the order they were chosen
	Preemptor *TaskReport  // nil when asked for by hand
	Victim    *TaskReport
}

// PreemptionReport reads one preemption and both its sides.
func (l *Ledger) PreemptionReport(ctx context.Context, ns string, id int64) (PreemptionReport, error) {
	found, err := l.handovers(ctx, ns, []int64{id})
	if err != nil {
		return PreemptionReport{}, err
	}
	if len(found) == 0 {
		return PreemptionReport{}, refuse(ErrUnknown, "there is no preemption %d in namespace %q", id, ns)
	}
	out := PreemptionReport{Preemption: found[0]}
	side := func(uid sched.ID) (*TaskReport, error) {
		t, err := l.TaskReport(ctx, ns, uuidString(uid))
		if errors.Is(err, ErrUnknownTask) {
			return nil, nil
		}
		return &t, err
	}
	if out.Victim, err = side(out.VictimUID); err != nil {
		return out, err
	}
	if out.PreemptorUID == (sched.ID{}) {
		return out, nil
	}
	if out.Preemptor, err = side(out.PreemptorUID); err != nil || out.Preemptor == nil {
		return out, err
	}
	for _, p := range out.Preemptor.Handovers {
		if p.PreemptorUID == out.PreemptorUID && p.PreemptorAttempt == out.PreemptorAttempt && p.DecidedAt.Equal(out.DecidedAt) {
			out.Together = append(out.Together, p)
		}
	}
	slices.Reverse(out.Together)
	return out, nil
}

// EventFilter narrows the feed. Zero fields do not narrow.
type EventFilter struct {
	TaskID string
	Pool   string
	Types  []string
	Limit  int
	Cursor string
}

// TimedEvent is an event with how long the stretch took that it ends: the launch of
// a task that runs, the run of one that ended, the handover of one that made way.
type TimedEvent struct {
	Event
	Took time.Duration
}

// Looking for events ends after so many ids, once it took so long: what is rare, or in a
// namespace that is quiet on a server that is not, may be far back.
const (
	eventWindow   = 100_000
	eventPatience = 50 * time.Millisecond
)

// FindEvents lists events, newest first. A page may hold fewer than were asked for, even
// none, and yet have a next one: what was looked at in time had no more.
func (l *Ledger) FindEvents(ctx context.Context, ns string, f EventFilter) (Page[TimedEvent], error) {
	var out Page[TimedEvent]
	limit := pageSize(f.Limit)
	before, err := numberCursor(f.Cursor)
	if err != nil {
		return out, err
	}
	p := dbgen.ViewEventsParams{Namespace: ns, Before: before, Pool: f.Pool, Types: f.Types, Uids: []pgtype.UUID{}}
	if p.Types == nil {
		p.Types = []string{}
	}
	if f.TaskID != "" {
		p.ByTask = true
		if p.Uids, err = l.q.TaskUIDs(ctx, dbgen.TaskUIDsParams{Namespace: ns, TaskID: &f.TaskID}); err != nil {
			return out, l.readError(err)
		}
		if len(p.Uids) == 0 {
			return out, nil
		}
	}
	if p.Before == 0 {
		last, err := l.q.LastEventID(ctx)
		if err != nil {
			return out, l.readError(err)
		}
		p.Before = last + 1
	}
	for began := time.Now(); p.Before > 1; p.Before = p.After + 1 {
		if len(out.Items) == limit || time.Since(began) > eventPatience {
			out.Next = strconv.FormatInt(p.Before, 10)
			break
		}
		if p.After = max(0, p.Before-1-eventWindow); p.ByTask { // found by an index
			p.After = 0
		}
		p.RowLimit = int32(limit + 1 - len(out.Items))
		rows, err := l.q.ViewEvents(ctx, p)
		if err != nil {
			return out, l.readError(err)
		}
		for _, e := range rows {
			if len(out.Items) == limit {
				out.Next = strconv.FormatInt(out.Items[limit-1].ID, 10)
				return out, nil
			}
			out.Items = append(out.Items, TimedEvent{Took: e.At.Sub(e.Began), Event: Event{ID: e.ID, At: e.At, Namespace: ns, TaskUID: e.TaskUid.Bytes, TaskID: e.TaskID,
				Pool: e.PoolName, Attempt: int(e.Attempt), Type: e.Type, Actor: e.Actor, Code: e.Code, Message: e.Message, Detail: e.Detail, PolicyVersion: int(e.PolicyVersion)}})
		}
	}
	return out, nil
}

// PreemptionDay is what preemptions were like lately.
type PreemptionDay struct {
	Hours  [24]map[string]int // by reason; the last one ends now
	Before int                // in the 24 hours before those
	Waits  int                // how many preemptors ran in the 24 hours, which is what the times are of
	P50    time.Duration      // decided → preemptor running
	P99    time.Duration
	Cancel time.Duration // medians of the phases
	Save   time.Duration
	Kill   time.Duration
	Launch time.Duration
}

// PreemptionDay reports on the 24 hours before now.
func (l *Ledger) PreemptionDay(ctx context.Context, ns string, now time.Time) (PreemptionDay, error) {
	const day = 24 * time.Hour
	var out PreemptionDay
	rows, err := l.q.ViewPreemptionHours(ctx, dbgen.ViewPreemptionHoursParams{Namespace: ns, Now: now, Since: now.Add(-2 * day)})
	if err != nil {
		return out, l.readError(err)
	}
	for _, r := range rows {
		if r.HoursAgo < 0 || r.HoursAgo >= 24 {
			out.Before += int(r.N)
			continue
		}
		h := &out.Hours[23-r.HoursAgo]
		if *h == nil {
			*h = map[string]int{}
		}
		(*h)[r.Reason] += int(r.N)
	}
	t, err := l.q.ViewHandoverTimes(ctx, dbgen.ViewHandoverTimesParams{Namespace: ns, Since: now.Add(-day)})
	if err != nil {
		return out, l.readError(err)
	}
	out.Waits = int(t.N)
	out.P50, out.P99 = fromMillis(t.P50), fromMillis(t.P99)
	out.Cancel, out.Save, out.Kill, out.Launch = fromMillis(t.Cancel), fromMillis(t.Save), fromMillis(t.Kill), fromMillis(t.Launch)
	return out, nil
}

func fromMillis(f float64) time.Duration { return time.Duration(f * float64(time.Millisecond)) }

// GPUTime is how long GPUs were held by attempts since a time, and how much of that
// was thrown away: run by victims that left no saved state to go on from. It reads
// every task that ended since, so callers keep the answer for a while.
func (l *Ledger) GPUTime(ctx context.Context, ns string, since, now time.Time) (lost, used time.Duration, err error) {
	a, err := l.q.ViewGPULost(ctx, dbgen.ViewGPULostParams{Namespace: ns, Since: since})
	if err != nil {
		return 0, 0, l.readError(err)
	}
	b, err := l.q.ViewGPUUsed(ctx, dbgen.ViewGPUUsedParams{Namespace: ns, Since: since, Now: now})
	if err != nil {
		return 0, 0, l.readError(err)
	}
	return fromMillis(a * 1000), fromMillis(b * 1000), nil
}

// LoanSince is a loan and when it was last made larger.
type LoanSince struct {
	Loan
	Since time.Time
}

// LoansOf lists the loans from and to a pool.
func (l *Ledger) LoansOf(ctx context.Context, ns, pool string) ([]LoanSince, error) {
	rows, err := l.q.ViewLoans(ctx, dbgen.ViewLoansParams{Namespace: ns, Pool: pool})
	if err != nil {
		return nil, l.readError(err)
	}
	out := make([]LoanSince, 0, len(rows))
	for _, r := range rows {
		out = append(out, LoanSince{Loan{Lender: r.Lender, Borrower: r.Borrower, Resource: r.Resource, Amount: r.Amount}, r.Since})
	}
	return out, nil
}

// Classes lists the import paths submitted lately.
func (l *Ledger) Classes(ctx context.Context, ns string) ([]string, error) {
	out, err := l.q.ViewClasses(ctx, ns)
	if err != nil {
		return nil, l.readError(err)
	}
	return out, nil
}

// Found is a name that contains what was looked for.
type Found struct {
	Kind  string // pool, task, agent
	Name  string
	State State  // of a task or an agent
	Place string // the pool of a task or an agent, the cluster of a pool
}

// Find looks for names that contain a text: the exact one first, then what begins with it.
func (l *Ledger) Find(ctx context.Context, ns, text string, limit int) ([]Found, error) {
	if err := clean("text", text, 1000); err != nil {
		return nil, err
	}
	rows, err := l.q.ViewFind(ctx, dbgen.ViewFindParams{Namespace: ns, Txt: text, RowLimit: int32(pageSize(limit))})
	if err != nil {
		return nil, l.readError(err)
	}
	out := make([]Found, 0, len(rows))
	for _, r := range rows {
		out = append(out, Found{Kind: r.Kind, Name: r.Name, State: State(r.State), Place: r.Place})
	}
	return out, nil
}

// PolicyPage lists versions of the policy, latest first.
func (l *Ledger) PolicyPage(ctx context.Context, ns, cursor string, limit int) (Page[PolicyVersion], error) {
	limit = pageSize(limit)
	before, err := numberCursor(cursor)
	if err != nil {
		return Page[PolicyVersion]{}, err
	}
	rows, err := l.q.ViewPolicyHistory(ctx, dbgen.ViewPolicyHistoryParams{Namespace: ns, Before: int32(min(before, 1<<30)), RowLimit: int32(limit + 1)})
	if err != nil {
		return Page[PolicyVersion]{}, l.readError(err)
	}
	var out Page[PolicyVersion]
	for i, r := range rows {
		if i == limit {
			out.Next = strconv.Itoa(out.Items[limit-1].Version)
			break
		}
		v, err := policyVersionOf(r)
		if err != nil {
			return out, err
		}
		out.Items = append(out.Items, v)
	}
	return out, nil
}

// CheckPolicy says what a change would make of the active policy, and what is odd about that.
// A change that is not valid is refused, as by PutPolicy.
func (l *Ledger) CheckPolicy(ctx context.Context, ns string, patch json.RawMessage) (sched.Policy, []string, error) {
	active, err := l.Policy(ctx, ns)
	if err != nil {
		return sched.Policy{}, nil, err
	}
	next, warnings, err := active.Policy.Patch(patch)
	var errs sched.FieldErrors
	if errors.As(err, &errs) {
		return next, nil, fieldErrors(errs)
	}
	if err != nil {
		return next, nil, err
	}
	pools, labels, err := l.known(ctx, ns)
	return next, append(warnings, next.Warnings(pools, labels)...), err
}
