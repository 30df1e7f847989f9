package ledger_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// rlhf is the pool of the story: 6 CPUs on a machine with 8, two groups kept for what is
// important, two more for the rest.
func (w *world) rlhf(config string) {
	w.t.Helper()
	w.must(w.SetNodes(w.t.Context(), "local", []sched.Node{{ID: "node-1", Cluster: "local", Total: units(8, 16384), Room: units(8, 16384)}}))
	capacity, doc := units(6, 8192), json.RawMessage(config)
	_, err := w.CreatePool(w.t.Context(), "default", ledger.PoolSpec{Name: "rlhf", Capacity: &capacity, PGPoolConfig: &doc})
	w.must(err)
	w.settle()
}

const rlhfConfig = `{"enable": true, "high_priority_pg_specs": [{"cpu": 2, "memory": 2048}, {"cpu": 2, "memory": 2048}], "enable_dynamic_pgs": true, "max_dynamic_pgs": 2, "enable_pg_reuse": true}`

func units(cpu, memory float64) sched.Resources {
	r, err := sched.FromUnits(map[string]float64{"cpu": cpu, "memory": memory})
	if err != nil {
		panic(err)
	}
	return r
}

func role(id, role string, cpu, memory, priority float64, estimate time.Duration, change ...func(*ledger.Submission)) ledger.Submission {
	s := ledger.Submission{TaskID: id, Pool: "rlhf", Request: units(cpu, memory), Priority: sched.Milli(priority * 1000), Labels: sched.Labels{"role": role},
		Estimate: estimate, Spec: ledger.Spec{ActorClass: "m:C"}}
	for _, f := range change {
		f(&s)
	}
	return s
}

func grouped(s *ledger.Submission) { s.Spec.UsePlacementGroup = true }
func noQuota(s *ledger.Submission) { s.Spec.KeepQuota = true }

func (w *world) groups() ledger.Groups {
	w.t.Helper()
	g, err := w.PoolGroups(w.t.Context(), "default", "rlhf", false)
	w.must(err)
	return g
}

// in says in which groups tasks sit: "reserved: t1 idle; dynamic: t2".
func (w *world) seats() string {
	w.t.Helper()
	found := map[string][]string{}
	for _, g := range w.groups().Items {
		who := strings.Join(g.TaskIDs, "+")
		if who == "" {
			who = g.State
		}
		found[g.Tier] = append(found[g.Tier], who)
	}
	slices.Sort(found["reserved"])
	slices.Sort(found["dynamic"])
	return fmt.Sprintf("reserved: %s; dynamic: %s", strings.Join(found["reserved"], " "), strings.Join(found["dynamic"], " "))
}

func (w *world) seated(want string) {
	w.t.Helper()
	if got := w.seats(); got != want {
		w.t.Fatalf("groups are\n%s, want\n%s", got, want)
	}
}

