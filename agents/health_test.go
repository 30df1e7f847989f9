package agents_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/agents"
	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// stick has an agent's process stop answering.
func (r *rig) stick(name string) {
	r.t.Helper()
	a := r.status(name)
	if r.fake != nil {
		r.fake.Cluster.Stick(a.LaunchID)
		return
	}
	r.must(syscall.Kill(a.PID, syscall.SIGSTOP))
}

// end has it die.
func (r *rig) end(name string) {
	r.t.Helper()
	a := r.status(name)
	if r.fake != nil {
		r.fake.Cluster.Die(a.LaunchID, "its process ended")
		return
	}
	r.must(syscall.Kill(a.PID, syscall.SIGKILL))
}

func (r *rig) status(name string) bridge.AgentStatus {
	r.t.Helper()
	list, err := r.b.List(r.t.Context())
	r.must(err)
	i := slices.IndexFunc(list, func(a bridge.AgentStatus) bool { return a.AgentName == name && a.State == bridge.StateReady })
	if i < 0 {
		r.t.Fatalf("no agent %s is ready: %+v", name, list)
	}
	return list[i]
}

func (r *rig) waiting(name, pool, class string) ledger.Agent {
	r.t.Helper()
	cpu, err := sched.FromUnits(map[string]float64{"cpu": 1})
	r.must(err)
	_, err = r.CreateAgent(r.t.Context(), "default", ledger.AgentSubmission{Name: name, Pool: pool, Request: cpu, Labels: sched.Labels{"kind": "w"}, Spec: ledger.Spec{ActorClass: class}})
	r.must(err)
	return r.agentBecomes(name, ledger.Running)
}

func (r *rig) agentBecomes(name string, state ledger.State) (g ledger.Agent) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("agent %s is %s", name, state), 40*time.Second, func() bool {
		var err error
		g, err = r.Agent(r.t.Context(), "default", name)
		r.must(err)
		return g.State == state
	})
	return g
}

func (r *rig) health(s *agents.Seat, timeout time.Duration, recreate bool) ledger.Health {
	r.t.Helper()
	h, err := s.EnsureHealth(r.t.Context(), "default", timeout, recreate, "ann")
	r.must(err)
	return h
}

// saved gives a task a state to go on from.
func (r *rig) saved(id string) {
	r.t.Helper()
	_, err := r.db.Exec(r.t.Context(), `UPDATE tasks SET saved_state = '{"step": 41}' WHERE task_id = $1`, id)
	r.must(err)
}

// holdKills has kills wait until the channel is closed.
func (r *rig) holdKills() chan struct{} {
	hold := make(chan struct{})
	r.fake.Intercept(func(ctx context.Context, op, _ string) error {
		if op == "kill" {
			select {
			case <-hold:
			case <-ctx.Done():
			}
		}
		return nil
	})
	return hold
}

func TestAgentsThatDoNotAnswerAreToldOfAndMadeAgain(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.makePool("a", 4)
		s := r.seat()
		r.waiting("worker", "a", classes+"Counter")
		r.waiting("fine", "a", classes+"Counter")
		r.submit(task("t", "a", classes+"Counter", 1, 5, entry("run", "")))
		stuck := r.becomes("t", ledger.Running)
		r.saved("t")
		_, err := r.Register(t.Context(), "default", ledger.Registration{TaskID: "guest", AgentName: "worker", Pool: "a", Priority: 2000})
		r.must(err)
		if h := r.health(s, 5*time.Second, true); h.Checked != 3 || len(h.Healthy) != 3 || len(h.Unhealthy)+len(h.Removed) != 0 {
			t.Errorf("while all is well: %+v", h)
		}
		before := r.status("worker")
		r.stick("worker")
		r.stick(stuck.AgentName)

		began := time.Now()
		h := r.health(s, time.Second, false)
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("it took %s", d)
		}
		if len(h.Unhealthy) != 2 || len(h.Removed)+len(h.Recreated) != 0 || !slices.Equal(h.Healthy, []string{"fine"}) {
			t.Errorf("told only: %+v", h)
		}
		if one := h.Unhealthy[0]; one.Code != "unhealthy" || !strings.Contains(one.Reason, "did not answer its ping within 1s") {
			t.Errorf("%+v", one)
		}
		if still := r.becomes("t", ledger.Running); still.Attempt != 1 {
			t.Errorf("it was touched: %+v", still)
		}

		h = r.health(s, time.Second, true)
		names := []string{stuck.AgentName, "worker"}
		slices.Sort(names)
		slices.Sort(h.Removed)
		slices.Sort(h.Recreated)
		if !slices.Equal(h.Removed, names) || !slices.Equal(h.Recreated, names) {
			t.Errorf("%+v", h)
		}
		r.eventually("the task runs again", 40*time.Second, func() bool {
			again, err := r.Task(t.Context(), "default", "t")
			r.must(err)
			return again.State == ledger.Running && again.Attempt == 2
		})
		r.eventually("the worker is there again", 40*time.Second, func() bool {
			g, err := r.Agent(t.Context(), "default", "worker")
			r.must(err)
			return g.State == ledger.Running && g.PID != before.PID && g.Labels["kind"] == "w"
		})
		if got := r.becomes("guest", ledger.Failed); got.Code != "agent_gone" {
			t.Errorf("what ran on it: %s %s", got.Code, got.Reason)
		}
		state, err := r.b.SaveState(t.Context(), r.status(stuck.AgentName).LaunchID, 5*time.Second)
		r.must(err)
		if step, _ := fields(t, state.State)["step"].(float64); step < 41 {
			t.Errorf("it did not go on from where it was: %s", state.State)
		}
		events, err := r.TaskEvents(t.Context(), "default", "t")
		r.must(err)
		if !slices.ContainsFunc(events, func(e ledger.Event) bool {
			return e.Code == "unhealthy" && e.Actor == "ann" && strings.Contains(e.Message, "did not answer")
		}) {
			t.Errorf("the timeline does not say what happened: %+v", events)
		}
		if h := r.health(s, 5*time.Second, true); len(h.Healthy) != 3 || len(h.Unhealthy) != 0 {
			t.Errorf("afterwards: %+v", h)
		}
		r.verified()
		for _, name := range []string{"worker", "fine", stuck.AgentName} {
			r.must(r.DeleteAgent(t.Context(), "default", name, true, false, "test"))
		}
		r.clean("a")
	})
}

