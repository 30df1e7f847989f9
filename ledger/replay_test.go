package ledger_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/db"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/sched/replay"
	"github.com/schedulemesh/schedulemesh/testdb"
)

// What is simulated is what the product does: the same tasks through the replay
// engine and through the ledger, on Postgres, with a clock of our own. The same
// victims must make way for the same tasks in the same order, and the same tasks
// end at the same time.
func TestTheReplayDoesWhatTheLedgerDoes(t *testing.T) {
	t.Parallel()
	var preemptions, loans, waits atomic.Int64
	t.Run("seeds", func(t *testing.T) {
		for seed := range uint64(8) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				s := compare(t, seed)
				preemptions.Add(s.Preemptions.Total)
				loans.Add(s.Loans)
				waits.Add(s.PeakWaiting)
			})
		}
	})
	t.Logf("%d preemptions, %d loans, up to %d waited", preemptions.Load(), loans.Load(), waits.Load())
	if preemptions.Load() < 20 || loans.Load() == 0 || waits.Load() == 0 {
		t.Error("too little happened: this proved nothing")
	}
}

func compare(t *testing.T, seed uint64) replay.Summary {
	rng := rand.New(rand.NewPCG(seed, 11))
	patch := `{"cross_pool_priority_threshold": 2, "label_preemption_rules": {"tier": {"gold": ["tin"]}}, "ageing_weight": 0.5`
	if seed%3 == 1 {
		patch += `, "max_preemptions_per_minute": 2`
	}
	if seed%3 == 2 {
		patch += `, "min_runtime_seconds": 5, "max_preemptions_per_task": 2`
	}
	patch += "}"
	pools := map[string]float64{"a": 4, "b": 6, "c": 3}
	var nodes []sched.Node
	if seed%2 == 1 {
		for i := range 3 {
			total := sched.Resources{CPU: 6000, Memory: 1 << 20}
			nodes = append(nodes, sched.Node{ID: sched.NodeID(fmt.Sprint("n", i)), Cluster: "local", Total: total, Room: total})
		}
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMilli()
	var tasks []replay.Task
	for i := range 70 {
		at += 500 + rng.Int64N(4_000) // never two at a time
		x := replay.Task{Name: fmt.Sprintf("t%02d", i), At: sched.Time(at), Pool: []string{"a", "b", "c"}[rng.IntN(3)], Priority: sched.Milli(500 * rng.IntN(20)),
			Labels: sched.Labels{"tier": []string{"gold", "tin", "clay"}[rng.IntN(3)]}, Request: sched.Resources{CPU: 500 * (1 + rng.Int64N(5))},
			Duration: sched.Time(3_000 + rng.Int64N(40_000)), Queue: rng.IntN(3) > 0, Requeue: rng.IntN(2) == 0}
		if rng.IntN(2) == 0 {
			x.Estimate = sched.Time(1_000 + rng.Int64N(60_000))
		}
		tasks = append(tasks, x)
	}
	return replayed(t, patch, pools, nodes, tasks)
}

// replayed runs both, and compares their diaries.
func replayed(t *testing.T, patch string, pools map[string]float64, nodes []sched.Node, tasks []replay.Task) replay.Summary {
	policy, _, err := sched.DefaultPolicy().Patch([]byte(patch))
	if err != nil {
		t.Fatal(err)
	}
	var engine []string
	cfg := replay.Config{Policy: policy, Nodes: nodes, Preempted: func(p replay.Preemption) {
		engine = append(engine, fmt.Sprintf("%s makes way for %s, %s, score %s", p.Victim, p.By, p.Reason, p.Score))
	}}
	for name, cpu := range pools {
		cfg.Pools = append(cfg.Pools, replay.Pool{Name: name, Cluster: "local", Capacity: sched.Resources{CPU: int64(cpu * 1000), Memory: int64(1024 * cpu)}})
	}
	r, err := replay.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range tasks {
		if err := r.Submit(x); err != nil {
			t.Fatal(err)
		}
	}
	for r.Step() {
	}
	s := r.Summary()

	w := openTimed(t, int64(tasks[0].At))
	for name, cpu := range pools {
		w.makePool(name, cpu)
	}
	w.policy(patch)
	w.must(w.SetNodes(t.Context(), "local", nodes))
	for _, x := range tasks {
		w.until(int64(x.At))
		w.arrive(x)
	}
	w.until(never)
	w.verified()
	page, err := w.Preemptions(t.Context(), "default", 500, "")
	w.must(err)
	var real []string
	for _, p := range slices.Backward(page.Items) {
		real = append(real, fmt.Sprintf("%s makes way for %s, %s, score %s", p.VictimTask, p.PreemptorTask, p.Reason, p.Score))
	}
	for i := range max(len(engine), len(real)) {
		if i >= len(engine) || i >= len(real) || engine[i] != real[i] {
			t.Fatalf("they part at preemption %d:\nengine %q\nledger %q", i, engine[i:min(i+3, len(engine))], real[i:min(i+3, len(real))])
		}
	}
	if end := time.UnixMilli(int64(tasks[0].At)).Add(time.Duration(s.SimulatedSeconds * float64(time.Second))); !w.last.Equal(end.UTC()) || w.completed != s.Completed {
		t.Errorf("the engine ends at %v with %d completed, the ledger at %v with %d", end.UTC(), s.Completed, w.last, w.completed)
	}
	return s
}

// timed is a world whose clock we set, and whose agents do at once what they are told
// and work for as long as tasks say.
type timed struct {
	*world
	clock     atomic.Int64 // milliseconds
	left      map[string]int64
	ends      []ending
	last      time.Time
	completed int64
}

type ending struct {
	at   int64
	task string
}

const never = 1 << 60

func openTimed(t *testing.T, at int64) *timed {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testdb.Migrated(t, db.Key(), db.Migrate))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	w := &timed{world: &world{t: t, db: pool, more: make(chan struct{}, 1)}, left: map[string]int64{}}
	w.clock.Store(at)
	w.Ledger, err = ledger.Open(t.Context(), pool, ledger.Options{Jobs: w.announce, Now: func() time.Time { return time.UnixMilli(w.clock.Load()) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func (w *timed) arrive(x replay.Task) {
	w.left[x.Name] = int64(x.Duration)
	s := ledger.Submission{TaskID: x.Name, Pool: x.Pool, Request: x.Request, Priority: x.Priority, Labels: x.Labels, Estimate: time.Duration(x.Estimate) * time.Millisecond,
		Spec: ledger.Spec{ActorClass: "m:C"}}
	if x.Queue {
		s.OnInsufficient = ledger.Queue
	}
	if x.Requeue {
		s.OnPreempted = ledger.Requeue
	}
	if _, err := w.Submit(w.t.Context(), "default", s); err != nil && ledger.CodeOf(err) != "insufficient_resources" && ledger.CodeOf(err) != "request_too_large" {
		w.t.Fatal(err)
	}
	w.carryOut()
}

// until lets time pass up to then; tasks that are done end meanwhile.
func (w *timed) until(at int64) {
	for {
		slices.SortStableFunc(w.ends, func(a, b ending) int { return cmp.Compare(a.at, b.at) })
		if len(w.ends) == 0 || w.ends[0].at > at {
			break
		}
		e := w.ends[0]
		w.ends = w.ends[1:]
		w.clock.Store(e.at)
		_, err := w.Complete(w.t.Context(), "default", e.task, "test")
		w.must(err)
		w.completed++
		w.last = time.UnixMilli(e.at).UTC()
		w.carryOut()
	}
	if at != never {
		w.clock.Store(at)
	}
}

// carryOut does all jobs there are, as agents that need no time.
func (w *timed) carryOut() {
	now := w.clock.Load()
	for {
		w.mu.Lock()
		if len(w.jobs) == 0 {
			w.mu.Unlock()
			return
		}
		j := w.jobs[0]
		w.jobs = w.jobs[1:]
		w.mu.Unlock()
		switch j.Kind {
		case ledger.JobLaunch:
			if err := w.Started(w.t.Context(), j.UID, j.Attempt, ledger.Started{Node: j.Node}); err != nil {
				w.fine(err) // taken again before it was launched
				continue
			}
			w.ends = append(w.ends, ending{now + w.left[j.TaskID], j.TaskID})
		case ledger.JobTake:
			if at := slices.IndexFunc(w.ends, func(e ending) bool { return e.task == j.TaskID }); at >= 0 {
				w.left[j.TaskID] = w.ends[at].at - now
				w.ends = slices.Delete(w.ends, at, at+1)
			}
			w.act(j)
		default:
			w.act(j)
		}
	}
}
