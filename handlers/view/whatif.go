package view

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/web"
)

const whatIfShown = 20 // rows of each list

// WhatIf answers a supposition in words.
func (v *View) WhatIf(ctx context.Context, ns string, s web.Supposition) (web.WhatIf, error) {
	names, err := v.l.Namespaces(ctx)
	if err != nil {
		return web.WhatIf{}, v.refused(ctx, err)
	}
	if !slices.Contains(names, ns) { // asking must not make it
		return web.WhatIf{}, invalid("pool", "There is nothing in this namespace yet: create a pool first.")
	}
	q := ledger.WhatIf{Draft: s.Draft, Limit: whatIfShown}
	if s.Pool != "" {
		if q.Task, err = supposed(s); err != nil {
			return web.WhatIf{}, err
		}
	}
	a, err := v.l.WhatIf(ctx, ns, q)
	if err != nil {
		return web.WhatIf{}, v.onDraft(ctx, err)
	}
	out := web.WhatIf{}
	for _, c := range a.Changes {
		out.Changes = append(out.Changes, web.FieldChange(c))
	}
	for _, w := range a.Warnings {
		out.Warnings = append(out.Warnings, sentence(w))
	}
	if s.Draft != nil && len(a.Changes) == 0 {
		out.Summary = append(out.Summary, web.Say("The draft says what the active policy says already."))
	}
	if a.Task != nil {
		policy, err := v.policy(ctx, ns)
		if err != nil {
			return out, v.refused(ctx, err)
		}
		kappa := policy.Policy.RemainingTimeWeight.Float()
		out.Judged = append(out.Judged, judged(a.Active, nil, a.Live, fmt.Sprintf("Under version %d", a.PolicyVersion), kappa))
		if a.Draft != nil && len(a.Changes) > 0 {
			if p, _, err := policy.Policy.Patch(s.Draft); err == nil {
				kappa = p.RemainingTimeWeight.Float()
			}
			out.Judged = append(out.Judged, judged(a.Draft, a.Active, a.Live, "Under the draft", kappa))
			out.Summary = append(out.Summary, compared(a.Active, a.Draft))
		}
		return out, nil
	}
	if len(a.Changes) == 0 {
		return out, nil
	}
	out.Queue = &web.WhatIfQueue{Waiting: a.Queued}
	changed := 0
	for _, e := range a.Queue {
		if e.Changed {
			changed++
		}
		out.Queue.Items = append(out.Queue.Items, web.QueueEffect{Task: e.TaskID, Pool: e.Pool, Position: e.Position, Changed: e.Changed, Now: outcome(e.Active), Draft: outcome(e.Draft)})
	}
	switch {
	case a.Queued == 0:
		out.Summary = append(out.Summary, web.Say("Nobody waits now, so nobody would start by it."))
	case changed == 0:
		out.Summary = append(out.Summary, web.Say("Nothing changes for the "+web.Count(len(a.Queue), "waiting task")+" that were asked."))
	default:
		out.Summary = append(out.Summary, web.Line{web.Strong(web.Count(changed, "waiting task")), web.Text(" of " + web.Number(len(a.Queue)) + " asked would fare differently.")})
	}
	out.Running = exposure(a.Shift)
	return out, nil
}

func supposed(s web.Supposition) (*ledger.Supposed, error) {
	request, err := amounts(s.Request)
	if err != nil {
		return nil, err
	}
	priority, err := sched.MilliFromFloat(s.Priority)
	if err != nil {
		return nil, invalid("priority", sentence(err.Error()))
	}
	labels := sched.Labels(s.Labels)
	return &ledger.Supposed{TaskID: s.Task, Pool: s.Pool, Priority: &priority, Labels: &labels, Request: &request}, nil
}

// onDraft puts what the ledger says of the policy's fields where the draft was typed.
func (v *View) onDraft(ctx context.Context, err error) error {
	err = v.refused(ctx, err)
	var r *refusal
	if !errors.As(err, &r) || len(r.ByField) == 0 {
		return err
	}
	var draft []string
	out := map[string]string{}
	for _, field := range slices.Sorted(maps.Keys(r.ByField)) {
		name, _, _ := strings.Cut(strings.TrimPrefix(field, "task."), ".")
		if slices.Contains(web.WhatIfFields, name) || slices.Contains(web.BacktestFields, name) {
			out[name] = r.ByField[field]
		} else {
			draft = append(draft, field+": "+r.ByField[field])
		}
	}
	if draft != nil {
		out["draft"] = strings.Join(draft, "\n")
	}
	return &pages.Refusal{ErrorCode: r.ErrorCode, Message: r.Message, ByField: out}
}

