package sched_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	. "github.com/schedulemesh/schedulemesh/sched"
)

// The line against a sorted list: positions, the head and the order, while tasks
// come, go and change their priority, and the policy its ageing weight.
func TestTheLineIsSortedByPriorityThenAge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var line Line
		var want []Waiting
		weight := Milli(0)
		for step := range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				if len(want) > 0 {
					at := rapid.IntRange(0, len(want)-1).Draw(t, "gone")
					line.Remove(want[at].ID)
					want = slices.Delete(want, at, at+1)
				}
			case 1:
				weight = Milli(rapid.SampledFrom([]int{0, 500, 2000}).Draw(t, "weight"))
				line.SetAgeing(weight)
			default:
				w := Waiting{ID: id(rapid.IntRange(1, 20).Draw(t, "id")), Priority: Milli(1000 * rapid.IntRange(0, 3).Draw(t, "priority")),
					Since: later + Time(60_000*rapid.IntRange(0, 3).Draw(t, "since"))}
				line.Put(w)
				want = append(slices.DeleteFunc(want, func(o Waiting) bool { return o.ID == w.ID }), w)
			}
			effective := func(w Waiting) Milli { return w.Priority - weight*Milli(w.Since-later)/60_000 }
			slices.SortFunc(want, func(a, b Waiting) int {
				if x, y := effective(a), effective(b); x != y {
					return int(y - x)
				}
				if a.Since != b.Since {
					return int(a.Since - b.Since)
				}
				return slices.Compare(a.ID[:], b.ID[:])
			})
			got := slices.Collect(line.All())
			for i, w := range want {
				if line.Len() != len(want) || got[i] != w.ID || line.Position(w.ID) != i+1 {
					t.Fatalf("step %d: %v at position %d, want %v", step, got, line.Position(w.ID), want)
				}
			}
			if head, ok := line.Head(); ok != (len(want) > 0) || ok && head != want[0].ID {
				t.Fatalf("head %v", head)
			}
		}
		if line.Position(id(99)) != 0 {
			t.Fatal("somebody who does not wait has a position")
		}
	})
}

func TestNobodyStartsWhoCouldDelayTheHead(t *testing.T) {
	// 4 cpu, 3 of them in use: 1 until +10 s, 1 until +20 s, 1 for ever. The head wants 2.
	w := world{policy: DefaultPolicy(), pools: []Pool{pool("a", cpu(1), cpu(4))}}
	c := w.core()
	var quota Agenda
	quota.Put(id(1), later+10_000, cpu(1))
	quota.Put(id(2), later+20_000, cpu(1))
	ends := Ends{Quota: &quota, Room: func(NodeID) *Agenda { return nil }}
	r := c.Reserve(incoming("a", 5, nil, cpu(2)), ends, later)
	if !r.Known || r.At != later+10_000 {
		t.Fatalf("with what ends first there is room: %+v", r)
	}
	small := incoming("a", 5, nil, cpu(1))
	for end, want := range map[Time]Outcome{later + 10_000: Admit, later + 10_001: Refuse, 0: Refuse} {
		d := c.Backfill(small, end, r, "big", later)
		if d.Outcome != want {
			t.Errorf("ends at %d: %+v", end-later, d)
		}
		if want == Refuse && (d.Refusal.Code != RoomReserved || !strings.Contains(d.Refusal.Message, "big")) {
			t.Errorf("%+v", d.Refusal)
		}
	}
	if d := c.Backfill(incoming("a", 5, nil, cpu(2)), later+1, r, "big", later); d.Refusal.Code != NoVictims {
		t.Errorf("what does not fit anyway is told so: %+v", d)
	}
	// Somebody who wants 3 waits until +20 s, when one cpu is left over.
	c.PutPool(pool("a", cpu(2), cpu(4)))
	quota.Remove(id(2))
	quota.Put(id(3), later+20_000, cpu(2))
	if r = c.Reserve(incoming("a", 5, nil, cpu(3)), ends, later); r.At != later+10_000 {
		t.Fatalf("%+v", r)
	}
	if r = c.Reserve(incoming("a", 5, nil, cpu(4)), ends, later); r.At != later+20_000 {
		t.Fatalf("%+v", r)
	}
	if d := c.Backfill(small, 0, r, "big", later); d.Outcome != Admit {
		t.Errorf("one cpu is spare for ever: %+v", d)
	}
	// Nobody says when: only what the head does not need may be used.
	quota = Agenda{}
	c.PutPool(pool("a", Resources{CPU: 1000, Memory: 100}, Resources{CPU: 4000, Memory: 100}))
	if r = c.Reserve(incoming("a", 5, nil, Resources{CPU: 2000, Memory: 60}), ends, later); r.Known {
		t.Fatalf("%+v", r)
	}
	for _, s := range []struct {
		request Resources
		want    Outcome
	}{{cpu(0.5), Refuse}, {Resources{Memory: 40}, Admit}, {Resources{Memory: 41}, Refuse}} {
		if d := c.Backfill(incoming("a", 5, nil, s.request), later+1, r, "big", later); d.Outcome != s.want {
			t.Errorf("%v: %+v", s.request, d)
		}
	}
}

