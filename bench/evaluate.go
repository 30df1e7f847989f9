package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
)

// evaluate measures the decision core by itself: what one decision costs at so many
// running tasks, of random priorities, ends and labels, half of the deficits hard to
// cover, cross-pool preemption on. `evaluate_1m` is Decide for one victim, `_16` are
// the sixteen best candidates, `_scan` a plain loop over all tasks for the same
// victim, `victims_1m` a deficit of 64 small tasks. Each question is asked once a
// round, and its best time counts: the others measure the machine's other work.
func (b *bench) evaluate(ctx context.Context) error {
	small := 0.0
	for _, size := range []struct {
		name  string
		tasks int
	}{{"1k", 1_000}, {"10k", 10_000}, {"100k", 100_000}, {"1m", 1_000_000}} {
		for _, kind := range []struct {
			name  string
			pools int
			alike bool
		}{{"", 8, false}, {"_realistic", 8, true}, {"_1000pools", 1000, false}} {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			name := "evaluate_" + size.name + kind.name
			l := newCoreLoad(size.tasks, kind.pools, kind.alike)
			one := func(i int) func() {
				in := l.asks[i]
				return func() { l.core.Decide(in, l.now) }
			}
			p50, p99 := b.quantiles(len(l.asks), one)
			say(name+"_p50", p50, "µs")
			say(name+"_p99", p99, "µs")
			if kind.name == "" && size.name == "10k" {
				small = p99
			}
			if kind.name == "" && size.name == "1m" {
				say("evaluate_growth", p99/small, "times the p99 of 10k")
			}
			p50, p99 = b.quantiles(len(l.asks), func(i int) func() {
				in := l.asks[i]
				return func() { l.core.Candidates(in, l.now, 16) }
			})
			say(name+"_16_p50", p50, "µs")
			say(name+"_16_p99", p99, "µs")
			p50, _ = b.quantiles(min(len(l.asks), max(5, 2_000_000/size.tasks)), func(i int) func() {
				in := l.asks[i]
				return func() { l.scan(&in) }
			})
			say(name+"_scan_p50", p50, "µs")
			p50, p99 = b.quantiles(300, func(i int) func() {
				in := l.asks[i]
				in.Priority, in.Request = 9_000, sched.Resources{CPU: 64 * 1000}
				if !kind.alike {
					in.Request.CPU *= 16 // what these give is sixteen times as much
				}
				return func() { l.core.Decide(in, l.now) }
			})
			say("victims_"+size.name+kind.name+"_p50", p50, "µs")
			say("victims_"+size.name+kind.name+"_p99", p99, "µs")
		}
	}
	return nil
}

func (b *bench) quantiles(n int, question func(int) func()) (p50, p99 float64) {
	best := make([]time.Duration, n)
	for round := range max(b.rounds, 1) {
		runtime.GC()
		for i := range best {
			ask := question(i)
			start := time.Now()
			ask()
			if took := time.Since(start); round == 0 || took < best[i] {
				best[i] = took
			}
		}
	}
	slices.Sort(best)
	µs := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	return µs(best[n/2]), µs(best[n*99/100])
}

// coreLoad is a full cluster of one namespace, and what is asked of it.
type coreLoad struct {
	r     *rand.Rand
	core  *sched.Core
	now   sched.Time
	tasks []sched.Task
	gives []sched.Resources
	asks  []sched.Incoming
	pools int
	alike bool
}

