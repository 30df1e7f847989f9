package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// hands carry out jobs as they come, like agents that always succeed, until they are held.
func (w *world) hands() (held *atomic.Bool) {
	held = &atomic.Bool{}
	ctx := w.t.Context()
	go func() {
		for ctx.Err() == nil {
			select {
			case <-w.more:
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
				return
			}
			for !held.Load() {
				w.mu.Lock()
				jobs := w.jobs
				w.jobs = nil
				w.mu.Unlock()
				if len(jobs) == 0 {
					break
				}
				for _, j := range jobs {
					switch j.Kind { // what is over by now is refused, which is as it should be
					case ledger.JobLaunch:
						_ = w.Started(ctx, j.UID, j.Attempt, ledger.Started{ActorName: j.LaunchID, ActorID: "a", Node: j.Node, PID: 1})
					case ledger.JobStop:
						_ = w.Gone(ctx, j.UID, j.Attempt)
					case ledger.JobTake:
						if j.KeepAgent { // what takes an agent is stopped by force when its namespace is cleared
							_ = w.HandDone(ctx, j.UID, j.Attempt, ledger.SaveOutcome{})
						}
					}
				}
			}
		}
	}()
	return held
}

func by(id string, change ...func(*ledger.NamespaceHold)) ledger.NamespaceHold {
	h := ledger.NamespaceHold{Session: id, Owner: id + "@host", TTL: time.Minute}
	for _, f := range change {
		f(&h)
	}
	return h
}

func replacing(id string) func(*ledger.NamespaceHold) {
	return func(h *ledger.NamespaceHold) { h.Replace = id }
}

func (w *world) hold(ns string, h ledger.NamespaceHold) ledger.NamespaceHeld {
	w.t.Helper()
	n, err := w.HoldNamespace(w.t.Context(), ns, h)
	w.must(err)
	return n
}

func (w *world) poolIn(ns, name string, cpu float64) {
	w.t.Helper()
	_, err := w.CreatePool(w.t.Context(), ns, ledger.PoolSpec{Name: name, Capacity: cpus(cpu)})
	w.must(err)
}

func (w *world) submitIn(ns string, s ledger.Submission) ledger.Task {
	w.t.Helper()
	t, err := w.Submit(w.t.Context(), ns, s)
	w.must(err)
	return t
}

func (w *world) refused(err error, want *ledger.Error, says ...string) {
	w.t.Helper()
	if !errors.Is(err, want) {
		w.t.Fatalf("%v, want %s", err, want.Code)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			w.t.Errorf("it does not say %q: %v", s, err)
		}
	}
}

// used fills a namespace with one of everything: what runs, waits, was preempted and ended,
// a loan, an agent without a task, registrations, a policy, a kept answer.
func (w *world) used(ns string) {
	w.t.Helper()
	ctx := w.t.Context()
	w.poolIn(ns, "p", 4)
	w.poolIn(ns, "q", 2)
	_, err := w.PutPolicy(ctx, ns, ledger.PolicyChange{Patch: []byte(`{"cross_pool_priority_threshold": 1}`), Author: "ann"})
	w.must(err)
	done := func(id, what string, ok func(ledger.Task) bool) {
		w.t.Helper()
		eventually(w.t, id+" "+what, 10*time.Second, func() bool { t, err := w.Task(ctx, ns, id); return err == nil && ok(t) })
	}
	is := func(s ledger.State) func(ledger.Task) bool {
		return func(t ledger.Task) bool { return t.State == s }
	}
	w.submitIn(ns, sub("low", "p", 3, 1))
	done("low", "runs", is(ledger.Running))
	w.submitIn(ns, sub("ended", "q", 1, 1))
	done("ended", "runs", is(ledger.Running))
	_, err = w.Complete(ctx, ns, "ended", "ann")
	w.must(err)
	done("ended", "has ended", is(ledger.Completed))
	w.submitIn(ns, sub("high", "q", 4, 9)) // borrows from p, where low makes way
	w.submitIn(ns, sub("waits", "p", 4, 1, queueing))
	_, err = w.CreateAgent(ctx, ns, ledger.AgentSubmission{Name: "idle", Pool: "p", Request: *cpus(0.5), Spec: ledger.Spec{ActorClass: "m:C"}})
	if err != nil && !errors.Is(err, ledger.ErrInsufficient) {
		w.t.Fatal(err)
	}
	_, err = w.Register(ctx, ns, ledger.Registration{TaskID: "guest", AgentName: "theirs", Pool: "elsewhere", Priority: 1000})
	w.must(err)
	_, err = w.PutStateHandlers(ctx, ns, ledger.StateHandlers{Pool: "p", Preserver: &ledger.Handler{Name: "keep", Pickled: []byte("p")}}, "ann")
	w.must(err)
	_, _, _, err = w.Idempotent(ctx, ns, "key", []byte("f"), func(context.Context) (int, []byte, error) { return 200, []byte("{}"), nil })
	w.must(err)
}

