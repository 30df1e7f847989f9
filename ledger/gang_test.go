package ledger_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

func gangOf(n int, cpu, priority float64, change ...func(*ledger.Submission)) []ledger.Submission {
	out := make([]ledger.Submission, n)
	for i := range out {
		out[i] = sub(fmt.Sprint("g", i), "a", cpu, priority, change...)
	}
	return out
}

func (w *world) states(want ledger.State, ids ...string) {
	w.t.Helper()
	for _, id := range ids {
		w.state(id, want)
	}
}

func TestAGangIsAdmittedAsAWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	w := open(t)
	ctx := t.Context()
	w.makePool("a", 3)
	w.run(sub("runs", "a", 1, 5))
	if _, err := w.SubmitAll(ctx, "default", gangOf(3, 1, 5), true); !errors.Is(err, ledger.ErrInsufficient) || !strings.Contains(err.Error(), "tasks.2") {
		t.Errorf("the third finds no place: %v", err)
	}
	if n, _ := w.Counts(ctx, "default"); n[ledger.Running] != 1 || len(n) != 1 {
		t.Errorf("something was left behind: %v", n)
	}
	got, err := w.SubmitAll(ctx, "default", gangOf(2, 1, 5), true)
	w.must(err)
	if len(got) != 2 || got[0].Task.TaskID != "g0" || got[1].Task.TaskID != "g1" || !got[1].Task.Created {
		t.Errorf("%+v", got)
	}
	w.settle()
	w.states(ledger.Running, "g0", "g1")
	again, err := w.SubmitAll(ctx, "default", gangOf(2, 1, 5), true)
	w.must(err)
	if again[1].Task.UID != got[1].Task.UID || again[1].Task.Created || again[1].Task.State != ledger.Running {
		t.Errorf("the same again is the same: %+v", again)
	}
	if _, err := w.SubmitAll(ctx, "default", gangOf(3, 1, 5), true); !errors.Is(err, ledger.ErrTaskExists) {
		t.Errorf("half of it is there: %v", err)
	}
	// One that fails fails by itself.
	_, err = w.Cancel(ctx, "default", "g1", "")
	w.must(err)
	w.settle()
	w.state("g0", ledger.Running)
	w.verified()
}

func TestAGangIsRefusedWithTheMemberAtFault(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 4)
	w.makePool("b", 4)
	second := func(f func(*ledger.Submission)) []ledger.Submission {
		g := gangOf(3, 1, 5)
		f(&g[1])
		return g
	}
	for name, c := range map[string]struct {
		subs []ledger.Submission
		want *ledger.Error
		says string
	}{
		"empty":          {nil, ledger.ErrInvalid, "tasks: is empty"},
		"too many":       {gangOf(ledger.MaxTogether+1, 1, 5), ledger.ErrInvalid, "at most 1000"},
		"twins":          {second(func(s *ledger.Submission) { s.TaskID = "g0" }), ledger.ErrInvalid, "tasks.1: task_id"},
		"bad field":      {second(func(s *ledger.Submission) { s.QueueTimeout = -1 }), ledger.ErrInvalid, "tasks.1: queue_timeout"},
		"unknown pool":   {second(func(s *ledger.Submission) { s.Pool = "nowhere" }), ledger.ErrUnknownPool, "tasks.1"},
		"half waits":     {second(func(s *ledger.Submission) { s.OnInsufficient = ledger.Queue }), ledger.ErrInvalid, "tasks.1: on_insufficient"},
		"two lines":      {append(gangOf(2, 1, 5, queueing), sub("b", "b", 1, 5, queueing)), ledger.ErrInvalid, "tasks.2: pool"},
		"one agent":      {[]ledger.Submission{sub("x", "a", 1, 5, named("n")), sub("y", "a", 1, 5, named("n"))}, ledger.ErrInvalid, "tasks.1: agent_name"},
		"too large":      {gangOf(5, 1, 5, queueing), ledger.ErrTooLarge, "5 cpu"},
		"a large member": {second(func(s *ledger.Submission) { s.Request.CPU = 99_000 }), ledger.ErrTooLarge, "tasks.1"},
	} {
		_, err := w.SubmitAll(t.Context(), "default", c.subs, true)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n, _ := w.Counts(t.Context(), "default"); len(n) != 0 {
		t.Errorf("something was left behind: %v", n)
	}
	// Each for itself: good ones are taken, bad ones say why.
	got, err := w.SubmitAll(t.Context(), "default", second(func(s *ledger.Submission) { s.Pool = "nowhere" }), false)
	w.must(err)
	if got[0].Err != nil || got[2].Err != nil || !errors.Is(got[1].Err, ledger.ErrUnknownPool) || got[2].Task.TaskID != "g2" {
		t.Errorf("%+v", got)
	}
	w.verified()
}

func named(agent string) func(*ledger.Submission) {
	return func(s *ledger.Submission) { s.AgentName = agent }
}

func TestAGangWaitsAsOne(t *testing.T) {
	t.Parallel()
	w := open(t)
	ctx := t.Context()
	w.makePool("a", 3)
	w.run(sub("r1", "a", 1, 5))
	w.run(sub("r2", "a", 1, 5))
	got, err := w.SubmitAll(ctx, "default", gangOf(3, 1, 5, queueing), true)
	w.must(err)
	for i, g := range got {
		if g.Task.State != ledger.Queued || g.Task.QueuePosition != i+1 {
			t.Errorf("%d: %+v", i, g.Task)
		}
	}
	if _, err := w.Submit(ctx, "default", sub("jumps", "a", 1, 5)); !errors.Is(err, ledger.ErrInsufficient) || !strings.Contains(err.Error(), "kept for g0") {
		t.Errorf("its room is kept: %v", err)
	}
	_, err = w.Cancel(ctx, "default", "r1", "")
	w.must(err)
	w.settle()
	w.states(ledger.Queued, "g0", "g1", "g2") // two fit, all three do not
	w.Close()
	w = reopen(t, w.db)
	_, err = w.Cancel(ctx, "default", "r2", "")
	w.must(err)
	w.settle()
	w.states(ledger.Running, "g0", "g1", "g2")
	w.verified()
}

