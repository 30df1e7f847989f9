package view_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/web"
)

func TestABacktestComparesTheDayUnderADraft(t *testing.T) {
	t.Parallel()
	w := tell(t)
	ask := web.BacktestRequest{Draft: json.RawMessage(`{"label_preemption_rules": {}, "enable_cross_pool_preemption": false, "same_pool_priority_threshold": 100}`), Last: 24 * time.Hour}
	form := web.BacktestForm{Draft: "label_preemption_rules: {}"}
	id, err := w.view.BeginBacktest(t.Context(), "default", form, ask)
	w.must(err)
	var b web.Backtest
	for deadline := time.Now().Add(20 * time.Second); ; {
		b, err = w.view.Backtest(t.Context(), "default", id)
		w.must(err)
		if !b.Running {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it never ends")
		}
	}
	if b.Result == nil || b.Form.Draft != form.Draft {
		t.Fatalf("%+v", b)
	}
	r := b.Result
	if r.Version != 2 || len(r.Changes) != 3 || len(r.Waits) == 0 {
		t.Errorf("%+v", r)
	}
	rows := map[string]web.BacktestRow{}
	for _, x := range r.Rows {
		rows[x.Name] = x
	}
	// The story's rlhf task takes the pretraining by label; without the rule nobody makes way.
	if x := rows["Preemptions"]; x.Active == "0" || x.Draft != "0" || !strings.HasPrefix(x.Change, "−") {
		t.Errorf("preemptions %+v", x)
	}
	if len(r.Differ) == 0 || r.Differ[0].Draft != "never" || !strings.HasPrefix(r.Differ[0].Active, "once, by ") {
		t.Errorf("preempted differently: %+v", r.Differ)
	}
	has(t, "what was replayed", r.About.String(), "submissions replayed", "compare the two with each other")

	_, err = w.view.BeginBacktest(t.Context(), "default", form, web.BacktestRequest{Draft: json.RawMessage(`{"min_preempt_score": -1}`), Last: time.Hour})
	f := refused(t, err, "invalid")
	has(t, "the draft's field", f["draft"], "min_preempt_score")
	_, err = w.view.BeginBacktest(t.Context(), "nowhere", form, ask)
	refused(t, err, "invalid")
	_, err = w.view.Backtest(t.Context(), "other", id)
	refused(t, err, "not_found")
}
