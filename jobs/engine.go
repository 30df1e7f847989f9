package jobs

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/sched"
)

// The engine holds all jobs that are not over, and moves them, on the one server that has the lease. What it
// holds is ahead of the disk by what is being written; a step that reaches outside, such as a submission,
// only begins when the one before is on disk.

const (
	tickEvery   = 200 * time.Millisecond // looking for what time alone makes due
	lookEvery   = 2 * time.Second        // for what other servers took, should a message be lost
	passGap     = 3 * time.Millisecond   // between two passes over the line
	sendAtOnce  = 8                      // submissions under way to one cluster
	askedAgain  = 15 * time.Second       // after which a cluster that did not answer a submission may be asked again
	countedLate = 15 * time.Second       // the longest that Ray's figures lag behind what happened
	waitsTold   = 3 * time.Second        // between two notes why a job waits
	notesAPass  = 100                    // of them, in one pass
)

type engine struct {
	s      *Service
	ctx    context.Context
	began  time.Time
	writes *combiner[change]
	work   sync.WaitGroup
	poked  chan struct{} // look at the line
	looked chan struct{} // look at the table

	mu     sync.Mutex
	jobs   map[sched.ID]*job
	line   []*job // those that wait, in order
	places map[string]*place
	strays map[strayID]*stray
	sites  []*Site // of the pass under way
}

// job is a job that is not over.
type job struct {
	Job
	sending bool            // its submission is under way
	before  sched.Resources // what its cluster said was used when it was placed
	absent  int             // times in a row that its cluster did not know it
	stopAt  time.Time       // when it is told to stop next
	told    time.Time       // when it was last noted why it waits
}

// place is a cluster as the engine sees it.
type place struct {
	name      string
	live      map[sched.ID]*job
	ended     []endedLoad
	slots     chan struct{} // of submissions
	polling   bool
	pollAt    time.Time
	movedAt   time.Time // when a job there changed last
	outsideAt time.Time // when all jobs there are listed next
}

// endedLoad is what a job had that is over, while Ray may count it still.
type endedLoad struct {
	ask    sched.Resources
	at     time.Time
	before sched.Resources // what the cluster said was used then
}

func newEngine(s *Service) *engine {
	e := &engine{s: s, began: s.now(), poked: make(chan struct{}, 1), looked: make(chan struct{}, 1),
		jobs: map[sched.ID]*job{}, places: map[string]*place{}, strays: map[strayID]*stray{}}
	e.writes = newCombiner(e.writeLot)
	return e
}

// run moves jobs until ctx ends.
func (e *engine) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.ctx = ctx
	if err := e.load(); err != nil {
		return err
	}
	e.s.engine.Store(e)
	defer e.s.engine.CompareAndSwap(e, nil)
	e.work.Go(func() { e.writes.loop(ctx) })
	e.work.Go(e.placing)
	e.look() // what was taken since
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	changes := e.s.o.Fleet.Changes(ctx)
	lookAt, next := time.Now(), time.Now()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-changes:
			e.poke()
		case <-e.looked:
			if time.Now().Before(next) { // told of each of many
				time.AfterFunc(time.Until(next), e.look)
				continue
			}
			next = time.Now().Add(tickEvery / 4)
			if err := e.catchUp(); err != nil && ctx.Err() == nil {
				e.s.log.Warn("looking for new jobs failed and is tried again", "error", err)
			}
		case <-tick.C:
			if now := time.Now(); now.After(lookAt) {
				lookAt = now.Add(lookEvery)
				e.look()
			}
			e.keep()
		}
	}
	e.work.Wait()
	return nil
}

func (e *engine) poke() { poke(e.poked) }
func (e *engine) look() { poke(e.looked) }

