package app_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/schedulemesh/schedulemesh/app"
	"github.com/schedulemesh/schedulemesh/testdb"
)

func TestABacktestOfWhatJustHappened(t *testing.T) {
	t.Parallel()
	a := start(t, app.Config{DatabaseURL: testdb.New(t)})
	send(t, a, "POST", "/api/v1/pools", `{"name": "p", "resources": {"cpu": 2}}`)
	for _, task := range []string{
		`{"task_id": "low", "pool": "p", "priority": 1, "resources": {"cpu": 2}, "estimated_duration": 3600, "on_preempted": "requeue", ` + class + `}`,
		`{"task_id": "high", "pool": "p", "priority": 9, "resources": {"cpu": 2}, "estimated_duration": 60, "on_insufficient": "queue", ` + class + `}`,
	} {
		if r := send(t, a, "POST", "/api/v1/tasks?wait=10s", task); r.status != 201 || !strings.Contains(r.body, `"state":"running"`) {
			t.Fatalf("%+v", r)
		}
	}
	const body = `{"policy": {"same_pool_priority_threshold": 100}, "last": 600}`
	r := send(t, a, "POST", "/api/v1/policy/backtest", body)
	var got struct {
		Tasks, Guessed, Different int
		Active, Draft             struct{ Preemptions struct{ Total int } }
		Difference                struct {
			Waits []struct {
				Max float64 `json:"max_seconds"`
			}
		}
		Differences []struct {
			TaskID string `json:"task_id"`
			Active struct{ By string }
		}
	}
	if err := json.Unmarshal([]byte(r.body), &got); err != nil || r.status != 200 {
		t.Fatalf("%v, %+v", err, r)
	}
	if got.Tasks != 2 || got.Guessed != 2 || got.Active.Preemptions.Total != 1 || got.Draft.Preemptions.Total != 0 || got.Different != 1 ||
		got.Differences[0].TaskID != "low" || got.Differences[0].Active.By != "high" || got.Difference.Waits[3].Max < 3500 {
		t.Errorf("%s", r.body)
	}
	// As a stream, and remembered when it is to happen once.
	for _, key := range []string{"", "once"} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", a.URL()+"/api/v1/policy/backtest", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+a.Token())
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "text/event-stream")
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		_, err = io.Copy(&text, res.Body)
		res.Body.Close()
		if err != nil || res.Header.Get("Content-Type") != "text/event-stream" || !strings.Contains(text.String(), "event: result\ndata: {") {
			t.Errorf("key %q: %v, %d, %v, %s", key, err, res.StatusCode, res.Header, text.String())
		}
	}
	if r := send(t, a, "POST", "/api/v1/policy/backtest", `{"policy": {"min_preempt_score": -1}}`); r.status != 422 || r.code() != "invalid" {
		t.Errorf("%+v", r)
	}
}