// Two victims make room for three members, on a node; all wait for both.
func preempting(t *testing.T, queue bool) *world {
	w := open(t)
	w.makePool("a", 4)
	room := sched.Resources{CPU: 4000, Memory: 1 << 20}
	w.must(w.SetNodes(t.Context(), "local", []sched.Node{{ID: "n", Total: room, Room: room}}))
	w.run(sub("v1", "a", 2, 1, requeueing))
	w.run(sub("v2", "a", 1, 1, requeueing))
	var more []func(*ledger.Submission)
	if queue {
		more = append(more, queueing)
	}
	got, err := w.SubmitAll(t.Context(), "default", gangOf(3, 1.25, 9, more...), true)
	w.must(err)
	waiting := 0
	for _, g := range got {
		if g.Task.Phase == "waiting for victims" {
			waiting++
		}
	}
	if waiting < 2 {
		t.Fatalf("%d wait: %+v", waiting, got)
	}
	w.states(ledger.Preempting, "v1", "v2")
	w.verified()
	return w
}

func TestMembersOfAGangStartWhenItsVictimsAreGoneAlsoAfterARestart(t *testing.T) {
	t.Parallel()
	for _, restarts := range []int{0, 1, 2} {
		w := preempting(t, false)
		ctx := t.Context()
		if restarts > 0 {
			w.Close()
			w = reopen(t, w.db)
			w.must(w.forceWork())
		}
		w.act(w.takeOf("v1"))
		if restarts > 1 {
			w.Close()
			w = reopen(t, w.db)
			w.must(w.forceWork())
		}
		for _, id := range []string{"g1", "g2"} {
			if g := w.state(id, ledger.Reserved); g.Phase != "waiting for victims" {
				t.Errorf("%s does not wait for the second one: %+v", id, g)
			}
		}
		w.settle()
		w.states(ledger.Running, "g0", "g1", "g2")
		w.states(ledger.Queued, "v1", "v2")
		w.verified()
		for _, id := range []string{"g0", "g1", "g2"} {
			_, err := w.Cancel(ctx, "default", id, "")
			w.must(err)
		}
		w.settle()
		w.states(ledger.Running, "v1", "v2")
		w.verified()
	}
}

// takeOf takes the job of one victim out of the list.
func (w *world) takeOf(taskID string) ledger.Job {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, j := range w.jobs {
		if j.Kind == ledger.JobTake && j.TaskID == taskID {
			w.jobs = append(w.jobs[:i:i], w.jobs[i+1:]...)
			return j
		}
	}
	w.t.Fatalf("nobody takes %s: %+v", taskID, w.jobs)
	return ledger.Job{}
}

func TestAGangIsPutBackAsAWhole(t *testing.T) {
	t.Parallel()
	for _, queue := range []bool{false, true} {
		w := preempting(t, queue)
		undone, err := w.Undo(t.Context(), w.takeOf("v2").UID, "bridge_unavailable", "Ray is away")
		w.must(err)
		if !undone {
			t.Fatal("it was not undone")
		}
		w.states(ledger.Running, "v1", "v2")
		for _, id := range []string{"g1", "g2"} {
			want := ledger.Failed
			if queue {
				want = ledger.Queued
			}
			w.state(id, want)
		}
		w.verified()
	}
}

func TestAMemberThatIsCancelledWhileItWaitsLeavesTheOthersTheirRoom(t *testing.T) {
	t.Parallel()
	w := preempting(t, false)
	_, err := w.Cancel(t.Context(), "default", "g2", "")
	w.must(err)
	w.state("v1", ledger.Preempting)
	w.settle()
	w.states(ledger.Running, "g0", "g1")
	w.state("g2", ledger.Cancelled)
	w.verified()
}

func TestAGangAcrossPoolsBorrowsForEachOfThem(t *testing.T) {
	t.Parallel()
	w := open(t)
	ctx := t.Context()
	for _, p := range []string{"a", "b", "c"} {
		w.makePool(p, 2)
	}
	w.run(sub("v", "c", 2, 1))
	w.run(sub("ra", "a", 2, 9))
	w.run(sub("rb", "b", 2, 9))
	_, err := w.SubmitAll(ctx, "default", []ledger.Submission{sub("ga", "a", 1, 9), sub("gb", "b", 1, 9)}, true)
	w.must(err)
	w.verified()
	j := w.takeOf("v")
	if undone, err := w.Undo(ctx, j.UID, "bridge_unavailable", "away"); err != nil || undone {
		t.Errorf("lent to two pools, it goes forward: %v %v", undone, err)
	}
	w.act(j)
	w.settle()
	w.states(ledger.Running, "ga", "gb")
	p, err := w.Pool(ctx, "default", "c")
	w.must(err)
	if len(p.Loans) != 2 {
		t.Errorf("loans %+v", p.Loans)
	}
	w.verified()
	for _, id := range []string{"ga", "gb"} {
		_, err := w.Cancel(ctx, "default", id, "")
		w.must(err)
	}
	w.settle()
	if p, err = w.Pool(ctx, "default", "c"); err != nil || len(p.Loans) != 0 {
		t.Errorf("loans %+v %v", p.Loans, err)
	}
	w.verified()
}
