package pages_test

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/schedulemesh/schedulemesh/handlers/pages/internal/demo"
)

func TestAPoolIsHeldDrainedAndResumedAfterAsking(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	has(t, b.get("/pools/batch", 200), `href="/pools/batch/hold"`, `href="/pools/batch/drain"`)
	hasNot(t, b.get("/pools/batch", 200), "Resume…")
	has(t, b.get("/pools/batch/hold", 200), "Hold the pool batch?", `name="reason"`)
	has(t, b.read(b.do(http.MethodPost, "/pools/batch/hold", url.Values{}), 422), "Say why in a few words")
	has(t, b.post("/pools/batch/hold", url.Values{"reason": {"disks are swapped"}}), "It is held", "Nothing starts here.", "disks are swapped", "Resume…", "Drain…")
	has(t, b.read(b.do(http.MethodPost, "/pools/batch/drain", url.Values{"reason": {"x"}, "deadline": {"soon"}}), 422), "is not a length of time")
	has(t, b.post("/pools/batch/drain", url.Values{"reason": {"disks are swapped"}, "deadline": {"30 min"}}), "It is being drained", "What still runs in 30 min is preempted")
	has(t, b.post("/pools/batch/resume", url.Values{}), "It starts tasks again", "Hold…")
	has(t, b.read(b.do(http.MethodPost, "/pools/batch/resume", url.Values{}), 422), "there is nothing to resume")
	b.get("/pools/none/hold", http.StatusNotFound)
	if len(w.Done) != 4 || w.Done[0] != `hold pool batch: "held" for "disks are swapped"` {
		t.Errorf("done %q", w.Done)
	}
}

func TestANodeIsDrainedAfterAsking(t *testing.T) {
	w := demo.Busy(demo.Now)
	b := open(t, w)
	has(t, b.get("/nodes", 200), "gpu-01", "driver update", "26 / 26", "gone")
	has(t, b.get("/nodes/gpu-01/drain", 200), "Drain the node gpu-01?")
	has(t, b.post("/nodes/gpu-01/drain", url.Values{"reason": {"new cards"}, "deadline": {"0"}}), "It is being drained", "new cards")
	b.get("/nodes/nope/drain", http.StatusNotFound)
}

func TestALineIsReadPageByPage(t *testing.T) {
	b := open(t, demo.Busy(demo.Now))
	html := b.get("/pools/train-a100", 200)
	has(t, html, "18 in line", `href="/pools/train-a100?line=11"`, "in 18 min")
	html = b.get("/pools/train-a100?line=11", 200)
	has(t, html, "llama-70b-sft-10", "← First")
	hasNot(t, html, "From 19 on")
	b.get("/pools/train-a100?line=-5", 200)
	b.get("/pools/train-a100?line=x", 200)
}
