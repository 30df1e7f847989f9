package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	jsonv2 "github.com/go-json-experiment/json"

	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/sched/replay"
)

// BacktestBody is a draft of the policy, and a span of history to try it on.
type BacktestBody struct {
	Policy PolicyFields `json:"policy" doc:"A draft: fields that replace those of the active policy, each as a whole; or all of them."`
	From   *time.Time   `json:"from,omitempty" doc:"Replay what was submitted, or still ran, from then on."`
	To     *time.Time   `json:"to,omitempty" doc:"Until then; now when left out."`
	Last   *float64     `json:"last,omitempty" doc:"Instead of from and to: so many seconds up to now. A day when all three are left out." example:"86400"`
	Limit  int          `json:"limit,omitempty" minimum:"0" maximum:"1000" doc:"The most tasks listed that would be preempted differently; 50 when left out."`
}

// Backtest is the same history under two policies.
type Backtest struct {
	PolicyVersion int            `json:"policy_version" doc:"The active policy."`
	Changes       []FieldChange  `json:"changes" nullable:"false" doc:"What the draft would change in it."`
	Warnings      []string       `json:"warnings" nullable:"false" doc:"What is allowed in the draft but probably not meant."`
	From          Stamp          `json:"from"`
	To            Stamp          `json:"to"`
	Tasks         int            `json:"tasks" doc:"Submissions replayed."`
	Guessed       int            `json:"guessed" doc:"How many of them had not ended by themselves: they run as long as they estimated, and at least as long as they did."`
	LeftOut       map[string]int `json:"left_out" nullable:"false" doc:"Submissions that could not be replayed, by why: never_ran (how long it would have run is unknown), pool_gone."`
	Active        replay.Summary `json:"active" doc:"Under the active policy."`
	Draft         replay.Summary `json:"draft" doc:"Under the draft."`
	Difference    Difference     `json:"difference" doc:"Draft less active."`

	Different   int                    `json:"different" doc:"Tasks that would be preempted more often or less often."`
	Differences []PreemptedDifferently `json:"differences" nullable:"false" doc:"The first of them."`
}

// Difference is what the draft changes, in numbers: draft less active.
type Difference struct {
	Preemptions     replay.Preemptions `json:"preemptions"`
	Completed       int64              `json:"completed"`
	Refused         int64              `json:"refused"`
	WorkLostSeconds float64            `json:"work_lost_seconds"`
	HandoverSeconds float64            `json:"handover_seconds"`
	Fairness        float64            `json:"fairness"`
	Waits           []WaitDifference   `json:"waits" nullable:"false"`
}

// WaitDifference is how waiting changes for one class of priorities, in seconds.
type WaitDifference struct {
	From  *sched.Milli `json:"from" nullable:"true" doc:"The least priority; null: none."`
	Below *sched.Milli `json:"below" nullable:"true"`
	Mean  float64      `json:"mean_seconds"`
	P50   float64      `json:"p50_seconds"`
	P95   float64      `json:"p95_seconds"`
	P99   float64      `json:"p99_seconds"`
	Max   float64      `json:"max_seconds"`
}

// PreemptedDifferently is a task that would be preempted more or less often.
type PreemptedDifferently struct {
	TaskID   string         `json:"task_id"`
	PoolName string         `json:"pool_name"`
	Priority sched.Milli    `json:"priority"`
	At       Stamp          `json:"at" doc:"In the replay: the first time, under either policy."`
	Active   TimesPreempted `json:"active"`
	Draft    TimesPreempted `json:"draft"`
}

// TimesPreempted is how often a task was preempted in a replay.
type TimesPreempted struct {
	Times  int    `json:"times"`
	By     string `json:"by" doc:"Who was the first to take its place; empty when nobody was."`
	Reason string `json:"reason" enum:"label_based_preemption,same_pool_preemption,cross_pool_preemption," doc:"Of that first time."`
}

// BacktestProgress says how far a backtest is.
type BacktestProgress struct {
	Tasks     int   `json:"tasks" doc:"Submissions replayed so far."`
	Of        int   `json:"of"`
	Simulated Stamp `json:"simulated" doc:"Where in time that is. After the last submission, what still runs is let end."`
}

func backtestDoc(b ledger.BacktestResult) Backtest {
	out := Backtest{PolicyVersion: b.PolicyVersion, Changes: mapped(b.Changes, fieldChange), Warnings: b.Warnings, From: Stamp(b.From), To: Stamp(b.To),
		Tasks: b.Tasks, Guessed: b.Guessed, LeftOut: b.LeftOut, Active: b.Active, Draft: b.Draft, Difference: differenceOf(&b.Active, &b.Draft), Different: b.Different}
	if out.Warnings == nil {
		out.Warnings = []string{}
	}
	out.Differences = mapped(b.Differences, func(d ledger.PreemptedDifferently) PreemptedDifferently {
		return PreemptedDifferently{d.TaskID, d.Pool, d.Priority, Stamp(d.At), TimesPreempted{d.Active, d.ActiveBy, string(d.ActiveReason)}, TimesPreempted{d.Draft, d.DraftBy, string(d.DraftReason)}}
	})
	return out
}

func differenceOf(a, d *replay.Summary) Difference {
	refused := func(s *replay.Summary) (n int64) {
		for _, v := range s.Refused {
			n += v
		}
		return n
	}
	p, q := a.Preemptions, d.Preemptions
	out := Difference{
		Preemptions: replay.Preemptions{Total: q.Total - p.Total, Label: q.Label - p.Label, SamePool: q.SamePool - p.SamePool, CrossPool: q.CrossPool - p.CrossPool},
		Completed:   d.Completed - a.Completed, Refused: refused(d) - refused(a), WorkLostSeconds: d.WorkLostSeconds - a.WorkLostSeconds,
		HandoverSeconds: d.HandoverSeconds - a.HandoverSeconds, Fairness: d.Fairness - a.Fairness, Waits: []WaitDifference{}}
	for i, x := range d.Waits {
		y := a.Waits[i]
		out.Waits = append(out.Waits, WaitDifference{x.From, x.Below, x.Mean - y.Mean, x.P50 - y.P50, x.P95 - y.P95, x.P99 - y.P99, x.Max - y.Max})
	}
	return out
}

