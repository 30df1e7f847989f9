package e2e

import (
	"archive/zip"
	"bytes"
	"crypto/sha1"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/testdb"
)

// job is what REST says of one.
type job struct {
	SubmissionID string `json:"submission_id"`
	State        string
	Status       string
	Code, Reason string
	Cluster      string
	RayID        string `json:"ray_submission_id"`
	Attempt      int
	Position     int `json:"queue_position"`
	Notes        []string
	Placement    struct {
		Reason string
		Parts  struct{ Preferred bool }
		Not    []struct{ Code string }
	}
	MergedEnv struct {
		Vars map[string]string `json:"env_vars"`
	} `json:"merged_runtime_env"`
	Metadata map[string]string
}

func (j job) ended() bool {
	return slices.Contains([]string{"SUCCEEDED", "FAILED", "STOPPED"}, j.State)
}

// startJobs starts a server without agents whose jobs may go to both clusters.
func startJobs(t *testing.T, open, closed *ray, extra ...string) *server {
	t.Helper()
	dir := t.TempDir()
	secret, file := filepath.Join(dir, "token"), filepath.Join(dir, "clusters.yaml")
	write(t, secret, closed.token)
	write(t, file, fmt.Sprintf(`
clusters:
  open:
    head_address: %s
    dashboard: %s
    prefer: true
    tags: [cpu]
    runtime_env:
      env_vars: ["WHERE=open", "SHARED=of the cluster"]
  closed:
    head_address: %s
    dashboard: %s
    token: {file: %s}
    runtime_env:
      env_vars: {WHERE: closed, SHARED: of the cluster}
`, open.Address(), open.DashboardURL(), closed.Address(), closed.DashboardURL(), secret))
	s := startWith(t, testdb.New(t), append([]string{"--no-ray", "--clusters", file}, extra...))
	s.healthy("open", "closed")
	return s
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (s *server) healthy(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.eventually(name+" is healthy", 30*time.Second, func() bool {
			var c struct{ State string }
			return s.try("GET", "/api/v1/clusters/"+name, nil, &c) == nil && c.State == "healthy"
		})
	}
}

// run submits a job, with `more` in its body.
func (s *server) run(entrypoint string, more map[string]any) (j job) {
	s.t.Helper()
	body := map[string]any{"entrypoint": entrypoint}
	for k, v := range more {
		body[k] = v
	}
	s.call("POST", "/api/v1/jobs?wait=20s", body, &j)
	return j
}

func (s *server) job(id string) (j job) {
	s.t.Helper()
	s.call("GET", "/api/v1/jobs/"+url.PathEscape(id), nil, &j)
	return j
}

// jobBecomes waits for a state and fails when the job ends in another.
func (s *server) jobBecomes(id, state string) (j job) {
	s.t.Helper()
	s.eventually(id+" becomes "+state, 90*time.Second, func() bool {
		j = s.job(id)
		if j.State != state && j.ended() {
			s.t.Fatalf("job %s is %+v, want %s", id, j, state)
		}
		return j.State == state
	})
	return j
}

func (s *server) log(id string) string {
	s.t.Helper()
	var l struct{ Text string }
	s.call("GET", "/api/v1/jobs/"+url.PathEscape(id)+"/logs", nil, &l)
	return l.Text
}

// once fails unless Ray itself has the job exactly once, over all clusters, and gives how often each
// marker is there.
func once(t *testing.T, rays []*ray, ids ...string) {
	t.Helper()
	found := map[string]int{}
	for _, r := range rays {
		for _, j := range r.jobs(t) {
			if j.Metadata[marker] != "" {
				found[j.SubmissionID]++
			}
		}
	}
	for _, id := range ids {
		if found[id] != 1 {
			t.Errorf("Ray has job %s %d times", id, found[id])
		}
	}
}

const printWhere = `python -c "import os; print(os.environ['WHERE'], '|', os.environ['SHARED'], '|', os.environ.get('MINE'))"`

