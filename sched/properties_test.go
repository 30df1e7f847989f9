package sched_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	. "github.com/schedulemesh/schedulemesh/sched"
)

// Small ranges everywhere: ties, exact fits and empty amounts must be common.
// rapid prefers what comes first in a range or a list, so that is where the
// cases with several victims are.

// plenty is more than any request here.
var plenty = Resources{CPU: 9000, GPU: 9000, Memory: 9}.With("tpu", 9000)

func chance(t *rapid.T, oneIn int, label string) bool {
	return rapid.IntRange(0, oneIn-1).Draw(t, label) == oneIn-1
}

func someAmounts(t *rapid.T, label string, most int64) Resources {
	r := Resources{
		CPU: 500 * (most - rapid.Int64Range(0, most).Draw(t, label+" cpu")),
		GPU: 500 * rapid.Int64Range(0, most/2).Draw(t, label+" gpu"),
	}
	if chance(t, 4, label+" more") {
		r.Memory = rapid.Int64Range(0, most).Draw(t, label+" memory")
		r = r.With("tpu", 500*rapid.Int64Range(0, 2).Draw(t, label+" tpu"))
	}
	return r
}

func someLabels(t *rapid.T, label string) Labels {
	l := Labels{}
	for _, key := range []string{"tier", "user"} {
		if v := rapid.SampledFrom([]string{"", "a", "b", "", "c", ""}).Draw(t, label+" "+key); v != "" {
			l[key] = v
		}
	}
	return l
}

func somePolicy(t *rapid.T) Policy {
	p := DefaultPolicy()
	few := func(label string, values ...int) int { return rapid.SampledFrom(values).Draw(t, label) }
	p.SamePoolPriorityThreshold = Milli(few("same", 0, 1000, 1000))
	p.CrossPoolPriorityThreshold = Milli(few("cross", 0, 1000, 1000, 5000))
	p.RemainingTimeWeight = Milli(few("kappa", 0, 100, 1000))
	p.MinPreemptScore = Milli(few("min", 500, 0, 3000))
	p.LabelPriorityThreshold = Milli(few("label", 0, 500, 4000))
	p.EnableCrossPoolPreemption = !chance(t, 5, "cross off")
	p.EnableLabelPreemption = !chance(t, 5, "label off")
	p.VictimCoverage = rapid.SampledFrom([]Coverage{CoverDeficit, CoverRequest}).Draw(t, "coverage")
	p.MinRuntimeSeconds = Milli(few("fresh", 0, 0, 0, 0, 0, 5_000))
	p.MaxPreemptionsPerTask = few("per task", 0, 0, 0, 0, 0, 1)
	p.MaxPreemptionsPerMinute = few("per minute", 0, 0, 0, 0, 0, 2)
	p.ProtectedPools = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 1, rapid.ID).Draw(t, "protected")
	if rapid.Bool().Draw(t, "rules") {
		p.LabelPreemptionRules = map[string]map[string][]string{"tier": {"a": {"b"}, "b": {"c"}}, "user": {"a": {"c"}}}
	}
	return p
}

