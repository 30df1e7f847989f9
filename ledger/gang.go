package ledger

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/schedulemesh/schedulemesh/sched"
)

// MaxTogether is how many tasks may be submitted at once.
const MaxTogether = 1000

// Submitted is what became of one of several submissions: a task, or why not.
type Submitted struct {
	Task Task
	Err  error
}

// SubmitAll submits several tasks. A gang is admitted as a whole or not at all, in one
// transaction and with one set of victims; with on_insufficient queue it waits as a
// whole. Once admitted, its members are on their own: one that fails fails by itself.
// Without gang each task has its own answer, as if it had come alone.
func (l *Ledger) SubmitAll(ctx context.Context, ns string, subs []Submission, gang bool) ([]Submitted, error) {
	if len(subs) == 0 {
		return nil, invalid("tasks", "is empty: give at least one task")
	}
	if len(subs) > MaxTogether {
		return nil, invalid("tasks", "has %d tasks, at most %d are allowed", len(subs), MaxTogether)
	}
	out := make([]Submitted, len(subs))
	all := make([]*admission, len(subs))
	seen := map[string]int{}
	for i := range subs {
		err := subs[i].check()
		if first, twice := seen[subs[i].TaskID]; twice && err == nil {
			err = invalid("task_id", "%q is also the id of tasks.%d", subs[i].TaskID, first)
		}
		seen[subs[i].TaskID] = i
		if err == nil && gang && subs[i].OnInsufficient != subs[0].OnInsufficient {
			err = invalid("on_insufficient", "is %q, that of tasks.0 is %q: a gang waits as a whole or fails as a whole", subs[i].OnInsufficient, subs[0].OnInsufficient)
		}
		if err == nil && gang && subs[i].OnInsufficient == Queue && subs[i].Pool != subs[0].Pool {
			err = invalid("pool", "is %q, that of tasks.0 is %q: a gang that may wait must be in one pool", subs[i].Pool, subs[0].Pool)
		}
		if err != nil {
			if gang {
				return nil, at(i, err)
			}
			out[i].Err = err
			continue
		}
		all[i] = &admission{uid: newID(), ns: ns, kind: KindTask, sub: subs[i], hash: subs[i].fingerprint()}
	}
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return nil, err
	}
	if gang {
		err := l.find(ctx, &call{whole: true, plan: poolsOf(ns, subs), do: func(b *batch) error { return b.submitGang(all) }}, l.wherePools(ctx, ns, subs))
		for i, a := range all {
			out[i].Task = a.task
		}
		return out, err
	}
	var wg sync.WaitGroup
	for i, a := range all {
		if a != nil {
			wg.Go(func() {
				err := l.find(ctx, &call{plan: poolOf(ns, a.sub.Pool), do: func(b *batch) error { return b.submit(a) }}, l.wherePool(ctx, ns, a.sub.Pool))
				out[i] = Submitted{a.task, err}
			})
		}
	}
	wg.Wait()
	return out, nil
}

// at says which of several tasks an error is about.
func at(i int, err error) error {
	e, ok := err.(*Error)
	if !ok {
		return err
	}
	named := *e
	named.Message = fmt.Sprintf("tasks.%d: %s", i, e.Message)
	named.Fields = map[string]string{}
	for field, message := range e.Fields {
		named.Fields[fmt.Sprintf("tasks.%d.%s", i, field)] = message
	}
	return &named
}

func poolsOf(ns string, subs []Submission) func(*book) []*pool {
	return func(b *book) (out []*pool) {
		if s := b.spaces[ns]; s != nil {
			for i := range subs {
				if p := s.pools[subs[i].Pool]; p != nil && !slices.Contains(out, p) {
					out = append(out, p)
				}
			}
		}
		return out
	}
}

// gang is who a row was submitted with, as long as that matters: until it starts.
func (r *row) gang() sched.ID {
	if r.extras == nil {
		return sched.ID{}
	}
	return r.extras.gang
}

func (b *book) leaves(gang sched.ID, r *row) {
	left := slices.DeleteFunc(b.gangs[gang], func(o *row) bool { return o == r })
	if len(left) == 0 {
		delete(b.gangs, gang)
	} else {
		b.gangs[gang] = left
	}
}

