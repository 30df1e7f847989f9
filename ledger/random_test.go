package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// A long random life over three pools: submissions that preempt, borrow and queue, alone
// and in gangs, launches that fail and are tried again, undone handovers, cancels at bad
// moments, pools and nodes that are held and drained, deadlines, restarts. After each
// step every balance must be what tasks and loans say, and in the end, when
// everything was cancelled, nothing may be held.
func TestWhateverHappensTheBalancesAddUp(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			randomLife(t, rand.New(rand.NewPCG(seed, 7)))
		})
	}
}

func randomLife(t *testing.T, rng *rand.Rand) {
	w := open(t)
	ctx := t.Context()
	pools := []string{"a", "b", "c"}
	for _, p := range pools {
		w.makePool(p, float64(2+rng.IntN(5)))
	}
	w.policy(`{"cross_pool_priority_threshold": 2, "label_preemption_rules": {"tier": {"gold": ["tin"]}}}`)
	w.must(w.SetNodes(ctx, "local", []sched.Node{{ID: "n1", Total: sched.Resources{CPU: 8000, Memory: 1 << 20}, Room: sched.Resources{CPU: 8000, Memory: 1 << 20}},
		{ID: "n2", Total: sched.Resources{CPU: 4000, Memory: 1 << 20}, Room: sched.Resources{CPU: 3000, Memory: 1 << 20}}}))
	var ids []string
	gangs := 0
	for step := range 120 {
		switch k := rng.IntN(15); {
		case k < 5:
			id := fmt.Sprintf("t%d", step)
			s := randomTask(rng, id, pools[rng.IntN(3)], 8)
			if _, err := w.Submit(ctx, "default", s); err == nil {
				ids = append(ids, id)
			} else if ledger.CodeOf(err) == "internal" {
				t.Fatal(err)
			}
		case k < 9:
			w.randomJob(rng)
		case k == 9 && len(ids) > 0:
			_, err := w.Cancel(ctx, "default", ids[rng.IntN(len(ids))], "test")
			w.fine(err)
		case k == 10 && len(ids) > 0:
			_, err := w.Complete(ctx, "default", ids[rng.IntN(len(ids))], "test")
			w.fine(err)
		case k == 12:
			var gang []ledger.Submission
			wait, pool := []string{ledger.Fail, ledger.Queue}[rng.IntN(2)], pools[rng.IntN(3)]
			for i := range 2 + rng.IntN(3) {
				s := randomTask(rng, fmt.Sprintf("g%d.%d", step, i), pool, 3)
				if s.OnInsufficient = wait; wait == ledger.Fail {
					s.Pool = pools[rng.IntN(3)]
				}
				s.Priority += 3000
				gang = append(gang, s)
			}
			if _, err := w.SubmitAll(ctx, "default", gang, true); err == nil {
				gangs++
				for _, s := range gang {
					ids = append(ids, s.TaskID)
				}
			} else if ledger.CodeOf(err) == "internal" {
				t.Fatal(err)
			}
		case k == 13:
			var soon *time.Duration
			if rng.IntN(2) == 0 {
				soon = new(time.Duration)
			}
			r := ledger.HoldRequest{State: []string{"", ledger.Held, ledger.Draining}[rng.IntN(3)], Deadline: soon, Actor: "test"}
			if rng.IntN(2) == 0 {
				_, err := w.HoldPool(ctx, "default", pools[rng.IntN(3)], r)
				w.fine(err)
			} else {
				_, err := w.HoldNode(ctx, []sched.NodeID{"n1", "n2"}[rng.IntN(2)], r)
				w.fine(err)
			}
			w.must(w.EndOverdue(ctx))
		case k == 14:
			w.must(w.EndOverdue(ctx))
			w.open(pools)
		case k == 11 && step%4 == 0:
			w.Close()
			next := reopen(t, w.db)
			w.must(next.forceWork())
			w = next
			w.must(w.SetNodes(ctx, "local", []sched.Node{{ID: "n1", Total: sched.Resources{CPU: 8000, Memory: 1 << 20}, Room: sched.Resources{CPU: 8000, Memory: 1 << 20}},
				{ID: "n2", Total: sched.Resources{CPU: 4000, Memory: 1 << 20}, Room: sched.Resources{CPU: 3000, Memory: 1 << 20}}}))
		}
		w.verified()
		if t.Failed() {
			t.Fatalf("at step %d", step)
		}
	}
	w.open(pools)
	for range 20 { // cancelling lets queued ones start, which are then cancelled in turn
		for _, id := range ids {
			_, err := w.Cancel(ctx, "default", id, "test")
			w.fine(err)
		}
		w.settleLoosely()
	}
	w.must(w.forceWork())
	w.settleLoosely()
	w.verified()
	for _, p := range pools {
		got, err := w.Pool(ctx, "default", p)
		w.must(err)
		for _, b := range got.Balances {
			if b.Reserved != 0 || b.Used != 0 || b.Lent != 0 || b.Borrowed != 0 {
				t.Errorf("pool %s still has %+v", p, b)
			}
		}
	}
	stats, err := w.Stats(ctx, "default")
	w.must(err)
	t.Logf("%d tasks, %d gangs; preemptions: %d label, %d same pool, %d cross pool", len(ids), gangs, stats.Label, stats.SamePool, stats.CrossPool)
	if stats.Total == 0 {
		t.Error("nothing was ever preempted: this proved nothing")
	}
	counts, err := w.Counts(ctx, "default")
	w.must(err)
	if len(counts) != 0 {
		t.Errorf("tasks are still live: %v", counts)
	}
}

