package sched_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	. "github.com/schedulemesh/schedulemesh/sched"
)

// history drives a core with an index and one that scans through the same
// changes. Whatever they are asked, the answers must be the same.
type history struct {
	*rand.Rand
	fast, slow  *Core
	nodes       [2]*Nodes
	now         Time
	live        []ID
	next        int
	priorities  int
	startSpread int
	shapes      int
	odd         bool // agents shared, unknown, of another pool, unsettled
	outcomes    map[string]int
}

var poolNames = []string{"a", "b", "c", "d", "far", "nowhere"}

func newHistory(seed uint64, outcomes map[string]int) *history {
	h := &history{Rand: rand.New(rand.NewPCG(seed, 7)), now: later, outcomes: outcomes}
	h.priorities, h.startSpread = 1+h.IntN(40), 1+h.IntN(100_000)
	h.shapes = 1 + h.IntN(8)
	h.odd = h.IntN(3) == 0
	p := h.policy(DefaultPolicy())
	h.nodes = [2]*Nodes{NewNodes(), NewNodes()}
	h.fast, h.slow = NewCore(p, h.nodes[0]), NewCore(p, h.nodes[1])
	h.fast.ByIndex(8+h.IntN(40), h.IntN(10))
	h.slow.ByScan()
	if h.IntN(3) > 0 {
		for i := range 1 + h.IntN(6) {
			h.node(i)
		}
	}
	for _, name := range poolNames[:5] {
		h.pool(name)
	}
	return h
}

func (h *history) both(f func(*Core)) { f(h.fast); f(h.slow) }

func (h *history) node(i int) {
	room := Resources{}
	if h.IntN(3) == 0 {
		room = h.amounts(2)
	}
	total := Resources{CPU: 40_000, GPU: 40_000, Memory: 40_000}.With("tpu", 40_000)
	if h.IntN(4) == 0 {
		total = h.amounts(3)
	}
	for _, n := range h.nodes {
		places := "local"
		if i%3 == 2 {
			places = "groups"
		}
		n.Put(Node{ID: NodeID(fmt.Sprint("n", i)), Cluster: places, Room: room, Total: total})
	}
}

func (h *history) pool(name string) {
	p := Pool{Name: name, Cluster: "local", Free: h.amounts(1), Ceiling: plenty, Preempted: h.IntN(3)}
	if name == "far" && h.IntN(4) > 0 {
		p.Cluster = "far away"
	}
	h.both(func(c *Core) { c.PutPool(p) })
}

func (h *history) amounts(most int) Resources {
	r := Resources{CPU: int64(500 * h.IntN(h.shapes*most+1)), GPU: int64(500 * h.IntN(most*2+1))}
	if h.IntN(4) == 0 {
		r.Memory = int64(h.IntN(h.shapes + 1))
	}
	if h.IntN(10) == 0 {
		r = r.With("tpu", int64(500*h.IntN(3)))
	}
	return r
}

func (h *history) labels() Labels {
	l := Labels{}
	for _, key := range []string{"tier", "user", "other"} {
		if v := []string{"", "", "a", "b", "c", "x"}[h.IntN(6)]; v != "" {
			l[key] = v
		}
	}
	return l
}

func (h *history) policy(p Policy) Policy {
	one := func(values ...int) int { return values[h.IntN(len(values))] }
	switch h.IntN(9) {
	case 7:
		return p // the same again
	case 0:
		p.MinRuntimeSeconds = Milli(one(0, 0, 5_000, 60_000))
	case 1:
		p.MaxPreemptionsPerTask = one(0, 0, 1)
	case 2:
		p.MaxPreemptionsPerMinute = one(0, 0, 2)
	case 3:
		p.ProtectedPools = [][]string{nil, {"a"}, {"b", "c"}}[h.IntN(3)]
	case 4:
		p.LabelPreemptionRules = []map[string]map[string][]string{
			nil, {"tier": {"a": {"b"}, "b": {"c"}}, "user": {"a": {"c"}}}, {"tier": {"c": {"a", "x"}}},
			{"tier": {"a": {"b", "c"}}, "other": {"x": {"b"}}},
		}[h.IntN(4)]
	case 5:
		p.EnableCrossPoolPreemption, p.EnableLabelPreemption = h.IntN(4) > 0, h.IntN(4) > 0
	case 6:
		p.VictimCoverage = []Coverage{CoverDeficit, CoverRequest}[h.IntN(2)]
	}
	p.SamePoolPriorityThreshold = Milli(one(0, 1000, 1000))
	p.CrossPoolPriorityThreshold = Milli(one(0, 1000, 5000))
	p.RemainingTimeWeight = Milli(one(0, 100, 100, 1000))
	p.MinPreemptScore = Milli(one(500, 0, 3000))
	p.LabelPriorityThreshold = Milli(one(0, 500, 4000))
	return p
}

