package ledger

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// pipeline lets generated queries be queued in a pgx.Batch: statements of one
// transaction then travel in one round trip.
type pipeline struct{ *pgx.Batch }

func (p pipeline) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	p.Queue(sql, args...)
	return pgconn.CommandTag{}, nil
}

func (p pipeline) Query(context.Context, string, ...any) (pgx.Rows, error) {
	panic("ledger: a query that answers rows cannot be queued")
}

func (p pipeline) QueryRow(context.Context, string, ...any) pgx.Row {
	panic("ledger: a query that answers a row cannot be queued")
}

func (p pipeline) SendBatch(context.Context, *pgx.Batch) pgx.BatchResults {
	panic("ledger: a batch cannot be queued in another")
}

// sideWrite is a statement that belongs to a batch beside its row updates.
type sideWrite interface {
	queue(ctx context.Context, q *dbgen.Queries) error
}

type resultWrite struct {
	uid    sched.ID
	result json.RawMessage
}

func (w resultWrite) queue(ctx context.Context, q *dbgen.Queries) error {
	return q.WriteResult(ctx, dbgen.WriteResultParams{Uid: pgUUID(w.uid), Result: w.result})
}

type savedStateWrite struct {
	uid   sched.ID
	state json.RawMessage
}

func (w savedStateWrite) queue(ctx context.Context, q *dbgen.Queries) error {
	return q.WriteSavedState(ctx, dbgen.WriteSavedStateParams{Uid: pgUUID(w.uid), SavedState: w.state})
}

type sqlWrite func(ctx context.Context, q *dbgen.Queries) error

func (w sqlWrite) queue(ctx context.Context, q *dbgen.Queries) error { return w(ctx, q) }

