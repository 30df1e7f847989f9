package view_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/db"
	"github.com/schedulemesh/schedulemesh/handlers/view"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/testdb"
)

// world is a ledger on a real database with a clock that a story moves, the agents of
// its tasks, and the dashboard's view of it all.
type world struct {
	*ledger.Ledger
	view *view.View
	db   *pgxpool.Pool
	t    *testing.T
	mu   sync.Mutex
	now  time.Time
	jobs []ledger.Job
	more chan struct{}
	// slow makes each phase of what agents do take this long on the clock.
	slow time.Duration
}

func open(t *testing.T) *world {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testdb.Migrated(t, db.Key(), db.Migrate))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	w := &world{t: t, db: pool, now: time.Now().UTC().Add(-39 * time.Minute).Truncate(time.Second), more: make(chan struct{}, 1), slow: 12 * time.Millisecond}
	l, err := ledger.Open(t.Context(), pool, ledger.Options{Jobs: w.announce, Now: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	w.Ledger = l
	w.view = view.New(l, printed{}, view.Options{Now: w.clock, Patience: time.Minute})
	return w
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
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

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// act carries out one job as agents that always succeed would.
func (w *world) act(j ledger.Job) {
	w.t.Helper()
	ctx := w.t.Context()
	switch j.Kind {
	case ledger.JobLaunch:
		w.pass(4 * w.slow)
		w.must(w.Started(ctx, j.UID, j.Attempt, ledger.Started{ActorName: j.LaunchID, ActorID: "a", Node: "4f1c9a27e5b8d3064f1c9a27e5b8d3064f1c9a27e5b8d3064f1c9a27", PID: 41873, Warm: true, Launch: 3 * w.slow}))
	case ledger.JobMakeGroup:
		w.pass(w.slow)
		w.must(w.GroupMade(ctx, j.UID, j.Attempt, slices.Repeat([]string{"node-1"}, len(j.Group.Bundles))))
	case ledger.JobDropGroup:
		w.pass(w.slow)
		w.must(w.GroupGone(ctx, j.UID, j.Attempt))
	case ledger.JobStop:
		w.pass(w.slow)
		w.must(w.Gone(ctx, j.UID, j.Attempt))
	case ledger.JobTake:
		w.pass(w.slow / 10)
		w.must(w.TakePhase(ctx, j.UID, j.Attempt, ledger.TakeReport{Phase: "cancelling"}))
		cancelled, saved := map[sched.ID]ledger.CancelOutcome{}, map[sched.ID]ledger.SaveOutcome{}
		for _, t := range j.Tasks {
			cancelled[t.UID] = ledger.CancelOutcome{Success: true}
			saved[t.UID] = ledger.SaveOutcome{State: json.RawMessage(fmt.Sprintf(`{"task_id": %q, "pool_name": %q, "step": 1840, "accuracy": 0.913, "checkpoint": "s3://ckpt/step-1840"}`, t.TaskID, t.Pool))}
		}
		w.pass(w.slow)
		w.must(w.TakePhase(ctx, j.UID, j.Attempt, ledger.TakeReport{Phase: "saving", Cancel: cancelled}))
		w.pass(2 * w.slow)
		if j.KeepAgent {
			w.must(w.HandDone(ctx, j.UID, j.Attempt, saved[j.UID]))
			return
		}
		w.must(w.TakePhase(ctx, j.UID, j.Attempt, ledger.TakeReport{Phase: "killing", Saved: saved}))
		w.pass(w.slow)
		w.must(w.Gone(ctx, j.UID, j.Attempt))
	}
}

func (w *world) take() (ledger.Job, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.jobs) == 0 {
		return ledger.Job{}, false
	}
	j := w.jobs[0]
	w.jobs = w.jobs[1:]
	return j, true
}

// settle carries out jobs until none is left.
func (w *world) settle() {
	w.t.Helper()
	for j, ok := w.take(); ok; j, ok = w.take() {
		w.act(j)
	}
}

func (w *world) makePool(name string, labels sched.Labels, units map[string]float64) {
	w.t.Helper()
	capacity, err := sched.FromUnits(units)
	w.must(err)
	targets := 4
	_, err = w.CreatePool(w.t.Context(), "default", ledger.PoolSpec{Name: name, Capacity: &capacity, Labels: &labels, TargetAgents: &targets, Actor: "mei"})
	w.must(err)
}

type units map[string]float64

func (w *world) submit(id, pool string, u units, priority float64, change ...func(*ledger.Submission)) {
	w.t.Helper()
	request, err := sched.FromUnits(u)
	w.must(err)
	s := ledger.Submission{TaskID: id, Pool: pool, Request: request, Priority: sched.Milli(priority * 1000), Actor: "mei",
		Spec: ledger.Spec{ActorClass: "trainers.llama:Trainer", Kwargs: json.RawMessage(`{"steps": 4000}`), Entry: &ledger.Entry{Method: "run"}}}
	for _, f := range change {
		f(&s)
	}
	_, err = w.Submit(w.t.Context(), "default", s)
	w.must(err)
}

func labelled(k, v string) func(*ledger.Submission) {
	return func(s *ledger.Submission) { s.Labels = sched.Labels{k: v} }
}
func queueing(s *ledger.Submission)   { s.OnInsufficient = ledger.Queue }
func requeueing(s *ledger.Submission) { s.OnPreempted = ledger.Requeue }
func lasting(d time.Duration) func(*ledger.Submission) {
	return func(s *ledger.Submission) { s.Estimate = d }
}

func (w *world) policy(patch, comment string) {
	w.t.Helper()
	_, err := w.PutPolicy(w.t.Context(), "default", ledger.PolicyChange{Patch: json.RawMessage(patch), Author: "mei", Comment: comment})
	w.must(err)
}

// preempt preempts a task by hand, as its page does.
func (w *world) preempt(id string) {
	w.t.Helper()
	done := make(chan error, 1)
	go func() { done <- w.view.PreemptTask(context.Background(), "default", id) }()
	for {
		select {
		case err := <-done:
			w.must(err)
			return
		case <-w.more:
			w.settle()
		}
	}
}

// tell is a day at a small company: label preemption with a requeue, a loan between
// pools, a preemption by hand, failures, queues.
func tell(t *testing.T) *world {
	w := open(t)
	ctx := t.Context()
	w.policy(`{"label_preemption_rules": {"training_stage": {"rlhf": ["sft", "pretraining"], "sft": ["pretraining"]}}}`, "Stages before priorities")
	w.makePool("train-a100", sched.Labels{"tier": "premium"}, units{"gpu": 8, "cpu": 64, "memory": 524288})
	w.makePool("batch", sched.Labels{"tier": "batch"}, units{"gpu": 4, "cpu": 64, "memory": 131072})
	w.makePool("edge", nil, units{"cpu": 16, "memory": 32768})

	w.submit("llama-70b-pretrain", "train-a100", units{"gpu": 8, "cpu": 48, "memory": 262144}, 5, labelled("training_stage", "pretraining"), requeueing, queueing, lasting(time.Hour))
	w.settle()
	w.submit("etl-nightly", "edge", units{"cpu": 4, "memory": 4096}, 1, lasting(20*time.Minute))
	w.submit("eval-mmlu", "batch", units{"gpu": 3, "cpu": 8}, 1, lasting(2*time.Hour))
	w.settle()
	w.submit("tok-bench", "edge", units{"cpu": 2}, 3)
	w.pass(2 * time.Second)
	j, _ := w.take()
	w.must(w.LaunchFailed(ctx, j.UID, j.Attempt, "constructor_failed", "ValueError: vocab.json has 50,257 entries, the model 50,304"))
	w.pass(30 * time.Minute)
	w.submit("llama-7b-rlhf", "train-a100", units{"gpu": 6, "cpu": 32, "memory": 131072}, 5, labelled("training_stage", "rlhf"), lasting(90*time.Minute))
	w.settle()
	w.pass(time.Minute)
	w.submit("llama-13b-sft", "train-a100", units{"gpu": 8, "cpu": 32}, 4.5, labelled("training_stage", "sft"), queueing)
	w.submit("vision-03", "train-a100", units{"gpu": 3, "cpu": 8}, 9, requeueing) // borrows from batch
	w.settle()
	w.pass(5 * time.Minute)
	_, err := w.Complete(ctx, "default", "etl-nightly", "jonas")
	w.must(err)
	w.settle()
	w.submit("notebook", "edge", units{"cpu": 2}, 5)
	w.settle()
	for len(w.more) > 0 {
		<-w.more
	}
	w.pass(time.Minute)
	w.preempt("notebook")
	w.submit("reward-07", "edge", units{"cpu": 1}, 5)
	w.settle()
	w.pass(time.Minute)
	reward, err := w.Task(ctx, "default", "reward-07")
	w.must(err)
	w.must(w.EntryDone(ctx, reward.UID, 1, false, "", json.RawMessage(`{"reward": 0.71, "samples": 20480}`), false))
	w.settle()
	_, err = w.Register(ctx, "default", ledger.Registration{TaskID: "legacy-job", AgentName: "old-worker", Pool: "somewhere", Priority: 4000, Actor: "amara"})
	w.must(err)
	w.pass(12 * time.Second)
	return w
}

// printed is what every task prints.
type printed struct{}

func (printed) Logs(_ context.Context, _, _, stream string, offset, limit int64) (string, int64, bool, error) {
	text := ""
	if stream == "stdout" {
		for i := range 30 {
			text += fmt.Sprintf("step %4d loss %.4f\n", 1440+i, 2.31-float64(i)/900)
		}
	}
	n := int64(len(text))
	if offset < 0 {
		offset = max(0, n+offset)
	}
	offset = min(offset, n)
	end := min(n, offset+limit)
	return text[offset:end], end, end == n, nil
}

// notStopped says of all tasks of a job that they did not stop when told to.
func notStopped(j ledger.Job, why string) map[sched.ID]ledger.CancelOutcome {
	out := map[sched.ID]ledger.CancelOutcome{}
	for _, t := range j.Tasks {
		out[t.UID] = ledger.CancelOutcome{Error: why}
	}
	return out
}
