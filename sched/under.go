package sched

// Draft answers questions as if another policy were in force. It sees the live
// state as it is at each question, changes nothing and needs no copy: thresholds,
// switches, limits and protected pools cost nothing; another weight of remaining
// time, or label rules that speak of values the live policy does not know, make
// the index look at more than it would otherwise, but never at everything once
// for each question in turn. It belongs to the goroutine that owns its core.
type Draft struct{ core Core }

// Under returns the core under a draft of a policy, which must be valid.
func (c *Core) Under(p Policy) *Draft {
	d := &Draft{core: *c}
	d.core.live = c
	d.core.policy, d.core.rules = p, compile(p)
	d.core.spots = nil
	return d
}

// Decide is Core.Decide under the draft.
func (d *Draft) Decide(in Incoming, now Time) Decision { return d.core.Decide(in, now) }

// DecideGang is Core.DecideGang under the draft.
func (d *Draft) DecideGang(in []Incoming, now Time) Gang { return d.core.DecideGang(in, now) }

// Candidates is Core.Candidates under the draft.
func (d *Draft) Candidates(in Incoming, now Time, limit int) []Candidate {
	return d.core.Candidates(in, now, limit)
}

// Explain is Core.Explain under the draft.
func (d *Draft) Explain(in Incoming, now Time, limit int) []Verdict {
	return d.core.Explain(in, now, limit)
}

// ExplainTask is Core.ExplainTask under the draft.
func (d *Draft) ExplainTask(in Incoming, task ID, now Time) (Verdict, bool) {
	return d.core.ExplainTask(in, task, now)
}
