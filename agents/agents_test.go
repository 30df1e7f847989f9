package agents_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/agents"
	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/db"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/testdb"
)

// rig is a ledger, a worker pool and a cluster: the fake, or a real one.
type rig struct {
	*ledger.Ledger
	t     *testing.T
	db    *pgxpool.Pool
	b     bridge.Bridge
	fake  *bridge.Fake    // nil on real Ray
	proc  *bridge.Process // nil on the fake
	pool  *agents.Pool
	grace time.Duration
	// current is whoever gets the ledger's jobs.
	current atomic.Pointer[func([]ledger.Job)]
}

// each runs a behaviour on the fake and, where there is a Ray cluster to test on, on that.
func each(t *testing.T, f func(*testing.T, *rig)) {
	t.Run("fake", func(t *testing.T) { t.Parallel(); f(t, newRig(t, false)) })
	t.Run("ray", func(t *testing.T) {
		if os.Getenv("SCHEDULEMESH_TEST_RAY") == "" {
			if os.Getenv("CI") == "true" {
				t.Fatal("SCHEDULEMESH_TEST_RAY names no Ray cluster: `make test` starts one")
			}
			t.Skip("no Ray cluster to test on: run `make test`, or set SCHEDULEMESH_TEST_RAY and SCHEDULEMESH_PYTHON")
		}
		f(t, newRig(t, true))
	})
}

func newRig(t *testing.T, real bool) *rig {
	t.Helper()
	url := testdb.Migrated(t, db.Key(), db.Migrate)
	conns, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conns.Close)
	r := &rig{t: t, db: conns, grace: 3 * time.Second}
	r.openLedger()
	deployment, err := r.Deployment(t.Context())
	r.must(err)
	if real {
		dir, err := os.MkdirTemp("", "sm") // a socket's path must be short
		r.must(err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		level := slog.LevelError
		if testing.Verbose() {
			level = slog.LevelInfo
		}
		r.proc, err = bridge.StartProcess(bridge.ProcessConfig{Python: os.Getenv("SCHEDULEMESH_PYTHON"), Socket: filepath.Join(dir, "s"),
			RayAddress: os.Getenv("SCHEDULEMESH_TEST_RAY"), Deployment: deployment,
			Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))})
		r.must(err)
		r.b = r.proc.Bridge()
		t.Cleanup(func() {
			list, _ := r.b.List(context.Background())
			for _, a := range list {
				_ = r.b.Kill(context.Background(), a.LaunchID, 10*time.Second)
			}
			r.proc.Stop()
		})
	} else {
		r.fake = bridge.NewFakeCluster(bridge.Node{ID: "node-1", Alive: true, Total: bridge.Resources{"cpu": 8000, "memory": 8192}}).Bridge(deployment)
		r.b = r.fake
	}
	r.startPool()
	t.Cleanup(func() { _ = r.pool.Stop(context.Background()) })
	return r
}

// openLedger starts the ledger; its jobs reach whichever worker pool is there.
func (r *rig) openLedger() {
	r.t.Helper()
	l, err := ledger.Open(r.t.Context(), r.db, ledger.Options{Jobs: func(jobs []ledger.Job) {
		if take := r.current.Load(); take != nil {
			(*take)(jobs)
		}
	}})
	r.must(err)
	r.t.Cleanup(l.Close)
	r.Ledger = l
}