func newCoreLoad(tasks, pools int, alike bool) *coreLoad {
	l := &coreLoad{r: rand.New(rand.NewPCG(1, 2)), now: 1_700_000_000_000, pools: pools, alike: alike}
	p := sched.DefaultPolicy()
	p.LabelPreemptionRules = map[string]map[string][]string{"tier": {"gold": {"bronze"}}}
	l.core = sched.NewCore(p, sched.NewNodes())
	for i := range pools {
		l.core.PutPool(sched.Pool{Name: fmt.Sprint("pool-", i), Cluster: "local", Ceiling: sched.Resources{CPU: 1e12, GPU: 1e12, Memory: 1e12}})
	}
	for i := range tasks {
		var id sched.ID
		binary.BigEndian.PutUint64(id[8:], uint64(i+1))
		a := sched.Agent{ID: id, Name: fmt.Sprint("agent-", i), Pool: l.pool(), Gives: l.shape(), Settled: true}
		t := sched.Task{ID: id, Name: fmt.Sprint("task-", i), Agent: id, Pool: a.Pool, Labels: l.labels(), Priority: sched.Milli(l.r.IntN(10_000)),
			Start: l.now - sched.Time(l.r.IntN(600_000)), Estimate: sched.Time(l.r.IntN(7_200_000))}
		l.core.PutAgent(a)
		l.core.PutTask(t)
		l.tasks, l.gives = append(l.tasks, t), append(l.gives, a.Gives)
	}
	l.core.Build()
	for range 3_000 {
		l.asks = append(l.asks, l.newcomer())
	}
	return l
}

func (l *coreLoad) pool() string { return fmt.Sprint("pool-", l.r.IntN(l.pools)) }

func (l *coreLoad) labels() sched.Labels {
	return []sched.Labels{{"tier": "gold"}, {"tier": "silver"}, {"tier": "bronze"}}[l.r.IntN(3)]
}

func (l *coreLoad) shape() sched.Resources {
	if l.alike {
		return []sched.Resources{{CPU: 1000, Memory: 4096}, {CPU: 4000, Memory: 16384}, {CPU: 1000, GPU: 1000, Memory: 8192},
			{CPU: 2000, Memory: 8192}, {CPU: 8000, GPU: 4000, Memory: 65536}, {CPU: 500, Memory: 1024}}[l.r.IntN(6)]
	}
	return sched.Resources{CPU: 500 * int64(1+l.r.IntN(64)), GPU: 1000 * max(0, l.r.Int64N(16)-8), Memory: 1024 * int64(1+l.r.IntN(256))}
}

// newcomer asks for something easy or hard to find.
func (l *coreLoad) newcomer() sched.Incoming {
	request := l.shape()
	switch {
	case l.r.IntN(2) == 0:
	case l.alike:
		request = sched.Resources{CPU: 8000, GPU: 1000 * (1 + l.r.Int64N(4))}
	default:
		request = sched.Resources{CPU: 28_000 + 500*l.r.Int64N(8), GPU: 1000 * l.r.Int64N(8), Memory: 1024 * (200 + l.r.Int64N(50))}
	}
	return sched.Incoming{ID: sched.ID{1}, Name: "newcomer", Pool: l.pool(), Priority: sched.Milli(3_000 + l.r.IntN(7_000)), Labels: l.labels(), Request: request}
}

// scan finds the best single victim by looking at every task, as plainly as can be.
func (l *coreLoad) scan(in *sched.Incoming) (best int) {
	p := l.core.Policy()
	best, most := -1, int64(0)
	for i := range l.tasks {
		t := &l.tasks[i]
		base := int64(in.Priority - t.Priority)
		switch byLabel := in.Labels["tier"] == "gold" && t.Labels["tier"] == "bronze"; {
		case byLabel:
			base = max(base, int64(p.LabelPriorityThreshold))
		case in.Labels["tier"] == "bronze" && t.Labels["tier"] == "gold",
			t.Pool == in.Pool && base < int64(p.SamePoolPriorityThreshold),
			t.Pool != in.Pool && base < int64(p.CrossPoolPriorityThreshold):
			continue
		}
		score := base*1000 + int64(p.RemainingTimeWeight)*int64(max(t.Start+t.Estimate-l.now, 0))
		if (best < 0 || score > most) && l.gives[i].Covers(in.Request) {
			best, most = i, score
		}
	}
	return best
}