func TestBackfillMayPreemptOnlyThoseTheHeadDoesNotCountOn(t *testing.T) {
	w := world{policy: patched(t, `{"label_preemption_rules":{"tier":{"a":["b","c"]}}}`), pools: []Pool{pool("a", cpu(1), cpu(4))}}
	w.run("ends", "a", 5, cpu(1), labels(Labels{"tier": "b"}))
	w.run("stays", "a", 5, cpu(1), labels(Labels{"tier": "c"}))
	c := w.core()
	var quota Agenda
	quota.Put(id(1), later+10_000, cpu(1))
	r := c.Reserve(incoming("a", 5, nil, cpu(2)), Ends{Quota: &quota}, later)
	if d := c.Backfill(incoming("a", 5, Labels{"tier": "a"}, cpu(1)), 0, r, "big", later); d.Outcome != Refuse {
		t.Errorf("the first victim is who the head waits for: %+v", d)
	}
	c.RemoveTask(id(1))
	if d := c.Backfill(incoming("a", 5, Labels{"tier": "a"}, cpu(1)), 0, r, "big", later); d.Outcome != Preempt || !d.Deficit.Equal(cpu(1)) {
		t.Errorf("all of it comes from the victim, the free cpu is kept: %+v", d)
	}
}

func TestOnAHeldNodeNothingStartsAndNobodyIsToldNever(t *testing.T) {
	w := world{policy: DefaultPolicy(), pools: []Pool{pool("a", cpu(9), cpu(9))},
		nodes: []Node{{ID: "n", Cluster: "local", Room: cpu(8), Total: cpu(8), Held: true}, {ID: "small", Cluster: "local", Room: cpu(1), Total: cpu(1)}}}
	index := w.core()
	index.ByIndex(1, 1)
	for _, c := range []*Core{w.core(), index} {
		d := c.Decide(incoming("a", 1, nil, cpu(2)), later)
		if d.Outcome != Refuse || d.Refusal.Code != NoVictims || !strings.Contains(d.Refusal.Message, "held") {
			t.Errorf("%+v", d)
		}
		if d := c.Decide(incoming("a", 1, nil, cpu(1)), later); d.Node != "small" {
			t.Errorf("%+v", d)
		}
		if d := c.Decide(incoming("a", 1, nil, cpu(9)), later); d.Refusal.Code != NoNodeLargeEnough {
			t.Errorf("%+v", d)
		}
	}
}

// A pool on some nodes, a stream of tasks with and without estimates, which end
// when they say or earlier. Whatever comes behind it, the head starts no later than
// what it was told first.
func TestWhatComesBehindNeverDelaysTheHead(t *testing.T) {
	passed := 0
	rapid.Check(t, func(t *rapid.T) {
		f := newFloor(t)
		promised := map[ID]Time{}
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "comes") {
				f.submit(t)
			}
			f.now += Time(1000 * rapid.IntRange(0, 5).Draw(t, "time"))
			f.endDue()
			passed += f.drain(t)
			head, ok := f.line.Head()
			if !ok {
				continue
			}
			r := f.core.Reserve(f.waiting[head].incoming(head), f.ends(), f.now)
			first, seen := promised[head]
			switch {
			case r.Known && !seen:
				promised[head] = r.At
			case seen && !r.Known, seen && r.At > max(first, f.now) || seen && f.now > first:
				t.Fatalf("at %d: task %v was promised %d, is told %d (%v)", f.now, head, first, r.At, r.Known)
			}
		}
	})
	if passed == 0 {
		t.Error("nobody ever passed a head: this proved nothing")
	}
}

// Without estimates nobody passes who wants anything of what the head lacks.
func TestWithoutEstimatesALargeRequestIsNotStarved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFloor(t)
		f.blind = true
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			f.submit(t)
			f.now += Time(1000 * rapid.IntRange(0, 5).Draw(t, "time"))
			f.endDue()
			if n := f.drain(t); n > 0 {
				head, _ := f.line.Head()
				t.Fatalf("%d passed %v", n, head)
			}
		}
	})
}

