package pages_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/handlers/pages/internal/demo"
	"github.com/schedulemesh/schedulemesh/web"
)

// browser follows links and posts forms against a site, with its cookies.
type browser struct {
	t     *testing.T
	site  http.Handler
	jar   map[string]string
	heads map[string]string
}

func open(t *testing.T, w *demo.World) *browser {
	t.Helper()
	site := pages.New(w, w, w, pages.Options{Now: func() time.Time { return demo.Now }, Logger: slog.New(slog.DiscardHandler)})
	return &browser{t: t, site: site, jar: map[string]string{}, heads: map[string]string{}}
}

func (b *browser) do(method, path string, form url.Values) *http.Response {
	b.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r := httptest.NewRequest(method, "http://mesh.test"+path, body)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	for k, v := range b.heads {
		r.Header.Set(k, v)
	}
	for k, v := range b.jar {
		r.AddCookie(&http.Cookie{Name: k, Value: v})
	}
	w := httptest.NewRecorder()
	b.site.ServeHTTP(w, r.WithContext(pages.WithUser(r.Context(), "mei")))
	res := w.Result()
	for _, c := range res.Cookies() {
		b.jar[c.Name] = c.Value
		if c.MaxAge < 0 {
			delete(b.jar, c.Name)
		}
	}
	return res
}

func (b *browser) get(path string, status int) string {
	b.t.Helper()
	return b.read(b.do(http.MethodGet, path, nil), status)
}

func (b *browser) read(res *http.Response, status int) string {
	b.t.Helper()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	if res.StatusCode != status {
		b.t.Fatalf("status %d, want %d: %s", res.StatusCode, status, web.Cut(string(body), 400))
	}
	return string(body)
}

// post sends a form and follows where it leads.
func (b *browser) post(path string, form url.Values) string {
	b.t.Helper()
	res := b.do(http.MethodPost, path, form)
	if res.StatusCode != http.StatusSeeOther {
		b.t.Fatalf("POST %s: status %d, want a redirect: %s", path, res.StatusCode, web.Cut(b.read(res, res.StatusCode), 600))
	}
	return b.get(res.Header.Get("Location"), http.StatusOK)
}

func has(t *testing.T, html string, texts ...string) {
	t.Helper()
	for _, s := range texts {
		if !strings.Contains(html, s) {
			t.Errorf("%q is missing in the page", s)
		}
	}
}

func hasNot(t *testing.T, html string, texts ...string) {
	t.Helper()
	for _, s := range texts {
		if strings.Contains(html, s) {
			t.Errorf("%q must not be in the page", s)
		}
	}
}

// every page that can be read, with a text of each.
var every = map[string]string{
	"/":                                   "Queue of",
	"/pools":                              "research-shared",
	"/pools/train-a100":                   "borrowed from",
	"/pools/new":                          "Create a pool",
	"/pools/train-a100/edit":              "At least what is held and lent out",
	"/pools/train-a100/delete":            "still hold or wait",
	"/tasks":                              "llama-7b-rlhf",
	"/tasks?state=all&pool=batch&q=sweep": "sweep-lr-01",
	"/tasks?label=training_stage%3Drlhf":  "llama-7b-rlhf",
	"/tasks/new":                          "Submit a task",
	"/tasks/new?like=tok-bench-9":         "tok-bench-9",
	"/tasks/llama-70b-pretrain":           "Waiting for 8 GPU; 5 are free on one node.",
	"/tasks/llama-7b-rlhf?tab=log":        "step 1839",
	"/tasks/llama-70b-pretrain?tab=state": "step-1840",
	"/tasks/llama-70b-pretrain?tab=spec":  "actor_class",
	"/tasks/llama-70b-pretrain/cancel":    "Cancel llama-70b-pretrain?",
	"/tasks/llama-70b-pretrain/preempt":   "It is queued now, so this may be refused.",
	"/tasks/llama-70b-pretrain/complete":  "Complete it",
	"/tasks/llama-70b-pretrain/priority":  "New priority",
	"/policy":                             "training_stage",
	"/policy?format=text":                 "same_pool_priority_threshold: 1.0",
	"/policy/versions":                    "RLHF before SFT",
	"/policy/versions/5":                  "What bringing it back would change",
	"/policy/backtest":                    "Nothing that runs is touched",
	"/policy/backtest/done":               "Waiting, by priority",
	"/policy/backtest/long":               "Replaying",
	"/nodes":                              "driver update",
	"/what-if":                            "Nothing is changed by asking",
	"/what-if?draft=cross_pool_priority_threshold:+4": "Tasks that run",
	"/policy/versions/5/rollback":                     "Bring back version 5?",
	"/preemptions":                                    "asked for by hand",
	"/preemptions?reason=label_based_preemption":      "llama-70b-pretrain",
	"/preemptions/481":                                "raised to 0.5 by the label rule",
	"/agents":                                         "llama-7b-rlhf.1",
	"/agents?q=warm-spare":                            "idle",
	"/agents/warm-spare-1/delete":                     "Remove the agent warm-spare-1?",
	"/events":                                         "policy.changed",
	"/jump?q=llama":                                   "Found for",
	"/clusters":                                       "asked again in 8 s",
	"/clusters?q=gpu&state=healthy":                   "1 of 4 clusters",
	"/clusters/new":                                   "never the token itself",
	"/clusters/gpu_cluster":                           "1 of 7 nodes is dead",
	"/clusters/gpu-east?hours=6":                      "No jobs go there.",
	"/clusters/gpu_cluster/edit":                      "It is in clusters.yaml.",
	"/clusters/gpu_cluster/hold":                      "Hold the cluster gpu_cluster?",
	"/clusters/local/resume":                          "Jobs may go there again",
	"/clusters/cpu_cluster/remove":                    "Remove the cluster cpu_cluster?",
	"/jobs":                                           "sub_train_8f31",
	"/jobs?state=FAILED&cluster=cpu_cluster":          "its command ended with exit code 1",
	"/jobs?from=outside":                              "raysubmit_9aYk2",
	"/jobs/new":                                       "with absolute paths",
	"/jobs/new?like=sub_tok_9":                        "/data/vocab.json",
	"/jobs/sub_train_8f31":                            "Why here",
	"/jobs/sub_eval_70b":                              "Waits, first in line",
	"/jobs/sub_sweep_lr_03":                           "Its cluster is silent",
	"/jobs/sub_tok_9":                                 "Submit again",
	"/jobs/sub_train_8f31/log?offset=0":               "from 0 bytes to",
	"/jobs/sub_train_8f31/stop":                       "Stop sub_train_8f31?",
}

