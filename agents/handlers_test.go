package agents_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/agents"
	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

func callable(name string) *ledger.Handler {
	return &ledger.Handler{Name: name, Pickled: bridge.PickleOf("schedulemesh.testing.handlers", name)}
}

func (r *rig) handlers(pool string, preserver, restorer *ledger.Handler) {
	r.t.Helper()
	_, err := r.PutStateHandlers(r.t.Context(), "default", ledger.StateHandlers{Pool: pool, Preserver: preserver, Restorer: restorer}, "test")
	r.must(err)
}

func (r *rig) policy(patch string) {
	r.t.Helper()
	_, err := r.PutPolicy(r.t.Context(), "default", ledger.PolicyChange{Patch: json.RawMessage(patch)})
	r.must(err)
}

// lastPreemption is the newest one.
func (r *rig) lastPreemption() ledger.Preemption {
	r.t.Helper()
	page, err := r.Preemptions(r.t.Context(), "default", 1, "")
	r.must(err)
	p, err := r.Preemption(r.t.Context(), "default", page.Items[0].ID)
	r.must(err)
	return p
}

func fields(t *testing.T, state json.RawMessage) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal(state, &out); err != nil {
		t.Fatalf("state %.200s: %v", state, err)
	}
	return out
}

func withPayload(s *ledger.Submission) {
	s.Spec.Payload, s.Labels, s.Estimate = json.RawMessage(`{"n": [1, null]}`), sched.Labels{"tier": "batch"}, time.Minute
}

func TestThePreserverOfAPoolKeepsTheStateOfItsTasks(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.makePool("a", 2)
		r.handlers("a", callable("keep"), nil)
		r.submit(task("low", "a", classes+"Counter", 2, 1.5, entry("run", ""), requeueing, withPayload))
		running := r.becomes("low", ledger.Running)
		r.submit(task("high", "a", classes+"Echo", 2, 9))
		r.becomes("high", ledger.Running)
		low := r.becomes("low", ledger.Queued)
		got := fields(t, low.SavedState)
		started, _ := got["started_at"].(float64)
		if d := started - float64(running.StartedAt.UnixMicro())/1e6; d < -0.001 || d > 0.001 {
			t.Errorf("started_at is %v, it was %v", got["started_at"], running.StartedAt)
		}
		delete(got, "started_at")
		var want map[string]any
		r.must(json.Unmarshal([]byte(`{"task_id": "low", "agent_name": "`+running.AgentName+`", "pool_name": "a", "priority": 1.5, "labels": {"tier": "batch"}, "payload": {"n": [1, null]},
			"estimated_duration": 60, "attempt": 1, "kept_by": "keep", "type": "TaskState"}`), &want))
		if a, b := text(got), text(want); a != b {
			t.Errorf("kept %s, want %s", a, b)
		}
		if p := r.lastPreemption(); p.SaveError != "" || p.CancelSuccess == nil || !*p.CancelSuccess {
			t.Errorf("%+v", p)
		}
		_, err := r.Complete(t.Context(), "default", "high", "test")
		r.must(err)
		r.eventually("it ends: what a preserver kept is no state of a Counter", 30*time.Second, func() bool {
			low, err := r.Task(t.Context(), "default", "low")
			return err == nil && (low.State == ledger.Failed || low.State == ledger.Running)
		})
		_, err = r.Cancel(t.Context(), "default", "low", "test")
		r.must(err)
		r.clean("a")
	})
}

func text(v any) string {
	raw, _ := json.Marshal(v)
	return string(raw)
}

func TestAPreserverThatFailsLeavesItToTheAgentAndIsTold(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.makePool("a", 2)
		for name, said := range map[string]string{
			"raising": "ValueError: told to raise", "listing": "returned a list, it must return a dict", "nan": "state.deep.loss is nan",
			"exiting": "the worker process ended", "missing": "cannot be unpickled", "hanging": "did not return within",
		} {
			if name == "hanging" {
				r.policy(`{"save_timeout": 1}`)
			} else {
				r.policy(`{"save_timeout": 20}`)
			}
			r.handlers("a", callable(name), nil)
			r.submit(task("t-"+name, "a", classes+"Counter", 1, 5, entry("run", "")))
			r.becomes("t-"+name, ledger.Running)
			p, err := r.Preempt(t.Context(), "default", ledger.PreemptRequest{TaskID: "t-" + name})
			r.must(err)
			if !strings.Contains(p.SaveError, said) || !strings.Contains(p.SaveError, "its agent was asked instead") {
				t.Errorf("%s: %q does not say %q", name, p.SaveError, said)
			}
			if got := fields(t, p.SavedState); got["step"] == nil || got["task_id"] != "t-"+name || got["pool_name"] != "a" {
				t.Errorf("%s: kept %v", name, got)
			}
			r.must(r.DeleteAgent(t.Context(), "default", p.AgentName, true, false, "test"))
		}
		r.policy(`{"save_timeout": 20}`)
		r.handlers("a", &ledger.Handler{Name: "old", Pickled: []byte(bridge.PickledElsewhere)}, nil)
		r.submit(task("t-old", "a", classes+"Counter", 1, 5, entry("run", "")))
		r.becomes("t-old", ledger.Running)
		p, err := r.Preempt(t.Context(), "default", ledger.PreemptRequest{TaskID: "t-old"})
		r.must(err)
		if !strings.Contains(p.SaveError, "Python 2.7") || fields(t, p.SavedState)["step"] == nil {
			t.Errorf("%q, kept %s", p.SaveError, p.SavedState)
		}
		r.must(r.DeleteAgent(t.Context(), "default", p.AgentName, true, false, "test"))
		r.clean("a")
	})
}

