package view_test

import (
	"context"
	"encoding/json"
	"errors"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/handlers/view"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/web"
)

// has fails the test for each piece of text that is missing.
func has(t *testing.T, what, text string, pieces ...string) {
	t.Helper()
	for _, p := range pieces {
		if !strings.Contains(text, p) {
			t.Errorf("%s does not say %q: %.2000s", what, p, text)
		}
	}
}

func lines(steps []web.Step) string {
	var b strings.Builder
	for _, s := range steps {
		b.WriteString(s.Title.String() + " | " + s.Detail.String() + "\n")
	}
	return b.String()
}

func phaseNames(ps []web.Phase) []string {
	var out []string
	for _, p := range ps {
		out = append(out, p.Name)
	}
	return out
}

func TestTheOverviewShowsRealFigures(t *testing.T) {
	t.Parallel()
	w := tell(t)
	o, err := w.view.Overview(t.Context(), "default")
	w.must(err)
	if o.Running != 3 || o.Queued != 2 || o.Launching != 0 {
		t.Errorf("running %d, queued %d, launching %d", o.Running, o.Queued, o.Launching)
	}
	if want := (web.PreemptionCount{Label: 1, CrossPool: 1, Manual: 1}); o.Preemptions != want || o.Hours[23].PreemptionCount != want || len(o.Hours) != 24 || o.Before != 0 {
		t.Errorf("preemptions %+v, in the last hour %+v", o.Preemptions, o.Hours[23])
	}
	// 1.2 ms to begin, 12 to cancel, 24 to save, 12 to kill, 48 to launch: the story's clock.
	if o.P50.Round(time.Millisecond) != 97*time.Millisecond || len(o.Phases) != 4 || o.Phases[1].Took != 24*time.Millisecond {
		t.Errorf("p50 %s, phases %+v", o.P50, o.Phases)
	}
	// 8 GPU for 30 minutes, 3 for 31, 6 for 8 and 3 for 7, near enough.
	if o.GPUUsed < 6.5 || o.GPUUsed > 7 || o.GPULost != 0 {
		t.Errorf("GPU-hours: lost %v of %v", o.GPULost, o.GPUUsed)
	}
	if len(o.Notes) != 1 {
		t.Fatalf("notes %+v", o.Notes)
	}
	has(t, "the note", o.Notes[0].Title.String()+o.Notes[0].Text.String(), "Queue of train-a100 cannot move.", "llama-70b-pretrain", "0 gpu is free", "256 GiB", "1 preempted it before")
	if o.Pools[0].Name != "train-a100" {
		t.Errorf("the fullest pool is not first: %s", o.Pools[0].Name)
	}
	gpu := o.Pools[0].Quota[0]
	if gpu.Resource != "gpu" || gpu.Capacity != 8000 || gpu.Used != 9000 || gpu.Borrowed != 1000 {
		t.Errorf("quota %+v", gpu)
	}
	if len(o.Recent) == 0 || o.Recent[0].Type != "registered" {
		t.Errorf("recent %+v", o.Recent)
	}
}

func TestWorkOfAVictimWithoutSavedStateCountsAsLost(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", nil, units{"gpu": 2})
	w.submit("low", "a", units{"gpu": 2}, 1)
	w.settle()
	w.pass(30 * time.Minute)
	w.submit("high", "a", units{"gpu": 2}, 9)
	j, _ := w.take()
	w.must(w.TakePhase(t.Context(), j.UID, j.Attempt, ledger.TakeReport{Phase: "cancelling"}))
	w.must(w.TakePhase(t.Context(), j.UID, j.Attempt, ledger.TakeReport{Phase: "killing"}))
	w.must(w.Gone(t.Context(), j.UID, j.Attempt))
	w.settle()
	o, err := w.view.Overview(t.Context(), "default")
	w.must(err)
	if o.GPULost < 0.99 || o.GPULost > 1.01 || o.GPUUsed < o.GPULost {
		t.Errorf("lost %v of %v, want 1 GPU-hour", o.GPULost, o.GPUUsed)
	}
}