var (
	inlineStyle  = regexp.MustCompile(`(?i)<style|\sstyle\s*=|hx-on[:-]|\son[a-z]+\s*=\s*["']|javascript:`)
	inlineScript = regexp.MustCompile(`(?is)<script[^>]*>(.*?)</script>`)
	tag          = regexp.MustCompile(`<[^>]*>`)
)

// strict asserts what the content security policy needs: our own files only, nothing inline.
func strict(t *testing.T, res *http.Response, html string) {
	t.Helper()
	csp := res.Header.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"} {
		if !strings.Contains(csp, part) {
			t.Errorf("Content-Security-Policy lacks %s: %q", part, csp)
		}
	}
	if strings.Contains(csp, "unsafe") {
		t.Errorf("Content-Security-Policy allows something unsafe: %q", csp)
	}
	for _, tg := range tag.FindAllString(html, -1) {
		if m := inlineStyle.FindString(tg); m != "" {
			t.Errorf("inline style or script %q in %s", m, web.Cut(tg, 200))
		}
	}
	for _, m := range inlineScript.FindAllStringSubmatch(html, -1) {
		if strings.TrimSpace(m[1]) != "" {
			t.Errorf("inline script: %s", web.Cut(m[1], 100))
		}
	}
}

func TestEveryPageIsThereAndKeepsThePolicyStrict(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	for path, text := range every {
		t.Run(path, func(t *testing.T) {
			b := &browser{t: t, site: b.site, jar: map[string]string{}}
			res := b.do(http.MethodGet, path, nil)
			html := b.read(res, http.StatusOK)
			has(t, html, text, "<h1", `<main id="main"`, `lang="en"`, "mei", `sse-connect="/live"`)
			if strings.Count(html, "<h1") != 1 {
				t.Errorf("%d main headings", strings.Count(html, "<h1"))
			}
			if strings.Count(html, "<table") != strings.Count(html, "<caption")+strings.Count(html, `<table class="rules"`) {
				t.Error("a table has no caption")
			}
			if res.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("Cache-Control %q", res.Header.Get("Cache-Control"))
			}
			strict(t, res, html)
			ids := map[string]bool{}
			for _, m := range regexp.MustCompile(`\sid="([^"]*)"`).FindAllStringSubmatch(html, -1) {
				if ids[m[1]] {
					t.Errorf("the id %q is there twice", m[1])
				}
				ids[m[1]] = true
			}
			for _, m := range regexp.MustCompile(`<label for="([^"]*)"`).FindAllStringSubmatch(html, -1) {
				if !ids[m[1]] {
					t.Errorf("a label is for %q, which is not there", m[1])
				}
			}
		})
	}
}

func TestAnEmptyProductSaysWhatToDoNext(t *testing.T) {
	b := open(t, demo.Empty(demo.Now))
	has(t, b.get("/", 200), "No pools yet: create one", "curl -X POST", "/pools/new")
	has(t, b.get("/pools", 200), "No pools yet: create one")
	has(t, b.get("/tasks", 200), "no pool for them", "/pools/new")
	has(t, b.get("/tasks/new", 200), "There is no pool yet.")
	has(t, b.get("/preemptions", 200), "Nobody had to make way yet", "preemption/evaluate")
	has(t, b.get("/agents", 200), "No agents", "/api/v1/agents")
	has(t, b.get("/events", 200), "Nothing has happened yet")
	has(t, b.get("/policy", 200), "There are no label rules")
	has(t, b.get("/clusters", 200), "No clusters yet: name the first", "head_address:", "/clusters/new")
	has(t, b.get("/jobs", 200), "no cluster for them", "/clusters/new")
	has(t, b.get("/jobs?from=outside", 200), "Nobody else uses the clusters")
	has(t, b.get("/jobs/new", 200), "There is no cluster yet.")
}