func TestThePlacementGroupStory(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.rlhf(rlhfConfig)
	w.policy(`{"label_preemption_rules": {"role": {"train": ["reward", "rollout"], "reward": ["rollout"]}}, "cancel_timeout": 0.5, "enable_cross_pool_preemption": false}`)
	w.seated("reserved: idle idle; dynamic: ")

	w.run(role("rollout-00", "rollout", 1.5, 1024, 3, 10*time.Second, grouped, noQuota))
	w.run(role("rollout-01", "rollout", 1.5, 1024, 3, 20*time.Second, grouped, noQuota))
	w.run(role("reward-00", "reward", 2, 2048, 8.5, 90*time.Second, grouped, noQuota))
	w.seated("reserved: idle reward-00; dynamic: rollout-00 rollout-01")
	w.verified()

	// The pool lacks quota: the path through groups refuses, the usual one preempts.
	_, err := w.Submit(t.Context(), "default", role("train-00", "train", 2, 2048, 9, 25*time.Second, grouped, noQuota))
	if !errors.Is(err, ledger.ErrInsufficient) || !strings.Contains(err.Error(), "preempt_for_quota") {
		t.Fatal(err)
	}
	w.run(role("train-00", "train", 2, 2048, 9, 25*time.Second))
	w.state("reward-00", ledger.Preempted)
	w.seated("reserved: idle train-00; dynamic: rollout-00 rollout-01")

	_, err = w.Submit(t.Context(), "default", role("rollout-extra-00", "rollout", 1.5, 1024, 4.5, 10*time.Second, grouped, noQuota))
	if !errors.Is(err, ledger.ErrInsufficient) {
		t.Fatal(err)
	}
	w.run(role("rollout-extra-00", "rollout", 1.5, 1024, 4.5, 10*time.Second))
	w.state("rollout-01", ledger.Preempted)
	w.seated("reserved: idle train-00; dynamic: rollout-00 rollout-extra-00")
	stats, err := w.Stats(t.Context(), "default")
	w.must(err)
	if stats.Total != 2 || stats.RunningTasks != 3 {
		t.Errorf("%+v", stats)
	}
	if sum := w.groups().Sum(); sum.Total != 4 || sum.Available != 1 || sum.Allocated != 3 || sum.Created != 4 || sum.Reuses == 0 {
		t.Errorf("%+v", sum)
	}
	w.verified()

	for _, id := range []string{"train-00", "rollout-00", "rollout-extra-00"} {
		_, err := w.Complete(t.Context(), "default", id, "test")
		w.must(err)
		w.settle()
	}
	w.seated("reserved: idle idle; dynamic: idle idle")
	w.must(w.DeletePool(t.Context(), "default", "rlhf", "test"))
	dropped := 0
	for {
		w.mu.Lock()
		n := len(w.jobs)
		w.mu.Unlock()
		if n == 0 {
			break
		}
		w.next(ledger.JobDropGroup)
		dropped++
	}
	if dropped != 4 {
		t.Errorf("%d groups are removed with the pool, want 4", dropped)
	}
	w.verified()
}

func TestAGroupsHolderMakesWayInPlace(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.rlhf(`{"enable": true, "high_priority_pg_specs": [{"cpu": 2, "memory": 2048}], "max_dynamic_pgs": 0}`)
	w.run(role("old", "x", 1.5, 1024, 8, 0, grouped))
	before := w.groups().Items[0].Name
	w.submit(role("new", "x", 2, 2048, 9.5, 0, grouped))
	w.seated("reserved: old+new; dynamic: ")
	w.settle()
	w.state("new", ledger.Running)
	w.state("old", ledger.Preempted)
	w.seated("reserved: new; dynamic: ")
	if g := w.groups().Items[0]; g.Name != before || g.Reuses != 1 || g.State != "occupied" {
		t.Errorf("%+v", g)
	}
	w.verified()
}

func TestALaunchFindsTheGroupItGoesInto(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.rlhf(`{"enable": true, "max_dynamic_pgs": 1}`)
	w.submit(role("a", "x", 1, 512, 3, 0, grouped))
	j := w.next(ledger.JobLaunch)
	if j.Group == nil || j.Node != "node-1" || j.Group.Node != "node-1" || !j.Group.Bundles[0].Equal(units(1, 512)) {
		t.Fatalf("%+v", j)
	}
	w.act(j)
	w.seated("reserved: ; dynamic: a")
	// The only dynamic group is taken, by somebody as important: nothing is left.
	_, err := w.Submit(t.Context(), "default", role("b", "x", 1, 512, 3, 0, grouped))
	if !errors.Is(err, ledger.ErrInsufficient) {
		t.Fatal(err)
	}
	_, err = w.Submit(t.Context(), "default", role("c", "x", 1, 512, 3, 0, grouped, queueing))
	w.must(err)
	w.state("c", ledger.Queued)
	_, err = w.Complete(t.Context(), "default", "a", "test")
	w.must(err)
	w.settle()
	w.state("c", ledger.Running)
	if g := w.groups().Items[0]; g.Reuses != 1 {
		t.Errorf("%+v", g)
	}
	w.verified()
}

