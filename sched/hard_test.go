package sched_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	. "github.com/schedulemesh/schedulemesh/sched"
)

// hardCases are states in which an index may have to look at much.
func hardCases(l *load) []struct {
	name string
	set  func(*Policy, *Incoming)
} {
	return []struct {
		name string
		set  func(*Policy, *Incoming)
	}{
		{"one victim", func(*Policy, *Incoming) {}},
		{"a large one", func(_ *Policy, in *Incoming) { in.Request = Resources{CPU: 32_000, GPU: 7_000, Memory: 1024 * 250} }},
		{"more than anyone gives", func(_ *Policy, in *Incoming) { in.Request = Resources{CPU: 100_000, Memory: 1024 * 500} }},
		{"sixty-four", func(_ *Policy, in *Incoming) { in.Request = Resources{CPU: 32_000 * 30} }},
		{"more than all give", func(_ *Policy, in *Incoming) { in.Request = Resources{CPU: 1e11} }},
		{"nobody below it", func(_ *Policy, in *Incoming) { in.Priority, in.Labels = -1_000_000, nil }},
		{"almost nobody below it", func(_ *Policy, in *Incoming) { in.Priority, in.Labels = 1_001, nil }},
		{"all too fresh", func(p *Policy, _ *Incoming) { p.MinRuntimeSeconds = 1e9 }},
		{"almost all too fresh", func(p *Policy, _ *Incoming) { p.MinRuntimeSeconds = 659_000 }},
		{"all taken too often", func(p *Policy, _ *Incoming) { p.MaxPreemptionsPerTask = 1 }},
		{"all other pools protected", func(p *Policy, in *Incoming) {
			p.ProtectedPools = nil
			for i := 1; i < l.pools; i++ {
				p.ProtectedPools = append(p.ProtectedPools, l.pool(i))
			}
			in.Pool, in.Request = l.pool(0), Resources{CPU: 40_000}
		}},
		{"cross-pool off", func(p *Policy, _ *Incoming) { p.EnableCrossPoolPreemption = false }},
		{"no score is enough", func(p *Policy, _ *Incoming) { p.MinPreemptScore = 1e9 }},
		{"no weight on time", func(p *Policy, _ *Incoming) { p.RemainingTimeWeight = 0 }},
		{"all pools at their limit but one", func(p *Policy, in *Incoming) { p.MaxPreemptionsPerMinute = 3 }},
	}
}

// No question takes long, however it is put, and none does while a new policy is
// being followed.
func TestNoQuestionTakesLong(t *testing.T) {
	tasks, limit := 20_000, 100*time.Millisecond
	if s := os.Getenv("SCHED_HARD"); s != "" { // as many as somebody wants to wait for
		tasks, _ = strconv.Atoi(s)
	}
	for _, kind := range []struct {
		name         string
		pools, nodes int
		alike        bool
	}{{"8 pools", 8, 0, false}, {"full nodes", 8, tasks / 100, true}, {"300 pools", 300, tasks / 50, false}} {
		t.Run(kind.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			l := newLoad(tasks, kind.pools, kind.nodes, kind.alike)
			for i := range kind.pools {
				p, _ := l.core.Pool(l.pool(i))
				p.Preempted = 3 * min(i, 1)
				l.core.PutPool(p)
			}
			l.core.Build()
			runtime.GC()
			usual := l.core.Policy()
			ask := func(when string, c *Core, set func(*Policy, *Incoming)) {
				worst := time.Duration(0)
				for range 10 {
					in, p := l.newcomer(), usual
					set(&p, &in)
					start := cpuTime()
					c.Decide(in, later)
					took := cpuTime() - start
					start = cpuTime()
					c.Candidates(in, later, 16)
					worst = max(worst, took, cpuTime()-start)
				}
				if t.Logf("%-50s %8.0f µs", when, float64(worst.Nanoseconds())/1e3); worst > limit {
					t.Errorf("%s: %v", when, worst)
				}
			}
			for _, hard := range hardCases(l) {
				p, in := usual, l.newcomer()
				hard.set(&p, &in)
				ask(hard.name+", as a draft", l.core.Under(p), hard.set)
				start := cpuTime()
				l.core.SetPolicy(p)
				if took := cpuTime() - start; took > limit {
					t.Errorf("%s: SetPolicy took %v", hard.name, took)
				}
				ask(hard.name+", at once", l.core, hard.set)
				l.core.Build()
				ask(hard.name, l.core, hard.set)
			}
			l.core.SetPolicy(usual)
			l.core.Build()

			// Other label rules: everything changes its class.
			p := usual
			p.LabelPreemptionRules = map[string]map[string][]string{"tier": {"gold": {"silver", "bronze"}, "platinum": {"gold"}}}
			start := cpuTime()
			l.core.SetPolicy(p)
			t.Logf("SetPolicy %v", cpuTime()-start)
			worst, steps := cpuTime()-start, 0
			for left := true; left; steps++ {
				start := cpuTime()
				left = l.core.Follow()
				worst = max(worst, cpuTime()-start)
				if steps%50 == 0 {
					in := l.newcomer()
					start = cpuTime()
					l.core.Decide(in, later)
					worst = max(worst, cpuTime()-start)
				}
			}
			if t.Logf("new label rules followed in %d steps, of %v at most", steps, worst); worst > limit || steps < 10 {
				t.Errorf("a step took %v", worst)
			}
		})
	}
}

// The index follows label rules, weights and protected pools to the end, and what
// was put meanwhile is where it belongs.
func TestFollowEnds(t *testing.T) {
	l := newLoad(5_000, 8, 20, true)
	r := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		p := DefaultPolicy()
		p.ProtectedPools = []string{l.pool(r.IntN(8)), l.pool(r.IntN(8))}
		p.RemainingTimeWeight = Milli(r.IntN(3) * 100)
		p.LabelPreemptionRules = map[string]map[string][]string{"tier": {"gold": {[]string{"silver", "bronze", "tin"}[r.IntN(3)]}}}
		l.core.SetPolicy(p)
		for steps := 0; l.core.Follow(); steps++ {
			task, a := l.task(r.IntN(5_000))
			l.core.PutAgent(a)
			l.core.PutTask(task)
			if steps > 5_000 {
				t.Fatal("it never ends")
			}
		}
		plain := NewCore(p, l.all)
		plain.ByScan()
		l.copyTo(plain)
		in := l.newcomer()
		if x, y := fmt.Sprint(l.core.Decide(in, later).Victims), fmt.Sprint(plain.Decide(in, later).Victims); x != y {
			t.Fatalf("%s\n%s", x, y)
		}
	}
}

func (l *load) copyTo(c *Core) {
	for i := range l.pools {
		p, _ := l.core.Pool(l.pool(i))
		c.PutPool(p)
	}
	for n := range l.core.Len() {
		t, _ := l.core.Task(id(n + 1))
		a, _ := l.core.Agent(t.Agent)
		c.PutAgent(a)
		c.PutTask(t)
	}
}