func TestHostileNamesAreTextAndNothingElse(t *testing.T) {
	b := open(t, demo.Busy(demo.Now).Nasty())
	for _, path := range []string{"/", "/tasks", "/pools", "/agents", "/jump?q=a", "/clusters", "/jobs?state=all", "/jobs?from=outside"} {
		res := b.do(http.MethodGet, path, nil)
		html := b.read(res, 200)
		strict(t, res, html)
		hasNot(t, html, "<script>alert")
	}
	for _, id := range []string{`<script>alert("x")</script>`, `quote"s'and&amps`, "مهمة-تدريب-النموذج", "训练任务-🚀-第十二号", "slash/and ?query#hash%2F", strings.Repeat("🦙", 60)} {
		for _, tab := range []string{"", "?tab=log", "?tab=state", "?tab=spec"} {
			res := b.do(http.MethodGet, "/tasks/"+url.PathEscape(id)+tab, nil)
			html := b.read(res, 200)
			strict(t, res, html)
			has(t, html, "train-a100")
			if len(html) > 300_000 {
				t.Errorf("%s%s: a page of %d bytes", id, tab, len(html))
			}
		}
		for _, path := range []string{"/jobs/", "/clusters/"} {
			for _, more := range []string{"", map[string]string{"/jobs/": "/stop", "/clusters/": "/edit"}[path]} {
				res := b.do(http.MethodGet, path+url.PathEscape(id)+more, nil)
				html := b.read(res, 200)
				strict(t, res, html)
				hasNot(t, html, "<script>alert", "<blink")
				if more != "/edit" && len(html) > 300_000 { // what is edited is there as a whole
					t.Errorf("%s%s%s: a page of %d bytes", path, id, more, len(html))
				}
			}
		}
		res := b.do(http.MethodPost, "/tasks/"+url.PathEscape(id)+"/cancel", url.Values{})
		if res.StatusCode != http.StatusSeeOther {
			t.Errorf("cancelling %q: status %d", id, res.StatusCode)
		}
	}
}

func TestTheNamespaceIsKeptThroughLinksAndForms(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	html := b.get("/tasks?namespace=research", 200)
	has(t, html, `href="/pools?namespace=research"`, `sse-connect="/live?namespace=research"`, `<input type="hidden" name="namespace" value="research"`, `action="/tasks/bulk?namespace=research"`)
	links := regexp.MustCompile(`href="(/(?:tasks|pools|policy|preemptions|agents|events|what-if|nodes|jobs|clusters)[^"]*)"`).FindAllStringSubmatch(html, -1)
	if len(links) < 50 {
		t.Fatalf("only %d links", len(links))
	}
	for _, m := range links {
		if !strings.Contains(m[1], "namespace=research") {
			t.Errorf("%s loses the namespace", m[1])
		}
	}
	hasNot(t, b.get("/tasks?namespace=default", 200), "namespace=default")
}

func TestOnlyTheFragmentIsSentToHtmx(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	for path, id := range map[string]string{"/": "overview", "/tasks": "tasks", "/pools": "pools", "/pools/train-a100": "pool", "/tasks/llama-70b-pretrain": "timeline", "/policy": "policy-head", "/preemptions": "preemptions", "/agents": "agents", "/events": "feed", "/policy/versions": "versions", "/clusters": "clusters", "/clusters/gpu_cluster": "cluster", "/jobs": "jobs", "/jobs?from=outside": "jobs", "/jobs/sub_train_8f31": "timeline"} {
		b.heads = map[string]string{"HX-Request": "true", "HX-Target": id, "HX-Trigger": id}
		html := b.get(path, 200)
		if !strings.HasPrefix(strings.TrimSpace(html), `<div id="`+id+`"`) {
			t.Errorf("%s: the fragment begins with %s", path, web.Cut(html, 80))
		}
		hasNot(t, html, "<html", "<main")
		has(t, html, `hx-get="`+path+`"`, "sse:")
		b.heads["HX-History-Restore-Request"] = "true"
		has(t, b.get(path, 200), "<html")
	}
	b.heads = map[string]string{"HX-Request": "true", "HX-Target": "nav"}
	has(t, b.get("/policy", 200), `aria-current="page"`)
	hasNot(t, b.get("/tasks/gone", 200), "Not found", "<html") // the frame alone is enough for it
}

func TestLiveFragmentsHoldNothingThatIsTypedInto(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	typed := regexp.MustCompile(`<(textarea|select)|<input(?:[^>]*type="(text|search|password|number)")`)
	for path, ids := range map[string][]string{"/": {"overview"}, "/tasks": {"tasks"}, "/pools/train-a100": {"pool"}, "/tasks/llama-70b-pretrain": {"task-head", "timeline", "task-side"}, "/policy": {"policy-head"}, "/preemptions": {"preemptions"}, "/agents": {"agents"},
		"/clusters": {"clusters"}, "/clusters/gpu_cluster": {"cluster"}, "/jobs": {"jobs"}, "/jobs/sub_train_8f31": {"job-head", "timeline", "job-side"}} {
		for _, id := range ids {
			b.heads = map[string]string{"HX-Request": "true", "HX-Target": id}
			if m := typed.FindString(b.get(path, 200)); m != "" {
				t.Errorf("%s, #%s holds %s", path, id, m)
			}
		}
	}
}