func TestATaskThatMadeWaySaysByWhomWhyAndWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	w := tell(t)
	x, err := w.view.Task(t.Context(), "default", "llama-70b-pretrain")
	w.must(err)
	if x.State != web.Queued || x.Position != 1 || x.Preemptions != 1 || x.Ran.Round(time.Minute) != 30*time.Minute || x.StateSize == 0 {
		t.Errorf("%+v", x)
	}
	has(t, "the note", x.Why.Title.String()+x.Why.Text.String(), "first in line in train-a100", "needs 48 cpu · 8 gpu · 256 GiB", "by llama-7b-rlhf, which it may not preempt in turn", "at step 1,840, accuracy 0.913")
	has(t, "the timeline", lines(x.Timeline), "Queued again", "Makes way for llama-7b-rlhf | label rule training_stage: rlhf ≻ pretraining · Δ priority 0.0 → 0.5 + 0.1 × 29 min 58 s left = 180.29 · why",
		"Saving its state", "Running on node 4f1c9a27e5b8 | warm worker · its agent came up in 36 ms", "Reserved 8 gpu · 48 cpu · 256 GiB in train-a100", "Submitted by mei")
	if x.Timeline[0].Took >= 0 || x.Timeline[len(x.Timeline)-1].Title.String() != "Submitted by mei" {
		t.Errorf("the timeline does not end with now and begin with the submission: %s", lines(x.Timeline))
	}
	if got := phaseNames(x.Handover.Phases); !slices.Equal(got, []string{"decide", "cancel", "save state", "kill, seen gone", "launch"}) || x.Handover.Preemptor != "llama-7b-rlhf" {
		t.Errorf("handover %+v", x.Handover)
	}
	if x.CanPreempt || x.CanComplete || !x.CanCancel || !x.CanRetune {
		t.Errorf("what may be done to a queued task: %+v", x)
	}
	second, err := w.view.Task(t.Context(), "default", "llama-13b-sft")
	w.must(err)
	has(t, "the note of the second", second.Why.Title.String()+second.Why.Text.String(), "number 2 in the queue", "First in line is llama-70b-pretrain")
}

func TestAPreemptorShowsWhatItsHandoverCost(t *testing.T) {
	t.Parallel()
	w := tell(t)
	x, err := w.view.Task(t.Context(), "default", "vision-03")
	w.must(err)
	if x.Handover == nil || x.Handover.Total().Round(time.Millisecond) != 97*time.Millisecond || !slices.Equal(x.Handover.Victims, []string{"eval-mmlu"}) {
		t.Fatalf("handover %+v", x.Handover)
	}
	has(t, "the timeline", lines(x.Timeline), "Reserved 3 gpu · 8 cpu in train-a100 | eval-mmlu makes way for it")
}

func TestAHandoverThatGoesOnSaysWhereItIs(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", nil, units{"cpu": 2})
	w.submit("low", "a", units{"cpu": 2}, 1)
	w.settle()
	w.submit("high", "a", units{"cpu": 2}, 9)
	j, _ := w.take()
	w.must(w.TakePhase(t.Context(), j.UID, j.Attempt, ledger.TakeReport{Phase: "cancelling"}))
	high, err := w.view.Task(t.Context(), "default", "high")
	w.must(err)
	has(t, "the preemptor", high.Why.Title.String()+high.Why.Text.String(), "others have made way", "low is told to stop")
	if got := high.Handover.Phases; len(got) != 2 || got[1].Name != "cancel" || got[1].Took >= 0 {
		t.Errorf("phases %+v", got)
	}
	low, err := w.view.Task(t.Context(), "default", "low")
	w.must(err)
	has(t, "the victim", low.Why.Title.String()+low.Phase, "making way for high", "being told to stop")
	w.must(w.TakePhase(t.Context(), j.UID, j.Attempt, ledger.TakeReport{Phase: "saving", Cancel: notStopped(j, "cancel() did not return within 5 s")}))
	low, err = w.view.Task(t.Context(), "default", "low")
	w.must(err)
	if p := low.Handover.Phases[1]; p.Note != "cancel() did not return within 5 s" {
		t.Errorf("the phase that failed does not say so: %+v", p)
	}
}

