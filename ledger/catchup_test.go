package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/db"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/testdb"
)

// several are servers on one database, with the jobs that any of them announced.
type several struct {
	t    *testing.T
	db   *pgxpool.Pool
	all  []*Ledger
	mu   sync.Mutex
	jobs []Job
	ids  []string
}

func openSeveral(t *testing.T, n int) *several {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testdb.Migrated(t, db.Key(), db.Migrate))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := &several{t: t, db: pool}
	for range n {
		s.all = append(s.all, s.open(func(jobs []Job) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.jobs = append(s.jobs, jobs...)
		}))
	}
	for _, l := range s.all {
		for !l.servers.others() {
			l.servers.beatSoon()
			time.Sleep(time.Millisecond)
		}
	}
	return s
}

func (s *several) open(jobs func([]Job)) *Ledger {
	s.t.Helper()
	l, err := Open(context.Background(), s.db, Options{Jobs: jobs})
	s.must(err)
	s.t.Cleanup(l.Close)
	return l
}

func (s *several) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// fine allows what may well be refused at a bad moment.
func (s *several) fine(err error) {
	s.t.Helper()
	if err != nil && CodeOf(err) == ErrInternal.Code || errors.Is(err, ErrUnavailable) {
		s.t.Error(err)
	}
}

// current brings a book up to everything, as news would a moment later.
func (s *several) current(l *Ledger) {
	s.t.Helper()
	for range 100 {
		rows, err := l.q.PoolVersions(s.t.Context())
		s.must(err)
		versions := map[int64]int64{}
		for _, r := range rows {
			versions[r.ID] = r.Version
		}
		s.must(l.news.policies(s.t.Context()))
		s.must(l.news.dropped(s.t.Context(), versions))
		s.must(l.refresh(s.t.Context(), maps.Clone(versions)))
		behind := false
		s.must(l.lane.look(s.t.Context(), func(b *book) {
			for id, v := range versions {
				p := b.home(id)
				behind = behind || (p == nil) != (v == 0) || p != nil && p.version < v
			}
		}))
		if !behind {
			return
		}
		time.Sleep(laneBusy / 2)
	}
	s.t.Fatal("a book does not catch up")
}

// same compares every book with that of a server that starts now.
func (s *several) same(when string) {
	s.t.Helper()
	fresh := s.open(nil)
	defer fresh.Close()
	s.must(fresh.SetNodes(s.t.Context(), "local", testNodes))
	differ := make([]string, len(s.all))
	for range 20 { // deadlines pass meanwhile, and some server acts on them
		s.current(fresh)
		want := dump(s.t, fresh)
		again := false
		for i, l := range s.all {
			s.current(l)
			differ[i] = differences(dump(s.t, l), want)
			again = again || differ[i] != ""
		}
		if !again {
			break
		}
	}
	for i, d := range differ {
		if d != "" {
			s.t.Errorf("%s: the book of server %d differs from one that is loaded now:\n%s", when, i, d)
		}
	}
	diffs, err := fresh.Verify(s.t.Context())
	s.must(err)
	for _, d := range diffs {
		s.t.Errorf("%s: %+v", when, d)
	}
	if s.t.Failed() {
		s.t.FailNow()
	}
}

// differences shows lines that are in one only; of two about the same thing, the words that differ.
func differences(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	about := func(line string) string { return strings.Join(strings.SplitN(line, " ", 3)[:2], " ") }
	var out strings.Builder
	for _, line := range g {
		if slices.Contains(w, line) {
			continue
		}
		if i := slices.IndexFunc(w, func(x string) bool { return about(x) == about(line) && !slices.Contains(g, x) }); i >= 0 {
			has, should := strings.Fields(line), strings.Fields(w[i])
			has, should = slices.DeleteFunc(has, func(x string) bool { return slices.Contains(strings.Fields(w[i]), x) }),
				slices.DeleteFunc(should, func(x string) bool { return slices.Contains(strings.Fields(line), x) })
			fmt.Fprintf(&out, "%s: has %v, should have %v\n", about(line), has, should)
			continue
		}
		fmt.Fprintln(&out, "has  ", line)
	}
	for _, line := range w {
		if !slices.Contains(g, line) && !slices.ContainsFunc(g, func(x string) bool { return about(x) == about(line) }) {
			fmt.Fprintln(&out, "lacks", line)
		}
	}
	return out.String()
}

