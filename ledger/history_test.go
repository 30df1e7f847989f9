package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// past is a row of history; times are seconds after an hour ago, −1 means never.
type past struct {
	name               string
	state              ledger.State
	priority           float64
	cpu                float64
	at, started, ended float64
	estimate           float64
	queue, requeue     bool
}

func (w *world) remember(pool string, rows ...past) time.Time {
	w.t.Helper()
	began := time.Now().UTC().Truncate(time.Second).Add(-time.Hour)
	at := func(s float64) *time.Time {
		if s < 0 {
			return nil
		}
		t := began.Add(time.Duration(s * float64(time.Second)))
		return &t
	}
	word := func(yes bool, a, b string) string {
		if yes {
			return a
		}
		return b
	}
	for _, p := range rows {
		request := sched.Resources{CPU: int64(p.cpu * 1000)}
		_, err := w.db.Exec(w.t.Context(), `
			INSERT INTO tasks (uid, namespace_id, kind, task_id, pool_id, pool_name, state, priority, request, agent_name, estimate_ms, on_insufficient, on_preempted,
				submitted_at, started_at, ended_at, ended_uid)
			SELECT u, p.namespace_id, 'task', $2, p.id, p.name, $3, $4, $5, $2 || '-agent', $6, $7, $8, $9, $10, $11, CASE WHEN $11::timestamptz IS NULL THEN NULL ELSE u END
			FROM pools p, gen_random_uuid() u WHERE p.name = $1 AND p.deleted_at IS NULL`,
			pool, p.name, p.state, int64(p.priority*1000), request.AppendJSON(nil), int64(p.estimate*1000), word(p.queue, "queue", "fail"), word(p.requeue, "requeue", "stop"),
			at(p.at), at(p.started), at(p.ended))
		w.must(err)
	}
	return began
}

func (w *world) backtest(draft string, change ...func(*ledger.BacktestRequest)) ledger.BacktestResult {
	w.t.Helper()
	req := ledger.BacktestRequest{Draft: json.RawMessage(draft), Last: 2 * time.Hour}
	for _, f := range change {
		f(&req)
	}
	b, err := w.Backtest(w.t.Context(), "default", req, nil)
	w.must(err)
	return b
}

func TestABacktestShowsWhomAnotherPolicyWouldHavePreempted(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 4)
	began := w.remember("a",
		past{"low", ledger.Completed, 1, 2, 0, 1, 601, 0, true, true},
		past{"mid", ledger.Completed, 4, 2, 0, 1, 601, 0, true, true},
		past{"high", ledger.Completed, 9, 2, 100, 101, 201, 0, true, false},
	)
	b := w.backtest(`{"same_pool_priority_threshold": 9}`)
	if b.Tasks != 3 || b.Guessed != 0 || len(b.LeftOut) != 0 || b.PolicyVersion != 1 || len(b.Changes) != 1 {
		t.Fatalf("%+v", b)
	}
	if a, d := b.Active.Preemptions, b.Draft.Preemptions; a.Total != 1 || a.SamePool != 1 || d.Total != 0 {
		t.Errorf("preemptions: %+v and %+v", a, d)
	}
	// Under the draft high waits for 500 s, until low and mid have ended.
	if a, d := b.Active.Waits[3], b.Draft.Waits[3]; a.Tasks != 1 || d.Tasks != 1 || a.Max > 1 || d.Max < 499 || d.Max > 501 {
		t.Errorf("waits: %+v and %+v", a, d)
	}
	if b.Different != 1 || len(b.Differences) != 1 {
		t.Fatalf("%d differ: %+v", b.Different, b.Differences)
	}
	want := ledger.PreemptedDifferently{TaskID: "low", Pool: "a", Priority: 1000, At: began.Add(100 * time.Second), Active: 1, ActiveBy: "high", ActiveReason: sched.SamePool}
	if b.Differences[0] != want {
		t.Errorf("%+v", b.Differences[0])
	}
	// The same policy makes no difference, and nothing was changed by asking.
	if b := w.backtest(`{}`); b.Different != 0 || b.Active.Preemptions != b.Draft.Preemptions || len(b.Changes) != 0 {
		t.Errorf("%+v", b)
	}
	w.verified()
}

func TestABacktestGuessesHowLongTasksWouldHaveRun(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 100)
	w.makePool("gone", 4)
	w.remember("gone", past{"elsewhere", ledger.Completed, 1, 1, 0, 1, 2, 0, false, false})
	w.must(w.DeletePool(t.Context(), "default", "gone", "test"))
	w.remember("a",
		past{"done", ledger.Completed, 5, 1, 0, 0, 10, 999, false, false},            // 10 s: it is known
		past{"broke", ledger.Failed, 5, 1, 0, 0, 20, 999, false, false},              // 20 s: it did what it did
		past{"stopped", ledger.Preempted, 5, 1, 0, 0, 30, 300, false, false},         // 300 s: it had not ended
		past{"late", ledger.Preempted, 5, 1, 0, 0, 400, 300, false, false},           // 400 s: it ran longer than it said
		past{"withdrawn", ledger.Cancelled, 5, 1, 0, -1, 50, 60, true, false},        // 60 s, if it gets to run
		past{"unknown", ledger.Cancelled, 5, 1, 0, -1, 50, 0, true, false},           // nobody knows
		past{"no launch", ledger.Failed, 5, 1, 0, -1, 50, 0, true, false},            // nor of this one
		past{"far ahead", ledger.Completed, 5, 1, 7000, 7000, 7010, 0, false, false}, // not yet
	)
	b := w.backtest(`{}`)
	if b.Tasks != 5 || b.Guessed != 4 || b.LeftOut["never_ran"] != 2 || b.LeftOut["pool_gone"] != 1 {
		t.Errorf("%d replayed, %d guessed, left out %v", b.Tasks, b.Guessed, b.LeftOut)
	}
	if s := b.Draft; s.Completed != 5 || s.SimulatedSeconds < 400 || s.SimulatedSeconds > 401 {
		t.Errorf("completed %d in %v s", s.Completed, s.SimulatedSeconds)
	}
	ran := 10.0 + 20 + 300 + 400 + 60
	if mean := b.Draft.Utilisation[0].Mean * 100 * b.Draft.SimulatedSeconds; mean < ran || mean > ran+1 {
		t.Errorf("%v cpu-seconds were used, want %v and a little for launches", mean, ran)
	}
}