// judged is what one policy says of the task; before is what the other one said, nil for none.
func judged(j, before *ledger.Judgement, live int, title string, kappa float64) web.Judged {
	out := web.Judged{Title: title, Note: verdictNote(j)}
	was := map[sched.ID]sched.Verdict{}
	if before != nil {
		for _, v := range before.Verdicts {
			was[v.Task] = v
		}
	}
	shown := 0
	for _, t := range j.Verdicts {
		old, known := was[t.Task]
		if !t.Eligible {
			shown++
			why := sentence(plain(t.Message))
			if known && old.Eligible {
				why = "New: " + strings.ToLower(why[:1]) + why[1:]
			}
			out.Safe = append(out.Safe, web.Safe{Task: t.TaskName, Pool: t.Pool, Why: why})
			continue
		}
		c := web.Candidate{Task: t.TaskName, Pool: t.Pool, Reason: string(t.Reason), Taken: t.Taken, Verdict: "not needed",
			Score: web.Score{Delta: t.Delta.Float(), Base: t.Base.Float(), Kappa: kappa, Remaining: time.Duration(t.Remaining) * time.Millisecond, Total: t.Score.Float()}}
		switch {
		case t.Taken:
			c.Verdict = "taken"
		case j.Decision == nil:
			c.Verdict = "eligible"
		case j.Decision.Outcome == sched.Refuse:
			c.Verdict = "not enough"
		}
		if known && !old.Eligible {
			c.Verdict += ", new"
		}
		out.Candidates = append(out.Candidates, c)
	}
	out.SafeMore = safeMore(j, live, shown)
	return out
}

// safeMore counts the safe tasks that are not listed, by why, when some are not.
func safeMore(j *ledger.Judgement, live, shown int) web.Line {
	safe := j.Judged - j.Eligible
	if safe <= shown && live <= j.Judged {
		return nil
	}
	codes := slices.SortedFunc(maps.Keys(j.Safe), func(a, b sched.Safe) int {
		return cmp.Or(cmp.Compare(j.Safe[b], j.Safe[a]), cmp.Compare(a, b))
	})
	var parts []string
	for _, c := range codes {
		parts = append(parts, web.Number(j.Safe[c])+" "+safeWords(c))
	}
	s := "All " + web.Number(safe)
	if live > j.Judged {
		s = fmt.Sprintf("Of %s looked at, of %s that live, %s are safe", web.Number(j.Judged), web.Number(live), web.Number(safe))
	}
	return web.Say(s + ": " + strings.Join(parts, ", ") + ".")
}

func safeWords(c sched.Safe) string {
	switch c {
	case sched.SafePreemptedIt:
		return "preempted it before"
	case sched.SafeProtected:
		return "in protected pools"
	case sched.SafeOutranks:
		return "outrank it by label"
	case sched.SafeCrossPoolOff:
		return "in other pools, with cross-pool preemption off"
	case sched.SafeBelowThreshold:
		return "too near in priority, or above"
	case sched.SafeLowScore:
		return "with too low a score"
	case sched.SafeTooOften:
		return "preempted too often already"
	case sched.SafeTooFresh:
		return "only just started"
	case sched.SafePoolRate:
		return "in pools that lost enough this minute"
	case sched.SafeUnmanaged:
		return "hold no quota here"
	case sched.SafeUnsettled:
		return "starting or stopping"
	case sched.SafeOtherCluster:
		return "on other clusters"
	case sched.SafeSharesAgent:
		return "share their agent with a safe one"
	}
	return string(c)
}

