package pages_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/handlers/pages/internal/demo"
	"github.com/schedulemesh/schedulemesh/web"
)

func TestAClusterSaysHowItIsInWordsAndFigures(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	html := b.get("/clusters", 200)
	has(t, html, "3 / 4", "1 held", "healthy, 0.72", "Health 0.72: it answers slowly: 210 ms; 1 of 7 nodes is dead", "breaker open, asked again in 8 s", "It did not answer within 2 s", "As it was when it last answered",
		"from clusters.yaml", "added by hand", "of this deployment", "Held by mei", "GPU: 30 used by jobs, 9 by others, 4 on the way; 5 of 48 free", "<code>/etc/schedulemesh/clusters.yaml</code>", `href="/jobs?cluster=gpu_cluster"`)
	html = b.get("/clusters/gpu_cluster", 200)
	has(t, html, "30 our jobs · 9 others · 4 on the way", "GPU in use", "39 of 48", `<polygon class="areaused"`, `<polyline class="linelimit"`, "in the variable RAY_GPU_TOKEN", "4f1c9a27e5b8", web.Masked, "raysubmit_9aYk2", "read only", `href="/clusters/gpu_cluster?hours=6"`)
	if n := strings.Count(html, "<figure"); n != 5 {
		t.Errorf("%d charts, want GPU, CPU, memory, health and jobs", n)
	}
	if n := strings.Count(html, `<polygon class="areaused"`); n != 10 {
		t.Errorf("%d areas: while the cluster was away there must be a gap", n)
	}
	has(t, b.get("/clusters/gpu-east", 200), "No jobs go there.", "It is asked again in 8 s.", "What becomes of its 1 job is known once it answers")
	has(t, b.get("/clusters/gone", 404), "Not found")
}

func TestAConfigurationFileThatIsBrokenIsSaid(t *testing.T) {
	w := demo.Busy(demo.Now)
	w.BreakFile("clusters.yaml:7:15: weight must be a number")
	has(t, open(t, w).get("/clusters", 200), "What clusters.yaml says now is not in force.", "clusters.yaml:7:15: weight must be a number")
}

func TestAClusterIsAddedEditedHeldAndRemoved(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	form := url.Values{"name": {"gpu/west"}, "head_address": {"10.0.9.1:10001"}, "weight": {"1.5"}, "tags": {"gpu, west gpu"}, "prefer": {"yes"}, "token": {"env"}, "token_ref": {"WEST_TOKEN"}}
	has(t, b.post("/clusters/new", form), "The cluster gpu/west is there", "not asked yet", "10.0.9.1:10001")
	if want := "add cluster gpu/west at 10.0.9.1:10001, weight 1.5, prefer true, tags [gpu west], token WEST_TOKEN"; w.Done[0] != want {
		t.Errorf("did %q, want %q", w.Done[0], want)
	}
	has(t, b.read(b.do(http.MethodPost, "/clusters/new", form), 422), "A cluster is called that already.", `value="10.0.9.1:10001"`)

	html := b.get("/clusters/gpu_cluster/edit", 200)
	has(t, html, `name="rev" value="2"`, web.Masked, `value="RAY_GPU_TOKEN"`, `value="env" selected`)
	edit := url.Values{"rev": {"2"}, "head_address": {"10.0.4.22:10002"}, "weight": {"0.5"}}
	has(t, b.post("/clusters/gpu_cluster/edit", edit), "The cluster is changed.", "10.0.4.22:10002")
	has(t, b.read(b.do(http.MethodPost, "/clusters/gpu_cluster/edit", edit), 422), "Somebody else changed this cluster meanwhile.", `value="10.0.4.22:10002"`)

	has(t, b.read(b.do(http.MethodPost, "/clusters/cpu_cluster/hold", url.Values{}), 422), "Say why in a few words")
	has(t, b.post("/clusters/cpu_cluster/hold", url.Values{"reason": {"new disks"}}), "It gets no new jobs.", "new disks")
	has(t, b.post("/clusters/cpu_cluster/resume", url.Values{}), "It takes jobs again.")
	has(t, b.get("/clusters/cpu_cluster/remove", 200), "Live jobs of ours there: 9, so this will be refused.")
	has(t, b.get("/clusters/local/remove", 200), "Ray itself is not touched")
	has(t, b.post("/clusters/gpu%2Fwest/remove", url.Values{}), "The cluster gpu/west is removed.")
}

func TestAClusterFormThatIsWrongKeepsWhatWasTyped(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	form := url.Values{"name": {""}, "head_address": {"here:1"}, "weight": {"0"}, "token": {"env"}, "token_ref": {"sk-12345 secret"}, "runtime_env": {"[1]"}}
	html := b.read(b.do(http.MethodPost, "/clusters/new", form), 422)
	has(t, html, "Give the cluster a name", "It must be more than 0", "never the token itself", "It should be a JSON object", `value="here:1"`)
	if len(w.Done) != 0 {
		t.Errorf("did %q", w.Done)
	}
	w.Refuse = &pages.Refusal{ErrorCode: "invalid", Message: "no", ByField: map[string]string{"head_address": "It has no port.", "runtime_env.pip": "It must be a list."}}
	form = url.Values{"name": {"x"}, "head_address": {"here"}}
	has(t, b.read(b.do(http.MethodPost, "/clusters/new", form), 422), `id="head_address-err">It has no port.`, `id="runtime_env-err">It must be a list.`)
}
