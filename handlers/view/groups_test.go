package view_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/web"
)

func grouped(s *ledger.Submission) { s.Spec.UsePlacementGroup = true }
func noQuota(s *ledger.Submission) { s.Spec.UsePlacementGroup, s.Spec.KeepQuota = true, true }

// grouping is a pool with one reserved group, and up to two for tasks.
func grouping(t *testing.T) *world {
	t.Helper()
	w := open(t)
	room, err := sched.FromUnits(units{"cpu": 8, "memory": 16384})
	w.must(err)
	w.must(w.SetNodes(t.Context(), "local", []sched.Node{{ID: "node-1", Cluster: "local", Total: room, Room: room}}))
	w.makePool("rlhf", nil, units{"cpu": 6, "memory": 8192})
	w.configure(`{"enable": true, "high_priority_pg_specs": [{"bundles": [{"cpu": 1, "memory": 1024}, {"cpu": 1, "memory": 1024}], "strategy": "PACK"}], "max_dynamic_pgs": 2, "idle_timeout": 86400}`)
	w.settle()
	return w
}

func (w *world) configure(config string) {
	w.t.Helper()
	doc := json.RawMessage(config)
	_, err := w.UpdatePool(w.t.Context(), "default", ledger.PoolSpec{Name: "rlhf", PGPoolConfig: &doc})
	w.must(err)
}

func (w *world) panel() web.Groups {
	w.t.Helper()
	p, err := w.view.Pool(w.t.Context(), "default", "rlhf", 0)
	w.must(err)
	return p.Groups
}

func TestAPoolShowsItsPlacementGroups(t *testing.T) {
	t.Parallel()
	w := grouping(t)
	w.submit("rollout", "rlhf", units{"cpu": 1.5, "memory": 1024}, 3, noQuota)
	w.settle()
	g := w.panel()
	if len(g.Items) != 2 || g.Items[0].Tier != "reserved" || g.Items[0].Word() != "idle" || g.Items[0].Shape() != "2 bundles, PACK" || g.Items[0].Where() != "node-1" ||
		g.Items[1].Word() != "occupied" || !slices.Equal(g.Items[1].Sitters, []web.Sitter{{Task: "rollout", Agent: g.Items[1].Sitters[0].Agent, State: web.Running}}) {
		t.Errorf("%+v", g.Items)
	}
	if got := g.Sums(); got != "Agents of this pool hold 1.5 cpu · 1 GiB of its quota. Its groups reserve 3.5 cpu · 3 GiB on machines; in 2 cpu · 2 GiB of that nobody sits, which takes room in Ray but is charged to nobody." {
		t.Errorf("the sums are %q", got)
	}
	task, err := w.view.Task(t.Context(), "default", "rollout")
	w.must(err)
	if task.GroupTier != "dynamic" || task.GroupName != g.Items[1].Name || !strings.Contains(task.Spec, `"preempt_for_quota": false`) {
		t.Errorf("its task sits in %q %q; %s", task.GroupTier, task.GroupName, task.Spec)
	}
	says := func(id, want string) {
		t.Helper()
		task, err := w.view.Task(t.Context(), "default", id)
		w.must(err)
		for _, s := range task.Timeline {
			if s.Title[0].Text == "Reserved" && text(s.Detail) == want {
				return
			}
		}
		t.Errorf("the timeline of %s does not say %q: %+v", id, want, task.Timeline)
	}
	says("rollout", "a dynamic placement group is made for it")
	w.submit("train", "rlhf", units{"cpu": 2, "memory": 2048}, 9, grouped)
	w.settle()
	says("train", "goes into a reserved placement group that is there")
	w.submit("best", "rlhf", units{"cpu": 2, "memory": 2048}, 11, grouped, lasting(time.Minute))
	if g := w.panel(); len(g.Items) != 3 || g.Items[2].State != "creating" || g.Items[2].Sitters[0].Task != "best" || !g.Items[2].Since.IsZero() {
		t.Errorf("%+v", g.Items)
	}
	w.settle()

	// The form asks for one, too, and says so when it is filled in again.
	_, err = w.view.SubmitTask(t.Context(), "default", web.NewTask{TaskID: "typed", Pool: "rlhf", ActorClass: "m:C", Request: web.Resources{"cpu": 100}, Priority: 3, OnInsufficient: "queue",
		PlacementGroup: true, KeepQuota: true})
	w.must(err)
	typed, err := w.Task(t.Context(), "default", "typed")
	w.must(err)
	page, err := w.view.Task(t.Context(), "default", "typed")
	w.must(err)
	if !typed.Spec.UsePlacementGroup || !typed.Spec.KeepQuota || page.Again.PlacementGroup != "quota" {
		t.Errorf("%+v, again %+v", typed.Spec, page.Again)
	}

	// A pool without any shows none.
	w.makePool("plain", nil, units{"cpu": 1})
	p, err := w.view.Pool(t.Context(), "default", "plain", 0)
	w.must(err)
	if p.Groups.Any() {
		t.Errorf("%+v", p.Groups)
	}
}

