package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// dump is all that the book says.
func (w *world) dump() string {
	w.t.Helper()
	d, err := w.Dump(w.t.Context())
	w.must(err)
	return d
}

// asFresh fails the test when the book is not what a server that starts now would read.
func (w *world) asFresh() {
	w.t.Helper()
	have := w.dump()
	fresh := reopen(w.t, w.db)
	want := fresh.dump()
	fresh.Close()
	if have == want {
		return
	}
	had := map[string]bool{}
	for line := range strings.SplitSeq(have, "\n") {
		had[line] = true
	}
	for line := range strings.SplitSeq(want, "\n") {
		if !had[line] {
			w.t.Errorf("a fresh book also says: %s", line)
		}
		delete(had, line)
	}
	for line := range had {
		w.t.Errorf("a fresh book does not say: %s", line)
	}
}

// grow makes pools with many running tasks, fast.
func grow(t *testing.T, db *pgxpool.Pool, pools, tasks int) {
	t.Helper()
	for _, sql := range []string{`
INSERT INTO tasks (uid, namespace_id, kind, task_id, pool_id, pool_name, state, priority, request, held, held_as, agent_name, launch_id, submitted_at, started_at, launch_ms)
SELECT uid, namespace_id, 'task', name || '-' || i, id, name, 'running', 1000 + i % 7 * 1000, '{"cpu": 1000}', '{"cpu": 1000}', 'used', name || '-agent-' || i, uid || '.1', now(), now(), 60000
FROM (SELECT gen_random_uuid() AS uid, p.*, i FROM pools p, generate_series(1, $1) i) x`,
		`UPDATE pool_resources SET used = $1 * 1000 WHERE resource = 'cpu'`} {
		if _, err := db.Exec(t.Context(), sql, tasks); err != nil {
			t.Fatal(err)
		}
	}
}

// While a server loads, calls come in from all sides: on pools that are loaded and that
// are not, that fit and that do not, on tasks by name, questions about everything. All are
// answered rightly, and in the end the book is what one loaded at once would be.
func TestCallsComeInWhileAServerLoads(t *testing.T) {
	t.Parallel()
	w := open(t)
	const pools, tasks = 6, 2500
	for i := range pools {
		w.makePool(fmt.Sprint("p", i), tasks+10)
	}
	w.Close()
	grow(t, w.db, pools, tasks)
	for seed := range uint64(2) {
		w = reopen(t, w.db)
		var wg sync.WaitGroup
		for c := range 8 {
			rng := rand.New(rand.NewPCG(seed, uint64(c)))
			wg.Go(func() {
				for i := range 15 {
					w.disturb(rng, fmt.Sprintf("new-%d-%d-%d", seed, c, i), pools, tasks)
				}
			})
		}
		wg.Wait()
		w.must(waitReady(w.Ledger))
		w.settleLoosely()
		w.verified()
		w.asFresh()
		w.Close()
	}
}

func (w *world) disturb(rng *rand.Rand, id string, pools, tasks int) {
	ctx := context.Background()
	pool := fmt.Sprint("p", rng.IntN(pools))
	running := fmt.Sprintf("%s-%d", pool, 1+rng.IntN(tasks))
	switch rng.IntN(6) {
	case 0: // fits
		if _, err := w.Submit(ctx, "default", ledger.Submission{TaskID: id, Pool: pool, Request: sched.Resources{Memory: 1}, Spec: ledger.Spec{ActorClass: "m:C"}}); err != nil {
			w.t.Errorf("%s did not fit: %v", id, err)
		}
	case 1: // has to take room, also of other pools
		s := sub(id, pool, 12, 9)
		s.OnInsufficient = ledger.Queue
		if _, err := w.Submit(ctx, "default", s); err != nil {
			w.t.Errorf("%s: %v", id, err)
		}
	case 2: // never
		if _, err := w.Submit(ctx, "default", sub(id, pool, 1e6, 9)); ledger.CodeOf(err) != "request_too_large" {
			w.t.Errorf("%s: %v", id, err)
		}
	case 3:
		_, err := w.Cancel(ctx, "default", running, "test")
		if err != nil && !errors.Is(err, ledger.ErrWrongState) {
			w.t.Errorf("cancelling %s: %v", running, err)
		}
	case 4:
		if _, err := w.Cancel(ctx, "default", "nobody", "test"); !errors.Is(err, ledger.ErrUnknownTask) {
			w.t.Errorf("cancelling nobody: %v", err)
		}
	case 5:
		res, err := w.Evaluate(ctx, "default", ledger.Evaluation{Pool: pool, Priority: 9000, Limit: 1000})
		if err != nil || len(res.Candidates) != 1000 { // all are loaded before anybody is chosen
			w.t.Errorf("%d candidates: %v", len(res.Candidates), err)
		}
	}
}

