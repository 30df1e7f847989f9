package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/schedulemesh/schedulemesh/testdb"
)

// Jobs by hand in a browser: a cluster is added, a job is submitted to it, its log is
// watched as it grows, and it is stopped, all without a page being loaded again.
func TestAJobIsWatchedAndStoppedInABrowser(t *testing.T) {
	needRay(t)
	dashboard := os.Getenv("SCHEDULEMESH_TEST_RAY_DASHBOARD")
	if dashboard == "" {
		t.Skip("SCHEDULEMESH_TEST_RAY_DASHBOARD names no dashboard: `make test` starts one")
	}
	s := startOn(t, testdb.New(t), true) // no agents: the shared cluster belongs to other tests
	b := openBrowser(t)

	b.open(s.base + "/sign-in?token=" + token)
	b.open(s.base + "/clusters")
	b.shows("No clusters yet: name the first", "head_address")
	b.press("Add a cluster")
	b.shows("never the token itself")
	b.fill(map[string]string{"name": "east", "head_address": os.Getenv("SCHEDULEMESH_TEST_RAY"), "dashboard": "not a URL", "tags": "gpu, night"})
	b.press("Add it")
	b.shows("Not saved.", "1 field need another look")
	b.fill(map[string]string{"dashboard": dashboard})
	b.press("Add it")
	b.shows("The cluster east is there", "healthy", "Nothing speaks against it.", "alive") // live: it was not asked yet when the page was loaded
	b.picture("cluster")

	b.press("Submit a job")
	b.shows("Who uses it")
	b.fill(map[string]string{"entrypoint": "python3 ./train.py", "submission_id": "watched-" + strings.ToLower(time.Now().Format("150405.000000"))[7:]})
	b.press("Submit it")
	b.shows("1 field need another look", "train.py")
	b.fill(map[string]string{"entrypoint": `python3 -u -c "import itertools, time; [(print('tick', i), time.sleep(0.2)) for i in itertools.count()]"`, "metadata": "user=mei",
		"runtime_env": `{"env_vars": {"SOME_TOKEN": "s3cret", "PLAIN": "shown"}}`})
	b.press("Submit it")
	b.shows("is submitted.", "Why here", "Submitted by operator")
	b.shows("Runs on east.", "running", "tick 3\n")
	b.picture("job")
	b.shows("tick 15\n")
	b.script("the log is live", `document.getElementById("log-state").textContent === "live" && !document.body.innerHTML.includes("s3cret")`)

	b.press("Stop…")
	s.eventually("the dialog asks", 10*time.Second, func() bool {
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`(() => {
			const e = document.querySelector("dialog[open] button[type=submit]");
			if (!e) return false;
			e.click(); return true;
		})()`))
		return err == nil && ok
	})
	b.shows("Stopped by operator", "Submit again") // Ray takes some seconds
	b.shows("its end")
	b.open(s.base + "/jobs?state=STOPPED&cluster=east&metadata=user%3Dmei")
	b.shows("watched-", "that are stopped")
	b.picture("jobs")
	b.open(s.base + "/clusters")
	b.shows("no jobs")
	for _, c := range b.complaints {
		if !strings.Contains(c, "422") { // the browser's word for a form that comes back
			t.Error("the browser complains: " + c)
		}
	}
}
