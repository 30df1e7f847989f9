package ledger

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// loadAll builds the book from Postgres at start-up.
func (l *lane) loadAll(ctx context.Context) error {
	q := dbgen.New(l.pool)
	spaces, err := q.AllNamespaces(ctx)
	if err != nil {
		return err
	}
	for _, s := range spaces {
		policy, err := policyOf(s.Document)
		if err != nil {
			return fmt.Errorf("policy %d of namespace %s: %w", s.PolicyVersion, s.Name, err)
		}
		l.book.addSpace(s.ID, s.Name, int(s.PolicyVersion), policy)
	}
	if err := l.loadHolds(ctx, q); err != nil {
		return err
	}
	pools, err := q.AllPools(ctx)
	if err != nil {
		return err
	}
	ids := make([]int64, 0, len(pools))
	for _, p := range pools {
		ids = append(ids, p.ID)
	}
	return l.load(ctx, l.pool, ids, true)
}

// loadPools replaces what the book says of pools whose rows are locked on conn.
func (l *lane) loadPools(ctx context.Context, conn dbgen.DBTX, ids []int64) error {
	for _, id := range ids {
		if p := l.book.pools[id]; p != nil {
			l.book.dropPool(p)
		}
	}
	return l.load(ctx, conn, ids, false)
}

func (l *lane) load(ctx context.Context, conn dbgen.DBTX, ids []int64, unmanaged bool) error {
	q := dbgen.New(conn)
	pools, err := q.PoolsByID(ctx, ids)
	if err != nil {
		return err
	}
	balances, err := q.Balances(ctx, ids)
	if err != nil {
		return err
	}
	loans, err := q.LoansOf(ctx, ids)
	if err != nil {
		return err
	}
	open, err := q.OpenPreemptions(ctx)
	if err != nil {
		return err
	}
	fresh := map[int64]*pool{}
	for _, p := range pools {
		s := l.book.byID[p.NamespaceID]
		if s == nil {
			if s, err = l.loadSpace(ctx, q, p.NamespaceID); err != nil {
				return err
			}
		}
		if err := l.refreshPolicy(ctx, q, s); err != nil {
			return err
		}
		made := &pool{id: p.ID, space: s, name: p.Name, cluster: p.Cluster, labels: labelsOf(p.Labels), targets: int(p.TargetAgents),
			version: p.Version, rows: map[sched.ID]*row{}, line: &sched.Line{}, ends: &sched.Agenda{}, maxRuntime: ms(p.MaxRuntimeMs),
			hold: hold{p.Hold, p.HoldReason, p.HoldActor, orZero(p.HeldAt), orZero(p.DrainUntil)}}
		made.line.SetAgeing(s.core.Policy().AgeingWeight)
		if old := s.pools[p.Name]; old != nil {
			l.book.dropPool(old)
		}
		l.book.pools[p.ID], s.pools[p.Name], fresh[p.ID] = made, made, made
	}
	for _, r := range balances {
		p := fresh[r.PoolID]
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
	for _, x := range loans {
		p := fresh[x.BorrowerID]
		if p == nil {
			continue
		}
		if at := slices.IndexFunc(p.loans, func(o loan) bool { return o.lender == x.LenderID }); at >= 0 {
			p.loans[at].amount = p.loans[at].amount.With(x.Resource, x.Amount)
		} else {
			p.loans = append(p.loans, loan{lender: x.LenderID, since: x.Since, amount: sched.Resources{}.With(x.Resource, x.Amount)})
		}
	}
	for _, p := range fresh {
		l.book.poolChanged(p)
	}

	var loaded []*row
	byUID := map[sched.ID]*row{}
	err = newRowReader(l.book.byID, l.book.pools).each(ctx, conn, func(r *row) error {
		loaded = append(loaded, r)
		byUID[r.uid] = r
		return nil
	}, dbgen.LiveTasksSQL, ids, unmanaged)
	if err != nil {
		return err
	}
	l.reopen(open, byUID)
	for _, r := range loaded { // in two passes: a preemptor's node charge asks for its victims
		l.book.rows[r.uid] = r
	}
	for _, r := range loaded {
		l.book.index(r)
	}
	return nil
}

// reopen gives rows back the handovers they are part of.
func (l *lane) reopen(open []dbgen.Preemption, byUID map[sched.ID]*row) {
	takings := map[sched.ID]*taking{}
	for _, p := range open {
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
