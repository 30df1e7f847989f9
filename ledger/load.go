package ledger

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// reading is what one transaction saw of some pools, their tasks aside.
type reading struct {
	pools    []dbgen.Pool
	balances []dbgen.PoolResource
	loans    []dbgen.Loan
	open     []dbgen.OpenPreemptionsRow
	lost     []dbgen.LostLatelyRow
	groups   []dbgen.PlacementGroup
}

func (l *lane) read(ctx context.Context, conn dbgen.DBTX, ids []int64) (rd reading, err error) {
	q := dbgen.New(conn)
	if rd.pools, err = q.PoolsByID(ctx, ids); err != nil {
		return rd, err
	}
	if rd.balances, err = q.Balances(ctx, ids); err != nil {
		return rd, err
	}
	if rd.loans, err = q.LoansOf(ctx, ids); err != nil {
		return rd, err
	}
	if rd.groups, err = q.GroupsOf(ctx, ids); err != nil {
		return rd, err
	}
	if rd.open, err = q.OpenPreemptions(ctx); err != nil {
		return rd, err
	}
	var spaces []int64
	for _, p := range rd.pools {
		if !slices.Contains(spaces, p.NamespaceID) {
			spaces = append(spaces, p.NamespaceID)
		}
	}
	rd.lost, err = q.LostLately(ctx, dbgen.LostLatelyParams{NamespaceIds: spaces, Since: l.now().Add(-time.Minute)})
	return rd, err
}

// fill makes pools of the book say what was read.
func (b *book) fill(rd reading, pools map[int64]*pool) {
	named := map[*space]map[string]*pool{}
	for _, row := range rd.pools {
		p := pools[row.ID]
		if p == nil {
			continue
		}
		p.cluster, p.labels, p.targets, p.version = row.Cluster, labelsOf(row.Labels), int(row.TargetAgents), row.Version
		was := p.maxRuntime
		p.maxRuntime, p.hold = ms(row.MaxRuntimeMs), hold{row.Hold, row.HoldReason, row.HoldActor, orZero(row.HeldAt), orZero(row.DrainUntil)}
		p.strategy = row.PlacementStrategy
		p.grouping, _ = ParseGroups(row.PgPoolConfig) // was checked before it was kept
		p.groups = nil
		b.redate(p, was) // its rows may have been there first
		p.line.SetAgeing(p.space.core.Policy().AgeingWeight)
		p.names, p.loans, p.recent, p.loaded = nil, nil, nil, true
		p.capacity, p.reserved, p.used, p.borrowed, p.lent = sched.Resources{}, sched.Resources{}, sched.Resources{}, sched.Resources{}, sched.Resources{}
		if named[p.space] == nil {
			named[p.space] = map[string]*pool{}
		}
		named[p.space][p.name] = p
	}
	for _, r := range rd.balances {
		p := pools[r.PoolID]
		if p == nil {
			continue
		}
		p.names = append(p.names, r.Resource)
		p.capacity = p.capacity.With(r.Resource, r.Capacity)
		p.reserved = p.reserved.With(r.Resource, r.Reserved)
		p.used = p.used.With(r.Resource, r.Used)
		p.borrowed = p.borrowed.With(r.Resource, r.Borrowed)
		p.lent = p.lent.With(r.Resource, r.Lent)
	}
	for _, x := range rd.loans {
		p := pools[x.BorrowerID]
		if p == nil {
			continue
		}
		if at := slices.IndexFunc(p.loans, func(o loan) bool { return o.lender == x.LenderID }); at >= 0 {
			p.loans[at].amount = p.loans[at].amount.With(x.Resource, x.Amount)
		} else {
			p.loans = append(p.loans, loan{lender: x.LenderID, since: x.Since, amount: sched.Resources{}.With(x.Resource, x.Amount)})
		}
	}
	for _, x := range rd.lost {
		if s := b.byID[x.NamespaceID]; s != nil && named[s][x.PoolName] != nil {
			p := named[s][x.PoolName]
			p.recent = append(p.recent, x.DecidedAt)
		}
	}
	for _, g := range rd.groups {
		if p := pools[g.PoolID]; p != nil {
			p.groups = append(p.groups, groupFrom(g))
		}
	}
	for _, p := range pools {
		b.poolChanged(p)
		b.syncGroups(p)
	}
}