func TestAGroupThatCannotBeMadeFailsItsTaskAndIsRemoved(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.rlhf(`{"enable": true, "max_dynamic_pgs": 1}`)
	w.submit(role("a", "x", 1, 512, 3, 0, grouped))
	j := w.next(ledger.JobLaunch)
	w.must(w.LaunchFailed(t.Context(), j.UID, j.Attempt, "group_timeout", "no room"))
	failed := w.state("a", ledger.Failed)
	if failed.Code != "group_timeout" {
		t.Errorf("%+v", failed)
	}
	w.act(w.next(ledger.JobDropGroup))
	w.seated("reserved: ; dynamic: ")
	w.verified()
}

func TestAReservedGroupThatFailsOrIsLostIsMadeAgain(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.Close()
	var ahead atomic.Int64
	var err error
	w.Ledger, err = ledger.Open(t.Context(), w.db, ledger.Options{Jobs: w.announce, Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	w.must(err)
	t.Cleanup(w.Ledger.Close)
	w.must(w.SetNodes(t.Context(), "local", []sched.Node{{ID: "node-1", Cluster: "local", Total: units(8, 16384), Room: units(8, 16384)}}))
	capacity, doc := units(6, 8192), json.RawMessage(`{"enable": true, "high_priority_pg_specs": [{"cpu": 2}]}`)
	_, err = w.CreatePool(t.Context(), "default", ledger.PoolSpec{Name: "rlhf", Capacity: &capacity, PGPoolConfig: &doc})
	w.must(err)
	j := w.next(ledger.JobMakeGroup)
	w.must(w.GroupFailed(t.Context(), j.UID, j.Attempt, "group_timeout", "no room"))
	w.seated("reserved: failed; dynamic: ")
	ahead.Store(int64(11 * time.Second))
	eventually(t, "it is tried again", 20*time.Second, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.jobs) > 0 })
	j = w.next(ledger.JobMakeGroup)
	if j.Attempt != 2 {
		t.Errorf("attempt %d", j.Attempt)
	}
	w.act(j)
	w.seated("reserved: idle; dynamic: ")
	w.must(w.GroupLost(t.Context(), j.UID, j.Attempt, "its node is gone"))
	j = w.next(ledger.JobMakeGroup)
	w.act(j)
	w.seated("reserved: idle; dynamic: ")
	if err := w.GroupLost(t.Context(), j.UID, 1, "late"); !errors.Is(err, ledger.ErrUnknownGroup) {
		t.Errorf("a report on an attempt that is over: %v", err)
	}
	w.verified()
}

func TestADestroyedGroupGoesWithItsAgentAndComesBackWhenNeeded(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.rlhf(rlhfConfig)
	w.run(role("train", "train", 2, 2048, 9, 0, grouped))
	w.run(role("roll", "rollout", 1, 512, 3, 0, grouped))
	w.must(w.DeleteAgent(t.Context(), "default", "train", true, true, "test"))
	w.must(w.DeleteAgent(t.Context(), "default", "roll", true, true, "test"))
	w.settle()
	w.seated("reserved: idle removed; dynamic: ")
	w.run(role("t1", "train", 2, 2048, 9, 0, grouped))
	w.run(role("t2", "train", 2, 2048, 9, 0, grouped))
	w.seated("reserved: t1 t2; dynamic: ")
	w.verified()
}

func TestChangingTheConfigurationDisturbsNobody(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.rlhf(rlhfConfig)
	w.run(role("train", "train", 2, 2048, 9, 0, grouped))
	w.run(role("r1", "rollout", 1, 512, 3, 0, grouped))
	w.run(role("r2", "rollout", 1, 512, 3, 0, grouped))
	doc := json.RawMessage(`{"enable": true, "high_priority_pg_specs": [], "max_dynamic_pgs": 1}`)
	_, err := w.UpdatePool(t.Context(), "default", ledger.PoolSpec{Name: "rlhf", PGPoolConfig: &doc})
	w.must(err)
	w.settle()
	w.seated("reserved: train; dynamic: r1 r2") // the idle reserved one is gone, the others are in use
	for _, id := range []string{"train", "r1", "r2"} {
		w.state(id, ledger.Running)
		_, err := w.Complete(t.Context(), "default", id, "test")
		w.must(err)
		w.settle()
	}
	w.seated("reserved: ; dynamic: idle")
	off := json.RawMessage(`{"enable": false}`)
	_, err = w.UpdatePool(t.Context(), "default", ledger.PoolSpec{Name: "rlhf", PGPoolConfig: &off})
	w.must(err)
	w.settle()
	w.seated("reserved: ; dynamic: ")
	w.run(role("plain", "x", 6, 512, 3, 0, grouped)) // without groups it is a task like any other
	w.verified()
}