func (h *history) run(n ID) {
	a := Agent{ID: n, Name: fmt.Sprint("agent ", h.IntN(50)), Pool: poolNames[h.IntN(4)], Settled: true, Gives: h.amounts(1)}
	if h.IntN(5) > 0 {
		a.Node = NodeID(fmt.Sprint("n", h.IntN(6)))
	}
	t := Task{
		ID: n, Name: fmt.Sprint("task ", h.IntN(5)), Agent: n, Pool: a.Pool, Labels: h.labels(),
		Priority: Milli(500 * h.IntN(h.priorities)), Start: h.now - Time(h.IntN(h.startSpread)) + 500, Preemptions: h.IntN(2),
	}
	if h.IntN(2) == 0 {
		t.Estimate = Time(h.IntN(4)*20_000 + h.IntN(2)*h.IntN(100_000))
	}
	if h.IntN(6) == 0 {
		t.Start = 0
	}
	if h.IntN(10) == 0 && len(h.live) > 0 {
		t.PreemptedBy = []ID{h.live[h.IntN(len(h.live))]}
	}
	withAgent := true
	if h.odd {
		switch h.IntN(10) {
		case 0:
			a.Pool, t.Pool = "far", "far"
		case 1:
			a.Pool, t.Pool = "nowhere", "nowhere"
		case 2:
			a.Settled = false
		case 3:
			a.Gives = Resources{}
		case 4:
			t.Pool = poolNames[h.IntN(len(poolNames))]
		case 5:
			withAgent = false
			if len(h.live) > 0 {
				t.Agent = h.live[h.IntN(len(h.live))]
			}
		}
	}
	agentFirst := h.IntN(2) == 0
	h.both(func(c *Core) {
		if withAgent && agentFirst {
			c.PutAgent(a)
		}
		c.PutTask(t)
		if withAgent && !agentFirst {
			c.PutAgent(a)
		}
	})
}

// change does one thing that may happen.
func (h *history) change() {
	switch x := h.IntN(100); {
	case x < 55 || len(h.live) == 0:
		h.next++
		h.run(id(h.next))
		h.live = append(h.live, id(h.next))
	case x < 70: // becomes another
		h.run(h.live[h.IntN(len(h.live))])
	case x < 78: // another priority, or nothing new at all
		t, ok := h.fast.Task(h.live[h.IntN(len(h.live))])
		if !ok {
			return
		}
		t.Priority += Milli(500 * (h.IntN(3) - 1))
		h.both(func(c *Core) { c.RemoveTask(t.ID); c.PutTask(t) })
	case x < 88:
		i := h.IntN(len(h.live))
		gone := h.live[i]
		h.live[i] = h.live[len(h.live)-1]
		h.live = h.live[:len(h.live)-1]
		keepAgent := h.IntN(8) == 0
		h.both(func(c *Core) {
			c.RemoveTask(gone)
			if !keepAgent {
				c.RemoveAgent(gone)
			}
		})
	case x < 94:
		h.now += Time(h.IntN(20_000) - 1_000)
	case x < 96:
		h.pool(poolNames[h.IntN(5)])
	case x < 97:
		h.node(h.IntN(6))
	case x < 98:
		if h.IntN(5) == 0 {
			name := poolNames[h.IntN(5)]
			h.both(func(c *Core) { c.RemovePool(name) })
		}
	default:
		p := h.policy(h.fast.Policy())
		h.both(func(c *Core) { c.SetPolicy(p) })
	}
}

func (h *history) incoming() Incoming {
	in := Incoming{ID: id(1 << 30), Name: "newcomer", Pool: poolNames[h.IntN(4)], Priority: Milli(500 * h.IntN(h.priorities+12)), Labels: h.labels()}
	in.Request = h.amounts(1 + h.IntN(4)*h.IntN(4))
	if h.IntN(8) == 0 && len(h.live) > 0 {
		in.PreemptedBy = []ID{h.live[h.IntN(len(h.live))], h.live[h.IntN(len(h.live))]}
	}
	if h.IntN(5) == 0 {
		in.Rooms = "groups"
	}
	if h.IntN(10) == 0 && len(h.live) > 0 {
		in.ID = h.live[h.IntN(len(h.live))]
	}
	return in
}

