package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/db"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/testdb"
)

// world is a ledger on a real database, and its jobs, which a test carries out by hand or lets run.
type world struct {
	*ledger.Ledger
	t    *testing.T
	db   *pgxpool.Pool
	mu   sync.Mutex
	jobs []ledger.Job
	more chan struct{}
}

func open(t *testing.T) *world {
	t.Helper()
	url := testdb.Migrated(t, db.Key(), db.Migrate)
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return reopen(t, pool)
}

func reopen(t *testing.T, pool *pgxpool.Pool, change ...func(*ledger.Options)) *world {
	t.Helper()
	w := &world{t: t, db: pool, more: make(chan struct{}, 1)}
	o := ledger.Options{Jobs: w.announce}
	for _, f := range change {
		f(&o)
	}
	l, err := ledger.Open(t.Context(), pool, o)
	if err != nil {
		t.Fatal(err)
	}
	w.Ledger = l
	t.Cleanup(l.Close)
	return w
}

func (w *world) announce(jobs []ledger.Job) {
	w.mu.Lock()
	w.jobs = append(w.jobs, jobs...)
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// next takes the next job, which must be there.
func (w *world) next(kind ledger.JobKind) ledger.Job {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.jobs) == 0 {
		w.t.Fatalf("no job is left, want kind %d", kind)
	}
	j := w.jobs[0]
	w.jobs = w.jobs[1:]
	if j.Kind != kind {
		w.t.Fatalf("next job is of kind %d (%s), want %d", j.Kind, j.TaskID, kind)
	}
	return j
}

func (w *world) noJobs() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.jobs) != 0 {
		w.t.Fatalf("jobs are left: %+v", w.jobs)
	}
}

// act carries out one job as agents that always succeed would.
func (w *world) act(j ledger.Job) {
	w.t.Helper()
	ctx := w.t.Context()
	switch j.Kind {
	case ledger.JobLaunch:
		w.must(w.Started(ctx, j.UID, j.Attempt, ledger.Started{ActorName: j.LaunchID, ActorID: "a", Node: j.Node, PID: 1}))
	case ledger.JobStop:
		w.must(w.Gone(ctx, j.UID, j.Attempt))
	case ledger.JobMakeGroup:
		nodes := make([]string, len(j.Group.Bundles))
		for i := range nodes {
			nodes[i] = "node-1"
		}
		w.must(w.GroupMade(ctx, j.UID, j.Attempt, nodes))
	case ledger.JobDropGroup:
		if err := w.GroupGone(ctx, j.UID, j.Attempt); !errors.Is(err, ledger.ErrUnknownGroup) { // of a pool that is gone
			w.must(err)
		}
	case ledger.JobTake:
		w.must(w.TakePhase(ctx, j.UID, j.Attempt, ledger.TakeReport{Phase: "cancelling"}))
		cancelled, saved := map[sched.ID]ledger.CancelOutcome{}, map[sched.ID]ledger.SaveOutcome{}
		for _, t := range j.Tasks {
			cancelled[t.UID] = ledger.CancelOutcome{Success: true}
			saved[t.UID] = ledger.SaveOutcome{State: json.RawMessage(fmt.Sprintf(`{"task_id": %q, "step": 7}`, t.TaskID))}
		}
		w.must(w.TakePhase(ctx, j.UID, j.Attempt, ledger.TakeReport{Phase: "saving", Cancel: cancelled}))
		if j.KeepAgent {
			w.must(w.HandDone(ctx, j.UID, j.Attempt, saved[j.UID]))
			return
		}
		w.must(w.TakePhase(ctx, j.UID, j.Attempt, ledger.TakeReport{Phase: "killing", Saved: saved}))
		w.must(w.Gone(ctx, j.UID, j.Attempt))
	}
}

// settle carries out jobs until none is left.
func (w *world) settle() {
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
		w.act(j)
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) makePool(name string, cpu float64) {
	w.t.Helper()
	capacity, err := sched.FromUnits(map[string]float64{"cpu": cpu, "memory": 1024 * cpu})
	w.must(err)
	_, err = w.CreatePool(w.t.Context(), "default", ledger.PoolSpec{Name: name, Capacity: &capacity})
	w.must(err)
}