func randomTask(rng *rand.Rand, id, pool string, size int) ledger.Submission {
	s := sub(id, pool, float64(1+rng.IntN(size))/2, float64(rng.IntN(10)))
	s.Labels = sched.Labels{"tier": []string{"gold", "tin", "clay"}[rng.IntN(3)]}
	s.OnInsufficient = []string{ledger.Fail, ledger.Queue}[rng.IntN(2)]
	s.OnPreempted = []string{ledger.Stop, ledger.Requeue}[rng.IntN(2)]
	s.OnFailure = []string{ledger.Stop, ledger.Requeue}[rng.IntN(2)]
	s.RetryBackoff = []*time.Duration{nil, new(time.Duration)}[rng.IntN(2)]
	s.QueueTimeout = []time.Duration{0, 50 * time.Millisecond, time.Hour}[rng.IntN(3)]
	s.MaxRuntime = []time.Duration{0, 0, 20 * time.Millisecond, time.Hour}[rng.IntN(4)]
	s.Estimate = []time.Duration{0, time.Minute}[rng.IntN(2)]
	return s
}

// open resumes whatever is held.
func (w *world) open(pools []string) {
	w.t.Helper()
	ctx := context.Background()
	for _, p := range pools {
		_, err := w.HoldPool(ctx, "default", p, ledger.HoldRequest{})
		w.fine(err)
	}
	for _, n := range []sched.NodeID{"n1", "n2"} {
		_, err := w.HoldNode(ctx, n, ledger.HoldRequest{})
		w.fine(err)
	}
}

// fine allows what may well be refused at a bad moment.
func (w *world) fine(err error) {
	w.t.Helper()
	if err != nil && !errors.Is(err, ledger.ErrWrongState) && !errors.Is(err, ledger.ErrUnknownTask) {
		w.t.Fatal(err)
	}
}

// randomJob takes one of the jobs and does it, or fails it, or half of it.
func (w *world) randomJob(rng *rand.Rand) {
	w.t.Helper()
	ctx := context.Background()
	w.mu.Lock()
	if len(w.jobs) == 0 {
		w.mu.Unlock()
		return
	}
	at := rng.IntN(len(w.jobs))
	j := w.jobs[at]
	w.jobs = append(w.jobs[:at:at], w.jobs[at+1:]...)
	w.mu.Unlock()
	switch j.Kind {
	case ledger.JobLaunch:
		switch rng.IntN(4) {
		case 0:
			w.fine(w.LaunchFailed(ctx, j.UID, j.Attempt, "constructor_failed", "no luck"))
		case 1:
			w.fine(w.Launching(ctx, j.UID, j.Attempt))
			w.announce([]ledger.Job{j})
		default:
			if err := w.Started(ctx, j.UID, j.Attempt, ledger.Started{Node: j.Node}); err == nil && rng.IntN(5) == 0 {
				w.fine(w.EntryDone(ctx, j.UID, j.Attempt, rng.IntN(2) == 0, "done", json.RawMessage(`1`), false))
			} else {
				w.fine(err)
			}
		}
	case ledger.JobStop:
		w.fine(w.Gone(ctx, j.UID, j.Attempt))
	case ledger.JobTake:
		if rng.IntN(4) == 0 {
			undone, err := w.Undo(ctx, j.UID, "bridge_unavailable", "down")
			w.fine(err)
			if undone {
				return
			}
		}
		w.actLoosely(j)
	}
}

// actLoosely does a job that may have become pointless meanwhile.
func (w *world) actLoosely(j ledger.Job) {
	w.t.Helper()
	ctx := context.Background()
	switch j.Kind {
	case ledger.JobLaunch:
		w.fine(w.Started(ctx, j.UID, j.Attempt, ledger.Started{Node: j.Node}))
	case ledger.JobStop:
		w.fine(w.Gone(ctx, j.UID, j.Attempt))
	case ledger.JobTake:
		for _, phase := range []string{"cancelling", "saving", "killing"} {
			w.fine(w.TakePhase(ctx, j.UID, j.Attempt, ledger.TakeReport{Phase: phase}))
		}
		w.fine(w.Gone(ctx, j.UID, j.Attempt))
	}
}

func (w *world) settleLoosely() {
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
		w.actLoosely(j)
	}
}
