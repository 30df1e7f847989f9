package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

const (
	maxBatch   = 512 // calls in one transaction
	maxRetries = 8   // of one batch, for serialization failures and widened locks
)

// call is one caller's request to the lane: what it wants decided, and its answer.
type call struct {
	// pools it is sure to touch, from what the book says now.
	plan func(*book) []*pool
	// do decides under the locks. It may run several times; the last one counts.
	do func(*batch) error
	// read, instead of do, looks at the book between two transactions; all of it
	// without a plan.
	read func(*book)
	// whole calls wait until everything is loaded, early ones for nothing; see start.go.
	whole, early bool

	err   error
	done  chan struct{}
	begun atomic.Bool // by the lane, or given up by the caller
}

// lane combines concurrent calls into transactions. It is one goroutine, which owns
// the book; when it is idle a single call waits for nobody, and while a transaction
// is under way the next batch gathers.
type lane struct {
	pool    *pgxpool.Pool
	book    *book
	in      chan *call
	stopped chan struct{}
	single  bool // a transaction for each call: to measure what lanes bring
	now     func() time.Time
	log     *slog.Logger
	metrics *Metrics
	after   func(*batch) // told of every committed batch

	scratch scratch

	start  *starter
	parked []*call // wait for pools to be loaded
	again  []*call // waited, and are to be looked at again
	// others reports whether another server is alive; learned hears of rows that one changed.
	others  func() bool
	learned func(ch *changes, fresh []*row)
	leads   func() bool // reports whether this server runs the agents of some cluster
}

func (l *lane) submit(ctx context.Context, c *call) error {
	c.done = make(chan struct{})
	select {
	case l.in <- c:
	case <-l.stopped:
		return refuse(ErrClosed, "the server is shutting down")
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-c.done:
		return c.err
	case <-l.stopped:
		return refuse(ErrClosed, "the server is shutting down")
	case <-ctx.Done():
		if c.begun.CompareAndSwap(false, true) {
			return ctx.Err()
		}
	}
	// Once begun it is not abandoned when the caller goes away: what is decided is
	// decided, and the caller may ask again with the same id.
	select {
	case <-c.done:
		return c.err
	case <-l.stopped:
		return refuse(ErrClosed, "the server is shutting down")
	}
}

func (l *lane) run(ctx context.Context) {
	defer close(l.stopped)
	calls := make([]*call, 0, maxBatch)
	for {
		calls = calls[:0]
		if l.book.follow() { // in between, and while there is nothing else to do
			select {
			case c := <-l.in:
				calls = append(calls, c)
			case <-ctx.Done():
				return
			default:
				continue
			}
		} else {
			select {
			case c := <-l.in:
				calls = append(calls, c)
			case <-ctx.Done():
				return
			}
		}
	gather:
		for len(calls) < maxBatch && !l.single {
			select {
			case c := <-l.in:
				calls = append(calls, c)
			default:
				break gather
			}
		}
		writes := calls[:0:0]
		for i := 0; i < len(calls); i++ {
			c := calls[i]
			switch {
			case l.waits(c):
				l.parked = append(l.parked, c)
			case !c.begun.CompareAndSwap(false, true): // its caller went away
			case c.read != nil:
				c.read(l.book)
				close(c.done)
				calls, l.again = append(calls, l.again...), nil
			default:
				writes = append(writes, c)
			}
		}
		for batch := range slices.Chunk(writes, maxBatch) {
			l.transact(ctx, batch)
		}
	}
}

// answer tells a caller what came of its call; one that could not be decided before
// everything is loaded waits for that instead.
func (l *lane) answer(c *call) {
	if l.book.loading && CodeOf(c.err) == codeLoading {
		c.err, c.whole = nil, true
		c.begun.Store(false)
		l.parked = append(l.parked, c)
		return
	}
	close(c.done)
}

