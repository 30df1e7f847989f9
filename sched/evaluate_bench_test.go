package sched_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	. "github.com/schedulemesh/schedulemesh/sched"
)

// load is a full cluster in which everything is as unlike as can be: priorities,
// ends and shapes at random, three classes of labels.
type load struct {
	*rand.Rand
	core  *Core
	pools int
	alike bool // a few shapes, as people ask for them
	nodes int
	all   *Nodes
}

func (l *load) shape() Resources {
	if l.alike {
		return []Resources{{CPU: 1000, Memory: 4096}, {CPU: 4000, Memory: 16384}, {CPU: 1000, GPU: 1000, Memory: 8192},
			{CPU: 2000, Memory: 8192}, {CPU: 8000, GPU: 4000, Memory: 65536}, {CPU: 500, Memory: 1024}}[l.IntN(6)]
	}
	return Resources{CPU: 500 * int64(1+l.IntN(64)), GPU: 1000 * max(0, l.Int64N(16)-8), Memory: 1024 * int64(1+l.IntN(256))}
}

func (l *load) labels() Labels {
	return []Labels{{"tier": "gold"}, {"tier": "silver"}, {"tier": "bronze"}}[l.IntN(3)]
}

func (l *load) pool(i int) string { return fmt.Sprint("pool-", i) }

func (l *load) task(n int) (Task, Agent) {
	a := Agent{ID: id(n + 1), Name: fmt.Sprint("agent-", n), Pool: l.pool(l.IntN(l.pools)), Gives: l.shape(), Settled: true}
	if l.nodes > 0 {
		a.Node = NodeID(fmt.Sprintf("node-%03d", l.IntN(l.nodes)))
	}
	t := Task{ID: a.ID, Name: fmt.Sprint("task-", n), Agent: a.ID, Pool: a.Pool, Labels: l.labels(),
		Priority: Milli(l.IntN(10_000)), Start: startOfTime - Time(l.IntN(600_000)), Estimate: Time(l.IntN(7_200_000))}
	if l.IntN(5) == 0 {
		t.Estimate = 0
	}
	return t, a
}

func newLoad(tasks, pools, nodes int, alike bool) *load {
	l := &load{Rand: rand.New(rand.NewPCG(1, 2)), pools: pools, nodes: nodes, alike: alike}
	p := DefaultPolicy()
	p.LabelPreemptionRules = map[string]map[string][]string{"tier": {"gold": {"bronze"}}}
	p.ProtectedPools = []string{l.pool(0)}
	l.all = NewNodes()
	l.room(Resources{})
	l.core = NewCore(p, l.all)
	for i := range pools {
		l.core.PutPool(pool(l.pool(i), Resources{}, Resources{CPU: 1e12, GPU: 1e12, Memory: 1e12}))
	}
	for n := range tasks {
		t, a := l.task(n)
		l.core.PutAgent(a)
		l.core.PutTask(t)
	}
	return l
}

// room is what every node has left.
func (l *load) room(r Resources) {
	for i := range l.nodes {
		l.all.Put(Node{ID: NodeID(fmt.Sprintf("node-%03d", i)), Cluster: "local", Room: r, Total: Resources{CPU: 1e9, GPU: 1e9, Memory: 1e9}})
	}
}

// newcomer asks for something easy or hard to find.
func (l *load) newcomer() Incoming {
	request := l.shape()
	if l.IntN(2) == 0 { // hard: little runs that gives so much
		request = Resources{CPU: 28_000 + 500*l.Int64N(8), GPU: 1000 * l.Int64N(8), Memory: 1024 * (200 + l.Int64N(50))}
		if l.alike {
			request = Resources{CPU: 8000, GPU: 1000 * (1 + l.Int64N(4))}
		}
	}
	return Incoming{ID: id(1 << 40), Name: "newcomer", Pool: l.pool(l.IntN(l.pools)), Priority: Milli(3_000 + l.IntN(7_000)), Labels: l.labels(), Request: request}
}

// quantiles times what is prepared, by itself, many times: on the wall's clock and
// in time computed.
func quantiles(b *testing.B, prepare func() func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	prepare()()
	todo := make([]func(), b.N)
	for i := range todo {
		todo[i] = prepare()
	}
	runtime.GC()
	wall, cpu := make([]time.Duration, 0, b.N), make([]time.Duration, 0, b.N)
	b.ResetTimer()
	for _, f := range todo {
		start, computed := time.Now(), cpuTime()
		f()
		cpu = append(cpu, cpuTime()-computed)
		wall = append(wall, time.Since(start))
	}
	b.StopTimer()
	for name, took := range map[string][]time.Duration{"": wall, "cpu-": cpu} {
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, name+"p50-µs")
		b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, name+"p99-µs")
	}
}

func BenchmarkEvaluate(b *testing.B) {
	for _, size := range []struct {
		name  string
		tasks int
	}{{"1k", 1_000}, {"10k", 10_000}, {"100k", 100_000}, {"1m", 1_000_000}} {
		for _, kind := range []struct {
			name         string
			pools, nodes int
			alike        bool
		}{{"random", 8, 0, false}, {"alike", 8, 0, true}, {"pools1000", 1000, 0, false}, {"nodes100", 8, 100, false}} {
			var l *load
			run := func(name string, prepare func() func()) {
				b.Run(fmt.Sprintf("evaluate_%s/%s/%s", size.name, kind.name, name), func(b *testing.B) {
					if l == nil {
						var before, after runtime.MemStats
						l = newLoad(size.tasks, kind.pools, kind.nodes, kind.alike)
						runtime.GC()
						runtime.ReadMemStats(&before)
						runtime.LockOSThread()
						at := cpuTime()
						l.core.Build()
						built := cpuTime() - at
						runtime.UnlockOSThread()
						runtime.GC()
						runtime.ReadMemStats(&after)
						b.Logf("index: built in %v, %d bytes a task", built, (int(after.HeapAlloc)-int(before.HeapAlloc))/size.tasks)
					}
					quantiles(b, prepare)
				})
			}
			decide := func(change func(*Incoming)) func() func() {
				return func() func() {
					in := l.newcomer()
					change(&in)
					return func() { l.core.Decide(in, later) }
				}
			}
			run("victim", decide(func(*Incoming) {}))
			run("16candidates", func() func() {
				in := l.newcomer()
				return func() { l.core.Candidates(in, later, 16) }
			})
			run("64victims", decide(func(in *Incoming) {
				in.Priority, in.Request = 9_000, Resources{CPU: 32_000 * 40}
				if l.alike {
					in.Request = Resources{CPU: 64_000 * 2}
				}
			}))
			run("admit", decide(func(in *Incoming) { in.Request = Resources{} }))
			run("nobody", decide(func(in *Incoming) { in.Priority, in.Labels = -1_000_000, nil }))
			run("update", func() func() {
				t, a := l.task(l.IntN(size.tasks))
				return func() {
					l.core.PutAgent(a)
					l.core.PutTask(t)
					l.core.Build()
				}
			})
			run("reput", func() func() {
				t, ok := l.core.Task(id(1 + l.IntN(size.tasks)))
				if !ok {
					b.Fatal("no task")
				}
				a, _ := l.core.Agent(t.Agent)
				return func() {
					l.core.RemoveTask(t.ID)
					l.core.RemoveAgent(a.ID)
					l.core.PutAgent(a)
					l.core.PutTask(t)
					l.core.Build()
				}
			})
		}
	}
}
