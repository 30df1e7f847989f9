package ledger_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

func cpus(n float64) *sched.Resources { return &sched.Resources{CPU: int64(1000 * n)} }

func prio(p float64) *sched.Milli { m := sched.Milli(1000 * p); return &m }

func (w *world) whatIf(q ledger.WhatIf) ledger.WhatIfAnswer {
	w.t.Helper()
	a, err := w.WhatIf(w.t.Context(), "default", q)
	w.must(err)
	return a
}

func TestWhatIfAnswersUnderBothPoliciesAndChangesNothing(t *testing.T) {
	w := open(t)
	w.makePool("a", 4)
	w.run(sub("low", "a", 2, 1))
	w.run(sub("mid", "a", 2, 5))
	before, err := w.Pools(t.Context(), "default")
	w.must(err)

	a := w.whatIf(ledger.WhatIf{Task: &ledger.Supposed{Pool: "a", Priority: prio(4), Request: cpus(2)}, Draft: json.RawMessage(`{"same_pool_priority_threshold": 4}`)})
	if d := a.Active.Decision; d.Outcome != sched.Preempt || len(d.Victims) != 1 || d.Victims[0].Tasks[0].TaskName != "low" {
		t.Errorf("active %+v", d)
	}
	if d := a.Draft.Decision; d.Outcome != sched.Refuse || d.Refusal.Code != sched.NoVictims {
		t.Errorf("draft %+v", d)
	}
	if len(a.Changes) != 1 || a.Changes[0].New != "4.0" || a.PolicyVersion != 1 || a.Live != 2 {
		t.Errorf("%+v", a)
	}
	// The active policy takes low and says why mid is safe; the draft makes both safe.
	if v := a.Active.Verdicts; len(v) != 2 || !v[0].Taken || v[0].TaskName != "low" || v[1].Code != sched.SafeBelowThreshold || !strings.Contains(v[1].Message, "it would need priority 6.0") {
		t.Errorf("verdicts %+v", v)
	}
	if j := a.Draft; j.Judged != 2 || j.Eligible != 0 || j.Safe[sched.SafeBelowThreshold] != 2 {
		t.Errorf("draft judged %+v", j)
	}
	// Nothing is different afterwards, and the active policy decides on.
	after, err := w.Pools(t.Context(), "default")
	w.must(err)
	if fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
	v, err := w.Policy(t.Context(), "default")
	w.must(err)
	if v.Version != 1 {
		t.Errorf("the policy is at version %d", v.Version)
	}
	e, err := w.Evaluate(t.Context(), "default", ledger.Evaluation{Pool: "a", Priority: 4000, Request: cpus(2)})
	w.must(err)
	if !e.ShouldPreempt {
		t.Error("the draft stayed in the core")
	}
	w.verified()
}

func TestWhatIfOfAQueuedTaskKnowsWhoPreemptedIt(t *testing.T) {
	w := open(t)
	w.makePool("a", 2)
	w.run(sub("victim", "a", 2, 5, requeueing))
	w.run(sub("taker", "a", 2, 9))
	w.settle()
	w.state("victim", ledger.Queued)
	// With priority 50 it could take anybody, but the one that preempted it.
	a := w.whatIf(ledger.WhatIf{Task: &ledger.Supposed{TaskID: "victim", Priority: prio(50)}})
	if a.Active.Decision.Outcome != sched.Refuse || a.Active.Safe[sched.SafePreemptedIt] != 1 || a.Task.Request.CPU != 2000 || a.Draft != nil {
		t.Errorf("%+v, asked %+v", a.Active, a.Task)
	}
	// A stranger like it may.
	a = w.whatIf(ledger.WhatIf{Task: &ledger.Supposed{Pool: "a", Priority: prio(50), Request: cpus(2)}})
	if a.Active.Decision.Outcome != sched.Preempt {
		t.Errorf("%+v", a.Active)
	}
	for want, q := range map[*ledger.Error]ledger.WhatIf{
		ledger.ErrUnknownTask: {Task: &ledger.Supposed{TaskID: "nobody"}},
		ledger.ErrWrongState:  {Task: &ledger.Supposed{TaskID: "taker"}},
		ledger.ErrInvalid:     {},
	} {
		if _, err := w.WhatIf(t.Context(), "default", q); !errors.Is(err, want) {
			t.Errorf("%+v: %v, want %s", q, err, want.Code)
		}
	}
	if _, err := w.WhatIf(t.Context(), "default", ledger.WhatIf{Draft: json.RawMessage(`{"min_preempt_score": -1}`)}); !errors.Is(err, ledger.ErrInvalid) {
		t.Errorf("a draft that is not valid: %v", err)
	}
}

