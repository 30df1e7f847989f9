package ledger

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// How a server starts: it knows all names at once, and loads the pools one after the
// other while the lane works already. A call on a pool that is not loaded waits, and
// its pool is the next to be loaded. What asks for more than one pool (who would make
// way, which nodes have room) waits until all are loaded, and so does a submission
// that does not fit into its own pool.
//
// Each pool is read as of one moment, with its version. Should another server change
// it after that, the lane finds the version moved, as it does at any other time.

// A load is a few pools with so many tasks together, so that neither many small pools
// nor a large one cost more than they must.
const (
	smallLoad = 2_000
	largeLoad = 20_000
	// piece is how many rows the lane takes in one go between two transactions.
	piece = 2_000
)

// codeLoading refuses, inside the ledger, what cannot be decided before all is loaded:
// the lane asks it again then.
const codeLoading = "loading"

// starter loads the pools that were there when the server started.
type starter struct {
	lane   *lane
	db     *pgxpool.Pool
	reader *rowReader
	pools  map[int64]*pool // as the book knew them at first
	began  time.Time

	mu     sync.Mutex
	left   []int64 // not begun, in the order in which they will be
	loaded int
	failed error // why the latest attempt failed, nil when it did not
	done   chan struct{}
}

// names makes the book know every namespace and, by name, every pool.
func (l *lane) names(ctx context.Context, db *pgxpool.Pool) (*starter, error) {
	q := dbgen.New(db)
	spaces, err := q.AllNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range spaces {
		policy, err := policyOf(s.Document)
		if err != nil {
			return nil, fmt.Errorf("policy %d of namespace %s: %w", s.PolicyVersion, s.Name, err)
		}
		l.book.addSpace(s.ID, s.Name, s.Epoch, s.State, int(s.PolicyVersion), policy)
	}
	if err := l.loadHolds(ctx, q); err != nil {
		return nil, err
	}
	pools, err := q.AllPools(ctx)
	if err != nil {
		return nil, err
	}
	s := &starter{lane: l, db: db, pools: make(map[int64]*pool, len(pools)), began: time.Now(), done: make(chan struct{})}
	known := make(map[int64]*space, len(spaces))
	for id, space := range l.book.byID {
		known[id] = space
	}
	for _, p := range pools {
		if known[p.NamespaceID] != nil { // else made just now: found when somebody asks for it
			stub := l.book.addPool(known[p.NamespaceID], p.ID, p.Name)
			stub.cluster = p.Cluster
			l.book.poolChanged(stub) // before its tasks: they need not be placed twice
			s.pools[p.ID] = stub
			s.left = append(s.left, p.ID)
		}
	}
	s.reader = newRowReader(known, s.pools)
	l.book.loading = true
	l.start = s
	return s, nil
}

// run loads until all is loaded, whatever happens to the database meanwhile.
func (s *starter) run(ctx context.Context) {
	size := 1
	for unmanaged := true; ; {
		ids := s.next(size)
		if len(ids) == 0 && !unmanaged {
			break
		}
		n, err := s.load(ctx, ids, unmanaged)
		s.mu.Lock()
		s.failed = err
		if err == nil {
			s.loaded += len(ids)
		} else {
			s.left = append(ids, s.left...)
		}
		s.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.lane.log.Error("loading pools failed and is tried again", "pools", len(ids), "error", err)
			select {
			case <-time.After(500 * time.Millisecond):
			case <-ctx.Done():
				return
			}
			continue
		case n < smallLoad:
			size *= 2
		case n > largeLoad:
			size = max(size/2, 1)
		}
		unmanaged = false
	}
	if s.tell(ctx, s.finish) == nil && s.lane.submit(ctx, &call{plan: stalled, do: s.resume}) == nil {
		s.lane.log.Info("all pools are loaded", "pools", len(s.pools), "seconds", time.Since(s.began).Seconds())
	}
}

// next takes the pools to load next.
func (s *starter) next(size int) []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	size = min(size, len(s.left))
	ids := slices.Clone(s.left[:size])
	s.left = s.left[size:]
	return ids
}

// ask has a pool loaded next.
func (s *starter) ask(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := slices.Index(s.left, id); at > 0 {
		s.left = slices.Insert(slices.Delete(s.left, at, at+1), 0, id)
	}
}

// progress says how far loading is, and why it does not go on.
func (s *starter) progress() (loaded, of int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loaded, len(s.pools), s.failed
}

// tell runs f on the book between two transactions.
func (s *starter) tell(ctx context.Context, f func(*book)) error {
	return s.lane.submit(ctx, &call{read: f, early: true})
}

// load reads pools as of one moment and hands them to the lane, and says how many tasks they have.
func (s *starter) load(ctx context.Context, ids []int64, unmanaged bool) (n int, err error) {
	tx, err := s.db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	rd, err := s.lane.read(ctx, tx, ids)
	if err != nil {
		return 0, err
	}
	// Rows that are part of a handover come last: what they are follows from it.
	apart := map[sched.ID]*row{}
	for _, o := range rd.open {
		for _, id := range []sched.ID{o.Preemption.VictimUid.Bytes, o.Preemption.AgentUid.Bytes, o.Preemption.PreemptorUid.Bytes} {
			apart[id] = nil
		}
	}
	rows := make([]*row, 0, piece)
	under := make(chan error, 1) // the lane takes one piece in while the next is read
	under <- nil
	hand := func() error {
		if err := <-under; err != nil {
			under <- err
			return err
		}
		taken := rows
		go func() { under <- s.tell(ctx, func(b *book) { s.take(b, taken) }) }()
		rows = make([]*row, 0, piece)
		return nil
	}
	err = s.reader.each(ctx, tx, func(r *row) error {
		n++
		if _, special := apart[r.uid]; special {
			apart[r.uid] = r
			return nil
		}
		if rows = append(rows, r); len(rows) < piece {
			return nil
		}
		return hand()
	}, dbgen.LiveTasksSQL, ids, unmanaged)
	if e := <-under; err == nil {
		err = e
	}
	if err != nil {
		_ = s.tell(context.WithoutCancel(ctx), func(b *book) { s.forget(b, ids, unmanaged) })
		return n, err
	}
	return n, s.tell(ctx, func(b *book) {
		s.take(b, rows)
		s.complete(b, rd, ids, apart)
	})
}