func TestFewerDynamicGroupsThanAreInUse(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.rlhf(`{"enable": true, "max_dynamic_pgs": 3}`)
	for _, id := range []string{"a", "b", "c"} {
		w.run(role(id, "x", 1, 512, 3, 0, grouped))
	}
	end := func(id string) {
		_, err := w.Complete(t.Context(), "default", id, "test")
		w.must(err)
		w.settle()
	}
	end("a")
	w.seated("reserved: ; dynamic: b c idle")
	doc := json.RawMessage(`{"enable": true, "max_dynamic_pgs": 1}`)
	_, err := w.UpdatePool(t.Context(), "default", ledger.PoolSpec{Name: "rlhf", PGPoolConfig: &doc})
	w.must(err)
	w.settle()
	w.seated("reserved: ; dynamic: b c") // the idle one at once, one of the others when it is free
	end("b")
	end("c")
	w.seated("reserved: ; dynamic: idle")
	w.verified()
}

func TestWithoutReuseEachAgentGetsAFreshGroup(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.rlhf(`{"enable": true, "high_priority_pg_specs": [{"cpu": 2, "memory": 2048}], "enable_pg_reuse": false}`)
	for i := range 3 {
		id := fmt.Sprint("t", i)
		w.run(role(id, "train", 2, 2048, 9, 0, grouped))
		_, err := w.Complete(t.Context(), "default", id, "test")
		w.must(err)
		w.settle()
		w.seated("reserved: idle; dynamic: ")
	}
	if g := w.groups().Items[0]; g.Attempt != 4 || g.Reuses != 0 || g.Made != 4 || g.Removed != 3 {
		t.Errorf("%+v", g)
	}
	w.verified()
}

func TestTwoForTheLastGroup(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.rlhf(`{"enable": true, "max_dynamic_pgs": 1}`)
	type answer struct{ err error }
	answers := make(chan answer, 2)
	for i := range 2 {
		go func() {
			_, err := w.Submit(t.Context(), "default", role(fmt.Sprint("t", i), "x", 1, 512, 3, 0, grouped))
			answers <- answer{err}
		}()
	}
	refused := 0
	for range 2 {
		if a := <-answers; errors.Is(a.err, ledger.ErrInsufficient) {
			refused++
		} else if a.err != nil {
			t.Error(a.err)
		}
	}
	if refused != 1 {
		t.Errorf("%d were refused", refused)
	}
	w.settle()
	w.verified()
}

func TestIdleDynamicGroupsGoAfterAWhileOrForRoom(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.rlhf(`{"enable": true, "idle_timeout": 0.05}`)
	w.run(role("a", "x", 1, 512, 3, 0, grouped))
	_, err := w.Complete(t.Context(), "default", "a", "test")
	w.must(err)
	eventually(t, "the idle group is gone", 20*time.Second, func() bool { w.settle(); return w.seats() == "reserved: ; dynamic: " })

	doc := json.RawMessage(`{"enable": true, "idle_timeout": 3600}`)
	_, err = w.UpdatePool(t.Context(), "default", ledger.PoolSpec{Name: "rlhf", PGPoolConfig: &doc})
	w.must(err)
	w.run(role("b", "x", 4, 512, 3, 0, grouped))
	_, err = w.Complete(t.Context(), "default", "b", "test")
	w.must(err)
	w.settle()
	w.seated("reserved: ; dynamic: idle")
	w.submit(role("large", "x", 6, 512, 3, 0, queueing)) // 8 CPUs, 4 of them in the idle group
	w.state("large", ledger.Queued)
	w.settle()
	w.state("large", ledger.Running)
	w.verified()
}

