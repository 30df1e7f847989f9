package sched_test

import (
	"slices"
	"strings"
	"testing"

	. "github.com/schedulemesh/schedulemesh/sched"
)

func TestWhatFitsIsAdmitted(t *testing.T) {
	w := world{policy: DefaultPolicy(), pools: []Pool{pool("a", cpu(2), cpu(4))}}
	if d := w.core().Decide(incoming("a", 1, nil, cpu(2)), later); d.Outcome != Admit || d.Node != "" {
		t.Errorf("a cluster without known nodes: quota alone decides: %+v", d)
	}
	w.policy = patched(t, `{"victim_coverage":"request"}`)
	w.run("v", "a", 1, cpu(2))
	if d := w.core().Decide(incoming("a", 9, nil, cpu(2)), later); d.Outcome != Admit {
		t.Errorf("nothing is demanded when it fits: %+v", d)
	}
}

func TestPlacementFillsGapsAndLeavesGPUsToThoseWhoNeedThem(t *testing.T) {
	w := world{policy: DefaultPolicy(), pools: []Pool{pool("a", Resources{CPU: 99_000, GPU: 99_000}, Resources{})}}
	w.nodes = []Node{
		{ID: "1-idle", Cluster: "local", Room: cpu(8), Total: cpu(8)},
		{ID: "2-half", Cluster: "local", Room: cpu(4), Total: cpu(8)},
		{ID: "3-full", Cluster: "local", Room: cpu(0.5), Total: cpu(8)},
		{ID: "4-gpu", Cluster: "local", Room: Resources{CPU: 1000, GPU: 4000}, Total: Resources{CPU: 8000, GPU: 4000}},
		{ID: "5-half", Cluster: "local", Room: cpu(4), Total: cpu(8)},
		{ID: "0-elsewhere", Cluster: "other", Room: cpu(1), Total: cpu(8)},
	}
	for want, request := range map[NodeID]Resources{
		"2-half": cpu(1), "3-full": cpu(0.5), "1-idle": cpu(6), "4-gpu": gpu(1),
	} {
		if d := w.core().Decide(incoming("a", 1, nil, request), later); d.Outcome != Admit || d.Node != want {
			t.Errorf("%v goes to %s, want %s", request, d.Node, want)
		}
	}
}

func TestOnlyWhatIsMissingIsFreed(t *testing.T) {
	w := world{policy: DefaultPolicy(), pools: []Pool{pool("a", cpu(1), cpu(4))}}
	w.run("small", "a", 1, cpu(1))
	w.run("big", "a", 2, cpu(2))
	d := w.core().Decide(incoming("a", 9, nil, cpu(2)), later)
	if d.Outcome != Preempt || !slices.Equal(victims(d), []string{"small"}) || !d.Deficit.Equal(cpu(1)) {
		t.Errorf("%+v", d)
	}
	w.policy = patched(t, `{"victim_coverage":"request"}`)
	d = w.core().Decide(incoming("a", 9, nil, cpu(2)), later)
	if d.Outcome != Preempt || !slices.Equal(victims(d), []string{"big"}) || !d.Victims[0].Takes.Equal(cpu(1)) {
		t.Errorf("request coverage wants the whole request from its victims, and takes what is missing: %+v", d)
	}
}

func TestOneVictimThatIsEnoughBeatsBetterScoresThatAreNot(t *testing.T) {
	w := world{policy: DefaultPolicy(), pools: []Pool{pool("a", cpu(0), cpu(8))}}
	w.run("best-1", "a", 0, cpu(1))
	w.run("best-2", "a", 0, cpu(1))
	w.run("enough", "a", 3, cpu(2))
	w.run("enough-too", "a", 4, cpu(4))
	if d := w.core().Decide(incoming("a", 9, nil, cpu(2)), later); !slices.Equal(victims(d), []string{"enough"}) {
		t.Errorf("%q", victims(d))
	}
	if d := w.core().Decide(incoming("a", 9, nil, cpu(5)), later); !slices.Equal(victims(d), []string{"best-1", "enough-too"}) {
		t.Errorf("walking takes all four, sparing leaves two: %q", victims(d))
	}
}

