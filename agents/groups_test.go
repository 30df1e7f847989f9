package agents_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/bridge/bridgetest"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

func inGroup(s *ledger.Submission) { s.Spec.UsePlacementGroup = true }

// grouped makes pool "g", which keeps placement groups, and gives word on them.
func (r *rig) grouped(cpu float64, config string) {
	r.t.Helper()
	capacity, err := sched.FromUnits(map[string]float64{"cpu": cpu})
	r.must(err)
	doc := json.RawMessage(config)
	_, err = r.CreatePool(r.t.Context(), "default", ledger.PoolSpec{Name: "g", Capacity: &capacity, PGPoolConfig: &doc})
	r.must(err)
	r.t.Cleanup(func() { // whatever became of the test
		list, _ := r.b.Groups(context.Background())
		for _, g := range list {
			_ = r.b.RemoveGroup(context.Background(), g.Name, 10*time.Second)
		}
	})
}

func (r *rig) groupsOf(pool string) []ledger.Group {
	r.t.Helper()
	g, err := r.PoolGroups(r.t.Context(), "default", pool, false)
	r.must(err)
	return g.Items
}

// group is the one group of a tier.
func (r *rig) group(tier string) ledger.Group {
	r.t.Helper()
	found := slices.DeleteFunc(r.groupsOf("g"), func(g ledger.Group) bool { return g.Tier != tier })
	if len(found) != 1 {
		r.t.Fatalf("%d %s groups: %+v", len(found), tier, found)
	}
	return found[0]
}

// stands waits until groups of pool "g" are so many, all of them made and known to Ray, nothing else of ours there.
func (r *rig) stands(n int) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%d groups stand", n), 30*time.Second, func() bool {
		var want, have []string
		for _, g := range r.groupsOf("g") {
			if g.State != "idle" && g.State != "occupied" || len(g.Nodes) == 0 {
				return false
			}
			want = append(want, g.Name)
		}
		list, err := r.b.Groups(r.t.Context())
		if err != nil {
			return false
		}
		for _, g := range list {
			if g.State == bridge.GroupCreated {
				have = append(have, g.Name)
			}
		}
		slices.Sort(want)
		slices.Sort(have)
		return len(want) == n && len(list) == n && slices.Equal(want, have)
	})
}

// lose removes a group behind our back.
func (r *rig) lose(name string) {
	r.t.Helper()
	if r.fake != nil {
		r.fake.Cluster.LoseGroup(name, "somebody removed it")
		return
	}
	deployment, err := r.Deployment(r.t.Context())
	r.must(err)
	bridgetest.LoseGroup(r.t, deployment, name)
}

// restart kills the sidecar without warning, and waits for the next.
func (r *rig) restart() {
	r.t.Helper()
	if r.fake != nil {
		r.fake.Restart()
	} else {
		was := r.proc.Status().Hello.Session
		p, err := os.FindProcess(r.proc.PID())
		r.must(err)
		r.must(p.Kill())
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
		defer cancel()
		_, err = r.proc.Wait(ctx, was)
		r.must(err)
		r.eventually("the break is noticed", 20*time.Second, func() bool { up, _ := r.pool.Up(); return !up || r.proc.Status().Hello.Session != was })
	}
	r.eventually("the bridge is up again", 40*time.Second, func() bool { up, _ := r.pool.Up(); return up })
}

// ungrouped deletes pool "g" and checks that nothing of its groups is left, by Ray's own word too.
func (r *rig) ungrouped(foreign int64) {
	r.t.Helper()
	r.clean("g")
	names := []string{}
	for _, g := range r.groupsOf("g") {
		names = append(names, g.Name)
	}
	r.must(r.DeletePool(r.t.Context(), "default", "g", "test"))
	r.eventually("no group is left", 30*time.Second, func() bool {
		list, err := r.b.Groups(r.t.Context())
		r.must(err)
		return len(list) == 0
	})
	if r.proc != nil {
		for _, name := range bridgetest.GroupsInRay(r.t) {
			if slices.Contains(names, name) {
				r.t.Errorf("Ray still has %s", name)
			}
		}
	}
	r.eventually("all room is back", 20*time.Second, func() bool { return r.foreign() <= foreign })
	r.verified()
}