func TestTasksAreFilteredAndPaged(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	html := b.get("/tasks?state=failed", 200)
	has(t, html, "tok-bench-9", "1 of ")
	hasNot(t, html, "llama-7b-rlhf")
	html = b.get("/tasks?q=eval-mmlu&pool=batch", 200)
	has(t, html, "eval-mmlu-001", "Next page", "cursor=50", `value="eval-mmlu"`)
	hasNot(t, html, "eval-mmlu-002", "First page")
	html = b.get("/tasks?q=eval-mmlu&pool=batch&cursor=50", 200)
	has(t, html, "First page", `href="/tasks?pool=batch&amp;q=eval-mmlu"`)
	hasNot(t, html, "Next page")
	html = b.get("/tasks?q=nothing-like-this", 200)
	has(t, html, "No task is like that", "state=all")
	b.heads = map[string]string{"HX-Request": "true", "HX-Target": "tasks"}
	res := b.do(http.MethodGet, "/tasks?q=eval&state=live&pool=&label=", nil)
	if got := res.Header.Get("HX-Push-Url"); got != "/tasks?q=eval" {
		t.Errorf("HX-Push-Url %q", got)
	}
	b.heads["HX-Trigger"] = "tasks"
	if got := b.do(http.MethodGet, "/tasks?q=eval", nil).Header.Get("HX-Push-Url"); got != "" {
		t.Errorf("a live refresh pushes %q into the history", got)
	}
}

func submission() url.Values {
	return url.Values{
		"task_id": {"hello"}, "pool": {"batch"}, "actor_class": {"trainers.llama:Trainer"}, "actor_kwargs": {`{"lr": 0.001}`}, "entry_method": {"run"},
		"cpu": {"0.5"}, "memory": {"16 GiB"}, "resources": {"tpu=4"}, "priority": {"7.5"}, "labels": {`stage=rlhf, "odd=a,b"`}, "estimated_duration": {"15 min"},
		"on_insufficient": {"queue"}, "on_preempted": {"requeue"}, "on_failure": {"stop"},
	}
}

func TestASubmittedTaskIsShownWithAMessageOnce(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	html := b.post("/tasks/new?namespace=research", submission())
	has(t, html, "hello is submitted.", `<h1><bdi>hello</bdi></h1>`)
	want := "submit hello in batch of research: 0.5 cpu · 16 GiB · 4 tpu, priority 7.5, labels map[odd:a,b stage:rlhf], entry run, estimate 15m0s"
	if len(w.Done) != 1 || w.Done[0] != want {
		t.Errorf("done %q, want %q", w.Done, want)
	}
	hasNot(t, b.get("/tasks/hello", 200), "hello is submitted.")
}

func TestASubmissionThatIsWrongKeepsWhatWasTyped(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	form := submission()
	form.Set("actor_kwargs", "{lr: 0.001}")
	form.Set("cpu", "-2")
	form.Set("memory", "lots")
	form.Set("task_id", "")
	form.Set("labels", `broken"quote, a`)
	html := b.read(b.do(http.MethodPost, "/tasks/new", form), http.StatusUnprocessableEntity)
	has(t, html, "Give the task a name", "Not JSON, at line 1", "-2 is negative", "&#34;lots&#34; is not an amount", "{lr: 0.001}", `value="-2"`, `value="lots"`, "need another look", `aria-invalid="true"`)
	if len(w.Done) != 0 {
		t.Errorf("done %q", w.Done)
	}
	form = submission()
	form.Set("pool", "gone")
	has(t, b.read(b.do(http.MethodPost, "/tasks/new", form), 422), "There is no pool gone.", `id="pool-err"`, `value="gone" selected`)
	form = submission()
	form.Set("task_id", "llama-7b-rlhf")
	has(t, b.read(b.do(http.MethodPost, "/tasks/new", form), 422), "A live task is called", `value="llama-7b-rlhf"`)
}

func TestARefusalIsShownAtItsFieldOrOnTop(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	w.Refuse = &pages.Refusal{ErrorCode: "invalid", Message: "three things", ByField: map[string]string{
		"resources.cpu": "No node has that many.", "entry.method": "It begins with an underscore.", "ray_options.name": "It is taken.",
	}}
	html := b.read(b.do(http.MethodPost, "/tasks/new", submission()), 422)
	for _, want := range []string{`id="cpu-err">No node has that many.`, `id="entry_method-err">It begins with`, `<span>ray_options.name: It is taken.</span>`} {
		has(t, html, want)
	}
}