func TestLoansComeFromPoolsOfTheSameClusterAndAreNoLargerThanNeeded(t *testing.T) {
	w := world{policy: DefaultPolicy()}
	w.pools = []Pool{pool("a", cpu(0), cpu(4)), pool("b", cpu(0), cpu(4)), {Name: "far", Cluster: "other", Ceiling: cpu(4)}}
	w.run("far", "far", 0, cpu(4))
	w.run("lender", "b", 1, cpu(2))
	w.run("own", "a", 2, cpu(1))
	d := w.core().Decide(incoming("a", 9, nil, cpu(2.5)), later)
	if !slices.Equal(victims(d), []string{"lender", "own"}) {
		t.Fatalf("%+v", d)
	}
	lender, own := d.Victims[0], d.Victims[1]
	if !lender.Loan || !lender.Takes.Equal(cpu(1.5)) || lender.Tasks[0].Reason != CrossPool {
		t.Errorf("what the own pool gives need not be lent: %+v", lender)
	}
	if own.Loan || !own.Takes.Equal(cpu(1)) {
		t.Errorf("%+v", own)
	}
	if d := w.core().Decide(incoming("a", 9, nil, cpu(4)), later); d.Refusal.Code != VictimsInsufficient || d.Refusal.OtherCluster != 1 || !d.Refusal.Short.Equal(cpu(1)) {
		t.Errorf("%+v", d.Refusal)
	}
}

// fleet has quota to spare and two nodes that are full.
func fleet() world {
	w := world{policy: DefaultPolicy(), pools: []Pool{pool("a", gpu(100), gpu(100)), pool("b", gpu(0), gpu(100))}}
	w.nodes = []Node{
		{ID: "n1", Cluster: "local", Room: gpu(1), Total: gpu(4)},
		{ID: "n2", Cluster: "local", Room: gpu(0), Total: gpu(4)},
	}
	return w
}

func TestRoomMustComeAboutOnOneNode(t *testing.T) {
	w := fleet()
	w.run("first-on-n1", "a", 1, gpu(1), on("n1"))
	w.run("first-on-n2", "a", 1.1, gpu(2), on("n2"))
	w.run("second-on-n1", "a", 2, gpu(1), on("n1"))
	w.run("second-on-n2", "a", 3, gpu(2), on("n2"))
	d := w.core().Decide(incoming("a", 9, nil, gpu(3)), later)
	if d.Outcome != Preempt || d.Node != "n1" || !slices.Equal(victims(d), []string{"first-on-n1", "second-on-n1"}) {
		t.Fatalf("%+v", d)
	}
	if !d.Deficit.IsZero() || !d.RoomDeficit.Equal(gpu(2)) || !d.Victims[0].Takes.IsZero() || d.Victims[0].Loan {
		t.Errorf("only room is missing, so nothing is booked: %+v", d)
	}
	if d := w.core().Decide(incoming("a", 9, nil, gpu(2)), later); d.Node != "n1" || !slices.Equal(victims(d), []string{"first-on-n1"}) {
		t.Errorf("%+v", d)
	}
}

func TestAVictimForRoomMayBeOfAnotherPoolWithoutALoan(t *testing.T) {
	w := fleet()
	w.run("neighbour", "b", 1, gpu(4), on("n2"))
	d := w.core().Decide(incoming("a", 9, nil, gpu(4)), later)
	if d.Outcome != Preempt || d.Node != "n2" || d.Victims[0].Loan || !d.Victims[0].Takes.IsZero() {
		t.Errorf("%+v", d)
	}
}