// flush turns what the batch changed into statements.
func (b *batch) flush(ctx context.Context) *pgx.Batch {
	out := &pgx.Batch{}
	q := dbgen.New(pipeline{out})
	must := func(err error) { _ = err } // queueing cannot fail

	for _, s := range b.first {
		must(s.queue(ctx, q))
	}
	// Rows that were there first: what they let go of, names among it, may be taken by an insert.
	must(b.queueUpdates(ctx, q, false))
	if len(b.inserts) > 0 {
		var a dbgen.InsertTasksParams
		a.Now = b.now
		for _, in := range b.inserts {
			r := in.row
			spec, _ := json.Marshal(in.spec)
			a.Uids = append(a.Uids, pgUUID(r.uid))
			a.NamespaceIds = append(a.NamespaceIds, r.space.id)
			a.Kinds = append(a.Kinds, string(r.kind))
			a.TaskIds = append(a.TaskIds, r.taskID)
			a.PoolIds = append(a.PoolIds, r.poolID())
			a.PoolNames = append(a.PoolNames, r.poolName)
			a.States = append(a.States, string(r.state))
			a.Priorities = append(a.Priorities, int64(r.priority))
			a.Labels = append(a.Labels, labelsJSON(r.labels))
			a.Requests = append(a.Requests, r.request.AppendJSON(nil))
			a.Helds = append(a.Helds, r.held.AppendJSON(nil))
			a.HeldAss = append(a.HeldAss, r.heldAs)
			a.AgentNames = append(a.AgentNames, r.agentName)
			a.AgentUids = append(a.AgentUids, pgtype.UUID{Bytes: r.agentUID, Valid: true})
			a.NodeIds = append(a.NodeIds, string(r.node))
			a.LaunchIds = append(a.LaunchIds, r.launchID)
			a.ActorNames = append(a.ActorNames, r.actorName)
			a.RayNamespaces = append(a.RayNamespaces, r.rayNS)
			a.Specs = append(a.Specs, spec)
			a.Pickleds = append(a.Pickleds, in.spec.Pickled)
			a.BodyHashes = append(a.BodyHashes, []byte(r.bodyHash))
			a.Estimates = append(a.Estimates, r.estimate.Milliseconds())
			a.MaxRuntimes = append(a.MaxRuntimes, r.maxRuntime.Milliseconds())
			a.Launches = append(a.Launches, r.launch.Milliseconds())
			a.OnInsufficients = append(a.OnInsufficients, r.onInsufficient)
			a.OnPreempteds = append(a.OnPreempteds, r.onPreempted)
			a.OnFailures = append(a.OnFailures, r.onFailure)
			a.MaxAttemptss = append(a.MaxAttemptss, int32(r.maxAttempts))
			a.Actors = append(a.Actors, in.actor)
			a.ActorIds = append(a.ActorIds, r.actorID)
			a.Pids = append(a.Pids, int32(r.pid))
			a.Attempts = append(a.Attempts, int32(r.attempt))
			a.QueuedAts = append(a.QueuedAts, r.queued)
			a.StartedAts = append(a.StartedAts, r.started)
		}
		must(q.InsertTasks(ctx, a))
	}

	must(b.queueUpdates(ctx, q, true))

	if len(b.loanOut) > 0 {
		var l dbgen.WriteLoansParams
		l.Since = b.now
		for k := range b.loanOut {
			to := b.pools[k.borrower]
			at := slices.IndexFunc(to.loans, func(x loan) bool { return x.lender == k.lender })
			now := sched.Resources{}
			if at >= 0 {
				now = to.loans[at].amount
			}
			for _, name := range resourceNames(to.capacity.Add(b.pools[k.lender].capacity).Add(now)) {
				v := now.Get(name)
				if v == 0 {
					must(q.EndLoan(ctx, dbgen.EndLoanParams{LenderID: k.lender, BorrowerID: k.borrower, Resource: name}))
					continue
				}
				if !slices.Contains(to.names, name) {
					to.names = append(slices.Clone(to.names), name)
					must(q.AddResources(ctx, dbgen.AddResourcesParams{PoolID: to.id, Resources: []string{name}}))
				}
				l.LenderIds = append(l.LenderIds, k.lender)
				l.BorrowerIds = append(l.BorrowerIds, k.borrower)
				l.Resources = append(l.Resources, name)
				l.Amounts = append(l.Amounts, v)
			}
		}
		if len(l.LenderIds) > 0 {
			must(q.WriteLoans(ctx, l))
		}
	}
	var w dbgen.WriteBalancesParams
	for _, u := range b.touched {
		for _, bal := range u.pool.balances() {
			w.PoolIds = append(w.PoolIds, u.pool.id)
			w.Resources = append(w.Resources, bal.Resource)
			w.Capacities = append(w.Capacities, bal.Capacity)
			w.Reserveds = append(w.Reserveds, bal.Reserved)
			w.Useds = append(w.Useds, bal.Used)
			w.Borroweds = append(w.Borroweds, bal.Borrowed)
			w.Lents = append(w.Lents, bal.Lent)
		}
	}
	var bumped []int64
	for _, p := range b.moving() {
		bumped = append(bumped, p.id)
	}
	slices.Sort(bumped)
	b.bump(ctx, q, bumped)

	if len(w.PoolIds) > 0 {
		must(q.WriteBalances(ctx, w))
	}
	for _, g := range b.groups {
		must(g.queue(ctx, q))
	}
	must(b.queuePreemptions(ctx, q))
	for _, s := range b.writes {
		must(s.queue(ctx, q))
	}
	if len(b.events) > 0 {
		must(q.InsertEvents(ctx, eventParams(b.events, b.spaces)))
	}
	return out
}

