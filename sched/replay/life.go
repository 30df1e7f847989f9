package replay

import (
	"slices"

	"github.com/schedulemesh/schedulemesh/sched"
)

type state uint8

const (
	queued state = iota
	reserved
	launching
	running
	preempting
)

// job is a live task.
type job struct {
	Task
	id     sched.ID
	number int64 // of the submission
	state  state
	pool   *pool
	held   sched.Resources
	node   sched.NodeID
	// charged is what it takes of its node's room.
	charged sched.Resources

	since       sched.Time // in this state
	granted     sched.Time // when this attempt got its room
	started     sched.Time // this attempt; 0 before it runs
	everRan     bool
	done        sched.Time // of its work, and saved
	ran         sched.Time // all attempts together
	preemptedBy []elder
	preemptions int
	seen        uint64 // by which walk through elders
	victims     []*job // it waits until they are gone
	by          *job   // it makes way for that one

	at   sched.Time // when the next thing happens to it
	turn uint64     // among those at the same time
	slot int        // in the heap; -1: nothing is due
}

// arrive decides about a submission.
func (r *Replay) arrive(t Task) {
	r.Tasks++
	p := r.pools[t.Pool]
	if p == nil {
		r.refused(&t, nil, sched.UnknownPool)
		return
	}
	j := r.job()
	j.Task, j.id, j.number, j.pool = t, r.newID(), r.Tasks, p
	d := r.ask(j)
	switch {
	case d.Outcome != sched.Refuse:
		r.grant(j, d)
	case t.Queue && waitable(d.Refusal.Code):
		r.enqueue(j)
	default:
		r.refused(&t, p, d.Refusal.Code)
		r.recycle(j)
	}
}

// incoming is a job as the core is asked about it.
func (r *Replay) incoming(j *job) sched.Incoming {
	in := sched.Incoming{ID: j.id, Name: j.Name, Pool: j.Pool, Priority: j.Priority, Labels: j.Labels, Request: j.Request, PreemptedBy: r.elders(j)}
	if j.Idle { // it takes room, it never takes it from others
		in.Priority, in.Labels = -1<<40, nil
	}
	return in
}

func (r *Replay) decide(j *job) sched.Decision {
	in := r.incoming(j)
	return r.timed(j, func() sched.Decision { return r.core.Decide(in, r.now) })
}

// timed measures what a decision costs, where that is wanted. What the index has to
// catch up with before it can be searched is measured by itself.
func (r *Replay) timed(j *job, decide func() sched.Decision) sched.Decision {
	if r.cfg.Clock == nil {
		return decide()
	}
	began := r.cfg.Clock()
	if !r.core.Fits(j.Pool, j.Request) {
		r.core.Build()
		now := r.cfg.Clock()
		r.upkeep += now - began
		began = now
	}
	d := decide()
	r.cost(r.core.Len(), d.Outcome, r.cfg.Clock()-began)
	return d
}

// elder is a task that preempted another; its job may have passed on to a third since.
type elder struct {
	*job
	id sched.ID
}

func (e elder) lives() bool { return e.job.id == e.id }

// elders are the tasks it must never take, of those that could be taken: those that
// preempted it and, through what is live, those that preempted them.
func (r *Replay) elders(j *job) []sched.ID {
	if len(j.preemptedBy) == 0 {
		return nil
	}
	j.preemptedBy = slices.DeleteFunc(j.preemptedBy, func(e elder) bool { return !e.lives() })
	r.walk++
	j.seen = r.walk
	next := append(r.next[:0], j.preemptedBy...)
	ids := r.ids[:0]
	for at := 0; at < len(next); at++ {
		e := next[at]
		if !e.lives() || e.seen == r.walk {
			continue
		}
		e.seen = r.walk
		if e.state == running || e.state == launching {
			ids = append(ids, e.id)
		}
		next = append(next, e.preemptedBy...)
	}
	r.next, r.ids = next, ids
	return ids
}

// grant books a decision: victims' quota becomes the newcomer's at once.
func (r *Replay) grant(j *job, d sched.Decision) {
	r.live[j.id] = j
	j.state, j.since, j.started, j.granted, j.node = reserved, r.now, 0, r.now, d.Node
	for i := range d.Victims {
		r.take(j, &d.Victims[i])
	}
	r.hold(j, j.Request)
	r.charge(j)
	r.Admitted++
	r.PeakLive = max(r.PeakLive, int64(r.core.Len())+1)
	if len(j.victims) == 0 {
		r.launch(j)
	} else {
		r.index(j)
	}
}

