package replay

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/schedulemesh/schedulemesh/sched"
)

// story is a replay with a diary of who made way for whom.
type story struct {
	*Replay
	t     testing.TB
	diary []string
	lost  []Preemption
}

func tell(t testing.TB, patch string, l Latencies, pools ...Pool) *story {
	t.Helper()
	p, _, err := sched.DefaultPolicy().Patch([]byte(patch))
	if err != nil {
		t.Fatal(err)
	}
	s := &story{t: t}
	s.Replay, err = New(Config{Policy: p, Pools: pools, Latencies: l, Preempted: func(v Preemption) {
		s.diary = append(s.diary, fmt.Sprintf("%v: %s for %s", v.At, v.Victim, v.By))
		s.lost = append(s.lost, v)
	}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *story) submit(tasks ...Task) *story {
	s.t.Helper()
	for _, task := range tasks {
		if err := s.Submit(task); err != nil {
			s.t.Fatal(err)
		}
	}
	return s
}

func (s *story) end() Summary {
	for s.Step() {
		s.check()
	}
	return s.Summary()
}

func cpus(name string, n int64) Pool {
	return Pool{Name: name, Cluster: "local", Capacity: sched.Resources{CPU: n * 1000}}
}

// task asks for cpus in pool a and runs for so many seconds.
func task(name string, at, priority, cpus, runs int64) Task {
	return Task{Name: name, At: sched.Time(at * 1000), Pool: "a", Priority: sched.Milli(priority * 1000),
		Request: sched.Resources{CPU: cpus * 1000}, Duration: sched.Time(runs * 1000)}
}

func TestAVictimHoldsOnUntilItIsGoneAndThenGoesOnWhereItWas(t *testing.T) {
	s := tell(t, `{}`, Latencies{Cancel: 2_000, Save: 3_000, Launch: 1_000}, cpus("a", 2))
	low := task("low", 0, 1, 2, 100)
	low.Requeue = true
	s.submit(low, task("high", 11, 9, 2, 10)) // low runs from 1 to 11
	s.Advance(16_999)
	if s.Running() != 0 || s.Live() != 2 {
		t.Fatalf("%d of %d run while one makes way and the other is launched", s.Running(), s.Live())
	}
	got := s.end()
	// high runs from 17 to 27; low, which has 90 s left, again from 28 to 118.
	if got.SimulatedSeconds != 118 || got.Completed != 2 || got.Admitted != 3 || got.Preemptions != (Preemptions{Total: 1, SamePool: 1}) {
		t.Errorf("%+v", got.Counts)
	}
	if got.HandoverSeconds != 5 || got.WorkLostSeconds != 0 {
		t.Errorf("handover took %v s, %v s of work were lost", got.HandoverSeconds, got.WorkLostSeconds)
	}
	if w := got.Waits; w[0].Tasks != 1 || w[0].Max != 1 || w[3].Tasks != 1 || w[3].Max != 6 || w[1].Tasks+w[2].Tasks != 0 {
		t.Errorf("waits: %+v", w)
	}
}

func TestWorkLostIsWhatNobodyGoesOnFrom(t *testing.T) {
	for _, c := range []struct {
		name    string
		requeue bool
		every   sched.Time
		lost    float64
		end     float64
	}{
		{"it saves when it is told to stop", true, 0, 0, 110},
		{"it saved half a minute ago", true, 30_000, 15, 125},
		{"it saves too seldom", true, 3600_000, 45, 155},
		{"it does not come back", false, 0, 45, 55},
	} {
		s := tell(t, `{}`, Latencies{}, cpus("a", 2))
		low := task("low", 0, 1, 2, 100)
		low.Requeue, low.Checkpoint = c.requeue, c.every
		got := s.submit(low, task("high", 45, 9, 2, 10)).end()
		if got.WorkLostSeconds != c.lost || got.SimulatedSeconds != c.end {
			t.Errorf("%s: lost %v s and ended at %v, want %v and %v", c.name, got.WorkLostSeconds, got.SimulatedSeconds, c.lost, c.end)
		}
		if !c.requeue && (got.Stopped != 1 || got.Completed != 1) {
			t.Errorf("%s: %+v", c.name, got.Counts)
		}
	}
}

func TestWhatWasBorrowedGoesBackAndLetsTheLendersQueueMove(t *testing.T) {
	s := tell(t, `{"cross_pool_priority_threshold": 2}`, Latencies{}, cpus("a", 2), cpus("b", 2))
	in := func(pool string, x Task) Task { x.Pool = pool; return x }
	waits := in("b", task("waits", 3, 1, 2, 5))
	waits.Queue = true
	s.submit(in("b", task("low", 0, 1, 2, 100)), task("own", 0, 9, 2, 100), task("borrows", 2, 9, 2, 10), waits)
	if lender := s.pools["b"]; lender.lent.CPU != 2000 || s.pools["a"].borrowed.CPU != 2000 || lender.line.Len() != 1 {
		t.Fatalf("lent %v, borrowed %v, %d wait", lender.lent, s.pools["a"].borrowed, lender.line.Len())
	}
	got := s.end()
	if got.Loans != 1 || got.Preemptions.CrossPool != 1 || got.Completed != 3 || got.Waits[0].Max != 9 {
		t.Errorf("%+v, %+v", got.Counts, got.Waits[0])
	}
	if !s.pools["a"].borrowed.IsZero() || !s.pools["b"].lent.IsZero() {
		t.Error("something is still lent")
	}
}

func TestASmallTaskPassesALargeOneOnlyIfThatIsNotDelayed(t *testing.T) {
	s := tell(t, `{}`, Latencies{}, cpus("a", 4))
	waits := func(x Task) Task { x.Queue, x.Estimate = true, x.Duration; return x }
	s.submit(waits(task("runs", 0, 5, 3, 100)), waits(task("large", 1, 5, 4, 10)),
		waits(task("long", 2, 5, 1, 200)), waits(task("short", 3, 5, 1, 50)))
	if s.Running() != 2 || s.waiting != 2 {
		t.Fatalf("%d run, %d wait", s.Running(), s.waiting)
	}
	// large starts at 100 s, when runs has ended; short fits in before, long waits until 110.
	if got := s.end(); got.SimulatedSeconds != 310 || got.Waits[2].Max != 108 {
		t.Errorf("%v, %+v", got.SimulatedSeconds, got.Waits[2])
	}
}

func TestWhoWaitsGrowsOld(t *testing.T) {
	s := tell(t, `{"ageing_weight": 1, "same_pool_priority_threshold": 100}`, Latencies{}, cpus("a", 1))
	waits := func(x Task) Task { x.Queue = true; return x }
	s.submit(waits(task("runs", 0, 9, 1, 600)), waits(task("old", 1, 1, 1, 10)), waits(task("young", 590, 8, 1, 10)))
	// After ten minutes old stands at 11, young at 8 and a bit.
	if got := s.end(); got.Waits[0].Max != 599 || got.Waits[3].Max != 20 {
		t.Errorf("%+v", got.Waits)
	}
}

func TestRefusalsAreCountedByCode(t *testing.T) {
	s := tell(t, `{}`, Latencies{}, cpus("a", 2))
	gone := task("gone", 0, 5, 1, 1)
	gone.Pool = "nowhere"
	impatient := task("impatient", 1, 5, 2, 1)
	impatient.Queue, impatient.Patience = true, 4_000
	got := s.submit(gone, task("all", 0, 5, 2, 10), task("more", 0, 5, 2, 10), task("huge", 0, 9, 3, 10), impatient).end()
	want := map[sched.Code]int64{sched.UnknownPool: 1, sched.NoVictims: 1, sched.RequestTooLarge: 1}
	if !reflect.DeepEqual(got.Refused, want) || got.TimedOut != 1 || got.Completed != 1 || got.Unfinished != 0 {
		t.Errorf("%v, %+v", got.Refused, got.Counts)
	}
	if got.Fairness != 1 {
		t.Errorf("one pool is unfair to itself: %v", got.Fairness)
	}
}

func TestAPoolThatLostEnoughThisMinuteIsSafeUntilTheMinuteIsOver(t *testing.T) {
	s := tell(t, `{"max_preemptions_per_minute": 1}`, Latencies{}, cpus("a", 2))
	s.submit(task("low1", 0, 1, 1, 500), task("low2", 0, 1, 1, 500), task("high1", 10, 9, 1, 500), task("high2", 69, 9, 1, 500), task("high3", 70, 9, 1, 500))
	if want := []string{"10000: low1 for high1", "70000: low2 for high3"}; !slices.Equal(s.diary, want) {
		t.Errorf("%q", s.diary)
	}
}

func TestAnIdleAgentHoldsQuotaAndIsNeverTaken(t *testing.T) {
	s := tell(t, `{}`, Latencies{}, cpus("a", 2))
	idle := task("idle", 0, 0, 2, 50)
	idle.Idle = true
	high := task("high", 1, 9, 2, 10)
	high.Queue = true
	got := s.submit(idle, high).end()
	if got.Preemptions.Total != 0 || got.SimulatedSeconds != 60 || got.Waits[3].Max != 49 || got.Waits[0].Tasks != 0 {
		t.Errorf("%+v, %+v", got.Counts, got.Waits)
	}
}

func TestSharesThatDifferAreUnfair(t *testing.T) {
	s := tell(t, `{"enable_cross_pool_preemption": false}`, Latencies{}, cpus("a", 1), cpus("b", 1))
	other := task("other", 0, 5, 1, 10)
	other.Pool = "b"
	got := s.submit(task("one", 0, 5, 1, 10), other, task("refused", 0, 5, 1, 30)).end()
	// a: 10 of 40 task-seconds, b: all. (0.25 + 1)² / (2 · (0.0625 + 1))
	if want := 1.25 * 1.25 / (2 * 1.0625); got.Fairness != want {
		t.Errorf("%v, want %v", got.Fairness, want)
	}
	if u := got.Utilisation[0]; u.Resource != "cpu" || u.Mean != 1 || u.Peak != 1 {
		t.Errorf("%+v", u)
	}
}

func TestDecisionsAreMeasuredWithTheClockThatWasGiven(t *testing.T) {
	now := int64(0)
	r, err := New(Config{Policy: sched.DefaultPolicy(), Pools: []Pool{cpus("a", 2)}, Clock: func() int64 { now += 2_000; return now }})
	if err != nil {
		t.Fatal(err)
	}
	s := &story{Replay: r, t: t}
	got := s.submit(task("low", 0, 1, 2, 10), task("high", 1, 9, 2, 10)).Summary()
	two := Cost{Decisions: 1, P50: 2, P99: 2, Max: 2}
	if want := []SizeCost{{From: 0, Below: 1, Fits: two}, {From: 1, Below: 2, Search: two}}; !reflect.DeepEqual(got.Costs, want) {
		t.Errorf("%+v", got.Costs)
	}
}

func TestTimeCannotGoBackAndNonsenseIsRefused(t *testing.T) {
	s := tell(t, `{}`, Latencies{}, cpus("a", 2)).submit(task("x", 5, 5, 1, 1))
	negative := task("x", 9, 5, 1, 1)
	negative.Duration = -1
	for want, x := range map[string]Task{"order of their arrival": task("late", 4, 5, 1, 1), "negative time": negative, "beyond reason": task("x", 1<<50, 5, 1, 1)} {
		if err := s.Submit(x); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	bad := sched.DefaultPolicy()
	bad.MinPreemptScore = -1
	for want, cfg := range map[string]Config{
		"min_preempt_score": {Policy: bad},
		"two pools":         {Policy: sched.DefaultPolicy(), Pools: []Pool{cpus("a", 1), cpus("a", 2)}},
		"ascending":         {Policy: sched.DefaultPolicy(), Classes: []sched.Milli{2, 1}},
		"latencies":         {Policy: sched.DefaultPolicy(), Latencies: Latencies{Save: -1}},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

func TestQuantilesAreExactToASmallPart(t *testing.T) {
	var h histogram
	for i := range int64(1_000_000) {
		h.add(i)
	}
	for _, q := range []float64{0.001, .5, .95, .99, 1} {
		exact := q * 1e6
		if got := float64(h.quantile(q)); got < exact-1 || got > exact*1.016 {
			t.Errorf("the %v quantile is %v, want %v", q, got, exact)
		}
	}
	if h.mean() != 499999.5 || (&histogram{}).quantile(.5) != 0 {
		t.Error(h.mean())
	}
}

func TestALongTimelineKeepsItsMeans(t *testing.T) {
	s := tell(t, `{}`, Latencies{}, cpus("a", 4))
	got := s.submit(task("one", 0, 5, 1, 100_000), task("two", 50_000, 5, 1, 50_000)).end()
	line := got.Timeline
	if n := len(line.Running); n > timelinePoints || n < timelinePoints/2 || line.Running[0] != 1 || line.Running[n-1] != 2 || line.Use["cpu"][0] != .25 {
		t.Errorf("%d points, %v to %v", n, line.Running[0], line.Running[n-1])
	}
	if u := got.Utilisation[0]; u.Mean < .3749 || u.Mean > .3751 || u.Peak != .5 {
		t.Errorf("%+v", u)
	}
	if _, err := json.Marshal(got); err != nil {
		t.Error(err)
	}
}
