package sched_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	. "github.com/schedulemesh/schedulemesh/sched"
)

// gangCase is a gang in a small world, and by which members agents may be taken.
type gangCase struct {
	world
	in  []Incoming
	may []map[ID]bool // by member
}

func (w world) gang(in []Incoming) gangCase {
	g := gangCase{world: w, in: in}
	for _, n := range in {
		may := map[ID]bool{}
		for _, a := range w.specAgents(n, later) {
			may[a.ID] = true
		}
		g.may = append(g.may, may)
	}
	return g
}

// enough says by Hall's theorem whether sources satisfy what members need of
// them: for every set of members, all they may draw on together must do.
func (g gangCase) enough(members []int, have Resources, gone []Agent) bool {
	enough := true
	asked := Resources{}
	for _, m := range members {
		asked = asked.Add(g.in[m].Request)
	}
	asked.Each(func(name string, _ int64) {
		debtor := -1 // who brings what is owed already
		for _, m := range members {
			if debtor < 0 && g.in[m].Request.Get(name) > 0 {
				debtor = m
			}
		}
		for set := 1; set < 1<<len(members); set++ {
			need, supply := int64(0), max(have.Get(name), 0)
			for i, m := range members {
				if set>>i&1 == 1 {
					need += g.in[m].Request.Get(name)
					if m == debtor {
						need += max(-have.Get(name), 0)
					}
				}
			}
			for _, a := range gone {
				for i, m := range members {
					if set>>i&1 == 1 && g.may[m][a.ID] {
						supply += a.Gives.Get(name)
						break
					}
				}
			}
			enough = enough && need <= supply
		}
	})
	return enough
}

// quota is enough over all pools together: what victims give, goes round.
func (g gangCase) quota(gone []Agent) bool {
	byPool := map[string][]int{}
	for m, n := range g.in {
		byPool[n.Pool] = append(byPool[n.Pool], m)
	}
	free, asked := map[string]Resources{}, Resources{}
	for name, members := range byPool {
		free[name] = g.poolNamed(name).Free
		all := Resources{}
		for _, m := range members {
			all = all.Add(g.in[m].Request)
		}
		asked = asked.Add(all)
		if g.policy.VictimCoverage == CoverRequest && !free[name].Covers(all) {
			free[name] = free[name].Min(Resources{})
		}
	}
	enough := true
	asked.Each(func(name string, _ int64) {
		for set := 1; set < 1<<len(g.in); set++ {
			need, supply := int64(0), int64(0)
			for pool, members := range byPool {
				debtor, touched := true, false
				for _, m := range members {
					want := g.in[m].Request.Get(name)
					if set>>m&1 == 1 {
						touched = true
						need += want
						if debtor && want > 0 {
							need += max(-free[pool].Get(name), 0)
						}
					}
					debtor = debtor && want <= 0
				}
				if touched {
					supply += max(free[pool].Get(name), 0)
				}
			}
			for _, a := range gone {
				for m := range g.in {
					if set>>m&1 == 1 && g.may[m][a.ID] {
						supply += a.Gives.Get(name)
						break
					}
				}
			}
			enough = enough && need <= supply
		}
	})
	return enough
}

// room reports whether the members have room on these nodes.
func (g gangCase) room(at []NodeID, gone []Agent) bool {
	for _, n := range g.nodes {
		var members []int
		for m := range g.in {
			if at[m] == n.ID {
				members = append(members, m)
			}
		}
		here := slices.DeleteFunc(slices.Clone(gone), func(a Agent) bool { return a.Node != n.ID })
		if !g.enough(members, n.Room, here) {
			return false
		}
	}
	return true
}

// places are the nodes a member may sit on.
func (g gangCase) places(m int) (out []NodeID) {
	for _, n := range g.nodes {
		if n.Cluster == g.poolNamed(g.in[m].Pool).Cluster {
			out = append(out, n.ID)
		}
	}
	if out == nil {
		return []NodeID{""}
	}
	return out
}

// fits tries every way to place the members.
func (g gangCase) fits(gone []Agent) bool {
	if !g.quota(gone) {
		return false
	}
	at := make([]NodeID, len(g.in))
	var try func(m int) bool
	try = func(m int) bool {
		if m == len(g.in) {
			return g.room(at, gone)
		}
		for _, at[m] = range g.places(m) {
			if try(m + 1) {
				return true
			}
		}
		return false
	}
	return try(0)
}