func TestAnAgentThatStartsForTooLongIsMadeAgain(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.makePool("a", 2)
		s := r.seat()
		r.submit(task("slow", "a", classes+"HangingConstructor", 1, 5))
		r.becomes("slow", ledger.Launching)
		if h := r.health(s, time.Minute, true); len(h.Starting) != 1 || len(h.Unhealthy) != 0 {
			t.Errorf("while it may: %+v", h)
		}
		time.Sleep(1100 * time.Millisecond)
		if h := r.health(s, time.Second, true); len(h.Recreated) != 1 || !strings.Contains(h.Unhealthy[0].Reason, "it has been starting for") {
			t.Errorf("%+v", h)
		}
		r.eventually("it is tried again", 40*time.Second, func() bool {
			again, err := r.Task(t.Context(), "default", "slow")
			r.must(err)
			return again.Attempt == 2 && again.State == ledger.Launching
		})
		_, err := r.Cancel(t.Context(), "default", "slow", "test")
		r.must(err)
		r.becomes("slow", ledger.Cancelled)
		r.clean("a")
	})
}

func TestAgentsThatDiedAndNobodyReplacedAreMadeAgain(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.makePool("a", 4)
		s := r.seat()
		r.waiting("worker", "a", classes+"Counter")
		r.waiting("replaced", "a", classes+"Counter")
		r.waiting("deleted", "a", classes+"Counter")
		r.submit(task("t", "a", classes+"Counter", 1, 5, entry("run", "")))
		dies := r.becomes("t", ledger.Running)
		for _, name := range []string{"worker", "replaced", dies.AgentName} {
			r.end(name)
			r.agentBecomes(name, ledger.Failed)
		}
		r.waiting("replaced", "a", classes+"Counter")
		r.must(r.DeleteAgent(t.Context(), "default", "deleted", false, false, "test"))
		r.agentBecomes("deleted", ledger.Cancelled)

		h := r.health(s, 5*time.Second, false)
		if len(h.Unhealthy) != 2 || h.Unhealthy[0].Code != "agent_died" || len(h.Recreated) != 0 {
			t.Errorf("told only: %+v", h)
		}
		h = r.health(s, 5*time.Second, true)
		if len(h.Recreated) != 2 || len(h.Removed) != 0 {
			t.Errorf("%+v", h)
		}
		if again := r.becomes("t", ledger.Running); again.Attempt != 2 {
			t.Errorf("attempt %d", again.Attempt)
		}
		r.agentBecomes("worker", ledger.Running)
		if h := r.health(s, 5*time.Second, true); len(h.Unhealthy) != 0 || len(h.Recreated) != 0 {
			t.Errorf("afterwards: %+v", h)
		}
		r.verified()
		for _, name := range []string{"worker", "replaced", dies.AgentName} {
			r.must(r.DeleteAgent(t.Context(), "default", name, true, false, "test"))
		}
		r.clean("a")
	})
}

func TestADeadAgentWithoutRoomIsToldOfUntilThereIsRoom(t *testing.T) {
	r := newRig(t, false)
	r.makePool("a", 1)
	s := r.seat()
	r.waiting("worker", "a", classes+"Counter")
	r.end("worker")
	r.agentBecomes("worker", ledger.Failed)
	r.waiting("other", "a", classes+"Counter")
	h := r.health(s, time.Second, true)
	if len(h.Recreated) != 0 || h.Unhealthy[0].Code != "insufficient_resources" || !strings.Contains(h.Unhealthy[0].Reason, "could not be made again") {
		t.Errorf("%+v", h)
	}
	r.must(r.DeleteAgent(t.Context(), "default", "other", false, false, "test"))
	r.agentBecomes("other", ledger.Cancelled)
	if h := r.health(s, time.Second, true); !slices.Equal(h.Recreated, []string{"worker"}) {
		t.Errorf("%+v", h)
	}
	r.agentBecomes("worker", ledger.Running)
	r.must(r.DeleteAgent(t.Context(), "default", "worker", false, false, "test"))
	r.clean("a")
}