func TestAPreemptionIsExplained(t *testing.T) {
	t.Parallel()
	w := tell(t)
	l, err := w.view.Preemptions(t.Context(), "default", web.PreemptionFilter{Limit: 50})
	w.must(err)
	if len(l.Items) != 3 || l.Total != 3 {
		t.Fatalf("%+v", l)
	}
	cross, err := w.view.Preemption(t.Context(), "default", l.Items[1].ID)
	w.must(err)
	if cross.Victim != "eval-mmlu" || cross.Reason != "cross_pool_preemption" || !cross.Loan || !cross.Saved || cross.Took.Round(time.Millisecond) != 97*time.Millisecond {
		t.Errorf("%+v", cross.PreemptionRow)
	}
	if cross.Requested.String() != "3 gpu · 8 cpu" || cross.Free.String() != "2 gpu" || cross.Missing.String() != "1 gpu" || cross.Taken.String() != "1 gpu" {
		t.Errorf("asked for %s, free %s, missing %s, taken %s", cross.Requested, cross.Free, cross.Missing, cross.Taken)
	}
	if p := cross.Parts; p.Delta != 8 || p.Base != 8 || p.Kappa != 0.1 || p.Least != 0.5 || cross.PreemptorPriority != 9 || cross.VictimPriority != 1 {
		t.Errorf("score %+v of %v against %v", p, cross.PreemptorPriority, cross.VictimPriority)
	}
	has(t, "what became of it", cross.Now.String(), "eval-mmlu ended there")
	label, err := w.view.Preemption(t.Context(), "default", l.Items[2].ID)
	w.must(err)
	has(t, "the rule", label.Rule.String(), "training_stage: rlhf ≻ pretraining")
	has(t, "what became of it", label.Now.String(), "queued again, position 1")
	hand, err := w.view.Preemption(t.Context(), "default", l.Items[0].ID)
	w.must(err)
	if hand.Preemptor != "" || hand.Actor == "" || !slices.Equal(phaseNames(hand.Handover.Phases), []string{"decide", "cancel", "save state"}) {
		t.Errorf("by hand: %+v", hand)
	}
	for name, f := range map[string]web.PreemptionFilter{"reason": {Reason: "manual"}, "task": {Task: "llama-7b-rlhf"}, "pool": {Pool: "batch"}} {
		f.Limit = 10
		l, err := w.view.Preemptions(t.Context(), "default", f)
		w.must(err)
		if len(l.Items) != 1 || l.Total != 1 {
			t.Errorf("narrowed by %s: %+v", name, l.Items)
		}
	}
}

func TestEndedTasksSayHowTheyEnded(t *testing.T) {
	t.Parallel()
	w := tell(t)
	for id, want := range map[string][]string{
		"tok-bench":  {"bad", "Its class could not be built.", "ValueError: vocab.json"},
		"notebook":   {"warn", "It was preempted by hand.", "at step 1,840"},
		"eval-mmlu":  {"warn", "It made way for vision-03."},
		"legacy-job": {"info", "not ours"},
	} {
		x, err := w.view.Task(t.Context(), "default", id)
		w.must(err)
		if x.Why == nil {
			t.Errorf("%s says nothing", id)
			continue
		}
		has(t, id, x.Why.Kind+" "+x.Why.Title.String()+" "+x.Why.Text.String(), want...)
	}
	x, err := w.view.Task(t.Context(), "default", "reward-07")
	w.must(err)
	if x.Why != nil || x.Result == "" || x.Ran.Round(time.Second) != time.Minute || x.CanCancel {
		t.Errorf("%+v", x)
	}
	if f := x.Again; f == nil || f.CPU != "1" || f.ActorClass != "trainers.llama:Trainer" || f.Kwargs != `{"steps": 4000}` || f.EntryMethod != "run" || f.Priority != "5.0" {
		t.Errorf("the form to submit it again: %+v", x.Again)
	}
	byUID, err := w.view.Task(t.Context(), "default", x.UID)
	w.must(err)
	if byUID.ID != "reward-07" {
		t.Errorf("by its uid: %s", byUID.ID)
	}
	s, err := w.view.TaskState(t.Context(), "default", "notebook")
	w.must(err)
	if s.Attempt != 1 || s.At.IsZero() || !json.Valid([]byte(s.JSON)) {
		t.Errorf("saved state %+v", s)
	}
}