// transact answers calls with one transaction, or, when that cannot be, one by one.
func (l *lane) transact(ctx context.Context, calls []*call) {
	err := l.attempt(ctx, calls)
	if err != nil && len(calls) > 1 && !unreachable(err) {
		// One of them poisons the transaction: the others must not suffer.
		l.metrics.replayed()
		l.log.Warn("a batch failed and is replayed one by one", "calls", len(calls), "error", err)
		for _, c := range calls {
			c.err = nil
			if err := l.attempt(ctx, []*call{c}); err != nil {
				c.err = l.outward(err)
			}
			l.answer(c)
		}
		return
	}
	for _, c := range calls {
		if err != nil {
			c.err = l.outward(err)
		}
		l.answer(c)
	}
}

// outward is what a caller is told of a database failure.
func (l *lane) outward(err error) error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	if e := constraint(err); e != nil {
		return e
	}
	l.log.Error("a transaction failed", "error", err)
	l.metrics.failed(err)
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, errUnknown):
		return &Error{Code: ErrUnavailable.Code, Message: "the database went away while this was written, and nobody can tell yet whether it was: look, or ask again with the same id", cause: err}
	case errors.As(err, &pg) && pg.Code[:2] == "53":
		return &Error{Code: ErrUnavailable.Code, Message: "the database has run out of something (" + pg.Message + "): nothing was changed, try again", cause: err}
	}
	if unreachable(err) {
		return &Error{Code: ErrUnavailable.Code, Message: "the database cannot be reached right now: nothing was changed, try again", cause: err}
	}
	return &Error{Code: ErrInternal.Code, Message: "the ledger could not write this: nothing was changed", cause: err}
}

// constraint maps a violated constraint to the error people understand.
func constraint(err error) *Error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return nil
	}
	switch pg.ConstraintName {
	case "tasks_task_id_unique":
		return &Error{Code: ErrTaskExists.Code, Message: "a live task of this id exists already: choose another task_id", cause: err}
	case "tasks_agent_name_unique":
		return &Error{Code: ErrAgentExists.Code, Message: "a live agent of this name exists already: choose another name", cause: err}
	case "pools_name_unique":
		return &Error{Code: ErrPoolExists.Code, Message: "a pool of this name exists already", cause: err}
	case "pool_resources_quota_not_exceeded":
		return &Error{Code: ErrInternal.Code, Message: "the ledger refused to promise more than a pool has: nothing was changed", cause: err}
	}
	if pg.Code == "22021" || pg.Code == "22P05" {
		return &Error{Code: ErrInvalid.Code, Message: "text contains a byte Postgres cannot store (NUL or invalid UTF-8)", cause: err}
	}
	return nil
}

func retryable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01")
}

// unreachable reports whether the server, not the statement, failed.
func unreachable(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code[:2] == "57" || pg.Code[:2] == "08" || pg.Code[:2] == "53"
	}
	var known *Error
	return !errors.As(err, &known)
}

// lostError is a lost connection, or one that could not be had, when it is certain
// that nothing was committed.
type lostError struct{ cause error }

func (e lostError) Error() string { return e.cause.Error() }
func (e lostError) Unwrap() error { return e.cause }

// lost wraps an error that another connection may not meet.
func lost(err error) error {
	var pg *pgconn.PgError
	if !unreachable(err) || errors.As(err, &pg) && pg.Code[:2] == "53" {
		return err
	}
	return lostError{err}
}

// errUnknown is a commit of which nobody knows whether it happened.
var errUnknown = errors.New("ledger: whether the transaction committed is unknown")

// errMoved says that the book was behind and has caught up: start again.
var errMoved = errors.New("ledger: the book was behind")

// attempt runs calls as one transaction until it commits, with wider locks, or again
// after a serialization failure or a lost connection, a bounded number of times.
func (l *lane) attempt(ctx context.Context, calls []*call) error {
	want := map[int64]bool{}
	for _, c := range calls {
		for _, p := range c.plan(l.book) {
			if p != nil {
				want[p.id] = true
			}
		}
	}
	for try := 1; ; try++ {
		err := l.once(ctx, calls, want)
		var w widenError
		switch {
		case err == nil:
			return nil
		case try >= maxRetries:
			return err
		case errors.As(err, &w):
			for _, id := range w.pools {
				want[id] = true
			}
		case errors.Is(err, errMoved):
		case retryable(err), errors.As(err, &lostError{}):
			l.metrics.retried()
			time.Sleep(time.Duration(rand.IntN(1<<min(try, 6))) * time.Millisecond)
		default:
			return err
		}
	}
}

