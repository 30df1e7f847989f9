package sched_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	. "github.com/schedulemesh/schedulemesh/sched"
)

// busy is a full cluster: tasks of a few shapes in ten pools on a hundred nodes.
func busy(tasks int) *Core {
	r := rand.New(rand.NewPCG(1, 2))
	w := world{policy: DefaultPolicy()}
	for i := range 10 {
		w.pools = append(w.pools, pool(fmt.Sprint("pool-", i), Resources{}, cpu(1e6).Add(gpu(1e6))))
	}
	for i := range 100 {
		total := Resources{CPU: 256_000, GPU: 16_000, Memory: 1 << 20}
		w.nodes = append(w.nodes, Node{ID: NodeID(fmt.Sprintf("node-%03d", i)), Cluster: "local", Total: total})
	}
	shapes := []Resources{cpu(1), cpu(4), {CPU: 1000, GPU: 1000}, {CPU: 2000, Memory: 8192}, {CPU: 8000, GPU: 4000, Memory: 65536}}
	for i := range tasks {
		w.run(fmt.Sprint("task-", i), fmt.Sprint("pool-", r.IntN(10)), float64(r.IntN(100))/10, shapes[r.IntN(len(shapes))],
			on(NodeID(fmt.Sprintf("node-%03d", r.IntN(100)))), estimate(Time(r.IntN(7200_000))), started(startOfTime+Time(r.IntN(60_000))))
	}
	return w.core()
}

func BenchmarkDecide(b *testing.B) {
	const tasks = 10_000
	c := busy(tasks)
	for _, x := range []struct {
		name string
		in   Incoming
	}{
		{"one victim", incoming("pool-3", 9, nil, cpu(4))},
		{"several victims", incoming("pool-3", 9, nil, Resources{GPU: 16_000})},
		{"refused", incoming("pool-3", 9, nil, Resources{CPU: 1000}.With("tpu", 1000))},
	} {
		b.Run(x.name, func(b *testing.B) {
			var d Decision
			for b.Loop() {
				d = c.Decide(x.in, later)
			}
			b.ReportMetric(float64(len(d.Victims)), "victims")
		})
	}
}

func BenchmarkResourcesJSON(b *testing.B) {
	r := Resources{CPU: 1500, GPU: 1000, Memory: 2048}
	buf := make([]byte, 0, 64)
	for b.Loop() {
		buf = r.AppendJSON(buf[:0])
		if err := r.UnmarshalJSON(buf); err != nil {
			b.Fatal(err)
		}
	}
}