func TestGangAgreesWithTryingEverything(t *testing.T) {
	seen, shared, mixed, loans := map[Outcome]int{}, 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := someWorld(t)
		in := []Incoming{someIncoming(t)}
		if !chance(t, 4, "first is large") {
			in[0].Request = cpu(rapid.SampledFrom([]float64{1, 0.5, 1.5}).Draw(t, "first request"))
		}
		alike := chance(t, 2, "alike")
		for i := range rapid.IntRange(0, 3).Draw(t, "others") {
			next := in[0]
			if !alike {
				next = someIncoming(t)
				next.Request = next.Request.Min(cpu(1).Add(gpu(0.5)).With("tpu", 500))
			}
			next.ID, next.Name = id(90_000+i), fmt.Sprint("member ", i)
			in = append(in, next)
		}
		c, before := w.core(), w.core()
		g := w.gang(in)
		d := c.DecideGang(in, later)
		seen[d.Outcome]++
		for _, n := range in { // the question leaves no trace
			if x, y := c.Decide(n, later), before.Decide(n, later); !reflect.DeepEqual(x, y) {
				t.Fatalf("afterwards %+v\nbefore %+v", x, y)
			}
		}
		if again := w.core().DecideGang(in, later); !reflect.DeepEqual(again, d) {
			t.Fatalf("twice the same question:\n%+v\n%+v", d, again)
		}
		if d.Outcome == Refuse {
			var all []Agent
			for _, a := range w.agents {
				if slices.ContainsFunc(g.may, func(may map[ID]bool) bool { return may[a.ID] }) {
					all = append(all, a)
				}
			}
			if g.fits(all) {
				t.Fatalf("there is a way: %+v", d)
			}
			if d.Refusal.Message == "" || d.Refusal.Code == "" || d.Refused < 0 || d.Refused >= len(in) {
				t.Fatalf("%+v", d)
			}
			return
		}
		var gone []Agent
		var at []NodeID
		for _, v := range d.Victims {
			gone = append(gone, w.agents[slices.IndexFunc(w.agents, func(a Agent) bool { return a.ID == v.Agent })])
		}
		for _, m := range d.Members {
			at = append(at, m.Node)
		}
		if !g.quota(gone) || !g.room(at, gone) {
			t.Fatalf("not enough: quota %v, room %v on %q: %+v", g.quota(gone), g.room(at, gone), at, d)
		}
		for i := range gone {
			if g.fits(slices.Delete(slices.Clone(gone), i, i+1)) {
				t.Fatalf("%s can be spared: %+v", d.Victims[i].AgentName, d)
			}
		}
		checkGangBooks(t, g, d)
		for _, v := range d.Victims {
			if len(v.Members) > 1 {
				shared++
			}
			if v.Loan {
				loans++
			}
		}
		if !alike && len(d.Victims) > 1 {
			mixed++
		}
		if len(in) == 1 {
			alone := c.Decide(in[0], later)
			if !reflect.DeepEqual(victims(alone), victims(d.Members[0])) || alone.Node != d.Members[0].Node || !alone.Deficit.Equal(d.Members[0].Deficit) {
				t.Fatalf("as a gang %+v\nalone %+v", d, alone)
			}
		}
	})
	t.Logf("%v, %d victims shared, %d lend, %d mixed gangs with several", seen, shared, loans, mixed)
	all := seen[Preempt] + seen[Admit] + seen[Refuse]
	if !t.Failed() && (seen[Preempt]*12 < all || seen[Admit]*60 < all || shared*40 < all || mixed*100 < all || loans*30 < all) {
		t.Error("the cases are one-sided")
	}
}