func TestABacktestTakesTheRunsOfAllAttemptsFromTheTimeline(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 2)
	low := sub("low", "a", 2, 1)
	low.OnPreempted = ledger.Requeue
	w.run(low)
	w.run(sub("high", "a", 2, 9))
	w.settle()
	_, err := w.Complete(t.Context(), "default", "high", "test")
	w.must(err)
	w.settle()
	_, err = w.Complete(t.Context(), "default", "low", "test")
	w.must(err)
	w.settle()
	// Stretch what happened: each event a minute after the one before it.
	_, err = w.db.Exec(t.Context(), `UPDATE task_events e SET at = now() - interval '2 hours' + n * interval '1 minute'
		FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM task_events) x WHERE x.id = e.id`)
	w.must(err)
	var minutes float64
	w.must(w.db.QueryRow(t.Context(), `SELECT sum(extract(epoch FROM until - at) / 60) FROM (
		SELECT type, at, lead(at) OVER (ORDER BY id) AS until FROM task_events WHERE task_id = 'low' AND type IN ('running', 'preempting', 'stopping')) x WHERE type = 'running'`).Scan(&minutes))
	if minutes < 2 { // a minute for each attempt, at least
		t.Fatalf("low ran for %v minutes: the story is not the one meant", minutes)
	}
	b := w.backtest(`{"same_pool_priority_threshold": 100}`)
	if got := b.Draft.SimulatedSeconds / 60; b.Tasks != 2 || got < minutes || got > minutes+1 {
		t.Errorf("%d tasks, the last of which ended after %v minutes, want %v", b.Tasks, got, minutes)
	}
}

func TestABacktestSaysWhatItCannotDo(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 4)
	w.remember("a", past{"one", ledger.Completed, 5, 1, 0, 0, 10, 0, false, false}, past{"two", ledger.Completed, 5, 1, 1, 1, 10, 0, false, false})
	now := time.Now()
	for want, req := range map[string]ledger.BacktestRequest{
		"more than 1 tasks between": {Last: 2 * time.Hour, MostTasks: 1},
		"is not before":             {From: now, To: now.Add(-time.Hour)},
		"cannot go with":            {Last: time.Hour, From: now},
		"at most ten years":         {Last: -1},
		"min_preempt_score":         {Draft: json.RawMessage(`{"min_preempt_score": -1}`)},
	} {
		if req.Draft == nil {
			req.Draft = json.RawMessage(`{}`)
		}
		_, err := w.Backtest(t.Context(), "default", req, nil)
		if !errors.Is(err, ledger.ErrInvalid) && !strings.Contains(want, "score") || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if b := w.backtest(`{}`, func(r *ledger.BacktestRequest) {
		r.From, r.To, r.Last = now.Add(-100*time.Hour), now.Add(-90*time.Hour), 0
	}); b.Tasks != 0 || b.Draft.Fairness != 1 {
		t.Errorf("an empty history: %+v", b)
	}
}

func TestABacktestTellsHowFarItIsAndEndsWithItsClient(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.makePool("a", 1000)
	_, err := w.db.Exec(t.Context(), `
		INSERT INTO tasks (uid, namespace_id, kind, task_id, pool_id, pool_name, state, priority, request, agent_name, submitted_at, started_at, ended_at, ended_uid)
		SELECT u, p.namespace_id, 'task', 't' || i, p.id, p.name, 'completed', 5000, '{"cpu": 1}', 'a' || i, at, at, at + interval '1 minute', u
		FROM pools p, LATERAL (SELECT i, gen_random_uuid() AS u, now() - interval '1 hour' + i * interval '1 ms' AS at FROM generate_series(1, 60000) i) x WHERE p.name = 'a'`)
	w.must(err)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var seen []ledger.BacktestProgress
	entered, busy := make(chan struct{}), make(chan error, 1)
	go func() {
		<-entered
		// As many at once as are allowed, and one more.
		for range 64 {
			go func() {
				_, err := w.Backtest(ctx, "default", ledger.BacktestRequest{Draft: json.RawMessage(`{}`)}, nil)
				if errors.Is(err, ledger.ErrBusy) {
					select {
					case busy <- err:
					default:
					}
				}
			}()
		}
	}()
	_, err = w.Backtest(ctx, "default", ledger.BacktestRequest{Draft: json.RawMessage(`{}`)}, func(p ledger.BacktestProgress) {
		if seen = append(seen, p); len(seen) == 1 {
			close(entered)
			<-busy
			leave()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("it went on to the end: %v", err)
	}
	if len(seen) != 1 || seen[0].Of != 60_000 || seen[0].Tasks == 0 || seen[0].Tasks >= 60_000 || seen[0].Simulated.IsZero() {
		t.Errorf("%+v", seen)
	}
}