// leftovers counts the rows of a namespace in every table that has any.
func (w *world) leftovers(ns string) (out string) {
	w.t.Helper()
	for _, table := range []string{"tasks", "task_events", "preemptions", "pools", "idempotency_keys", "policies", "state_handlers"} {
		n := 0
		w.must(w.db.QueryRow(w.t.Context(), "SELECT count(*) FROM "+table+" WHERE namespace_id = (SELECT id FROM namespaces WHERE name = $1)", ns).Scan(&n))
		if table == "policies" {
			n-- // the defaults
		}
		if n != 0 {
			out += fmt.Sprintf("%d %s, ", n, table)
		}
	}
	return out
}

// clean says what is not as in a namespace that nobody ever used.
func (w *world) clean(ns string) {
	w.t.Helper()
	ctx := w.t.Context()
	if left := w.leftovers(ns); left != "" {
		w.t.Errorf("%s has %s", ns, left)
	}
	stats, err := w.Stats(ctx, ns)
	w.must(err)
	if stats.Total+stats.FailedCancels+stats.RunningTasks != 0 || len(stats.Recent) != 0 {
		w.t.Errorf("stats are %+v", stats)
	}
	p, err := w.Policy(ctx, ns)
	w.must(err)
	if p.Version != 1 || p.Policy.CrossPoolPriorityThreshold != sched.DefaultPolicy().CrossPoolPriorityThreshold {
		w.t.Errorf("the policy is at version %d", p.Version)
	}
	diffs, err := w.Verify(ctx)
	w.must(err)
	if len(diffs) > 0 {
		w.t.Error(diffs)
	}
	eventually(w.t, "the book has forgotten it, too", 10*time.Second, func() bool { // another server cleared it
		dump, err := w.Dump(ctx)
		w.must(err)
		return !slices.ContainsFunc(strings.Split(dump, "\n"), func(line string) bool {
			return strings.Contains(line, ns+"/") || strings.HasPrefix(line, "namespace "+ns+":") && line != "namespace "+ns+": policy 1, 0 tasks, 0 agents, 0 in the core"
		})
	})
}