func TestTwentyMegabytesOfStateAreKept(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.makePool("a", 2)
		r.handlers("a", callable("large"), nil)
		r.submit(task("t", "a", classes+"Counter", 1, 5, entry("run", "")))
		r.becomes("t", ledger.Running)
		p, err := r.Preempt(t.Context(), "default", ledger.PreemptRequest{TaskID: "t"})
		r.must(err)
		if got := fields(t, p.SavedState); p.SaveError != "" || len(got["weights"].(string)) != 20_000_000 || got["task_id"] != "t" {
			t.Errorf("%d bytes: %s", len(p.SavedState), p.SaveError)
		}
		r.must(r.DeleteAgent(t.Context(), "default", p.AgentName, true, false, "test"))
		r.clean("a")
	})
}

func TestATaskOnAnAgentOfOthersIsPreemptedAndItsStateKept(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		register := func(id, pool string) {
			_, err := r.Register(t.Context(), "default", ledger.Registration{TaskID: id, AgentName: "theirs-" + id, Pool: pool, Priority: 2000,
				Labels: sched.Labels{"tier": "batch"}, Payload: json.RawMessage(`{"file": "x"}`)})
			r.must(err)
		}
		r.handlers("elsewhere", callable("keep"), nil)
		register("kept", "elsewhere")
		p, err := r.Preempt(t.Context(), "default", ledger.PreemptRequest{TaskID: "kept"})
		r.must(err)
		got := fields(t, p.SavedState)
		if p.Phase != "gone" || p.CancelSuccess == nil || *p.CancelSuccess || !strings.Contains(p.CancelError, "theirs-kept is not managed here") || p.SaveError != "" {
			t.Errorf("%+v", p)
		}
		if got["kept_by"] != "keep" || got["agent_name"] != "theirs-kept" || text(got["payload"]) != `{"file":"x"}` || got["pool_name"] != "elsewhere" {
			t.Errorf("kept %v", got)
		}
		r.becomes("kept", ledger.Preempted)

		want := `{"labels":{"tier":"batch"},"payload":{"file":"x"},"pool_name":"nowhere","task_id":"plain"}`
		register("plain", "nowhere")
		p, err = r.Preempt(t.Context(), "default", ledger.PreemptRequest{AgentName: "theirs-plain"})
		r.must(err)
		if text(fields(t, p.SavedState)) != want || p.SaveError != "" {
			t.Errorf("kept %s: %s", p.SavedState, p.SaveError)
		}
		r.handlers("nowhere", callable("raising"), nil)
		register("plain", "nowhere")
		p, err = r.Preempt(t.Context(), "default", ledger.PreemptRequest{TaskID: "plain"})
		r.must(err)
		if text(fields(t, p.SavedState)) != want || !strings.Contains(p.SaveError, "told to raise") {
			t.Errorf("kept %s: %s", p.SavedState, p.SaveError)
		}
		r.verified()
	})
}

func TestATaskRegisteredOnAnAgentIsKeptUnderItsOwnName(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.makePool("a", 2)
		cpu, err := sched.FromUnits(map[string]float64{"cpu": 1})
		r.must(err)
		_, err = r.CreateAgent(t.Context(), "default", ledger.AgentSubmission{Name: "worker", Pool: "a", Request: cpu, Spec: ledger.Spec{ActorClass: classes + "Counter"}})
		r.must(err)
		r.eventually("it runs", 30*time.Second, func() bool {
			g, err := r.Agent(t.Context(), "default", "worker")
			return err == nil && g.State == ledger.Running
		})
		_, err = r.Register(t.Context(), "default", ledger.Registration{TaskID: "job", AgentName: "worker", Pool: "a", Priority: 2000})
		r.must(err)
		p, err := r.Preempt(t.Context(), "default", ledger.PreemptRequest{AgentName: "worker"})
		r.must(err)
		if got := fields(t, p.SavedState); got["task_id"] != "job" || got["pool_name"] != "a" || got["step"] == nil {
			t.Errorf("kept %v", got)
		}
		r.must(r.DeleteAgent(t.Context(), "default", "worker", true, false, "test"))
		r.clean("a")
	})
}

