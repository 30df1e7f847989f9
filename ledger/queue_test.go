package ledger_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

func estimated(d time.Duration) func(*ledger.Submission) {
	return func(s *ledger.Submission) { s.Estimate = d }
}

func TestASmallTaskPassesTheHeadOnlyWhenItCannotDelayIt(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 4)
	w.run(sub("runs", "a", 2, 5, estimated(time.Minute)))
	w.run(sub("endless", "a", 1, 5))
	big := w.submit(sub("big", "a", 3, 5, queueing))
	if big.State != ledger.Queued || big.QueuePosition != 1 || big.Code != "no_victims" || !strings.Contains(big.Reason, "needs 3.0 cpu") && !strings.Contains(big.Reason, "needs 3 cpu") {
		t.Fatalf("%+v", big)
	}
	if left := time.Until(big.ETA); left < 50*time.Second || left > time.Minute {
		t.Errorf("big starts when the first one ends, in a minute; told %s (%s)", left, big.ETANote)
	}
	_, err := w.Submit(t.Context(), "default", sub("jumps", "a", 1, 5))
	if !errors.Is(err, ledger.ErrInsufficient) || !strings.Contains(err.Error(), "kept for big") {
		t.Errorf("who would delay big is refused with its name: %v", err)
	}
	if long := w.submit(sub("long", "a", 1, 5, queueing, estimated(time.Hour))); long.State != ledger.Queued || long.QueuePosition != 2 || long.Code != "queued_behind" {
		t.Errorf("%+v", long)
	}
	w.run(sub("short", "a", 1, 5, estimated(30*time.Second)))
	w.verified()
	if _, err := w.Cancel(t.Context(), "default", "runs", ""); err != nil {
		t.Fatal(err)
	}
	w.settle()
	w.state("big", ledger.Queued) // 2 free, short has 1
	_, err = w.Cancel(t.Context(), "default", "short", "")
	w.must(err)
	w.settle()
	w.state("big", ledger.Running)
	if long := w.state("long", ledger.Queued); long.QueuePosition != 1 || !long.ETA.IsZero() || long.ETANote == "" {
		t.Errorf("nobody knows when: %+v", long)
	}
	w.verified()
}

func TestMorePriorityPassesAndPatchingReordersTheLineAtOnce(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.policy(`{"same_pool_priority_threshold": 3}`)
	w.makePool("a", 2)
	w.run(sub("runs", "a", 2, 5))
	for _, id := range []string{"q1", "q2", "q3"} {
		w.submit(sub(id, "a", 2, 5, queueing))
	}
	six, nine := sched.Milli(6000), sched.Milli(9000)
	q3, err := w.Patch(t.Context(), "default", "q3", ledger.TaskPatch{Priority: &six})
	w.must(err)
	if q3.QueuePosition != 1 || w.state("q1", ledger.Queued).QueuePosition != 2 || w.state("q2", ledger.Queued).QueuePosition != 3 {
		t.Errorf("q3 at %d", q3.QueuePosition)
	}
	if q2, err := w.Patch(t.Context(), "default", "q2", ledger.TaskPatch{Priority: &nine}); err != nil || q2.State != ledger.Reserved {
		t.Errorf("with enough priority it takes the room at once: %+v %v", q2, err)
	}
	w.settle()
	w.state("runs", ledger.Preempted)
	w.state("q2", ledger.Running)
	hour := time.Hour
	_, err = w.Patch(t.Context(), "default", "q2", ledger.TaskPatch{Estimate: &hour})
	w.must(err)
	if left := time.Until(w.state("q3", ledger.Queued).ETA); left < 50*time.Minute || left > time.Hour {
		t.Errorf("the estimate of what runs is the ETA of the head: %s", left)
	}
	w.verified()
}

func TestAgeingLetsTheOldPass(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 1)
	w.run(sub("runs", "a", 1, 9))
	w.submit(sub("old", "a", 1, 5, queueing))
	_, err := w.db.Exec(t.Context(), "UPDATE tasks SET submitted_at = submitted_at - interval '10 minutes' WHERE task_id = 'old'")
	w.must(err)
	w.Close()
	w = reopen(t, w.db)
	w.submit(sub("young", "a", 1, 6, queueing))
	if p := w.state("young", ledger.Queued).QueuePosition; p != 1 {
		t.Errorf("without ageing priority decides: young at %d", p)
	}
	w.policy(`{"ageing_weight": 0.2}`)
	if p := w.state("old", ledger.Queued).QueuePosition; p != 1 {
		t.Errorf("10 minutes at 0.2 a minute are worth 2: old at %d", p)
	}
}