// leaveGang makes a row be on its own.
func (b *batch) leaveGang(r *row) {
	if r.gang() == (sched.ID{}) {
		return
	}
	x := with(r, sched.ID{})
	b.change(r, func(r *row) { r.extras = alone(r) })
	x.write(b, r.uid)
}

// inLine is the gang a queued row waits with, in the order of their ids; itself alone when it has none.
func (b *book) inLine(r *row) []*row {
	if r.gang() == (sched.ID{}) {
		return []*row{r}
	}
	var out []*row
	for _, m := range b.gangs[r.gang()] {
		if m.state == Queued && m.notBefore == 0 && m.pool == r.pool {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(x, y *row) int { return slices.Compare(x.uid[:], y.uid[:]) })
	return out
}

// waitingWith are the rows that wait for the same agents to be gone as r, which is one of them.
func (b *book) waitingWith(r *row) []*row {
	out := []*row{r}
	for _, m := range b.gangs[r.gang()] {
		if m != r && len(m.victims) > 0 {
			out = append(out, m)
		}
	}
	return out
}

func sum(rows []*row) (all sched.Resources) {
	for _, r := range rows {
		all = all.Add(r.request)
	}
	return all
}

func (b *book) incomings(rows []*row) []sched.Incoming {
	out := make([]sched.Incoming, len(rows))
	for i, r := range rows {
		out[i] = b.incoming(r)
	}
	return out
}

func (b *batch) decideGang(rows []*row) sched.Gang {
	b.minute(rows[0].space)
	return rows[0].space.core.DecideGang(b.incomings(rows), timeOf(b.now))
}

// submitGang admits, queues or refuses submissions together.
func (b *batch) submitGang(all []*admission) error {
	rows := make([]*row, 0, len(all))
	together := newID()
	names := map[string]int{}
	for i, a := range all {
		r, err := b.newcomer(a)
		if err != nil {
			return at(i, err)
		}
		if r == nil {
			continue
		}
		if first, twice := names[r.agentName]; twice {
			return at(i, invalid("agent_name", "%q is also that of tasks.%d", r.agentName, first))
		}
		names[r.agentName] = i
		r.extras = with(r, together)
		rows = append(rows, r)
	}
	switch len(rows) {
	case 0:
		return nil // they were all there before
	case len(all):
	default:
		return refuse(ErrTaskExists, "%d of these %d tasks exist already, the others do not: choose other ids, or wait until those have ended", len(all)-len(rows), len(all))
	}
	d := b.askGang(rows)
	if d.Outcome == sched.Refuse {
		if rows[0].onInsufficient == Queue && waitable(d.Refusal.Code) {
			if need := sum(rows); !rows[0].pool.capacity.Covers(need) {
				return refuse(ErrTooLarge, "the %d tasks need %s together; pool %s has %s", len(rows), need, rows[0].poolName, rows[0].pool.capacity)
			}
			for i, r := range rows {
				b.enqueueNew(r, all[i], d.Refusal)
			}
			return nil
		}
		return at(d.Refused, refusal(sched.Decision{Refusal: d.Refusal}))
	}
	for _, m := range d.Members {
		b.lockVictims(m)
	}
	leader := leaderOf(rows, d)
	for i, r := range rows {
		r.state = Reserved
		b.prepare(r, d.Members[i].Node)
		if r.extras = alone(r); d.Members[i].Outcome == sched.Preempt {
			r.extras = with(r, leader)
		}
		b.place(r, all[i])
	}
	b.grantGang(rows, d, func(i int) (*Spec, string) { return &all[i].sub.Spec, all[i].sub.Actor })
	for i, r := range rows {
		all[i].task = b.task(r, &all[i].sub.Spec)
		all[i].task.Created = true
	}
	return nil
}

// leaderOf is the first member that has to wait for victims, which are taken in its name.
// Its id is the gang's from then on, so that whoever loads a member finds it.
func leaderOf(rows []*row, d sched.Gang) sched.ID {
	for i, r := range rows {
		if d.Members[i].Outcome == sched.Preempt {
			return r.uid
		}
	}
	return sched.ID{}
}

// with are a row's extras in a gang.
func with(r *row, gang sched.ID) *extras {
	x := r.more()
	x.gang = gang
	return &x
}

// alone are a row's extras without its gang.
func alone(r *row) *extras {
	x := r.more()
	x.gang = sched.ID{}
	if x == usual {
		return nil
	}
	return &x
}

// askGang says what becomes of a gang that comes. Where somebody waits in front of it,
// that one may not be delayed.
func (b *batch) askGang(rows []*row) sched.Gang {
	no := func(code sched.Code, message string) sched.Gang {
		return sched.Gang{Outcome: sched.Refuse, Refusal: sched.Refusal{Code: code, Message: message}}
	}
	var behind []*row
	end := sched.Time(0)
	var pools []*pool
	for i, r := range rows {
		if p := r.pool; !slices.Contains(pools, p) {
			pools = append(pools, p)
			if p.hold.on() {
				return no(codePoolHeld, p.hold.sentence("pool "+p.name))
			}
			if head := b.head(p); head != nil && !p.line.Leads(r.waiting()) {
				behind = append(behind, head)
			}
		}
		runs := r.runs()
		if runs == 0 || i > 0 && end == 0 {
			end = 0
		} else {
			end = max(end, timeOf(b.now)+runs)
		}
	}
	switch {
	case len(behind) == 0:
		return b.decideGang(rows)
	case rows[0].onInsufficient == Queue:
		return no(codeBehind, "waits behind "+behind[0].taskID)
	case len(behind) > 1:
		return no(sched.RoomReserved, fmt.Sprintf("%s and others wait in front of it, in several pools", behind[0].taskID))
	}
	b.minute(rows[0].space)
	return rows[0].space.core.BackfillGang(b.incomings(rows), end, b.reserve(behind[0], b.now), behind[0].taskID, timeOf(b.now))
}

// beginGang gives a gang that waited its quota.
func (b *batch) beginGang(rows []*row, d sched.Gang) {
	for _, m := range d.Members {
		b.lockVictims(m)
	}
	leader := leaderOf(rows, d)
	for i, r := range rows {
		if d.Members[i].Outcome == sched.Admit {
			b.leaveGang(r)
		} else {
			x := with(r, leader)
			b.change(r, func(r *row) { r.extras = x })
			x.write(b, r.uid)
		}
		b.reserveAgain(r, d.Members[i].Node)
	}
	b.grantGang(rows, d, func(int) (*Spec, string) { return nil, "" })
}

// grantGang gives reserved rows their quota. All that need room which is not there yet
// wait for all the victims; the first of them is who took them.
func (b *batch) grantGang(rows []*row, d sched.Gang, of func(int) (*Spec, string)) {
	var waiting []*row
	for i, r := range rows {
		if d.Members[i].Outcome != sched.Preempt {
			continue
		}
		waiting = append(waiting, r)
		for _, v := range d.Members[i].Victims {
			if v.Loan {
				b.lend(b.rows[v.Agent].pool, r.pool, v.Takes)
			}
		}
	}
	if len(waiting) > 0 {
		victims := make([]sched.Victim, len(d.Victims))
		for i, v := range d.Victims {
			victims[i] = v.Victim
		}
		holders := b.takeAgents(waiting[0], victims)
		for _, r := range waiting {
			b.wait(r, holders)
		}
	}
	for i, r := range rows {
		spec, actor := of(i)
		b.grant(r, sched.Decision{Outcome: sched.Admit, Node: d.Members[i].Node}, spec, actor)
	}
}

// rejoin makes those of a gang that wait with its first member wait again, after they were loaded.
func (b *book) rejoin(t *taking, holderPool int64, loaded []*row) {
	for _, r := range slices.Concat(loaded, b.gangs[t.by]) {
		if r.phase != phaseWaiting || slices.Contains(r.victims, t.holder) {
			continue
		}
		was := r.indexed // it may have been taken in before its leader
		b.unindex(r)
		r.victims = append(slices.Clone(r.victims), t.holder)
		if was {
			b.index(r)
		}
		b.isIn(t.holder, holderPool)
	}
}

// waitingGangs are members of gangs that are about to be taken in, by their leader, which is not among them.
func waitingGangs(rows map[sched.ID]*row) map[sched.ID][]*row {
	out := map[sched.ID][]*row{}
	for _, r := range rows {
		if r != nil && !r.indexed && r.phase == phaseWaiting && r.gang() != (sched.ID{}) && r.gang() != r.uid {
			out[r.gang()] = append(out[r.gang()], r)
		}
	}
	return out
}
