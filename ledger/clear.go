package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// clears ends sessions that expire, and clears namespaces that are closing. One server
// does it for each; should that die another goes on. Every step is done under the lock of
// what it changes and for one epoch of the namespace: whoever is late changes nothing.
type clears struct {
	l     *Ledger
	poke  chan struct{}
	done  chan struct{}
	slots chan struct{}

	mu    sync.Mutex
	under map[int64]bool // namespaces that this server clears now
}

// Timings and sizes of clearing.
const (
	sessionsEvery = time.Second
	// sessionsGap is for how long nobody could renew at least, when the clock says so: this
	// machine slept, or Postgres was away. Sessions then get their time anew.
	sessionsGap  = 5 * time.Second
	clearsAtOnce = 8
	stopsAtOnce  = 500    // in one transaction
	forgetAtOnce = 10_000 // events looked at in one statement
)

const codeCleared = "namespace_cleared"

// claimClearing is not among db/queries for the same reason as isAlive.
const claimClearing = `UPDATE namespaces n SET clearer = $1
WHERE n.state = 'closing' AND n.id <> ALL ($2::bigint[])
  AND (n.clearer IN ('', $1) OR NOT EXISTS (SELECT 1 FROM servers s WHERE s.name = n.clearer AND ` + isAlive + `))
RETURNING n.id, n.name, n.epoch, n.first_event`

// clearing is one namespace to be cleared.
type clearing struct {
	ID         int64
	Name       string
	Epoch      int64
	FirstEvent int64
}

// errOvertaken says that the namespace is not in the epoch any more that was to be cleared.
var errOvertaken = errors.New("ledger: the namespace was cleared by another server")

func newClears(l *Ledger) *clears {
	return &clears{l: l, poke: make(chan struct{}, 1), done: make(chan struct{}), slots: make(chan struct{}, clearsAtOnce), under: map[int64]bool{}}
}

// run looks for what has to be cleared until ctx ends.
func (c *clears) run(ctx context.Context) {
	defer close(c.done)
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(sessionsEvery)
	defer tick.Stop()
	var last time.Time // zero: at the start nobody could renew for we know not how long
	for {
		// By the wall clock: the other one stands still while a machine sleeps.
		now := time.Now().Round(0)
		err := error(nil)
		if now.Sub(last) > sessionsGap {
			err = c.l.q.ExtendSessions(ctx)
		}
		if err == nil {
			err = c.look(ctx, &wg)
		}
		if err == nil {
			last = now
		} else if ctx.Err() == nil {
			c.l.log.Warn("looking after sessions failed", "error", err)
		}
		select {
		case <-tick.C:
		case <-c.poke:
		case <-ctx.Done():
			return
		}
	}
}

// look closes the namespaces whose session has expired and begins to clear what is closing.
func (c *clears) look(ctx context.Context, wg *sync.WaitGroup) error {
	expired, err := c.l.q.CloseExpired(ctx)
	if err != nil {
		return err
	}
	for _, n := range expired {
		c.l.log.Info("a session expired; its namespace is cleared", "namespace", n.Name, "owner", n.SessionOwner)
	}
	c.mu.Lock()
	under := make([]int64, 0, len(c.under))
	for id := range c.under {
		under = append(under, id)
	}
	c.mu.Unlock()
	rows, err := c.l.pool.Query(ctx, claimClearing, c.l.server, under)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[clearing])
	if err != nil {
		return err
	}
	for _, n := range all {
		c.mu.Lock()
		c.under[n.ID] = true
		c.mu.Unlock()
		wg.Go(func() {
			defer func() {
				c.mu.Lock()
				delete(c.under, n.ID)
				c.mu.Unlock()
				poke(c.poke) // it may have been closed again meanwhile
			}()
			select {
			case c.slots <- struct{}{}:
				defer func() { <-c.slots }()
			case <-ctx.Done():
				return
			}
			c.l.clear(ctx, n)
		})
	}
	return nil
}