func TestAnEarlierTaskOfTheSameIDIsReachedByItsUIDAndNeverActedOn(t *testing.T) {
	t.Parallel()
	w := open(t)
	ctx := t.Context()
	w.makePool("a", nil, units{"cpu": 2})
	w.submit("t", "a", units{"cpu": 1}, 5)
	w.settle()
	first, err := w.view.Task(ctx, "default", "t")
	w.must(err)
	w.must(w.view.CancelTask(ctx, "default", "t"))
	w.settle()
	w.submit("t", "a", units{"cpu": 1}, 5)
	w.settle()
	second, err := w.view.Task(ctx, "default", "t")
	w.must(err)
	if !slices.Equal(second.Earlier, []string{first.UID}) {
		t.Errorf("earlier tasks %v", second.Earlier)
	}
	refused(t, w.view.CancelTask(ctx, "default", first.UID), "wrong_state")
	again, err := w.view.Task(ctx, "default", "t")
	w.must(err)
	if again.State != web.Running {
		t.Errorf("cancelling the earlier one made the live one %s", again.State)
	}
}

// refused wants a Coded error and gives its fields.
func refused(t *testing.T, err error, code string) map[string]string {
	t.Helper()
	var c pages.Coded
	if !errors.As(err, &c) || c.Code() != code {
		t.Fatalf("error %v, want code %s", err, code)
	}
	return c.Fields()
}

func TestRefusalsNameTheFieldThatWasTyped(t *testing.T) {
	t.Parallel()
	w := tell(t)
	ctx := t.Context()
	good := web.NewTask{TaskID: "new", Pool: "edge", ActorClass: "m:C", Request: web.Resources{"cpu": 1000}, Priority: 5}
	for _, c := range []struct {
		name, code, field string
		change            func(*web.NewTask)
	}{
		{"an unknown pool", "unknown_pool", "pool", func(n *web.NewTask) { n.Pool = "nope" }},
		{"an id that is taken", "task_exists", "task_id", func(n *web.NewTask) { n.TaskID = "vision-03" }},
		{"arguments that are no list", "invalid", "actor_args", func(n *web.NewTask) { n.Args = json.RawMessage(`{}`) }},
		{"keyword arguments that are no JSON", "invalid", "entry_kwargs", func(n *web.NewTask) { n.EntryKwargs = json.RawMessage(`{`) }},
		{"a class without a module", "invalid", "actor_class", func(n *web.NewTask) { n.ActorClass = "C" }},
		{"nothing asked for", "invalid", "resources", func(n *web.NewTask) { n.Request = nil }},
		{"a resource with a strange name", "invalid", "resources", func(n *web.NewTask) { n.Request = web.Resources{"a\x01b": 1000} }},
		{"a label with a long value", "invalid", "labels", func(n *web.NewTask) { n.Labels = map[string]string{"k": strings.Repeat("x", 5000)} }},
		{"a priority beyond reason", "invalid", "priority", func(n *web.NewTask) { n.Priority = 1e15 }},
		{"more than the pool has", "request_too_large", "", func(n *web.NewTask) { n.Request = web.Resources{"cpu": 1e9} }},
	} {
		n := good
		c.change(&n)
		_, err := w.view.SubmitTask(ctx, "default", n)
		fields := refused(t, err, c.code)
		if (c.field == "") != (len(fields) == 0) || c.field != "" && fields[c.field] == "" {
			t.Errorf("%s: fields %v, want %q", c.name, fields, c.field)
		}
	}
	id, err := w.view.SubmitTask(ctx, "default", good)
	w.must(err)
	if id != "new" {
		t.Errorf("made %q", id)
	}

	pool := web.PoolSpec{Name: "edge", Cluster: "local", Capacity: web.Resources{"cpu": 1000}}
	if f := refused(t, w.view.CreatePool(ctx, "default", pool), "pool_exists"); f["name"] == "" {
		t.Errorf("fields %v", f)
	}
	if f := refused(t, w.view.UpdatePool(ctx, "default", "edge", pool), "pool_in_use"); f["resources"] == "" {
		t.Errorf("fields %v", f)
	}
	refused(t, w.view.DeletePool(ctx, "default", "edge"), "pool_in_use")
	refused(t, w.view.CompleteTask(ctx, "default", "nobody"), "unknown_task")
	refused(t, w.view.CompleteTask(ctx, "default", "reward-07"), "wrong_state")
	refused(t, w.view.DeleteAgent(ctx, "default", "nobody", true), "unknown_agent")
	_, err = w.view.Pool(ctx, "default", "nope", 0)
	refused(t, err, "unknown_pool")
	_, err = w.view.Preemption(ctx, "default", "nope")
	refused(t, err, "not_found")
	_, err = w.view.PolicyVersion(ctx, "default", 99)
	refused(t, err, "unknown_policy_version")
	_, err = w.view.Tasks(ctx, "default", web.TaskFilter{Cursor: "nonsense"})
	refused(t, err, "invalid")
}