// foreign is what others than us use in the cluster, in thousandths of a CPU.
func (r *rig) foreign() (sum int64) {
	r.t.Helper()
	r.eventually("what others use is known", 20*time.Second, func() bool {
		nodes, err := r.b.Nodes(r.t.Context())
		r.must(err)
		sum = 0
		for _, n := range nodes {
			if n.Alive && !n.ForeignKnown {
				return false
			}
			sum += n.Foreign["cpu"]
		}
		return true
	})
	return sum
}

func (r *rig) completed(id string) {
	r.t.Helper()
	_, err := r.Complete(r.t.Context(), "default", id, "test")
	r.must(err)
	r.becomes(id, ledger.Completed)
}

func TestTasksSitInPlacementGroups(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		before := r.foreign()
		r.grouped(4, `{"enable": true, "high_priority_pg_specs": [{"cpu": 2}], "max_dynamic_pgs": 1, "idle_timeout": 3600}`)
		r.stands(1)
		r.submit(task("high", "g", classes+"Counter", 2, 8, entry("run", ""), inGroup))
		r.submit(task("low", "g", classes+"Counter", 1, 3, entry("run", ""), inGroup))
		high, low := r.becomes("high", ledger.Running), r.becomes("low", ledger.Running)
		r.stands(2)
		reserved, dynamic := r.group("reserved"), r.group("dynamic")
		if !slices.Equal(reserved.TaskIDs, []string{"high"}) || !slices.Equal(dynamic.TaskIDs, []string{"low"}) || reserved.Nodes[0] != high.Node || dynamic.Nodes[0] != low.Node {
			t.Errorf("%+v, %+v", reserved, dynamic)
		}

		// A sidecar that dies takes nothing with it.
		r.restart()
		r.stands(2)
		if now := r.becomes("high", ledger.Running); now.PID != high.PID || now.Attempt != 1 {
			t.Errorf("%+v", now)
		}

		// The next one sits where the last one sat.
		r.completed("low")
		r.submit(task("next", "g", classes+"Counter", 1, 3, entry("run", ""), inGroup))
		r.becomes("next", ledger.Running)
		if g := r.group("dynamic"); g.Name != dynamic.Name || g.Reuses != 1 {
			t.Errorf("%+v", g)
		}

		// Who is more important takes the place of who sits there.
		r.submit(task("top", "g", classes+"Counter", 2, 9.5, entry("run", ""), inGroup))
		r.becomes("top", ledger.Running)
		r.becomes("high", ledger.Preempted)
		if g := r.group("reserved"); g.Name != reserved.Name || g.Reuses != 1 || !slices.Equal(g.TaskIDs, []string{"top"}) {
			t.Errorf("%+v", g)
		}
		r.stands(2)
		r.verified()

		// A group that is destroyed with its agent.
		r.must(r.DeleteAgent(t.Context(), "default", r.becomes("next", ledger.Running).AgentName, true, true, "test"))
		r.stands(1)
		r.completed("top")
		r.stands(1)
		r.ungrouped(before)
	})
}

func TestAnOrdinaryTaskFindsTheRoomThatAGroupLeft(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		before := r.foreign()
		r.grouped(4, `{"enable": true, "max_dynamic_pgs": 2, "enable_pg_reuse": false}`)
		for i := range 3 {
			id := fmt.Sprint("t", i)
			r.submit(task(id, "g", classes+"Echo", 4, 3, inGroup))
			r.becomes(id, ledger.Running)
			r.stands(1)
			r.completed(id)
			r.stands(0) // not one is reused
		}
		r.submit(task("plain", "g", classes+"Echo", 4, 3))
		r.becomes("plain", ledger.Running)
		r.stands(0)
		r.completed("plain")
		r.ungrouped(before)
	})
}

func TestAGroupOfSeveralBundles(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		before := r.foreign()
		r.grouped(4, `{"enable": true, "high_priority_pg_specs": [{"bundles": [{"cpu": 1}, {"cpu": 2}], "strategy": "PACK"}], "max_dynamic_pgs": 0}`)
		r.stands(1)
		r.submit(task("all", "g", classes+"Counter", 3, 9, entry("run", ""), inGroup)) // more than any bundle has
		r.becomes("all", ledger.Running)
		if g := r.group("reserved"); len(g.Nodes) != 2 || g.State != "occupied" {
			t.Errorf("%+v", g)
		}
		r.completed("all")
		r.stands(1)
		r.ungrouped(before)
	})
}