func sub(id, pool string, cpu, priority float64, change ...func(*ledger.Submission)) ledger.Submission {
	request, err := sched.FromUnits(map[string]float64{"cpu": cpu})
	if err != nil {
		panic(err)
	}
	s := ledger.Submission{TaskID: id, Pool: pool, Request: request, Priority: sched.Milli(priority * 1000), Spec: ledger.Spec{ActorClass: "m:C"}}
	for _, f := range change {
		f(&s)
	}
	return s
}

func labelled(k, v string) func(*ledger.Submission) {
	return func(s *ledger.Submission) { s.Labels = sched.Labels{k: v} }
}

func queueing(s *ledger.Submission)   { s.OnInsufficient = ledger.Queue }
func requeueing(s *ledger.Submission) { s.OnPreempted = ledger.Requeue }

func (w *world) submit(s ledger.Submission) ledger.Task {
	w.t.Helper()
	t, err := w.Submit(w.t.Context(), "default", s)
	w.must(err)
	return t
}

// run submits and lets it run.
func (w *world) run(s ledger.Submission) ledger.Task {
	w.t.Helper()
	w.submit(s)
	w.settle()
	return w.state(s.TaskID, ledger.Running)
}

func (w *world) state(id string, want ledger.State) ledger.Task {
	w.t.Helper()
	t, err := w.Task(w.t.Context(), "default", id)
	w.must(err)
	if t.State != want {
		w.t.Fatalf("task %s is %s (%s %s), want %s", id, t.State, t.Code, t.Reason, want)
	}
	return t
}

// verified fails the test when a balance is not what tasks and loans say.
func (w *world) verified() {
	w.t.Helper()
	diffs, err := w.Verify(context.Background())
	w.must(err)
	for _, d := range diffs {
		w.t.Error(d)
	}
}

func (w *world) balance(pool string) ledger.Balance {
	w.t.Helper()
	p, err := w.Pool(w.t.Context(), "default", pool)
	w.must(err)
	return p.Balances[0] // cpu
}

func (w *world) policy(patch string) {
	w.t.Helper()
	_, err := w.PutPolicy(w.t.Context(), "default", ledger.PolicyChange{Patch: json.RawMessage(patch), Author: "test"})
	w.must(err)
}

func TestASubmissionReservesCommitsAndReleasesQuota(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 4)
	task := w.submit(sub("t1", "a", 2, 5))
	if task.State != ledger.Reserved {
		t.Fatalf("state %s, want reserved", task.State)
	}
	if b := w.balance("a"); b.Reserved != 2000 || b.Used != 0 {
		t.Fatalf("after submit: %+v", b)
	}
	w.settle()
	w.state("t1", ledger.Running)
	if b := w.balance("a"); b.Reserved != 0 || b.Used != 2000 {
		t.Fatalf("after commit: %+v", b)
	}
	_, err := w.Complete(t.Context(), "default", "t1", "me")
	w.must(err)
	w.state("t1", ledger.Stopping)
	if b := w.balance("a"); b.Used != 2000 {
		t.Fatalf("quota was freed before the agent was seen gone: %+v", b)
	}
	w.settle()
	w.state("t1", ledger.Completed)
	if b := w.balance("a"); b.Used != 0 {
		t.Fatalf("after release: %+v", b)
	}
	w.verified()
}

func TestALabelRuleHandsQuotaOverAndTheVictimComesBackWithItsState(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.policy(`{"label_preemption_rules": {"stage": {"rlhf": ["pretraining"]}}}`)
	w.makePool("a", 2)
	w.run(sub("pretrain", "a", 2, 5, labelled("stage", "pretraining"), requeueing))
	w.submit(sub("rlhf", "a", 2, 5, labelled("stage", "rlhf")))
	w.state("pretrain", ledger.Preempting)
	if b := w.balance("a"); b.Used != 0 || b.Reserved != 2000 {
		t.Fatalf("the victim's quota is not the preemptor's reservation: %+v", b)
	}
	w.settle()
	w.state("rlhf", ledger.Running)
	back := w.state("pretrain", ledger.Queued)
	if string(back.SavedState) != `{"step": 7, "task_id": "pretrain"}` || back.Preemptions != 1 {
		t.Fatalf("saved state %s, preemptions %d", back.SavedState, back.Preemptions)
	}
	_, err := w.Complete(t.Context(), "default", "rlhf", "me")
	w.must(err)
	w.settle()
	again := w.state("pretrain", ledger.Running)
	if again.Attempt != 2 {
		t.Fatalf("attempt %d, want 2", again.Attempt)
	}
	stats, err := w.Stats(t.Context(), "default")
	w.must(err)
	if stats.Total != 1 || stats.Label != 1 {
		t.Fatalf("stats %+v", stats)
	}
	if p := stats.Recent[0]; p.Phase != "gone" || p.RunningAt.IsZero() || p.CancelSuccess == nil || !*p.CancelSuccess {
		t.Fatalf("preemption record %+v", p)
	}
	w.verified()
}

