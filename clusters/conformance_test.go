package clusters_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/clusters/clustertest"
)

// What is said here of a dashboard holds of a real one and of the stand-in, which is what makes the
// stand-in worth testing against.

func TestTheStandInAnswersAsRayDoes(t *testing.T) {
	t.Parallel()
	c := clustertest.New(t, clustertest.Options{CPUs: 8, Memory: 16 << 30, Token: "secret", StartTakes: 10 * time.Millisecond, StopTakes: 20 * time.Millisecond, Fate: like})
	conform(t, c.URL, "secret")
}

func TestRayAnswersAsWeExpect(t *testing.T) {
	t.Parallel()
	conform(t, clustertest.Dashboard(t), os.Getenv("SCHEDULEMESH_TEST_RAY_TOKEN"))
}

// like does in the stand-in what the entrypoints below do in a shell.
func like(s clusters.Submission) clustertest.Fate {
	const short = 100 * time.Millisecond
	switch s.Entrypoint {
	case echoes:
		return clustertest.Fate{After: short, Prints: "hello\n"}
	case fails:
		return clustertest.Fate{After: short, Prints: "oh no\n", Status: clusters.RayFailed}
	case counts:
		return clustertest.Fate{After: short, Prints: "größe 1\ngröße 2\ngröße 3\n"}
	case rubbish:
		return clustertest.Fate{After: short, Prints: "a\xffb\n"}
	}
	return clustertest.Fate{}
}

const (
	echoes  = "echo hello"
	fails   = "echo 'oh no'; exit 1"
	counts  = "for i in 1 2 3; do echo größe $i; sleep 1; done"
	rubbish = `printf 'a\377b\n'`
	lasts   = "sleep 600"
)

// patience is how long anything may take before a test fails.
const patience = 60 * time.Second

// dashboard is one under test.
type dashboard struct {
	*clusters.Ray
	ctx   context.Context
	token func() (string, error)
}

// conform checks a dashboard that wants this token ("": none).
func conform(t *testing.T, url, secret string) {
	token := func() (string, error) { return secret, nil }
	for name, check := range map[string]func(*testing.T, *dashboard){
		"it says its version and its session": func(t *testing.T, d *dashboard) {
			v, err := d.Version(d.ctx)
			if err != nil || v.Ray == "" || v.Session == "" {
				t.Fatalf("%+v, %v", v, err)
			}
		},
		"it says what it has, what is used and on which nodes": room,
		"a job runs, prints and succeeds":                      succeeds,
		"a job that fails says so": func(t *testing.T, d *dashboard) {
			j := d.ended(t, d.submit(t, clusters.Submission{Entrypoint: fails}))
			if j.Status != clusters.RayFailed || j.ExitCode == nil || *j.ExitCode != 1 || !strings.Contains(j.Message, "oh no") || j.ErrorType == "" {
				t.Errorf("%+v", j)
			}
		},
		"a submission_id is taken once":                    once,
		"a job that is not there":                          absent,
		"a job is stopped, once":                           stopped,
		"a job without room stays pending, stopped or not": waits,
		"what a job reserves is used":                      reserved,
		"a submission that is wrong is refused": func(t *testing.T, d *dashboard) {
			var call *clusters.CallError
			if err := d.Submit(d.ctx, clusters.Submission{SubmissionID: newID(), Entrypoint: echoes, RuntimeEnv: []byte(`"none"`)}); !errors.As(err, &call) || call.Status != 400 || !call.Sent {
				t.Errorf("%v", err)
			}
		},
		"a package is there once it was put": packaged,
		"the log is read in pieces":          pieces,
		"a log is followed to its end":       followed,
		"a log that is not UTF-8 is read":    unreadable,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			t.Cleanup(cancel)
			check(t, &dashboard{clusters.NewRay(url, token, clusters.RayOptions{}), ctx, token})
		})
	}
}

func newID() string { return fmt.Sprintf("conform_%d", time.Now().UnixNano()) }

// submit has something run, which does not outlive the test.
func (d *dashboard) submit(t *testing.T, s clusters.Submission) string {
	t.Helper()
	s.SubmissionID = newID()
	if err := d.Submit(d.ctx, s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := d.Stop(ctx, s.SubmissionID); err != nil {
			t.Errorf("cleaning up: %v", err)
		}
	})
	return s.SubmissionID
}