type widenError struct{ widen }

func (widenError) Error() string { return "ledger: more pools are needed" }

// once is one transaction: lock, catch up, decide in memory, write, commit.
func (l *lane) once(ctx context.Context, calls []*call, want map[int64]bool) (err error) {
	began := time.Now()
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return lost(err)
	}
	defer conn.Release()

	ids := make([]int64, 0, len(want))
	for id := range want {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	var spaces []int64
	for len(ids) > 0 && ids[0] < 0 {
		spaces, ids = append(spaces, -ids[0]), ids[1:]
	}

	// First round trip: BEGIN and the locks.
	open := &pgx.Batch{}
	open.Queue("BEGIN")
	var locked []dbgen.LockPoolsRow
	ask(open, &locked, dbgen.LockPoolsSQL, ids)
	var lockedSpaces []dbgen.LockUnmanagedRow
	if spaces != nil {
		ask(open, &lockedSpaces, dbgen.LockUnmanagedSQL, spaces)
	}
	err = conn.SendBatch(ctx, open).Close()
	committed := false
	defer func() {
		if !committed {
			l.rollback(conn)
		}
	}()
	if err != nil {
		return lost(err)
	}

	b := l.newBatch()
	defer l.scratch.keep(b)
	xid := ""
	var behind []int64
	for id := range want {
		if p := l.book.home(id); p != nil {
			p.busy = began
		}
	}
	for _, p := range locked {
		b.locked[p.ID] = true
		xid = p.Xid
		if known := l.book.pools[p.ID]; known == nil || known.version != p.Version || known.space.edition() != (edition{p.Epoch, int(p.PolicyVersion)}) {
			behind = append(behind, p.ID)
		}
	}
	for _, s := range lockedSpaces {
		b.locked[-s.ID] = true
		xid = s.Xid
		if known := l.book.byID[s.ID]; known == nil || known.unmanaged.version != s.UnmanagedVersion || known.edition() != (edition{s.Epoch, int(s.PolicyVersion)}) {
			behind = append(behind, -s.ID)
		}
	}
	for _, id := range ids {
		if !b.locked[id] { // deleted meanwhile
			delete(want, id)
			if p := l.book.pools[id]; p != nil {
				l.book.dropPool(p)
			}
		}
	}
	if behind != nil {
		// Under the lock nobody else can move them, so what is read is current; what was
		// planned on the old state may need other pools, though.
		ch, err := readChanges(ctx, conn.Conn(), l.basisOf(behind), l.now())
		if err != nil {
			return err
		}
		if linked := l.apply(ch, func(id int64) bool { return b.locked[id] }); linked != nil {
			for _, id := range linked {
				want[id] = true
			}
			return errMoved
		}
		for _, c := range calls {
			for _, p := range c.plan(l.book) {
				if p != nil && !b.locked[p.id] {
					want[p.id] = true
					err = errMoved
				}
			}
		}
		if err != nil {
			return err
		}
	}

	if err := l.decide(b, calls); err != nil {
		b.rollback()
		return err
	}
	if len(b.changed) == 0 && len(b.touched) == 0 && len(b.events) == 0 && len(b.writes) == 0 {
		return nil // refusals only: nothing to write
	}

	// Second round trip: all writes and COMMIT.
	out := b.flush(ctx)
	out.Queue("COMMIT")
	err = conn.SendBatch(ctx, out).Close()
	if err != nil {
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code[:2] == "57" || pg.Code[:2] == "08" {
			committed, err = l.outcome(ctx, xid, err)
		}
		if !committed {
			b.rollback()
			for id := range b.locked {
				if p := l.book.home(id); p != nil && errors.Is(err, errUnknown) {
					p.version = -1 // read anew before anything else is decided on it
				}
			}
			return err
		}
		l.log.Warn("a commit's answer was lost, but it had committed", "xid", xid)
	}
	committed = true
	b.committed()
	l.metrics.batch(len(calls), time.Since(began))
	l.after(b)
	return nil
}