// verdictNote says what would happen.
func verdictNote(j *ledger.Judgement) web.Note {
	d := j.Decision
	if d == nil {
		return web.Note{Kind: "info", Title: web.Say(web.Count(j.Eligible, "task") + " of " + web.Number(j.Judged) + " could be preempted for it."),
			Text: web.Say("Say what resources it needs to learn whether it would run.")}
	}
	where := "."
	if d.Node != "" {
		where = ", on node " + nodeWords(string(d.Node)) + "."
	}
	switch d.Outcome {
	case sched.Admit:
		return web.Note{Kind: "ok", Title: web.Say("It would run at once" + where), Text: web.Say("There is room; nobody has to make way.")}
	case sched.Preempt:
		n := web.Note{Kind: "ok", Title: web.Say("It would run after a preemption" + where)}
		if d.Deficit.IsZero() {
			n.Text = web.Line{web.Text("The pool has the quota, but no node has the room: ")}
		} else {
			n.Text = web.Line{web.Text("The pool lacks " + resources(d.Deficit).String() + ": ")}
		}
		n.Text = append(n.Text, victims(*d)...)
		n.Text = append(n.Text, web.Text(" would make way."))
		for _, v := range d.Victims {
			if v.Loan {
				n.Text = append(n.Text, web.Text(" "), web.PoolRef(v.Pool), web.Text(" would lend "+resources(v.Takes).String()+"."))
			}
		}
		return n
	}
	why := plain(d.Refusal.Message)
	if strings.HasPrefix(why, "needs ") {
		why = "it " + why
	}
	return web.Note{Kind: "warn", Title: web.Say("It would not run."), Text: web.Say(sentence(why))}
}

// victims names the tasks that make way, at most three.
func victims(d sched.Decision) web.Line {
	var names []string
	for _, v := range d.Victims {
		for _, t := range v.Tasks {
			names = append(names, t.TaskName)
		}
		if len(v.Tasks) == 0 {
			names = append(names, v.AgentName)
		}
	}
	var out web.Line
	for i, name := range names[:min(3, len(names))] {
		if i > 0 {
			out = append(out, web.Text(", "))
		}
		out = append(out, web.TaskRef(name))
	}
	if more := len(names) - 3; more > 0 {
		out = append(out, web.Text(" and "+web.Number(more)+" more"))
	}
	return out
}

// outcome is a decision in a few words.
func outcome(d sched.Decision) web.Line {
	switch d.Outcome {
	case sched.Admit:
		return web.Line{web.Strong("starts at once")}
	case sched.Preempt:
		return append(web.Line{web.Strong("starts"), web.Text(", taking ")}, victims(d)...)
	}
	return web.Say("waits: " + plain(d.Refusal.Message))
}

// compared says what is different under the draft, in a sentence.
func compared(a, b *ledger.Judgement) web.Line {
	if a.Decision == nil || b.Decision == nil {
		return web.Say(fmt.Sprintf("%s could be preempted now, %s under the draft.", web.Count(a.Eligible, "task"), web.Number(b.Eligible)))
	}
	words := func(d sched.Decision) web.Line {
		switch d.Outcome {
		case sched.Admit:
			return web.Say("it runs at once")
		case sched.Preempt:
			return append(web.Line{web.Text("it runs, taking ")}, victims(d)...)
		}
		return web.Say("it does not run")
	}
	now, then := words(*a.Decision), words(*b.Decision)
	if now.String() == then.String() {
		return append(append(web.Line{web.Text("The same becomes of it: ")}, now...), web.Text("."))
	}
	out := append(web.Line{web.Text("Now ")}, now...)
	out = append(out, web.Text("; "), web.Strong("under the draft "))
	out = append(out, then...)
	return append(out, web.Text("."))
}

func exposure(x ledger.Exposure) *web.WhatIfRunning {
	out := &web.WhatIfRunning{}
	if x.Judged == 0 {
		out.Words = web.Say("Nothing runs now.")
		return out
	}
	compared := fmt.Sprintf(" %s compared with newcomers like those that wait and run now, of %s.", web.Count(x.Judged, "running task"), web.Count(x.Profiles, "kind"))
	if x.Takeable == 0 && x.Protected == 0 {
		out.Words = web.Line{web.Strong("Nobody becomes takeable or protected."), web.Text(compared)}
		return out
	}
	out.Words = web.Line{web.Strong(web.Count(x.Takeable, "task")), web.Text(" would become takeable, "), web.Strong(web.Number(x.Protected)), web.Text(" protected, for at least one of them." + compared)}
	for _, t := range x.Items {
		by := web.Line{web.Text("tasks like "), web.TaskRef(t.By)}
		if t.ByCount > 1 {
			by = append(by, web.Text(" and "+web.Count(t.ByCount-1, "other kind")))
		}
		out.Items = append(out.Items, web.Exposed{Task: t.TaskID, Pool: t.Pool, Takeable: t.Takeable, By: by, Now: plain(t.Active), Draft: plain(t.Draft)})
	}
	return out
}