func someWorld(t *rapid.T) world {
	w := world{policy: somePolicy(t)}
	for _, name := range []string{"a", "b", "c", "far"} {
		p := pool(name, someAmounts(t, name+" free", 1), plenty)
		if chance(t, 8, name+" small") {
			p.Ceiling = someAmounts(t, name+" ceiling", 2)
		}
		if chance(t, 5, name+" shrunk") {
			p.Free.CPU = -500
		}
		if name == "far" {
			p.Cluster = "far away"
		}
		p.Preempted = rapid.IntRange(0, 2).Draw(t, name+" preempted")
		w.pools = append(w.pools, p)
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "nodes") {
		room := someAmounts(t, fmt.Sprint("room ", i), 2)
		w.nodes = append(w.nodes, Node{ID: NodeID(fmt.Sprint("n", i)), Cluster: "local", Room: room, Total: room})
		if !chance(t, 4, fmt.Sprint("small ", i)) {
			w.nodes[i].Total = plenty
		}
	}
	w.nodes = append(w.nodes, Node{ID: "elsewhere", Cluster: "far away", Room: cpu(100), Total: cpu(100)})
	for i := range rapid.SampledFrom([]int{5, 6, 7, 8, 4, 3, 0}).Draw(t, "agents") {
		label := fmt.Sprint("agent ", i)
		a := Agent{
			ID: id(100 + i), Name: label,
			Pool:    rapid.SampledFrom([]string{"a", "b", "a", "b", "c", "a", "far", "nowhere"}).Draw(t, label+" pool"),
			Node:    rapid.SampledFrom([]NodeID{"n0", "n1", "n0", "n1", "n2", "", "elsewhere"}).Draw(t, label+" node"),
			Gives:   cpu(0.5).Add(someAmounts(t, label+" gives", 2)),
			Settled: !chance(t, 8, label+" unsettled"),
		}
		w.agents = append(w.agents, a)
		for j := range w.nodes { // what an agent holds, its node has in total
			if w.nodes[j].ID == a.Node {
				w.nodes[j].Total = w.nodes[j].Total.Add(a.Gives)
			}
		}
		for j := range rapid.SampledFrom([]int{1, 1, 1, 1, 2, 0}).Draw(t, label+" tasks") {
			w.tasks = append(w.tasks, someTask(t, i, j, a))
		}
	}
	return w
}

func someTask(t *rapid.T, i, j int, a Agent) Task {
	name := fmt.Sprintf("task %d.%d", i, j)
	task := Task{
		ID: id(10*i + j + 1), Name: name, Agent: a.ID, Pool: a.Pool,
		Priority:    500 * Milli(rapid.SampledFrom([]int{0, 1, 1, 2, 2, 4, 6, 12, 19}).Draw(t, name+" priority")),
		Labels:      someLabels(t, name),
		Start:       rapid.SampledFrom([]Time{0, later - 10_000, later - 1_000}).Draw(t, name+" start"),
		Estimate:    rapid.SampledFrom([]Time{0, 0, 5_001, 20_000}).Draw(t, name+" estimate"),
		Preemptions: rapid.IntRange(0, 1).Draw(t, name+" preemptions"),
	}
	if chance(t, 5, name+" has preemptors") {
		task.PreemptedBy = []ID{id(rapid.IntRange(1, 70).Draw(t, name+" preempted by"))}
	}
	return task
}

func someIncoming(t *rapid.T) Incoming {
	in := incoming(rapid.SampledFrom([]string{"a", "a", "a", "b"}).Draw(t, "pool"),
		rapid.SampledFrom([]float64{9, 10, 8.5, 7, 5, 4, 2.5, 1, 0}).Draw(t, "priority"), someLabels(t, "newcomer"), cpu(0.5).Add(someAmounts(t, "request", 4)))
	if chance(t, 10, "asks for nothing") {
		in.Request = Resources{}
	}
	if chance(t, 5, "was preempted") {
		in.PreemptedBy = []ID{id(rapid.IntRange(1, 70).Draw(t, "preempted by"))}
	}
	if chance(t, 10, "is live") {
		in.ID = id(rapid.IntRange(1, 70).Draw(t, "own id"))
	}
	return in
}