// outcome finds out whether a transaction whose COMMIT was not answered did commit.
func (l *lane) outcome(ctx context.Context, xid string, cause error) (bool, error) {
	l.metrics.unknown()
	if xid == "" {
		return false, cause
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		var status *string
		err := l.pool.QueryRow(ctx, "SELECT pg_xact_status($1::text::xid8)", xid).Scan(&status)
		if err == nil && status != nil && *status != "in progress" {
			return *status == "committed", lost(cause)
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("%w: transaction %s: %w", errUnknown, xid, cause)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// rollback ends a transaction on a context nobody cancels; a connection that
// cannot even do that is thrown away.
func (l *lane) rollback(conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil {
		_ = conn.Conn().Close(ctx)
	}
}

func (l *lane) newBatch() *batch {
	if l.scratch.rowsSeen == nil {
		l.scratch.rowsSeen = map[*row]int{}
	}
	return &batch{book: l.book, now: l.now().UTC().Truncate(time.Microsecond), locked: map[int64]bool{},
		shared: l.others(), changed: l.scratch.changed, inserts: l.scratch.inserts, events: l.scratch.events, rowsSeen: l.scratch.rowsSeen, poolSeen: map[*pool]bool{}, loanOut: map[loanKey]bool{}}
}

// decide runs every call on the batch, then lets the queues move.
func (l *lane) decide(b *batch, calls []*call) (err error) {
	defer func() {
		if p := recover(); p != nil {
			w, ok := p.(widen)
			if !ok {
				// A defect of ours: the batch is undone and replayed one by one, so that only its cause suffers.
				l.log.Error("a decision panicked", "panic", p, "stack", string(debug.Stack()))
				err = &Error{Code: ErrInternal.Code, Message: "the ledger could not decide this: nothing was changed"}
				return
			}
			err = widenError{w}
		}
	}()
	for _, c := range calls {
		c.err = c.do(b)
	}
	b.riseAll()
	for len(b.drain) > 0 {
		p := b.drain[0]
		b.drain = b.drain[1:]
		if l.book.pools[p.id] == p {
			b.admitQueue(p)
		}
		b.riseAll()
	}
	return nil
}

// committed makes what the batch decided the book's own.
func (b *batch) committed() {
	for _, p := range b.moving() {
		p.version++
	}
	for _, p := range b.dropped {
		b.dropPool(p)
	}
	for id, more := range b.more {
		if more {
			b.unfinished[id] = true
		} else {
			delete(b.unfinished, id)
		}
	}
	for _, do := range b.then {
		do()
	}
}

// look runs f on the whole book between two transactions.
func (l *lane) look(ctx context.Context, f func(*book)) error {
	return l.submit(ctx, &call{read: f})
}

// glance is look for what does not ask whether everything is loaded.
func (l *lane) glance(ctx context.Context, f func(*book)) error {
	return l.submit(ctx, &call{read: f, early: true})
}

// poolOf plans for one pool by name.
func poolOf(ns, name string) func(*book) []*pool {
	return func(b *book) []*pool {
		if s := b.spaces[ns]; s != nil {
			if p := s.pools[name]; p != nil {
				return []*pool{p}
			}
		}
		return nil
	}
}

// rowPools plans for a row: its pool, who lent to it, and the pools of what it waits for.
func rowPools(b *book, r *row) []*pool {
	if r == nil {
		return nil
	}
	out := []*pool{r.home()}
	if r.pool == nil {
		return out
	}
	for _, l := range r.pool.loans {
		out = append(out, b.pools[l.lender])
	}
	for _, id := range r.victims {
		out = append(out, b.poolOf(id))
	}
	for _, m := range b.gangs[r.gang()] {
		out = append(out, m.pool)
	}
	if r.taking != nil {
		out = append(out, b.poolOf(r.taking.by))
		if p := b.rows[r.taking.by]; p != nil {
			for _, m := range b.gangs[p.gang()] {
				out = append(out, m.pool)
			}
		}
	}
	return out
}

func uidOf(uid sched.ID) func(*book) []*pool {
	return func(b *book) []*pool { return rowPools(b, b.rows[uid]) }
}