func (r *rig) startPool() {
	r.t.Helper()
	r.pool = agents.New(agents.Options{Ledger: r.Ledger, Bridge: r.b, URL: "http://test", Grace: r.grace})
	take := r.pool.Enqueue
	r.current.Store(&take)
	r.pool.Start()
	r.eventually("the bridge is up", 40*time.Second, func() bool { up, _ := r.pool.Up(); return up })
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) eventually(what string, limit time.Duration, ok func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			r.t.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (r *rig) makePool(name string, cpu float64) {
	r.t.Helper()
	capacity, err := sched.FromUnits(map[string]float64{"cpu": cpu})
	r.must(err)
	_, err = r.CreatePool(r.t.Context(), "default", ledger.PoolSpec{Name: name, Capacity: &capacity})
	r.must(err)
}

const classes = "schedulemesh.testing.agents:"

func task(id, pool, class string, cpu, priority float64, change ...func(*ledger.Submission)) ledger.Submission {
	request, _ := sched.FromUnits(map[string]float64{"cpu": cpu})
	s := ledger.Submission{TaskID: id, Pool: pool, Request: request, Priority: sched.Milli(priority * 1000), Spec: ledger.Spec{ActorClass: class}}
	for _, f := range change {
		f(&s)
	}
	return s
}

func entry(method string, kwargs string) func(*ledger.Submission) {
	return func(s *ledger.Submission) {
		s.Spec.Entry = &ledger.Entry{Method: method}
		if kwargs != "" {
			s.Spec.Entry.Kwargs = json.RawMessage(kwargs)
		}
	}
}

func requeueing(s *ledger.Submission) { s.OnPreempted = ledger.Requeue }
func quickly(s *ledger.Submission)    { s.LaunchTimeout = 3 * time.Second }

func (r *rig) submit(s ledger.Submission) ledger.Task {
	r.t.Helper()
	t, err := r.Submit(r.t.Context(), "default", s)
	r.must(err)
	return t
}

func (r *rig) becomes(id string, want ledger.State) ledger.Task {
	r.t.Helper()
	var t ledger.Task
	deadline := time.Now().Add(30 * time.Second)
	for {
		var err error
		t, err = r.Task(r.t.Context(), "default", id)
		r.must(err)
		if t.State == want {
			return t
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("task %s is %s/%s (%s: %s), want %s", id, t.State, t.Phase, t.Code, t.Reason, want)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// clean checks that nothing is left: no quota held in the pool, nothing to verify, no agent in the cluster.
func (r *rig) clean(pool string) {
	r.t.Helper()
	r.eventually("all quota is back", 20*time.Second, func() bool {
		p, err := r.Pool(r.t.Context(), "default", pool)
		r.must(err)
		for _, b := range p.Balances {
			if b.Used != 0 || b.Reserved != 0 || b.Borrowed != 0 || b.Lent != 0 {
				return false
			}
		}
		return true
	})
	r.verified()
	r.eventually("no agent is left", 20*time.Second, func() bool {
		list, err := r.b.List(r.t.Context())
		r.must(err)
		for _, a := range list {
			if a.State != bridge.StateGone {
				return false
			}
		}
		return true
	})
}

func (r *rig) verified() {
	r.t.Helper()
	diffs, err := r.Verify(context.Background())
	r.must(err)
	for _, d := range diffs {
		r.t.Error(d)
	}
}

func TestATaskRunsItsEntryAndCompletes(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.makePool("a", 4)
		r.submit(task("echo", "a", classes+"Echo", 1, 5, entry("run", `{"x": 1}`)))
		done := r.becomes("echo", ledger.Completed)
		if !strings.Contains(string(done.Result), `"x"`) {
			t.Errorf("result %s", done.Result)
		}
		r.clean("a")
	})
}

func TestAPreemptedTaskIsSavedStoppedAndResumesWhereItWas(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.makePool("a", 2)
		r.submit(task("low", "a", classes+"Counter", 2, 1, entry("run", ""), requeueing))
		r.becomes("low", ledger.Running)
		time.Sleep(100 * time.Millisecond) // lets it count some steps
		r.submit(task("high", "a", classes+"Echo", 2, 9))
		r.becomes("high", ledger.Running)
		low := r.becomes("low", ledger.Queued)
		var state struct{ Step int }
		r.must(json.Unmarshal(low.SavedState, &state))
		if r.proc != nil && state.Step < 2 {
			t.Errorf("saved state %s", low.SavedState)
		}
		page, err := r.Preemptions(t.Context(), "default", 10, "")
		r.must(err)
		if p := page.Items[0]; p.CancelSuccess == nil || !*p.CancelSuccess || p.SavedState == nil || p.RunningAt.IsZero() {
			t.Errorf("%+v", p)
		}
		_, err = r.Complete(t.Context(), "default", "high", "test")
		r.must(err)
		again := r.becomes("low", ledger.Running)
		if again.Attempt != 2 {
			t.Errorf("attempt %d", again.Attempt)
		}
		_, err = r.Cancel(t.Context(), "default", "low", "test")
		r.must(err)
		r.becomes("low", ledger.Cancelled)
		r.clean("a")
	})
}