// dump writes down everything a book says, and what its core would answer, one fact a line.
func dump(t *testing.T, l *Ledger) string {
	t.Helper()
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	at := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return t.UnixMicro()
	}
	err := l.lane.look(t.Context(), func(b *book) {
		for _, s := range b.spaces {
			say("space %s policy %d unmanaged %d", s.name, s.policyVersion, s.unmanaged.version)
			for id, r := range s.tasks {
				say("task %s is %s", id, uuidString(r.uid))
			}
			for name, r := range s.agents {
				say("agent %s is %s", name, uuidString(r.uid))
			}
			for name := range s.pools {
				in := sched.Incoming{Pool: name, Priority: 1 << 40, Labels: sched.Labels{"tier": "gold"}}
				for i, c := range s.core.Candidates(in, sched.Time(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()), 10000) {
					say("candidate for %s: %d %s on %s score %v %s", name, i, c.TaskName, c.AgentName, c.Score, c.Reason)
				}
			}
		}
		for id, p := range b.pools {
			say("pool %d %s.%s %s %v %d version %d: %s, %s reserved, %s used, %s borrowed, %s lent", id, p.space.name, p.name, p.cluster, p.labels, p.targets, p.version,
				p.capacity, p.reserved, p.used, p.borrowed, p.lent)
			for _, x := range p.loans {
				say("pool %d borrows %s of %d", id, x.amount, x.lender)
			}
			var queue []string
			for id := range p.line.All() {
				queue = append(queue, b.rows[id].taskID)
			}
			say("pool %d queue %v", id, queue)
			if p.space.core.Policy().MaxPreemptionsPerMinute > 0 {
				say("pool %d lost %d", id, len(p.recent))
			}
			say("pool %d is %q by %s (%s) since %d until %d, %s each, loaded %v", id, p.hold.state, p.hold.actor, p.hold.reason, at(p.hold.since), at(p.hold.until), p.maxRuntime, p.loaded)
			for _, r := range p.rows {
				say("pool %d has %s", id, uuidString(r.uid))
			}
		}
		for _, r := range b.rows {
			// What a preemptor charges its node depends on when it was last looked at: it
			// leaves out what its victims, who still sit there, asked for.
			charged := "as it waits"
			if len(r.victims) == 0 && r.taking == nil {
				charged = fmt.Sprint(r.charged.node, " ", r.charged.amount)
			}
			pool := int64(0)
			if r.pool != nil {
				pool = r.pool.id
			}
			say("row %s %s %s %s in %d %s %s on %s/%s %s %s %s %d %s %s %v %x %d: %s %s %d %s %v %s %s node %s launch %s %s %s %s %d est %s %d %d %v %s %s %q %d %d charged %s victims %v",
				uuidString(r.uid), r.space.name, r.kind, r.taskID, pool, r.poolName, r.request, r.agentName, uuidString(r.agentUID), r.onInsufficient, r.onPreempted, r.onFailure,
				r.maxAttempts, r.maxRuntime, r.launch, r.hasEntry, r.bodyHash, at(r.submitted),
				r.state, r.phase, r.attempt, r.priority, r.labels, r.held, r.heldAs, r.node, r.launchID, r.actorName, r.rayNS, r.actorID, r.pid, r.estimate, r.failures, r.preemptions,
				r.preemptedBy, r.ending, r.code, r.reason, at(r.queued), at(r.started), charged, uuids(r.victims))
			if x := r.taking; x != nil {
				say("taking %s: holder %s tasks %v by %s %s attempt %d phase %s taken %s loan %v since %d %d", uuidString(r.uid), uuidString(x.holder), uuids(x.tasks), uuidString(x.by), x.byTask, x.attempt,
					x.phase, x.taken, x.loan, at(x.cancelled), at(x.saved))
			}
		}
		for k, h := range b.holds {
			say("node %v is %q since %d until %d", k, h.state, at(h.since), at(h.until))
		}
		for id, r := range b.launches {
			say("launch %s is %s", id, uuidString(r.uid))
		}
		for uid, r := range b.working {
			say("work %s: %d jobs", uuidString(uid), len(b.jobOf(r)))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func uuids(ids []sched.ID) []string {
	var out []string
	for _, id := range ids {
		out = append(out, uuidString(id))
	}
	slices.Sort(out)
	return out
}

var testNodes = []sched.Node{
	{ID: "n1", Total: sched.Resources{CPU: 12000, Memory: 1 << 20}, Room: sched.Resources{CPU: 12000, Memory: 1 << 20}},
	{ID: "n2", Total: sched.Resources{CPU: 6000, Memory: 1 << 20}, Room: sched.Resources{CPU: 5000, Memory: 1 << 20}},
}

func (s *several) prepare(rng *rand.Rand, pools []string) {
	s.t.Helper()
	ctx := s.t.Context()
	for _, p := range pools {
		capacity := sched.Resources{CPU: int64(2000 + 1000*rng.IntN(5)), Memory: 1 << 16}
		_, err := s.any(rng).CreatePool(ctx, "default", PoolSpec{Name: p, Capacity: &capacity})
		s.must(err)
	}
	_, err := s.any(rng).PutPolicy(ctx, "default", PolicyChange{Patch: []byte(`{"cross_pool_priority_threshold": 2, "max_preemptions_per_minute": 1000,
		"label_preemption_rules": {"tier": {"gold": ["tin"]}}}`)})
	s.must(err)
	for _, l := range s.all {
		s.must(l.SetNodes(ctx, "local", testNodes))
	}
}

func (s *several) any(rng *rand.Rand) *Ledger { return s.all[rng.IntN(len(s.all))] }

func (s *several) anID(rng *rand.Rand) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ids) == 0 {
		return "nothing"
	}
	return s.ids[rng.IntN(len(s.ids))]
}

// step does one random thing on a random server.
func (s *several) step(rng *rand.Rand, pools []string, id string) {
	s.t.Helper()
	ctx, l := s.t.Context(), s.any(rng)
	pool := pools[rng.IntN(len(pools))]
	switch k := rng.IntN(28); {
	case k < 7:
		_, err := l.Submit(ctx, "default", Submission{TaskID: id, Pool: pool, Request: sched.Resources{CPU: int64(500 * (1 + rng.IntN(6))), Memory: 100},
			Priority: sched.Milli(1000 * rng.IntN(10)), Labels: sched.Labels{"tier": []string{"gold", "tin", "clay"}[rng.IntN(3)]},
			OnInsufficient: []string{Fail, Queue}[rng.IntN(2)], OnPreempted: []string{Stop, Requeue}[rng.IntN(2)], OnFailure: []string{Stop, Requeue}[rng.IntN(2)],
			Spec: Spec{ActorClass: "m:C", Entry: &Entry{Method: "run"}}})
		s.fine(err)
		if err == nil {
			s.mu.Lock()
			s.ids = append(s.ids, id)
			s.mu.Unlock()
		}
	case k < 15:
		s.job(rng)
	case k == 15:
		_, err := l.Cancel(ctx, "default", s.anID(rng), "test")
		s.fine(err)
	case k == 16:
		_, err := l.Complete(ctx, "default", s.anID(rng), "test")
		s.fine(err)
	case k == 17:
		p, labels := sched.Milli(1000*rng.IntN(10)), sched.Labels{"tier": "tin"}
		_, err := l.Patch(ctx, "default", s.anID(rng), TaskPatch{Priority: &p, Labels: &labels})
		s.fine(err)
	case k == 18: // on an agent of ours, or on one of nobody
		g := Registration{TaskID: "r" + id, Pool: pool, AgentName: "elsewhere", Priority: sched.Milli(1000 * rng.IntN(10))}
		if t, err := l.Task(ctx, "default", s.anID(rng)); err == nil && rng.IntN(2) == 0 {
			g.AgentName, g.Pool = t.AgentName, t.Pool
		}
		_, err := l.Register(ctx, "default", g)
		s.fine(err)
		if err == nil {
			s.mu.Lock()
			s.ids = append(s.ids, g.TaskID)
			s.mu.Unlock()
		}
	case k == 19:
		_, err := l.CreateAgent(ctx, "default", AgentSubmission{Name: "a" + id, Pool: pool, Request: sched.Resources{CPU: 500}, Spec: Spec{ActorClass: "m:C"}})
		s.fine(err)
	case k == 20:
		short, cancel := context.WithTimeout(ctx, time.Millisecond) // begun, not waited for
		_, _ = l.Preempt(short, "default", PreemptRequest{TaskID: s.anID(rng), Actor: "test"})
		cancel()
	case k == 21:
		capacity := sched.Resources{CPU: int64(2000 + 1000*rng.IntN(6)), Memory: 1 << 16}
		_, err := l.UpdatePool(ctx, "default", PoolSpec{Name: pool, Capacity: &capacity})
		s.fine(err)
	case k == 22:
		_, err := l.PutPolicy(ctx, "default", PolicyChange{Patch: fmt.Appendf(nil, `{"min_preempt_score": %v}`, float64(rng.IntN(3))/2)})
		s.fine(err)
	case k == 26: // made again, or not
		held, err := l.HoldingsIn(ctx, "local", "default")
		s.must(err)
		if len(held) > 0 {
			h := held[rng.IntN(len(held))]
			s.fine(s.any(rng).Unhealthy(ctx, h.UID, h.Attempt, "silent", "test", rng.IntN(4) > 0))
		}
	case k == 27:
		gone, err := l.DeadAgents(ctx, "default")
		s.must(err)
		if len(gone) > 0 {
			s.fine(s.any(rng).Recreate(ctx, "default", gone[rng.IntN(len(gone))], "test"))
		}
	case k == 24: // as a whole or not at all, over two pools
		other, wait := pools[rng.IntN(len(pools))], Fail
		if rng.IntN(2) == 0 {
			other, wait = pool, Queue
		}
		var gang []Submission
		for i := range 2 + rng.IntN(2) {
			gang = append(gang, Submission{TaskID: fmt.Sprintf("%s-%d", id, i), Pool: []string{pool, other}[i%2], Request: sched.Resources{CPU: int64(500 * (1 + rng.IntN(3))), Memory: 100},
				Priority: sched.Milli(5000), OnInsufficient: wait, Spec: Spec{ActorClass: "m:C"}})
		}
		tasks, err := l.SubmitAll(ctx, "default", gang, true)
		s.fine(err)
		s.mu.Lock()
		for _, t := range tasks {
			s.ids = append(s.ids, t.Task.TaskID)
		}
		s.mu.Unlock()
	case k == 25:
		_, err := l.HoldPool(ctx, "default", pool, HoldRequest{State: []string{"", "held"}[rng.IntN(2)], Actor: "test"})
		s.fine(err)
	case k == 23:
		name := "extra-" + fmt.Sprint(rng.IntN(2))
		if rng.IntN(2) == 0 {
			capacity := sched.Resources{CPU: 1000}
			_, err := l.CreatePool(ctx, "default", PoolSpec{Name: name, Capacity: &capacity})
			s.fine(err)
		} else {
			s.fine(l.DeletePool(ctx, "default", name, "test"))
		}
	}
}

// job takes one of the jobs and does it, fails it, or does half of it, on any server:
// more than happens, since reports come from the one that leads.
func (s *several) job(rng *rand.Rand) {
	s.t.Helper()
	ctx, l := s.t.Context(), s.any(rng)
	s.mu.Lock()
	if len(s.jobs) == 0 {
		s.mu.Unlock()
		return
	}
	at := rng.IntN(len(s.jobs))
	j := s.jobs[at]
	s.jobs = slices.Delete(s.jobs, at, at+1)
	s.mu.Unlock()
	again := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.jobs = append(s.jobs, j)
	}
	switch j.Kind {
	case JobLaunch:
		switch rng.IntN(4) {
		case 0:
			s.fine(l.LaunchFailed(ctx, j.UID, j.Attempt, "constructor_failed", "no luck"))
		case 1:
			s.fine(l.Launching(ctx, j.UID, j.Attempt))
			again()
		default:
			err := l.Started(ctx, j.UID, j.Attempt, Started{Node: j.Node, ActorName: j.LaunchID, ActorID: "x", PID: 7})
			s.fine(err)
			if err == nil && rng.IntN(5) == 0 {
				s.fine(s.any(rng).EntryDone(ctx, j.UID, j.Attempt, rng.IntN(2) == 0, "done", []byte(`1`), false))
			} else if err == nil && rng.IntN(5) == 0 {
				s.fine(s.any(rng).AgentDied(ctx, j.UID, j.Attempt, "agent_died", "struck by lightning"))
			}
		}
	case JobStop:
		s.fine(l.Gone(ctx, j.UID, j.Attempt))
	case JobTake:
		if rng.IntN(4) == 0 {
			undone, err := l.Undo(ctx, j.UID, "bridge_unavailable", "down")
			s.fine(err)
			if undone {
				return
			}
		}
		for i, phase := range []string{"cancelling", "saving", "killing"} {
			if j.KeepAgent && i == 2 {
				s.fine(s.any(rng).HandDone(ctx, j.UID, j.Attempt, SaveOutcome{State: []byte(`{"step": 1}`)}))
				return
			}
			s.fine(s.any(rng).TakePhase(ctx, j.UID, j.Attempt, TakeReport{Phase: phase}))
			if rng.IntN(6) == 0 { // the server died here; the next one goes on from the row
				again()
				return
			}
		}
		s.fine(s.any(rng).Gone(ctx, j.UID, j.Attempt))
	}
}