func TestThePolicyIsCheckedSavedOnItsBaseAndBroughtBack(t *testing.T) {
	t.Parallel()
	w := tell(t)
	ctx := t.Context()
	p, err := w.view.Policy(ctx, "default")
	w.must(err)
	if p.Version != 2 || p.Author != "mei" || !p.Active || !slices.Contains(p.Pools, "batch") || p.Doc.LabelPreemptionRules["training_stage"]["rlhf"] == nil {
		t.Errorf("%+v", p)
	}
	d := p.Doc
	d.ProtectedPools = []string{"nope"}
	warnings, err := w.view.CheckPolicy(ctx, "default", d)
	w.must(err)
	has(t, "the warnings", strings.Join(warnings, "\n"), `"nope"`)
	d.LabelPreemptionRules = map[string]map[string][]string{"a": {"x": {"y"}, "y": {"x"}}}
	_, err = w.view.CheckPolicy(ctx, "default", d)
	if f := refused(t, err, "invalid"); f["label_preemption_rules"] == "" {
		t.Errorf("fields %v", f)
	}
	d = p.Doc
	d.ProtectedPools = []string{"train-a100"}
	_, err = w.view.SavePolicy(ctx, "default", d, 1, "jonas", "from an old page")
	refused(t, err, "version_conflict")
	n, err := w.view.SavePolicy(ctx, "default", d, 2, "jonas", "Protect the paid GPUs")
	w.must(err)
	pool, err := w.view.Pool(ctx, "default", "train-a100", 0)
	w.must(err)
	if n != 3 || !pool.Protected {
		t.Errorf("version %d, protected %v", n, pool.Protected)
	}
	n, err = w.view.Rollback(ctx, "default", 1, 0, "jonas", "Back to version 1")
	w.must(err)
	l, err := w.view.PolicyVersions(ctx, "default", "", 2)
	w.must(err)
	if n != 4 || len(l.Items) != 2 || !l.Items[0].Active || l.Items[1].Active || l.Next == "" {
		t.Errorf("version %d of %+v", n, l)
	}
	if c := l.Items[1].Changes; len(c) != 1 || c[0] != (web.FieldChange{Field: "protected_pools", Old: "none", New: "train-a100"}) {
		t.Errorf("what version 3 changed: %+v", c)
	}
	l, err = w.view.PolicyVersions(ctx, "default", l.Next, 2)
	w.must(err)
	if len(l.Items) != 2 || l.Items[1].Version != 1 || l.Next != "" {
		t.Errorf("second page %+v", l)
	}
}