func TestAGroupThatIsRemovedBehindOurBackIsMadeAgain(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		before := r.foreign()
		r.grouped(4, `{"enable": true, "high_priority_pg_specs": [{"cpu": 2}], "max_dynamic_pgs": 1}`)
		r.stands(1)
		first := r.group("reserved")
		r.lose(first.Name)
		r.eventually("it is made again", 20*time.Second, func() bool { g := r.group("reserved"); return g.Attempt == 2 && g.State == "idle" })
		r.stands(1)

		// With somebody in it: the task goes on in the next one, or fails saying why.
		backoff := 10 * time.Millisecond
		again := task("again", "g", classes+"Counter", 2, 9, entry("run", ""), inGroup)
		again.OnFailure, again.RetryBackoff = ledger.Requeue, &backoff
		r.submit(again)
		r.submit(task("once", "g", classes+"Counter", 1, 3, entry("run", ""), inGroup))
		r.becomes("again", ledger.Running)
		r.becomes("once", ledger.Running)
		r.stands(2)
		r.lose(r.group("dynamic").Name)
		r.lose(r.group("reserved").Name)
		if failed := r.becomes("once", ledger.Failed); failed.Code != "agent_died" || failed.Reason == "" {
			t.Errorf("%s: %s", failed.Code, failed.Reason)
		}
		// In the reserved one once it is made again, or in a dynamic one when that was quicker.
		r.eventually("it runs in the next group", 30*time.Second, func() bool {
			now, err := r.Task(t.Context(), "default", "again")
			r.must(err)
			sits := slices.ContainsFunc(r.groupsOf("g"), func(g ledger.Group) bool {
				return slices.Equal(g.TaskIDs, []string{"again"}) && g.State == "occupied"
			})
			return now.State == ledger.Running && now.Attempt > 1 && sits && r.group("reserved").Attempt >= 3
		})
		r.stands(len(r.groupsOf("g")))
		r.completed("again")
		r.ungrouped(before)
	})
}

func TestWhatHappenedToGroupsWhileNoSidecarWatchedIsPutRight(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		before := r.foreign()
		r.grouped(4, `{"enable": true, "high_priority_pg_specs": [{"cpu": 1}, {"cpu": 2}]}`)
		r.stands(2)
		// A stray: made by a server that died before it could write it down.
		_, err := r.b.EnsureGroup(t.Context(), bridge.GroupRequest{Name: fmt.Sprint("sm-stray-", time.Now().UnixNano(), ".1"), Bundles: []bridge.Resources{{"cpu": 1000}}})
		r.must(err)
		lost := r.groupsOf("g")[0]
		if r.fake != nil {
			r.fake.Down()
		}
		r.lose(lost.Name)
		r.restart()
		r.stands(2)
		for _, g := range r.groupsOf("g") {
			if want := map[bool]int{true: 2, false: 1}[g.UID == lost.UID]; g.Attempt != want {
				t.Errorf("%s is at attempt %d, want %d", g.Name, g.Attempt, want)
			}
		}
		r.ungrouped(before)
	})
}

func TestAGroupWithoutRoomFailsSayingSoAndIsTriedAgain(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		before := r.foreign()
		most := 0.0
		r.eventually("others leave some room", time.Minute, func() bool {
			nodes, err := r.b.Nodes(t.Context())
			r.must(err)
			most = 0
			for _, n := range nodes {
				most = max(most, float64(n.Total["cpu"]-n.Foreign["cpu"])/1000)
			}
			return most >= 2
		})
		cpu := math.Ceil(0.6 * most)
		r.grouped(2*cpu, fmt.Sprintf(`{"enable": true, "high_priority_pg_specs": [{"cpu": %g}, {"cpu": %g}], "creation_timeout": 0.5}`, cpu, cpu))
		r.eventually("one stands, the other failed", 20*time.Second, func() bool {
			states := []string{}
			for _, g := range r.groupsOf("g") {
				states = append(states, g.State)
				if g.State == "failed" && (g.Code != "group_timeout" || !strings.Contains(g.Reason, "room")) {
					t.Fatalf("%+v", g)
				}
			}
			slices.Sort(states)
			return slices.Equal(states, []string{"failed", "idle"})
		})
		list, err := r.b.Groups(t.Context())
		r.must(err)
		if len(list) != 1 {
			t.Errorf("left in Ray: %+v", list)
		}
		r.ungrouped(before)
	})
}