func TestASessionHoldsANamespaceAndLeavesNothing(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.hands()
	ctx := t.Context()
	w.makePool("other", 2)
	w.submit(sub("stays", "other", 1, 1))

	held := w.hold("x", by("s1"))
	if !held.Created || held.Cleared || !held.Ephemeral || held.Owner != "s1@host" || time.Until(held.ExpiresAt) < 50*time.Second {
		t.Fatalf("%+v", held)
	}
	w.used("x")
	if left := w.leftovers("x"); strings.Count(left, ",") != 7 {
		t.Fatalf("the test makes only %s", left)
	}
	renewed := w.hold("x", by("s1", func(h *ledger.NamespaceHold) { h.TTL = 2 * time.Minute }))
	if renewed.Created || renewed.Cleared || !renewed.ExpiresAt.After(held.ExpiresAt) {
		t.Fatalf("%+v", renewed)
	}
	_, err := w.HoldNamespace(ctx, "x", by("s2"))
	w.refused(err, ledger.ErrSpaceInUse, "s1@host", "since", "attach", "another name", "end the other")
	_, err = w.HoldNamespace(ctx, "x", by("s2", replacing("s0")))
	w.refused(err, ledger.ErrSpaceInUse)
	_, err = w.HoldNamespace(ctx, "x", ledger.NamespaceHold{Detached: true})
	w.refused(err, ledger.ErrSpaceInUse)
	w.refused(w.EndNamespace(ctx, "x", "s2", false), ledger.ErrSpaceInUse)
	w.refused(w.EndNamespace(ctx, "x", "", false), ledger.ErrSpaceInUse)

	w.must(w.EndNamespace(ctx, "x", "s1", false))
	w.clean("x")
	w.must(w.EndNamespace(ctx, "x", "s1", false)) // asked again: the answer was lost
	w.refused(w.EndNamespace(ctx, "x", "s2", false), ledger.ErrUnknownSpace)
	_, _, err = w.GetNamespace(ctx, "x")
	w.refused(err, ledger.ErrUnknownSpace)
	names, err := w.Namespaces(ctx)
	w.must(err)
	if strings.Join(names, ",") != "default" {
		t.Errorf("listed: %v", names)
	}
	// A late renewal does not bring it back, and nothing can be made in it.
	_, err = w.HoldNamespace(ctx, "x", by("s1"))
	w.refused(err, ledger.ErrSpaceClosing, "another session id")
	_, err = w.CreatePool(ctx, "x", ledger.PoolSpec{Name: "p", Capacity: cpus(1)})
	w.refused(err, ledger.ErrUnknownSpace)
	_, err = w.Submit(ctx, "x", sub("t", "p", 1, 1))
	w.refused(err, ledger.ErrUnknownSpace)
	_, err = w.Register(ctx, "x", ledger.Registration{TaskID: "t", AgentName: "a", Pool: "p"})
	w.refused(err, ledger.ErrUnknownSpace)
	_, err = w.PutPolicy(ctx, "x", ledger.PolicyChange{Patch: []byte(`{"remaining_time_weight": 0.5}`)})
	w.refused(err, ledger.ErrUnknownSpace)
	w.clean("x")

	// The next session starts from nothing: the same ids are new.
	if n := w.hold("x", by("s3")); !n.Created || n.Cleared {
		t.Errorf("%+v", n)
	}
	w.used("x")
	if stays, err := w.Task(ctx, "default", "stays"); err != nil || stays.State != ledger.Running {
		t.Errorf("what runs elsewhere: %s %v", stays.State, err)
	}
}

func TestASessionThatIsNotRenewedExpires(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.hands()
	w.hold("x", by("s1", func(h *ledger.NamespaceHold) { h.TTL = 2 * time.Second }))
	w.used("x")
	for range 6 { // longer than it lives
		time.Sleep(500 * time.Millisecond)
		w.hold("x", by("s1", func(h *ledger.NamespaceHold) { h.TTL = 2 * time.Second }))
	}
	began := time.Now()
	eventually(t, "it is cleared", 8*time.Second, func() bool {
		_, _, err := w.GetNamespace(t.Context(), "x")
		return errors.Is(err, ledger.ErrUnknownSpace)
	})
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("it was cleared after %s", took)
	}
	w.clean("x")
	// Who was only away for a while may come back.
	if n := w.hold("x", by("s1")); !n.Created {
		t.Errorf("%+v", n)
	}
}

// A session could not be renewed while there was no server: the next one gives it time.
func TestSessionsOutliveARestart(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.hands()
	w.hold("x", by("s1", func(h *ledger.NamespaceHold) { h.TTL = 3 * time.Second }))
	w.poolIn("x", "p", 1)
	w.Close()
	_, err := w.db.Exec(t.Context(), "UPDATE namespaces SET expires_at = clock_timestamp() - interval '1 minute' WHERE name = 'x'")
	w.must(err)
	w = reopen(t, w.db)
	time.Sleep(1500 * time.Millisecond)
	if n := w.hold("x", by("s1")); n.Created || n.Cleared {
		t.Errorf("%+v", n)
	}
	if p, err := w.Pool(t.Context(), "x", "p"); err != nil {
		t.Errorf("%+v %v", p, err)
	}
}