func TestLookingAtANamespaceDoesNotMakeIt(t *testing.T) {
	t.Parallel()
	w := open(t)
	site := pages.New(w.view, w.view, w.view, pages.Options{})
	for _, path := range []string{"/", "/pools", "/tasks", "/policy", "/preemptions", "/agents", "/events", "/tasks/new", "/jump?q=x"} {
		sep := "?"
		if strings.Contains(path, "?") {
			sep = "&"
		}
		rec := httptest.NewRecorder()
		site.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path+sep+"namespace=nobody", nil))
		if rec.Code != http.StatusOK {
			t.Errorf("%s answers %d", path, rec.Code)
		}
	}
	names, err := w.Namespaces(t.Context())
	w.must(err)
	if !slices.Equal(names, []string{"default"}) {
		t.Errorf("namespaces %v", names)
	}
}

func TestListsAreFilteredAndPaged(t *testing.T) {
	t.Parallel()
	w := tell(t)
	ctx := t.Context()
	seen := map[string]bool{}
	for cursor, page := "", 0; ; page++ {
		l, err := w.view.Tasks(ctx, "default", web.TaskFilter{State: "all", Limit: 4, Cursor: cursor})
		w.must(err)
		for _, r := range l.Items {
			if r.Since.IsZero() || seen[r.ID] {
				t.Errorf("%s: since %v, seen before %v", r.ID, r.Since, seen[r.ID])
			}
			seen[r.ID] = true
		}
		if l.Total != 10 || l.All != 10 {
			t.Errorf("total %d of %d", l.Total, l.All)
		}
		if cursor = l.Next; cursor == "" || page > 5 {
			break
		}
	}
	if len(seen) != 10 {
		t.Errorf("%d tasks seen: %v", len(seen), seen)
	}
	l, err := w.view.Tasks(ctx, "default", web.TaskFilter{State: "live", Labels: []web.Label{{Key: "training_stage", Value: "sft"}}, Limit: 10})
	w.must(err)
	if len(l.Items) != 1 || l.Items[0].Position != 2 || l.Total != 1 {
		t.Errorf("by label: %+v", l)
	}
	a, err := w.view.Agents(ctx, "default", web.AgentFilter{Pool: "edge", Limit: 10})
	w.must(err)
	if len(a.Items) != 1 || a.Total != 1 || len(a.Items[0].Tasks) != 0 {
		t.Errorf("the agent that stayed after a preemption by hand: %+v", a.Items)
	}
	e, err := w.view.Events(ctx, "default", web.EventFilter{Task: "reward-07", Type: "completed", Limit: 10})
	w.must(err)
	if len(e.Items) != 1 || e.Items[0].Took.Round(time.Second) != time.Minute {
		t.Errorf("events %+v", e.Items)
	}
	e, err = w.view.Events(ctx, "default", web.EventFilter{Limit: 5})
	w.must(err)
	next, err := w.view.Events(ctx, "default", web.EventFilter{Limit: 5, Cursor: e.Next})
	w.must(err)
	if len(next.Items) != 5 || next.Items[0].ID == e.Items[4].ID || next.Items[0].At.After(e.Items[4].At) {
		t.Errorf("second page of events %+v", next.Items)
	}
	hits, err := w.view.Find(ctx, "default", "train-a100", 10)
	w.must(err)
	if len(hits) < 2 || hits[0].Kind != "pool" || hits[0].Name != "train-a100" {
		t.Errorf("found %+v", hits)
	}
	c, err := w.view.Classes(ctx, "default")
	w.must(err)
	if !slices.Equal(c, []string{"trainers.llama:Trainer"}) {
		t.Errorf("classes %v", c)
	}
}