func TestALaunchThatCannotWorkFailsWithItsReasonAndReturnsItsQuota(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.makePool("a", 100)
		for _, c := range []struct{ name, class, code string }{
			{"unknown-import-path", "no_such_module:Agent", "import_failed"},
			{"constructor-raises", classes + "RaisingConstructor", "constructor_failed"},
			{"constructor-never-returns", classes + "HangingConstructor", "launch_timeout"},
			{"takes-no-name", classes + "BadSignature", "invalid_class"},
		} {
			r.submit(task(c.name, "a", c.class, 1, 5, quickly))
			failed := r.becomes(c.name, ledger.Failed)
			if failed.Code != c.code || failed.Reason == "" {
				t.Errorf("%s: %s %q, want %s", c.name, failed.Code, failed.Reason, c.code)
			}
		}
		r.submit(task("entry-raises", "a", classes+"Failing", 1, 5, entry("run", "")))
		if failed := r.becomes("entry-raises", ledger.Failed); failed.Code != "entry_failed" || !strings.Contains(failed.Reason, "ValueError") {
			t.Errorf("%s %q", failed.Code, failed.Reason)
		}
		r.clean("a")
	})
}

func TestQuotaWithoutRoomOnAnyNodeIsRefusedSayingSo(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.makePool("a", 1000) // more than the cluster has
		_, err := r.Submit(t.Context(), "default", task("huge", "a", classes+"Echo", 500, 5))
		if !errors.Is(err, ledger.ErrNoNode) {
			t.Errorf("%v", err)
		}
		r.submit(task("most", "a", classes+"Echo", 7, 5))
		r.becomes("most", ledger.Running)
		_, err = r.Submit(t.Context(), "default", task("more", "a", classes+"Echo", 7, 5))
		if !errors.Is(err, ledger.ErrInsufficient) {
			t.Errorf("%v", err)
		}
		_, err = r.Complete(t.Context(), "default", "most", "test")
		r.must(err)
		r.clean("a")
	})
}

func TestAHangingCancelCostsItsTimeoutAndTheStateIsStillSaved(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		_, err := r.PutPolicy(t.Context(), "default", ledger.PolicyChange{Patch: json.RawMessage(`{"cancel_timeout": 0.3}`)})
		r.must(err)
		r.makePool("a", 2)
		r.submit(task("low", "a", classes+"HangingCancel", 2, 1, entry("run", "")))
		r.becomes("low", ledger.Running)
		r.submit(task("high", "a", classes+"Echo", 2, 9))
		r.becomes("high", ledger.Running)
		r.becomes("low", ledger.Preempted)
		page, err := r.Preemptions(t.Context(), "default", 10, "")
		r.must(err)
		if p := page.Items[0]; p.CancelSuccess == nil || *p.CancelSuccess || p.SavedState == nil {
			t.Errorf("%+v", p)
		}
		_, err = r.Complete(t.Context(), "default", "high", "test")
		r.must(err)
		r.clean("a")
	})
}

func TestVictimsComeBackWhenTheirPreemptorsClassIsBroken(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.makePool("a", 2)
		r.submit(task("low", "a", classes+"Counter", 2, 1, entry("run", "")))
		r.becomes("low", ledger.Running)
		r.submit(task("high", "a", classes+"RaisingConstructor", 2, 9))
		r.becomes("high", ledger.Failed)
		if back := r.becomes("low", ledger.Running); back.Attempt != 2 {
			t.Errorf("attempt %d", back.Attempt)
		}
		_, err := r.Complete(t.Context(), "default", "low", "test")
		r.must(err)
		r.clean("a")
	})
}

func TestAnAgentThatDiesFailsItsTask(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.makePool("a", 2)
		r.submit(task("dies", "a", classes+"Exiting", 1, 5, entry("run", "")))
		if failed := r.becomes("dies", ledger.Failed); failed.Code != "agent_died" {
			t.Errorf("%s %s", failed.Code, failed.Reason)
		}
		r.clean("a")
	})
}

