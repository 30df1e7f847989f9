package pages_test

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/schedulemesh/schedulemesh/handlers/pages/internal/demo"
)

func TestWhatIfAnswersALinkAFormAndADraft(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	has(t, b.get("/what-if", 200), "Nothing is changed by asking", "Policy version 12")
	hasNot(t, b.get("/what-if", 200), "Could be taken")
	has(t, b.get("/what-if?pool=research-shared&priority=9&gpu=2", 200), "It would run after a preemption", "Could be taken", "Safe, and why", `value="9"`)
	html := b.read(b.do(http.MethodPost, "/what-if", url.Values{"pool": {"train-a100"}, "gpu": {"8"}, "draft": {"cross_pool_priority_threshold: 4"}}), 200)
	has(t, html, "Under version 12", "Under the draft", "It would not run.", "cross_pool_priority_threshold: 4")
	html = b.read(b.do(http.MethodPost, "/what-if", url.Values{"draft": {"cross_pool_priority_threshold: 4"}}), 200)
	has(t, html, "Tasks that wait", "Tasks that run", "takeable", "protected", "the same")
	if len(w.Done) != 0 {
		t.Errorf("asking did %q", w.Done)
	}
}

func TestWhatIfBeginsFromAQueuedTaskAndFromThePolicyEditor(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	has(t, b.get("/tasks/llama-70b-pretrain", 200), `href="/what-if?task=`)
	html := b.get("/what-if?task=llama-70b-pretrain", 200)
	has(t, html, `<option value="train-a100" selected`, `name="task" value="llama-70b-pretrain"`, "who preempted it before stays safe from it", "Could be taken")
	hasNot(t, b.get("/what-if?task=llama-7b-rlhf", 200), "who preempted it before") // it runs: one like it is asked about
	b.get("/what-if?task=gone", http.StatusNotFound)

	active, _ := w.Policy(t.Context(), "default")
	form := policyForm(active.Doc, "12")
	form.Set("min_preempt_score", "2.5")
	html = b.read(b.do(http.MethodPost, "/policy/what-if", form), 200)
	has(t, html, "\nmin_preempt_score: 2.5</textarea>", "Tasks that wait")
	form.Set("min_preempt_score", "-1")
	has(t, b.read(b.do(http.MethodPost, "/policy/what-if", form), 422), "Must be 0 or more")
}

func TestASuppositionThatIsWrongSaysWhere(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	for field, form := range map[string]url.Values{
		"pool":  {"priority": {"3"}},
		"gpu":   {"pool": {"batch"}, "gpu": {"two"}},
		"draft": {"draft": {"- a list"}},
	} {
		has(t, b.read(b.do(http.MethodPost, "/what-if", form), 422), `id="`+field+`-err"`, "It cannot be asked like this.")
	}
	has(t, b.read(b.do(http.MethodPost, "/what-if", url.Values{"draft": {"nonsense: 1"}}), 422), `id="draft-err"`, "Is not a field of a policy")
	b.heads = map[string]string{"HX-Request": "true", "HX-Target": "what-if-answer"}
	html := b.read(b.do(http.MethodPost, "/what-if", url.Values{"draft": {"a: ["}}), 200)
	has(t, html, `<div id="what-if-answer"`, "Not YAML")
	hasNot(t, html, "<html")
}