func TestAPoolShowsItsQueueItsLoansAndIdleAgents(t *testing.T) {
	t.Parallel()
	w := tell(t)
	p, err := w.view.Pool(t.Context(), "default", "train-a100", 0)
	w.must(err)
	if len(p.Queue) != 2 || p.Queue[0].ID != "llama-70b-pretrain" || p.Queue[1].Position != 2 || p.Holding != 2 || p.Tasks[0].ID != "vision-03" || p.Agents != 2 {
		t.Errorf("%+v", p)
	}
	if len(p.Loans) != 1 || p.Loans[0].From != "batch" || p.Loans[0].Amount.String() != "1 gpu" || p.Loans[0].Since.IsZero() {
		t.Errorf("loans %+v", p.Loans)
	}
	if p.DefaultSize.String() != "2 gpu · 16 cpu · 128 GiB" || p.Settings.Memory != "512 GiB" || p.Settings.Labels != "tier=premium" {
		t.Errorf("default agent %s, form %+v", p.DefaultSize, p.Settings)
	}
	edge, err := w.view.Pool(t.Context(), "default", "edge", 0)
	w.must(err)
	if len(edge.Notes) != 1 {
		t.Errorf("the idle agent is not mentioned: %+v", edge.Notes)
	}
}

func TestLogsAreReadFromTheirEnd(t *testing.T) {
	t.Parallel()
	w := tell(t)
	c, err := w.view.TaskLog(t.Context(), "default", "vision-03", "stdout", -1, 100)
	w.must(err)
	if len(c.Text) != 100 || c.Next != 660 || c.Offset != 560 || !c.EOF || c.Size != 660 {
		t.Errorf("%+v", c)
	}
	c, err = w.view.TaskLog(t.Context(), "default", "vision-03", "stdout", 0, 100)
	w.must(err)
	if c.Offset != 0 || c.Next != 100 || c.EOF {
		t.Errorf("%+v", c)
	}
	_, err = w.view.TaskLog(t.Context(), "default", "nobody", "stdout", 0, 100)
	refused(t, err, "unknown_task")
}