type backtestInput struct {
	Scope
	Accept string `header:"Accept" hidden:"true"`
	Body   BacktestBody
}

func (a *API) registerBacktest() {
	op := operation{id: "backtest-policy", method: "POST", path: "/policy/backtest", tag: "Policy",
		summary: "Try a policy on history",
		about: "Replays what was submitted in a span of time under the active policy and under a draft, and answers with both outcomes and their difference: preemptions, waiting times by class of priority, work lost, who would be preempted more or less often. Changes nothing.\n\n" +
			"Both replays start with the pools as they are now and go by quota alone; nothing fails, handovers take a fraction of a second. Compare them with each other rather than with what really happened. " +
			"A task runs as long as it did; one that had not ended by itself, as long as it estimated, and at least as long as it did. Submissions that were refused are not in the history.\n\n" +
			"With `Accept: text/event-stream` the answer is a stream: events `progress` a few times a second, then one `result`, or `error` with a problem. With `Accept: application/x-ndjson` the same as lines `{\"progress\": …}`, `{\"result\": …}`, `{\"error\": …}`. " +
			"A backtest ends when its client goes away. It replays at most 1,000,000 tasks.",
		codes:   []string{"too_many_backtests"},
		request: `{"policy": {"same_pool_priority_threshold": 2}, "last": 86400}`,
	}
	register(a, op, a.backtest)
	registry := a.huma.OpenAPI().Components.Schemas
	text := &huma.Schema{Type: huma.TypeString}
	find(a.huma.OpenAPI(), op.method, op.path).Responses["200"] = &huma.Response{Description: "What came of it.", Content: map[string]*huma.MediaType{
		"application/json":     {Schema: registry.Schema(reflect.TypeFor[Backtest](), true, "")},
		"text/event-stream":    {Schema: text, Example: "event: progress\ndata: {\"tasks\":12000,\"of\":50000,\"simulated\":\"2026-03-01T12:00:00Z\"}\n\n"},
		"application/x-ndjson": {Schema: text},
	}}
	registry.Schema(reflect.TypeFor[BacktestProgress](), true, "")
}

func (a *API) backtest(ctx context.Context, in *backtestInput) (*huma.StreamResponse, error) {
	var f faults
	req := ledger.BacktestRequest{Draft: json.RawMessage(in.Body.Policy), Limit: in.Body.Limit}
	if in.Body.From != nil {
		req.From = *in.Body.From
	}
	if in.Body.To != nil {
		req.To = *in.Body.To
	}
	if in.Body.Last != nil {
		if req.Last = f.seconds("last", *in.Body.Last); req.Last == 0 {
			f.add("body", "last", "must be more than 0 seconds")
		}
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	// As in PATCH: checked here only to name the fields as they were sent.
	if _, _, err := sched.DefaultPolicy().Patch(in.Body.Policy); err != nil {
		return nil, policyFaults(err)
	}
	sse, lines := strings.Contains(in.Accept, "text/event-stream"), strings.Contains(in.Accept, "application/x-ndjson")
	if !sse && !lines {
		result, err := a.ledger.Backtest(ctx, in.Namespace, req, nil)
		if err != nil {
			return nil, err
		}
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			r, w := humachi.Unwrap(hc)
			d := backtestDoc(result)
			writeJSON(w, r, http.StatusOK, &d)
		}}, nil
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		r, w := humachi.Unwrap(hc)
		a.streamBacktest(w, r, in.Namespace, req, sse)
	}}, nil
}

// streamBacktest sends progress and, in the end, the result. What is refused before
// anything was sent is a plain error.
func (a *API) streamBacktest(w http.ResponseWriter, r *http.Request, ns string, req ledger.BacktestRequest, sse bool) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	ctl := http.NewResponseController(w)
	begun := false
	send := func(event string, v any) {
		if !begun {
			begun = true
			h := w.Header()
			h.Set("Content-Type", map[bool]string{true: "text/event-stream", false: "application/x-ndjson"}[sse])
			h.Set("Cache-Control", "no-store")
			h.Set("X-Accel-Buffering", "no")
			w.WriteHeader(http.StatusOK)
		}
		data, err := jsonv2.Marshal(v, jsonv2.Deterministic(true))
		if err != nil {
			cancel()
			return
		}
		if sse {
			data = fmt.Appendf(nil, "event: %s\ndata: %s\n\n", event, data)
		} else {
			data = fmt.Appendf(nil, "{%q:%s}\n", event, data)
		}
		_ = ctl.SetWriteDeadline(time.Now().Add(writeTime))
		_, err = w.Write(data)
		if flushed := ctl.Flush(); err == nil && !errors.Is(flushed, http.ErrNotSupported) {
			err = flushed
		}
		if err != nil {
			cancel() // nobody listens: the backtest ends
		}
	}
	result, err := a.ledger.Backtest(ctx, ns, req, func(p ledger.BacktestProgress) {
		send("progress", BacktestProgress{p.Tasks, p.Of, Stamp(p.Simulated)})
	})
	switch {
	case err == nil:
		send("result", backtestDoc(result))
	case !begun:
		refuse(w, r, err)
	default:
		send("error", (*problem.Problem)(toProblem(ctx, err)))
	}
}