// load reads everything that is not over.
func (e *engine) load() error {
	rows, err := e.s.q.LiveJobs(e.ctx)
	if err != nil {
		return err
	}
	strays, err := e.s.q.Strays(e.ctx)
	if err != nil {
		return err
	}
	list, err := fromRows(rows)
	if err != nil {
		return err
	}
	for _, r := range strays {
		e.strays[strayID{r.Cluster, r.RayID}] = &stray{uid: sched.ID(r.JobUid.Bytes), attempt: int(r.Attempt), since: r.Since}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, j := range list {
		e.take(j)
	}
	return nil
}

// add takes jobs that are new.
func (e *engine) add(list []Job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, j := range list {
		e.take(j)
	}
	e.poke()
}

// take holds a job as it is on disk.
func (e *engine) take(j Job) {
	if e.jobs[j.UID] != nil || Ended(j.State) {
		return
	}
	x := &job{Job: j}
	e.jobs[j.UID] = x
	if j.State == Queued {
		e.enqueue(x)
		return
	}
	e.place(j.Cluster).live[j.UID] = x
	if j.State == Submitting { // whoever began it is gone: whether it arrived is asked first
		x.sending = true
		e.work.Go(func() { e.submit(j, true) })
	}
}

func (e *engine) place(name string) *place {
	p := e.places[name]
	if p == nil {
		p = &place{name: name, live: map[sched.ID]*job{}, slots: make(chan struct{}, sendAtOnce)}
		e.places[name] = p
	}
	return p
}

// before orders the line: priority, then age.
func before(a, b *job) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.CreatedAt.Compare(b.CreatedAt), slices.Compare(a.UID[:], b.UID[:]))
}

func (e *engine) enqueue(j *job) {
	at, _ := slices.BinarySearchFunc(e.line, j, before)
	e.line = slices.Insert(e.line, at, j)
}

func (e *engine) dequeue(j *job) {
	if at, ok := slices.BinarySearchFunc(e.line, j, before); ok {
		e.line = slices.Delete(e.line, at, at+1)
	}
}

// catchUp finds what other servers took, and what they were asked to stop.
func (e *engine) catchUp() error {
	uids, err := e.s.q.LiveJobUIDs(e.ctx)
	if err != nil {
		return err
	}
	stops, err := e.s.q.StopsRequested(e.ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	uids = slices.DeleteFunc(uids, func(u pgtype.UUID) bool { return e.jobs[sched.ID(u.Bytes)] != nil })
	e.mu.Unlock()
	if len(uids) > 0 {
		rows, err := e.s.q.JobsByUID(e.ctx, uids)
		if err != nil {
			return err
		}
		list, err := fromRows(rows)
		if err != nil {
			return err
		}
		e.add(list)
	}
	for _, r := range stops {
		e.stop(sched.ID(r.Uid.Bytes), r.StopRequestedBy, *r.StopRequestedAt)
	}
	return nil
}

// stop notes that a job is to be stopped, and begins with it.
func (e *engine) stop(id sched.ID, actor string, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	j := e.jobs[id]
	if j == nil || j.StopRequestedAt != nil {
		return
	}
	j.StopRequestedBy, j.StopRequestedAt = actor, &at
	if j.State == Queued {
		e.end(j, Stopped, "stop_requested", "stopped before it went anywhere", actor)
		return
	}
	e.write(j, nil, Event{Type: "stop_requested", Actor: actor, Message: "is to be stopped"})
	e.sendStop(j)
}

// The rest of this file is how a job is changed: in memory at once, on disk with its event. All under e.mu.

// move changes a job; then is called when that is on disk.
func (e *engine) move(j *job, then func(), event Event, f func(*Job)) {
	was := j.Cluster
	f(&j.Job)
	if p := e.places[was]; p != nil {
		delete(p.live, j.UID)
	}
	if j.State != Queued && !Ended(j.State) {
		e.place(j.Cluster).live[j.UID] = j
	}
	if p := e.places[j.Cluster]; p != nil {
		p.movedAt = e.s.now()
	}
	e.write(j, then, event)
}

// write puts a job on disk as it is, with an event unless that has no type.
func (e *engine) write(j *job, then func(), events ...Event) {
	j.Rev++
	j.Reason, j.Message = clean(j.Reason), clean(j.Message)
	c := change{job: j.Job}
	for _, ev := range events {
		if ev.Type == "" {
			continue
		}
		ev.At, ev.Attempt, ev.Message = e.s.now(), j.Attempt, clean(ev.Message)
		ev.Cluster, ev.Actor = cmp.Or(ev.Cluster, j.Cluster), cmp.Or(ev.Actor, "server")
		c.events = append(c.events, ev)
	}
	c.done = func(err error) { e.wrote(j, c.job.Rev, err, then) }
	e.writes.push(c)
}

// wrote is told what became of a change. Not under e.mu.
func (e *engine) wrote(j *job, rev int64, err error, then func()) {
	if err == nil {
		if then != nil {
			then()
		}
		return
	}
	if e.ctx.Err() != nil {
		return
	}
	// Somebody else moved it, or it cannot be kept as it is: it is taken anew as it is on disk.
	e.s.log.Error("a job could not be written and is read again", "job", j.SubmissionID, "error", err)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.jobs[j.UID] == j {
		e.forget(j)
	}
	e.look()
}

func (e *engine) forget(j *job) {
	delete(e.jobs, j.UID)
	e.dequeue(j)
	if p := e.places[j.Cluster]; p != nil {
		delete(p.live, j.UID)
	}
}

// writeLot puts changes on disk, however long the database is away, while this server leads.
func (e *engine) writeLot(lot []change) {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		if !e.s.o.Leases.MayAct(Lease) {
			if !e.sleep(wait) {
				return // what is in memory goes with this engine
			}
			continue
		}
		answers, err := writeEach(context.WithoutCancel(e.ctx), e.s.pool, lot)
		if err == nil {
			e.settle(lot, answers)
			return
		}
		e.s.log.Warn("jobs could not be written; tried again", "changes", len(lot), "error", err)
		if !e.sleep(wait) {
			return
		}
	}
}