func TestWhatHappensIsTold(t *testing.T) {
	t.Parallel()
	w := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	topics := w.view.Subscribe(ctx, "default")
	elsewhere := w.view.Subscribe(t.Context(), "other")
	want := func(topic pages.Topic) {
		t.Helper()
		after := time.After(10 * time.Second)
		for {
			select {
			case got, ok := <-topics:
				if !ok {
					t.Fatalf("the stream ended before %s", topic)
				}
				if got == topic {
					return
				}
			case <-after:
				t.Fatalf("nobody said %s", topic)
			}
		}
	}
	// The feed begins once it is followed: until the first word, what happens may be missed.
	for i, told := 0, false; !told; i++ {
		w.makePool("p"+string(rune('a'+i)), nil, units{"cpu": 1})
		select {
		case <-topics:
			told = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	w.submit("t", "pa", units{"cpu": 1}, 1)
	want(pages.Tasks)
	w.settle()
	want(pages.Agents)
	w.submit("high", "pa", units{"cpu": 1}, 9)
	want(pages.Preemptions)
	w.settle()
	want(pages.Pools)
	w.policy(`{"min_preempt_score": 1}`, "")
	want(pages.Policy)
	cancel()
	for range topics { //nolint:revive // until it is closed
	}
	w.Ledger.Close()
	select {
	case topic, ok := <-elsewhere:
		if ok {
			t.Errorf("another namespace heard %s", topic)
		}
	case <-time.After(10 * time.Second):
		t.Error("the stream outlives the ledger")
	}
}

func TestEveryPageIsDrawnFromTheLedger(t *testing.T) {
	t.Parallel()
	w := tell(t)
	site := pages.New(w.view, w.view, w.view, pages.Options{Now: w.clock})
	tags := regexp.MustCompile(`<[^>]*>`)
	get := func(path string) string {
		t.Helper()
		rec := httptest.NewRecorder()
		site.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		if rec.Code != http.StatusOK {
			t.Errorf("%s answers %d: %s", path, rec.Code, rec.Body)
		}
		return strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(rec.Body.String(), " "))), " ")
	}
	for path, pieces := range map[string][]string{
		"/":                                   {"3 tasks run, 2 wait", "cannot move", "97 / 97 ms", "1 label · 1 cross pool · 1 by hand"},
		"/tasks":                              {"llama-70b-pretrain", "position 1 · needs 48 cpu · 8 gpu · 256 GiB"},
		"/tasks/llama-70b-pretrain":           {"Makes way for llama-7b-rlhf", "The handover", "save state", "queue again with its saved state"},
		"/tasks/llama-70b-pretrain?tab=spec":  {`"on_preempted": "requeue"`, `"memory": 262144`},
		"/tasks/llama-70b-pretrain?tab=state": {`"step": 1840`},
		"/tasks/vision-03?tab=log":            {"step 1469"},
		"/pools":                              {"train-a100", "Its queue cannot move."},
		"/pools/train-a100":                   {"borrowed from batch", "9 / 8 + 1"},
		"/preemptions":                        {"eval-mmlu", "cross pool", "asked for by hand"},
		"/preemptions/1":                      {"0.5 + 0.1 × 1,798 s = 180.29", "raised to 0.5 by the label rule", "Taken here 6 gpu · 16 cpu"},
		"/policy":                             {"training_stage", "version 2 by mei"},
		"/policy/versions":                    {"Stages before priorities"},
		"/agents":                             {"idle", "vision-03"},
		"/events":                             {"by hand", "for vision-03 · priority, across pools"},
		"/events?type=policy.changed":         {"label_preemption_rules.training_stage: none → rlhf > pretraining, sft"},
		"/events?type=saving":                 {"llama-70b-pretrain"},
		"/tasks/new?like=tok-bench":           {"Submit a task"},
	} {
		has(t, path, get(path), pieces...)
	}

	form := url.Values{"task_id": {"by-form"}, "pool": {"edge"}, "actor_class": {"m:C"}, "cpu": {"1"}, "actor_args": {`["a"]`}, "priority": {"5"}}
	post := func(form url.Values) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/tasks/new", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		rec := httptest.NewRecorder()
		site.ServeHTTP(rec, r.WithContext(pages.WithUser(r.Context(), "mei")))
		return rec
	}
	if rec := post(form); rec.Code != http.StatusSeeOther || rec.Header().Get("Location") != "/tasks/by-form" {
		t.Errorf("submitting answers %d %s", rec.Code, rec.Body)
	}
	x, err := w.view.Task(t.Context(), "default", "by-form")
	w.must(err)
	if x.Owner != "mei" {
		t.Errorf("submitted by %q", x.Owner)
	}
	form.Set("cpu", "2")
	if rec := post(form); rec.Code != http.StatusUnprocessableEntity || !strings.Contains(rec.Body.String(), `id="task_id-err"`) {
		t.Errorf("an id that is taken answers %d and does not say so at the field", rec.Code)
	}
}

func TestClustersAreWhatTheyAreSaidToBe(t *testing.T) {
	t.Parallel()
	w := open(t)
	v := view.New(w.Ledger, nil, view.Options{Clusters: func(context.Context) []web.Cluster {
		return []web.Cluster{{Name: "gpu-east", State: "down", Detail: "connection refused"}}
	}})
	names, err := v.PoolClusters(t.Context())
	w.must(err)
	if !slices.Equal(names, []string{"local", "gpu-east"}) {
		t.Errorf("clusters %v", names)
	}
	o, err := v.Overview(t.Context(), "default")
	w.must(err)
	if len(o.Notes) != 1 || o.Notes[0].Kind != "bad" || len(o.Clusters) != 1 {
		t.Errorf("%+v", o)
	}
}