// queueUpdates writes the changing part of rows that were there before, or of those just inserted.
func (b *batch) queueUpdates(ctx context.Context, q *dbgen.Queries, inserted bool) error {
	var u dbgen.UpdateTasksParams
	var s dbgen.StartTasksParams
	for _, e := range b.changed {
		r := e.row
		if e.inserted != inserted || inserted && !r.changedSinceInsert() {
			continue
		}
		if e.started && e.changes == 1 {
			s.Uids = append(s.Uids, pgUUID(r.uid))
			s.NodeIds = append(s.NodeIds, string(r.node))
			s.ActorNames = append(s.ActorNames, r.actorName)
			s.RayNamespaces = append(s.RayNamespaces, r.rayNS)
			s.ActorIds = append(s.ActorIds, r.actorID)
			s.Pids = append(s.Pids, int32(r.pid))
			continue
		}
		u.Uids = append(u.Uids, pgUUID(r.uid))
		u.States = append(u.States, string(r.state))
		u.Phases = append(u.Phases, r.phase)
		u.Attempts = append(u.Attempts, int32(r.attempt))
		u.Priorities = append(u.Priorities, int64(r.priority))
		u.Labels = append(u.Labels, labelsJSON(r.labels))
		u.Helds = append(u.Helds, r.held.AppendJSON(nil))
		u.HeldAss = append(u.HeldAss, r.heldAs)
		u.NodeIds = append(u.NodeIds, string(r.node))
		u.LaunchIds = append(u.LaunchIds, r.launchID)
		u.ActorNames = append(u.ActorNames, r.actorName)
		u.RayNamespaces = append(u.RayNamespaces, r.rayNS)
		u.ActorIds = append(u.ActorIds, r.actorID)
		u.Pids = append(u.Pids, int32(r.pid))
		u.Estimates = append(u.Estimates, r.estimate.Milliseconds())
		u.Failuress = append(u.Failuress, int32(r.failures))
		u.Preemptionss = append(u.Preemptionss, int32(r.preemptions))
		u.PreemptedBys = append(u.PreemptedBys, uuidArray(r.preemptedBy))
		u.Endings = append(u.Endings, string(r.ending))
		u.Codes = append(u.Codes, r.code)
		u.Reasons = append(u.Reasons, r.reason)
		u.QueuedAts = append(u.QueuedAts, r.queued)
		u.StartedAts = append(u.StartedAts, r.started)
		u.EndedAts = append(u.EndedAts, r.ended)
	}
	if len(s.Uids) > 0 {
		s.Now = b.now
		if err := q.StartTasks(ctx, s); err != nil {
			return err
		}
	}
	if len(u.Uids) == 0 {
		return nil
	}
	return q.UpdateTasks(ctx, u)
}

func eventParams(events []Event, spaces map[string]*space) dbgen.InsertEventsParams {
	var a dbgen.InsertEventsParams
	for _, e := range events {
		a.Ats = append(a.Ats, e.At)
		a.NamespaceIds = append(a.NamespaceIds, spaces[e.Namespace].id)
		a.TaskUids = append(a.TaskUids, pgtype.UUID{Bytes: e.TaskUID, Valid: true})
		a.TaskIds = append(a.TaskIds, e.TaskID)
		a.PoolNames = append(a.PoolNames, e.Pool)
		a.Attempts = append(a.Attempts, int32(e.Attempt))
		a.Types = append(a.Types, e.Type)
		a.Actors = append(a.Actors, e.Actor)
		a.Codes = append(a.Codes, e.Code)
		a.Messages = append(a.Messages, e.Message)
		a.Details = append(a.Details, e.Detail)
		a.PolicyVersions = append(a.PolicyVersions, int32(e.PolicyVersion))
	}
	return a
}

// changedSinceInsert: a row inserted and altered again in one batch is written with
// its final values by the insert, except for what only an update can say.
func (r *row) changedSinceInsert() bool {
	return r.phase != "" || r.code != "" || !r.ended.IsZero() || r.ending != "" || len(r.preemptedBy) > 0 || r.state == Preempting
}

func (r *row) poolID() int64 {
	if r.pool == nil {
		return 0
	}
	return r.pool.id
}

// balances lists a pool's resources: every one that has a row.
func (p *pool) balances() []Balance {
	var out []Balance
	for _, name := range p.names {
		out = append(out, Balance{Resource: name, Capacity: p.capacity.Get(name), Reserved: p.reserved.Get(name),
			Used: p.used.Get(name), Borrowed: p.borrowed.Get(name), Lent: p.lent.Get(name)})
	}
	return out
}

// resourceNames gives cpu, gpu and memory, then the others that r has.
func resourceNames(r sched.Resources) []string {
	names := []string{"cpu", "gpu", "memory"}
	for _, o := range r.Other {
		names = append(names, o.Name)
	}
	return names
}

func labelsJSON(l sched.Labels) []byte {
	if len(l) == 0 {
		return []byte("{}")
	}
	out, _ := json.Marshal(l)
	return out
}

func pgUUID(id sched.ID) pgtype.UUID {
	return pgtype.UUID{Bytes: id, Valid: id != sched.ID{}}
}

func uuidArray(ids []sched.ID) string {
	var s strings.Builder
	s.WriteByte('{')
	for i, id := range ids {
		if i > 0 {
			s.WriteByte(',')
		}
		s.WriteString(uuidString(id))
	}
	s.WriteByte('}')
	return s.String()
}

func uuidString(id sched.ID) string { return uuid.UUID(id).String() }

func newID() sched.ID { return sched.ID(uuid.Must(uuid.NewV7())) }

func orNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