func TestWhatIfMindsTheLineAndHolds(t *testing.T) {
	w := open(t)
	w.makePool("a", 4)
	w.run(sub("runs", "a", 3, 5))
	w.submit(sub("large", "a", 4, 5, queueing))
	ask := ledger.WhatIf{Task: &ledger.Supposed{Pool: "a", Priority: prio(5), Request: cpus(1)}}
	// There is room for it, but it would keep the first in line waiting.
	if d := w.whatIf(ask).Active.Decision; d.Outcome != sched.Refuse || d.Refusal.Code != sched.RoomReserved {
		t.Errorf("behind the line: %+v", d)
	}
	if got, err := w.Submit(t.Context(), "default", sub("small", "a", 1, 5)); !errors.Is(err, ledger.ErrInsufficient) {
		t.Errorf("what-if says it would not run, and it is %+v, %v", got.State, err)
	}
	ask.Task.Priority = prio(5.5) // in front of the line; too near to preempt anybody
	if d := w.whatIf(ask).Active.Decision; d.Outcome != sched.Admit {
		t.Errorf("in front of the line: %+v", d)
	}
	_, err := w.HoldPool(t.Context(), "default", "a", ledger.HoldRequest{State: ledger.Held, Reason: "fans"})
	w.must(err)
	ask.Task.Priority, ask.Draft = prio(50), json.RawMessage(`{"same_pool_priority_threshold": 0}`)
	a := w.whatIf(ask)
	for _, j := range []*ledger.Judgement{a.Active, a.Draft} {
		if j.Decision.Refusal.Code != "pool_held" || j.Verdicts[0].Taken || !j.Verdicts[0].Eligible {
			t.Errorf("in a held pool: %+v, %+v", j.Decision, j.Verdicts)
		}
	}
}

func TestADraftSaysWhatBecomesOfTheQueueAndWhomItExposes(t *testing.T) {
	w := open(t)
	w.makePool("a", 2)
	w.makePool("b", 2)
	w.run(sub("pre", "a", 2, 5, labelled("stage", "pretraining")))
	w.run(sub("other", "b", 2, 5))
	w.submit(sub("rl", "a", 2, 5, labelled("stage", "rlhf"), queueing))
	w.submit(sub("plain", "b", 2, 5, queueing))

	a := w.whatIf(ledger.WhatIf{Draft: json.RawMessage(`{"label_preemption_rules": {"stage": {"rlhf": ["pretraining"]}}}`)})
	if a.Task != nil || a.Queued != 2 || len(a.Queue) != 2 {
		t.Fatalf("%+v", a)
	}
	if q := a.Queue[0]; q.TaskID != "rl" || !q.Changed || q.Position != 1 || q.Active.Outcome != sched.Refuse || q.Draft.Outcome != sched.Preempt || q.Draft.Victims[0].Tasks[0].TaskName != "pre" {
		t.Errorf("first %+v", q)
	}
	if q := a.Queue[1]; q.TaskID != "plain" || q.Changed || q.Draft.Outcome != sched.Refuse {
		t.Errorf("second %+v", q)
	}
	x := a.Shift
	if x.Judged != 2 || x.Takeable != 1 || x.Protected != 0 || len(x.Items) != 1 || x.Items[0].TaskID != "pre" || x.Items[0].By != "rl" || !strings.Contains(x.Items[0].Draft, "rlhf > pretraining") || !strings.Contains(x.Items[0].Active, "below") {
		t.Errorf("exposure %+v", x)
	}

	// The other way round it protects.
	w.policy(`{"label_preemption_rules": {"stage": {"rlhf": ["pretraining"]}}}`)
	w.settle() // rl has taken pre
	w.submit(sub("rl-2", "a", 3, 9, queueing))
	a = w.whatIf(ledger.WhatIf{Draft: json.RawMessage(`{"same_pool_priority_threshold": 100}`)})
	if a.Shift.Protected == 0 || a.Shift.Takeable != 0 {
		t.Errorf("exposure %+v", a.Shift)
	}
}

func TestWhatIfLooksAtABoundedNumberAndLetsAdmissionsThrough(t *testing.T) {
	w := open(t)
	w.makePool("a", 3000)
	var wg sync.WaitGroup
	for i := range 1500 {
		wg.Go(func() {
			_, err := w.Submit(t.Context(), "default", sub(fmt.Sprintf("t%04d", i), "a", 2, float64(i%7)))
			w.must(err)
		})
	}
	wg.Wait()
	for i := range 300 {
		w.submit(sub(fmt.Sprintf("q%04d", i), "a", 2, 0, queueing))
	}
	began := time.Now()
	a := w.whatIf(ledger.WhatIf{Task: &ledger.Supposed{Pool: "a", Priority: prio(6), Request: cpus(4)}, Draft: json.RawMessage(`{"same_pool_priority_threshold": 2}`), Limit: 5})
	t.Logf("a task under two policies, 1,500 run: %s", time.Since(began))
	if a.Active.Judged != 1000 || a.Live != 1500 || a.Active.Decision.Outcome != sched.Refuse && a.Active.Decision.Outcome != sched.Preempt {
		t.Errorf("judged %d of %d: %+v", a.Active.Judged, a.Live, a.Active.Decision)
	}
	eligible, safe := 0, 0
	for _, v := range a.Active.Verdicts {
		if v.Eligible && !v.Taken {
			eligible++
		} else if !v.Eligible {
			safe++
		}
	}
	if eligible > 5 || safe > 5 {
		t.Errorf("%d eligible and %d safe ones are listed; 5 was the limit", eligible, safe)
	}
	began = time.Now()
	a = w.whatIf(ledger.WhatIf{Draft: json.RawMessage(`{"same_pool_priority_threshold": 0, "min_preempt_score": 0}`), Limit: 200})
	t.Logf("a draft, 300 wait: %s", time.Since(began))
	if len(a.Queue) != 200 || a.Queued != 300 || a.Shift.Judged != 500 || a.Shift.Takeable == 0 || len(a.Shift.Items) > 200 {
		t.Errorf("asked %d of %d; exposure %+v", len(a.Queue), a.Queued, a.Shift.Judged)
	}
}
