package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"sync"
	"testing"

	"github.com/schedulemesh/schedulemesh/local"
)

// ray is a Ray cluster of our own for jobs, which may be killed. The one that all tests
// share also runs what others submit: how much room it has is not for us to say.
type ray struct {
	*local.Ray
	token string // "": it asks for none
}

// rays are started when the first test asks for them and end with the tests of this
// package, by the guard. Who kills one has it started anew for the next test.
var rays = struct {
	sync.Mutex
	open, closed *ray
}{}

// twoRays gives two clusters: an open one with four CPUs, and one with two that asks for a token.
func twoRays(t *testing.T) (open, closed *ray) {
	t.Helper()
	needRay(t)
	rays.Lock()
	defer rays.Unlock()
	var wg sync.WaitGroup
	start := func(r **ray, cpus int, token string) {
		wg.Go(func() {
			if *r != nil && !ended(*r) {
				return
			}
			started, err := local.StartRay(context.Background(), local.RayOptions{Python: os.Getenv("SCHEDULEMESH_PYTHON"), NumCPUs: cpus, Token: token})
			if err != nil {
				t.Error(err)
				return
			}
			*r = &ray{started, token}
		})
	}
	start(&rays.open, 4, "")
	start(&rays.closed, 2, "a-token-of-ray-for-tests-that-is-long-enough")
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return rays.open, rays.closed
}

func ended(r *ray) bool {
	select {
	case <-r.Done():
		return true
	default:
		return false
	}
}

// kill ends the head and everything on it at once, as when its machine is gone.
func (r *ray) kill() {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	_ = r.Stop(gone)
}

// rayJob is a job as Ray itself lists it.
type rayJob struct {
	Type         string
	SubmissionID string `json:"submission_id"`
	Status       string
	Metadata     map[string]string
}

// marker is the metadata that says which job and attempt of ours it is.
const marker = "schedulemesh_job"

// jobs asks Ray itself for its jobs.
func (r *ray) jobs(t *testing.T) []rayJob {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.DashboardURL()+"/api/jobs/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var list []rayJob
	if err := json.NewDecoder(res.Body).Decode(&list); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s lists no jobs: %s, %v", r.DashboardURL(), res.Status, err)
	}
	return list
}