func TestWhatIsCancelledWhileItsAgentIsRemovedDoesNotComeBack(t *testing.T) {
	r := newRig(t, false)
	r.makePool("a", 3)
	s := r.seat()
	r.waiting("worker", "a", classes+"Counter")
	r.submit(task("t", "a", classes+"Counter", 1, 5, entry("run", "")))
	stuck := r.becomes("t", ledger.Running)
	r.stick("worker")
	r.stick(stuck.AgentName)
	hold := r.holdKills()
	if h := r.health(s, time.Second, true); len(h.Removed) != 2 {
		t.Fatalf("%+v", h)
	}
	if h := r.health(s, time.Second, true); len(h.Ending) != 2 || len(h.Unhealthy) != 0 {
		t.Errorf("asked again: %+v", h)
	}
	_, err := r.Cancel(t.Context(), "default", "t", "test")
	r.must(err)
	r.must(r.DeleteAgent(t.Context(), "default", "worker", false, false, "test"))
	close(hold)
	r.becomes("t", ledger.Cancelled)
	r.agentBecomes("worker", ledger.Cancelled)
	r.clean("a")
}

// An agent that its task left behind has no class to be made of.
func TestAStuckAgentThatATaskLeftIsRemovedOnly(t *testing.T) {
	r := newRig(t, false)
	r.makePool("a", 1)
	s := r.seat()
	r.submit(task("t", "a", classes+"Counter", 1, 5, entry("run", "")))
	r.becomes("t", ledger.Running)
	p, err := r.Preempt(t.Context(), "default", ledger.PreemptRequest{TaskID: "t"})
	r.must(err)
	r.stick(p.AgentName)
	if h := r.health(s, time.Second, true); len(h.Removed) != 1 || len(h.Recreated) != 0 {
		t.Errorf("%+v", h)
	}
	r.agentBecomes(p.AgentName, ledger.Cancelled)
	r.clean("a")
}

func TestWithTheSidecarAwayNothingIsRemoved(t *testing.T) {
	r := newRig(t, false)
	r.makePool("a", 8)
	s := r.seat()
	for i := range 5 {
		r.waiting(g(i), "a", classes+"Counter")
	}
	check := func(what string) {
		t.Helper()
		if _, err := s.EnsureHealth(t.Context(), "default", time.Second, true, "ann"); ledger.CodeOf(err) != "bridge_unavailable" {
			t.Errorf("%s: %v", what, err)
		}
	}
	r.stick("worker-1")
	r.fake.LoseReply("ping")
	check("an answer that was lost")
	r.fake.Down()
	check("a sidecar that is down")
	r.eventually("it is seen down", 5*time.Second, func() bool { up, _ := s.Up(); return !up })
	check("one that is known to be down")
	r.fake.Up()
	r.eventually("it is up again", 10*time.Second, func() bool { up, _ := s.Up(); return up })
	if h := r.health(s, time.Second, false); len(h.Healthy) != 4 || len(h.Unhealthy) != 1 {
		t.Errorf("%+v", h)
	}
	for i := range 5 {
		if a := r.agentBecomes(g(i), ledger.Running); a.Code != "" {
			t.Errorf("%+v", a)
		}
		r.must(r.DeleteAgent(t.Context(), "default", g(i), false, false, "test"))
	}
	r.clean("a")
}

// g names an agent.
func g(i int) string { return fmt.Sprint("worker-", i) }

func TestManySilentAgentsAreAskedTogether(t *testing.T) {
	r := newRig(t, false)
	_, err := r.CreatePool(t.Context(), "default", ledger.PoolSpec{Name: "a", Capacity: &sched.Resources{CPU: 1000}})
	r.must(err)
	s := r.seat()
	const n = 60
	for i := range n {
		_, err := r.CreateAgent(t.Context(), "default", ledger.AgentSubmission{Name: g(i), Pool: "a", Request: sched.Resources{CPU: 1}, Spec: ledger.Spec{ActorClass: classes + "Counter"}})
		r.must(err)
	}
	for i := range n {
		r.agentBecomes(g(i), ledger.Running)
		r.stick(g(i))
	}
	began := time.Now()
	if h := r.health(s, time.Second, false); len(h.Unhealthy) != n {
		t.Errorf("%d are unhealthy", len(h.Unhealthy))
	}
	if d := time.Since(began); d > 4*time.Second {
		t.Errorf("%d pings of a second took %s", n, d)
	}
	for i := range n {
		r.must(r.DeleteAgent(t.Context(), "default", g(i), false, false, "test"))
	}
	r.clean("a")
}