// until waits for a job to be so.
func (d *dashboard) until(t *testing.T, id string, so func(clusters.JobInfo) bool) clusters.JobInfo {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		j, err := d.Job(d.ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if so(j) {
			return j
		}
		if time.Now().After(deadline) {
			t.Fatalf("still so after %v: %+v", patience, j)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (d *dashboard) ended(t *testing.T, id string) clusters.JobInfo {
	t.Helper()
	return d.until(t, id, func(j clusters.JobInfo) bool { return j.End != nil && j.Status != clusters.RayRunning })
}

func room(t *testing.T, d *dashboard) {
	s, err := d.Status(d.ctx)
	for deadline := time.Now().Add(patience); err == nil && !s.UsageKnown && time.Now().Before(deadline); {
		s, err = d.Status(d.ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	if s.Total.CPU < 1000 || s.Total.Memory < 100 || len(s.Total.Other) > 0 || !s.Total.Covers(s.Used) || s.Latency <= 0 {
		t.Errorf("%+v", s)
	}
	if len(s.Nodes) == 0 || !s.Nodes[0].Head || !s.Nodes[0].Alive || s.Nodes[0].Address == "" || !s.Nodes[0].Total.Equal(s.Total) {
		t.Errorf("nodes %+v", s.Nodes)
	}
}

func succeeds(t *testing.T, d *dashboard) {
	before := time.Now().Add(-time.Second)
	id := d.submit(t, clusters.Submission{Entrypoint: echoes, Metadata: map[string]string{"who": "größe"}, RuntimeEnv: []byte(`{"env_vars":{"A":"1"}}`)})
	j := d.ended(t, id)
	if j.Status != clusters.RaySucceeded || j.ExitCode == nil || *j.ExitCode != 0 || j.NodeID == "" || j.Type != clusters.RaySubmission ||
		j.SubmissionID != id || j.Entrypoint != echoes || j.Metadata["who"] != "größe" || !strings.Contains(string(j.RuntimeEnv), "env_vars") {
		t.Errorf("%+v", j)
	}
	if j.Start.Before(before) || j.End.Before(*j.Start) || j.End.After(time.Now().Add(time.Second)) {
		t.Errorf("from %v to %v", j.Start, j.End)
	}
	text, next, err := d.Logs(d.ctx, j, 0, 1<<20)
	if err != nil || !strings.Contains(text, "\nhello\n") && !strings.Contains(text, "hello\nRunning") || next != int64(len(text)) {
		t.Errorf("%q, next %d, %v", text, next, err)
	}
	list, err := d.Jobs(d.ctx)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, other := range list {
		if other.SubmissionID == id {
			found++
			if other.Status != j.Status || other.Metadata["who"] != "größe" {
				t.Errorf("in the list %+v", other)
			}
		}
	}
	if found != 1 {
		t.Errorf("%d times in the list of %d", found, len(list))
	}
}

func once(t *testing.T, d *dashboard) {
	id := d.submit(t, clusters.Submission{Entrypoint: echoes, Metadata: map[string]string{"n": "1"}})
	err := d.Submit(d.ctx, clusters.Submission{Entrypoint: echoes, SubmissionID: id, Metadata: map[string]string{"n": "2"}})
	var call *clusters.CallError
	if !errors.As(err, &call) || call.Status != 500 || !call.Sent || !strings.Contains(err.Error(), "already exists") || strings.Contains(err.Error(), "Traceback") {
		t.Errorf("the second: %v", err)
	}
	if j, err := d.Job(d.ctx, id); err != nil || j.Metadata["n"] != "1" {
		t.Errorf("%+v, %v", j, err)
	}
}

func absent(t *testing.T, d *dashboard) {
	if _, err := d.Job(d.ctx, "never_was"); !errors.Is(err, clusters.ErrNoJob) {
		t.Errorf("job: %v", err)
	}
	if _, err := d.Stop(d.ctx, "never_was"); !errors.Is(err, clusters.ErrNoJob) {
		t.Errorf("stop: %v", err)
	}
	if _, _, err := d.Logs(d.ctx, clusters.JobInfo{SubmissionID: "never_was"}, 0, 100); !errors.Is(err, clusters.ErrNoJob) {
		t.Errorf("logs: %v", err)
	}
}

func stopped(t *testing.T, d *dashboard) {
	id := d.submit(t, clusters.Submission{Entrypoint: lasts})
	d.until(t, id, func(j clusters.JobInfo) bool { return j.Status == clusters.RayRunning })
	if did, err := d.Stop(d.ctx, id); err != nil || !did {
		t.Fatal(did, err)
	}
	if j := d.ended(t, id); j.Status != clusters.RayStopped {
		t.Errorf("%+v", j)
	}
	if _, err := d.Stop(d.ctx, id); err != nil { // true or false, by whether its supervisor is gone too
		t.Error("a second time:", err)
	}
}

func waits(t *testing.T, d *dashboard) {
	cpus := 1000.0
	id := d.submit(t, clusters.Submission{Entrypoint: echoes, NumCPUs: &cpus})
	if j, err := d.Job(d.ctx, id); err != nil || j.Status != clusters.RayPending || j.NodeID != "" {
		t.Errorf("%+v, %v", j, err)
	}
	if text, next, err := d.Logs(d.ctx, clusters.JobInfo{SubmissionID: id}, 0, 100); err != nil || text != "" || next != 0 {
		t.Errorf("%q %d %v", text, next, err)
	}
	if did, err := d.Stop(d.ctx, id); err != nil || !did {
		t.Fatal(did, err)
	}
	// The stop waits with it: only what was started can be stopped.
	if j, err := d.Job(d.ctx, id); err != nil || j.Status != clusters.RayPending {
		t.Errorf("%+v, %v", j, err)
	}
}

func reserved(t *testing.T, d *dashboard) {
	cpus, memory := 0.3, int64(100<<20+1)
	d.submit(t, clusters.Submission{Entrypoint: lasts, NumCPUs: &cpus, Memory: &memory})
	for deadline := time.Now().Add(patience); ; {
		s, err := d.Status(d.ctx)
		if err != nil {
			t.Fatal(err)
		}
		// Others may use the same Ray.
		if s.Used.CPU >= 300 && s.Used.Memory >= 101 {
			if !s.Nodes[0].Used.Equal(s.Used) {
				t.Errorf("the only node: %v, all: %v", s.Nodes[0].Used, s.Used)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("used %v", s.Used)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func packaged(t *testing.T, d *dashboard) {
	uri := "gcs://_ray_pkg_" + newID() + ".zip"
	if has, err := d.HasPackage(d.ctx, uri); err != nil || has {
		t.Fatal(has, err)
	}
	body := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	if err := d.PutPackage(d.ctx, uri, int64(len(body)), bytes.NewReader(body)); err != nil {
		t.Fatal(err)
	}
	if has, err := d.HasPackage(d.ctx, uri); err != nil || !has {
		t.Fatal(has, err)
	}
}

func pieces(t *testing.T, d *dashboard) {
	j := d.ended(t, d.submit(t, clusters.Submission{Entrypoint: counts}))
	for way, read := range d.WaysOfLogs(d.ctx, j) {
		all, end, err := read(0, 1<<20)
		if err != nil || !strings.HasSuffix(all, "größe 2\ngröße 3\n") || end != int64(len(all)) {
			t.Errorf("%s: %q, next %d, %v", way, all, end, err)
			continue
		}
		var got strings.Builder
		for at, n := int64(0), 0; at < end && n < 1000; n++ {
			text, next, err := read(at, 5)
			if err != nil || next <= at || strings.ContainsRune(text, '\uFFFD') {
				t.Fatalf("%s at %d: %q, next %d, %v", way, at, text, next, err)
			}
			got.WriteString(text)
			at = next
		}
		if got.String() != all {
			t.Errorf("%s in pieces: %q", way, got.String())
		}
		if text, next, err := read(end, 100); err != nil || text != "" || next != end {
			t.Errorf("%s behind the end: %q %d %v", way, text, next, err)
		}
		// The third byte from the left is the middle of ö.
		if text, next, err := read(-9, 100); err != nil || text != "röße 3\n" && text != "öße 3\n" && text != "ße 3\n" || next != end {
			t.Errorf("%s the last: %q %d %v", way, text, next, err)
		}
		if text, _, err := read(-1000_000, 1<<20); err != nil || text != all {
			t.Errorf("%s more than all: %q %v", way, text, err)
		}
	}
}

func followed(t *testing.T, d *dashboard) {
	id := d.submit(t, clusters.Submission{Entrypoint: counts})
	j := d.until(t, id, func(j clusters.JobInfo) bool { return j.NodeID != "" })
	follow := func(what string, offset int64) string {
		var got strings.Builder
		at := offset
		err := d.Follow(d.ctx, clusters.JobInfo{SubmissionID: id}, offset, func(text string, next int64) error {
			got.WriteString(text)
			at = next
			return nil
		})
		if err != nil || !strings.HasSuffix(got.String(), "größe 3\n") || at != offset+int64(got.Len()) {
			t.Errorf("%s: %q, next %d, %v", what, got.String(), at, err)
		}
		return got.String()
	}
	d.WithoutAgent(j.AgentURL) // as where only the dashboard can be reached
	far := follow("far, live", 0)
	if all := follow("far, over", 0); all != far || !strings.Contains(far, "größe 1\n") {
		t.Errorf("%q, then %q", far, all)
	}
	d.Ray = clusters.NewRay(d.Base(), d.token, clusters.RayOptions{})
	if near := follow("near", 10); near != far[10:] {
		t.Errorf("%q", near)
	}
}

func unreadable(t *testing.T, d *dashboard) {
	j := d.ended(t, d.submit(t, clusters.Submission{Entrypoint: rubbish}))
	for _, far := range []bool{false, true} {
		if far {
			d.WithoutAgent(j.AgentURL)
		}
		if text, _, err := d.Logs(d.ctx, j, 0, 1<<20); err != nil || !strings.Contains(text, "a\uFFFDb\n") {
			t.Errorf("far %t: %q, %v", far, text, err)
		}
	}
}