func TestAGroupWhoseNodeIsLostIsMadeElsewhere(t *testing.T) {
	t.Parallel()
	r := newRig(t, false)
	r.fake.Cluster.AddNode(bridge.Node{ID: "node-2", Total: bridge.Resources{"cpu": 8000, "memory": 8192}})
	r.grouped(4, `{"enable": true, "high_priority_pg_specs": [{"cpu": 2}]}`)
	r.stands(1)
	again := task("again", "g", classes+"Counter", 2, 9, entry("run", ""), inGroup)
	backoff := 10 * time.Millisecond
	again.OnFailure, again.RetryBackoff = ledger.Requeue, &backoff
	r.submit(again)
	on := r.becomes("again", ledger.Running).Node
	r.fake.Cluster.LoseNode(on)
	r.eventually("it runs elsewhere", 20*time.Second, func() bool {
		now, err := r.Task(t.Context(), "default", "again")
		r.must(err)
		return now.State == ledger.Running && now.Node != on && r.group("reserved").Nodes[0] == now.Node
	})
	r.stands(1)
	r.completed("again")
	r.ungrouped(0)
}

func TestGroupsAreMadeAndRemovedOnceTheSidecarIsBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, false)
	r.fake.Down()
	r.eventually("it is seen down", 5*time.Second, func() bool { up, _ := r.pool.Up(); return !up })
	r.grouped(4, `{"enable": true, "high_priority_pg_specs": [{"cpu": 2}]}`)
	r.fake.LoseReply("ensure_group")
	r.fake.Up()
	r.stands(1)
	if g := r.group("reserved"); g.Attempt != 1 {
		t.Errorf("%+v", g)
	}
	r.fake.Down()
	r.eventually("it is seen down", 5*time.Second, func() bool { up, _ := r.pool.Up(); return !up })
	doc := json.RawMessage(`{"enable": false}`)
	_, err := r.UpdatePool(t.Context(), "default", ledger.PoolSpec{Name: "g", PGPoolConfig: &doc})
	r.must(err)
	r.fake.LoseReply("remove_group")
	r.fake.Up()
	r.stands(0)
	r.ungrouped(0)
}

// A launch into a group that went the moment before fails, and nobody is sent there again.
func TestALaunchIntoAGroupThatJustWent(t *testing.T) {
	t.Parallel()
	r := newRig(t, false)
	r.grouped(4, `{"enable": true, "high_priority_pg_specs": [{"cpu": 2}], "max_dynamic_pgs": 0}`)
	r.stands(1)
	was := r.group("reserved")
	r.fake.Intercept(func(_ context.Context, op, _ string) error {
		if op == "launch" {
			return &bridge.Error{Code: bridge.CodeGroupLost, Message: "placement group " + was.Name + " is not there"}
		}
		return nil
	})
	r.submit(task("t", "g", classes+"Echo", 2, 9, inGroup))
	if failed := r.becomes("t", ledger.Failed); failed.Code != "group_lost" {
		t.Errorf("%s: %s", failed.Code, failed.Reason)
	}
	r.fake.Intercept(nil)
	r.eventually("it is made again", 20*time.Second, func() bool { return r.group("reserved").Attempt == 2 })
	r.restart() // has both compared
	r.eventually("what is left of the old one goes", 20*time.Second, func() bool {
		list, err := r.b.Groups(t.Context())
		r.must(err)
		return len(list) == 1 && list[0].Name != was.Name
	})
	_, err := r.Submit(t.Context(), "default", task("t2", "g", classes+"Echo", 2, 9, inGroup))
	if err != nil && !errors.Is(err, ledger.ErrInsufficient) {
		t.Error(err)
	}
	r.becomes("t2", ledger.Running)
	r.completed("t2")
	r.ungrouped(0)
}