func TestATaskWhoseNodeIsLostGoesOnElsewhere(t *testing.T) {
	r := newRig(t, false)
	r.fake.Cluster.AddNode(bridge.Node{ID: "node-2", Total: bridge.Resources{"cpu": 16000, "memory": 16384}})
	capacity := sched.Resources{CPU: 20000, Memory: 20480}
	_, err := r.CreatePool(t.Context(), "default", ledger.PoolSpec{Name: "a", Capacity: &capacity})
	r.must(err)
	r.eventually("both nodes are known", 10*time.Second, func() bool { nodes, err := r.Nodes(t.Context()); return err == nil && len(nodes) == 2 })
	again := task("again", "a", classes+"Counter", 6, 5, entry("run", ""))
	backoff := 10 * time.Millisecond
	again.OnFailure, again.RetryBackoff = ledger.Requeue, &backoff
	once := task("once", "a", classes+"Counter", 2, 5, entry("run", ""))
	r.submit(again)
	first := r.becomes("again", ledger.Running)
	r.submit(once)
	if on := r.becomes("once", ledger.Running).Node; on != first.Node {
		t.Fatalf("%s is not on %s", on, first.Node)
	}
	r.fake.Cluster.LoseNode(first.Node)
	if failed := r.becomes("once", ledger.Failed); failed.Code != "node_lost" || !strings.Contains(failed.Reason, first.Node) {
		t.Errorf("%s %s", failed.Code, failed.Reason)
	}
	r.eventually("it runs elsewhere", 20*time.Second, func() bool {
		now, err := r.Task(t.Context(), "default", "again")
		return err == nil && now.State == ledger.Running && now.Attempt == 2 && now.Node != first.Node
	})
	_, err = r.Cancel(t.Context(), "default", "again", "")
	r.must(err)
	r.becomes("again", ledger.Cancelled)
	r.clean("a")
}

func TestWithTheSidecarDownATaskFailsSayingSoAndAPreemptionIsPutBack(t *testing.T) {
	r := newRig(t, false)
	r.makePool("a", 2)
	r.submit(task("low", "a", classes+"Counter", 2, 1, entry("run", "")))
	r.becomes("low", ledger.Running)
	r.fake.Down()
	r.eventually("it is seen down", 5*time.Second, func() bool { up, _ := r.pool.Up(); return !up })
	r.submit(task("high", "a", classes+"Echo", 2, 9))
	if failed := r.becomes("high", ledger.Failed); failed.Code != "bridge_unavailable" {
		t.Errorf("%s %s", failed.Code, failed.Reason)
	}
	if low := r.becomes("low", ledger.Running); low.Attempt != 1 {
		t.Errorf("attempt %d", low.Attempt)
	}
	r.verified()
	r.makePool("b", 1)
	r.submit(task("other", "b", classes+"Echo", 1, 5))
	if failed := r.becomes("other", ledger.Failed); failed.Code != "bridge_unavailable" {
		t.Errorf("%s %s", failed.Code, failed.Reason)
	}
	r.fake.Up()
	_, err := r.Complete(t.Context(), "default", "low", "test")
	r.must(err)
	r.becomes("low", ledger.Completed)
	r.clean("a")
	r.clean("b")
}

func TestASidecarThatDiesIsStartedAgainAndFindsEverything(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.makePool("a", 4)
		r.submit(task("long", "a", classes+"Counter", 1, 5, entry("run", "")))
		r.submit(task("ends", "a", classes+"Counter", 1, 5, entry("run", `{"steps": 60, "step_seconds": 0.02}`)))
		long := r.becomes("long", ledger.Running)
		if r.proc != nil {
			r.becomes("ends", ledger.Running)
			p, err := os.FindProcess(r.proc.PID())
			r.must(err)
			r.must(p.Kill())
			r.becomes("ends", ledger.Completed)
		} else {
			r.fake.Restart()
		}
		r.eventually("the bridge is up again", 40*time.Second, func() bool { up, _ := r.pool.Up(); return up })
		if again := r.becomes("long", ledger.Running); again.Attempt != 1 || again.PID != long.PID {
			t.Errorf("it was launched again: attempt %d, pid %d and %d", again.Attempt, long.PID, again.PID)
		}
		for _, id := range []string{"long", "ends"} {
			_, err := r.Complete(t.Context(), "default", id, "test") // of what has ended: no change
			r.must(err)
			r.becomes(id, ledger.Completed)
		}
		r.clean("a")
	})
}

func TestPreemptionByHandLeavesTheAgent(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.makePool("a", 2)
		r.submit(task("t", "a", classes+"Counter", 1, 5, entry("run", "")))
		r.becomes("t", ledger.Running)
		p, err := r.Preempt(t.Context(), "default", ledger.PreemptRequest{TaskID: "t", Actor: "test"})
		r.must(err)
		if p.CancelSuccess == nil || !*p.CancelSuccess || p.SavedState == nil {
			t.Errorf("%+v", p)
		}
		after := r.becomes("t", ledger.Preempted)
		agent, err := r.Agent(t.Context(), "default", after.AgentName)
		r.must(err)
		if agent.State != ledger.Running {
			t.Errorf("agent %+v", agent)
		}
		r.must(r.DeleteAgent(t.Context(), "default", after.AgentName, false, false, "test"))
		r.clean("a")
	})
}
