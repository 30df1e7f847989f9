package ledger

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

const (
	maxStarts   = 2000            // from queues, in one transaction
	maxForecast = 256             // of a line is looked ahead for an ETA
	maxTold     = 64              // of a line are told in the answer to their submission when it is their turn
	maxBackoff  = 5 * time.Minute // between two attempts
)

// extras is what few rows have.
type extras struct {
	queueTimeout time.Duration // 0 = waits for ever
	retryBackoff time.Duration // before the second attempt
	gang         sched.ID
}

// usual is what a row without extras has.
var usual = extras{retryBackoff: time.Second}

func orUsual(backoff *time.Duration) time.Duration {
	if backoff == nil {
		return usual.retryBackoff
	}
	return *backoff
}

func (s *Submission) usual() bool {
	return s.QueueTimeout == 0 && orUsual(s.RetryBackoff) == usual.retryBackoff
}

func (r *row) more() extras {
	if r.extras == nil {
		return usual
	}
	return *r.extras
}

// write saves extras after the row was inserted.
func (e *extras) write(b *batch, uid sched.ID) {
	x := *e
	b.writes = append(b.writes, sqlWrite(func(ctx context.Context, q *dbgen.Queries) error {
		return q.WriteWaiting(ctx, dbgen.WriteWaitingParams{Uid: pgUUID(uid), QueueTimeoutMs: x.queueTimeout.Milliseconds(),
			RetryBackoffMs: x.retryBackoff.Milliseconds(), Gang: pgUUID(x.gang)})
	}))
}

// waiting is how a row stands in line.
func (r *row) waiting() sched.Waiting {
	return sched.Waiting{ID: r.uid, Priority: r.priority, Since: timeOf(r.submitted), Request: r.request}
}

// limit is the longest an attempt may run, the lesser of what its task and its pool say; 0 = no limit.
func (r *row) limit() time.Duration {
	if r.kind != KindTask || r.pool == nil || r.pool.maxRuntime == 0 {
		return r.maxRuntime
	}
	if r.maxRuntime == 0 {
		return r.pool.maxRuntime
	}
	return min(r.maxRuntime, r.pool.maxRuntime)
}

// runs is how long an attempt is expected to take; 0 = nobody knows.
func (r *row) runs() sched.Time {
	most := r.limit()
	if r.estimate == 0 || most > 0 && most < r.estimate {
		return sched.Time(most.Milliseconds())
	}
	return sched.Time(r.estimate.Milliseconds())
}

// endsAt is when what the row holds is expected to come free.
func (r *row) endsAt() (at sched.Time, known bool) {
	switch r.state {
	case Stopping, Preempting:
		return 0, true // any moment
	}
	runs := r.runs()
	if runs == 0 {
		return 0, false
	}
	if r.started.IsZero() {
		return r.granted + runs, true
	}
	return timeOf(r.started) + runs, true
}

// deadline is when something must be done about a row that nobody else will report; 0 = never.
func (r *row) deadline() sched.Time {
	switch r.state {
	case Queued:
		at := r.notBefore
		if most := r.more().queueTimeout; most > 0 {
			if out := timeOf(r.queued.Add(most)); at == 0 || out < at {
				at = out
			}
		}
		return at
	case Running:
		if most := r.limit(); most > 0 {
			return timeOf(r.started.Add(most))
		}
	}
	return 0
}

// date enters a row in the agendas it belongs to.
func (b *book) date(r *row) {
	b.undate(r)
	if at := r.deadline(); at != 0 {
		b.deadlines.Put(r.uid, at, sched.Resources{})
		r.dated = true
	}
	if b.rooms == nil || r.pool == nil || r.state == Queued {
		return
	}
	at, known := r.endsAt()
	if !known {
		return
	}
	r.dated = true
	if r.heldAs != "" {
		r.pool.ends.Put(r.uid, at, r.held)
	}
	if r.givesRoom() {
		if b.rooms[r.charged.node] == nil {
			b.rooms[r.charged.node] = &sched.Agenda{}
		}
		b.rooms[r.charged.node].Put(r.uid, at, r.charged.amount)
	}
}

// givesRoom reports whether room on a node comes free for anybody when the row ends.
func (r *row) givesRoom() bool {
	return r.charged.node != "" && (r.state != Preempting || r.taking != nil && r.taking.drained)
}

