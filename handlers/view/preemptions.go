package view

import (
	"context"
	"strconv"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/web"
)

func number(id int64) string { return strconv.FormatInt(id, 10) }

func preemptionRow(p ledger.Preemption) web.PreemptionRow {
	r := web.PreemptionRow{ID: number(p.ID), At: p.DecidedAt, Victim: p.VictimTask, VictimPool: p.Pool, Preemptor: p.PreemptorTask, PreemptorPool: p.PreemptorPool,
		Reason: p.Reason, Score: p.Score.Float(), Phase: p.Phase, CancelOK: p.CancelSuccess == nil || *p.CancelSuccess, Saved: p.StateSize > 0, Policy: p.PolicyVersion}
	switch {
	case !p.RunningAt.IsZero():
		r.Took = p.RunningAt.Sub(p.DecidedAt)
	case p.PreemptorTask == "" && !p.GoneAt.IsZero():
		r.Took = p.GoneAt.Sub(p.DecidedAt)
	}
	return r
}

// Preemptions is the history, newest first.
func (v *View) Preemptions(ctx context.Context, ns string, f web.PreemptionFilter) (web.PreemptionList, error) {
	page, total, err := v.l.FindPreemptions(ctx, ns, ledger.PreemptionFilter{Reason: f.Reason, Pool: f.Pool, Task: f.Task, Limit: f.Limit, Cursor: f.Cursor})
	if err != nil {
		return web.PreemptionList{}, v.refused(ctx, err)
	}
	out := web.PreemptionList{Next: page.Next, Total: total}
	for _, p := range page.Items {
		out.Items = append(out.Items, preemptionRow(p))
	}
	pools, err := v.l.Pools(ctx, ns)
	out.Pools = poolNames(pools)
	return out, v.refused(ctx, err)
}

// Preemption explains one. Who else could have been taken, and who could not, nobody
// wrote down.
func (v *View) Preemption(ctx context.Context, ns, id string) (web.Preemption, error) {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil || n <= 0 {
		return web.Preemption{}, v.refused(ctx, &ledger.Error{Code: ledger.ErrUnknown.Code, Message: "There is no preemption " + strconv.Quote(web.Cut(id, 40)) + "."})
	}
	r, err := v.l.PreemptionReport(ctx, ns, n)
	if err != nil {
		return web.Preemption{}, v.refused(ctx, err)
	}
	p := r.Preemption
	byHand := p.PreemptorUID == (sched.ID{})
	out := web.Preemption{PreemptionRow: preemptionRow(p), Actor: p.Actor, VictimPriority: p.Priority.Float(), Loan: p.Loan, Taken: resources(p.Taken),
		SaveProblem: p.SaveError, StateSize: p.StateSize}
	if !out.CancelOK {
		out.CancelProblem = sentence(either(p.CancelError, "it did not say why"))
	}
	if p.Phase != "undone" {
		out.Handover = web.Handover{Preemption: number(p.ID), Preemptor: p.PreemptorTask, Victims: []string{p.VictimTask}, Phases: phasesOf([]ledger.Preemption{p}, byHand)}
		if r.Preemptor != nil && p.Phase == "gone" && (!r.Preemptor.State.Live() || r.Preemptor.Attempt != p.PreemptorAttempt) {
			out.Handover.Phases = dropOpen(out.Handover.Phases) // it never ran, and will not
		}
	}
	if x, ok := explained(p.Explanation); ok {
		out.PreemptorPriority = out.VictimPriority + x.Delta
		out.Parts = web.Score{Delta: x.Delta, Base: x.Base, Kappa: x.Kappa, Remaining: time.Duration(x.Remaining * float64(time.Second)), Total: x.Score}
		out.Rule = ruleLine(x)
		policy, err := v.l.PolicyVersion(ctx, ns, p.PolicyVersion)
		if err != nil {
			return out, v.refused(ctx, err)
		}
		out.Parts.Least = policy.Policy.MinPreemptScore.Float()
		if p.Reason == string(sched.ByLabel) {
			out.Parts.Least = min(out.Parts.Least, policy.Policy.LabelPriorityThreshold.Float())
		}
	}
	if byHand {
		out.Rule = web.Say("Somebody asked for it. Its agent stays until it is deleted or gets another task.")
	}
	if r.Preemptor != nil {
		missing := p.Taken
		for _, o := range r.Together {
			if o.ID != p.ID {
				out.Others = append(out.Others, o.VictimTask)
				missing = missing.Add(o.Taken)
			}
		}
		if missing.IsZero() {
			out.Rule = append(out.Rule, web.Text(" The pool had the quota, but no node had the room."))
		} else {
			// Together the victims gave exactly what was missing; what was there before follows.
			out.Requested, out.Missing, out.Free = resources(r.Preemptor.Request), resources(missing), web.Resources{}
			missing.Each(func(name string, n int64) { out.Free[name] = max(0, r.Preemptor.Request.Get(name)-n) })
		}
		out.Node = nodeWords(r.Preemptor.Node)
	}
	out.Now = whereNow(r.Victim)
	return out, nil
}

// ruleLine says in a sentence which rule let the preemptor take its victim.
func ruleLine(x explanation) web.Line {
	switch x.Rule {
	case string(sched.ByLabel):
		return web.Line{web.Text("Label rule "), web.Code(x.LabelKey), web.Text(": " + x.LabelBy + " ≻ " + x.LabelOver + ". It applies whatever the priorities are.")}
	case string(sched.CrossPool):
		return web.Say("Its priority is lower by enough to be taken from another pool.")
	case string(sched.SamePool):
		return web.Say("Its priority is lower by enough to be taken within the pool.")
	}
	return nil
}

// whereNow says what became of a victim.
func whereNow(t *ledger.TaskReport) web.Line {
	if t == nil {
		return nil
	}
	l := web.Line{web.TaskRef(t.TaskID)}
	switch {
	case t.State == ledger.Queued:
		return append(l, web.Text(" is queued again, position "+web.Number(t.QueuePosition)+"."))
	case t.State == ledger.Preempting:
		return append(l, web.Text(" is on its way out."))
	case t.State == ledger.Running && t.Attempt > 1:
		return append(l, web.Text(" runs again, attempt "+web.Number(t.Attempt)+"."))
	case t.State.Live():
		return append(l, web.Text(" is "+string(t.State)+" now."))
	case t.State == ledger.Preempted:
		return append(l, web.Text(" ended there."))
	}
	return append(l, web.Text(" is "+string(t.State)+" by now."))
}