// checkGangBooks checks what the ledger will write.
func checkGangBooks(t *rapid.T, g gangCase, d Gang) {
	held := map[string]Resources{} // by pool: what members have without victims
	rooms := map[NodeID]Resources{}
	taken := map[ID]Resources{}
	for m, dec := range d.Members {
		takes := Resources{}
		for _, v := range dec.Victims {
			takes = takes.Add(v.Takes)
			taken[v.Agent] = taken[v.Agent].Add(v.Takes)
			if !g.may[m][v.Agent] || v.Loan != (v.Pool != g.in[m].Pool && !v.Takes.IsZero()) {
				t.Fatalf("member %d takes from %+v", m, v)
			}
			at := slices.IndexFunc(d.Victims, func(o GangVictim) bool { return o.Agent == v.Agent })
			if at < 0 || !slices.Contains(d.Victims[at].Members, m) {
				t.Fatalf("%s does not know that member %d waits for it", v.AgentName, m)
			}
		}
		if !takes.Equal(dec.Deficit) || (dec.Outcome == Preempt) != (len(dec.Victims) > 0) {
			t.Fatalf("member %d takes %v of %v: %+v", m, takes, dec.Deficit, dec)
		}
		held[g.in[m].Pool] = held[g.in[m].Pool].Add(g.in[m].Request).Sub(takes)
		rooms[dec.Node] = rooms[dec.Node].Add(g.in[m].Request).Sub(dec.RoomDeficit)
	}
	for name, r := range held {
		free := g.poolNamed(name).Free
		r.Each(func(what string, v int64) {
			if v > free.Get(what) && v > 0 || v < 0 && v < free.Get(what) {
				t.Fatalf("members hold %v of pool %s, where %v is free", r, name, free)
			}
		})
	}
	for _, n := range g.nodes {
		if r := rooms[n.ID]; !n.Room.Covers(r) {
			t.Fatalf("members without victims need %v on %s, where there is %v", r, n.ID, n.Room)
		}
	}
	for _, v := range d.Victims {
		if !v.Gives.Covers(taken[v.Agent]) || !v.Takes.Equal(taken[v.Agent]) || len(v.Members) == 0 {
			t.Fatalf("%v is taken of %+v", taken[v.Agent], v)
		}
	}
	if !slices.IsSortedFunc(d.Victims, func(a, b GangVictim) int { return order(a.Score > b.Score) * sign(a.Score != b.Score) }) {
		t.Fatalf("not best first: %+v", d)
	}
}

func sign(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Four workers of an all-or-none job on two full nodes: the ranks below them
// make way, no more of them than needed, and everybody knows for whom.
func TestAGangTakesOneVictimSet(t *testing.T) {
	w := world{
		policy: DefaultPolicy(),
		nodes:  []Node{{ID: "n0", Cluster: "local", Total: gpu(8)}, {ID: "n1", Cluster: "local", Room: gpu(2), Total: gpu(8)}},
		pools:  []Pool{pool("a", gpu(2), gpu(16)), pool("b", Resources{}, gpu(8))},
	}
	w.run("big", "a", 1, gpu(4), on("n0"))
	w.run("b1", "b", 2, gpu(2), on("n1"))
	w.run("b2", "b", 3, gpu(2), on("n1"))
	w.run("high", "a", 9, gpu(4), on("n0"))
	var in []Incoming
	for i := range 4 {
		n := incoming("a", 9, nil, gpu(2))
		n.ID, n.Name = id(500+i), fmt.Sprint("worker-", i)
		in = append(in, n)
	}
	d := w.core().DecideGang(in, later)
	if d.Outcome != Preempt || len(d.Victims) != 2 || d.Victims[0].AgentName != "big-agent" || d.Victims[1].AgentName != "b1-agent" {
		t.Fatalf("%+v", d)
	}
	waits := 0
	for _, m := range d.Members {
		waits += len(m.Victims)
	}
	if waits != 3 || len(d.Victims[0].Members) != 2 || !d.Victims[1].Loan || !d.Victims[1].Takes.Equal(gpu(2)) {
		t.Fatalf("%d waits: %+v", waits, d)
	}

	in = append(in, in[0], in[0], in[0])
	d = w.core().DecideGang(in, later)
	if d.Outcome != Refuse || d.Refused != 6 && d.Refused != 5 || !strings.Contains(d.Refusal.Message, "others of its gang in place") || d.Members != nil {
		t.Fatalf("%+v", d)
	}
	in[3].Pool = "nowhere"
	if d = w.core().DecideGang(in, later); d.Outcome != Refuse || d.Refused != 3 || d.Refusal.Code != UnknownPool {
		t.Fatalf("%+v", d)
	}
}