// Handlers are those of the moment at which a state is saved.
func TestHandlersReplacedDuringAPreemptionTakeEffectFromTheNextSaveOn(t *testing.T) {
	r := newRig(t, false)
	r.makePool("a", 2)
	r.handlers("a", callable("keep"), nil)
	var calls atomic.Int64
	r.fake.Intercept(func(_ context.Context, op, _ string) error {
		switch op {
		case "cancel": // not read yet
			r.handlers("a", callable("keep_async"), nil)
		case "call": // read already
			calls.Add(1)
			r.must(r.DeleteStateHandlers(context.Background(), "default", "a", "test"))
		}
		return nil
	})
	preempt := func(id string) ledger.Preemption {
		r.submit(task(id, "a", classes+"Counter", 1, 5, entry("run", "")))
		r.becomes(id, ledger.Running)
		p, err := r.Preempt(t.Context(), "default", ledger.PreemptRequest{TaskID: id})
		r.must(err)
		r.must(r.DeleteAgent(t.Context(), "default", p.AgentName, true, false, "test"))
		return p
	}
	if got := fields(t, preempt("one").SavedState); got["kept_by"] != "keep_async" {
		t.Errorf("kept %v", got)
	}
	r.fake.Intercept(nil)
	if got := fields(t, preempt("two").SavedState); got["step"] == nil || calls.Load() != 1 {
		t.Errorf("kept %v after %d calls", got, calls.Load())
	}
	r.clean("a")
}

func TestAPreserverWaitsForASidecarThatIsAway(t *testing.T) {
	r := newRig(t, false)
	r.makePool("a", 2)
	r.handlers("a", callable("keep"), nil)
	r.submit(task("t", "a", classes+"Counter", 1, 5, entry("run", "")))
	r.becomes("t", ledger.Running)
	var once atomic.Bool
	r.fake.Intercept(func(_ context.Context, op, _ string) error {
		if op == "call" && !once.Swap(true) {
			r.fake.Down()
			time.AfterFunc(200*time.Millisecond, r.fake.Up)
		}
		return nil
	})
	p, err := r.Preempt(t.Context(), "default", ledger.PreemptRequest{TaskID: "t"})
	r.must(err)
	if got := fields(t, p.SavedState); got["kept_by"] != "keep" || p.SaveError != "" {
		t.Errorf("kept %v: %s", got, p.SaveError)
	}
	r.must(r.DeleteAgent(t.Context(), "default", p.AgentName, true, false, "test"))
	r.clean("a")
}

// A server that ends between deciding and saving leaves the rest to the next one.
func TestAPreemptionOnAnAgentOfOthersIsFinishedByTheNextServer(t *testing.T) {
	r := newRig(t, false)
	r.must(r.pool.Stop(t.Context()))
	r.current.Store(nil)
	r.handlers("elsewhere", callable("keep"), nil)
	_, err := r.Register(t.Context(), "default", ledger.Registration{TaskID: "job", AgentName: "theirs", Pool: "elsewhere", Priority: 2000})
	r.must(err)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if p, err := r.Preempt(ctx, "default", ledger.PreemptRequest{TaskID: "job"}); err == nil && p.Phase != "saving" {
		t.Fatalf("%+v", p)
	}
	r.Close()
	r.openLedger()
	r.startPool()
	r.becomes("job", ledger.Preempted)
	if got := fields(t, r.lastPreemption().SavedState); got["kept_by"] != "keep" {
		t.Errorf("kept %v", got)
	}
	r.verified()
}

// seat gives the rig's bridge to a seat, which is how callers reach it.
func (r *rig) seat() *agents.Seat {
	r.t.Helper()
	r.must(r.pool.Stop(context.Background()))
	s := agents.NewSeat(agents.Options{Ledger: r.Ledger, URL: "http://test", Grace: r.grace}, func(context.Context) (bridge.Bridge, error) { return open{r.b}, nil })
	take := s.Enqueue
	r.current.Store(&take)
	s.Start()
	r.t.Cleanup(func() { _ = s.Stop(context.Background()) })
	r.eventually("the seat leads", 30*time.Second, func() bool { up, _ := s.Up(); return up })
	return s
}

// open is a bridge that others close.
type open struct{ bridge.Bridge }

func (open) Close() error { return nil }