// lookAhead fills the agendas of what comes free, which nobody asks before somebody
// waits: while nobody does, a running task costs neither their time nor their memory.
func (b *book) lookAhead() {
	b.calm = 0
	if b.rooms != nil {
		return
	}
	ends, rooms := map[*pool][]sched.Entry{}, map[sched.NodeID][]sched.Entry{}
	for _, r := range b.rows {
		if r.pool == nil || r.state == Queued {
			continue
		}
		at, known := r.endsAt()
		if !known {
			continue
		}
		r.dated = true
		if r.heldAs != "" {
			ends[r.pool] = append(ends[r.pool], sched.Entry{ID: r.uid, At: at, Amount: r.held})
		}
		if r.givesRoom() {
			rooms[r.charged.node] = append(rooms[r.charged.node], sched.Entry{ID: r.uid, At: at, Amount: r.charged.amount})
		}
	}
	for p, entries := range ends {
		p.ends.Fill(entries)
	}
	b.rooms = make(map[sched.NodeID]*sched.Agenda, len(rooms))
	for node, entries := range rooms {
		b.rooms[node] = &sched.Agenda{}
		b.rooms[node].Fill(entries)
	}
}

// lookAway gives the agendas up when nobody has asked and nobody waited for a minute.
func (b *book) lookAway() {
	if b.rooms == nil {
		return
	}
	for _, p := range b.pools {
		if p.line.Len() > 0 {
			b.calm = 0
			return
		}
	}
	if b.calm++; b.calm < int(time.Minute/deadlineEvery) {
		return
	}
	b.rooms = nil
	for _, p := range b.pools {
		p.ends = &sched.Agenda{}
	}
}

func (b *book) undate(r *row) {
	if !r.dated {
		return
	}
	r.dated = false
	b.deadlines.Remove(r.uid)
	if r.pool != nil {
		r.pool.ends.Remove(r.uid)
	}
	if room := b.rooms[r.charged.node]; room != nil {
		room.Remove(r.uid)
		if room.Len() == 0 {
			delete(b.rooms, r.charged.node)
		}
	}
}

// redate enters all rows of a pool anew when its max_runtime was another one.
func (b *book) redate(p *pool, was time.Duration) {
	if p.maxRuntime == was {
		return
	}
	for _, r := range p.rows {
		if r.indexed && r.pool == p {
			b.date(r)
		}
	}
}

// setPolicy makes core and lines follow a policy; the core's index takes its time.
func (b *book) setPolicy(s *space, p sched.Policy, version int) {
	s.core.SetPolicy(p)
	s.policyVersion = version
	for _, p := range s.pools {
		p.line.SetAgeing(s.core.Policy().AgeingWeight)
	}
	b.following = append(b.following, s)
}

// follows takes over what is newer than what the book knows of a namespace: its policy,
// and whether it is open.
func (b *book) follows(s *space, e edition, state string, p sched.Policy) {
	if e.after(s.edition()) {
		s.epoch, s.state = e.epoch, state
		b.setPolicy(s, p, e.version)
	}
}

// follow does a millisecond's worth of what new policies have left to do, and
// reports whether anything is.
func (b *book) follow() bool {
	b.following = slices.DeleteFunc(b.following, func(s *space) bool { return !s.core.Follow() })
	return len(b.following) > 0
}

// head is who is next in line; nil when nobody waits.
func (b *book) head(p *pool) *row {
	if id, ok := p.line.Head(); ok {
		return b.rows[id]
	}
	return nil
}

func (b *book) reserve(head *row, now time.Time) *sched.Reservation {
	in, ends := b.incoming(head), b.endsOf(head.pool)
	if gang := b.inLine(head); len(gang) > 1 {
		// Room is kept for all of it together, wherever.
		in.Request, ends.Room = sum(gang), nil
	}
	return head.space.core.Reserve(in, ends, timeOf(now))
}

func (b *book) endsOf(p *pool) sched.Ends {
	b.lookAhead()
	return sched.Ends{Quota: p.ends, Borrowed: p.borrowed, Room: func(n sched.NodeID) *sched.Agenda { return b.rooms[n] }}
}