func TestJobsOnTwoRealClusters(t *testing.T) {
	open, closed := twoRays(t)
	s := startJobs(t, open, closed)
	scene := func(name string, play func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			whole := s.t
			s.t = t
			defer func() { s.t = whole }()
			play(t)
		})
	}

	scene("both say what they have, and no secret is shown", func(t *testing.T) {
		var list json.RawMessage
		s.call("GET", "/api/v1/clusters", nil, &list)
		var read struct {
			Items []struct {
				Name, State string
				RayVersion  string `json:"ray_version"`
				Resources   struct{ Total map[string]float64 }
			}
		}
		if err := json.Unmarshal(list, &read); err != nil || len(read.Items) != 2 {
			t.Fatalf("%s: %v", list, err)
		}
		for i, want := range []struct {
			name string
			cpus float64
		}{{"closed", 2}, {"open", 4}} {
			if c := read.Items[i]; c.Name != want.name || c.State != "healthy" || c.RayVersion == "" || c.Resources.Total["cpu"] != want.cpus {
				t.Errorf("%+v", c)
			}
		}
		if strings.Contains(string(list), closed.token) {
			t.Error("the token is shown")
		}
	})

	scene("the environment of cluster and job arrives, and so does the log", func(t *testing.T) {
		j := s.run(printWhere, map[string]any{"preferred_cluster": "closed", "runtime_env": map[string]any{"env_vars": map[string]any{"MINE": "m", "SHARED": "of the job"}}})
		if j.Cluster != "closed" || !j.Placement.Parts.Preferred {
			t.Errorf("%+v", j)
		}
		if want := map[string]string{"WHERE": "closed", "SHARED": "of the job", "MINE": "m"}; fmt.Sprint(j.MergedEnv.Vars) != fmt.Sprint(want) {
			t.Errorf("merged: %v", j.MergedEnv.Vars)
		}
		s.jobBecomes(j.SubmissionID, "SUCCEEDED")
		if text := s.log(j.SubmissionID); !strings.Contains(text, "closed | of the job | m") {
			t.Errorf("it printed %q", text)
		}
		once(t, []*ray{open, closed}, j.SubmissionID)
	})

	scene("placed by room, stopped, and what waits moves on", func(t *testing.T) {
		large := s.run("sleep 300", map[string]any{"resource_requirements": map[string]any{"CPU": 3}})
		if large.Cluster != "open" || len(large.Placement.Not) != 1 || large.Placement.Not[0].Code != "too_small" {
			t.Fatalf("three CPUs are on %+v", large)
		}
		// No room at its preferred one any more.
		small := s.run("sleep 300", map[string]any{"preferred_cluster": "open", "resource_requirements": map[string]any{"CPU": 2}})
		if small.Cluster != "closed" || small.Placement.Parts.Preferred {
			t.Fatalf("two CPUs are on %+v", small)
		}
		waits := s.run(`python -c "print('at last')"`, map[string]any{"resource_requirements": map[string]any{"CPU": 2}})
		if waits.State != "QUEUED" || waits.Status != "PENDING" || waits.Position != 1 || waits.Reason == "" {
			t.Fatalf("nobody has room, and it is %+v", waits)
		}
		s.call("POST", "/api/v1/jobs/"+small.SubmissionID+"/stop", nil, nil)
		s.jobBecomes(small.SubmissionID, "STOPPED")
		if j := s.jobBecomes(waits.SubmissionID, "SUCCEEDED"); j.Cluster != "closed" {
			t.Errorf("%+v", j)
		}
		s.call("POST", "/api/v1/jobs/"+large.SubmissionID+"/stop", nil, nil)
		s.jobBecomes(large.SubmissionID, "STOPPED")
		once(t, []*ray{open, closed}, large.SubmissionID, small.SubmissionID, waits.SubmissionID)
	})

	scene("an unknown preferred cluster is a hint that led nowhere", func(t *testing.T) {
		j := s.run(printWhere, map[string]any{"preferred_cluster": "moon"})
		if j.Cluster == "" || !strings.Contains(strings.Join(j.Notes, " "), "moon") {
			t.Errorf("%+v", j)
		}
		s.jobBecomes(j.SubmissionID, "SUCCEEDED")
	})

	scene("what nobody could ever take is an error at once", func(t *testing.T) {
		err := s.try("POST", "/api/v1/jobs", map[string]any{"entrypoint": "true", "submission_id": "too-large", "resource_requirements": map[string]any{"CPU": 1000}}, nil)
		if err == nil || !strings.Contains(err.Error(), "no_cluster_large_enough") {
			t.Errorf("%v", err)
		}
		if err := s.try("GET", "/api/v1/jobs/too-large", nil, nil); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("it is there: %v", err)
		}
	})

	scene("a failure is told with its exit code", func(t *testing.T) {
		j := s.run(`python -c "print('oh'); raise SystemExit(3)"`, nil)
		s.eventually("it has failed", time.Minute, func() bool { j = s.job(j.SubmissionID); return j.ended() })
		var exit struct {
			Code *int `json:"exit_code"`
		}
		s.call("GET", "/api/v1/jobs/"+j.SubmissionID, nil, &exit)
		if j.State != "FAILED" || exit.Code == nil || *exit.Code != 3 {
			t.Errorf("%+v, exit %v", j, exit.Code)
		}
	})

	scene("a packed directory is its working directory, on either cluster", func(t *testing.T) {
		name, text := packed(t, "data.txt", "what was packed")
		s.upload(name, text)
		for _, cluster := range []string{"open", "closed"} {
			j := s.run(`python -c "print(open('data.txt').read())"`, map[string]any{"preferred_cluster": cluster, "runtime_env": map[string]any{"working_dir": "gcs://" + name}})
			s.jobBecomes(j.SubmissionID, "SUCCEEDED")
			if text := s.log(j.SubmissionID); j.Cluster != cluster || !strings.Contains(text, "what was packed") {
				t.Errorf("on %s it printed %q", j.Cluster, text)
			}
		}
	})

	scene("a log can be followed", func(t *testing.T) {
		j := s.run(`python -uc "import time; [(print('line', i), time.sleep(0.3)) for i in range(5)]"`, nil)
		var all strings.Builder
		s.follow("/api/v1/jobs/"+j.SubmissionID+"/logs?follow=true", func(event, data string) bool {
			var piece struct{ Text string }
			_ = json.Unmarshal([]byte(data), &piece)
			if event == "log" {
				all.WriteString(piece.Text)
			}
			return event != "end"
		})
		if got := strings.Count(all.String(), "line "); got != 5 || !strings.Contains(all.String(), "line 4\n") {
			t.Errorf("followed %q", all.String())
		}
	})

	scene("what others start is shown, and counts", func(t *testing.T) {
		r, err := http.NewRequest(http.MethodPost, open.DashboardURL()+"/api/jobs/", strings.NewReader(`{"entrypoint": "sleep 60", "submission_id": "of-somebody", "entrypoint_num_cpus": 4}`))
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", res, err)
		}
		_ = res.Body.Close()
		s.eventually("it is listed", 30*time.Second, func() bool {
			var list struct {
				Items []struct {
					ID    string `json:"ray_id"`
					State string
				}
			}
			s.call("GET", "/api/v1/outside-jobs?cluster=open", nil, &list)
			for _, j := range list.Items {
				if j.ID == "of-somebody" {
					return j.State == "RUNNING"
				}
			}
			return false
		})
		s.eventually("its room is taken", 30*time.Second, func() bool {
			var c struct {
				Resources struct{ Used map[string]float64 }
			}
			s.call("GET", "/api/v1/clusters/open", nil, &c)
			return c.Resources.Used["cpu"] == 4
		})
		res, err = http.Post(open.DashboardURL()+"/api/jobs/of-somebody/stop", "application/json", nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	})
}