// clear does it, however long it takes.
func (l *Ledger) clear(ctx context.Context, n clearing) {
	began := time.Now()
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		left, err := l.stopAll(ctx, n)
		if err == nil && left == 0 {
			if err = l.forgetAll(ctx, n); err == nil {
				err = l.cleared(ctx, n)
			}
			if err == nil {
				l.log.Info("a namespace is cleared", "namespace", n.Name, "seconds", time.Since(began).Seconds())
				return
			}
		}
		switch {
		case ctx.Err() != nil, errors.Is(err, errOvertaken):
			return
		case err != nil:
			l.log.Warn("clearing a namespace failed and is tried again", "namespace", n.Name, "error", err)
		}
		sleep(ctx, wait)
	}
}

// stopAll stops what lives in a namespace, removes its pools once nothing does, and says
// how many rows are live.
func (l *Ledger) stopAll(ctx context.Context, n clearing) (left int, err error) {
	if err := l.ensureNamespace(ctx, n.Name); err != nil {
		return 0, err
	}
	// Since it is closing no pool is made in it; those that are there the book may not know yet.
	ids, err := l.q.PoolsInNamespace(ctx, n.ID)
	if err != nil {
		return 0, err
	}
	var unknown []int64
	idle := false
	if err := l.lane.look(ctx, func(b *book) {
		for _, id := range ids {
			if b.pools[id] == nil {
				unknown = append(unknown, id)
			}
		}
		if s := b.byID[n.ID]; s != nil && s.epoch == n.Epoch {
			left = s.live()
			idle = left > 0 && len(b.stoppable(s)) == 0
		}
	}); err != nil {
		return 0, err
	}
	for _, id := range unknown {
		if err := l.reload(ctx, id); err != nil {
			return 0, err
		}
	}
	if idle && unknown == nil { // all are on their way out
		return left, nil
	}
	err = l.lane.submit(ctx, &call{
		whole: true,
		plan:  func(b *book) []*pool { return b.byID[n.ID].homes() },
		do: func(b *batch) error {
			s := b.byID[n.ID]
			b.need(s.homes()...)
			if s.epoch != n.Epoch {
				return errOvertaken
			}
			left = b.stopIn(s)
			return nil
		},
	})
	return left, err
}

// homes are the pools of a namespace, and what stands for none.
func (s *space) homes() []*pool {
	if s == nil {
		return nil
	}
	out := []*pool{s.unmanaged}
	for _, p := range s.pools {
		out = append(out, p)
	}
	return out
}

// live counts the rows of a namespace.
func (s *space) live() (n int) {
	for _, p := range s.homes() {
		n += len(p.rows)
	}
	return n
}

// stoppable lists the rows that are to be told to stop. First who waits in line, so that it
// does not start now, then who waits for victims, which need not be taken any more.
func (b *book) stoppable(s *space) (out []*row) {
	for _, p := range s.homes() {
		for _, r := range p.rows {
			if r.state != Stopping && (r.state != Preempting || r.code != codeCleared || b.abandoned(r)) {
				out = append(out, r)
			}
		}
	}
	rank := func(r *row) int {
		switch {
		case r.state == Queued:
			return 0
		case len(r.victims) > 0:
			return 1
		}
		return 2
	}
	slices.SortFunc(out, func(x, y *row) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), slices.Compare(x.uid[:], y.uid[:]))
	})
	return out
}

// abandoned reports whether a row is preempted by hand on an agent that is gone by now: whoever
// waits for its state waits in vain.
func (b *book) abandoned(r *row) bool {
	return r.taking != nil && r.taking.byHand() && r.taking.holder != r.uid && b.rows[r.taking.holder] == nil
}

