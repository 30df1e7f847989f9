package replay

import (
	"flag"
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/schedulemesh/schedulemesh/sched"
)

func init() {
	for name, value := range map[string]string{"rapid.checks": "2000", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
}

// check recomputes every balance from the jobs.
func (s *story) check() {
	held := map[*pool]sched.Resources{}
	room := map[sched.NodeID]sched.Resources{}
	for _, n := range s.cfg.Nodes {
		room[n.ID] = n.Total
	}
	var all sched.Resources
	var runs, waits int64
	for id, j := range s.live {
		held[j.pool] = held[j.pool].Add(j.held)
		all = all.Add(j.held)
		if j.id != id {
			s.t.Fatalf("job %x is kept as %x", j.id, id)
		}
		if j.node != "" {
			room[j.node] = room[j.node].Sub(j.charged)
		}
		switch j.state {
		case running:
			runs++
		case queued:
			waits++
			if !j.held.IsZero() {
				s.t.Fatalf("%s waits and holds %v", j.Name, j.held)
			}
		case preempting:
			if j.by == nil || s.live[j.by.id] != j.by {
				s.t.Fatalf("%s makes way for nobody", j.Name)
			}
		}
		if at, dated := j.pool.ends.At(id); dated != (!j.held.IsZero() && (j.Estimate > 0 || j.state == preempting)) || dated && j.state == running && at != j.started+j.Estimate {
			s.t.Fatalf("%s is in state %d, and whether its end is known: %v, %d", j.Name, j.state, dated, at)
		}
		if (j.slot < 0) != (j.state == queued && j.Patience == 0 || j.state == reserved) {
			s.t.Fatalf("%s is in state %d, and whether something is due: %v", j.Name, j.state, j.slot >= 0)
		}
	}
	if !all.Equal(s.held) || runs != s.running || waits != s.waiting {
		s.t.Fatalf("%v are held, not %v; %d run, not %d; %d wait, not %d", all, s.held, runs, s.running, waits, s.waiting)
	}
	lent := map[*pool]sched.Resources{}
	for _, p := range s.pools {
		var borrowed sched.Resources
		for _, l := range p.loans {
			borrowed = borrowed.Add(l.amount)
			lent[l.lender] = lent[l.lender].Add(l.amount)
			if l.lender.Cluster != p.Cluster {
				s.t.Fatalf("%s borrows from another cluster", p.Name)
			}
		}
		if !borrowed.Equal(p.borrowed) {
			s.t.Fatalf("%s borrowed %v, not %v", p.Name, borrowed, p.borrowed)
		}
	}
	for _, p := range s.pools {
		if !lent[p].Equal(p.lent) || !held[p].Equal(p.held) {
			s.t.Fatalf("%s lent %v, not %v; holds %v, not %v", p.Name, lent[p], p.lent, held[p], p.held)
		}
		if free := p.room(); !free.Equal(free.Positive()) {
			s.t.Fatalf("%s promised more than it has: %v are free", p.Name, free)
		}
	}
	ends := 0
	for _, p := range s.pools {
		ends += p.ends.Len()
	}
	if ends > len(s.live) {
		s.t.Fatalf("%d ends are expected of %d", ends, len(s.live))
	}
	for id, left := range room {
		n, _ := s.nodes.Get(id)
		if !n.Room.Equal(left) {
			s.t.Fatalf("node %s has room for %v, not %v", id, left, n.Room)
		}
		if !left.Equal(left.Positive()) {
			s.t.Fatalf("more sits on node %s than it has: %v are left", id, left)
		}
	}
}

// workload is a random cluster, policy and list of tasks.
func workload(t *rapid.T) (Config, []Task) {
	pick := func(name string, from ...int64) int64 { return rapid.SampledFrom(from).Draw(t, name) }
	flip := func(name string) bool { return rapid.Bool().Draw(t, name) }
	patch := fmt.Sprintf(`{"cross_pool_priority_threshold": %d, "same_pool_priority_threshold": %d, "enable_cross_pool_preemption": %v, "max_preemptions_per_minute": %d,
		"max_preemptions_per_task": %d, "min_runtime_seconds": %d, "label_preemption_rules": {"tier": {"gold": ["tin"]}}}`,
		pick("cross", 0, 2, 5), pick("same", 0, 1, 3), flip("enabled"), pick("rate", 0, 0, 2), pick("per task", 0, 0, 1), pick("fresh", 0, 0, 5))
	policy, _, err := sched.DefaultPolicy().Patch([]byte(patch))
	if err != nil {
		t.Fatal(err)
	}
	latency := func(name string) sched.Time { return sched.Time(pick(name, 0, 0, 100, 5_000)) }
	cfg := Config{Policy: policy, Latencies: Latencies{Cancel: latency("cancel"), Save: latency("save"), Launch: latency("launch")}}
	names := []string{"a", "b", "c"}
	for _, name := range names {
		p := cpus(name, pick("capacity", 2, 4, 8))
		p.Cluster = []string{"local", "local", "other"}[pick("cluster", 0, 1, 2)]
		p.Capacity.GPU = 1000 * pick("gpus", 0, 2)
		cfg.Pools = append(cfg.Pools, p)
	}
	if flip("nodes") {
		for i, cluster := range []string{"local", "local", "other"} {
			total := sched.Resources{CPU: 4000, GPU: 2000}
			cfg.Nodes = append(cfg.Nodes, sched.Node{ID: sched.NodeID(fmt.Sprint("n", i)), Cluster: cluster, Total: total, Room: total})
		}
	}
	var tasks []Task
	at := int64(0)
	for i := range rapid.IntRange(1, 60).Draw(t, "tasks") {
		at += pick("later", 0, 0, 1, 7)
		x := task(fmt.Sprint("t", i), at, pick("priority", 1, 2, 5, 9), pick("cpu", 0, 1, 2, 3), pick("runs", 0, 1, 10, 40))
		x.Pool = names[pick("pool", 0, 1, 2)]
		x.Request.GPU = 500 * pick("gpu", 0, 0, 1, 3)
		x.Labels = sched.Labels{"tier": []string{"gold", "tin", "clay"}[pick("tier", 0, 1, 2)]}
		x.Queue, x.Requeue, x.Idle = flip("queue"), flip("requeue"), pick("idle", 0, 0, 0, 1) == 1
		x.Estimate = sched.Time(1000 * pick("estimate", 0, 5, 30))
		x.Checkpoint, x.Patience = sched.Time(1000*pick("checkpoint", 0, 3)), sched.Time(1000*pick("patience", 0, 0, 4))
		tasks = append(tasks, x)
	}
	return cfg, tasks
}

func TestWhateverPassesThroughNothingIsPromisedTwiceAndEachTaskEndsOnce(t *testing.T) {
	preemptions, loans, waited := int64(0), int64(0), int64(0)
	rapid.Check(t, func(rt *rapid.T) {
		cfg, tasks := workload(rt)
		run := func() (Summary, []Preemption) {
			s := &story{t: t}
			cfg.Preempted = func(p Preemption) { s.lost = append(s.lost, p) }
			var err error
			if s.Replay, err = New(cfg); err != nil {
				rt.Fatal(err)
			}
			for _, x := range tasks {
				s.submit(x)
				s.check()
			}
			return s.end(), s.lost
		}
		got, victims := run()
		ended := got.Completed + got.Stopped + got.TimedOut
		for _, n := range got.Refused {
			ended += n
		}
		if ended+got.Unfinished != int64(len(tasks)) || got.Tasks != int64(len(tasks)) {
			rt.Fatalf("%d of %d tasks ended, %d are left", ended, len(tasks), got.Unfinished)
		}
		if got.Preemptions.Total != int64(len(victims)) || got.Fairness < 0 || got.Fairness > 1.000001 {
			rt.Fatalf("%+v", got)
		}
		again, victims2 := run()
		if !reflect.DeepEqual(got, again) || !reflect.DeepEqual(victims, victims2) {
			rt.Fatalf("the same input gave another answer:\n%+v\n%+v", got, again)
		}
		preemptions, loans, waited = preemptions+got.Preemptions.Total, loans+got.Loans, waited+got.PeakWaiting
	})
	t.Logf("%d preemptions, %d loans, %d waited", preemptions, loans, waited)
	if preemptions == 0 || loans == 0 || waited == 0 {
		t.Error("this proved nothing")
	}
}
