package ledger

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
)

// batch is one transaction in the making: the decisions of many callers, made
// one after the other in memory under the pools' row locks.
type batch struct {
	*book
	now    time.Time
	locked map[int64]bool // pools whose rows we hold
	shared bool           // other servers live: they need to know what changed

	changed  []rowUndo // the journal: what is different, as it was before
	touched  []poolUndo
	rowsSeen map[*row]int // row → its entry in the journal
	poolSeen map[*pool]bool

	inserts   []insert
	handovers []handovers       // in turns; see handoverOf
	turns     map[takenTask]int // in which turn a task's next preemption is
	arrived   []*row            // preemptors that run now

	writes  []sideWrite // statements besides the row updates, in order
	first   []sideWrite // statements the others build on
	dropped []*pool     // deleted pools, to forget after the commit
	events  []Event
	loanOut map[loanKey]bool        // loans to write or end
	groups  map[sched.ID]groupWrite // placement groups to write, as they are in the end
	drain   []*pool                 // where quota or room came free
	more    map[int64]bool          // pools whose queue moved → whether more could start than one transaction should
	then    []func()                // to do once it is committed
	jobs    []Job
	woken   []sched.ID
}

type rowUndo struct {
	row      *row
	life     life // before
	inserted bool
	changes  int
	started  bool // all that changed is that it runs now
}

type poolUndo struct {
	pool   *pool
	before pool // balances and loans
}

// scratch is memory that one batch leaves to the next.
type scratch struct {
	changed  []rowUndo
	inserts  []insert
	events   []Event
	rowsSeen map[*row]int
}

// keep takes back what a batch used, once nobody looks at it any more.
func (s *scratch) keep(b *batch) {
	clear(b.changed)
	clear(b.inserts)
	clear(b.events)
	clear(b.rowsSeen)
	*s = scratch{b.changed[:0], b.inserts[:0], b.events[:0], b.rowsSeen}
}

type insert struct {
	row   *row
	spec  *Spec
	actor string
}

type loanKey struct {
	lender, borrower int64
}

// widen is what a decision panics out with when it needs pools that are not locked:
// the batch starts again with them. Locks are only ever taken all at once, sorted.
type widen struct{ pools []int64 }

// need makes sure the given pools are locked.
func (b *batch) need(pools ...*pool) {
	var missing []int64
	for _, p := range pools {
		if p != nil && !b.locked[p.id] {
			missing = append(missing, p.id)
		}
	}
	if missing != nil {
		panic(widen{missing})
	}
}

// poolNamed is a pool by its name, locked.
func (b *batch) poolNamed(ns, name string) (*pool, error) {
	if s := b.spaces[ns]; s != nil && s.pools[name] != nil {
		b.need(s.pools[name])
		return s.pools[name], nil
	}
	return nil, refuse(ErrUnknownPool, "there is no pool %q in namespace %q", name, ns)
}

// openPool is poolNamed for a change that nobody may make while the namespace is being cleared.
func (b *batch) openPool(ns, name string) (*pool, error) {
	p, err := b.poolNamed(ns, name)
	if err == nil {
		err = closedTo(ns, p.space.state)
	}
	return p, err
}

// touchPool is called before a pool's balances change.
func (b *batch) touchPool(p *pool) {
	b.need(p)
	if b.poolSeen[p] {
		return
	}
	b.poolSeen[p] = true
	b.touched = append(b.touched, poolUndo{p, *p})
}

// change alters a row, keeping maps, core and node in step.
func (b *batch) change(r *row, f func(*row)) {
	b.need(r.home())
	if _, seen := b.rowsSeen[r]; !seen {
		b.rowsSeen[r] = len(b.changed)
		b.changed = append(b.changed, rowUndo{row: r, life: r.life})
	}
	b.changed[b.rowsSeen[r]].changes++
	before := r.life
	f(r)
	b.moved(r, &before)
}

// start is change for a row that begins to run. When nothing else happens to it in
// this batch, a narrow statement says so.
func (b *batch) start(r *row, f func(*row)) {
	b.holding(r, r.held, "used", f)
	u := &b.changed[b.rowsSeen[r]]
	u.started = u.changes == 1 && !u.inserted
}

// add puts a new row in the book.
func (b *batch) add(r *row, spec *Spec, actor string) {
	b.need(r.home())
	b.rowsSeen[r] = len(b.changed)
	b.changed = append(b.changed, rowUndo{row: r, inserted: true})
	b.inserts = append(b.inserts, insert{row: r, spec: spec, actor: actor})
	b.index(r)
}

// adopt brings an ended row, just read from the database, back into the book.
func (b *batch) adopt(r *row) {
	b.need(r.home())
	b.rowsSeen[r] = len(b.changed)
	b.changed = append(b.changed, rowUndo{row: r, life: r.life})
}