func waitReady(l *ledger.Ledger) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := l.Ready(context.Background())
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Handovers across pools, loans and waiting preemptors come out right whichever pool is loaded first.
func TestAHandoverAcrossPoolsSurvivesAStartAtEveryPhase(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"lender", "borrower"} {
		for phases := range 4 {
			t.Run(fmt.Sprint(first, phases), func(t *testing.T) {
				t.Parallel()
				w := open(t)
				w.makePool(first, 4)
				w.makePool(map[string]string{"lender": "borrower", "borrower": "lender"}[first], 4)
				w.policy(`{"cross_pool_priority_threshold": 2, "max_preemptions_per_minute": 50}`)
				w.run(sub("own", "borrower", 4, 9))
				w.run(sub("victim", "lender", 4, 1))
				w.submit(sub("vip", "borrower", 3, 8))
				j := w.next(ledger.JobTake)
				for _, phase := range []string{"cancelling", "saving", "killing"}[:phases] {
					w.must(w.TakePhase(t.Context(), j.UID, j.Attempt, ledger.TakeReport{Phase: phase}))
				}
				w.asFresh()
				w.Close()

				w = reopen(t, w.db)
				jobs, err := w.Work(t.Context())
				w.must(err)
				w.announce(jobs)
				w.settle()
				w.state("vip", ledger.Running)
				w.state("victim", ledger.Preempted)
				w.verified()
				w.asFresh()
				_, err = w.Complete(t.Context(), "default", "vip", "test")
				w.must(err)
				w.settle()
				if b := w.balance("lender"); b.Lent != 0 {
					t.Errorf("%d are still lent", b.Lent)
				}
				w.verified()
			})
		}
	}
}

// A pool whose row is locked by somebody else stops neither the others nor the server.
func TestACallWaitsForItsPoolAndCanBeGivenUp(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 4)
	w.makePool("b", 4)
	w.run(sub("one", "a", 1, 1))
	w.Close()
	tx, err := w.db.Begin(t.Context())
	w.must(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), "LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE")
	w.must(err)
	w = reopen(t, w.db)
	if err := w.Ready(t.Context()); !errors.Is(err, ledger.ErrUnavailable) || !strings.Contains(err.Error(), "0 of 2 pools are loaded") {
		t.Errorf("ready says %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := w.Submit(ctx, "default", sub("late", "a", 1, 1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call on a pool that is not loaded was answered %v", err)
	}
	w.must(tx.Rollback(t.Context()))
	w.must(waitReady(w.Ledger))
	if _, err := w.Task(t.Context(), "default", "late"); !errors.Is(err, ledger.ErrUnknownTask) {
		t.Errorf("what was given up was decided all the same: %v", err)
	}
	w.submit(sub("late", "a", 1, 1))
	w.asFresh()
}

// max_preemptions_per_minute counts what was lost before a restart.
func TestAStartRemembersWhoLostTasksLately(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 2)
	w.policy(`{"max_preemptions_per_minute": 1}`)
	w.run(sub("one", "a", 1, 1))
	w.run(sub("two", "a", 1, 1))
	w.run(sub("vip", "a", 1, 5))
	w.Close()
	w = reopen(t, w.db)
	_, err := w.Submit(t.Context(), "default", sub("greedy", "a", 1, 9))
	if ledger.CodeOf(err) != ledger.ErrInsufficient.Code {
		t.Fatalf("a second preemption within a minute: %v", err)
	}
	w.verified()
}
