package sched_test

import (
	"slices"
	"testing"

	. "github.com/schedulemesh/schedulemesh/sched"
)

const tiers = `{"label_preemption_rules":{"tier":{"premium":["standard","batch"],"standard":["batch"]}}}`

// one evaluates a newcomer against a single task, as the guides do.
func one(t *testing.T, patch, pool string, priority float64, l Labels, victimPool string, victimPriority float64, victimLabels Labels) []Candidate {
	t.Helper()
	w := world{policy: patched(t, patch)}
	w.run("victim", victimPool, victimPriority, cpu(1), labels(victimLabels))
	return w.core().Candidates(incoming(pool, priority, l, Resources{}), later, 0)
}

func TestTheGuidesExamples(t *testing.T) {
	tier := func(v string) Labels { return Labels{"tier": v} }
	for _, c := range []struct {
		name       string
		patch      string
		pool       string
		priority   float64
		labels     Labels
		victimPool string
		victim     float64
		victimTags Labels
		want       Reason // "" = safe
	}{
		{"basic flow", `{}`, "compute", 5, nil, "compute", 1, nil, SamePool},
		{"same pool, difference 2", `{}`, "compute", 3, nil, "compute", 1, nil, SamePool},
		{"same pool, difference exactly at the threshold", `{}`, "compute", 2, nil, "compute", 1, nil, SamePool},
		{"same pool, difference just below", `{}`, "compute", 1.999, nil, "compute", 1, nil, ""},
		{"across pools, difference 8", `{}`, "premium", 10, nil, "compute", 2, nil, CrossPool},
		{"across pools, difference exactly at the threshold", `{}`, "premium", 7, nil, "compute", 2, nil, CrossPool},
		{"across pools, difference just below", `{}`, "premium", 6.999, nil, "compute", 2, nil, ""},
		{"across pools, switched off", `{"enable_cross_pool_preemption":false}`, "premium", 100, nil, "compute", 2, nil, ""},
		{"protected from other pools", `{"protected_pools":["production-pool"]}`, "other-pool", 100, nil, "production-pool", 5, nil, ""},
		{"protected, but from its own pool", `{"protected_pools":["production-pool"]}`, "production-pool", 100, nil, "production-pool", 5, nil, SamePool},
		{"protected from other pools by label too", `{"protected_pools":["b"],"label_preemption_rules":{"tier":{"premium":["batch"]}}}`,
			"a", 100, tier("premium"), "b", 1, tier("batch"), ""},
		{"label at equal priority", tiers, "a", 5, tier("premium"), "a", 5, tier("standard"), ByLabel},
		{"label at lower priority", tiers, "a", 6, tier("premium"), "a", 10, tier("standard"), ByLabel},
		{"label across pools below the cross-pool threshold", `{"cross_pool_priority_threshold":10,"label_preemption_rules":{"tier":{"premium":["standard"]}}}`,
			"pool-b", 7, tier("premium"), "pool-a", 5, tier("standard"), ByLabel},
		{"label across pools with cross-pool preemption off", `{"enable_cross_pool_preemption":false,"label_preemption_rules":{"tier":{"premium":["standard"]}}}`,
			"pool-b", 5, tier("premium"), "pool-a", 5, tier("standard"), ByLabel},
		{"labels switched off fall back to priority", `{"enable_label_preemption":false,"label_preemption_rules":{"tier":{"premium":["standard"]}}}`,
			"a", 7, tier("premium"), "a", 5, tier("standard"), SamePool},
		{"labels switched off give no rank", `{"enable_label_preemption":false,"label_preemption_rules":{"tier":{"premium":["standard"]}}}`,
			"a", 7, tier("standard"), "a", 5, tier("premium"), SamePool},
		{"labels switched off, equal priority", `{"enable_label_preemption":false,"label_preemption_rules":{"tier":{"premium":["standard"]}}}`,
			"a", 5, tier("premium"), "a", 5, tier("standard"), ""},
		{"rank is not inherited", `{"label_preemption_rules":{"tier":{"premium":["standard"],"standard":["batch"]}}}`,
			"a", 5, tier("premium"), "a", 5, tier("batch"), ""},
		{"a lower rank never takes a higher one", tiers, "a", 100, tier("batch"), "a", 1, tier("premium"), ""},
		{"nor across pools", tiers, "b", 100, tier("batch"), "a", 1, tier("premium"), ""},
		{"unranked labels fall back to priority", tiers, "a", 7, tier("other"), "a", 5, tier("premium"), SamePool},
		{"the same rank falls back to priority", tiers, "a", 7, tier("premium"), "a", 5, tier("premium"), SamePool},
		{"any one key is enough", `{"label_preemption_rules":{"tier":{"premium":["batch"]},"user":{"admin":["vip"]}}}`,
			"a", 1, Labels{"tier": "batch", "user": "admin"}, "a", 5, Labels{"tier": "standard", "user": "vip"}, ByLabel},
		{"score below the least", `{"same_pool_priority_threshold":0,"min_preempt_score":0.5}`, "a", 5.4, nil, "a", 5, nil, ""},
		{"score exactly at the least", `{"same_pool_priority_threshold":0,"min_preempt_score":0.5}`, "a", 5.5, nil, "a", 5, nil, SamePool},
		{"label score is enough whatever the least", `{"min_preempt_score":50,"label_preemption_rules":{"tier":{"premium":["batch"]}}}`,
			"a", 5, tier("premium"), "a", 5, tier("batch"), ByLabel},
	} {
		got := one(t, c.patch, c.pool, c.priority, c.labels, c.victimPool, c.victim, c.victimTags)
		var reason Reason
		if len(got) > 0 {
			reason = got[0].Reason
		}
		if reason != c.want {
			t.Errorf("%s: got %q, want %q", c.name, reason, c.want)
		}
	}
}

