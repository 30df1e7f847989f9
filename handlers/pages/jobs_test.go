package pages_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/schedulemesh/schedulemesh/handlers/pages/internal/demo"
	"github.com/schedulemesh/schedulemesh/web"
)

func TestAJobSaysWhatItWaitsForAndWhyItIsWhereItIs(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	has(t, b.get("/jobs/sub_eval_70b", 200), "queued, position 1", "Waits, first in line: nobody has room for 8 gpu · 32 cpu.", "The largest free is 5 gpu", "It fails if it still waits in 24 min.", "Why nowhere yet", "no room: 3 gpu are missing")
	html := b.get("/jobs/sub_train_8f31", 200)
	has(t, html, "score 0.41", "gpu-west", "free 0.33 × weight 1.00 × health 1.00", "All others: 11 too small · 1 held", "Did not take it", "500 Internal Server Error", "2 values not shown", web.Masked, "tried elsewhere when a cluster or node is lost, 2 times at most",
		"As asked for", "As sent, with the cluster", "ml_training", `data-log="/api/v1/jobs/sub_train_8f31/logs"`, "epoch 399 loss", "&lt;b&gt;&amp;amp;", `id="log-again" href="/jobs/sub_train_8f31#log"`)
	has(t, b.get("/jobs/sub_tok_9", 200), "exit code 1", "JOB_ENTRYPOINT_COMMAND_ERROR", "/jobs/new?like=sub_tok_9")
	hasNot(t, b.get("/jobs/sub_tok_9", 200), "data-log=", "/jobs/sub_tok_9/stop")
	has(t, b.get("/jobs/sub_sweep_lr_03", 200), "its log cannot be read now")
	has(t, b.get("/jobs/gone", 404), "Not found")
	html = b.get("/jobs/sub_train_8f31/log?offset=0", 200)
	has(t, html, "epoch   0 loss", "the end so far")
	hasNot(t, html, "Earlier")
	if i, j := strings.Index(html, "epoch   0"), strings.Index(html, "epoch 399"); i < 0 || j < i {
		t.Error("the log is not in order")
	}
}

func TestJobsAreFilteredCountedAndPaged(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	html := b.get("/jobs?state=all", 200)
	has(t, html, "74 jobs in any state", "Next page", "cursor=50", "succeeded <b>", "running <b>10</b>")
	html = b.get("/jobs?state=failed", 200)
	has(t, html, "1 of 74 jobs that are failed", "sub_tok_9", `option value="FAILED" selected`)
	hasNot(t, html, "sub_train_8f31")
	html = b.get("/jobs?cluster=gpu_cluster&tag=gpu&q=train&metadata=user%3Dalice&age=1+h", 200)
	has(t, html, "sub_train_8f31", "on gpu_cluster", "tagged gpu", "with user alice", "not older than 1 h", "clear")
	hasNot(t, html, "sub_shard_000")
	has(t, b.get("/jobs?q=nothing-like-this", 200), "No job is like that", "state=all")
	html = b.get("/jobs?from=outside&cluster=gpu_cluster", 200)
	has(t, html, "raysubmit_9aYk2", "by others", "a driver", "never touched")
	hasNot(t, html, "Stop…", `type="checkbox"`)
	b.heads = map[string]string{"HX-Request": "true", "HX-Target": "jobs"}
	if got := b.do(http.MethodGet, "/jobs?q=train&state=live&cluster=&tag=", nil).Header.Get("HX-Push-Url"); got != "/jobs?q=train" {
		t.Errorf("HX-Push-Url %q", got)
	}
}

func TestAJobIsSubmittedAndStopped(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	form := url.Values{"entrypoint": {"python /srv/x.py"}, "cpu": {"2"}, "memory": {"4 GiB"}, "preferred_cluster": {"gpu_cluster"}, "metadata": {"user=mei"}, "tags": {"a, b"}, "queue_timeout": {"15 min"}, "max_retries": {"2"}}
	has(t, b.post("/jobs/new", form), "sub_made is submitted.", "queued, position 2")
	if want := `submit job  "python /srv/x.py": 2 cpu · 4 GiB, entrypoint, priority 5, prefers gpu_cluster, metadata map[user:mei], tags [a b]`; w.Done[0] != want {
		t.Errorf("did %q, want %q", w.Done[0], want)
	}
	form.Set("entrypoint", "python ./train.py")
	has(t, b.read(b.do(http.MethodPost, "/jobs/new", form), 422), "is a relative path", `value="python ./train.py"`, `value="gpu_cluster" selected`)
	bad := url.Values{"entrypoint": {" "}, "cpu": {"-1"}, "priority": {"NaN"}, "metadata": {"user"}, "runtime_env": {"{"}, "queue_timeout": {"soon"}, "reserve": {"all"}}
	has(t, b.read(b.do(http.MethodPost, "/jobs/new", bad), 422), "Say what to run", "-1 is negative", "is not a number", "should be key=value", "Not JSON", "is not a length of time", "is not one of")

	has(t, b.get("/jobs/sub_eval_70b/stop", 200), "leaves the line")
	has(t, b.get("/jobs/sub_tok_9/stop", 200), "It is failed already")
	has(t, b.get("/jobs/sub_sweep_lr_03/stop", 200), "happens once it answers")
	n := len(w.Done)
	has(t, b.post("/jobs/sub_train_8f31/stop", url.Values{}), "sub_train_8f31 is being stopped.", "running, being stopped")
	if len(w.Done) != n+1 {
		t.Errorf("did %q", w.Done[n:])
	}
}

func TestSeveralJobsAreStoppedAtOnceAfterAsking(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	form := url.Values{"id": {"sub_shard_003", "sub_shard_004", "sub_tok_9"}, "back": {"/jobs?cluster=cpu_cluster"}}
	has(t, b.read(b.do(http.MethodPost, "/jobs/stop", form), 200), "Stop 3 jobs?", "sub_shard_003", `name="sure" value="yes"`)
	if len(w.Done) != 0 {
		t.Fatalf("asking did %q", w.Done)
	}
	form.Set("sure", "yes")
	has(t, b.post("/jobs/stop", form), "2 jobs being stopped.", "1 could not be.", "sub_tok_9 is failed already.", `option value="cpu_cluster" selected`)
	has(t, b.post("/jobs/stop", url.Values{}), "No job is ticked")
}