// stopIn stops what is live in a namespace whose pools are all locked, a bounded number at a
// time, and says how many are left. When none are the pools go.
func (b *batch) stopIn(s *space) (left int) {
	for i, r := range b.stoppable(s) {
		if i == stopsAtOnce {
			break
		}
		if !r.indexed { // ended together with another
			continue
		}
		if r.state == Preempting && b.abandoned(r) {
			t := *r.taking
			t.phase = phaseGone
			b.updatePreemption(r, &t, b.now)
			b.finish(r, Cancelled, codeCleared, "its namespace is cleared")
			continue
		}
		_ = b.stop(r, Cancelled, codeCleared, "its namespace is cleared", "")
		if r.indexed && r.state == Preempting { // its agent is stopped by force, without saving anything
			for _, j := range b.jobOf(r) {
				b.job(j)
			}
		}
	}
	if left = s.live(); left > 0 {
		return left
	}
	for _, p := range s.pools {
		for _, x := range slices.Clone(p.loans) {
			b.giveBack(b.pools[x.lender], p, x.amount)
		}
	}
	for _, p := range s.pools {
		b.deletePool(p, "")
	}
	return 0
}

// forgetAll removes the history of a namespace in which nothing lives, piece by piece. All
// its tasks have events, which is how they are found; it began after its first one.
func (l *Ledger) forgetAll(ctx context.Context, n clearing) error {
	// First, since it waits for handlers that are being put, and what is noted of them.
	if err := l.q.ForgetStateHandlers(ctx, dbgen.ForgetStateHandlersParams{NamespaceID: n.ID, Epoch: n.Epoch}); err != nil {
		return err
	}
	last, err := l.q.LastEventID(ctx)
	if err != nil {
		return err
	}
	for after := n.FirstEvent; after < last; {
		upto, err := l.q.ForgetEvents(ctx, dbgen.ForgetEventsParams{After: after, Last: last, RowLimit: forgetAtOnce, NamespaceID: n.ID, Epoch: n.Epoch})
		if err != nil {
			return err
		}
		if upto == 0 {
			break
		}
		after = upto
	}
	for _, forget := range []func() (int64, error){
		func() (int64, error) {
			return l.q.ForgetPreemptions(ctx, dbgen.ForgetPreemptionsParams{NamespaceID: n.ID, Epoch: n.Epoch, RowLimit: forgetAtOnce})
		},
		func() (int64, error) {
			return l.q.ForgetAnswersOf(ctx, dbgen.ForgetAnswersOfParams{NamespaceID: n.ID, Epoch: n.Epoch, RowLimit: forgetAtOnce})
		},
	} {
		for {
			gone, err := forget()
			if err != nil {
				return err
			}
			if gone < forgetAtOnce {
				break
			}
		}
	}
	return l.q.ForgetPools(ctx, dbgen.ForgetPoolsParams{NamespaceID: n.ID, Epoch: n.Epoch})
}

// errNotEmpty says that something came to live in a namespace after all.
var errNotEmpty = errors.New("ledger: the namespace is not empty")

// cleared ends a namespace in which nothing is left; "default" is open again.
func (l *Ledger) cleared(ctx context.Context, n clearing) error {
	defaults := sched.DefaultPolicy()
	doc, err := json.Marshal(defaults)
	if err != nil {
		return err
	}
	state := spaceEnded
	if n.Name == defaultSpace {
		state = spaceOpen
	}
	return l.lane.submit(ctx, &call{
		whole: true,
		plan:  func(b *book) []*pool { return []*pool{b.byID[n.ID].unmanaged} },
		do: func(b *batch) error {
			s := b.byID[n.ID]
			switch {
			case s.epoch != n.Epoch:
				return errOvertaken
			case s.live() > 0 || len(s.pools) > 0:
				return errNotEmpty
			}
			b.writes = append(b.writes, sqlWrite(func(ctx context.Context, q *dbgen.Queries) error {
				_ = q.ForgetPolicies(ctx, n.ID)
				_ = q.ResetPolicy(ctx, dbgen.ResetPolicyParams{NamespaceID: n.ID, Document: doc, Now: b.now})
				return q.Cleared(ctx, dbgen.ClearedParams{ID: n.ID, State: state})
			}))
			b.then = append(b.then, func() {
				s.unmanaged.version++
				b.follows(s, edition{s.epoch + 1, 1}, state, defaults)
			})
			return nil
		},
	})
}
