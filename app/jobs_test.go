package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/app"
	"github.com/schedulemesh/schedulemesh/clusters/clustertest"
	"github.com/schedulemesh/schedulemesh/testdb"
)

// fleetFile writes a clusters.yaml with stand-ins named c0, c1, ….
func fleetFile(t *testing.T, path string, all ...*clustertest.Cluster) string {
	t.Helper()
	text := "clusters:\n"
	for i, c := range all {
		text += fmt.Sprintf("  c%d: {head_address: 127.0.0.1:10001, dashboard: %q}\n", i, c.URL)
	}
	writeFile(t, path, text)
	return path
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// clusterStates gives the state of each cluster.
func clusterStates(t *testing.T, a *app.App) map[string]string {
	t.Helper()
	var list struct {
		Items []struct{ Name, State string }
	}
	if r := send(t, a, "GET", "/api/v1/clusters", ""); r.status != 200 || json.Unmarshal([]byte(r.body), &list) != nil {
		t.Fatalf("%+v", r)
	}
	states := map[string]string{}
	for _, c := range list.Items {
		states[c.Name] = c.State
	}
	return states
}

func allHealthy(t *testing.T, a *app.App, n int) {
	t.Helper()
	eventually(t, "all clusters are healthy", func() bool {
		states := clusterStates(t, a)
		for _, s := range states {
			if s != "healthy" {
				return false
			}
		}
		return len(states) == n
	})
}

func TestJobsGoToTheClustersOfTheFile(t *testing.T) {
	t.Parallel()
	one, two := clustertest.New(t, clustertest.Options{CPUs: 4}), clustertest.New(t, clustertest.Options{CPUs: 8})
	a := start(t, app.Config{DatabaseURL: testdb.New(t), NoRay: true, Clusters: fleetFile(t, filepath.Join(t.TempDir(), "clusters.yaml"), one, two)})
	allHealthy(t, a, 2)
	want(t, send(t, a, "POST", "/api/v1/jobs?wait=10s", `{"entrypoint": "python /a/b.py", "submission_id": "j", "resource_requirements": {"CPU": 6}}`), 201, `"cluster":"c1"`)
	want(t, send(t, a, "POST", "/api/v1/jobs", `{"entrypoint": "python /a/b.py", "submission_id": "j", "resource_requirements": {"CPU": 6}}`), 200, `"cluster":"c1"`) // once more
	want(t, send(t, a, "POST", "/api/v1/jobs", `{"entrypoint": "python /a/c.py", "submission_id": "j"}`), 409, "job_exists")
	want(t, send(t, a, "POST", "/api/v1/jobs", `{"entrypoint": "python b.py"}`), 422, `"invalid"`, "absolute path")
	if n := len(two.Accepted()); n != 1 || len(one.Accepted()) != 0 {
		t.Errorf("%d submissions arrived", n)
	}
	two.End("j", "SUCCEEDED")
	want(t, send(t, a, "GET", "/api/v1/jobs/j?wait=20s", ""), 200, `"state":"SUCCEEDED"`)
	for path, word := range map[string]string{"/clusters": "c1", "/clusters/c1": two.URL, "/jobs": "Jobs", "/jobs/j": "c1"} {
		want(t, send(t, a, "GET", path, ""), 200, word)
	}
	names := send(t, a, "GET", "/metrics", "").body
	for _, name := range []string{"schedulemesh_jobs_submitted_total 1", `schedulemesh_jobs_ended_total{state="SUCCEEDED"} 1`, `schedulemesh_job_placements_total{cluster="c1"} 1`,
		"schedulemesh_job_delivery_seconds", "schedulemesh_job_queue_seconds", "schedulemesh_cluster_"} {
		if !strings.Contains(names, name) {
			t.Errorf("/metrics lacks %s", name)
		}
	}
	// Clusters of others do not make a server less ready.
	one.Down()
	two.Down()
	eventually(t, "both are unhealthy", func() bool {
		states := clusterStates(t, a)
		return states["c0"] == "unhealthy" && states["c1"] == "unhealthy"
	})
	want(t, send(t, a, "GET", "/readyz", ""), 200)
}

func TestTheFileOfClustersIsReadAgainWhenItChanges(t *testing.T) {
	t.Parallel()
	one, two := clustertest.New(t, clustertest.Options{}), clustertest.New(t, clustertest.Options{})
	path := filepath.Join(t.TempDir(), "clusters.yaml")
	a := start(t, app.Config{DatabaseURL: testdb.New(t), NoRay: true, Clusters: fleetFile(t, path, one)})
	allHealthy(t, a, 1)
	fleetFile(t, path, one, two)
	allHealthy(t, a, 2)
	// What is broken changes nothing.
	writeFile(t, path, "clusters:\n  c0: {head_address: [}\n")
	time.Sleep(2500 * time.Millisecond) // a look at the file
	if states := clusterStates(t, a); len(states) != 2 {
		t.Errorf("after a broken file there are %v", states)
	}
	fleetFile(t, path, two)
	eventually(t, "the second is gone", func() bool { return len(clusterStates(t, a)) == 1 })
}

// The server that moves jobs goes away while many are under way; the other one goes on, and none is
// lost or arrives twice.
func TestAnotherServerGoesOnWithJobs(t *testing.T) {
	t.Parallel()
	fleet := []*clustertest.Cluster{clustertest.New(t, clustertest.Options{CPUs: 30}), clustertest.New(t, clustertest.Options{CPUs: 30}), clustertest.New(t, clustertest.Options{CPUs: 30})}
	url, dir := testdb.New(t), t.TempDir()
	cfg := app.Config{DatabaseURL: url, TokenFile: filepath.Join(dir, "token"), NoRay: true, Clusters: fleetFile(t, filepath.Join(dir, "clusters.yaml"), fleet...)}
	first := start(t, cfg)
	second := start(t, cfg)
	allHealthy(t, second, 3)
	const n = 80
	for i := range n {
		to := first
		if i%2 == 1 || i > n/2 {
			to = second
		}
		if i == n/2+1 {
			go func() { _ = first.Stop(context.Background()) }()
		}
		want(t, send(t, to, "POST", "/api/v1/jobs", fmt.Sprintf(`{"entrypoint": "true", "submission_id": "j%d", "resource_requirements": {"CPU": 1}}`, i)), 201)
	}
	for i := range n {
		eventually(t, fmt.Sprintf("job %d runs", i), func() bool {
			return strings.Contains(send(t, second, "GET", fmt.Sprintf("/api/v1/jobs/j%d", i), "").body, `"state":"RUNNING"`)
		})
	}
	seen := map[string]int{}
	for _, c := range fleet {
		for _, s := range c.Accepted() {
			seen[s.SubmissionID]++
		}
		if used := c.Used("CPU"); used > 30 {
			t.Errorf("%s runs %g CPUs", c.URL, used)
		}
	}
	for id, times := range seen {
		if times != 1 {
			t.Errorf("%s arrived %d times", id, times)
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d jobs arrived", len(seen), n)
	}
}