func TestQuotaMayComeFromAnywhereWhileRoomIsElsewhere(t *testing.T) {
	w := fleet()
	w.pools[0].Free = gpu(0)
	w.run("gives-quota", "a", 1, gpu(1), on("n2"))
	d := w.core().Decide(incoming("a", 9, nil, gpu(1)), later)
	if d.Outcome != Preempt || d.Node != "n1" && d.Node != "n2" || !slices.Equal(victims(d), []string{"gives-quota"}) {
		t.Errorf("%+v", d)
	}
	w.run("also-quota", "a", 2, gpu(1))
	w.run("room-on-n1", "a", 3, cpu(1), on("n1"))
	d = w.core().Decide(incoming("a", 9, nil, gpu(2)), later)
	if d.Outcome != Refuse || d.Refusal.Code != VictimsInsufficient || !d.Refusal.Short.Equal(gpu(1)) {
		t.Errorf("quota is there, but no node would have 2 gpu: %+v", d)
	}
}

func TestWhatMayNotBeTaken(t *testing.T) {
	for name, spoil := range map[string]func(*world){
		"an agent that is not settled":        func(w *world) { w.run("v", "a", 1, cpu(1), unsettled) },
		"an agent without a task":             func(w *world) { w.run("v", "a", 1, cpu(1)); w.tasks = nil },
		"an unmanaged agent":                  func(w *world) { w.run("v", "a", 1, Resources{}) },
		"a task whose agent is unknown":       func(w *world) { w.run("v", "a", 1, cpu(1)); w.agents = nil },
		"an agent of an unknown pool":         func(w *world) { w.run("v", "ghost", 1, cpu(1)) },
		"an agent that also runs a safe task": func(w *world) { w.run("v", "a", 1, cpu(1)); w.run("safe", "a", 9, cpu(0), sharing(id(1))) },
		"an agent of a protected pool":        func(w *world) { w.policy.ProtectedPools = []string{"b"}; w.run("v", "b", 1, cpu(1)) },
		"a task that says so, on an agent whose pool is protected": func(w *world) {
			w.policy.ProtectedPools = []string{"b"}
			w.run("v", "b", 1, cpu(1), func(t *Task, _ *Agent) { t.Pool = "a" })
		},
		"the newcomer itself":                func(w *world) { w.run("v", "a", 1, cpu(1)); w.tasks[0].ID = id(9_999) },
		"an agent that frees something else": func(w *world) { w.run("v", "a", 1, gpu(1)) },
	} {
		w := world{policy: DefaultPolicy(), pools: []Pool{pool("a", cpu(0), cpu(4)), pool("b", cpu(0), cpu(4))}}
		spoil(&w)
		if d := w.core().Decide(incoming("a", 9, nil, cpu(1)), later); d.Outcome != Refuse {
			t.Errorf("%s was taken: %+v", name, d.Victims)
		}
	}
}

func TestAnAgentIsWorthTheLeastOfItsTasks(t *testing.T) {
	w := world{policy: DefaultPolicy(), pools: []Pool{pool("a", cpu(0), cpu(4))}}
	w.run("low", "a", 0, cpu(1))
	w.run("but-shares-with-high", "a", 6, cpu(0), sharing(id(1)))
	w.run("middle", "a", 3, cpu(1))
	c := w.core()
	d := c.Decide(incoming("a", 9, nil, cpu(1)), later)
	if !slices.Equal(victims(d), []string{"middle"}) {
		t.Errorf("%+v", d)
	}
	d = c.Decide(incoming("a", 9, nil, cpu(2)), later)
	if len(d.Victims) != 2 || d.Victims[1].Score != 3_000_000 || !slices.Equal(names(d.Victims[1].Tasks), []string{"but-shares-with-high", "low"}) {
		t.Errorf("%+v", d)
	}
}