// Whatever servers do one after the other, each book that catches up by changes says
// what one says that is loaded whole.
func TestABookThatCatchesUpIsTheOneThatIsLoaded(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 11))
			s := openSeveral(t, 2+int(seed%2))
			pools := []string{"a", "b", "c"}
			s.prepare(rng, pools)
			for i := range 150 {
				s.step(rng, pools, fmt.Sprintf("t%d", i))
				if i%10 == 9 {
					s.same(fmt.Sprintf("after step %d", i))
				}
			}
			s.didSomething()
		})
	}
}

// The same with everything at once.
func TestServersThatWorkAtOnceAgreeInTheEnd(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := openSeveral(t, 3)
			pools := []string{"a", "b", "c"}
			s.prepare(rand.New(rand.NewPCG(seed, 13)), pools)
			for round := range 4 {
				var wg sync.WaitGroup
				for worker := range 8 {
					wg.Go(func() {
						rng := rand.New(rand.NewPCG(seed, uint64(100*round+worker)))
						for i := range 20 {
							s.step(rng, pools, fmt.Sprintf("t%d-%d-%d", round, worker, i))
						}
					})
				}
				wg.Wait()
				s.same(fmt.Sprintf("after round %d", round))
			}
			s.didSomething()
		})
	}
}

func TestServersThatChangeDifferentFieldsOfAPoolKeepBoth(t *testing.T) {
	t.Parallel()
	s := openSeveral(t, 2)
	capacity := sched.Resources{CPU: 1000}
	_, err := s.all[0].CreatePool(t.Context(), "default", PoolSpec{Name: "p", Capacity: &capacity})
	s.must(err)
	for i := range 20 {
		labels, targets, strategy := sched.Labels{"round": fmt.Sprint(i)}, i, []string{"PACK", "SPREAD"}[i%2]
		var wg sync.WaitGroup
		for n, spec := range []PoolSpec{{Name: "p", Labels: &labels}, {Name: "p", TargetAgents: &targets}, {Name: "p", PlacementStrategy: &strategy}} {
			wg.Go(func() {
				_, err := s.all[n%2].UpdatePool(context.Background(), "default", spec)
				s.fine(err)
			})
		}
		wg.Wait()
		p, err := s.all[0].Pool(t.Context(), "default", "p")
		s.must(err)
		if p.Labels["round"] != fmt.Sprint(i) || p.TargetAgents != i || p.PlacementStrategy != strategy {
			t.Fatalf("round %d: %+v", i, p)
		}
	}
}