// wanted reports whether a pool's rows are still to be taken in: somebody may have
// needed it under lock meanwhile, and loaded it then, or found it deleted.
func (s *starter) wanted(b *book, p *pool) bool { return p == nil || b.pools[p.id] == p && !p.loaded }

func (s *starter) take(b *book, rows []*row) {
	for _, r := range rows {
		if !s.wanted(b, r.pool) || b.rows[r.uid] != nil {
			continue
		}
		// An id that another pool has by now is younger than what is being loaded.
		younger := r.space.tasks[r.taskID]
		b.index(r)
		if younger != nil && r.kind != KindAgent {
			r.space.tasks[r.taskID] = younger
		}
	}
}

// complete opens pools whose rows have all been taken in.
func (s *starter) complete(b *book, rd reading, ids []int64, apart map[sched.ID]*row) {
	var last []*row
	for id, r := range apart {
		if r != nil && s.wanted(b, r.pool) && b.rows[id] == nil {
			last = append(last, r)
		} else {
			delete(apart, id)
		}
	}
	b.reopen(rd.open, apart)
	for _, r := range last {
		b.rows[r.uid] = r
	}
	for _, r := range last {
		b.index(r)
	}
	found := map[int64]*pool{}
	for _, p := range rd.pools {
		if s.wanted(b, s.pools[p.ID]) {
			found[p.ID] = s.pools[p.ID]
		}
	}
	for _, id := range ids {
		if p := s.pools[id]; found[id] == nil && s.wanted(b, p) {
			b.dropPool(p) // deleted meanwhile
		}
	}
	b.fill(rd, found)
	s.lane.unpark()
}

// forget takes back what was taken in of pools whose loading failed half-way.
func (s *starter) forget(b *book, ids []int64, unmanaged bool) {
	for _, id := range ids {
		if p := s.pools[id]; s.wanted(b, p) {
			for len(p.rows) > 0 {
				b.unindex(p.rows[len(p.rows)-1])
			}
		}
	}
	if unmanaged {
		for _, r := range b.rows {
			if r.pool == nil {
				b.unindex(r)
			}
		}
	}
}

// decideEarly decides while other pools are not loaded yet: what fits is admitted.
// The nodes are not known before all that sits on them is, so quota alone counts.
func (b *batch) decideEarly(r *row) sched.Decision {
	if r.space.core.Fits(r.poolName, r.request) {
		return sched.Decision{Outcome: sched.Admit}
	}
	return sched.Decision{Outcome: sched.Refuse, Refusal: sched.Refusal{Code: codeLoading}}
}

// finish ends the start: everything is in the book.
func (s *starter) finish(b *book) {
	for _, p := range s.pools {
		if s.wanted(b, p) { // cannot be; but nobody shall wait for ever
			s.lane.log.Error("a pool was not loaded", "pool", p.name)
		}
	}
	b.loading = false
	for _, r := range b.rows { // a preemptor's victims may have come after it
		if len(r.victims) > 0 {
			b.unindex(r)
			b.index(r)
		}
	}
	for _, space := range b.spaces {
		space.core.Build()
	}
	close(s.done)
	s.lane.unpark()
}

// stalled plans for the pools whose queues could not move before all was loaded.
func stalled(b *book) []*pool {
	var out []*pool
	for _, p := range b.pools {
		if p.stalled {
			out = append(out, p)
		}
	}
	return out
}

func (s *starter) resume(b *batch) error {
	for _, p := range stalled(b.book) {
		p.stalled = false
		b.freed(p)
	}
	return nil
}

// waits reports whether a call has to wait for pools, which it has loaded next.
func (l *lane) waits(c *call) bool {
	switch {
	case !l.book.loading || c.early:
		return false
	case c.whole || c.plan == nil:
		return true
	}
	waits, none := false, true
	for _, p := range c.plan(l.book) {
		if p == nil {
			continue
		}
		none = false
		if known := l.book.pools[p.id]; known != nil && !known.loaded {
			l.start.ask(p.id)
			waits = true
		}
	}
	return waits || none // what it is about may be in a pool that is not loaded
}

// unpark looks again at the calls that wait.
func (l *lane) unpark() {
	l.again = append(l.again, l.parked...)
	l.parked = l.parked[:0:0]
}

// Loaded gives a channel that is closed when every pool is loaded, or the ledger.
func (l *Ledger) Loaded() <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-l.start.done:
		case <-l.lane.stopped:
		}
	}()
	return over
}

// soon waits until the pool is loaded in which a task or agent of this name is.
func (l *Ledger) soon(ctx context.Context, ns, name string) error {
	select {
	case <-l.start.done:
		return nil
	default:
	}
	ids, err := l.q.PoolsOfName(ctx, dbgen.PoolsOfNameParams{Namespace: ns, Name: name})
	if err != nil {
		return l.lane.outward(err)
	}
	return l.lane.submit(ctx, &call{
		plan: func(b *book) []*pool {
			var out []*pool
			for _, id := range ids {
				out = append(out, b.pools[id])
			}
			return out
		},
		read: func(*book) {},
	})
}
