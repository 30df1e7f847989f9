package view_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/web"
)

func TestALineSaysWhenAndWhy(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", nil, units{"cpu": 4})
	w.submit("runs", "a", units{"cpu": 4}, 5, lasting(time.Hour))
	w.settle()
	for i := range 40 {
		w.submit(fmt.Sprintf("waits-%02d", i), "a", units{"cpu": 4}, 5, queueing, lasting(10*time.Minute))
	}
	p, err := w.view.Pool(t.Context(), "default", "a", 0)
	w.must(err)
	if p.InLine != 40 || p.Queued != 40 || len(p.Queue) != 25 {
		t.Fatalf("%d in line, %d queued, %d shown", p.InLine, p.Queued, len(p.Queue))
	}
	head, second := p.Queue[0], p.Queue[1]
	if head.Position != 1 || head.ID != "waits-00" || !strings.Contains(head.Reason, "needs 4 cpu") || second.Position != 2 || !strings.Contains(second.Reason, "waits behind waits-00") {
		t.Errorf("head %+v, second %+v", head, second)
	}
	if in := head.ETA.Sub(w.clock()); in < 59*time.Minute || in > 61*time.Minute {
		t.Errorf("the head may start in %s", in)
	}
	if in := second.ETA.Sub(w.clock()); in < 69*time.Minute || in > 71*time.Minute {
		t.Errorf("the second may start in %s", in)
	}
	p, err = w.view.Pool(t.Context(), "default", "a", 25)
	w.must(err)
	if len(p.Queue) != 15 || p.Queue[0].Position != 26 || p.Behind != 25 || len(p.Stuck) == 0 {
		t.Errorf("second page: %d from %+v", len(p.Queue), p.Queue[0])
	}
	task, err := w.view.Task(t.Context(), "default", "waits-00")
	w.must(err)
	has(t, "why it waits", task.Why.Title.String()+task.Why.Text.String(), "first in line", "needs 4 cpu", "It may start in 1 h, if what runs takes as long as estimated.")
	task, err = w.view.Task(t.Context(), "default", "waits-07")
	w.must(err)
	has(t, "why it waits", task.Why.Title.String()+task.Why.Text.String(), "It is number 8 in the queue of a.", "First in line is waits-00.", "It may start in 2 h")
}

func TestAGangIsShownTogetherAndFormsSayHowLong(t *testing.T) {
	t.Parallel()
	w := open(t)
	ctx := t.Context()
	w.must(w.view.CreatePool(ctx, "default", web.PoolSpec{Name: "a", Cluster: "local", Capacity: web.Resources{"cpu": 4000}, MaxRuntime: 8 * time.Hour}))
	p, err := w.view.Pool(ctx, "default", "a", 0)
	w.must(err)
	if p.Settings.MaxRuntime != "8 h" {
		t.Errorf("the form says %q", p.Settings.MaxRuntime)
	}
	w.submit("runs", "a", units{"cpu": 4}, 5)
	w.settle()
	spec := ledger.Spec{ActorClass: "trainers.llama:Trainer"}
	made, err := w.SubmitAll(ctx, "default", []ledger.Submission{
		{TaskID: "g1", Pool: "a", Request: sched.Resources{CPU: 2000}, Priority: 5000, OnInsufficient: ledger.Queue, Spec: spec},
		{TaskID: "g2", Pool: "a", Request: sched.Resources{CPU: 2000}, Priority: 5000, OnInsufficient: ledger.Queue, Spec: spec}}, true)
	w.must(err)
	if len(made) != 2 {
		t.Fatalf("%+v", made)
	}
	task, err := w.view.Task(ctx, "default", "g1")
	w.must(err)
	has(t, "why it waits", task.Why.Text.String(), "It waits with g2: all of them start together, or none does.")

	backoff := 3 * time.Second
	_, err = w.view.SubmitTask(ctx, "default", web.NewTask{TaskID: "impatient", Pool: "a", ActorClass: "m:C", Request: web.Resources{"cpu": 1000}, Priority: 5,
		OnInsufficient: "queue", OnFailure: "requeue", QueueTimeout: 10 * time.Minute, RetryBackoff: &backoff})
	w.must(err)
	task, err = w.view.Task(ctx, "default", "impatient")
	w.must(err)
	has(t, "why it waits", task.Why.Text.String(), "It gives up in 10 min.")
	has(t, "the spec", task.Spec, `"queue_timeout": 600`, `"retry_backoff": 3`)
	if task.Again.QueueTimeout != "10 min" || task.Again.RetryBackoff != "3 s" {
		t.Errorf("again %+v", task.Again)
	}
}