// didSomething fails a test that proved nothing.
func (s *several) didSomething() {
	s.t.Helper()
	stats, err := s.all[0].Stats(s.t.Context(), "default")
	s.must(err)
	s.t.Logf("%d tasks; preemptions: %d label, %d same pool, %d cross pool", len(s.ids), stats.Label, stats.SamePool, stats.CrossPool)
	if stats.Total == 0 {
		s.t.Error("nothing was preempted")
	}
}

// What the server that leads sees of the nodes, the others plan with.
func TestTheNodesOfAClusterAreKnownToServersThatDoNotLeadIt(t *testing.T) {
	t.Parallel()
	s := openSeveral(t, 2)
	a, b := s.all[0], s.all[1]
	a.Contend("local")
	for !a.MayAct("local") {
		time.Sleep(time.Millisecond)
	}
	capacity := sched.Resources{CPU: 100_000}
	_, err := a.CreatePool(t.Context(), "default", PoolSpec{Name: "p", Capacity: &capacity})
	s.must(err)
	room := sched.Resources{CPU: 2000, Memory: 4096}
	s.must(a.SetNodes(t.Context(), "local", []sched.Node{{ID: "n1", Cluster: "local", Total: room, Room: room}}))
	big := Submission{TaskID: "big", Pool: "p", Request: sched.Resources{CPU: 3000}, Spec: Spec{ActorClass: "m:C"}}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var known int
		s.must(b.lane.look(t.Context(), func(b *book) { known = len(b.total) }))
		if known == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("b never heard of the node")
		}
	}
	if _, err := b.Submit(t.Context(), "default", big); !errors.Is(err, ErrNoNode) {
		t.Errorf("b admitted what fits on no node: %v", err)
	}
	room.CPU = 4000
	s.must(a.SetNodes(t.Context(), "local", []sched.Node{{ID: "n1", Cluster: "local", Total: room, Room: room}}))
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err = b.Submit(t.Context(), "default", big); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