// floor is a pool in a simulation: what runs, what waits.
type floor struct {
	core    *Core
	nodes   *Nodes
	pool    Pool
	line    Line
	quota   Agenda
	rooms   map[NodeID]*Agenda
	waiting map[ID]job
	running map[ID]run
	now     Time
	n       int
	blind   bool // nobody gives an estimate
}

type job struct {
	Expected
	takes Time // how long it really takes
}

type run struct {
	job
	node NodeID
	end  Time
}

func (j job) incoming(of ID) Incoming { return Incoming{ID: of, Pool: "a", Request: j.Request} }

func newFloor(t *rapid.T) *floor {
	f := &floor{nodes: NewNodes(), rooms: map[NodeID]*Agenda{}, waiting: map[ID]job{}, running: map[ID]run{}, now: later}
	f.core = NewCore(DefaultPolicy(), f.nodes)
	quota := Milli(rapid.IntRange(4, 8).Draw(t, "quota"))
	f.pool = pool("a", cpu(float64(quota)), cpu(float64(quota)))
	f.core.PutPool(f.pool)
	for i := range rapid.IntRange(0, 3).Draw(t, "nodes") {
		n := NodeID(fmt.Sprint("n", i))
		room := cpu(float64(rapid.IntRange(4, 6).Draw(t, "room")))
		f.nodes.Put(Node{ID: n, Cluster: "local", Room: room, Total: room})
		f.rooms[n] = &Agenda{}
	}
	return f
}

func (f *floor) ends() Ends {
	return Ends{Quota: &f.quota, Room: func(n NodeID) *Agenda { return f.rooms[n] }}
}

func (f *floor) submit(t *rapid.T) {
	f.n++
	j := job{Expected: Expected{Request: cpu(float64(rapid.SampledFrom([]int{1, 1, 1, 2, 4}).Draw(t, "request")))},
		takes: Time(1000 * rapid.IntRange(1, 20).Draw(t, "takes"))}
	if !f.blind && !chance(t, 4, "no estimate") {
		j.Duration = j.takes + Time(1000*rapid.IntRange(0, 5).Draw(t, "spare time"))
	}
	f.waiting[id(f.n)] = j
	f.line.Put(Waiting{ID: id(f.n), Since: f.now, Request: j.Request})
}

func (f *floor) start(of ID, node NodeID) {
	j := f.waiting[of]
	delete(f.waiting, of)
	f.line.Remove(of)
	f.running[of] = run{j, node, f.now + j.takes}
	f.move(j.Request.Neg(), node)
	if j.Duration > 0 {
		f.quota.Put(of, f.now+j.Duration, j.Request)
		if node != "" {
			f.rooms[node].Put(of, f.now+j.Duration, j.Request)
		}
	}
}

func (f *floor) move(by Resources, node NodeID) {
	f.pool.Free = f.pool.Free.Add(by)
	f.core.PutPool(f.pool)
	f.nodes.Adjust(node, by)
}

func (f *floor) endDue() {
	for of, r := range f.running {
		if r.end <= f.now {
			delete(f.running, of)
			f.quota.Remove(of)
			if r.node != "" {
				f.rooms[r.node].Remove(of)
			}
			f.move(r.Request, r.node)
		}
	}
}

// drain starts what may start, and says how many passed the head.
func (f *floor) drain(t *rapid.T) (passed int) {
	for {
		head, ok := f.line.Head()
		if !ok {
			return passed
		}
		d := f.core.Decide(f.waiting[head].incoming(head), f.now)
		if d.Outcome != Admit {
			break
		}
		f.start(head, d.Node)
	}
	head, _ := f.line.Head()
	for _, of := range slices.Collect(f.line.All())[1:] {
		r := f.core.Reserve(f.waiting[head].incoming(head), f.ends(), f.now)
		j := f.waiting[of]
		end := Time(0)
		if j.Duration > 0 {
			end = f.now + j.Duration
		}
		if d := f.core.Backfill(j.incoming(of), end, r, "head", f.now); d.Outcome == Admit {
			f.start(of, d.Node)
			passed++
		}
	}
	return passed
}

func TestAForecastStartsTasksInTheirOrder(t *testing.T) {
	var quota Agenda
	quota.Put(id(1), later+5_000, cpu(1))
	quota.Put(id(2), later+9_000, cpu(2))
	quota.Put(id(3), later-9_000, cpu(1)) // overdue: any moment
	line := []Expected{{cpu(1), 2_000}, {cpu(2), 0}, {cpu(2), 0}, {cpu(1), 0}}
	got := Forecast(cpu(0), Ends{Quota: &quota}, line, later)
	if want := []Time{later, later + 5_000, later + 9_000, 0}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
