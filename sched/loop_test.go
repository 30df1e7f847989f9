package sched_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	. "github.com/schedulemesh/schedulemesh/sched"
)

// cluster runs tasks on a core as the ledger would: victims go back into the
// queue, remembering who preempted them.
type cluster struct {
	core  *Core
	tasks map[ID]Incoming
	queue []ID
	now   Time
	total int // preemptions
	// forgetful hands in only what a task itself remembers, not what its
	// preemptors learned since while they wait in the queue.
	forgetful bool
}

// preemptors are all that must not be preempted for a task: those that
// preempted it, and theirs, whether they run or wait.
func (c *cluster) preemptors(of []ID) []ID {
	all := slices.Clone(of)
	for i := 0; i < len(all); i++ {
		for _, next := range c.tasks[all[i]].PreemptedBy {
			if !slices.Contains(all, next) {
				all = append(all, next)
			}
		}
	}
	return all
}

func newCluster(p Policy, quota Resources) *cluster {
	c := &cluster{core: NewCore(p, NewNodes()), tasks: map[ID]Incoming{}, now: later}
	c.core.PutPool(pool("a", quota, quota))
	return c
}

func (c *cluster) submit(in Incoming) {
	c.tasks[in.ID] = in
	c.queue = append(c.queue, in.ID)
}

// step offers the whole queue once, and reports whether anything started.
func (c *cluster) step() bool {
	started := false
	for _, next := range slices.Clone(c.queue) {
		in := c.tasks[next]
		c.now += 1000
		if !c.forgetful {
			in.PreemptedBy = c.preemptors(in.PreemptedBy)
		}
		d := c.core.Decide(in, c.now)
		if d.Outcome == Refuse {
			continue
		}
		started = true
		p, _ := c.core.Pool("a")
		for _, v := range d.Victims {
			c.total++
			p.Free = p.Free.Add(v.Gives)
			victim := c.tasks[v.Tasks[0].Task]
			victim.PreemptedBy = slices.Concat(victim.PreemptedBy, []ID{in.ID}, in.PreemptedBy)
			c.tasks[victim.ID] = victim
			c.core.RemoveTask(victim.ID)
			c.core.RemoveAgent(victim.ID)
			c.queue = append(c.queue, victim.ID)
		}
		p.Free = p.Free.Sub(in.Request)
		c.core.PutPool(p)
		c.core.PutAgent(Agent{ID: in.ID, Pool: "a", Gives: in.Request, Settled: true})
		c.core.PutTask(Task{ID: in.ID, Name: in.Name, Agent: in.ID, Pool: "a", Priority: in.Priority, Labels: in.Labels, Start: c.now, PreemptedBy: in.PreemptedBy})
		c.queue = slices.DeleteFunc(c.queue, func(id ID) bool { return id == in.ID })
	}
	return started
}

// Priority would take the gold task, label takes the other: without the rank
// and the memory of preemptors they would evict each other for ever.
func TestTwoTasksDoNotEvictEachOtherForEver(t *testing.T) {
	c := newCluster(patched(t, `{"label_preemption_rules":{"tier":{"gold":["iron"]},"user":{"admin":["guest"]}}}`), cpu(1))
	c.submit(Incoming{ID: id(1), Name: "iron, admin, high priority", Pool: "a", Priority: 9000, Labels: Labels{"tier": "iron", "user": "admin"}, Request: cpu(1)})
	c.submit(Incoming{ID: id(2), Name: "gold, guest, low priority", Pool: "a", Priority: 1000, Labels: Labels{"tier": "gold", "user": "guest"}, Request: cpu(1)})
	for range 10 {
		c.step()
	}
	if c.total != 1 {
		t.Errorf("%d preemptions; the second task takes the first, and that is all", c.total)
	}
}

// a > b and b > c by label, but c beats a by priority: a circle of three, which
// no pair of them shows.
func TestACircleOfThreeEnds(t *testing.T) {
	c := newCluster(patched(t, `{"label_preemption_rules":{"tier":{"a":["b"],"b":["c"]}}}`), cpu(1))
	for i, x := range []struct {
		tier     string
		priority Milli
	}{{"c", 9000}, {"b", 5000}, {"a", 1000}} {
		c.submit(Incoming{ID: id(i + 1), Name: x.tier, Pool: "a", Priority: x.priority, Labels: Labels{"tier": x.tier}, Request: cpu(1)})
	}
	for range 10 {
		c.step()
	}
	if c.total != 2 {
		t.Errorf("%d preemptions: b takes c, a takes b, c takes neither back", c.total)
	}
}

func TestAnyMixOfTasksComesToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := DefaultPolicy()
		p.SamePoolPriorityThreshold, p.MinPreemptScore = 0, 0 // as eager as can be
		p.LabelPreemptionRules = map[string]map[string][]string{
			"tier": {"a": {"b"}, "b": {"c"}},
			"user": {"c": {"b"}, "b": {"a"}}, // the opposite
		}
		c := newCluster(p, cpu(float64(rapid.IntRange(1, 3).Draw(t, "quota"))))
		c.forgetful = rapid.Bool().Draw(t, "forgetful")
		n := rapid.IntRange(2, 6).Draw(t, "tasks")
		for i := range n {
			name := fmt.Sprint("task ", i)
			c.submit(Incoming{
				ID: id(i + 1), Name: name, Pool: "a", Labels: someLabels(t, name),
				Priority: 1000 * Milli(rapid.IntRange(0, 2).Draw(t, name+" priority")),
				Request:  cpu(float64(rapid.IntRange(1, 2).Draw(t, name+" cpu"))),
			})
		}
		for round := 0; c.step(); round++ {
			if round > 1<<n {
				t.Fatalf("still moving after %d rounds and %d preemptions", round, c.total)
			}
		}
	})
}