func TestAGroupThatCannotBeMadeIsToldInPlainWords(t *testing.T) {
	t.Parallel()
	w := grouping(t)
	if n := w.panel().FailedNote(); n != nil {
		t.Errorf("%+v", n)
	}
	w.configure(`{"enable": true, "high_priority_pg_specs": [{"cpu": 5, "memory": 2048}]}`)
	for {
		j, ok := w.take()
		if !ok {
			break
		}
		if j.Kind == ledger.JobMakeGroup {
			w.must(w.GroupFailed(t.Context(), j.UID, j.Attempt, "group_timeout", "no machine had 2048 MiB memory"))
			continue
		}
		w.act(j)
	}
	n := w.panel().FailedNote()
	if n == nil || !strings.HasPrefix(text(n.Title), "A reserved placement group could not be made.") ||
		!strings.HasPrefix(text(n.Text), "It needs 5 cpu · 2 GiB on one machine. Ray says: no machine had 2 GiB. ") {
		t.Errorf("%+v", n)
	}
}

func TestThePoolsPageIsToldOfGroupsThatComeAndGo(t *testing.T) {
	t.Parallel()
	w := grouping(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	told := w.view.Subscribe(ctx, "default")
	until := func(done func(web.Groups) bool) {
		t.Helper()
		for !done(w.panel()) {
			if _, ok := <-told; !ok {
				t.Fatalf("nobody was told: %+v", w.panel().Items)
			}
		}
	}
	time.AfterFunc(50*time.Millisecond, func() {
		w.configure(`{"enable": true, "high_priority_pg_specs": [{"cpu": 3}]}`)
		w.settle()
	})
	until(func(g web.Groups) bool { return len(g.Items) == 1 && g.Items[0].State == "idle" && g.Gone == 1 })
	events, err := w.view.Events(ctx, "default", web.EventFilter{Pool: "rlhf", Limit: 50})
	w.must(err)
	var kinds []string
	for _, e := range events.Items {
		if strings.HasPrefix(e.Type, "pg.") {
			kinds = append(kinds, e.Type)
		}
	}
	want := []string{"pg.created", "pg.created", "pg.ready", "pg.ready", "pg.removed"}
	if slices.Sort(kinds); !slices.Equal(kinds, want) {
		t.Errorf("%q, want %q", kinds, want)
	}
}

func TestAConfigurationThatIsWrongSaysWhere(t *testing.T) {
	t.Parallel()
	w := grouping(t)
	for config, want := range map[string]string{
		`{"max_dynamic_pgs": 5000}`: "max_dynamic_pgs is 5000: must be 0 to 1000.",
		`{"enable": true, "high_priority_pg_specs": [{"cpu": 1}, {"cpu": 7}]}`: "high_priority_pg_specs[1] reserves 7 cpu, more than the pool has",
		`{"high_priority_pg_specs": [{"cpu": -1}]}`:                            "high_priority_pg_specs[0] ",
		`{"high_priority_pg_specs": [{"bundles": []}]}`:                        "high_priority_pg_specs[0].bundles is empty",
		`{"enabled": true}`: `"enabled"`,
	} {
		spec := web.PoolSpec{Name: "rlhf", Cluster: "local", Capacity: web.Resources{"cpu": 6000, "memory": 8192}, PGPoolConfig: json.RawMessage(config)}
		if got := refused(t, w.view.UpdatePool(t.Context(), "default", "rlhf", spec), "invalid")["pg_pool_config"]; !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", config, got, want)
		}
	}
}

// text is a line without its links.
func text(l web.Line) (s string) {
	for _, p := range l {
		s += p.Text
	}
	return s
}