func TestAcrossPoolsExactlyWhatIsMissingIsLentAndGoesBackFirst(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 4)
	w.makePool("b", 2)
	w.run(sub("low", "a", 4, 1))
	w.run(sub("own", "b", 1, 9))
	w.run(sub("high", "b", 2, 9))
	w.state("low", ledger.Preempted)
	if a, b := w.balance("a"), w.balance("b"); a.Lent != 1000 || b.Borrowed != 1000 || b.Used != 3000 || a.Used != 0 {
		t.Fatalf("a %+v b %+v", a, b)
	}
	w.verified()
	_, err := w.Complete(t.Context(), "default", "own", "me")
	w.must(err)
	w.settle()
	if a, b := w.balance("a"), w.balance("b"); a.Lent != 0 || b.Borrowed != 0 || b.Used != 2000 {
		t.Fatalf("the loan did not go back first: a %+v b %+v", a, b)
	}
	w.verified()
}

func TestUntilTheCancelIsSentEverythingCanBePutBack(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 2)
	w.makePool("b", 1)
	w.run(sub("low", "a", 2, 1))
	w.submit(sub("high", "b", 2, 9))
	j := w.next(ledger.JobTake)
	undone, err := w.Undo(t.Context(), j.UID, "bridge_unavailable", "the sidecar is down")
	w.must(err)
	if !undone {
		t.Fatal("it could not be undone")
	}
	w.state("low", ledger.Running)
	w.state("high", ledger.Failed)
	if a, b := w.balance("a"), w.balance("b"); a.Used != 2000 || a.Lent != 0 || b.Reserved != 0 || b.Borrowed != 0 {
		t.Fatalf("a %+v b %+v", a, b)
	}
	w.verified()

	w.submit(sub("high2", "a", 2, 9))
	j = w.next(ledger.JobTake)
	w.must(w.TakePhase(t.Context(), j.UID, j.Attempt, ledger.TakeReport{Phase: "cancelling"}))
	undone, err = w.Undo(t.Context(), j.UID, "bridge_unavailable", "too late")
	w.must(err)
	if undone {
		t.Fatal("undone after the cancel was sent")
	}
	w.state("low", ledger.Preempting)
	w.verified()
}

func TestVictimsComeBackWhenTheirPreemptorCannotLaunch(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 2)
	w.run(sub("low", "a", 2, 1)) // on_preempted: stop
	w.submit(sub("high", "a", 2, 9))
	w.act(w.next(ledger.JobTake))
	w.state("low", ledger.Preempted)
	j := w.next(ledger.JobLaunch)
	w.must(w.LaunchFailed(t.Context(), j.UID, j.Attempt, "constructor_failed", "ValueError: no"))
	failed := w.state("high", ledger.Failed)
	if failed.Code != "constructor_failed" {
		t.Fatalf("code %s", failed.Code)
	}
	w.settle()
	back := w.state("low", ledger.Running)
	if back.Attempt != 2 {
		t.Fatalf("attempt %d, want 2", back.Attempt)
	}
	w.verified()
}

func TestVictimsComeBackEvenWhenTheServerDiedBeforeTheirPreemptorFailed(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 2)
	w.run(sub("low", "a", 2, 1)) // on_preempted: stop
	w.submit(sub("high", "a", 2, 9))
	w.act(w.next(ledger.JobTake))
	j := w.next(ledger.JobLaunch)
	w.Close()
	w = reopen(t, w.db)
	w.must(w.LaunchFailed(t.Context(), j.UID, j.Attempt, "constructor_failed", "ValueError: no"))
	w.settle()
	if back := w.state("low", ledger.Running); back.Attempt != 2 {
		t.Fatalf("attempt %d, want 2", back.Attempt)
	}
	w.verified()
}