// ask says what becomes of a newcomer. Who would not be the head of the line may
// only start if the head is not delayed by that.
func (b *batch) ask(r *row) sched.Decision {
	p := r.pool
	if p.hold.on() {
		return sched.Decision{Outcome: sched.Refuse, Refusal: sched.Refusal{Code: codePoolHeld, Message: p.hold.sentence("pool " + p.name)}}
	}
	head := b.head(p)
	if head == nil || r.kind != KindAgent && p.line.Leads(r.waiting()) {
		return b.decide(r)
	}
	if p.grouped() {
		code := sched.Code(codeBehind)
		if r.onInsufficient != Queue {
			code = sched.RoomReserved
		}
		return sched.Decision{Outcome: sched.Refuse, Refusal: sched.Refusal{Code: code, Message: "waits behind " + head.taskID}}
	}
	if b.loading { // how far the head can be from starting is not known yet
		return sched.Decision{Outcome: sched.Refuse, Refusal: sched.Refusal{Code: codeLoading}}
	}
	if r.onInsufficient == Queue && !p.space.core.Fits(p.name, r.request) {
		// Whom it might preempt is asked when it is its turn.
		return sched.Decision{Outcome: sched.Refuse, Refusal: sched.Refusal{Code: codeBehind, Message: "waits behind " + head.taskID}}
	}
	b.minute(r.space)
	return b.behind(r, head, b.reserve(head, b.now))
}

// behind decides about a row that is not at the head.
func (b *batch) behind(r, head *row, kept *sched.Reservation) sched.Decision {
	now, end := timeOf(b.now), sched.Time(0)
	if runs := r.runs(); runs > 0 {
		end = now + runs
	}
	return r.space.core.Backfill(b.incoming(r), end, kept, head.taskID, now)
}

// Codes of what waits, beside the core's.
const (
	codePoolHeld = "pool_held"
	codeBehind   = "queued_behind"
	codeBackoff  = "backoff"
	codeRetry    = "retry"
)

// waitable reports whether waiting can help against a refusal.
func waitable(c sched.Code) bool {
	switch c {
	case sched.NoVictims, sched.VictimsInsufficient, sched.RoomReserved, codePoolHeld, codeBehind:
		return true
	}
	return false
}

// admitQueue lets a pool's line move: the head while there is room for it, then those
// behind it that cannot delay it. It starts so many at most; the rest follows in
// the next transaction.
func (b *batch) admitQueue(p *pool) {
	if b.more == nil {
		b.more = map[int64]bool{}
	}
	b.more[p.id] = false
	for n := 0; ; n++ {
		head := b.head(p)
		if head == nil || p.space.state != spaceOpen {
			return
		}
		if p.hold.on() {
			b.waits(head, codePoolHeld, p.hold.sentence("pool "+p.name))
			return
		}
		if n == maxStarts {
			b.more[p.id] = true
			return
		}
		refusal := b.tryHead(head)
		if refusal == nil {
			continue
		}
		if refusal.Code == codeLoading {
			p.stalled = true
			return
		}
		b.waits(head, string(refusal.Code), refusal.Message)
		b.backfill(p, head)
		return
	}
}

// tryHead starts the head of a line, with the rest of its gang if it has one, or says why not.
func (b *batch) tryHead(head *row) *sched.Refusal {
	gang := b.inLine(head)
	if len(gang) > 1 && !b.loading {
		d := b.decideGang(gang)
		if d.Outcome == sched.Refuse {
			return &d.Refusal
		}
		b.beginGang(gang, d)
		return nil
	}
	d := sched.Decision{Outcome: sched.Refuse, Refusal: sched.Refusal{Code: codeLoading}}
	if len(gang) == 1 {
		d = b.decide(head)
	}
	if d.Outcome == sched.Refuse {
		return &d.Refusal
	}
	b.begin(head, d)
	return nil
}

// waits notes why the head waits. The words go stale with every task that comes and
// goes, and are made anew for whoever asks; so only another code is worth a write.
func (b *batch) waits(r *row, code, reason string) {
	if r.code != code {
		b.change(r, func(r *row) { r.code, r.reason = code, reason })
	}
}

// backfill starts those behind the head that fit now and cannot delay it. They preempt nobody.
func (b *batch) backfill(p *pool, head *row) {
	if p.grouped() {
		return // when and in which group the head will find room is not foreseen
	}
	p.space.core.BackfillLine(p.name, p.line,
		func(id sched.ID) bool { return len(b.inLine(b.rows[id])) == 1 },
		func() *sched.Reservation { return b.reserve(head, b.now) },
		func(id sched.ID, kept *sched.Reservation) bool {
			r := b.rows[id]
			d := b.behind(r, head, kept)
			if d.Outcome != sched.Admit {
				return false
			}
			b.begin(r, d)
			return true
		})
}

// begin gives a row that waited its quota.
func (b *batch) begin(r *row, d sched.Decision) {
	b.lockVictims(d)
	b.leaveGang(r)
	b.reserveAgain(r, d.Node)
	b.grant(r, d, nil, "")
}