func TestASavedStateIsGivenToItsPoolsRestorer(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		s := r.seat()
		restore := func(state string) ledger.Restored {
			t.Helper()
			got, err := s.Restore(t.Context(), "default", json.RawMessage(state), 10*time.Second)
			r.must(err)
			return got
		}
		state := `{"task_id": "t", "pool_name": "a", "step": 3}`
		if got := restore(state); got != (ledger.Restored{Success: true, TaskID: "t", Pool: "a"}) {
			t.Errorf("of a pool without handlers, or that never was: %+v", got)
		}
		r.handlers("a", callable("keep"), nil)
		if got := restore(state); !got.Success || got.Restorer != "" {
			t.Errorf("of a pool with a preserver only: %+v", got)
		}
		r.handlers("a", nil, callable("restore_nothing"))
		if got := restore(state); got != (ledger.Restored{Success: true, TaskID: "t", Pool: "a", Restorer: "restore_nothing"}) {
			t.Errorf("%+v", got)
		}
		for name, said := range map[string]string{"refuse": "the checkpoint is gone", "raising": "told to raise", "missing": "cannot be unpickled", "exiting": "worker process ended"} {
			r.handlers("a", nil, callable(name))
			if got := restore(state); got.Success || !strings.Contains(got.Error, said) || got.Restorer != name {
				t.Errorf("%s: %+v", name, got)
			}
		}
		if got := restore(`{"task_id": "t", "step": 3}`); got.Success || !strings.Contains(got.Error, "has no pool_name") {
			t.Errorf("without a pool: %+v", got)
		}
		if got := restore(`{"task_id": 7, "pool_name": "a"}`); got.Success || !strings.Contains(got.Error, "must be text") {
			t.Errorf("with a number for its id: %+v", got)
		}
		r.handlers("a", nil, callable("hanging"))
		got, err := s.Restore(t.Context(), "default", json.RawMessage(state), time.Second)
		r.must(err)
		if got.Success || !strings.Contains(got.Error, "did not return within") {
			t.Errorf("one that hangs: %+v", got)
		}
	})
}

func TestWithTheSidecarAwayAStateCannotBeRestored(t *testing.T) {
	r := newRig(t, false)
	s := r.seat()
	r.handlers("a", nil, callable("restore"))
	r.fake.Down()
	_, err := s.Restore(t.Context(), "default", json.RawMessage(`{"pool_name": "a"}`), time.Second)
	if ledger.CodeOf(err) != "bridge_unavailable" {
		t.Errorf("%v", err)
	}
	r.fake.Up()
}

func TestStateHandlersAreReplacedReadAndRemoved(t *testing.T) {
	r := newRig(t, false)
	put := func(h ledger.StateHandlers) error {
		_, err := r.PutStateHandlers(t.Context(), "default", h, "ann")
		return err
	}
	if err := put(ledger.StateHandlers{Pool: "a"}); !errors.Is(err, ledger.ErrInvalid) || !strings.Contains(err.Error(), "give at least one") {
		t.Errorf("neither: %v", err)
	}
	if err := put(ledger.StateHandlers{Pool: "a", Preserver: &ledger.Handler{Name: "x", Pickled: make([]byte, 33<<20)}}); !errors.Is(err, ledger.ErrInvalid) {
		t.Errorf("too large: %v", err)
	}
	r.must(put(ledger.StateHandlers{Pool: "a", Preserver: callable("keep"), Restorer: &ledger.Handler{Pickled: []byte("x")}}))
	got, err := r.StateHandlers(t.Context(), "default", "a")
	r.must(err)
	if got.Preserver == nil || got.Preserver.Name != "keep" || got.Restorer == nil || got.Restorer.Name != "restorer" || got.Preserver.Pickled != nil || got.UpdatedAt.IsZero() {
		t.Errorf("%+v", got)
	}
	r.must(put(ledger.StateHandlers{Pool: "a", Restorer: callable("restore")}))
	if got, err = r.StateHandlers(t.Context(), "default", "a"); err != nil || got.Preserver != nil || got.Restorer.Name != "restore" {
		t.Errorf("%+v, %v", got, err)
	}
	for range 2 {
		r.must(r.DeleteStateHandlers(t.Context(), "default", "a", "ann"))
	}
	if got, err = r.StateHandlers(t.Context(), "default", "a"); err != nil || got.Preserver != nil || got.Restorer != nil {
		t.Errorf("%+v, %v", got, err)
	}
	events, err := r.Events(t.Context(), "default", 0, 100)
	r.must(err)
	said := 0
	for _, e := range events {
		if e.Type == "pool.handlers" && e.Pool == "a" && e.Actor == "ann" {
			said++
		}
	}
	if said != 3 {
		t.Errorf("%d events tell of it, want 3", said)
	}
}