func TestDecideAgreesWithTryingEverything(t *testing.T) {
	seen := map[Outcome]int{}
	several := 0
	rapid.Check(t, func(t *rapid.T) {
		w, in := someWorld(t), someIncoming(t)
		d := w.core().Decide(in, later)
		agents := w.specAgents(in, later)
		seen[d.Outcome]++

		if w.specSolves(in, nil) {
			_, fits := w.specEnough(in, nil)
			if d.Outcome != Admit || !slices.Contains(fits, d.Node) || len(d.Victims) > 0 {
				t.Fatalf("it fits on %q as things are: %+v", fits, d)
			}
			return
		}
		if !w.specSolvable(in, agents) {
			if d.Outcome != Refuse || d.Refusal.Code == "" || d.Refusal.Message == "" {
				t.Fatalf("nothing helps: %+v", d)
			}
			if d.Refusal.Code == NoVictims != (len(agents) == 0) && d.Refusal.Code != RequestTooLarge && d.Refusal.Code != NoNodeLargeEnough {
				t.Fatalf("%d agents may be taken: %+v", len(agents), d.Refusal)
			}
			if d.Refusal.Short.IsZero() {
				t.Fatalf("nothing is short: %+v", d.Refusal)
			}
			return
		}
		if d.Outcome != Preempt {
			t.Fatalf("there is a way: %+v", d)
		}
		var gone []specAgent
		for _, v := range d.Victims {
			at := slices.IndexFunc(agents, func(a specAgent) bool { return a.ID == v.Agent })
			if at < 0 {
				t.Fatalf("%s may not be taken", v.AgentName)
			}
			gone = append(gone, agents[at])
		}
		quota, fits := w.specEnough(in, gone)
		if !quota || !slices.Contains(fits, d.Node) {
			t.Fatalf("not enough: quota %v, node %s of %q: %+v", quota, d.Node, fits, d)
		}
		for i := range gone {
			if w.specSolves(in, slices.Delete(slices.Clone(gone), i, i+1)) {
				t.Fatalf("%s can be spared: %+v", d.Victims[i].AgentName, d)
			}
		}
		best := slices.IndexFunc(agents, func(a specAgent) bool { return w.specSolves(in, []specAgent{a}) })
		if best >= 0 && (len(gone) != 1 || gone[0].ID != agents[best].ID) {
			t.Fatalf("%s alone is the best that is enough: %+v", agents[best].Name, d)
		}
		if !slices.IsSortedFunc(gone, func(a, b specAgent) int { return order(a.better(b, later)) }) {
			t.Fatalf("not best first: %+v", d)
		}
		if len(gone) > 1 {
			several++
		}
		checkBooks(t, w, in, d, gone)
	})
	if t.Failed() {
		return
	}
	if all := seen[Admit] + seen[Refuse] + seen[Preempt]; seen[Admit]*20 < all || seen[Refuse]*20 < all || several*20 < all {
		t.Errorf("the cases are one-sided: %v, %d with several victims", seen, several)
	}
	t.Logf("%v, %d with several victims", seen, several)
}

func order(before bool) int {
	if before {
		return -1
	}
	return 1
}

// checkBooks checks what the ledger will write: what is lent and taken is
// exactly what is missing.
func checkBooks(t *rapid.T, w world, in Incoming, d Decision, gone []specAgent) {
	takes := Resources{}
	for i, v := range d.Victims {
		takes = takes.Add(v.Takes)
		if !v.Gives.Equal(gone[i].Gives) || !v.Gives.Sub(v.Takes).Equal(v.Gives.Sub(v.Takes).Positive()) || !v.Takes.Equal(v.Takes.Positive()) {
			t.Fatalf("takes %v of %v", v.Takes, v.Gives)
		}
		if v.Loan != (v.Pool != in.Pool && !v.Takes.IsZero()) {
			t.Fatalf("loan is %v: %+v", v.Loan, v)
		}
		if int64(v.Score) != gone[i].score || v.Score != v.Tasks[0].Score {
			t.Fatalf("score %v, want %d: %+v", v.Score, gone[i].score, v.Tasks)
		}
		n := 0
		for _, task := range w.tasks {
			if task.Agent == v.Agent {
				n++
			}
		}
		if n != len(v.Tasks) {
			t.Fatalf("%d of %d tasks are listed: %+v", len(v.Tasks), n, v)
		}
	}
	if got, want := fmt.Sprint(amounts(takes)), fmt.Sprint(w.specMissing(in)); got != want || !takes.Equal(d.Deficit) {
		t.Fatalf("takes %s, missing %s, deficit %v", got, want, d.Deficit)
	}
}

