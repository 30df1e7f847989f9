package ledger_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/schedulemesh/schedulemesh/db"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/testdb"
)

func TestATaskSaysInWhichGroupItSits(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.rlhf(`{"enable": true, "high_priority_pg_specs": [{"cpu": 2, "memory": 2048}], "max_dynamic_pgs": 1}`)
	told := w.submit(role("small", "x", 1, 512, 3, 0, grouped)) // the answer to its submission
	w.settle()
	w.run(role("plain", "x", 1, 512, 3, 0))
	w.run(role("large", "x", 2, 2048, 9, 0, grouped))
	names := map[string]string{}
	for _, g := range w.groups().Items {
		names[g.Tier] = g.Name
	}
	if told.Seat == nil || *told.Seat != (ledger.Seat{Group: names["dynamic"], Tier: "dynamic"}) {
		t.Errorf("the answer says %+v", told.Seat)
	}
	list, err := w.Tasks(t.Context(), "default", ledger.TaskFilter{})
	w.must(err)
	some, err := w.PoolTasks(t.Context(), "default", "rlhf", 10)
	w.must(err)
	for id, tier := range map[string]string{"small": "dynamic", "plain": "", "large": "reserved"} {
		one, err := w.Task(t.Context(), "default", id)
		w.must(err)
		report, err := w.TaskReport(t.Context(), "default", id)
		w.must(err)
		byUID, err := w.TaskReport(t.Context(), "default", fmt.Sprintf("%x-%x-%x-%x-%x", one.UID[:4], one.UID[4:6], one.UID[6:8], one.UID[8:10], one.UID[10:]))
		w.must(err)
		all := []ledger.Task{one, report.Task, byUID.Task}
		for _, t := range append(list.Items, some...) {
			if t.TaskID == id {
				all = append(all, t)
			}
		}
		if len(all) != 5 {
			t.Fatalf("%s is listed %d times", id, len(all)-3)
		}
		for i, x := range all {
			if (x.Seat != nil) != (tier != "") || x.Seat != nil && *x.Seat != (ledger.Seat{Group: names[tier], Tier: tier}) {
				t.Errorf("%s, way %d: %+v, want %s", id, i, x.Seat, names[tier])
			}
		}
	}
	_, err = w.Complete(t.Context(), "default", "large", "test")
	w.must(err)
	w.settle()
	if gone, err := w.Task(t.Context(), "default", "large"); err != nil || gone.Seat != nil {
		t.Errorf("it ended and sits in %+v (%v)", gone.Seat, err)
	}
}

func TestAPoolSaysWhatItsGroupsReserve(t *testing.T) {
	t.Parallel()
	w := open(t)
	pools := func() ledger.Pool {
		t.Helper()
		p, err := w.Pool(t.Context(), "default", "rlhf")
		w.must(err)
		return p
	}
	w.rlhf(`{"enable": false}`)
	if g := pools().Groups; g != nil {
		t.Errorf("without groups: %+v", g)
	}
	doc := json.RawMessage(rlhfConfig)
	_, err := w.UpdatePool(t.Context(), "default", ledger.PoolSpec{Name: "rlhf", PGPoolConfig: &doc})
	w.must(err)
	w.settle()
	w.run(role("rollout", "x", 1.5, 1024, 3, 0, grouped))
	p := pools()
	// The quota says that 1.5 CPU are held; Ray has 5.5 fewer.
	if g := p.Groups; g == nil || g.Total != 3 || g.Available != 2 || g.Allocated != 1 || !g.Reserves.Equal(units(5.5, 5120)) || !g.Unused.Equal(units(4, 4096)) {
		t.Errorf("%+v", g)
	}
	if p.Balances[0].Used != 1500 {
		t.Errorf("%+v", p.Balances[0])
	}
	if g := w.groups(); !g.Reserves.Equal(units(5.5, 5120)) || !g.Unused.Equal(units(4, 4096)) {
		t.Errorf("%+v", g.GroupTotals)
	}
	w.run(role("train", "x", 2, 2048, 9, 0, grouped))
	if g := pools().Groups; !g.Reserves.Equal(units(5.5, 5120)) || !g.Unused.Equal(units(2, 2048)) {
		t.Errorf("%+v", g)
	}
}