// moving are the pools whose version goes up: of their balances or rows something is different.
func (b *batch) moving() []*pool {
	var out []*pool
	for _, u := range b.touched {
		out = append(out, u.pool)
	}
	for _, u := range b.changed {
		if p := u.row.home(); p != nil && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// rollback plays the journal backwards.
func (b *batch) rollback() {
	for _, u := range slices.Backward(b.changed) {
		b.unindex(u.row)
	}
	for _, u := range slices.Backward(b.touched) {
		bound, rows := u.pool.maxRuntime, u.pool.rows
		*u.pool = u.before
		u.pool.rows = rows // like line and ends, kept by index and unindex
		b.poolChanged(u.pool)
		b.redate(u.pool, bound)
		b.syncGroups(u.pool)
	}
	// Rows come back in two passes because a preemptor's node charge asks for its victims.
	for _, u := range slices.Backward(b.changed) {
		if u.inserted {
			continue
		}
		was := u.life.indexed
		u.row.life = u.life
		u.row.indexed = false
		u.row.charged = nodeCharge{}
		if was {
			b.rows[u.row.uid] = u.row
		}
	}
	for _, u := range b.changed {
		if !u.inserted && u.life.indexed {
			b.index(u.row)
		}
	}
	for _, u := range b.touched {
		b.syncGroups(u.pool)
	}
}

// hold makes a row charge its pool with amount under the given balance
// ("reserved", "used" or "" for nothing), instead of what it charged before.
func (b *batch) hold(r *row, amount sched.Resources, as string) {
	b.holding(r, amount, as, func(*row) {})
}

// holding is hold together with another change of the row.
func (b *batch) holding(r *row, amount sched.Resources, as string, f func(*row)) {
	p := r.pool
	if amount.IsZero() {
		as = ""
	}
	if as == "" {
		amount = sched.Resources{}
	}
	b.touchPool(p)
	switch r.heldAs {
	case "reserved":
		p.reserved = p.reserved.Sub(r.held)
	case "used":
		p.used = p.used.Sub(r.held)
	}
	switch as {
	case "reserved":
		p.reserved = p.reserved.Add(amount)
	case "used":
		p.used = p.used.Add(amount)
	}
	b.change(r, func(r *row) {
		r.held, r.heldAs = amount, as
		f(r)
	})
	b.poolChanged(p)
}

// release lets go of what a row holds: loans go back first, then the queue may move.
func (b *batch) release(r *row) {
	if r.pool == nil || r.heldAs == "" {
		return
	}
	b.hold(r, sched.Resources{}, "")
	b.repay(r.pool)
	b.freed(r.pool)
}

// freed notes that a queue may move.
func (b *batch) freed(p *pool) {
	if !slices.Contains(b.drain, p) {
		b.drain = append(b.drain, p)
	}
}

// lend moves quota from one pool to another of the same cluster.
func (b *batch) lend(from, to *pool, amount sched.Resources) {
	if amount.IsZero() {
		return
	}
	b.touchPool(from)
	b.touchPool(to)
	from.lent = from.lent.Add(amount)
	to.borrowed = to.borrowed.Add(amount)
	loans := slices.Clone(to.loans)
	if at := slices.IndexFunc(loans, func(l loan) bool { return l.lender == from.id }); at >= 0 {
		loans[at].amount = loans[at].amount.Add(amount)
	} else {
		loans = append(loans, loan{lender: from.id, since: b.now, amount: amount})
	}
	to.loans = loans
	b.loanOut[loanKey{from.id, to.id}] = true
	b.poolChanged(from)
	b.poolChanged(to)
}

// giveBack returns up to amount of what `to` borrowed from `from`, and says how much that was.
func (b *batch) giveBack(from, to *pool, amount sched.Resources) sched.Resources {
	at := slices.IndexFunc(to.loans, func(l loan) bool { return l.lender == from.id })
	if at < 0 {
		return sched.Resources{}
	}
	back := to.loans[at].amount.Min(amount).Positive()
	if back.IsZero() {
		return back
	}
	b.touchPool(from)
	b.touchPool(to)
	loans := slices.Clone(to.loans)
	loans[at].amount = loans[at].amount.Sub(back)
	if loans[at].amount.IsZero() {
		loans = slices.Delete(loans, at, at+1)
	}
	to.loans = loans
	from.lent = from.lent.Sub(back)
	to.borrowed = to.borrowed.Sub(back)
	b.loanOut[loanKey{from.id, to.id}] = true
	b.poolChanged(from)
	b.poolChanged(to)
	b.freed(from)
	return back
}

// repay gives back what a pool borrowed and no longer needs, oldest loan first.
func (b *batch) repay(p *pool) {
	for _, l := range p.loans {
		spare := p.free().Positive()
		if spare.Intersects(l.amount) {
			lender := b.pools[l.lender]
			if lender == nil {
				panic(widen{[]int64{l.lender}})
			}
			b.giveBack(lender, p, spare)
		}
	}
}

// event records a transition of a row.
func (b *batch) event(r *row, typ, actor, code, message string, detail any) {
	e := Event{At: b.now, Namespace: r.space.name, TaskUID: r.uid, TaskID: r.taskID, Pool: r.poolName, Attempt: r.attempt,
		Type: typ, Actor: actor, Code: code, Message: message, PolicyVersion: r.space.policyVersion}
	if detail != nil {
		e.Detail, _ = json.Marshal(detail)
	}
	b.events = append(b.events, e)
	b.woken = append(b.woken, r.uid)
}

// job hands work to the agents once the batch is durable.
func (b *batch) job(j Job) { b.jobs = append(b.jobs, j) }