func TestGroupsAreThereAfterARestart(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.rlhf(rlhfConfig)
	w.run(role("train", "train", 2, 2048, 9, 0, grouped))
	w.run(role("roll", "rollout", 1.5, 1024, 3, 0, grouped))
	w.submit(role("new", "train", 2, 2048, 9, 0, grouped)) // is launching when the server dies
	w2 := w.restarted()
	w2.jobs = nil
	w2.must(w2.SetNodes(t.Context(), "local", []sched.Node{{ID: "node-1", Cluster: "local", Total: units(8, 16384), Room: units(8, 16384)}}))
	w2.seated("reserved: new train; dynamic: roll")
	jobs, err := w2.Work(t.Context())
	w2.must(err)
	if len(jobs) != 1 || jobs[0].Kind != ledger.JobLaunch || jobs[0].Group == nil {
		t.Fatalf("%+v", jobs)
	}
	w2.act(jobs[0])
	w2.state("new", ledger.Running)
	w2.run(role("roll2", "rollout", 0.5, 512, 3, 0, grouped))
	w2.seated("reserved: new train; dynamic: roll roll2")
	w2.verified()
}

// A server dies between the making of a pool and that of its groups: the next one makes them.
func TestReservedGroupsThatWereNeverMadeAreMadeAfterARestart(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.rlhf(`{"enable": true}`)
	_, err := w.db.Exec(t.Context(), `UPDATE pools SET pg_pool_config = $1 WHERE name = 'rlhf'`, rlhfConfig)
	w.must(err)
	w = w.restarted()
	w.must(w.SetNodes(t.Context(), "local", []sched.Node{{ID: "node-1", Cluster: "local", Total: units(8, 16384), Room: units(8, 16384)}}))
	for end := time.Now().Add(20 * time.Second); w.seats() != "reserved: idle idle; dynamic: " && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		w.settle()
	}
	w.seated("reserved: idle idle; dynamic: ")
	w.verified()
}

func TestPlacementGroupConfigurationsThatAreWrong(t *testing.T) {
	t.Parallel()
	for doc, says := range map[string]string{
		`{"enable": 1}`:           "cannot be read",
		`{"max": 1}`:              "unknown field",
		`{"max_dynamic_pgs": -1}`: "max_dynamic_pgs: is -1",
		`{"high_priority_pg_specs": [{"cpu": 0}]}`:                                 "reserves nothing",
		`{"high_priority_pg_specs": [{"cpu": -1}]}`:                                "high_priority_pg_specs[0]",
		`{"high_priority_pg_specs": [{}]}`:                                         "reserves nothing",
		`{"high_priority_pg_specs": [3]}`:                                          "must be an object",
		`{"high_priority_pg_specs": [{"bundles": []}]}`:                            "is empty",
		`{"high_priority_pg_specs": [{"bundles": [{"cpu": 1}], "strategy": 1}]}`:   "strategy",
		`{"high_priority_pg_specs": [{"bundles": [{"cpu": 1}], "strategy": "X"}]}`: "must be one of",
		`{"high_priority_pg_specs": [{"cpu": 7}]}`:                                 "more than the pool has",
		`{"creation_timeout": 0}`:                                                  "creation_timeout",
		`{"idle_timeout": -1}`:                                                     "idle_timeout",
		`{"high_priority_threshold": 1e300}`:                                       "high_priority_threshold",
	} {
		t.Run(doc, func(t *testing.T) {
			w := open(t)
			capacity, raw := units(6, 8192), json.RawMessage(doc)
			_, err := w.CreatePool(t.Context(), "default", ledger.PoolSpec{Name: "p", Capacity: &capacity, PGPoolConfig: &raw})
			if !errors.Is(err, ledger.ErrInvalid) || !strings.Contains(err.Error(), says) {
				t.Errorf("%v, want it to say %q", err, says)
			}
		})
	}
}