func TestFormsShowEveryFieldTheyAreSaidToHave(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	for path, fields := range map[string][]string{"/tasks/new": web.SubmitFields, "/pools/new": web.PoolFields, "/clusters/new": web.ClusterFields, "/jobs/new": web.JobFields, "/policy": web.DefaultPolicy().Form().Fields()} {
		html := b.get(path, 200)
		for _, name := range fields {
			if name != "label_preemption_rules" { // a table, whose cells have names of their own
				has(t, html, `name="`+name+`"`)
			}
		}
	}
}

func TestATaskIsEndedOnlyAfterAsking(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	html := b.get("/tasks/vision-03/complete", 200)
	has(t, html, `method="post" action="/tasks/vision-03/complete"`, "No, go back")
	if len(w.Done) != 0 {
		t.Fatalf("asking did %q", w.Done)
	}
	b.heads = map[string]string{"HX-Request": "true", "HX-Target": "dialog"}
	dialog := b.get("/tasks/vision-03/complete", 200)
	has(t, dialog, "<form")
	hasNot(t, dialog, "<html")
	b.heads = nil
	has(t, b.post("/tasks/vision-03/complete", url.Values{}), "vision-03 is being completed.")
	has(t, b.post("/tasks/vision-03/complete", url.Values{}), "vision-03 is completed already.", "That did not work.")
}

func TestSeveralTasksAreEndedAtOnceAfterAsking(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	form := url.Values{"action": {"cancel"}, "id": {"vision-03", "reward-07", "tok-bench-9"}, "back": {"/tasks?pool=batch"}}
	html := b.read(b.do(http.MethodPost, "/tasks/bulk", form), 200)
	has(t, html, "Cancel 3 tasks?", "vision-03", `name="sure" value="yes"`)
	if len(w.Done) != 0 {
		t.Fatalf("asking did %q", w.Done)
	}
	form.Set("sure", "yes")
	html = b.post("/tasks/bulk", form)
	has(t, html, "2 tasks cancelled.", "1 could not be.", "tok-bench-9 is failed already.", `option value="batch" selected`)
	has(t, b.post("/tasks/bulk", url.Values{"action": {"cancel"}}), "No task is ticked")
	has(t, b.post("/tasks/bulk", url.Values{"action": {"explode"}, "id": {"x"}}), "Choose what to do")
}

func TestAFormNeverLeadsToAnotherSite(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	for _, to := range []string{"https://evil.test/", "//evil.test", `/\evil.test`, "javascript:alert(1)", "/\tevil", "tasks"} {
		res := b.do(http.MethodPost, "/tasks/bulk", url.Values{"action": {"cancel"}, "back": {to}})
		if got := res.Header.Get("Location"); got != "/tasks" {
			t.Errorf("back %q leads to %q", to, got)
		}
	}
}

func TestAPriorityIsChanged(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	has(t, b.post("/tasks/vision-03/priority", url.Values{"priority": {"8"}}), "is 8.0 now", "priority <b>8.0</b>")
	html := b.read(b.do(http.MethodPost, "/tasks/vision-03/priority", url.Values{"priority": {"high"}}), 422)
	has(t, html, "&#34;high&#34; is not a number.", `value="high"`)
}

func TestAPoolIsCreatedEditedAndDeleted(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	has(t, b.post("/pools/new", url.Values{"name": {"night/shift"}, "cpu": {"12.0005"}, "memory": {"1.5 GiB"}, "labels": {"tier=batch"}}), "The pool night/shift is there.", "Nobody uses this pool")
	if want := "create pool night/shift of default on local: 12.001 cpu · 1.5 GiB"; w.Done[0] != want {
		t.Errorf("did %q, want %q", w.Done[0], want)
	}
	html := b.read(b.do(http.MethodPost, "/pools/new", url.Values{"name": {"batch"}, "gpu": {"4"}}), 422)
	has(t, html, "A pool is called that already.", `value="batch"`, `value="4"`)
	has(t, b.read(b.do(http.MethodPost, "/pools/new", url.Values{"name": {"none"}}), 422), "Give the pool some capacity")
	has(t, b.get("/pools/batch/edit", 200), `value="32"`)
	has(t, b.post("/pools/batch/edit", url.Values{"gpu": {"40"}}), "The pool is changed.")
	has(t, b.post("/pools/batch/delete", url.Values{}), "still has live tasks")
	has(t, b.post("/pools/night%2Fshift/delete", url.Values{}), "The pool night/shift is deleted.")
}

