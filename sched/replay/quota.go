package replay

import (
	"slices"

	"github.com/schedulemesh/schedulemesh/sched"
)

// hold makes a job charge its pool with amount, instead of what it charged before.
func (r *Replay) hold(j *job, amount sched.Resources) {
	p := j.pool
	r.held = r.held.Sub(j.held).Add(amount)
	p.held = p.held.Sub(j.held).Add(amount)
	j.held = amount
	r.changed(p)
}

// release lets go of what a job holds: loans go back first, then the queue may move.
func (r *Replay) release(j *job) {
	if j.held.IsZero() {
		return
	}
	r.hold(j, sched.Resources{})
	r.repay(j.pool)
	r.freed(j.pool)
}

// lend moves quota from one pool to another.
func (r *Replay) lend(from, to *pool, amount sched.Resources) {
	r.Loans++
	from.lent = from.lent.Add(amount)
	to.borrowed = to.borrowed.Add(amount)
	if at := slices.IndexFunc(to.loans, func(l loan) bool { return l.lender == from }); at >= 0 {
		to.loans[at].amount = to.loans[at].amount.Add(amount)
	} else {
		to.loans = append(to.loans, loan{from, amount})
	}
	r.changed(from)
	r.changed(to)
}

// repay gives back what a pool borrowed and no longer needs, oldest loan first.
func (r *Replay) repay(p *pool) {
	for i := range p.loans {
		l := &p.loans[i]
		back := p.room().Positive().Min(l.amount)
		if back.IsZero() {
			continue
		}
		l.amount = l.amount.Sub(back)
		p.borrowed = p.borrowed.Sub(back)
		l.lender.lent = l.lender.lent.Sub(back)
		r.changed(p)
		r.changed(l.lender)
		r.freed(l.lender)
	}
	p.loans = slices.DeleteFunc(p.loans, func(l loan) bool { return l.amount.IsZero() })
}

// charge counts a job on its node. While victims still sit there, it charges
// only what it needs beyond them.
func (r *Replay) charge(j *job) {
	if j.node == "" {
		return
	}
	r.nodes.Adjust(j.node, j.charged)
	need := j.Request
	for _, v := range j.victims {
		if v.node == j.node {
			need = need.Sub(v.Request)
		}
	}
	j.charged = need.Positive()
	r.nodes.Adjust(j.node, j.charged.Neg())
}