func TestAShrunkPoolAsksOnlyForWhatTheNewcomerUses(t *testing.T) {
	w := world{policy: DefaultPolicy(), pools: []Pool{pool("a", Resources{CPU: 1000, GPU: -2000}, Resources{CPU: 4000, GPU: 4000})}}
	if d := w.core().Decide(incoming("a", 1, nil, cpu(1)), later); d.Outcome != Admit {
		t.Errorf("it wants no gpu: %+v", d)
	}
	if d := w.core().Decide(incoming("a", 1, nil, gpu(1)), later); !d.Refusal.Short.Equal(gpu(3)) {
		t.Errorf("what is overdrawn is missing too: %+v", d)
	}
}

func TestRefusalsSayWhatIsMissingAndWhy(t *testing.T) {
	w := world{policy: patched(t, `{"protected_pools":["prod"]}`)}
	w.pools = []Pool{pool("a", cpu(1), cpu(4)), pool("b", cpu(0), cpu(4)), pool("prod", cpu(0), cpu(64))}
	for range 3 {
		w.run("p", "prod", 1, cpu(1))
	}
	w.run("near", "a", 4.5, cpu(1))
	w.run("near too", "a", 5, cpu(1))
	w.run("neighbour", "b", 1, cpu(1))
	for _, c := range []struct {
		name    string
		in      Incoming
		change  func(*world)
		code    Code
		message string
	}{
		{"no such pool", incoming("nope", 5, nil, cpu(1)), nil, UnknownPool, `there is no pool "nope"`},
		{"nothing eligible", incoming("a", 5, nil, cpu(2)), nil, NoVictims,
			"needs 2 cpu; 1 cpu is free in pool a; nothing may be preempted: 3 tasks are in protected pools, 2 in its pool are less than 1.0 priority below it, 1 in another pool is less than 5.0 priority below it"},
		{"nobody there", incoming("a", 5, nil, cpu(2)), func(w *world) { w.tasks = nil }, NoVictims,
			"needs 2 cpu; 1 cpu is free in pool a; nothing may be preempted: no other task is running"},
		{"not enough", incoming("a", 9, nil, Resources{CPU: 6000}), nil, VictimsInsufficient,
			"needs 6 cpu; 1 cpu is free in pool a; preempting all 3 tasks that may be would still leave 2 cpu missing; 3 tasks are in protected pools"},
		{"more than the pool and its neighbours", incoming("a", 9, nil, Resources{CPU: 9000}), nil, RequestTooLarge,
			"needs 9 cpu; pool a, with loans from all others, can have at most 8 cpu"},
		{"more than the pool, which may not borrow", incoming("a", 9, nil, Resources{CPU: 5000, GPU: 500}),
			func(w *world) { w.policy = patched(t, `{"enable_cross_pool_preemption":false}`) }, RequestTooLarge,
			"needs 5 cpu · 0.5 gpu; pool a can have at most 4 cpu · 0 gpu"},
		{"no machine has so much", incoming("a", 9, nil, cpu(3)), func(w *world) {
			w.nodes = []Node{{ID: "n1", Cluster: "local", Total: cpu(1)}, {ID: "n2", Cluster: "local", Total: cpu(2)}}
		}, NoNodeLargeEnough, "needs 3 cpu on one node; of the 2 in cluster local even the nearest lacks 1 cpu when empty"},
		{"quota but no room", incoming("a", 5, nil, cpu(1)), func(w *world) {
			w.nodes = []Node{{ID: "n1", Cluster: "local", Total: cpu(4)}, {ID: "n2", Cluster: "local", Room: cpu(0.5), Total: cpu(4)}}
		}, NoVictims,
			"needs 1 cpu on one node; pool a has the quota but no node has the room: the nearest lacks 0.5 cpu; nothing may be preempted: 3 tasks are in protected pools, 2 in its pool are less than 1.0 priority below it, 1 in another pool is less than 5.0 priority below it"},
	} {
		w := w
		if c.change != nil {
			c.change(&w)
		}
		d := w.core().Decide(c.in, later)
		if d.Outcome != Refuse || d.Refusal.Code != c.code || d.Refusal.Message != c.message {
			t.Errorf("%s: %s\n got %s\nwant %s", c.name, d.Refusal.Code, d.Refusal.Message, c.message)
		}
	}
}