func TestAPoolsPageShowsItsPlacementGroups(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	html := b.get("/pools/research-shared", 200)
	has(t, html, `<h2 id="h-groups">Placement groups</h2>`, "7 · 1 task in line for one · 31 made · 118 × reused · 24 removed", "Its groups reserve 16 gpu", "in 9 gpu",
		"occupied, then removed", "4 bundles, SPREAD", "gpu-02 and 3 more", "A reserved placement group could not be made.", "It needs 16 gpu · 128 cpu · 1 TiB on one machine.", `href="/tasks/rollout-113"`, `href="/agents?q=warm-spare-1"`)
	if at := strings.Index(html, `<div id="pool"`); at < 0 || strings.Index(html, "h-groups") < at {
		t.Error("the panel is not part of what is drawn again when something changes")
	}
	has(t, b.get("/tasks/reward-07", 200), "<dt>Placement group</dt>", `href="/pools/research-shared#h-groups"`, "goes into a reserved placement group that is there")
	for _, path := range []string{"/pools/edge", "/tasks/llama-7b-rlhf"} {
		if html := b.get(path, 200); strings.Contains(html, "h-groups") || strings.Contains(html, "<dt>Placement group</dt>") {
			t.Errorf("%s shows placement groups that are not there", path)
		}
	}
	w.Refuse = &pages.Refusal{ErrorCode: "invalid", Message: "It cannot be done.", ByField: map[string]string{"pg_pool_config": "max_dynamic_pgs is 5000: must be 0 to 1000."}}
	typed := `{"enable": true, "max_dynamic_pgs": 5000}`
	html = b.read(b.do(http.MethodPost, "/pools/research-shared/edit", url.Values{"gpu": {"4"}, "pg_pool_config": {typed}}), 422)
	has(t, html, "max_dynamic_pgs is 5000: must be 0 to 1000.", "&#34;max_dynamic_pgs&#34;: 5000")
}

// policyForm is the editor as a browser would post it.
func policyForm(d web.PolicyDoc, base string) url.Values {
	v := url.Values{"base": {base}, "format": {"form"}}
	f := d.Form()
	for k, s := range f.Values {
		if s != "" {
			v.Set(k, s)
		}
	}
	for _, row := range f.Rules {
		v.Add("rule_key", row.Key)
		v.Add("rule_value", row.Value)
		v.Add("rule_over", row.Over)
	}
	return v
}