// reopen gives rows back the handovers they are part of. Of the other side's row, which
// may be in a pool that is not loaded, the book notes where it is.
func (b *book) reopen(open []dbgen.OpenPreemptionsRow, byUID map[sched.ID]*row) {
	// An agent may be taken while a task on it is preempted by hand: two handovers.
	type handover struct{ holder, by sched.ID }
	takings := map[handover]*taking{}
	gangs := waitingGangs(byUID)
	for _, o := range open {
		p := o.Preemption
		victim := sched.ID(p.VictimUid.Bytes)
		holder := sched.ID(p.AgentUid.Bytes)
		if h := byUID[holder]; h != nil && h.state != Preempting && p.PreemptorUid.Valid {
			continue // left open by a task that ended meanwhile
		}
		t := takings[handover{holder, p.PreemptorUid.Bytes}]
		if t == nil {
			t = &taking{holder: holder, by: sched.ID(p.PreemptorUid.Bytes), byTask: p.PreemptorTask, attempt: int(p.PreemptorAttempt),
				phase: p.Phase, was: Running, loan: p.Loan, drained: p.Reason == reasonDrained, result: map[sched.ID]takeResult{}}
			t.cancelled, t.saved = orZero(p.CancelledAt), orZero(p.SavedAt)
			takings[handover{holder, t.by}] = t
			if by := byUID[t.by]; by != nil && by.attempt == t.attempt && by.phase == phaseWaiting {
				by.victims = append(by.victims, holder)
				b.isIn(holder, o.HolderPool)
			}
			if byUID[holder] != nil {
				b.isIn(t.by, o.ByPool)
			}
			if t.by != (sched.ID{}) {
				b.rejoin(t, o.HolderPool, gangs[t.by])
			}
		}
		if slices.Index(phases, p.Phase) > slices.Index(phases, t.phase) { // such a task's stays behind
			t.phase, t.cancelled, t.saved = p.Phase, orZero(p.CancelledAt), orZero(p.SavedAt)
		}
		t.tasks = append(t.tasks, victim)
		taken := sched.Resources{}
		_ = taken.UnmarshalJSON(p.Taken)
		t.taken = t.taken.Add(taken)
		t.result[victim] = takeResult{cancelSuccess: p.CancelSuccess, cancelError: p.CancelError, saveError: p.SaveError, savedState: p.SavedState}
		if r := byUID[victim]; r != nil && r.state == Preempting {
			r.taking = t
		}
		if h := byUID[holder]; h != nil && !t.byHand() {
			h.taking = t
			if h.started.IsZero() {
				t.was = Reserved
			}
		}
	}
}

// phases in the order in which a handover goes through them.
var phases = []string{phaseDecided, phaseCancelling, phaseSaving, phaseKilling}

// isIn notes in which pool a row is that the book does not have.
func (b *book) isIn(uid sched.ID, pool int64) {
	if b.rows[uid] == nil && pool != 0 && uid != (sched.ID{}) {
		b.where[uid] = pool
	}
}

// poolOf gives the pool of a row; one that the book does not have may still be known to be in a pool.
func (b *book) poolOf(uid sched.ID) *pool {
	if r := b.rows[uid]; r != nil {
		return r.pool
	}
	return b.pools[b.where[uid]]
}

func idsOf(ids []pgtype.UUID) []sched.ID {
	if len(ids) == 0 {
		return nil
	}
	out := make([]sched.ID, len(ids))
	for i, id := range ids {
		out[i] = id.Bytes
	}
	return out
}

// policyOf reads a stored policy. Fields that a newer version added have their defaults.
func policyOf(doc []byte) (sched.Policy, error) {
	p, _, err := sched.ParsePolicy(doc)
	return p, err
}

// clean refuses text that Postgres or a terminal would choke on.
func clean(field, s string, limit int) error {
	if len(s) > limit {
		return invalid(field, "has %d bytes, at most %d are allowed", len(s), limit)
	}
	if i := strings.IndexFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f || r == 0xfffd }); i >= 0 {
		return invalid(field, "has a control character at byte %d: use printable text", i)
	}
	return nil
}