func TestBorrowedQuotaIsNotTooLarge(t *testing.T) {
	// The pool has 4 of its own and holds a loan of 2.
	w := world{policy: patched(t, `{"enable_cross_pool_preemption":false}`), pools: []Pool{pool("a", cpu(3), cpu(4))}}
	w.run("v", "a", 1, cpu(3))
	if d := w.core().Decide(incoming("a", 9, nil, cpu(6)), later); d.Outcome != Preempt {
		t.Errorf("%+v", d)
	}
	w.pools[0].Free = cpu(6)
	w.nodes = []Node{{ID: "n", Cluster: "local", Total: cpu(8)}}
	if d := w.core().Decide(incoming("a", 0, nil, cpu(6)), later); d.Refusal.Code != NoVictims {
		t.Errorf("only room is missing: %+v", d)
	}
}

func TestNodesAreReplacedAdjustedAndRemoved(t *testing.T) {
	nodes := NewNodes()
	for _, id := range []NodeID{"b", "a", "c", "b"} {
		nodes.Put(Node{ID: id, Cluster: "local", Room: cpu(1)})
	}
	nodes.Put(Node{ID: "c", Cluster: "moved", Room: cpu(1)})
	nodes.Adjust("a", cpu(-3))
	nodes.Adjust("nobody", cpu(1))
	nodes.Remove("nobody")
	var got []string
	for n := range nodes.Of("local") {
		got = append(got, string(n.ID)+": "+n.Room.String())
	}
	if strings.Join(got, ", ") != "a: -2 cpu, b: 1 cpu" {
		t.Errorf("%q", got)
	}
	nodes.Remove("b")
	if _, there := nodes.Get("b"); there {
		t.Error("b is still there")
	}
	// A node of which only the room is known is large enough for what it has room for.
	c := NewCore(DefaultPolicy(), nodes)
	c.PutPool(Pool{Name: "a", Cluster: "moved", Free: cpu(1)})
	if d := c.Decide(incoming("a", 1, nil, cpu(1)), later); d.Outcome != Admit || d.Node != "c" {
		t.Errorf("%+v", d)
	}
}