// settle gives each change its answer. One that is on disk already, since the answer to its commit was
// lost, is found to be.
func (e *engine) settle(lot []change, answers []error) {
	told := make([]sched.ID, 0, len(lot))
	for i, c := range lot {
		if errors.Is(answers[i], errStale) {
			if row, err := e.s.q.JobByUID(context.WithoutCancel(e.ctx), pgUUID(c.job.UID)); err == nil && row.Rev == c.job.Rev &&
				row.State == c.job.State && row.Cluster == c.job.Cluster && int(row.Attempt) == c.job.Attempt {
				answers[i] = nil
			}
		}
		if answers[i] == nil {
			told = append(told, c.job.UID)
		}
		c.done(answers[i])
	}
	e.s.hub.tell(JobsChanged, told)
}

func (e *engine) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-e.ctx.Done():
		return false
	}
}

// end is the end of a job.
func (e *engine) end(j *job, state, code, reason, actor string) {
	e.endAs(j, state, code, reason, actor, e.s.now(), nil)
}

func (e *engine) endAs(j *job, state, code, reason, actor string, at time.Time, info *clusters.JobInfo) {
	if j.State != Queued {
		p := e.place(j.Cluster)
		p.ended = append(p.ended, endedLoad{j.Requirements, e.s.now(), e.used(j.Cluster)})
	}
	e.dequeue(j)
	e.move(j, nil, Event{Type: strings.ToLower(state), Actor: actor, Code: code, Message: reason}, func(x *Job) {
		x.State, x.Code, x.Reason, x.EndedAt = state, code, reason, &at
		if info != nil {
			x.ExitCode, x.ErrorType, x.Message = info.ExitCode, info.ErrorType, info.Message
		}
	})
	delete(e.jobs, j.UID)
	e.s.o.Metrics.ended(state)
	if info != nil {
		kept := j.Job
		e.work.Go(func() { e.keepLog(kept, *info) })
	}
	e.poke()
}

// used is what a cluster last said was used.
func (e *engine) used(cluster string) sched.Resources {
	c, _ := e.s.o.Fleet.Get(cluster)
	return c.Status.Used
}

// clean makes a text of Ray's fit for the database.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}

// liveOn counts the jobs on a cluster that are not over.
func (e *engine) liveOn(cluster string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.places[cluster]; p != nil {
		return len(p.live)
	}
	return 0
}

// loadOf is what our jobs take on a cluster, with what Ray may say of it already.
func (e *engine) loadOf(c *clusters.Cluster) (l Load) {
	p := e.places[c.Name]
	if p == nil {
		return l
	}
	now := e.s.now()
	for _, j := range p.live {
		if j.Requirements.IsZero() {
			l.Count++
			continue
		}
		l.Live = l.Live.Add(j.Requirements)
		// Until Ray's figure moves, or long enough went by, a job is not in it.
		fresh := j.PlacedAt != nil && now.Sub(*j.PlacedAt) < countedLate && sameAmounts(c.Status.Used, j.before)
		if j.State != Submitting && !fresh {
			l.Running = l.Running.Add(j.Requirements)
		} else if j.Reserve == ReserveEntrypoint {
			l.Waiting = append(l.Waiting, j.Requirements)
		}
	}
	p.ended = slices.DeleteFunc(p.ended, func(x endedLoad) bool { return now.Sub(x.at) > countedLate })
	for _, x := range p.ended {
		if sameAmounts(c.Status.Used, x.before) {
			l.Ended = l.Ended.Add(x.ask)
		}
	}
	return l
}

func sameAmounts(a, b sched.Resources) bool { return a.Sub(b).IsZero() }
