package demo

import (
	"context"
	"strings"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/web"
)

// WhatIf answers with a bit of everything that an answer may have.
func (w *World) WhatIf(_ context.Context, _ string, s web.Supposition) (web.WhatIf, error) {
	defer w.lock()()
	if strings.Contains(string(s.Draft), "nonsense") {
		return web.WhatIf{}, &pages.Refusal{ErrorCode: "invalid", Message: "nonsense: is not a field of a policy", ByField: map[string]string{"draft": "nonsense: Is not a field of a policy."}}
	}
	var a web.WhatIf
	x := w.pre[0]
	if s.Draft != nil {
		a.Changes = []web.FieldChange{{Field: "cross_pool_priority_threshold", Old: "5.0", New: "4.0"}}
		a.Warnings = []string{`protected_pools: there is no pool "nowhere".`}
	}
	if s.Pool != "" {
		a.Judged = []web.Judged{{Title: "Under version 12", Candidates: x.Candidates, Safe: x.Safe, SafeMore: x.SafeMore,
			Note: web.Note{Kind: "ok", Title: web.Say("It would run after a preemption, on node gpu-04."), Text: web.Line{web.Text("The pool lacks 1 GPU: "), web.TaskRef("rollout-112"), web.Text(" would make way.")}}}}
		if s.Draft != nil {
			a.Judged = append(a.Judged, web.Judged{Title: "Under the draft", Candidates: x.Candidates[1:], Safe: x.Safe,
				Note: web.Note{Kind: "warn", Title: web.Say("It would not run."), Text: web.Say("It needs 2 GPU; 1 GPU is free in pool research-shared; nothing may be preempted: 5 tasks in its pool are less than 4 priority below it.")}})
			a.Summary = []web.Line{{web.Text("Now it runs, taking "), web.TaskRef("rollout-112"), web.Text("; "), web.Strong("under the draft "), web.Text("it does not run.")}}
		}
		return a, w.Fail
	}
	a.Summary = []web.Line{{web.Strong("2 waiting tasks"), web.Text(" of 17 asked would fare differently.")}}
	a.Queue = &web.WhatIfQueue{Waiting: 85}
	for i, t := range w.tasks {
		if t.State != web.Queued {
			continue
		}
		e := web.QueueEffect{Task: t.ID, Pool: t.Pool, Position: len(a.Queue.Items) + 1, Changed: len(a.Queue.Items) < 2, Now: web.Say("waits: needs 8 GPU; 5 GPU is free in pool " + t.Pool + "; nothing may be preempted: 5 tasks are in protected pools"), Draft: web.Line{web.Strong("starts"), web.Text(", taking "), web.TaskRef(w.tasks[i/2].ID)}}
		if a.Queue.Items = append(a.Queue.Items, e); len(a.Queue.Items) == 6 {
			break
		}
	}
	a.Running = &web.WhatIfRunning{Words: web.Line{web.Strong("38 tasks"), web.Text(" would become takeable, "), web.Strong("2"), web.Text(" protected, for at least one of them. 127 running tasks compared with newcomers like those that wait and run now, of 20 kinds.")}}
	for i, t := range w.tasks {
		if t.State == web.Running && len(a.Running.Items) < 6 {
			a.Running.Items = append(a.Running.Items, web.Exposed{Task: t.ID, Pool: t.Pool, Takeable: i%4 != 3, By: web.Line{web.Text("tasks like "), web.TaskRef("llama-7b-rlhf"), web.Text(" and 3 other kinds")},
				Now: "priority difference 4.5 is below 5.0; it would need priority 10.5", Draft: "pool batch, priority difference 4.5, score 4.5"})
		}
	}
	return a, w.Fail
}
