package view_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/schedulemesh/schedulemesh/web"
)

func said(ls []web.Line) string {
	var b strings.Builder
	for _, l := range ls {
		b.WriteString(l.String() + "\n")
	}
	return b.String()
}

func TestWhatIfIsAnsweredInWords(t *testing.T) {
	t.Parallel()
	w := tell(t)
	gpu := func(n int64) web.Resources { return web.Resources{"gpu": 1000 * n} }

	a, err := w.view.WhatIf(t.Context(), "default", web.Supposition{Pool: "edge", Priority: 5, Request: web.Resources{"cpu": 1000}})
	w.must(err)
	has(t, "what fits", a.Judged[0].Note.Title.String(), "It would run at once")

	a, err = w.view.WhatIf(t.Context(), "default", web.Supposition{Pool: "train-a100", Priority: 20, Request: gpu(2)})
	w.must(err)
	j := a.Judged[0]
	has(t, "who makes way", j.Note.Title.String()+j.Note.Text.String(), "It would run after a preemption", "lacks 2 gpu", "would make way")
	if len(j.Candidates) == 0 || j.Candidates[0].Verdict != "taken" || j.Candidates[0].Score.Kappa != 0.1 || j.Candidates[0].Score.Total == 0 {
		t.Errorf("candidates %+v", j.Candidates)
	}

	// With a draft that protects everybody it would not run, and the page says both.
	a, err = w.view.WhatIf(t.Context(), "default", web.Supposition{Pool: "train-a100", Priority: 20, Request: gpu(2), Draft: json.RawMessage(`{"same_pool_priority_threshold": 100, "enable_cross_pool_preemption": false}`)})
	w.must(err)
	if len(a.Judged) != 2 || len(a.Changes) != 2 || len(a.Judged[1].Candidates) != 0 {
		t.Fatalf("%+v", a)
	}
	has(t, "the summary", said(a.Summary), "Now it runs, taking", "under the draft it does not run")
	has(t, "the refusal", a.Judged[1].Note.Text.String(), "It needs 2 gpu", "100.0 priority below it")
	fresh := 0
	for _, s := range a.Judged[1].Safe {
		if strings.HasPrefix(s.Why, "New: ") {
			fresh++
		}
	}
	if fresh == 0 {
		t.Errorf("nobody is said to be newly safe: %+v", a.Judged[1].Safe)
	}

	// The queued task, as it is: who preempted it stays safe from it.
	a, err = w.view.WhatIf(t.Context(), "default", web.Supposition{Task: "llama-70b-pretrain", Pool: "train-a100", Priority: 50, Request: gpu(8)})
	w.must(err)
	why := ""
	for _, s := range a.Judged[0].Safe {
		why += s.Task + ": " + s.Why + "\n"
	}
	has(t, "the safe", why, "llama-7b-rlhf: It preempted this task before.")

	// A draft alone.
	w.submit("sft-small", "train-a100", units{"gpu": 3}, 4, labelled("training_stage", "sft"), queueing)
	a, err = w.view.WhatIf(t.Context(), "default", web.Supposition{Draft: json.RawMessage(`{"label_preemption_rules": {"training_stage": {"sft": ["rlhf"]}}}`)})
	w.must(err)
	if len(a.Queue.Items) != 3 || a.Queue.Waiting != 3 || !a.Queue.Items[0].Changed || a.Queue.Items[0].Task != "sft-small" || a.Queue.Items[1].Changed {
		t.Errorf("queue %+v", a.Queue)
	}
	has(t, "the draft", a.Queue.Items[0].Draft.String(), "starts, taking llama-7b-rlhf")
	has(t, "the draft", said(a.Summary), "1 waiting task of 3 asked would fare differently")
	has(t, "who is exposed", a.Running.Words.String(), "become takeable")

	same, err := w.view.WhatIf(t.Context(), "default", web.Supposition{Draft: json.RawMessage(`{"min_preempt_score": 0.5}`)})
	w.must(err)
	has(t, "no difference", said(same.Summary), "says what the active policy says already")
	_, err = w.view.WhatIf(t.Context(), "default", web.Supposition{Draft: json.RawMessage(`{"min_preempt_score": -1, "x": 2}`)})
	f := refused(t, err, "invalid")
	has(t, "the draft's field", f["draft"], "x: ")
	_, err = w.view.WhatIf(t.Context(), "nowhere", web.Supposition{Pool: "a"})
	refused(t, err, "invalid")
}
