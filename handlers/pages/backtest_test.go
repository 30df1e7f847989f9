package pages_test

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/schedulemesh/schedulemesh/handlers/pages/internal/demo"
)

func TestABacktestIsBegunFollowedAndShown(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	has(t, b.get("/policy", 200), `formaction="/policy/backtest/draft"`)
	active, _ := w.Policy(t.Context(), "default")
	form := policyForm(active.Doc, "12")
	form.Set("min_preempt_score", "2.5")
	has(t, b.read(b.do(http.MethodPost, "/policy/backtest/draft", form), 200), "\nmin_preempt_score: 2.5</textarea>", "Replay")
	has(t, b.read(b.do(http.MethodPost, "/policy/backtest/draft", url.Values{"draft": {"a: 1"}}), 200), "\na: 1</textarea>")

	has(t, b.post("/policy/backtest", url.Values{"draft": {"min_preempt_score: 2"}}), "Preemptions", "451", "+39", "Waiting, by priority", "8.0 and more", "once, by llama-7b-rlhf", "<polyline")
	html := b.post("/policy/backtest", url.Values{"draft": {"min_preempt_score: 2"}, "last": {"7 d"}})
	has(t, html, "Replaying…", "41,873 of 128,400 submissions", `hx-trigger="load delay:500ms"`)
	b.heads = map[string]string{"HX-Request": "true", "HX-Target": "backtest"}
	html = b.read(b.do(http.MethodGet, "/policy/backtest/done", nil), 200)
	has(t, html, `<div id="backtest"`, "done in 1.2 s")
	hasNot(t, html, "<html", "hx-get")
}

func TestABacktestThatIsWrongSaysWhere(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	for field, form := range map[string]url.Values{
		"draft": {"last": {"6 h"}},
		"last":  {"draft": {"min_preempt_score: 2"}, "last": {"a while"}},
	} {
		has(t, b.read(b.do(http.MethodPost, "/policy/backtest", form), 422), `id="`+field+`-err"`)
	}
	has(t, b.read(b.do(http.MethodPost, "/policy/backtest", url.Values{"draft": {"nonsense: 1"}}), 422), "Is not a field of a policy")
	b.get("/policy/backtest/gone", http.StatusNotFound)
}