func TestAPolicyIsReviewedThenSavedWithAComment(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	active, err := w.Policy(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	form := policyForm(active.Doc, "12")
	form.Set("cross_pool_priority_threshold", "4.5")
	form.Set("protected_pools", "train-a100, nobody")
	html := b.read(b.do(http.MethodPost, "/policy/review", form), 200)
	has(t, html, "- cross_pool_priority_threshold: 5.0", "+ cross_pool_priority_threshold: 4.5", "Save version 13", "Nobody has a pool called", "Author: <bdi>mei</bdi>")
	if len(w.Done) != 0 {
		t.Fatalf("the review did %q", w.Done)
	}
	text := regexp.MustCompile(`name="text" value="([^"]*)"`).FindStringSubmatch(html)
	if text == nil {
		t.Fatal("the review does not carry the draft")
	}
	save := url.Values{"base": {"12"}, "text": {unescape(text[1])}, "comment": {""}}
	has(t, b.read(b.do(http.MethodPost, "/policy", save), 422), "Say why in one line")
	has(t, b.read(b.do(http.MethodPost, "/policy/edit", save), 200), `value="4.5"`)
	save.Set("comment", "Let it borrow sooner")
	has(t, b.post("/policy", save), "Version 13 is active.", "Let it borrow sooner", `value="4.5"`)
	if want := "save policy on 12 by mei: Let it borrow sooner"; w.Done[0] != want {
		t.Errorf("did %q, want %q", w.Done[0], want)
	}
	// whoever began before that is told, and keeps their draft
	html = b.read(b.do(http.MethodPost, "/policy", save), http.StatusConflict)
	has(t, html, "Somebody was faster.", "version 13 was saved by mei meanwhile", "Save version 14")
}

func TestAPolicyThatIsWrongSaysWhereAndKeepsWhatWasTyped(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	active, _ := w.Policy(t.Context(), "default")
	form := policyForm(active.Doc, "12")
	form.Set("cross_pool_priority_threshold", "-2")
	form.Set("remaining_time_weight", "NaN")
	form.Add("rule_key", "training_stage")
	form.Add("rule_value", "pretraining")
	form.Add("rule_over", "rlhf")
	html := b.read(b.do(http.MethodPost, "/policy/review", form), 422)
	has(t, html, "Must be 0 or more; 5.0 is usual.", `value="-2"`, "&#34;NaN&#34; is not a number.", "go round in a circle: pretraining ≻ rlhf ≻ pretraining", "It cannot be saved like this.")
	text := url.Values{"base": {"12"}, "format": {"text"}, "text": {"min_preempt_score: 1\nmin_premeet_score: 2\n"}}
	html = b.read(b.do(http.MethodPost, "/policy/review", text), 422)
	has(t, html, "Not a policy in YAML", "min_premeet_score", "min_preempt_score: 1")
	text.Set("text", `{"min_preempt_score": 1, "extra": 2}`)
	has(t, b.read(b.do(http.MethodPost, "/policy/review", text), 422), "unknown field &#34;extra&#34;")
	text.Set("text", "label_preemption_rules:\n  tier:\n    premium: [batch]\n")
	has(t, b.read(b.do(http.MethodPost, "/policy/review", text), 200), "premium may preempt batch")
}

func TestThePreviewFollowsTheForm(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	active, _ := w.Policy(t.Context(), "default")
	form := policyForm(active.Doc, "12")
	form.Set("aggressiveness", "high")
	b.heads = map[string]string{"HX-Request": "true", "HX-Target": "policy-preview"}
	html := b.read(b.do(http.MethodPost, "/policy/preview", form), 200)
	has(t, html, `<div id="policy-preview"`, "+ same_pool_priority_threshold: 0.5", "+ label_priority_threshold: 0.1", "rlhf may preempt")
	hasNot(t, html, "<html")
}

func TestAnOldVersionIsBroughtBack(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	has(t, b.get("/policy/versions/5/rollback", 200), "Bring back version 5?", `name="base" value="12"`, `name="comment"`)
	html := b.post("/policy/versions/5/rollback", url.Values{"base": {"12"}})
	has(t, html, "Version 13 is active, with the content of version 5.", "Back to version 5")
	if want := "rollback to 5 on 12 by mei"; w.Done[0] != want {
		t.Errorf("done %q, want %q", w.Done[0], want)
	}
	// Somebody who still looks at version 12 hears what changed, keeps the comment, and may insist.
	html = b.read(b.do(http.MethodPost, "/policy/versions/3/rollback", url.Values{"base": {"12"}, "comment": {"too eager"}}), http.StatusConflict)
	has(t, html, "Somebody was faster", "You began with version 12; version 13 was saved by mei meanwhile", "from version 12 to 13", `value="too eager"`, `name="base" value="13"`)
	has(t, b.post("/policy/versions/3/rollback", url.Values{"base": {"13"}, "comment": {"too eager"}}), "Version 14 is active", "too eager")
	b.get("/policy/versions/99", http.StatusNotFound)
	b.get("/policy/versions/none", http.StatusNotFound)
}

func TestAnAgentIsRemoved(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	has(t, b.post("/agents/warm-spare-1/delete", url.Values{"force": {"yes"}}), "is being removed")
	if want := "delete agent warm-spare-1 force true"; w.Done[0] != want {
		t.Errorf("did %q, want %q", w.Done[0], want)
	}
}

func TestTheJumpBoxLeadsToWhatIsMeant(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	for q, to := range map[string]string{"vision-03": "/tasks/vision-03", "train-a100": "/pools/train-a100", "vision": "/tasks/vision-03", "": "/"} {
		if got := b.do(http.MethodGet, "/jump?q="+q, nil).Header.Get("Location"); got != to {
			t.Errorf("%q leads to %q, want %q", q, got, to)
		}
	}
	has(t, b.get("/jump?q=zzz", 200), "Nothing is called like that")
	b.heads = map[string]string{"HX-Request": "true", "HX-Target": "jump-found"}
	html := b.get("/jump?q=rollout", 200)
	has(t, html, `href="/tasks/rollout-113"`, "launching in research-shared")
	hasNot(t, html, "<html")
}

func TestALogIsFollowedFromWhereItEnded(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	html := b.get("/tasks/llama-7b-rlhf?tab=log", 200)
	more := regexp.MustCompile(`hx-get="([^"]*/log[^"]*)"`).FindStringSubmatch(html)
	if more == nil {
		t.Fatal("nothing asks for more of the log")
	}
	b.heads = map[string]string{"HX-Request": "true"}
	got := b.get(unescape(more[1]), 200)
	if !strings.HasPrefix(got, "<span hx-get=") {
		t.Errorf("more of the log begins with %q", web.Cut(got, 60))
	}
	got = b.get("/tasks/llama-7b-rlhf/log?stream=stdout&offset=0", 200)
	if !strings.HasPrefix(got, "2026-11-21 13:31:00 step 1440") {
		t.Errorf("a log must come byte for byte, it begins with %q", web.Cut(got, 60))
	}
	b.heads = nil
	if to := b.do(http.MethodGet, "/tasks/llama-7b-rlhf/log?offset=0", nil).Header.Get("Location"); to != "/tasks/llama-7b-rlhf?tab=log" {
		t.Errorf("without htmx it leads to %q", to)
	}
	has(t, b.get("/tasks/etl-nightly?tab=log&stream=stderr", 200), `aria-label="stderr"`)
}

func TestWhatIsNotThereSaysWhatToDo(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	for _, path := range []string{"/tasks/gone", "/tasks/gone?tab=log", "/tasks/gone/cancel", "/pools/gone", "/pools/gone/edit", "/preemptions/9999"} {
		res := b.do(http.MethodGet, path, nil)
		html := b.read(res, http.StatusNotFound)
		has(t, html, "Not found", "What to do", "another namespace")
		strict(t, res, html)
	}
	has(t, b.get("/nope", http.StatusNotFound), "There is no such page", "/nope")
	has(t, b.read(b.do(http.MethodPost, "/events", url.Values{}), http.StatusMethodNotAllowed), "not asked like that")
	has(t, b.read(b.do(http.MethodPost, "/tasks/gone/cancel", url.Values{}), http.StatusNotFound), "Not found")
}

func TestFailuresOfOursAreNotExplainedToStrangers(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	w.Fail = errors.New("password=hunter2 in a connection string")
	html := b.get("/tasks", http.StatusInternalServerError)
	has(t, html, "Something went wrong here", "reference")
	hasNot(t, html, "hunter2")
	w.Fail = &pages.Refusal{ErrorCode: "database_unavailable", Message: "The database does not answer."}
	has(t, b.get("/tasks", http.StatusServiceUnavailable), "The database does not answer.", "readyz")
	w.Fail, w.Refuse = nil, errors.New("hunter2")
	html = b.post("/tasks/vision-03/cancel", url.Values{})
	has(t, html, "Something went wrong on our side")
	hasNot(t, html, "hunter2")
	html = b.read(b.do(http.MethodPost, "/tasks/new", submission()), 422)
	has(t, html, "Something went wrong on our side", `value="hello"`)
}

func TestFormsOfOtherSitesAreRefused(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	for _, head := range []map[string]string{{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "", "Origin": "https://evil.test"}} {
		b.heads = head
		has(t, b.read(b.do(http.MethodPost, "/tasks/vision-03/cancel", url.Values{}), http.StatusForbidden), "another site", "Nothing was changed")
	}
	if len(w.Done) != 0 {
		t.Errorf("did %q", w.Done)
	}
}

func TestFormsThatAreTooLargeAreRefused(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	b.read(b.do(http.MethodPost, "/tasks/new", url.Values{"actor_kwargs": {strings.Repeat("x", 17<<20)}}), http.StatusRequestEntityTooLarge)
}

func TestHeadIsAnsweredLikeGet(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	b.read(b.do(http.MethodHead, "/", nil), http.StatusOK)
	b.read(b.do(http.MethodHead, "/tasks/gone", nil), http.StatusNotFound)
}

func TestSignInIsBareAndStrict(t *testing.T) {
	rec := httptest.NewRecorder()
	pages.SignIn(rec, httptest.NewRequest(http.MethodGet, "/sign-in", nil), http.StatusUnauthorized, web.SignIn{Action: "/sign-in", Next: "/tasks?q=a&b", Problem: "No such token."})
	html := rec.Body.String()
	has(t, html, "No such token.", `action="/sign-in"`, `value="/tasks?q=a&amp;b"`, `type="password"`)
	hasNot(t, html, "sse-connect", "<nav")
	strict(t, rec.Result(), html)
	if rec.Code != http.StatusUnauthorized {
		t.Errorf("status %d", rec.Code)
	}
}

// follow reads a live stream's event names until it ends.
func follow(ctx context.Context, site http.Handler) (<-chan string, *ending) {
	r, w := io.Pipe()
	done := &ending{make(chan struct{})}
	go func() {
		defer close(done.ended)
		defer w.Close()
		site.ServeHTTP(&pipeWriter{header: http.Header{}, w: w}, httptest.NewRequest(http.MethodGet, "/live", nil).WithContext(ctx))
	}()
	names := make(chan string, 100)
	go func() {
		defer close(names)
		s := bufio.NewScanner(r)
		for s.Scan() {
			if name, ok := strings.CutPrefix(s.Text(), "event: "); ok {
				names <- name
			}
		}
	}()
	return names, done
}

type ending struct{ ended chan struct{} }

type pipeWriter struct {
	header http.Header
	w      io.Writer
}

func (p *pipeWriter) Header() http.Header         { return p.header }
func (p *pipeWriter) Write(b []byte) (int, error) { return p.w.Write(b) }
func (p *pipeWriter) WriteHeader(int)             {}
func (p *pipeWriter) Flush()                      {}

func TestTheLiveStreamTellsTheLastChangeToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := demo.Busy(demo.Now)
		site := pages.New(w, w, w, pages.Options{Quiet: 400 * time.Millisecond})
		ctx, cancel := context.WithCancel(t.Context())
		names, done := follow(ctx, site)
		synctest.Wait()
		for range 10 {
			w.Tell(pages.Tasks)
		}
		w.Tell(pages.Policy)
		synctest.Wait()
		got := drain(names)
		if strings.Join(got, " ") != "tasks policy" {
			t.Errorf("at once: %v, want each topic once", got)
		}
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if got := drain(names); strings.Join(got, " ") != "tasks" {
			t.Errorf("after a while: %v, want the tasks once more for what came in between", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := drain(names); len(got) != 0 {
			t.Errorf("nothing changed, yet %v", got)
		}
		cancel()
		<-done.ended
		synctest.Wait()
		if n := w.Listeners(); n != 0 {
			t.Errorf("%d still listen", n)
		}
	})
}

func drain(c <-chan string) []string {
	var out []string
	for {
		select {
		case s := <-c:
			out = append(out, s)
		default:
			return out
		}
	}
}

func TestTheLiveStreamIsAnEventStreamOverHTTP(t *testing.T) {
	w := demo.Busy(demo.Now)
	server := httptest.NewServer(pages.New(w, w, w, pages.Options{}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/live", nil)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got := res.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("Content-Type %q", got)
	}
	lines := bufio.NewReader(res.Body)
	first, err := lines.ReadString('\n')
	if err != nil || first != "retry: 1000\n" {
		t.Fatalf("first line %q, %v", first, err)
	}
	w.Tell(pages.Pools)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == "event: pools\n" {
			return
		}
	}
}

func unescape(s string) string {
	return strings.NewReplacer("&#34;", `"`, "&#39;", "'", "&lt;", "<", "&gt;", ">", "&amp;", "&").Replace(s)
}
