package demo

import (
	"context"
	"math"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/web"
)

// BeginBacktest remembers the form; one of a week is still under way.
func (w *World) BeginBacktest(_ context.Context, _ string, f web.BacktestForm, r web.BacktestRequest) (string, error) {
	defer w.lock()()
	if strings.Contains(string(r.Draft), "nonsense") {
		return "", &pages.Refusal{ErrorCode: "invalid", Message: "nonsense: is not a field of a policy", ByField: map[string]string{"draft": "nonsense: Is not a field of a policy."}}
	}
	if r.Last > 24*time.Hour {
		return "long", w.Fail
	}
	return "done", w.Fail
}

// Backtest is under way, or done.
func (w *World) Backtest(_ context.Context, _, id string) (web.Backtest, error) {
	defer w.lock()()
	b := web.Backtest{ID: id, Form: web.BacktestForm{Draft: "label_preemption_rules:\n  training_stage:\n    rlhf: [pretraining, sft]", Last: "24 h"}}
	switch id {
	case "long":
		b.Running, b.Tasks, b.Of, b.Simulated = true, 41_873, 128_400, w.now.Add(-51*time.Hour)
		return b, w.Fail
	case "done":
	default:
		return b, missing("backtest", id)
	}
	m := time.Minute
	r := &web.BacktestResult{Version: 12, From: w.now.Add(-24 * time.Hour), To: w.now, Took: 1240 * time.Millisecond,
		Changes: []web.FieldChange{{Field: "label_preemption_rules.training_stage", Old: "rlhf > pretraining", New: "rlhf > pretraining, sft"}},
		About:   web.Say("18,402 submissions replayed, 12 of which had not ended by themselves: they run as long as they estimated. Compare the two with each other rather than with what happened."),
		Rows: []web.BacktestRow{
			{Name: "Preemptions", Active: "412", Draft: "451", Change: "+39"}, {Name: "… by label", Active: "301", Draft: "346", Change: "+45"}, {Name: "… in the same pool", Active: "88", Draft: "82", Change: "−6"},
			{Name: "… across pools", Active: "23", Draft: "23"}, {Name: "Work lost to them, task-time", Active: "21.4 h", Draft: "24 h", Change: "+2.6 h", Tone: "warn"},
			{Name: "Tasks done", Active: "18,102", Draft: "18,140", Change: "+38", Tone: "ok"}, {Name: "Refused", Active: "212", Draft: "212"}, {Name: "Fairness between pools, 0 to 1", Active: "0.912", Draft: "0.921", Tone: "ok"},
		},
		Waits: []web.WaitClass{
			{Name: "8.0 and more", Tasks: 1204, Active: web.Waits{P50: 40 * time.Second, P95: 14 * m}, Draft: web.Waits{P50: 2 * time.Second, P95: 48 * time.Second}},
			{Name: "5.0 to 8.0", Tasks: 9310, Active: web.Waits{P50: m, P95: 9 * m}, Draft: web.Waits{P50: 2 * m, P95: 21 * m}},
			{Name: "below 5.0", Tasks: 7888, Active: web.Waits{P50: 3 * m, P95: 32 * m, Still: 3}, Draft: web.Waits{P50: 3 * m, P95: 33 * m, Still: 3}},
		},
		Differ:  []web.DiffersRow{{Task: "vision-03", Pool: "train-a100", Active: "never", Draft: "once, by llama-7b-rlhf"}, {Task: "rollout-112", Pool: "research-shared", Active: "3 times, first by reward-07", Draft: "once, by reward-07"}},
		Differs: 61,
	}
	for side := range r.Waiting {
		r.Waiting[side].Step = 15 * m
		for i := range 97 {
			r.Waiting[side].Values = append(r.Waiting[side].Values, math.Round(40+30*math.Sin(float64(i+3*side)/9)+8*math.Sin(float64(i*(side+2)))))
		}
	}
	b.Result = r
	return b, w.Fail
}
