package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// changes is what other servers changed in some pools since the book knew them, read
// under the pools' locks or in one snapshot. A pool's id is −namespace for the rows
// that belong to no pool.
type changes struct {
	basis    basis
	spaces   []dbgen.SpacesOfRow
	policies map[int64]sched.Policy // of spaces whose policy the book does not know
	reading                         // pools that are gone are missing in it
	moved    []int64                // pools at another version than the book's
	whole    map[int64]bool         // of those, read whole: nobody wrote down what changed
	uids     []sched.ID             // of rows that may have changed, in the others
	rows     []*row                 // those rows and all of pools read whole, live or ended
	specs    map[sched.ID]*Spec     // of those that are to be launched by this server
}

// basis is what the book knows: versions by pool, and policies by namespace.
type basis struct {
	pools    map[int64]int64
	policies map[int64]edition
	limited  map[int64]bool // namespaces whose policy limits the rate of preemptions
	leads    bool           // this server launches what others admit
}

// edition is a policy's version, and the epoch of its namespace: after that was cleared
// versions start anew.
type edition struct {
	epoch   int64
	version int
}

func (e edition) after(o edition) bool {
	return e.epoch > o.epoch || e.epoch == o.epoch && e.version > o.version
}

func (s *space) edition() edition { return edition{s.epoch, s.policyVersion} }

// basisOf tells what the book knows of some pools; a version of −1 is an unknown one.
func (l *lane) basisOf(ids []int64) basis {
	b := l.book
	out := basis{leads: l.leads(), pools: make(map[int64]int64, len(ids)), policies: make(map[int64]edition, len(b.byID)), limited: map[int64]bool{}}
	for _, id := range ids {
		out.pools[id] = -1
		if p := b.home(id); p != nil {
			out.pools[id] = p.version
		}
	}
	for id, s := range b.byID {
		out.policies[id] = s.edition()
		if s.core.Policy().MaxPreemptionsPerMinute > 0 {
			out.limited[id] = true
		}
	}
	return out
}

// home finds a pool by its id, or what stands for none by −namespace.
func (b *book) home(id int64) *pool {
	if id < 0 {
		if s := b.byID[-id]; s != nil {
			return s.unmanaged
		}
		return nil
	}
	return b.pools[id]
}

// home is the pool whose lock and version cover the row.
func (r *row) home() *pool {
	if r.pool == nil {
		return r.space.unmanaged
	}
	return r.pool
}

func ask[T any](b *pgx.Batch, into *[]T, sql string, args ...any) {
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		*into, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		return err
	})
}

// readChanges reads what changed since basis, on a connection that holds the pools'
// locks or has one snapshot. It does not touch the book.
func readChanges(ctx context.Context, conn *pgx.Conn, from basis, now time.Time) (*changes, error) {
	ch := &changes{basis: from, policies: map[int64]sched.Policy{}, whole: map[int64]bool{}}
	var ids, known, pools, spaces []int64
	for id, version := range from.pools {
		ids, known = append(ids, id), append(known, version)
		if id < 0 {
			spaces = append(spaces, -id)
		} else {
			pools = append(pools, id)
		}
	}
	var journal []dbgen.PoolChange
	first := &pgx.Batch{}
	ask(first, &ch.spaces, dbgen.SpacesOfSQL, spaces, pools)
	ask(first, &ch.pools, dbgen.PoolsByIDSQL, pools)
	ask(first, &ch.balances, dbgen.BalancesSQL, pools)
	ask(first, &ch.loans, dbgen.LoansOfSQL, pools)
	ask(first, &ch.groups, dbgen.GroupsOfSQL, pools)
	first.Queue(dbgen.PoolChangesSQL, ids, known).Query(func(rows pgx.Rows) error {
		var c dbgen.PoolChange
		_, err := pgx.ForEachRow(rows, []any{&c.PoolID, &c.Version, &c.Uids}, func() error {
			journal = append(journal, dbgen.PoolChange{PoolID: c.PoolID, Version: c.Version, Uids: slices.Clone(c.Uids)})
			return nil
		})
		return err
	})
	if err := conn.SendBatch(ctx, first).Close(); err != nil {
		return nil, err
	}
	ch.choose(journal)
	if err := ch.readPolicies(ctx, conn, now); err != nil {
		return nil, err
	}
	return ch, ch.readRows(ctx, conn)
}

// choose says which pools moved, and which of them must be read whole because
// the journal of changes has a gap.
func (ch *changes) choose(journal []dbgen.PoolChange) {
	versions := map[int64]int64{}
	for _, p := range ch.pools {
		versions[p.ID] = p.Version
	}
	for _, s := range ch.spaces {
		if _, asked := ch.basis.pools[-s.ID]; asked {
			versions[-s.ID] = s.UnmanagedVersion
		}
	}
	steps := map[int64]int64{}
	for _, c := range journal {
		steps[c.PoolID]++
	}
	for id, version := range versions {
		known := ch.basis.pools[id]
		if known == version {
			continue
		}
		ch.moved = append(ch.moved, id)
		if known < 0 || steps[id] != version-known {
			ch.whole[id] = true
		}
	}
	seen := map[sched.ID]bool{}
	for _, c := range journal {
		if ch.whole[c.PoolID] {
			continue
		}
		for raw := c.Uids; len(raw) >= 16; raw = raw[16:] {
			uid := sched.ID(raw[:16])
			if !seen[uid] {
				seen[uid] = true
				ch.uids = append(ch.uids, uid)
			}
		}
	}
}