func (r *Replay) take(by *job, v *sched.Victim) {
	h := r.live[v.Agent]
	c := &v.Tasks[0]
	r.hold(h, h.held.Sub(v.Takes))
	if v.Loan {
		r.lend(h.pool, by.pool, v.Takes)
	}
	var ran, lost sched.Time
	if h.state == running {
		ran, lost = r.stopWork(h)
	}
	h.state, h.since, h.by = preempting, r.now, by
	by.victims = append(by.victims, h)
	r.core.RemoveTask(h.id)
	r.core.RemoveAgent(h.id)
	r.date(h)
	r.schedule(h, r.now+r.cfg.Latencies.Cancel+r.cfg.Latencies.Save)
	if r.cfg.Policy.MaxPreemptionsPerMinute > 0 {
		h.pool.preempted++
		r.recent = append(r.recent, loss{r.now, h.pool})
		r.changed(h.pool)
	}
	r.preempted(c.Reason, lost)
	if r.cfg.Preempted != nil {
		r.cfg.Preempted(Preemption{At: r.now, Victim: h.Name, Number: h.number, VictimPool: h.Pool, Priority: h.Priority, By: by.Name, ByPool: by.Pool,
			ByPriority: by.Priority, Reason: c.Reason, Score: c.Score, Ran: ran, Lost: lost})
	}
}

// stopWork ends a run before its time, and says what of the work is lost.
func (r *Replay) stopWork(j *job) (ran, lost sched.Time) {
	ran = r.now - j.started
	j.ran += ran
	r.running--
	worked := j.done + ran
	switch {
	case !j.Requeue: // nobody goes on from what it saved
		return ran, worked
	case j.Checkpoint > 0:
		saved := max(j.done, worked-worked%j.Checkpoint)
		j.done = saved
		return ran, worked - saved
	}
	j.done = worked
	return ran, 0
}

// launch begins to start the agent of a job that has its room.
func (r *Replay) launch(j *job) {
	if r.cfg.Latencies.Launch == 0 {
		r.run(j)
		return
	}
	j.state, j.since = launching, r.now
	r.index(j)
	r.schedule(j, r.now+r.cfg.Latencies.Launch)
}

func (r *Replay) run(j *job) {
	j.state, j.since, j.started = running, r.now, r.now
	r.running++
	r.PeakRunning = max(r.PeakRunning, r.running)
	if !j.everRan {
		j.everRan = true
		if !j.Idle {
			r.waited(j.Priority, r.now-j.At)
		}
	}
	r.index(j)
	r.schedule(j, r.now+j.Duration-j.done)
}

// happen is what a job has waited for.
func (r *Replay) happen(j *job) {
	switch j.state {
	case queued: // its patience is over
		r.leave(j)
		r.TimedOut++
		r.end(j)
	case launching:
		r.run(j)
	case running:
		j.ran += r.now - j.started
		r.running--
		r.Completed++
		r.unindex(j)
		r.release(j)
		r.end(j)
	case preempting:
		r.gone(j)
	}
}

// gone ends a handover: what the victim still held is free.
func (r *Replay) gone(h *job) {
	by := h.by
	r.HandoverSeconds += seconds(r.now - h.since)
	r.unindex(h)
	r.release(h)
	h.by, h.started = nil, 0
	h.preemptions++
	r.remember(h, by)
	if h.Requeue {
		r.enqueue(h)
		r.freed(h.pool)
	} else {
		r.Stopped++
		r.end(h)
	}
	by.victims = slices.DeleteFunc(by.victims, func(v *job) bool { return v == h })
	r.charge(by)
	if len(by.victims) == 0 {
		r.launch(by)
	} else {
		r.date(by)
	}
}

// remember notes who preempted a job, and who preempted that one, as far as they live.
func (r *Replay) remember(h, by *job) {
	r.walk++
	all := h.preemptedBy[:0]
	for _, e := range slices.Concat(h.preemptedBy, []elder{{by, by.id}}, by.preemptedBy) {
		if e.lives() && e.seen != r.walk {
			e.seen = r.walk
			all = append(all, e)
		}
	}
	h.preemptedBy = all
}

// end forgets a job that holds nothing any more.
func (r *Replay) end(j *job) {
	delete(r.live, j.id)
	r.account(j)
	r.recycle(j)
}

func (r *Replay) job() *job {
	if n := len(r.free); n > 0 {
		j := r.free[n-1]
		r.free = r.free[:n-1]
		return j
	}
	return &job{slot: -1}
}

func (r *Replay) recycle(j *job) {
	*j = job{victims: j.victims[:0], slot: -1}
	r.free = append(r.free, j)
}

// index tells the core, and the agendas, of a job that has quota. Who preempted it is for elders to say.
func (r *Replay) index(j *job) {
	r.core.PutAgent(sched.Agent{ID: j.id, Pool: j.Pool, Node: j.node, Gives: j.held, Settled: len(j.victims) == 0})
	if !j.Idle {
		r.core.PutTask(sched.Task{ID: j.id, Name: j.Name, Agent: j.id, Pool: j.Pool, Priority: j.Priority, Labels: j.Labels,
			Start: j.started, Estimate: j.Estimate, Preemptions: j.preemptions})
	}
	r.date(j)
}

// unindex takes a job out of the core and the agendas, and off its node.
func (r *Replay) unindex(j *job) {
	r.core.RemoveTask(j.id)
	r.core.RemoveAgent(j.id)
	r.undate(j)
	if !j.charged.IsZero() {
		r.nodes.Adjust(j.node, j.charged)
		j.charged = sched.Resources{}
	}
}