func TestNothingDependsOnTheOrderOfArrival(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, in := someWorld(t), someIncoming(t)
		x := world{
			policy: w.policy,
			nodes:  rapid.Permutation(w.nodes).Draw(t, "nodes"),
			pools:  rapid.Permutation(w.pools).Draw(t, "pools"),
			agents: rapid.Permutation(w.agents).Draw(t, "agents"),
			tasks:  rapid.Permutation(w.tasks).Draw(t, "tasks"),
		}
		a, b := w.core(), x.core()
		for _, task := range x.tasks { // what changed, or left and came back, leaves no trace
			moved := task
			moved.Agent, moved.Priority = id(100), 0
			b.PutTask(moved)
			b.RemoveTask(moved.ID)
			b.PutTask(moved)
			b.PutTask(task)
		}
		if x, y := a.Decide(in, later), b.Decide(in, later); !reflect.DeepEqual(x, y) {
			t.Fatalf("%+v\n%+v", x, y)
		}
		if x, y := a.Candidates(in, later, 3), b.Candidates(in, later, 3); !reflect.DeepEqual(x, y) {
			t.Fatalf("%+v\n%+v", x, y)
		}
		if x, y := a.Explain(in, later, 0), b.Explain(in, later, 0); !reflect.DeepEqual(x, y) {
			t.Fatalf("%+v\n%+v", x, y)
		}
	})
}

func TestCandidatesAgreeWithTheTableOfRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, in := someWorld(t), someIncoming(t)
		got := w.core().Candidates(in, later, 0)
		want := 0
		for _, task := range w.tasks {
			score, reason, ok := w.specScore(in, task, task.Pool, later)
			at := slices.IndexFunc(got, func(c Candidate) bool { return c.Task == task.ID })
			if ok != (at >= 0) {
				t.Fatalf("%s: eligible %v, listed %v", task.Name, ok, at >= 0)
			}
			if ok {
				want++
				if int64(got[at].Score) != score || got[at].Reason != reason {
					t.Fatalf("%s: %+v, want %s with %d", task.Name, got[at], reason, score)
				}
			}
		}
		if len(got) != want {
			t.Fatalf("%d candidates, want %d", len(got), want)
		}
	})
}

func TestExplainAgreesWithDecideAndCandidates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, in := someWorld(t), someIncoming(t)
		c := w.core()
		verdicts := c.Explain(in, later, 0)
		if len(verdicts) != len(w.tasks) {
			t.Fatalf("%d verdicts on %d tasks", len(verdicts), len(w.tasks))
		}
		taken := map[ID]bool{}
		for _, v := range c.Decide(in, later).Victims {
			for _, task := range v.Tasks {
				taken[task.Task] = true
			}
		}
		eligible := map[ID]bool{}
		for _, a := range w.specAgents(in, later) {
			for _, task := range w.tasks {
				eligible[task.ID] = eligible[task.ID] || task.Agent == a.ID
			}
		}
		if in.Request.IsZero() {
			clear(eligible)
			for _, v := range c.Candidates(in, later, 0) {
				eligible[v.Task] = true
			}
		}
		for _, v := range verdicts {
			if v.Message == "" || v.Eligible != (v.Code == "") || v.Eligible != eligible[v.Task] || v.Taken != taken[v.Task] {
				t.Fatalf("eligible %v, taken %v: %+v", eligible[v.Task], taken[v.Task], v)
			}
			alone, ok := c.ExplainTask(in, v.Task, later)
			if !ok || !reflect.DeepEqual(alone, v) {
				t.Fatalf("%+v alone, %+v among others", alone, v)
			}
		}
	})
}

// What Explain promises about priority must be true: with the named priority
// the task can be taken, with a thousandth less it cannot.
func TestThePriorityItWouldNeedIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, in := someWorld(t), someIncoming(t)
		w.policy.MaxPreemptionsPerTask, w.policy.MinRuntimeSeconds, w.policy.MaxPreemptionsPerMinute = 0, 0, 0
		in.Request = Resources{}
		for _, v := range w.core().Explain(in, later, 0) {
			if v.Code != SafeBelowThreshold && v.Code != SafeLowScore {
				continue
			}
			var needed float64
			at := len(v.Message) - 1
			for v.Message[at] != ' ' {
				at--
			}
			if _, err := fmt.Sscan(v.Message[at:], &needed); err != nil {
				t.Fatalf("%q: %v", v.Message, err)
			}
			for change, want := range map[Milli]bool{0: true, -1: false} {
				in := in
				in.Priority = milli(needed) + change
				if got, _ := w.core().ExplainTask(in, v.Task, later); got.Eligible != want {
					t.Fatalf("%q, but with %v: %q", v.Message, in.Priority, got.Message)
				}
			}
		}
	})
}