// packed makes a package as Ray's own are: a zip named after what is in it.
func packed(t *testing.T, file, text string) (name string, content []byte) {
	t.Helper()
	var zipped bytes.Buffer
	w := zip.NewWriter(&zipped)
	f, err := w.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("_ray_pkg_%x.zip", sha1.Sum(zipped.Bytes()))[:len("_ray_pkg_")+16] + ".zip", zipped.Bytes()
}

func (s *server) upload(name string, content []byte) {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodPut, s.base+"/api/v1/packages/"+name, bytes.NewReader(content))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/octet-stream")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode >= 300 {
		s.t.Fatalf("the package is not taken: %s", res.Status)
	}
}

// A cluster is killed with jobs on it: each ends in a state that is true, and those
// that may be tried again go on elsewhere.
func TestAClusterIsKilledWithJobsInFlight(t *testing.T) {
	open, closed := twoRays(t)
	s := startJobs(t, open, closed, "--cluster-lost-after", "5s")
	var stays, moves, done []string
	for i := range 2 {
		body := map[string]any{"preferred_cluster": "closed", "resource_requirements": map[string]any{"CPU": 0.5}, "submission_id": fmt.Sprint("stays-", i)}
		stays = append(stays, s.run("sleep 300", body).SubmissionID)
		body["submission_id"], body["max_retries"], body["retry_on"] = fmt.Sprint("moves-", i), 1, []string{"cluster_lost"}
		moves = append(moves, s.run("sleep 300", body).SubmissionID)
	}
	done = append(done, s.run("true", map[string]any{"preferred_cluster": "closed", "submission_id": "done"}).SubmissionID)
	s.jobBecomes("done", "SUCCEEDED")
	for _, id := range slices.Concat(stays, moves) {
		if j := s.jobBecomes(id, "RUNNING"); j.Cluster != "closed" {
			t.Fatalf("%+v", j)
		}
	}
	closed.kill()
	killed := time.Now()
	s.eventually("nobody says that it runs", 15*time.Second, func() bool { return s.job(stays[0]).State == "UNKNOWN" || s.job(stays[0]).ended() })
	unknown := time.Since(killed)
	for _, id := range stays {
		s.eventually(id+" is lost", 30*time.Second, func() bool { return s.job(id).ended() })
		if j := s.job(id); j.State != "FAILED" || j.Code != "cluster_lost" {
			t.Errorf("%+v", j)
		}
	}
	for _, id := range moves {
		s.eventually(id+" runs elsewhere", 60*time.Second, func() bool {
			j := s.job(id)
			if j.ended() {
				t.Fatalf("%+v", j)
			}
			return j.State == "RUNNING" && j.Cluster == "open" && j.Attempt == 2
		})
	}
	t.Logf("unknown after %s, all elsewhere after %s", unknown.Round(time.Millisecond), time.Since(killed).Round(time.Millisecond))
	if j := s.job(done[0]); j.State != "SUCCEEDED" {
		t.Errorf("what had ended is %+v", j)
	}
	for _, id := range moves {
		once(t, []*ray{open}, s.job(id).RayID)
		s.call("POST", "/api/v1/jobs/"+id+"/stop", nil, nil)
	}
	for _, id := range moves {
		s.jobBecomes(id, "STOPPED")
	}
	s.eventually("the cluster is unhealthy", 30*time.Second, func() bool {
		var c struct{ State, Error string }
		s.call("GET", "/api/v1/clusters/closed", nil, &c)
		return c.State == "unhealthy" && c.Error != ""
	})
	res, err := http.Get(s.base + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("a cluster that is gone makes the server %s", res.Status)
	}
}