func TestTheSameBodyIsTheSameTaskAnotherBodyIsAConflict(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 4)
	one := w.submit(sub("t", "a", 1, 5))
	two := w.submit(sub("t", "a", 1, 5))
	if one.UID != two.UID {
		t.Fatal("the same submission made two tasks")
	}
	_, err := w.Submit(t.Context(), "default", sub("t", "a", 2, 5))
	if !errors.Is(err, ledger.ErrTaskExists) {
		t.Fatalf("err %v, want task_exists", err)
	}
	w.verified()
}

func TestRefusalsHaveCodesAndLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 2)
	for _, c := range []struct {
		name string
		s    ledger.Submission
		code string
	}{
		{"unknown pool", sub("t", "nope", 1, 5), "unknown_pool"},
		{"more than the pool could ever be", sub("t", "a", 100, 5), "request_too_large"},
		{"nothing asked for", sub("t", "a", 0, 5), "invalid"},
		{"a NUL in a label", sub("t", "a", 1, 5, labelled("k", "a\x00b")), "invalid"},
		{"a 10 MB label", sub("t", "a", 1, 5, labelled("k", string(make([]byte, 10<<20)))), "invalid"},
		{"no class", sub("t", "a", 1, 5, func(s *ledger.Submission) { s.Spec.ActorClass = "" }), "invalid"},
	} {
		_, err := w.Submit(t.Context(), "default", c.s)
		if ledger.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want code %s", c.name, err, c.code)
		}
	}
	w.noJobs()
	w.verified()
}

func TestOnePoisonedCallDoesNotHurtItsBatchMates(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 100)
	var wg sync.WaitGroup
	errs := make([]error, 40)
	for i := range errs {
		wg.Go(func() {
			s := sub(fmt.Sprintf("t%d", i), "a", 1, 5)
			if i == 17 {
				s.Spec.Args = json.RawMessage(`["\u0000"]`) // jsonb refuses it
			}
			_, errs[i] = w.Submit(context.Background(), "default", s)
		})
	}
	wg.Wait()
	for i, err := range errs {
		if (err != nil) != (i == 17) {
			t.Errorf("submission %d: %v", i, err)
		}
	}
	if ledger.CodeOf(errs[17]) != "invalid" {
		t.Errorf("the poisoned one says %v", errs[17])
	}
	if b := w.balance("a"); b.Reserved != 39000 {
		t.Errorf("reserved %d, want 39000", b.Reserved)
	}
	w.verified()
}

func TestARestartFindsEverythingAgain(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 4)
	w.run(sub("running", "a", 2, 1))
	w.submit(sub("reserved", "a", 1, 1))
	w.submit(sub("waiting", "a", 4, 0.5, queueing))
	w.submit(sub("high", "a", 2, 9)) // takes the reserved one: least work lost
	w.Close()

	w2 := reopen(t, w.db)
	w2.must(w2.forceWork())
	w2.settle()
	w2.state("running", ledger.Running)
	w2.state("high", ledger.Running)
	w2.state("reserved", ledger.Preempted)
	w2.state("waiting", ledger.Queued)
	w2.verified()
}

// forceWork finds what a server before this one left.
func (w *world) forceWork() error {
	jobs, err := w.Work(context.Background())
	w.announce(jobs)
	return err
}

func TestAQueuedTaskStartsWhenRoomIsFreedInTheSameTransaction(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 2)
	w.run(sub("first", "a", 2, 5))
	q := w.submit(sub("second", "a", 2, 5, queueing))
	if q.State != ledger.Queued || q.QueuePosition != 1 || q.Reason == "" {
		t.Fatalf("%+v", q)
	}
	_, err := w.Cancel(t.Context(), "default", "first", "me")
	w.must(err)
	w.act(w.next(ledger.JobStop))
	w.state("second", ledger.Reserved)
	w.settle()
	w.state("second", ledger.Running)
	w.verified()
}

