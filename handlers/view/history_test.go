package view_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/handlers/view"
	"github.com/schedulemesh/schedulemesh/web"
)

// grow gives the namespace a long past: ended tasks of the last two days, each with its
// events, and a tenth of them preempted. Another namespace has had as many events since.
func grow(t *testing.T, pool *pgxpool.Pool, tasks int) {
	t.Helper()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`INSERT INTO namespaces (name) VALUES ('busy')`)
	exec(`CREATE UNLOGGED TABLE past AS SELECT i, gen_random_uuid() AS uid, now() - interval '2 days' + i * interval '2 days' / $1::int AS at FROM generate_series(1, $1::int) i`, tasks)
	exec(`INSERT INTO tasks (uid, namespace_id, kind, task_id, pool_id, pool_name, state, priority, request, agent_name, spec, submitted_at, started_at, ended_at, ended_uid)
		SELECT p.uid, n.id, 'task', 'past-' || p.i, pool.id, pool.name, 'completed', 5000, '{"gpu": 1000, "cpu": 4000}', 'agent-' || p.i,
			'{"actor_class": "trainers.llama:Trainer", "kwargs": {"steps": 4000, "lr": 0.0001}}', p.at, p.at + interval '1 s', p.at + interval '60 s', p.uid
		FROM past p, namespaces n, pools pool WHERE n.name = 'default' AND pool.namespace_id = n.id AND pool.name = 'batch' ORDER BY p.i`)
	exec(`INSERT INTO task_events (at, namespace_id, task_uid, task_id, pool_name, attempt, type)
		SELECT p.at + e.after * interval '1 s', n.id, p.uid, 'past-' || p.i, 'batch', 1, e.type
		FROM past p, namespaces n, (VALUES ('reserved', 0), ('running', 1), ('completed', 60)) e(type, after) WHERE n.name = 'default' ORDER BY p.i, e.after`)
	exec(`INSERT INTO preemptions (namespace_id, preemptor_uid, preemptor_task, preemptor_attempt, victim_uid, victim_task, victim_attempt, agent_name, pool_name, priority, reason, policy_version, phase,
			decided_at, cancelled_at, saved_at, gone_at, running_at)
		SELECT n.id, gen_random_uuid(), 'p', 1, p.uid, 'past-' || p.i, 1, 'agent-' || p.i, 'batch', 5000, 'same_pool_preemption', 1, 'gone',
			p.at, p.at + interval '10 ms', p.at + interval '30 ms', p.at + interval '40 ms', p.at + interval '90 ms'
		FROM past p, namespaces n WHERE n.name = 'default' AND p.i % 10 = 0 ORDER BY p.i`)
	exec(`INSERT INTO task_events (at, namespace_id, type) SELECT p.at, n.id, 'running' FROM past p, namespaces n, generate_series(1, 3) WHERE n.name = 'busy' ORDER BY p.i`)
	exec(`ANALYZE tasks, task_events, preemptions`)
}

// past is what nobody may wait for, in a test.
const past = 25_000

func TestWhatEndedLongAgoDoesNotSlowTheFirstOverview(t *testing.T) {
	t.Parallel()
	w := tell(t)
	first := func() (took time.Duration, o web.Overview) {
		took = time.Hour
		for range 3 {
			v := view.New(w.Ledger, printed{}, view.Options{Now: w.clock})
			began := time.Now()
			var err error
			o, err = v.Overview(context.Background(), "default")
			w.must(err)
			took = min(took, time.Since(began))
		}
		return took, o
	}
	before, _ := first()
	grow(t, w.db, past)
	after, o := first()
	t.Logf("the first overview takes %s, and %s after %d tasks ended", before, after, past)
	// Two figures are waited for 75 ms each, and looking for events ends after 50 ms and one window.
	if after > before+time.Second {
		t.Errorf("the first overview takes %s, and %s after %d tasks ended", before, after, past)
	}
	if o.Running != 3 || len(o.Recent) == 0 {
		t.Errorf("overview %+v", o)
	}
	// What was not ready comes.
	v := view.New(w.Ledger, printed{}, view.Options{Now: w.clock, Patience: time.Nanosecond})
	o, err := v.Overview(t.Context(), "default")
	w.must(err)
	if !o.Pending || !o.GPUPending {
		t.Errorf("nobody waits, yet nothing is pending: %+v", o)
	}
	for deadline := time.Now().Add(30 * time.Second); o.Pending || o.GPUPending; {
		if time.Now().After(deadline) {
			t.Fatal("the figures never come")
		}
		if o, err = v.Overview(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
	}
	if o.Preemptions.SamePool < past/20-100 || o.GPUUsed < float64(past)/2/60*0.9 {
		t.Errorf("preemptions %+v, GPU-hours %v", o.Preemptions, o.GPUUsed)
	}
}

func TestRareEventsAreFoundPageByPage(t *testing.T) {
	t.Parallel()
	w := tell(t)
	grow(t, w.db, past) // 75,000 events of each of two namespaces
	cursor, pages, kinds := "", 0, map[string]int{}
	for {
		l, err := w.view.Events(t.Context(), "default", web.EventFilter{Type: "policy.changed", Cursor: cursor, Limit: 5})
		w.must(err)
		for _, e := range l.Items {
			kinds[e.Type]++
		}
		if pages++; l.Next == "" || pages > 20 {
			break
		}
		cursor = l.Next
	}
	if len(kinds) != 1 || kinds["policy.changed"] != 1 {
		t.Errorf("found %v on %d pages", kinds, pages)
	}
}
