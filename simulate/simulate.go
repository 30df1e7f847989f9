// Package simulate puts workloads through the replay engine: synthetic ones made
// from a small YAML file, or traces from a CSV file. It says what came of it as a
// table, as JSON and as a plot.
//
// It knows files, random numbers and the clock, which the engine does not. It must
// not know how a decision is made.
package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/sched/replay"
)

// Options of a simulation.
type Options struct {
	Workload Workload
	Trace    *Trace       // instead of the workload's arrivals
	Policy   sched.Policy // what the workload's own fields change; DefaultPolicy usually
	Over     []byte       // a policy as JSON, fields of it or all: it goes over the workload's
	Seed     uint64
	Progress io.Writer // told every second; nil: nobody is
}

// Report is what came of a simulation.
type Report struct {
	Seed    uint64       `json:"seed"`
	Pools   int          `json:"pools"`
	Policy  sched.Policy `json:"policy"`
	Machine Machine      `json:"machine"`
	replay.Summary
}

// Machine is what it took.
type Machine struct {
	WallSeconds float64 `json:"wall_seconds"`
	// PeakHeapBytes is the most memory seen in use, looked at every second.
	PeakHeapBytes uint64 `json:"peak_heap_bytes"`
	CPUs          int    `json:"cpus"`
}

// Run simulates until all tasks have ended, or wait for what never comes.
func Run(ctx context.Context, o Options) (Report, error) {
	if o.Trace == nil && o.Workload.Tasks == 0 {
		return Report{}, errors.New("tasks: there are none; say how many in the workload, or with --tasks")
	}
	policy, err := o.Workload.policy(o.Policy)
	if err == nil && len(o.Over) > 0 {
		var warnings []string
		if policy, warnings, err = policy.Patch(o.Over); err == nil && len(warnings) > 0 {
			err = fmt.Errorf("%s", strings.Join(warnings, "; "))
		}
	}
	if err != nil {
		return Report{}, fmt.Errorf("policy: %w", err)
	}
	var named []string
	if o.Trace != nil {
		named = o.Trace.pools
	}
	pools, nodes := o.Workload.pools(named)
	cfg := replay.Config{Policy: policy, Pools: pools, Nodes: nodes, Clock: func() int64 { return int64(time.Since(start)) },
		Latencies: replay.Latencies{Cancel: sched.Time(o.Workload.Latency.Cancel), Save: sched.Time(o.Workload.Latency.Save), Launch: sched.Time(o.Workload.Latency.Launch)}}
	for _, from := range o.Workload.PriorityClasses {
		cfg.Classes = append(cfg.Classes, sched.Milli(from*1000))
	}
	engine, err := replay.New(cfg)
	if err != nil {
		return Report{}, err
	}
	next, total, end, err := o.source(pools)
	if err != nil {
		return Report{}, err
	}
	defer end()
	w := &watch{Options: &o, engine: engine, total: total, began: time.Now()}
	for {
		t, ok, err := next()
		if err != nil {
			return Report{}, err
		}
		if !ok {
			break
		}
		if err := engine.Submit(t); err != nil {
			return Report{}, err
		}
		if err := w.look(ctx); err != nil {
			return Report{}, err
		}
	}
	for engine.Step() {
		if err := w.look(ctx); err != nil {
			return Report{}, err
		}
	}
	w.report()
	if o.Progress != nil {
		fmt.Fprintln(o.Progress)
	}
	return Report{Seed: o.Seed, Pools: len(pools), Policy: policy, Summary: engine.Summary(),
		Machine: Machine{WallSeconds: time.Since(w.began).Seconds(), PeakHeapBytes: w.peak, CPUs: runtime.NumCPU()}}, nil
}

var start = time.Now()

// source yields tasks in order, and says how many there will be.
func (o *Options) source(pools []replay.Pool) (next func() (replay.Task, bool, error), total int, end func(), err error) {
	if o.Trace != nil {
		next, end, err = o.Trace.read()
		return next, o.Trace.tasks, end, err
	}
	g := newGenerator(&o.Workload, pools, o.Seed)
	return func() (replay.Task, bool, error) {
		t, ok := g.next()
		return t, ok, nil
	}, o.Workload.Tasks, func() {}, nil
}

// pools are the workload's, and those that a trace names and the workload does not.
func (w *Workload) pools(named []string) (pools []replay.Pool, nodes []sched.Node) {
	cluster := func(i int) string { return fmt.Sprintf("cluster-%d", i%w.Pools.Clusters) }
	known := map[string]bool{}
	for i, p := range w.Pools.Named {
		pool := replay.Pool{Name: p.Name, Cluster: p.Cluster, Capacity: p.Capacity.resources()}
		if pool.Cluster == "" {
			pool.Cluster = cluster(i)
		}
		if len(p.Capacity) == 0 {
			pool.Capacity = w.Pools.Capacity.resources()
		}
		known[p.Name] = true
		pools = append(pools, pool)
	}
	if named == nil && len(pools) == 0 {
		for i := range w.Pools.Count {
			named = append(named, fmt.Sprintf("pool-%d", i+1))
		}
	}
	for _, name := range named {
		if !known[name] {
			pools = append(pools, replay.Pool{Name: name, Cluster: cluster(len(pools)), Capacity: w.Pools.Capacity.resources()})
		}
	}
	clusters := map[string]bool{}
	for _, p := range pools {
		if clusters[p.Cluster] {
			continue
		}
		clusters[p.Cluster] = true
		for i := range w.Pools.Nodes.Count {
			total := w.Pools.Nodes.Capacity.resources()
			nodes = append(nodes, sched.Node{ID: sched.NodeID(fmt.Sprintf("%s-node-%04d", p.Cluster, i+1)), Cluster: p.Cluster, Total: total, Room: total})
		}
	}
	return pools, nodes
}

// watch looks up from the work once a second.
type watch struct {
	*Options
	engine *replay.Replay
	total  int
	began  time.Time
	calls  int
	last   time.Time
	peak   uint64
}

func (w *watch) look(ctx context.Context) error {
	if w.calls++; w.calls%1000 != 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if now := time.Now(); now.Sub(w.last) > time.Second {
		w.last = now
		w.report()
	}
	return nil
}

func (w *watch) report() {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	w.peak = max(w.peak, m.HeapInuse)
	if w.Progress == nil {
		return
	}
	tasks := w.engine.Tasks
	fmt.Fprintf(w.Progress, "\r%s of %s tasks, %s running, simulated %v, %.0f s, %d MiB   ", count(tasks), count(int64(w.total)), count(int64(w.engine.Running())),
		(time.Duration(w.engine.Elapsed()) * time.Millisecond).Round(time.Minute), time.Since(w.began).Seconds(), m.HeapInuse>>20)
}

// count writes a number with its thousands apart.
func count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
