package ledger

import (
	"context"
	"fmt"
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
	for _, p := range pools {
		b.poolChanged(p)
	}
}

// loadPools replaces what the book says of pools whose rows are locked on conn.
func (l *lane) loadPools(ctx context.Context, conn dbgen.DBTX, ids []int64) error {
	for _, id := range ids {
		if p := l.book.pools[id]; p != nil {
			l.book.dropPool(p)
		}
	}
	rd, err := l.read(ctx, conn, ids)
	if err != nil {
		return err
	}
	q := dbgen.New(conn)
	fresh := map[int64]*pool{}
	for _, p := range rd.pools {
		s := l.book.byID[p.NamespaceID]
		if s == nil {
			if s, err = l.loadSpace(ctx, q, p.NamespaceID); err != nil {
				return err
			}
		}
		if err := l.refreshPolicy(ctx, q, s); err != nil {
			return err
		}
		if old := s.pools[p.Name]; old != nil {
			l.book.dropPool(old)
		}
		fresh[p.ID] = l.book.addPool(s, p.ID, p.Name)
	}
	l.book.fill(rd, fresh)

	var loaded []*row
	byUID := map[sched.ID]*row{}
	err = newRowReader(l.book.byID, l.book.pools).each(ctx, conn, func(r *row) error {
		loaded = append(loaded, r)
		byUID[r.uid] = r
		return nil
	}, dbgen.LiveTasksSQL, ids, false)
	if err != nil {
		return err
	}
	l.book.reopen(rd.open, byUID)
	for _, r := range loaded { // in two passes: a preemptor's node charge asks for its victims
		l.book.rows[r.uid] = r
	}
	for _, r := range loaded {
		l.book.index(r)
	}
	return nil
}

// reopen gives rows back the handovers they are part of. Of the other side's row, which
// may be in a pool that is not loaded, the book notes where it is.
func (b *book) reopen(open []dbgen.OpenPreemptionsRow, byUID map[sched.ID]*row) {
	takings := map[sched.ID]*taking{}
	for _, o := range open {
		p := o.Preemption
		victim := sched.ID(p.VictimUid.Bytes)
		holder := sched.ID(p.AgentUid.Bytes)
		t := takings[holder]
		if t == nil {
			t = &taking{holder: holder, by: sched.ID(p.PreemptorUid.Bytes), byTask: p.PreemptorTask, attempt: int(p.PreemptorAttempt),
				phase: p.Phase, was: Running, loan: p.Loan, drained: p.Reason == reasonDrained, result: map[sched.ID]takeResult{}}
			if p.CancelledAt != nil {
				t.cancelled = *p.CancelledAt
			}
			if p.SavedAt != nil {
				t.saved = *p.SavedAt
			}
			takings[holder] = t
			if by := byUID[t.by]; by != nil && by.attempt == t.attempt {
				by.victims = append(by.victims, holder)
				b.isIn(holder, o.HolderPool)
			}
			if byUID[holder] != nil {
				b.isIn(t.by, o.ByPool)
			}
		}
		t.tasks = append(t.tasks, victim)
		taken := sched.Resources{}
		_ = taken.UnmarshalJSON(p.Taken)
		t.taken = t.taken.Add(taken)
		t.result[victim] = takeResult{cancelSuccess: p.CancelSuccess, cancelError: p.CancelError, saveError: p.SaveError, savedState: p.SavedState}
		if r := byUID[victim]; r != nil {
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

func (l *lane) loadSpace(ctx context.Context, q *dbgen.Queries, id int64) (*space, error) {
	all, err := q.AllNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range all {
		if n.ID == id {
			policy, err := policyOf(n.Document)
			if err != nil {
				return nil, err
			}
			return l.book.addSpace(n.ID, n.Name, int(n.PolicyVersion), policy), nil
		}
	}
	return nil, fmt.Errorf("ledger: namespace %d is gone", id)
}

// refreshPolicy makes the core follow the active policy version.
func (l *lane) refreshPolicy(ctx context.Context, q *dbgen.Queries, s *space) error {
	now, err := q.NamespacePolicyByID(ctx, s.id)
	if err != nil {
		return err
	}
	if int(now.PolicyVersion) == s.policyVersion {
		return nil
	}
	policy, err := policyOf(now.Document)
	if err != nil {
		return err
	}
	s.setPolicy(policy, int(now.PolicyVersion))
	return nil
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