func TestGroupsThatAreGoneAreListedWhenAskedFor(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.rlhf(`{"enable": true, "high_priority_pg_specs": [{"cpu": 1}], "max_dynamic_pgs": 1, "enable_pg_reuse": false}`)
	for _, id := range []string{"a", "b"} {
		w.run(role(id, "x", 1, 512, 3, 0, grouped))
		_, err := w.Complete(t.Context(), "default", id, "test")
		w.must(err)
		w.settle()
	}
	now := w.groups()
	all, err := w.PoolGroups(t.Context(), "default", "rlhf", true)
	w.must(err)
	if len(now.Items) != 1 || len(all.Items) != 3 || all.Items[0].UID != now.Items[0].UID || all.Items[1].EndedAt.IsZero() || all.Items[1].CreatedAt.Before(all.Items[2].CreatedAt) {
		t.Errorf("now %+v\nall %+v", now.Items, all.Items)
	}
	if all.Total != 1 || all.Tiers["dynamic"].Total != 0 || all.Tiers["dynamic"].Removed != 2 || all.Tiers["dynamic"].Created != 2 {
		t.Errorf("%+v %+v", all.GroupTotals, all.Tiers)
	}
	if _, err := w.PoolGroups(t.Context(), "default", "gone", false); ledger.CodeOf(err) != "unknown_pool" {
		t.Error(err)
	}
}

func TestGroupsAreCounted(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), testdb.Migrated(t, db.Key(), db.Migrate))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	w, reg := &world{t: t, db: pool, more: make(chan struct{}, 1)}, prometheus.NewRegistry()
	w.Ledger, err = ledger.Open(t.Context(), pool, ledger.Options{Jobs: w.announce, Metrics: ledger.NewMetrics(reg)})
	w.must(err)
	t.Cleanup(w.Close)
	w.must(waitReady(w.Ledger))
	reg.MustRegister(w.GroupGauges())
	says := func(want ...string) {
		t.Helper()
		var got []string
		families, err := reg.Gather()
		w.must(err)
		for _, f := range families {
			name, ours := strings.CutPrefix(f.GetName(), "schedulemesh_placement_")
			for _, m := range f.GetMetric() {
				n := m.GetGauge().GetValue() + m.GetCounter().GetValue()
				if !ours || n == 0 {
					continue
				}
				line := name
				for _, l := range m.GetLabel() { // sorted by name: pool, state, tier
					line += " " + l.GetValue()
				}
				got = append(got, fmt.Sprintf("%s: %g", line, n))
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("counted are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	says()
	w.rlhf(`{"enable": true, "high_priority_pg_specs": [{"cpu": 0.5}], "max_dynamic_pgs": 1, "idle_timeout": 86400}`)
	w.run(role("a", "x", 1, 512, 3, 0, grouped))
	says("groups rlhf idle reserved: 1", "groups rlhf occupied dynamic: 1", "groups_made_total rlhf reserved: 1", "groups_made_total rlhf dynamic: 1")

	w.submit(role("b", "x", 1, 512, 3, 0, grouped, queueing))
	says("groups rlhf idle reserved: 1", "groups rlhf occupied dynamic: 1", "groups_made_total rlhf reserved: 1", "groups_made_total rlhf dynamic: 1", "group_waits rlhf dynamic: 1")
	_, err = w.Complete(t.Context(), "default", "a", "test")
	w.must(err)
	w.settle()
	says("groups rlhf idle reserved: 1", "groups rlhf occupied dynamic: 1", "groups_made_total rlhf reserved: 1", "groups_made_total rlhf dynamic: 1", "groups_reused_total rlhf dynamic: 1")

	// Both go, and another one cannot be made.
	doc := json.RawMessage(`{"enable": true, "high_priority_pg_specs": [{"cpu": 3}], "enable_dynamic_pgs": false}`)
	_, err = w.UpdatePool(t.Context(), "default", ledger.PoolSpec{Name: "rlhf", PGPoolConfig: &doc})
	w.must(err)
	_, err = w.Complete(t.Context(), "default", "b", "test")
	w.must(err)
	for len(w.jobs) > 0 {
		j := w.jobs[0]
		if w.jobs = w.jobs[1:]; j.Kind == ledger.JobMakeGroup {
			w.must(w.GroupFailed(t.Context(), j.UID, j.Attempt, "group_timeout", "no room"))
			continue
		}
		w.act(j)
	}
	says("groups rlhf failed reserved: 1", "groups_made_total rlhf reserved: 1", "groups_made_total rlhf dynamic: 1", "groups_reused_total rlhf dynamic: 1",
		"groups_removed_total rlhf reserved: 1", "groups_removed_total rlhf dynamic: 1", "groups_failed_total rlhf reserved: 1")
}
