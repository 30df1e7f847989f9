package ledger_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// restarted closes the server and starts the next one on the same database, with its work.
func (w *world) restarted() *world {
	w.t.Helper()
	w.Close()
	next := reopen(w.t, w.db)
	jobs, err := next.Work(w.t.Context())
	next.must(err)
	next.announce(jobs)
	return next
}

// settled carries out jobs until nothing moves, but for the given number of handovers
// at most: a loop would never end by itself.
func (w *world) settledWithin(handovers int) {
	w.t.Helper()
	for {
		w.mu.Lock()
		if len(w.jobs) == 0 {
			w.mu.Unlock()
			return
		}
		j := w.jobs[0]
		w.jobs = w.jobs[1:]
		w.mu.Unlock()
		if j.Kind == ledger.JobTake {
			if handovers--; handovers < 0 {
				w.t.Fatalf("%s is taken once more: this never ends", j.TaskID)
			}
		}
		w.act(j)
	}
}

func (w *world) preemptions() int64 {
	w.t.Helper()
	s, err := w.Stats(w.t.Context(), "default")
	w.must(err)
	return s.Total
}

// nudge lets the queues move.
func (w *world) nudge(pool string) {
	w.t.Helper()
	p, err := w.Pool(w.t.Context(), "default", pool)
	w.must(err)
	target := p.TargetAgents + 1
	_, err = w.UpdatePool(w.t.Context(), "default", ledger.PoolSpec{Name: pool, TargetAgents: &target})
	w.must(err)
}

// Two tasks of which each may preempt the other, once by labels and once by the time they
// have left: whoever was preempted never takes the other in return, through restarts
// too. That it is this memory which ends the loop is seen when it is erased.
func TestTasksThatMayTakeEachOtherDoSoOnce(t *testing.T) {
	t.Parallel()
	labels := func(l sched.Labels) func(*ledger.Submission) {
		return func(s *ledger.Submission) { s.Labels = l }
	}
	lasting := func(s *ledger.Submission) { s.Estimate = time.Hour }
	for name, c := range map[string]struct {
		policy   string
		one, two func(*ledger.Submission)
	}{
		"labels": {`{"label_preemption_rules": {"team": {"red": ["blue"]}, "stage": {"prod": ["dev"]}}}`,
			labels(sched.Labels{"team": "red", "stage": "dev"}), labels(sched.Labels{"team": "blue", "stage": "prod"})},
		"remaining time": {`{"same_pool_priority_threshold": 0, "min_preempt_score": 0.1}`, lasting, lasting},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := open(t)
			w.makePool("a", 1)
			w.policy(c.policy)
			w.run(sub("one", "a", 1, 5, requeueing, queueing, c.one))
			w.submit(sub("two", "a", 1, 5, requeueing, queueing, c.two))
			w.settledWithin(3)
			w.state("two", ledger.Running)
			w.state("one", ledger.Queued)
			for range 2 {
				w = w.restarted()
				w.nudge("a")
				w.settledWithin(3)
				w.state("two", ledger.Running)
			}
			if n := w.preemptions(); n != 1 {
				t.Fatalf("%d preemptions", n)
			}
			w.verified()

			w.Close()
			_, err := w.db.Exec(t.Context(), "UPDATE tasks SET preempted_by = '{}'")
			w.must(err)
			w = reopen(t, w.db)
			w.must(waitReady(w.Ledger))
			w.nudge("a")
			if j := w.next(ledger.JobTake); j.TaskID != "two" {
				t.Errorf("without the memory, %s is taken", j.TaskID)
			}
		})
	}
}

// A circle of three, the same way round twice, and through a restart in between.
func TestACircleOfTasksComesToRest(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 1)
	w.policy(`{"same_pool_priority_threshold": 0, "min_preempt_score": 0.1}`)
	for i := range 4 {
		w.submit(sub(fmt.Sprint("t", i), "a", 1, 5, requeueing, queueing, func(s *ledger.Submission) { s.Estimate = time.Hour }))
		w.settledWithin(6)
		w = w.restarted()
		w.nudge("a")
		w.settledWithin(6)
	}
	if n := w.preemptions(); n > 6 { // each pair at most once
		t.Errorf("%d preemptions among four tasks", n)
	}
	w.verified()
	w.asFresh()
}

// What was saved is handed to the next attempt, and to the one after it when that fails.
func TestSavedStateSurvivesAFailedAttemptAndARestart(t *testing.T) {
	t.Parallel()
	w := open(t)
	ctx := t.Context()
	w.makePool("a", 1)
	soon := time.Millisecond
	w.run(sub("work", "a", 1, 1, requeueing, func(s *ledger.Submission) {
		s.OnFailure, s.MaxAttempts, s.RetryBackoff = ledger.Requeue, 5, &soon
	}))
	w.run(sub("vip", "a", 1, 9))
	w.state("work", ledger.Queued)
	_, err := w.Complete(ctx, "default", "vip", "test")
	w.must(err)
	w.act(w.next(ledger.JobStop))

	handed := func(attempt int) ledger.Job {
		t.Helper()
		eventually(t, fmt.Sprint("attempt ", attempt), 20*time.Second, func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.jobs) > 0
		})
		j := w.next(ledger.JobLaunch)
		d, err := w.Details(ctx, j.UID)
		w.must(err)
		var state struct{ Step int }
		w.must(json.Unmarshal(d.SavedState, &state))
		if j.Attempt != attempt || state.Step != 7 {
			t.Fatalf("attempt %d was handed %s", j.Attempt, d.SavedState)
		}
		return j
	}
	j := handed(2)
	w.must(w.LaunchFailed(ctx, j.UID, j.Attempt, "constructor_failed", "no luck"))
	j = handed(3)
	w.must(w.Started(ctx, j.UID, j.Attempt, ledger.Started{Node: j.Node}))
	w.must(w.AgentDied(ctx, j.UID, j.Attempt, "agent_died", "killed"))
	j = handed(4)
	w = w.restarted()
	j = handed(4)
	w.act(j)
	w.state("work", ledger.Running)
	w.verified()
}