func TestScoreIsTheDifferencePlusWeightedTimeLeft(t *testing.T) {
	for _, c := range []struct {
		name     string
		start    Time
		estimate Time
		want     Micro
		left     Time
	}{
		{"no estimate counts as nothing left", startOfTime, 0, 4_000_000, 0},
		{"40 s left", startOfTime, 100_000, 8_000_000, 40_000},
		{"one millisecond left", startOfTime, 60_001, 4_000_100, 1},
		{"overdue", startOfTime, 30_000, 4_000_000, 0},
		{"not yet begun counts as just started", 0, 10_000, 5_000_000, 10_000},
	} {
		w := world{policy: DefaultPolicy()}
		w.run("v", "a", 1, cpu(1), started(c.start), estimate(c.estimate))
		got := w.core().Candidates(incoming("a", 5, nil, Resources{}), later, 0)
		if len(got) != 1 || got[0].Score != c.want || got[0].Remaining != c.left || got[0].Delta != 4000 {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

func TestLabelScoreStartsAtTheLabelThreshold(t *testing.T) {
	got := one(t, tiers, "a", 6, Labels{"tier": "premium"}, "b", 10, Labels{"tier": "batch"})
	if len(got) != 1 || got[0].Base != 500 || got[0].Delta != -4000 || got[0].Score != 500_000 ||
		got[0].LabelKey != "tier" || got[0].LabelBy != "premium" || got[0].LabelOver != "batch" {
		t.Errorf("%+v", got)
	}
	if got := one(t, tiers, "a", 6, Labels{"tier": "premium"}, "b", 1, Labels{"tier": "batch"}); got[0].Base != 5000 {
		t.Errorf("a larger difference counts in full: %+v", got)
	}
}

func TestCandidatesAreOrderedByScorePriorityStartAndName(t *testing.T) {
	w := world{policy: patched(t, `{"label_preemption_rules":{"tier":{"premium":["batch"]}},"label_priority_threshold":4}`)}
	w.run("d-later-name", "a", 1, cpu(1))
	w.run("c-earlier-name", "a", 1, cpu(1))
	w.run("b-started-later", "a", 1, cpu(1), started(startOfTime+1))
	w.run("a-not-started", "a", 1, cpu(1), started(0))
	w.run("e-higher-priority-same-score", "a", 3, cpu(1), labels(Labels{"tier": "batch"}))
	w.run("f-lower-score", "a", 2, cpu(1))
	w.run("g-best-score", "a", 2, cpu(1), estimate(10_000_000))
	c := w.core()
	in := incoming("a", 5, Labels{"tier": "premium"}, Resources{})
	want := []string{"g-best-score", "a-not-started", "b-started-later", "c-earlier-name", "d-later-name", "e-higher-priority-same-score", "f-lower-score"}
	if got := names(c.Candidates(in, later, 0)); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := names(c.Candidates(in, later, 2)); !slices.Equal(got, want[:2]) {
		t.Errorf("the first two are %q", got)
	}
}

func TestUnmanagedTasksAreEvaluatedByTheNamesTheyGive(t *testing.T) {
	w := world{policy: DefaultPolicy()}
	w.tasks = []Task{{ID: id(1), Name: "registered", Pool: "never-made", Priority: 1000}}
	c := w.core()
	if got := c.Candidates(incoming("never-made", 5, nil, Resources{}), later, 0); len(got) != 1 || got[0].Reason != SamePool {
		t.Errorf("%+v", got)
	}
	if got := c.Candidates(incoming("other", 6, nil, Resources{}), later, 0); len(got) != 1 || got[0].Reason != CrossPool {
		t.Errorf("%+v", got)
	}
}

func TestATaskNeverTakesItselfNorThoseThatPreemptedItNorTheirs(t *testing.T) {
	w := world{policy: DefaultPolicy()}
	w.run("free-game", "a", 1, cpu(1))
	w.run("preemptor", "a", 1, cpu(1), func(t *Task, _ *Agent) { t.PreemptedBy = []ID{id(3)} })
	w.run("preemptor-of-preemptor", "a", 1, cpu(1), func(t *Task, _ *Agent) { t.PreemptedBy = []ID{id(2), id(4)} })
	w.run("and-so-on", "a", 1, cpu(1))
	w.run("itself", "a", 1, cpu(1))
	in := incoming("a", 9, nil, Resources{})
	in.ID, in.PreemptedBy = id(5), []ID{id(2)}
	if got := names(w.core().Candidates(in, later, 0)); !slices.Equal(got, []string{"free-game"}) {
		t.Errorf("%q", got)
	}
}

func TestBrakesOnChurn(t *testing.T) {
	w := world{policy: patched(t, `{"min_runtime_seconds":60,"max_preemptions_per_task":2,"max_preemptions_per_minute":3}`)}
	w.pools = []Pool{pool("a", cpu(0), cpu(9)), pool("tired", cpu(0), cpu(9))}
	w.pools[0].Preempted, w.pools[1].Preempted = 2, 3
	w.run("long-enough", "a", 1, cpu(1))
	w.run("a-millisecond-short", "a", 1, cpu(1), started(startOfTime+1))
	w.run("not-begun", "a", 1, cpu(1), started(0))
	w.run("once-more", "a", 1, cpu(1), preempted(1))
	w.run("too-often", "a", 1, cpu(1), preempted(2))
	w.run("in-a-tired-pool", "tired", 1, cpu(1))
	if got := names(w.core().Candidates(incoming("a", 9, nil, Resources{}), later, 0)); !slices.Equal(got, []string{"long-enough", "once-more"}) {
		t.Errorf("%q", got)
	}
	w.policy = DefaultPolicy()
	if got := w.core().Candidates(incoming("a", 9, nil, Resources{}), startOfTime-5_000, 0); len(got) != 6 {
		t.Errorf("brakes are off, a clock that lags is no reason to be safe: %q", names(got))
	}
}

func TestNumbersBeyondReasonDoNotOverflow(t *testing.T) {
	w := world{policy: patched(t, `{"remaining_time_weight":100}`)}
	const huge = 1<<63 - 1
	w.run("v", "a", 0, cpu(1), func(t *Task, _ *Agent) { t.Priority, t.Start, t.Estimate = -huge, huge, huge })
	in := incoming("a", 0, nil, Resources{})
	in.Priority = huge
	if got := w.core().Candidates(in, -huge, 0); len(got) != 1 || got[0].Score <= 0 {
		t.Errorf("%+v", got)
	}
}