func TestAHeldPoolSaysSoEverywhere(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", nil, units{"cpu": 4})
	hour := time.Hour
	w.must(w.view.HoldPool(t.Context(), "default", "a", web.HoldRequest{State: "held", Reason: "disks are swapped"}))
	w.submit("waits", "a", units{"cpu": 1}, 5, queueing)
	p, err := w.view.Pool(t.Context(), "default", "a", 0)
	w.must(err)
	if p.Hold.State != "held" || p.Hold.Actor != "dashboard" || len(p.Stuck) != 0 {
		t.Errorf("pool %+v", p.Pool)
	}
	task, err := w.view.Task(t.Context(), "default", "waits")
	w.must(err)
	has(t, "why it waits", task.Why.Title.String()+task.Why.Text.String(), "It is first in line, but a is held.", "disks are swapped")
	o, err := w.view.Overview(t.Context(), "default")
	w.must(err)
	if len(o.Notes) != 1 {
		t.Fatalf("notes %+v", o.Notes)
	}
	has(t, "the overview", o.Notes[0].Title.String()+o.Notes[0].Text.String(), "Nothing starts in a.", "disks are swapped")
	w.must(w.view.HoldPool(t.Context(), "default", "a", web.HoldRequest{State: "draining", Reason: "away with it", Deadline: &hour}))
	p, err = w.view.Pool(t.Context(), "default", "a", 0)
	w.must(err)
	has(t, "a drain", p.Hold.Line(w.clock()).String(), "Drained by dashboard", "What still runs in 1 h is preempted.")
	w.must(w.view.HoldPool(t.Context(), "default", "a", web.HoldRequest{}))
	w.settle()
	task, err = w.view.Task(t.Context(), "default", "waits")
	w.must(err)
	if task.State != web.Running {
		t.Errorf("resumed, yet the task is %s", task.State)
	}
	refused(t, w.view.HoldPool(t.Context(), "default", "a", web.HoldRequest{}), "wrong_state")
	refused(t, w.view.HoldPool(t.Context(), "default", "gone", web.HoldRequest{State: "held"}), "unknown_pool")
}

func TestNodesAreListedAndHeld(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.must(w.SetNodes(t.Context(), "local", []sched.Node{{ID: "n1", Cluster: "local", Total: sched.Resources{CPU: 4000}, Room: sched.Resources{CPU: 4000}}}))
	w.must(w.view.HoldNode(t.Context(), "n1", web.HoldRequest{State: "held", Reason: "fans"}))
	nodes, err := w.view.Nodes(t.Context())
	w.must(err)
	if len(nodes) != 1 || nodes[0].ID != "n1" || !nodes[0].Known || nodes[0].Total["cpu"] != 4000 || nodes[0].Hold.Reason != "fans" {
		t.Errorf("nodes %+v", nodes)
	}
	refused(t, w.view.HoldNode(t.Context(), "n2", web.HoldRequest{State: "held"}), "unknown_node")
}

func TestNoFieldOfThePolicyIsLostOnThePage(t *testing.T) {
	t.Parallel()
	w := open(t)
	// Every field away from its default: what the page shows is saved again as it is.
	w.policy(`{"same_pool_priority_threshold": 2, "cross_pool_priority_threshold": 7, "remaining_time_weight": 0.3, "min_preempt_score": 0.75, "enable_cross_pool_preemption": false,
		"protected_pools": ["p"], "label_preemption_rules": {"t": {"a": ["b"]}}, "label_priority_threshold": 0.25, "enable_label_preemption": false, "cancel_timeout": 6, "save_timeout": 61,
		"victim_coverage": "request", "min_runtime_seconds": 3, "max_preemptions_per_minute": 4, "max_preemptions_per_task": 5, "ageing_weight": 0.5}`, "all of it")
	before, err := w.Policy(t.Context(), "default")
	w.must(err)
	p := reflect.ValueOf(before.Policy)
	usual := reflect.ValueOf(sched.DefaultPolicy())
	for i := range p.NumField() {
		if reflect.DeepEqual(p.Field(i).Interface(), usual.Field(i).Interface()) {
			t.Errorf("%s has its default: this test must change it", p.Type().Field(i).Name)
		}
	}
	page, err := w.view.Policy(t.Context(), "default")
	w.must(err)
	d, errs := page.Doc.Form().Parse(page.Doc)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	n, err := w.view.SavePolicy(t.Context(), "default", d, before.Version, "mei", "nothing")
	w.must(err)
	after, err := w.Policy(t.Context(), "default")
	w.must(err)
	if n != before.Version || !reflect.DeepEqual(before.Policy, after.Policy) {
		t.Errorf("version %d became %d: %+v", before.Version, n, sched.Diff(before.Policy, after.Policy))
	}
}