func TestATaskIsPreemptedNoMoreOftenThanThePolicySays(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 1)
	w.policy(`{"max_preemptions_per_task": 1}`)
	w.run(sub("work", "a", 1, 1, requeueing))
	w.run(sub("first", "a", 1, 5))
	_, err := w.Complete(t.Context(), "default", "first", "test")
	w.must(err)
	w.settle()
	if task := w.state("work", ledger.Running); task.Preemptions != 1 || task.Attempt != 2 {
		t.Errorf("%+v", task)
	}
	for range 2 {
		if _, err := w.Submit(t.Context(), "default", sub("second", "a", 1, 9)); !errors.Is(err, ledger.ErrInsufficient) {
			t.Fatalf("it was preempted a second time: %v", err)
		}
		w = w.restarted()
	}
	w.verified()
}

func TestATaskIsSafeUntilItsMinimumRuntimeIsOver(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 1)
	w.policy(`{"min_runtime_seconds": 600}`)
	w.run(sub("work", "a", 1, 1))
	for range 2 {
		if _, err := w.Submit(t.Context(), "default", sub("vip", "a", 1, 9)); !errors.Is(err, ledger.ErrInsufficient) {
			t.Fatalf("it was preempted at once: %v", err)
		}
		w = w.restarted()
	}
	w.Close()
	_, err := w.db.Exec(t.Context(), "UPDATE tasks SET started_at = started_at - interval '11 minutes' WHERE state = 'running'")
	w.must(err)
	w = reopen(t, w.db)
	w.submit(sub("vip", "a", 1, 9))
	w.settle()
	w.state("vip", ledger.Running)
	w.verified()
}

func TestAPreemptedTaskIsRestoredByHandWithItsState(t *testing.T) {
	t.Parallel()
	w := open(t)
	ctx := t.Context()
	w.makePool("a", 1)
	w.run(sub("work", "a", 1, 1))
	if _, err := w.Restore(ctx, "default", "work", "ann"); !errors.Is(err, ledger.ErrWrongState) {
		t.Errorf("a running task was restored: %v", err)
	}
	w.run(sub("vip", "a", 1, 9))
	w.state("work", ledger.Preempted)
	w = w.restarted()
	task, err := w.Restore(ctx, "default", "work", "ann")
	w.must(err)
	if task.State != ledger.Queued || !strings.Contains(task.Reason, "cpu") && !strings.Contains(task.Reason, "ann") {
		t.Errorf("restored: %s %s", task.State, task.Reason)
	}
	if _, err := w.Restore(ctx, "default", "work", "ann"); !errors.Is(err, ledger.ErrWrongState) {
		t.Errorf("it was restored twice: %v", err)
	}
	w = w.restarted()
	_, err = w.Complete(ctx, "default", "vip", "test")
	w.must(err)
	w.act(w.next(ledger.JobStop))
	j := w.next(ledger.JobLaunch)
	d, err := w.Details(ctx, j.UID)
	w.must(err)
	if j.TaskID != "work" || j.Attempt != 2 || !strings.Contains(string(d.SavedState), "7") {
		t.Errorf("%s attempt %d was handed %s", j.TaskID, j.Attempt, d.SavedState)
	}
	w.act(j)
	w.state("work", ledger.Running)
	w.verified()
	w.asFresh()
}

func TestWhatATaskRemembersOfItsPreemptorsIsBounded(t *testing.T) {
	t.Parallel()
	var long []sched.ID
	for i := range 1000 {
		long = append(long, sched.ID{byte(i), byte(i >> 8)}, sched.ID{1})
	}
	got := ledger.LastOf(long, 4)
	want := []sched.ID{{229, 3}, {230, 3}, {231, 3}, {1}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want the last ones, each once: %v", got, want)
	}
}

func TestATaskPreemptedByHandComesBackBesideItsOldAgent(t *testing.T) {
	t.Parallel()
	t.Run("next name free", func(t *testing.T) { comesBackBeside(t, "trainer-2") })
	t.Run("next name taken", func(t *testing.T) { comesBackBeside(t, "trainer-3", "trainer-2") })
}

// comesBackBeside preempts the task of agent trainer by hand while others have the
// given names, and sees it run again on another.
func comesBackBeside(t *testing.T, want string, names ...string) {
	t.Parallel()
	w := open(t)
	w.makePool("a", float64(2+len(names)))
	for _, name := range names {
		w.run(sub("of "+name, "a", 1, 5, func(s *ledger.Submission) { s.AgentName = name }))
	}
	w.run(sub("train", "a", 1, 5, func(s *ledger.Submission) { s.OnPreempted, s.AgentName = ledger.Requeue, "trainer" }))
	done := make(chan error, 1)
	go func() {
		_, err := w.Preempt(t.Context(), "default", ledger.PreemptRequest{TaskID: "train"})
		done <- err
	}()
	for {
		w.settle()
		if x, err := w.Task(t.Context(), "default", "train"); err == nil && x.Preemptions == 1 && x.State == ledger.Running {
			if x.AgentName != want {
				t.Errorf("its second agent is called %q", x.AgentName)
			}
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.must(<-done)
	if a, err := w.Agent(t.Context(), "default", "trainer"); err != nil || a.State != ledger.Running {
		t.Errorf("the agent it ran on: %+v, %v", a, err)
	}
	w.verified()
}