func TestAQueueTimeoutFailsWhoWaitsTooLongAlsoAfterARestart(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 2)
	w.run(sub("runs", "a", 2, 5))
	w.submit(sub("patient", "a", 2, 5, queueing))
	w.submit(sub("waits", "a", 2, 5, queueing, func(s *ledger.Submission) { s.QueueTimeout = time.Hour }))
	w.must(w.EndOverdue(t.Context()))
	if q := w.state("waits", ledger.Queued); q.QueueTimeout != time.Hour {
		t.Errorf("%+v", q)
	}
	_, err := w.db.Exec(t.Context(), "UPDATE tasks SET queued_at = queued_at - interval '1 hour' WHERE task_id = 'waits'")
	w.must(err)
	w.Close()
	w = reopen(t, w.db)
	w.must(w.EndOverdue(t.Context()))
	if f := w.state("waits", ledger.Failed); f.Code != "queue_timeout" || !strings.Contains(f.Reason, "1h0m0s") {
		t.Errorf("%s %s", f.Code, f.Reason)
	}
	w.state("patient", ledger.Queued)
	_, err = w.Submit(t.Context(), "default", sub("bad", "a", 1, 5, func(s *ledger.Submission) { s.QueueTimeout = -1 }))
	if !errors.Is(err, ledger.ErrInvalid) || !strings.Contains(err.Error(), "queue_timeout") {
		t.Error(err)
	}
	w.verified()
}

func TestThePoolsMaxRuntimeBoundsEveryTask(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 3)
	w.run(sub("own", "a", 1, 5, func(s *ledger.Submission) { s.MaxRuntime = time.Hour }))
	w.run(sub("none", "a", 1, 5))
	bound := time.Minute
	p, err := w.UpdatePool(t.Context(), "default", ledger.PoolSpec{Name: "a", MaxRuntime: &bound})
	w.must(err)
	if p.MaxRuntime != bound {
		t.Fatalf("%+v", p)
	}
	if left := time.Until(w.submit(sub("big", "a", 3, 5, queueing)).ETA); left < 50*time.Second || left > time.Minute {
		t.Errorf("what cannot run longer ends by then: %s", left)
	}
	_, err = w.db.Exec(t.Context(), "UPDATE tasks SET started_at = started_at - interval '2 minutes' WHERE task_id IN ('own', 'none')")
	w.must(err)
	w.Close()
	w = reopen(t, w.db)
	w.must(w.EndOverdue(t.Context()))
	w.must(w.EndOverdue(t.Context())) // twice is once
	w.settle()
	for _, id := range []string{"own", "none"} {
		if f := w.state(id, ledger.Failed); f.Code != "max_runtime" || !strings.Contains(f.Reason, "1m0s") {
			t.Errorf("%s: %s %s", id, f.Code, f.Reason)
		}
	}
	w.state("big", ledger.Running)
	minus := -time.Second
	if _, err := w.UpdatePool(t.Context(), "default", ledger.PoolSpec{Name: "a", MaxRuntime: &minus}); !errors.Is(err, ledger.ErrInvalid) {
		t.Error(err)
	}
	w.verified()
}

func TestAFailedAttemptWaitsBeforeTheNextTwiceAsLongEachTime(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 2)
	half := 30 * time.Second
	w.submit(sub("t", "a", 2, 5, func(s *ledger.Submission) { s.OnFailure, s.MaxAttempts, s.RetryBackoff = ledger.Requeue, 3, &half }))
	for attempt, least := range []time.Duration{22 * time.Second, 45 * time.Second} {
		j := w.next(ledger.JobLaunch)
		if j.Attempt != attempt+1 {
			t.Fatalf("attempt %d", j.Attempt)
		}
		w.must(w.LaunchFailed(t.Context(), j.UID, j.Attempt, "constructor_failed", "no luck"))
		w.noJobs()
		q := w.state("t", ledger.Queued)
		if wait := time.Until(q.ETA); q.Code != "backoff" || q.QueuePosition != 0 || wait < least-2*time.Second || wait > least*4/3+time.Second || !strings.Contains(q.Reason, "no luck") {
			t.Errorf("attempt %d: waits %s (%s: %s), position %d", attempt+1, wait, q.Code, q.Reason, q.QueuePosition)
		}
		w.submit(sub(fmt.Sprint("passes", attempt), "a", 2, 1)) // it holds nobody up
		w.settle()
		_, err := w.Cancel(t.Context(), "default", fmt.Sprint("passes", attempt), "")
		w.must(err)
		w.settle()
		// A restart does not forget it, and its time comes.
		_, err = w.db.Exec(t.Context(), "UPDATE tasks SET not_before = now() - interval '1 second' WHERE task_id = 't'")
		w.must(err)
		w.Close()
		w = reopen(t, w.db)
		w.must(w.EndOverdue(t.Context()))
	}
	j := w.next(ledger.JobLaunch)
	w.must(w.LaunchFailed(t.Context(), j.UID, j.Attempt, "constructor_failed", "no luck"))
	w.state("t", ledger.Failed)
	none := time.Duration(0)
	w.submit(sub("eager", "a", 2, 5, func(s *ledger.Submission) { s.OnFailure, s.RetryBackoff = ledger.Requeue, &none }))
	j = w.next(ledger.JobLaunch)
	w.must(w.LaunchFailed(t.Context(), j.UID, j.Attempt, "constructor_failed", "no luck"))
	w.settle()
	w.state("eager", ledger.Running)
	w.verified()
}

