package api

import (
	"strings"
	"testing"

	"github.com/schedulemesh/schedulemesh/ledger"
)

func TestABacktestStreamsProgressAndThenItsResult(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string][]string{
		"text/event-stream":    {"event: progress\ndata: {\"tasks\":0,\"of\":2,\"simulated\":\"2026-03-01T12:00:00.250Z\"}\n\n", "\n\nevent: result\ndata: {", `"tasks":7`},
		"application/x-ndjson": {`{"progress":{"tasks":1,"of":2,"simulated":"2026-03-01T12:00:00.250Z"}}` + "\n", "\n" + `{"result":{`, `"tasks":7`},
	} {
		got := send(t, newAPI(&fake{steps: 2, tried: ledger.BacktestResult{Tasks: 7}}), "POST", "/api/v1/policy/backtest", `{"policy":{}}`, "Accept", accept)
		if got.StatusCode != 200 || got.Header.Get("Content-Type") != accept {
			t.Errorf("%s: %d %v", accept, got.StatusCode, got.Header)
		}
		for _, w := range want {
			if !strings.Contains(got.text, w) {
				t.Errorf("%s: %q is not in\n%s", accept, w, got.text)
			}
		}
	}
}

func TestABacktestThatIsRefusedIsAPlainErrorUntilSomethingWasSent(t *testing.T) {
	t.Parallel()
	busy := &ledger.Error{Code: ledger.ErrBusy.Code, Message: "2 backtests are under way"}
	for _, accept := range []string{"text/event-stream", "application/json"} {
		got := send(t, newAPI(&fake{err: busy}), "POST", "/api/v1/policy/backtest", `{"policy":{}}`, "Accept", accept)
		got.want(t, 429, "too_many_backtests")
		if got.Header.Get("Retry-After") != "10" {
			t.Errorf("%s: %v", accept, got.Header)
		}
	}
	got := send(t, newAPI(&fake{steps: 1, err: busy}), "POST", "/api/v1/policy/backtest", `{"policy":{}}`, "Accept", "text/event-stream")
	if !strings.Contains(got.text, "event: error\ndata: {") || !strings.Contains(got.text, `"code":"too_many_backtests"`) {
		t.Error(got.text)
	}
}