func TestPreemptionByHandLeavesTheAgentIdleUntilItIsDeleted(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 2)
	w.run(sub("t", "a", 2, 5))
	<-w.more // the launch
	done := make(chan ledger.Preemption)
	go func() {
		p, err := w.Preempt(context.Background(), "default", ledger.PreemptRequest{TaskID: "t", Actor: "me"})
		if err != nil {
			t.Error(err)
		}
		done <- p
	}()
	<-w.more
	w.settle()
	p := <-done
	if p.Phase != "gone" || p.CancelSuccess == nil || !*p.CancelSuccess || string(p.SavedState) == "" {
		t.Fatalf("%+v", p)
	}
	task := w.state("t", ledger.Preempted)
	if b := w.balance("a"); b.Used != 2000 {
		t.Fatalf("the agent's quota: %+v", b)
	}
	w.verified()
	w.must(w.DeleteAgent(t.Context(), "default", task.AgentName, false, false, "me"))
	w.settle()
	if b := w.balance("a"); b.Used != 0 {
		t.Fatalf("after the agent was deleted: %+v", b)
	}
	w.must(w.DeleteAgent(t.Context(), "default", task.AgentName, false, false, "me"))
	_, err := w.Restore(t.Context(), "default", "t", "me")
	w.must(err)
	w.settle()
	if again := w.state("t", ledger.Running); again.Attempt != 2 {
		t.Fatalf("attempt %d", again.Attempt)
	}
	w.verified()
}

func TestRegisteredTasksChargeNothingAndMayBeUnmanaged(t *testing.T) {
	t.Parallel()
	w := open(t)
	_, err := w.Register(t.Context(), "default", ledger.Registration{TaskID: "job", AgentName: "worker", Pool: "pool-a", Priority: 5000, Labels: sched.Labels{"tier": "standard"}})
	w.must(err)
	w.policy(`{"label_preemption_rules": {"tier": {"premium": ["standard"]}}, "cross_pool_priority_threshold": 10}`)
	got, err := w.Evaluate(t.Context(), "default", ledger.Evaluation{Pool: "pool-b", Priority: 7000, Labels: sched.Labels{"tier": "premium"}})
	w.must(err)
	if !got.ShouldPreempt || got.Candidates[0].Reason != "label_based_preemption" || got.Candidates[0].AgentName != "worker" {
		t.Fatalf("%+v", got)
	}
	_, err = w.Complete(t.Context(), "default", "job", "me")
	w.must(err)
	w.state("job", ledger.Completed)
	w.verified()
}

func TestAPoolThatIsUsedCannotBeDeletedOrShrunkBelowItsUse(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 4)
	w.run(sub("t", "a", 3, 5))
	if err := w.DeletePool(t.Context(), "default", "a", "me"); !errors.Is(err, ledger.ErrPoolInUse) {
		t.Errorf("delete: %v", err)
	}
	small := sched.Resources{CPU: 1000, Memory: 4096}
	if _, err := w.UpdatePool(t.Context(), "default", ledger.PoolSpec{Name: "a", Capacity: &small}); !errors.Is(err, ledger.ErrPoolInUse) {
		t.Errorf("shrink: %v", err)
	}
	large := sched.Resources{CPU: 8000, Memory: 4096, Other: []sched.Amount{{Name: "tpu", Value: 1000}}}
	p, err := w.UpdatePool(t.Context(), "default", ledger.PoolSpec{Name: "a", Capacity: &large})
	w.must(err)
	if p.Balances[0].Capacity != 8000 || p.Balances[3].Resource != "tpu" {
		t.Errorf("%+v", p.Balances)
	}
	w.verified()
	_, err = w.Cancel(t.Context(), "default", "t", "me")
	w.must(err)
	w.settle()
	w.must(w.DeletePool(t.Context(), "default", "a", "me"))
	w.makePool("a", 1)
}