func (h *history) ask(t interface{ Fatalf(string, ...any) }) {
	in := h.incoming()
	limit := 1 + h.IntN(20)
	if got, want := h.fast.Candidates(in, h.now, limit), h.slow.Candidates(in, h.now, limit); !reflect.DeepEqual(got, want) {
		t.Fatalf("after %d tasks, the index says\n%+v\nthe scan says\n%+v\nfor %+v", h.next, got, want, in)
	}
	got, want := h.fast.Decide(in, h.now), h.slow.Decide(in, h.now)
	outcome := string(want.Outcome)
	if len(want.Victims) > 1 {
		outcome += " several"
	}
	if want.Outcome == Refuse {
		outcome = string(want.Refusal.Code)
	}
	if want.Outcome == Preempt && want.RoomDeficit.IsZero() {
		outcome += " by quota"
	}
	h.outcomes[outcome]++
	uncounted(&got, &want)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("after %d tasks, the index says\n%+v\nthe scan says\n%+v\nfor %+v", h.next, got, want, in)
	}
}

// draft asks under another policy, without disturbing the one in force.
func (h *history) draft(t interface{ Fatalf(string, ...any) }) {
	p, in := h.policy(h.policy(h.fast.Policy())), h.incoming()
	view := h.fast.Under(p)
	slow := h.slow.Under(p)
	got, want := view.Decide(in, h.now), slow.Decide(in, h.now)
	uncounted(&got, &want)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("the index says\n%+v\nthe scan says\n%+v\nfor %+v under %+v", got, want, in, p)
	}
	if got, want := view.Candidates(in, h.now, 7), slow.Candidates(in, h.now, 7); !reflect.DeepEqual(got, want) {
		t.Fatalf("the index says\n%+v\nthe scan says\n%+v\nfor %+v under %+v", got, want, in, p)
	}
}

func (h *history) explain(t interface{ Fatalf(string, ...any) }) {
	in, limit := h.incoming(), 1+h.IntN(60)
	if h.IntN(2) == 0 {
		in.Request = Resources{}
	}
	got, want := h.fast.Explain(in, h.now, limit), h.slow.Explain(in, h.now, limit)
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("verdict %d of %d and %d: the index says\n%+v\nthe scan says\n%+v\nfor %+v", i, len(got), len(want), got[i:min(i+1, len(got))], want[i:min(i+1, len(want))], in)
		}
	}
}

// uncounted makes an answer of the scan say as little as one of the index.
func uncounted(got, want *Decision) {
	if got.Refusal.Uncounted {
		want.Refusal.Message, got.Refusal.Message = "", ""
		if got.Refusal.Code == VictimsInsufficient && !got.Refusal.Short.IsZero() {
			want.Refusal.Short, got.Refusal.Short = Resources{}, Resources{}
		}
		want.Refusal.Tally = Tally{Considered: want.Refusal.Considered, Uncounted: true}
	}
}

func (h *history) rush() { // many changes at once
	for range 20 + h.IntN(40)*h.IntN(8) {
		h.change()
	}
}

func (h *history) check(t interface{ Fatalf(string, ...any) }) {
	for range 1 + h.IntN(3) {
		h.rush()
		for range 5 {
			h.ask(t)
			if h.IntN(3) == 0 {
				h.draft(t)
			}
			if h.IntN(4) == 0 {
				h.explain(t)
			}
			h.change()
		}
	}
}

func TestIndexAgreesWithScan(t *testing.T) {
	outcomes := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		newHistory(rapid.Uint64().Draw(t, "seed"), outcomes).check(t)
	})
	t.Log(outcomes)
}

// What fits is admitted without garbage, however many tasks run.
func TestAdmissionAllocatesNothing(t *testing.T) {
	l := newLoad(2_000, 8, 100, true)
	for i := range l.pools {
		l.core.PutPool(pool(l.pool(i), plenty, plenty))
	}
	l.room(plenty)
	in := Incoming{ID: id(1 << 40), Name: "newcomer", Pool: l.pool(1), Request: cpu(1)}
	if d := l.core.Decide(in, later); d.Outcome != Admit || d.Node == "" {
		t.Fatalf("%+v", d)
	}
	if n := testing.AllocsPerRun(100, func() { l.core.Decide(in, later) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzIndexAgreesWithScan(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		newHistory(seed, map[string]int{}).check(t)
	})
}