// readPolicies reads the policies that the book does not know, and, where a policy
// limits the rate of preemptions, the recent ones.
func (ch *changes) readPolicies(ctx context.Context, conn *pgx.Conn, now time.Time) error {
	q := dbgen.New(conn)
	var spaces []int64
	for _, s := range ch.spaces {
		limited := ch.basis.limited[s.ID]
		if known, ok := ch.basis.policies[s.ID]; !ok || known != (edition{s.Epoch, int(s.PolicyVersion)}) {
			row, err := q.NamespacePolicyByID(ctx, s.ID)
			if err != nil {
				return err
			}
			policy, err := policyOf(row.Document)
			if err != nil {
				return fmt.Errorf("policy %d of namespace %s: %w", s.PolicyVersion, s.Name, err)
			}
			ch.policies[s.ID] = policy
			limited = policy.MaxPreemptionsPerMinute > 0
		}
		if !limited {
			continue
		}
		spaces = append(spaces, s.ID)
	}
	if spaces != nil {
		var err error
		ch.lost, err = q.LostLately(ctx, dbgen.LostLatelyParams{NamespaceIds: spaces, Since: now.Add(-time.Minute)})
		return err
	}
	return nil
}

// readRows reads the rows concerned, and the handovers they are part of.
func (ch *changes) readRows(ctx context.Context, conn *pgx.Conn) error {
	// The book's own pools and namespaces are the lane's: stand-ins until apply.
	pools, spaces := map[int64]*pool{}, map[int64]*space{}
	var whole, wholeSpaces []int64
	for _, p := range ch.pools {
		pools[p.ID] = &pool{id: p.ID}
		if ch.whole[p.ID] {
			whole = append(whole, p.ID)
		}
	}
	for _, s := range ch.spaces {
		spaces[s.ID] = &space{id: s.ID}
		if ch.whole[-s.ID] {
			wholeSpaces = append(wholeSpaces, s.ID)
		}
	}
	var involved, launches []sched.ID
	reader := newRowReader(spaces, pools)
	keep := func(r *row) error {
		ch.rows = append(ch.rows, r)
		if r.state == Preempting || r.state == Stopping || r.phase != "" {
			involved = append(involved, r.uid)
			if g := r.gang(); g != (sched.ID{}) && r.phase == phaseWaiting { // its victims are its leader's
				involved = append(involved, g)
			}
		} else if r.state == Reserved && ch.basis.leads {
			launches = append(launches, r.uid)
		}
		return nil
	}
	if len(ch.uids) > 0 {
		if err := reader.each(ctx, conn, keep, dbgen.TasksByUIDSQL, pgUUIDs(ch.uids)); err != nil {
			return err
		}
	}
	if whole != nil {
		if err := reader.each(ctx, conn, keep, dbgen.LiveTasksSQL, whole, false); err != nil {
			return err
		}
	}
	if wholeSpaces != nil {
		if err := reader.each(ctx, conn, keep, dbgen.UnmanagedTasksSQL, wholeSpaces); err != nil {
			return err
		}
	}
	if launches != nil {
		if err := ch.readSpecs(ctx, dbgen.New(conn), launches); err != nil {
			return err
		}
	}
	if involved == nil {
		return nil
	}
	open, err := dbgen.New(conn).PreemptionsOf(ctx, pgUUIDs(involved))
	for _, o := range open {
		ch.open = append(ch.open, dbgen.OpenPreemptionsRow(o))
	}
	return err
}

// readSpecs reads together what each launch would else ask for by itself.
func (ch *changes) readSpecs(ctx context.Context, q *dbgen.Queries, uids []sched.ID) error {
	rows, err := q.NewSpecs(ctx, pgUUIDs(uids))
	if err != nil {
		return err
	}
	ch.specs = make(map[sched.ID]*Spec, len(rows))
	for _, r := range rows {
		s := &Spec{Pickled: r.Pickled}
		if err := json.Unmarshal(r.Spec, s); err != nil {
			return err
		}
		ch.specs[r.Uid.Bytes] = s
	}
	return nil
}