// reserveAgain names the next attempt of a row that waited.
func (b *batch) reserveAgain(r *row, node sched.NodeID) {
	again := !r.started.IsZero() || r.preemptions > 0 || r.failures > 0
	b.change(r, func(r *row) {
		r.state = Reserved
		if again {
			r.attempt++
		}
		b.prepare(r, node)
	})
	b.sit(r, node)
}

// backoff is how long a row that failed so often waits before it is tried again:
// twice as long each time, and not all at the same moment.
func (r *row) backoff() time.Duration {
	base := r.more().retryBackoff
	d := base
	for n := 1; n < r.failures && d < maxBackoff; n++ {
		d *= 2
	}
	d = min(d, maxBackoff)
	h := fnv.New32a()
	_, _ = h.Write(append(r.uid[:], byte(r.failures)))
	return d - d/4*time.Duration(h.Sum32()%1000)/1000
}

// later makes a queued row wait until a time before it is in line; the zero time ends that.
func (b *batch) later(r *row, until sched.Time) {
	b.change(r, func(r *row) { r.notBefore = until })
	uid := r.uid
	var at *time.Time
	if until != 0 {
		t := time.UnixMilli(int64(until)).UTC()
		at = &t
	}
	b.writes = append(b.writes, sqlWrite(func(ctx context.Context, q *dbgen.Queries) error {
		return q.WriteNotBefore(ctx, dbgen.WriteNotBeforeParams{Uid: pgUUID(uid), NotBefore: at})
	}))
}

// due does what a row's deadline asks for.
func (b *batch) due(r *row) {
	if at := r.deadline(); at == 0 || at > timeOf(b.now) {
		return
	}
	if r.state == Running {
		b.stopping(r, Failed, "max_runtime", "it ran longer than its max_runtime of "+r.limit().String(), "")
		return
	}
	if most := r.more().queueTimeout; most > 0 && b.now.Sub(r.queued) >= most {
		b.finish(r, Failed, "queue_timeout", fmt.Sprintf("it waited for its queue_timeout of %s; last: %s", most, r.reason))
		b.freed(r.pool) // who was behind it may be the head now
		return
	}
	b.later(r, 0)
	b.change(r, func(r *row) { r.code = codeRetry })
	b.freed(r.pool)
}

// deadlineEvery is how late a deadline may be noticed.
const deadlineEvery = 250 * time.Millisecond

// keepDeadlines ends what is overdue, for as long as the ledger is open.
func (l *Ledger) keepDeadlines(ctx context.Context) {
	tick := time.NewTicker(deadlineEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-l.hurry:
		case <-ctx.Done():
			return
		}
		if err := l.EndOverdue(ctx); err != nil && ctx.Err() == nil {
			l.log.Warn("keeping deadlines failed", "error", err)
		}
	}
}

// EndOverdue does what deadlines ask for now: tasks past their max_runtime or their
// queue_timeout fail, those whose backoff is over are in line again, and what is still
// on a pool or node whose drain is over is taken. Several servers may do it at once.
func (l *Ledger) EndOverdue(ctx context.Context) error {
	var due, drained []sched.ID
	var more []int64
	now := l.now()
	if err := l.lane.look(ctx, func(b *book) {
		for id := range b.deadlines.Due(timeOf(now)) {
			if due = append(due, id); len(due) == maxBatch {
				break
			}
		}
		drained = b.overstayed(now)
		b.lookAway()
		more = slices.Collect(maps.Keys(b.unfinished))
	}); err != nil {
		return err
	}
	if len(due)+len(drained)+len(more) == 0 {
		return nil
	}
	err := l.lane.submit(ctx, &call{
		plan: func(b *book) []*pool {
			var out []*pool
			for _, id := range due {
				out = append(out, rowPools(b, b.rows[id])...)
			}
			for _, id := range drained {
				out = append(out, rowPools(b, b.rows[id])...)
			}
			for _, id := range more {
				out = append(out, b.pools[id])
			}
			return out
		},
		do: func(b *batch) error {
			for _, id := range due {
				if r := b.rows[id]; r != nil {
					b.need(r.pool)
					b.due(r)
				}
			}
			b.evict(drained)
			for _, id := range more {
				if p := b.pools[id]; p != nil {
					b.need(p)
					b.freed(p)
				}
			}
			return nil
		},
	})
	if err == nil && (len(due) == maxBatch || len(drained) == maxBatch) { // there may be more
		l.moveOn()
	}
	return err
}

// moveOn has deadlines and lines looked at again at once.
func (l *Ledger) moveOn() {
	select {
	case l.hurry <- struct{}{}:
	default:
	}
}