func TestOneOfTwoSessionsGetsTheNamespace(t *testing.T) {
	t.Parallel()
	a := open(t)
	b := reopen(t, a.db)
	a.hands()
	b.hands()
	last := map[string]string{} // who held it in an earlier round
	for round := range 5 {
		ns := fmt.Sprintf("x%d", round%2) // every other time there is something to clear first
		var wg sync.WaitGroup
		var won atomic.Int32
		var winner atomic.Value
		for i := range 8 {
			w, id := []*world{a, b}[i%2], fmt.Sprintf("s%d-%d", round, i)
			wg.Go(func() {
				change := func(*ledger.NamespaceHold) {}
				if last[ns] != "" {
					change = replacing(last[ns])
				}
				_, err := w.HoldNamespace(t.Context(), ns, by(id, change))
				switch {
				case err == nil:
					won.Add(1)
					winner.Store(id)
				case !errors.Is(err, ledger.ErrSpaceInUse):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d sessions hold one namespace", round, won.Load())
		}
		last[ns] = winner.Load().(string)
		a.poolIn(ns, "p", 4)
		b.submitIn(ns, sub("t", "p", 1, 1))
	}
}

func TestANewSessionReplacesAnOldOne(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.hands()
	w.hold("x", by("s1"))
	w.used("x")
	n := w.hold("x", by("s2", replacing("s1")))
	if !n.Created || !n.Cleared || n.Owner != "s2@host" {
		t.Errorf("%+v", n)
	}
	w.clean("x")
	_, err := w.HoldNamespace(t.Context(), "x", by("s1"))
	w.refused(err, ledger.ErrSpaceInUse, "s2@host")
	w.used("x")
}

func TestKeptNamespaces(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.hands()
	ctx := t.Context()
	keep := ledger.NamespaceHold{Detached: true}
	if n := w.hold("k", keep); !n.Created || n.Ephemeral || !n.ExpiresAt.IsZero() || n.Owner != "" {
		t.Errorf("%+v", n)
	}
	w.used("k")
	if n := w.hold("k", keep); n.Created || n.Cleared {
		t.Errorf("%+v", n)
	}
	_, err := w.HoldNamespace(ctx, "k", by("s"))
	w.refused(err, ledger.ErrSpaceKept, "attach", "detached=True")
	w.refused(w.EndNamespace(ctx, "k", "s", false), ledger.ErrSpaceKept)
	w.refused(w.EndNamespace(ctx, "k", "", false), ledger.ErrSpaceInUse, "low (", "and 1 more", "force")
	w.must(w.EndNamespace(ctx, "k", "", true))
	w.clean("k")
	w.hold("k", by("s")) // free for a session now

	// One that came to be by being used is kept as well; one that was only looked at is not.
	w.poolIn("by-use", "p", 1)
	_, err = w.HoldNamespace(ctx, "by-use", by("s"))
	w.refused(err, ledger.ErrSpaceKept)
	if n := w.hold("by-use", keep); n.Created || n.Cleared {
		t.Errorf("%+v", n)
	}
	w.must(w.EndNamespace(ctx, "by-use", "", false)) // nothing lives in it
	_, err = w.Evaluate(ctx, "looked-at", ledger.Evaluation{Pool: "p"})
	if err != nil && !errors.Is(err, ledger.ErrUnknownPool) {
		t.Fatal(err)
	}
	if n := w.hold("looked-at", by("s")); !n.Created || !n.Ephemeral {
		t.Errorf("%+v", n)
	}
	_, err = w.Policy(ctx, "nobody's")
	w.must(err)
	_, _, err = w.GetNamespace(ctx, "nobody's")
	w.refused(err, ledger.ErrUnknownSpace)

	// The default one is cleared and stays.
	_, err = w.HoldNamespace(ctx, "default", by("s"))
	w.refused(err, ledger.ErrSpaceKept)
	w.used("default")
	w.refused(w.EndNamespace(ctx, "default", "", false), ledger.ErrSpaceInUse)
	w.must(w.EndNamespace(ctx, "default", "", true))
	w.clean("default")
	w.used("default")
	w.refused(w.EndNamespace(ctx, "nobody's", "", true), ledger.ErrUnknownSpace)
}

func TestNothingChangesInANamespaceThatIsBeingCleared(t *testing.T) {
	t.Parallel()
	w := open(t)
	b := reopen(t, w.db)
	held := w.hands()
	ctx := t.Context()
	w.hold("x", by("s1"))
	w.used("x")
	held.Store(true)
	var wg sync.WaitGroup
	wg.Go(func() { w.must(w.EndNamespace(ctx, "x", "s1", false)) })
	eventually(t, "it is being cleared", 5*time.Second, func() bool { n, _, err := w.GetNamespace(ctx, "x"); return err == nil && n.Closing })

	for _, l := range []*world{w, b} {
		for name, do := range map[string]func() error{
			"pool": func() error {
				_, err := l.CreatePool(ctx, "x", ledger.PoolSpec{Name: "new", Capacity: cpus(1)})
				return err
			},
			"same pool": func() error {
				_, err := l.EnsurePool(ctx, "x", ledger.PoolSpec{Name: "p", Capacity: cpus(1)})
				return err
			},
			"change": func() error {
				_, err := l.UpdatePool(ctx, "x", ledger.PoolSpec{Name: "p", Capacity: cpus(1)})
				return err
			},
			"hold":   func() error { _, err := l.HoldPool(ctx, "x", "p", ledger.HoldRequest{State: ledger.Held}); return err },
			"submit": func() error { _, err := l.Submit(ctx, "x", sub("new", "p", 0.1, 1)); return err },
			"queue":  func() error { _, err := l.Submit(ctx, "x", sub("new", "p", 0.1, 1, queueing)); return err },
			"gang": func() error {
				_, err := l.SubmitAll(ctx, "x", []ledger.Submission{sub("new", "p", 0.1, 1)}, true)
				return err
			},
			"agent": func() error {
				_, err := l.CreateAgent(ctx, "x", ledger.AgentSubmission{Name: "new", Pool: "p", Spec: ledger.Spec{ActorClass: "m:C"}})
				return err
			},
			"register": func() error {
				_, err := l.Register(ctx, "x", ledger.Registration{TaskID: "new", AgentName: "a", Pool: "elsewhere"})
				return err
			},
			"handlers": func() error {
				_, err := l.PutStateHandlers(ctx, "x", ledger.StateHandlers{Pool: "p", Restorer: &ledger.Handler{Name: "r", Pickled: []byte("p")}}, "ann")
				return err
			},
			"no handlers": func() error { return l.DeleteStateHandlers(ctx, "x", "p", "ann") },
			"restore":     func() error { _, err := l.Restore(ctx, "x", "low", "ann"); return err },
			"policy": func() error {
				_, err := l.PutPolicy(ctx, "x", ledger.PolicyChange{Patch: []byte(`{"remaining_time_weight": 0.5}`)})
				return err
			},
		} {
			err := do()
			if name == "restore" && errors.Is(err, ledger.ErrWrongState) {
				continue // it was being preempted
			}
			if !errors.Is(err, ledger.ErrSpaceClosing) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	// Renewing and holding wait for it, and are told if it takes too long; here the caller leaves.
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if _, err := b.HoldNamespace(short, "x", by("s2")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("holding it: %v", err)
	}
	hasty := reopen(t, w.db, func(o *ledger.Options) { o.ClearWait = 300 * time.Millisecond })
	_, err := hasty.HoldNamespace(ctx, "x", by("s2"))
	w.refused(err, ledger.ErrSpaceClosing, "low (", "no server is connected to Ray cluster local", "by itself")
	w.refused(hasty.EndNamespace(ctx, "x", "s1", false), ledger.ErrSpaceClosing, "low (")
	_, err = b.HoldNamespace(ctx, "x", by("s1"))
	b.refused(err, ledger.ErrSpaceClosing, "another session id")
	held.Store(false)
	if n := b.hold("x", by("s3")); !n.Cleared || !n.Created {
		t.Errorf("%+v", n)
	}
	wg.Wait()
	w.clean("x")
}

func TestAThousandTasksAndAHandoverAreCleared(t *testing.T) {
	t.Parallel()
	w := open(t)
	b := reopen(t, w.db)
	held := w.hands()
	ctx := t.Context()
	w.hold("x", by("s1"))
	w.poolIn("x", "p", 1000)
	w.poolIn("x", "q", 1)
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			for k := range 100 {
				l := []*world{w, b}[i%2]
				_, err := l.Submit(ctx, "x", sub(fmt.Sprintf("t%d", i*100+k), "p", 0.99, 1, requeueing))
				w.must(err)
			}
		})
	}
	wg.Wait()
	// b announced jobs that nobody carries out: w finds them.
	for live := 0; live < 1000; live = 0 {
		jobs, err := w.Work(ctx)
		w.must(err)
		w.announce(jobs)
		page, err := w.CountTasks(ctx, "x", ledger.TaskFilter{States: []ledger.State{ledger.Running}})
		w.must(err)
		if live = page; live == 1000 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	held.Store(true)
	w.submitIn("x", sub("high", "p", 30, 9))           // waits for victims
	w.submitIn("x", sub("later", "p", 5, 1, queueing)) // and that in line
	_, err := b.Register(ctx, "x", ledger.Registration{TaskID: "guest", AgentName: "theirs", Pool: "elsewhere"})
	w.must(err)
	_, _ = w.Preempt(expired(ctx), "x", ledger.PreemptRequest{TaskID: "t0"})
	began := time.Now()
	held.Store(false)
	w.must(w.EndNamespace(ctx, "x", "s1", false))
	t.Logf("cleared in %s", time.Since(began))
	w.clean("x")
	eventually(t, "the other server's book follows", 10*time.Second, func() bool {
		dump, err := b.Dump(ctx)
		return err == nil && !strings.Contains(dump, "x/p") && strings.Contains(dump, "namespace x: policy 1, 0 tasks, 0 agents, 0 in the core")
	})
}

// expired is a context for a call that nobody waits for.
func expired(ctx context.Context) context.Context {
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// What another server had cleared and made anew is what this one decides by.
func TestAnotherServersBookFollowsAClearing(t *testing.T) {
	t.Parallel()
	a := open(t)
	b := reopen(t, a.db)
	a.hands()
	b.hands()
	ctx := t.Context()
	for round := range 3 {
		a.hold("x", by(fmt.Sprint("a", round)))
		a.poolIn("x", "p", 2)
		for v := range 2 + round { // versions start anew each time, and the last is another one
			_, err := a.PutPolicy(ctx, "x", ledger.PolicyChange{Patch: fmt.Appendf(nil, `{"remaining_time_weight": 0.3%d}`, 1+v)})
			a.must(err)
		}
		a.submitIn("x", sub("low", "p", 2, 1))
		// b decides under the policy of this session.
		_, err := b.Submit(ctx, "x", sub("refused", "p", 3, 9))
		a.refused(err, ledger.ErrTooLarge)
		dump, err := b.Dump(ctx)
		a.must(err)
		if want := fmt.Sprintf("namespace x: policy %d,", 3+round); !strings.Contains(dump, want) {
			t.Errorf("round %d: b does not say %q", round, want)
		}
		// Another server ends it, though it does not run the agents.
		a.must(b.EndNamespace(ctx, "x", fmt.Sprint("a", round), false))
		_, err = b.Submit(ctx, "x", sub("t", "p", 1, 1))
		a.refused(err, ledger.ErrUnknownSpace)
		a.clean("x")
	}
}

func TestClearingIsTakenOverFromADeadServerOnly(t *testing.T) {
	t.Parallel()
	w := open(t)
	held := w.hands()
	ctx := t.Context()
	w.hold("x", by("s1"))
	w.used("x")
	held.Store(true)
	w.Close() // mid-way, as far as Postgres can tell
	conn, err := pgx.ConnectConfig(ctx, w.db.Config().ConnConfig)
	w.must(err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(ctx, "SELECT pg_advisory_lock(7301, hashtext('other'))")
	w.must(err)
	_, err = conn.Exec(ctx, "INSERT INTO servers (name, heartbeat) VALUES ('other', clock_timestamp() + interval '1 minute')")
	w.must(err)
	_, err = conn.Exec(ctx, "UPDATE namespaces SET state = 'closing', closing_since = now(), expires_at = NULL, epoch = epoch + 1, clearer = 'other' WHERE name = 'x'")
	w.must(err)
	next := reopen(t, w.db)
	next.hands()
	jobs, err := next.Work(ctx)
	w.must(err)
	next.announce(jobs)
	time.Sleep(2500 * time.Millisecond)
	if n, e, err := next.GetNamespace(ctx, "x"); err != nil || !n.Closing || e.Pools != 2 || e.LiveTasks == 0 {
		t.Fatalf("it was taken from a server that is alive: %+v %+v %v", n, e, err)
	}
	_ = conn.Close(ctx) // the lock goes with it
	eventually(t, "it is cleared", 10*time.Second, func() bool { _, _, err := next.GetNamespace(ctx, "x"); return errors.Is(err, ledger.ErrUnknownSpace) })
	next.clean("x")
}
