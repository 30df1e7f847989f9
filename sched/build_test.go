package sched_test

import (
	"encoding/binary"
	"flag"
	"testing"

	. "github.com/schedulemesh/schedulemesh/sched"
)

// Properties are cheap here: ask for thousands of cases unless told otherwise.
// A failure prints how to see it again; no file is left behind for that.
func init() {
	for name, value := range map[string]string{"rapid.checks": "2500", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
}

// world is everything a core can be told, in the order in which it is told.
type world struct {
	policy Policy
	nodes  []Node
	pools  []Pool
	agents []Agent
	tasks  []Task
}

func (w world) core() *Core {
	nodes := NewNodes()
	for _, n := range w.nodes {
		nodes.Put(n)
	}
	c := NewCore(w.policy, nodes)
	for _, p := range w.pools {
		c.PutPool(p)
	}
	for _, a := range w.agents {
		c.PutAgent(a)
	}
	for _, t := range w.tasks {
		c.PutTask(t)
	}
	return c
}

func id(n int) (out ID) {
	binary.BigEndian.PutUint64(out[8:], uint64(n))
	return out
}

// run adds a task with an agent of its own; the task's ID and its agent's are
// id(n), where n counts from 1.
func (w *world) run(name, pool string, priority float64, gives Resources, change ...func(*Task, *Agent)) {
	n := id(len(w.tasks) + 1)
	a := Agent{ID: n, Name: name + "-agent", Pool: pool, Gives: gives, Settled: true}
	t := Task{ID: n, Name: name, Agent: n, Pool: pool, Priority: milli(priority), Start: startOfTime}
	for _, f := range change {
		f(&t, &a)
	}
	w.agents = append(w.agents, a)
	w.tasks = append(w.tasks, t)
}

func on(node NodeID) func(*Task, *Agent)   { return func(_ *Task, a *Agent) { a.Node = node } }
func labels(l Labels) func(*Task, *Agent)  { return func(t *Task, _ *Agent) { t.Labels = l } }
func started(at Time) func(*Task, *Agent)  { return func(t *Task, _ *Agent) { t.Start = at } }
func estimate(ms Time) func(*Task, *Agent) { return func(t *Task, _ *Agent) { t.Estimate = ms } }
func sharing(agent ID) func(*Task, *Agent) { return func(t *Task, _ *Agent) { t.Agent = agent } }
func unsettled(_ *Task, a *Agent)          { a.Settled = false }
func preempted(times int) func(*Task, *Agent) {
	return func(t *Task, _ *Agent) { t.Preemptions = times }
}

const startOfTime Time = 1_000_000

// later is when most tests decide: everything has run for a minute.
const later = startOfTime + 60_000

func milli(f float64) Milli {
	m, err := MilliFromFloat(f)
	if err != nil {
		panic(err)
	}
	return m
}

func cpu(n float64) Resources { return Resources{CPU: int64(n * 1000)} }
func gpu(n float64) Resources { return Resources{GPU: int64(n * 1000)} }

func pool(name string, free, ceiling Resources) Pool {
	return Pool{Name: name, Cluster: "local", Free: free, Ceiling: ceiling}
}

func patched(t testing.TB, patch string) Policy {
	t.Helper()
	p, warnings, err := DefaultPolicy().Patch([]byte(patch))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("patch %s: %v, warnings %q", patch, err, warnings)
	}
	return p
}

func incoming(pool string, priority float64, l Labels, request Resources) Incoming {
	return Incoming{ID: id(9_999), Name: "newcomer", Pool: pool, Priority: milli(priority), Labels: l, Request: request}
}

func names(cs []Candidate) (out []string) {
	for _, c := range cs {
		out = append(out, c.TaskName)
	}
	return out
}

func victims(d Decision) (out []string) {
	for _, v := range d.Victims {
		out = append(out, v.Tasks[0].TaskName)
	}
	return out
}