func TestPolicyVersionsAreImmutableAndComparedAndSet(t *testing.T) {
	t.Parallel()
	w := open(t)
	ctx := t.Context()
	w.policy(`{"min_preempt_score": 1}`)
	v, err := w.Policy(ctx, "default")
	w.must(err)
	if v.Version != 2 {
		t.Fatalf("version %d", v.Version)
	}
	_, err = w.PutPolicy(ctx, "default", ledger.PolicyChange{Patch: json.RawMessage(`{"min_preempt_score": 2}`), Base: 1})
	var stale *ledger.Error
	if !errors.As(err, &stale) || !strings.Contains(stale.Message, "min_preempt_score: 0.5 → 1.0") {
		t.Errorf("a stale change does not hear what changed meanwhile: %v", err)
	} else if changes, ok := stale.Detail.([]sched.Change); !ok || len(changes) != 1 {
		t.Errorf("detail %+v", stale.Detail)
	}
	if _, far := w.PutPolicy(ctx, "default", ledger.PolicyChange{Patch: json.RawMessage(`{}`), Base: 77}); !errors.Is(far, ledger.ErrConflict) {
		t.Errorf("a change made from a version that never was: %v", far)
	}
	if !errors.Is(err, ledger.ErrConflict) {
		t.Fatalf("%v", err)
	}
	_, err = w.PutPolicy(ctx, "default", ledger.PolicyChange{Patch: json.RawMessage(`{"label_preemption_rules": {"t": {"a": ["b"], "b": ["a"]}}}`)})
	if ledger.CodeOf(err) != "invalid" {
		t.Fatalf("a cycle was accepted: %v", err)
	}
	back, err := w.Rollback(ctx, "default", 1, 2, "me", "")
	w.must(err)
	if back.Version != 3 || back.Policy.MinPreemptScore != 500 {
		t.Fatalf("%+v", back)
	}
}

func TestEventsNeverAppearBehindAReader(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 1000)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	events, err := w.Subscribe(ctx, "default", 0)
	w.must(err)
	const n = 200
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { _, _ = w.Submit(ctx, "default", sub(fmt.Sprintf("t%d", i), "a", 1, 5)) })
	}
	wg.Wait()
	seen := map[string]int{}
	var last int64
	for len(seen) < n {
		e, ok := <-events
		if !ok {
			t.Fatalf("the feed ended after %d tasks", len(seen))
		}
		if e.ID <= last {
			t.Fatalf("event %d after %d", e.ID, last)
		}
		last = e.ID
		if e.Type == "reserved" {
			seen[e.TaskID]++
		}
	}
}

func TestATaskPastItsMaxRuntimeIsStopped(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 2)
	w.run(sub("t", "a", 1, 5, func(s *ledger.Submission) { s.MaxRuntime = time.Millisecond }))
	w.run(sub("free", "a", 1, 5))
	time.Sleep(2 * time.Millisecond) // of the database's kind of time, which is the clock's
	w.must(w.EndOverdue(t.Context()))
	w.settle()
	if failed := w.state("t", ledger.Failed); failed.Code != "max_runtime" {
		t.Errorf("code %s", failed.Code)
	}
	w.state("free", ledger.Running)
	w.verified()
}

// Two writers by hand: the one with the older transaction id takes the later event id
// and commits first. What it wrote must wait until the other one has ended.
func TestAnEventWaitsForOneWithASmallerIDThatIsNotCommittedYet(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"COMMIT", "ROLLBACK"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			w := open(t)
			w.makePool("a", 1)
			ctx := t.Context()
			// Other databases of the same Postgres have transactions too, which the feed waits for.
			shown := func(n int) (types []string) {
				t.Helper()
				for deadline := time.Now().Add(10 * time.Second); ; {
					now, err := w.Events(ctx, "default", 0, 100)
					w.must(err)
					if len(now) >= n || time.Now().After(deadline) {
						for _, e := range now {
							types = append(types, e.Type)
						}
						return types
					}
					time.Sleep(time.Millisecond)
				}
			}
			shown(1) // the pool was made
			late, err := w.db.Begin(ctx)
			w.must(err)
			early, err := w.db.Begin(ctx)
			w.must(err)
			write := func(conn interface {
				Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
			}, sql string) {
				t.Helper()
				_, err := conn.Exec(ctx, sql)
				w.must(err)
			}
			const event = "INSERT INTO task_events (at, namespace_id, type) VALUES (now(), 1, '%s')"
			write(late, "SELECT pg_current_xact_id()")
			write(early, "SELECT pg_current_xact_id()")
			write(early, fmt.Sprintf(event, "first"))
			write(late, fmt.Sprintf(event, "second"))
			w.must(late.Commit(ctx))
			for range 3 {
				if types := shown(0); len(types) != 1 {
					t.Fatalf("shown too early: %v", types)
				}
			}
			write(early, end)
			_ = early.Rollback(ctx)
			want := map[string]string{"COMMIT": "[pool.created first second]", "ROLLBACK": "[pool.created second]"}[end]
			types := shown(map[string]int{"COMMIT": 3, "ROLLBACK": 2}[end])
			if fmt.Sprint(types) != want {
				t.Errorf("%v, want %s", types, want)
			}
		})
	}
}
