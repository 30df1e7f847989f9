package replay

import "github.com/schedulemesh/schedulemesh/sched"

// waitsBehind is the code of a newcomer that is not asked yet: it is not its turn.
const waitsBehind sched.Code = "queued_behind"

// waitable refusals may pass; others never do.
func waitable(c sched.Code) bool {
	switch c {
	case sched.NoVictims, sched.VictimsInsufficient, sched.RoomReserved, waitsBehind:
		return true
	}
	return false
}

func (j *job) waiting() sched.Waiting {
	return sched.Waiting{ID: j.id, Priority: j.Priority, Since: j.At, Request: j.Request}
}

// head is who is next in line; nil when nobody waits.
func (r *Replay) head(p *pool) *job {
	if id, ok := p.line.Head(); ok {
		return r.live[id]
	}
	return nil
}

// ask says what becomes of a newcomer. Who would not be the head of the line may
// only start if the head is not delayed by that.
func (r *Replay) ask(j *job) sched.Decision {
	head := r.head(j.pool)
	if head == nil || !j.Idle && j.pool.line.Leads(j.waiting()) {
		return r.decide(j)
	}
	if j.Queue && !r.core.Fits(j.Pool, j.Request) {
		return sched.Decision{Outcome: sched.Refuse, Refusal: sched.Refusal{Code: waitsBehind}}
	}
	return r.behind(j, head, r.reserve(head))
}

func (r *Replay) reserve(head *job) *sched.Reservation {
	p := head.pool
	return r.core.Reserve(r.incoming(head), sched.Ends{Quota: &p.ends, Borrowed: p.borrowed,
		Room: func(n sched.NodeID) *sched.Agenda { return r.rooms[n] }}, r.now)
}

// behind decides about a job that is not at the head.
func (r *Replay) behind(j, head *job, kept *sched.Reservation) sched.Decision {
	end := sched.Time(0)
	if j.Estimate > 0 {
		end = r.now + j.Estimate
	}
	return r.timed(j, func() sched.Decision { return r.core.Backfill(r.incoming(j), end, kept, head.Name, r.now) })
}

// enqueue puts a job in line.
func (r *Replay) enqueue(j *job) {
	j.state, j.since, j.started = queued, r.now, 0
	r.live[j.id] = j
	j.pool.line.Put(j.waiting())
	r.waiting++
	r.PeakWaiting = max(r.PeakWaiting, r.waiting)
	if j.Patience > 0 {
		r.schedule(j, r.now+j.Patience)
	}
}

// leave takes a job out of its line.
func (r *Replay) leave(j *job) {
	j.pool.line.Remove(j.id)
	r.waiting--
	if j.slot >= 0 {
		r.due.remove(j)
	}
}

// freed notes that a line may move.
func (r *Replay) freed(p *pool) {
	if p.line.Len() > 0 && !p.moves {
		p.moves = true
		r.drain = append(r.drain, p)
	}
}

// settle lets the lines move where something came free.
func (r *Replay) settle() {
	for at := 0; at < len(r.drain); at++ {
		r.drain[at].moves = false
		r.admitLine(r.drain[at])
	}
	r.drain = r.drain[:0]
}

// admitLine lets a pool's line move: the head while there is room for it, then those
// behind it that cannot delay it.
func (r *Replay) admitLine(p *pool) {
	for head := r.head(p); head != nil; head = r.head(p) {
		d := r.decide(head)
		if d.Outcome == sched.Refuse {
			r.backfill(p, head)
			return
		}
		r.leave(head)
		r.grant(head, d)
	}
}

// backfill starts those behind the head that fit now and cannot delay it. They preempt nobody.
func (r *Replay) backfill(p *pool, head *job) {
	r.core.BackfillLine(p.Name, &p.line,
		func(sched.ID) bool { return true },
		func() *sched.Reservation { return r.reserve(head) },
		func(id sched.ID, kept *sched.Reservation) bool {
			j := r.live[id]
			d := r.behind(j, head, kept)
			if d.Outcome != sched.Admit {
				return false
			}
			r.leave(j)
			r.grant(j, d)
			return true
		})
}

// date notes when what a job holds is expected to come free, going by its estimate.
func (r *Replay) date(j *job) {
	at := sched.Time(0) // any moment
	if j.state != preempting {
		if j.Estimate == 0 {
			return
		}
		at = j.granted + j.Estimate // on its way in counts as just started
		if j.state == running {
			at = j.started + j.Estimate
		}
	}
	if j.held.IsZero() {
		j.pool.ends.Remove(j.id)
	} else {
		j.pool.ends.Put(j.id, at, j.held)
	}
	if j.node == "" {
		return
	}
	if j.state == preempting {
		r.rooms[j.node].Remove(j.id) // its room goes to who takes it
	} else {
		r.rooms[j.node].Put(j.id, at, j.charged)
	}
}

func (r *Replay) undate(j *job) {
	j.pool.ends.Remove(j.id)
	if j.node != "" {
		r.rooms[j.node].Remove(j.id)
	}
}