func TestAHeldPoolStartsNothing(t *testing.T) {
	t.Parallel()
	w := open(t)
	ctx := t.Context()
	w.makePool("a", 2)
	w.run(sub("runs", "a", 1, 5))
	if _, err := w.HoldPool(ctx, "default", "a", ledger.HoldRequest{}); !errors.Is(err, ledger.ErrWrongState) {
		t.Errorf("there is nothing to resume: %v", err)
	}
	if _, err := w.HoldPool(ctx, "default", "nowhere", ledger.HoldRequest{State: ledger.Held}); !errors.Is(err, ledger.ErrUnknownPool) {
		t.Error(err)
	}
	minus := -time.Second
	if _, err := w.HoldPool(ctx, "default", "a", ledger.HoldRequest{State: ledger.Draining, Deadline: &minus}); !errors.Is(err, ledger.ErrInvalid) {
		t.Error(err)
	}
	p, err := w.HoldPool(ctx, "default", "a", ledger.HoldRequest{State: ledger.Held, Reason: "new disks", Actor: "ann"})
	w.must(err)
	if p.Hold.State != ledger.Held || p.Hold.Reason != "new disks" || p.Hold.Actor != "ann" || p.Hold.Since.IsZero() {
		t.Errorf("%+v", p.Hold)
	}
	if _, err := w.Submit(ctx, "default", sub("fails", "a", 1, 5)); !errors.Is(err, ledger.ErrPoolHeld) || !strings.Contains(err.Error(), "new disks") {
		t.Error(err)
	}
	if q := w.submit(sub("waits", "a", 1, 5, queueing)); q.Code != "pool_held" || q.State != ledger.Queued || !q.ETA.IsZero() || q.ETANote == "" {
		t.Errorf("%+v", q)
	}
	w.Close()
	w = reopen(t, w.db)
	_, err = w.Cancel(ctx, "default", "runs", "")
	w.must(err)
	w.settle()
	if q := w.state("waits", ledger.Queued); q.Code != "pool_held" || !strings.Contains(q.Reason, "ann") {
		t.Errorf("%s %s", q.Code, q.Reason)
	}
	_, err = w.HoldPool(ctx, "default", "a", ledger.HoldRequest{Actor: "ann"})
	w.must(err)
	w.settle()
	w.state("waits", ledger.Running)
	var types string
	w.must(w.db.QueryRow(ctx, "SELECT string_agg(type, ' ' ORDER BY id) FROM task_events WHERE actor = 'ann' AND type LIKE 'pool.%'").Scan(&types))
	if types != "pool.held pool.resumed" {
		t.Errorf("events %s", types)
	}
	w.verified()
}

func TestADrainTakesWhatStillRunsAtItsDeadline(t *testing.T) {
	t.Parallel()
	w := open(t)
	ctx := t.Context()
	w.makePool("a", 4)
	w.run(sub("again", "a", 1, 5, requeueing))
	w.run(sub("once", "a", 1, 5))
	agent, err := w.CreateAgent(ctx, "default", ledger.AgentSubmission{Name: "idle", Pool: "a", Request: sched.Resources{CPU: 1000}, Spec: ledger.Spec{ActorClass: "m:C"}})
	w.must(err)
	w.submit(sub("starts", "a", 1, 5, requeueing)) // its launch is under way
	hour, now := time.Hour, time.Duration(0)
	_, err = w.HoldPool(ctx, "default", "a", ledger.HoldRequest{State: ledger.Draining, Deadline: &hour})
	w.must(err)
	w.settle()
	w.must(w.EndOverdue(ctx))
	w.noJobs()
	p, err := w.HoldPool(ctx, "default", "a", ledger.HoldRequest{State: ledger.Draining, Deadline: &now, Reason: "rack 4"}) // twice: the later deadline counts
	w.must(err)
	if p.Hold.State != ledger.Draining || p.Hold.Deadline.IsZero() {
		t.Errorf("%+v", p.Hold)
	}
	w.must(w.EndOverdue(ctx))
	w.must(w.EndOverdue(ctx))
	w.Close() // in the middle of it
	w = reopen(t, w.db)
	w.must(w.forceWork())
	w.settle()
	if q := w.state("again", ledger.Queued); string(q.SavedState) == "" {
		t.Errorf("its state was not saved: %+v", q)
	}
	w.state("starts", ledger.Queued)
	if o := w.state("once", ledger.Preempted); o.Code != "drained" {
		t.Errorf("%s %s", o.Code, o.Reason)
	}
	if a, err := w.Agent(ctx, "default", agent.Name); err != nil || a.State != ledger.Cancelled {
		t.Errorf("%+v %v", a, err)
	}
	if b := w.balance("a"); b.Used != 0 || b.Reserved != 0 {
		t.Errorf("%+v", b)
	}
	_, err = w.HoldPool(ctx, "default", "a", ledger.HoldRequest{})
	w.must(err)
	w.settle()
	if r := w.state("again", ledger.Running); r.Attempt != 2 {
		t.Errorf("attempt %d", r.Attempt)
	}
	w.state("starts", ledger.Running)
	w.verified()
}