func TestExplainSaysWhyEachTaskIsSafeAndWhatWouldChangeIt(t *testing.T) {
	w := world{policy: patched(t, `{"protected_pools":["production"],"min_runtime_seconds":30,"max_preemptions_per_task":3,
		"max_preemptions_per_minute":9,"min_preempt_score":2,"label_preemption_rules":{"tier":{"premium":["standard"],"standard":["low"]}}}`)}
	w.pools = []Pool{pool("a", cpu(0), cpu(9)), pool("b", cpu(0), cpu(9)), pool("production", cpu(0), cpu(9)), pool("tired", cpu(0), cpu(9)),
		{Name: "far", Cluster: "other"}}
	w.pools[3].Preempted = 9
	want := map[string]string{}
	say := func(name, pool string, priority float64, message string, change ...func(*Task, *Agent)) {
		w.run(name, pool, priority, cpu(1), change...)
		want[name] = message
	}
	say("1", "production", 1, "pool production is protected")
	say("2", "a", 4.5, "priority difference 0.5 is below 1.0; it would need priority 6.5")
	say("3", "b", 1, "priority difference 4.0 is below 5.0; it would need priority 6.0")
	say("4", "a", 1, "outranks you by label tier: premium > standard", labels(Labels{"tier": "premium"}))
	say("5", "a", 1, "it preempted this task before", func(t *Task, _ *Agent) { t.PreemptedBy = []ID{id(6)} })
	say("6", "a", 1, "it preempted a task that preempted this one before")
	say("7", "a", 1, "running for 3 s; safe until 30 s", started(later-3_000))
	say("8", "a", 1, "it was preempted 3 times already; 3 is the most", preempted(3))
	say("9", "tired", 0, "pool tired lost 9 tasks in the last minute; 9 is the most")
	say("10", "far", 0, "pool far is on cluster other; quota is not lent between clusters")
	say("11", "a", 1, "its agent is starting or stopping and cannot be taken", unsettled)
	say("12", "a", 1, "its agent holds no quota here: taking it would free nothing", func(_ *Task, a *Agent) { a.Gives = Resources{} })
	say("13", "a", 3.5, "score 1.5 is below 2.0; it would need priority 5.5")
	say("14", "a", 1, "same pool, priority difference 4.0, score 4.0: it makes way")
	say("15", "a", 2, "same pool, priority difference 3.0, score 3.0: eligible, but not needed or not enough")
	say("16", "a", 1, "its agent also runs 17, which is safe: priority difference -1.0 is below 1.0; it would need priority 8.0")
	say("17", "a", 6, "priority difference -1.0 is below 1.0; it would need priority 8.0", sharing(id(16)))
	say("18", "b", 9, "you outrank it by label tier: standard > low, score 0.5: eligible, but not needed or not enough", labels(Labels{"tier": "low"}))
	in := incoming("a", 5, Labels{"tier": "standard"}, cpu(1))
	in.PreemptedBy = []ID{id(5)}
	got := w.core().Explain(in, later, 0)
	for _, v := range got {
		if v.Message != want[v.TaskName] {
			t.Errorf("%s: got  %q\n   want %q", v.TaskName, v.Message, want[v.TaskName])
		}
	}
	if first := []string{got[0].TaskName, got[1].TaskName, got[2].TaskName}; strings.Join(first, " ") != "14 15 18" {
		t.Errorf("the eligible come first, best first: %q", first)
	}
	if got := w.core().Explain(in, later, 2); len(got) != 2 {
		t.Errorf("%d verdicts, want 2", len(got))
	}
}

// A placement group is a place like a node: its holder makes way for whoever fits there,
// and room elsewhere is no room.
func TestADecisionLooksAtThePlacesItIsTold(t *testing.T) {
	nodes := NewNodes()
	nodes.Put(Node{ID: "machine", Cluster: "local", Room: cpu(8), Total: cpu(8)})
	nodes.Put(Node{ID: "group", Cluster: "groups", Room: Resources{}, Total: cpu(2)})
	c := NewCore(DefaultPolicy(), nodes)
	c.PutPool(Pool{Name: "a", Cluster: "local", Free: cpu(8), Ceiling: cpu(10)})
	c.PutAgent(Agent{ID: id(1), Name: "holder", Pool: "a", Node: "group", Gives: cpu(2), Settled: true})
	c.PutTask(Task{ID: id(1), Name: "holder", Agent: id(1), Pool: "a", Priority: 1000})
	c.PutAgent(Agent{ID: id(2), Name: "other", Pool: "a", Node: "machine", Gives: cpu(2), Settled: true})
	c.PutTask(Task{ID: id(2), Name: "other", Agent: id(2), Pool: "a", Priority: 0})

	in := Incoming{ID: id(9), Pool: "a", Priority: 9000, Request: cpu(2), Rooms: "groups"}
	d := c.Decide(in, later)
	if d.Outcome != Preempt || d.Node != "group" || len(d.Victims) != 1 || d.Victims[0].AgentName != "holder" {
		t.Errorf("%+v", d)
	}
	in.Request = cpu(3)
	if d := c.Decide(in, later); d.Outcome != Refuse || d.Refusal.Code != NoNodeLargeEnough {
		t.Errorf("%+v", d)
	}
	in.Request, in.Rooms = cpu(2), "none"
	if d := c.Decide(in, later); d.Outcome != Refuse {
		t.Errorf("without a place: %+v", d)
	}
	in.Rooms = ""
	if d := c.Decide(in, later); d.Outcome != Admit || d.Node != "machine" {
		t.Errorf("%+v", d)
	}
}