// The server is killed while it submits, at several moments: whatever was taken runs once.
func TestTheServerIsKilledInMidSubmission(t *testing.T) {
	open, closed := twoRays(t)
	s := startJobs(t, open, closed)
	var ids []string
	for round, after := range []time.Duration{5, 30, 120} {
		var wg sync.WaitGroup
		these := make([]string, 4)
		for i := range these {
			these[i] = fmt.Sprintf("killed-%d-%d", round, i)
			wg.Go(func() {
				_ = s.try("POST", "/api/v1/jobs", map[string]any{"entrypoint": "true", "submission_id": these[i]}, nil)
			})
		}
		time.Sleep(after * time.Millisecond)
		if err := s.cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		s.killAndRestart()
		for _, id := range these { // as a client does that got no answer
			s.call("POST", "/api/v1/jobs", map[string]any{"entrypoint": "true", "submission_id": id}, nil)
		}
		ids = append(ids, these...)
	}
	for _, id := range ids {
		if j := s.jobBecomes(id, "SUCCEEDED"); j.Attempt != 1 {
			t.Errorf("%+v", j)
		}
	}
	once(t, []*ray{open, closed}, ids...)
}

// The cluster whose agents a server runs takes jobs without being configured.
func TestTheLocalClusterTakesJobs(t *testing.T) {
	s := startServer(t)
	s.healthy("local")
	j := s.run(`python -c "print('here')"`, map[string]any{"resource_requirements": map[string]any{"CPU": 0.01}})
	s.jobBecomes(j.SubmissionID, "SUCCEEDED")
	if text := s.log(j.SubmissionID); j.Cluster != "local" || !strings.Contains(text, "here") {
		t.Errorf("%+v printed %q", j, text)
	}
}