func TestANodeIsHeldAndDrained(t *testing.T) {
	t.Parallel()
	w := open(t)
	ctx := t.Context()
	w.makePool("a", 8)
	nodes := []sched.Node{{ID: "n1", Total: sched.Resources{CPU: 4000}, Room: sched.Resources{CPU: 4000}}, {ID: "n2", Total: sched.Resources{CPU: 2000}, Room: sched.Resources{CPU: 2000}}}
	w.must(w.SetNodes(ctx, "local", nodes))
	if _, err := w.HoldNode(ctx, "n9", ledger.HoldRequest{State: ledger.Held}); !errors.Is(err, ledger.ErrUnknownNode) {
		t.Error(err)
	}
	if _, err := w.HoldNode(ctx, "n1", ledger.HoldRequest{}); !errors.Is(err, ledger.ErrWrongState) {
		t.Error(err)
	}
	if r := w.run(sub("moves", "a", 2, 5, requeueing)); r.Node != "n2" {
		t.Fatalf("on %s", r.Node)
	}
	n, err := w.HoldNode(ctx, "n1", ledger.HoldRequest{State: ledger.Held, Reason: "fan", Actor: "ann"})
	w.must(err)
	if n.Hold.State != ledger.Held || n.Cluster != "local" {
		t.Errorf("%+v", n)
	}
	if q := w.submit(sub("waits", "a", 1, 5, queueing)); q.State != ledger.Queued {
		t.Errorf("on %s", q.Node)
	}
	if q := w.submit(sub("large", "a", 4, 4, queueing)); q.State != ledger.Queued {
		t.Errorf("only the held one is large enough, and it is not held for ever: %+v", q)
	}
	w.Close()
	w = reopen(t, w.db)
	w.must(w.SetNodes(ctx, "local", nodes))
	w.state("waits", ledger.Queued)
	_, err = w.HoldNode(ctx, "n1", ledger.HoldRequest{})
	w.must(err)
	w.settle()
	w.state("waits", ledger.Running)
	now := time.Duration(0)
	_, err = w.HoldNode(ctx, "n2", ledger.HoldRequest{State: ledger.Draining, Deadline: &now})
	w.must(err)
	w.must(w.EndOverdue(ctx))
	w.settle()
	if m := w.state("moves", ledger.Running); m.Node != "n1" || m.Preemptions != 1 {
		t.Errorf("it is on %s", m.Node)
	}
	w.state("large", ledger.Queued)
	all, err := w.Nodes(ctx)
	w.must(err)
	if len(all) != 2 || all[0].Agents != 2 || all[1].Agents != 0 || all[1].Hold.State != ledger.Draining || all[1].Free.CPU != 2000 {
		t.Errorf("%+v", all)
	}
	w.verified()
}

// However many wait, a submission stays cheap and the line drains in slices.
func TestALongLineDrainsByItself(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 1)
	w.run(sub("runs", "a", 1, 5))
	const n = 5000 // more than one transaction starts
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for k := i; k < n; k += 64 {
				if _, err := w.Submit(t.Context(), "default", sub(fmt.Sprint("q", k), "a", 1, 5, queueing)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	room := sched.Resources{CPU: 1000 * (n + 1), Memory: 1024}
	began := time.Now()
	_, err := w.UpdatePool(t.Context(), "default", ledger.PoolSpec{Name: "a", Capacity: &room})
	w.must(err)
	for {
		counts, err := w.Counts(t.Context(), "default")
		w.must(err)
		if counts[ledger.Queued] == 0 {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("%d still wait", counts[ledger.Queued])
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("%d started in %s", n, time.Since(began))
	w.verified()
}