// apply brings the book up to what was read. Rows are linked across pools, by
// handovers: when a link leads to a pool that was not read along and is not current
// either, nothing is changed and that pool is named.
func (l *lane) apply(ch *changes, current func(int64) bool) (missing []int64) {
	b := l.book
	replaced := map[sched.ID]*row{}
	for id := range ch.whole {
		if p := b.home(id); p != nil {
			for _, r := range p.rows {
				replaced[r.uid] = r
			}
		}
	}
	for _, uid := range ch.uids {
		if r := b.rows[uid]; r != nil {
			replaced[uid] = r
		}
	}
	if missing = ch.links(b, replaced, current); missing != nil {
		return missing
	}

	for _, r := range replaced {
		b.unindex(r)
	}
	ch.applySpaces(b)
	ch.applyPools(b)

	fresh := make([]*row, 0, len(ch.rows))
	byUID := make(map[sched.ID]*row, len(ch.rows))
	for _, r := range ch.rows {
		if !r.state.Live() {
			continue
		}
		r.space = b.byID[r.space.id]
		if r.pool != nil {
			r.pool = b.pools[r.pool.id]
		}
		fresh = append(fresh, r)
		byUID[r.uid] = r
	}
	var open []dbgen.OpenPreemptionsRow
	for _, o := range ch.open {
		if o.Preemption.Phase != phaseGone {
			open = append(open, o)
			continue
		}
		if p, victim := byUID[o.Preemption.PreemptorUid.Bytes], sched.ID(o.Preemption.VictimUid.Bytes); p != nil &&
			p.attempt == int(o.Preemption.PreemptorAttempt) && !slices.Contains(p.took, victim) {
			p.took = append(slices.Clone(p.took), victim)
		}
	}
	b.reopen(open, byUID)
	for _, r := range fresh {
		// What an attempt took is not on its row: the book knows it from before.
		if old := replaced[r.uid]; old != nil && old.attempt == r.attempt && r.state != Queued && len(r.took) == 0 {
			r.took = old.took
			for _, id := range old.victims {
				if h := replaced[id]; h != nil && h.taking != nil && !slices.Contains(r.victims, id) {
					r.took = append(slices.Clone(r.took), h.taking.tasks...)
				}
			}
		}
	}
	for _, r := range fresh {
		b.rows[r.uid] = r
	}
	for _, r := range fresh {
		b.index(r)
	}
	l.metrics.caughtUp(len(ch.moved)-len(ch.whole), len(ch.whole))
	l.learned(ch, fresh)
	return nil
}

// links names the pools that what is replaced, or comes, is linked to by handovers and
// that would stay behind.
func (ch *changes) links(b *book, replaced map[sched.ID]*row, current func(int64) bool) (missing []int64) {
	need := func(id int64) {
		if _, read := ch.basis.pools[id]; id != 0 && !read && !current(id) && !slices.Contains(missing, id) {
			missing = append(missing, id)
		}
	}
	toRow := func(id sched.ID) {
		if r := b.rows[id]; r != nil {
			need(r.home().id)
		}
	}
	for _, r := range replaced {
		if r.taking != nil {
			toRow(r.taking.by)
			toRow(r.taking.holder)
		}
		for _, id := range r.victims {
			toRow(id)
		}
	}
	for _, o := range ch.open {
		if o.Preemption.Phase != phaseGone {
			need(o.HolderPool)
			need(o.ByPool)
		}
	}
	return missing
}

func (ch *changes) applySpaces(b *book) {
	for _, n := range ch.spaces {
		s := b.byID[n.ID]
		policy, changed := ch.policies[n.ID]
		switch {
		case s == nil:
			s = b.addSpace(n.ID, n.Name, n.Epoch, n.State, int(n.PolicyVersion), policy)
		case changed:
			b.follows(s, edition{n.Epoch, int(n.PolicyVersion)}, n.State, policy)
		}
		if _, asked := ch.basis.pools[-n.ID]; asked {
			s.unmanaged.version = n.UnmanagedVersion
		}
	}
}

func (ch *changes) applyPools(b *book) {
	pools := make(map[int64]*pool, len(ch.pools))
	for _, row := range ch.pools {
		s, p := b.byID[row.NamespaceID], b.pools[row.ID]
		if p == nil {
			if old := s.pools[row.Name]; old != nil { // deleted, and made anew
				b.dropPool(old)
			}
			p = b.addPool(s, row.ID, row.Name)
		}
		pools[row.ID] = p
	}
	for id := range ch.basis.pools {
		if p := b.pools[id]; p != nil && pools[id] == nil {
			b.dropPool(p)
		}
	}
	b.fill(ch.reading, pools)
}

// bump counts a change of each of some pools and, while another server lives, says
// which rows it was that changed.
func (b *batch) bump(ctx context.Context, q *dbgen.Queries, ids []int64) {
	var pools, spaces []int64
	for _, id := range ids {
		if id < 0 {
			spaces = append(spaces, -id)
		} else {
			pools = append(pools, id)
		}
	}
	// What is queued in a pgx.Batch cannot fail.
	if pools != nil {
		_ = q.BumpPools(ctx, pools)
	}
	if spaces != nil {
		_ = q.BumpUnmanaged(ctx, spaces)
	}
	if !b.shared || len(ids) == 0 {
		return
	}
	changed := make(map[int64][]byte, len(ids))
	for _, u := range b.changed {
		id := u.row.home().id
		changed[id] = append(changed[id], u.row.uid[:]...)
	}
	var w dbgen.WriteChangesParams
	for _, id := range ids {
		w.PoolIds = append(w.PoolIds, id)
		w.Versions = append(w.Versions, b.home(id).version+1)
		w.Uidss = append(w.Uidss, append([]byte{}, changed[id]...))
	}
	_ = q.WriteChanges(ctx, w)
}
