package view_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/clusters/clustertest"
	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/handlers/view"
	"github.com/schedulemesh/schedulemesh/jobs"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/web"
)

// mesh is jobs over stand-in clusters as a server runs them: the registry, what watches it, the jobs, and the
// dashboard's view of it all.
type mesh struct {
	*world
	registry *clusters.Registry
	jobs     *jobs.Service
}

// always is a lease that this server has.
type always struct{ never chan struct{} }

func (always) Contend(string)                         {}
func (a always) Leads(string) (bool, <-chan struct{}) { return true, a.never }
func (always) MayAct(string) bool                     { return true }

func openMesh(t *testing.T) *mesh {
	t.Helper()
	m := &mesh{world: open(t)}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	registry, err := clusters.OpenRegistry(t.Context(), m.db, clusters.RegistryOptions{Logger: log})
	m.must(err)
	watcher := clusters.NewWatcher(registry, clusters.WatcherOptions{Busy: 50 * time.Millisecond, Idle: 50 * time.Millisecond, Timeout: time.Second, Logger: log})
	service := jobs.Open(m.db, jobs.Options{Fleet: registry, Leases: always{make(chan struct{})}, Deployment: "test", Leading: watcher.Run, Logger: log,
		Client: func(name string) (jobs.Ray, bool) { return watcher.Client(name) }})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { service.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done; registry.Close() })
	m.registry, m.jobs = registry, service
	m.view = view.New(m.Ledger, printed{}, view.Options{Jobs: service, Registry: registry, LostAfter: time.Minute, Patience: time.Minute})
	return m
}

// eventually waits until the pages show something.
func (m *mesh) eventually(what string, ok func() bool) {
	m.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// add puts a stand-in among the clusters through the form, and waits until it is healthy.
func (m *mesh) add(name string, o clustertest.Options, change ...func(*web.ClusterSpec)) *clustertest.Cluster {
	m.t.Helper()
	c := clustertest.New(m.t, o)
	spec := web.ClusterSpec{Name: name, HeadAddress: "127.0.0.1:6379", Dashboard: c.URL, Weight: 1}
	for _, do := range change {
		do(&spec)
	}
	m.must(m.view.AddCluster(m.t.Context(), spec))
	m.eventually(name+" is healthy", func() bool { return m.row(name).State == "healthy" })
	return c
}

func (m *mesh) row(name string) web.ClusterRow {
	m.t.Helper()
	l, err := m.view.Clusters(m.t.Context(), web.ClusterFilter{Text: name})
	m.must(err)
	if len(l.Items) == 0 {
		return web.ClusterRow{}
	}
	return l.Items[0]
}

func (m *mesh) submitJob(id string, cpu int64, change ...func(*web.NewJob)) {
	m.t.Helper()
	n := web.NewJob{Entrypoint: "python /srv/" + id + ".py", SubmissionID: id, Priority: 5, Reserve: "entrypoint", Request: web.Resources{"cpu": cpu * 1000}}
	for _, do := range change {
		do(&n)
	}
	got, err := m.view.SubmitJob(pages.WithUser(m.t.Context(), "mei"), n)
	m.must(err)
	if got != id {
		m.t.Fatalf("submitted as %q", got)
	}
}

func (m *mesh) job(id string) web.Job {
	m.t.Helper()
	j, err := m.view.Job(m.t.Context(), id)
	m.must(err)
	return j
}

func (m *mesh) becomes(id, state string) web.Job {
	m.t.Helper()
	m.eventually(id+" becomes "+state, func() bool { return m.job(id).State == state })
	return m.job(id)
}

func saysNote(n web.Note) string { return n.Title.String() + " " + n.Text.String() }

func TestAJobsPageTellsItsWholeLife(t *testing.T) {
	t.Parallel()
	m := openMesh(t)
	ray := m.add("cpu", clustertest.Options{CPUs: 4, Memory: 8 << 30}, func(s *web.ClusterSpec) {
		s.Tags, s.Prefer, s.RuntimeEnv = []string{"stable"}, true, json.RawMessage(`{"env_vars": {"CLUSTER_TOKEN": "c1uster", "A": "1"}}`)
	})
	m.add("small", clustertest.Options{CPUs: 1})
	m.submitJob("first", 3, func(n *web.NewJob) {
		n.Tags, n.Metadata, n.JobID, n.Preferred = []string{"stable"}, map[string]string{"user": "mei"}, "night", "nowhere"
		n.RuntimeEnv = json.RawMessage(`{"env_vars": {"API_KEY": "s3cret"}}`)
	})
	j := m.becomes("first", "RUNNING")
	if j.Cluster != "cpu" || j.Owner != "mei" || j.JobID != "night" || j.Hidden != 2 || len(j.Tags) != 1 {
		t.Errorf("%+v", j)
	}
	has(t, "what is next", saysNote(j.Now), "Runs on cpu.", "are kept here")
	has(t, "the environment", j.Env+j.Merged, web.Masked, `"A": "1"`)
	if strings.Contains(j.Env+j.Merged, "s3cret") || strings.Contains(j.Env+j.Merged, "c1uster") {
		t.Errorf("a secret is shown: %s %s", j.Env, j.Merged)
	}
	again, errs := j.Again.Parse()
	if again.SubmissionID = "again"; len(errs) > 0 || strings.Contains(string(again.RuntimeEnv), "s3cret") {
		t.Fatalf("again %+v, %v", j.Again, errs)
	}
	again.Preferred, again.Request = "", web.Resources{}
	_, err := m.view.SubmitJob(t.Context(), again)
	m.must(err)
	if same, err := m.jobs.Job(t.Context(), "again"); err != nil || !strings.Contains(string(same.RuntimeEnv), "s3cret") {
		t.Errorf("submitted again with %s, %v", same.RuntimeEnv, err)
	}
	again.Like, again.SubmissionID = "", "lost"
	if _, err := m.view.SubmitJob(t.Context(), again); err == nil {
		t.Error("a masked value was taken for a value")
	}
	if j.Why == nil || j.Why.Cluster != "cpu" || j.Why.Score <= 0 || len(j.Why.Parts) != 5 || len(j.Why.Others) != 1 || j.Why.Others[0].Cluster != "small" || len(j.Why.Not) != 0 {
		t.Errorf("why %+v", j.Why)
	}
	product := 1.0
	for _, p := range j.Why.Parts {
		product *= p.Value
	}
	if d := product - j.Why.Score; d > 1e-6 || d < -1e-6 {
		t.Errorf("the parts give %v, the score is %v", product, j.Why.Score)
	}
	has(t, "the reason against the other", j.Why.Others[0].Reason, "2 cpu")
	has(t, "the notes", strings.Join(append(j.Notes, j.Why.Notes...), " "), `no cluster "nowhere"`)
	has(t, "the timeline", lines(j.Timeline), "Running on cpu", "Placed on cpu | it ", "Submitted by mei")
	if j.Timeline[0].Took >= 0 {
		t.Error("the timeline does not end with now")
	}

	m.submitJob("second", 2, func(n *web.NewJob) { n.QueueTimeout = time.Hour })
	m.eventually("the second says what it waits for", func() bool { return strings.Contains(saysNote(m.job("second").Now), "most that is free") })
	j = m.job("second")
	has(t, "what it waits for", saysNote(j.Now), "Waits, first in line.", "No cluster can take it now", "The most that is free is 1 cpu, on ", "It fails if it still waits in 59 min")
	if j.Position != 1 || j.Cluster != "" || j.Now.Kind != "warn" || j.JobRow.Reason == "" {
		t.Errorf("%+v", j.JobRow)
	}

	ray.Print("first", "hello\nworld\n")
	l, err := m.view.JobLog(t.Context(), "first", -1, 64<<10)
	m.must(err)
	if !strings.HasSuffix(l.Text, "hello\nworld\n") || l.Ended || !l.EOF || l.Problem != "" || l.Next == 0 {
		t.Errorf("log %+v", l)
	}
	rest, err := m.view.JobLog(t.Context(), "first", l.Next-6, 4)
	m.must(err)
	if rest.Text != "worl" || rest.EOF {
		t.Errorf("from the middle: %+v", rest)
	}

	ray.End("first", clusters.RayFailed)
	j = m.becomes("first", "FAILED")
	has(t, "how it ended", saysNote(j.Now), "Failed: ", "exit code 1")
	if j.Now.Kind != "bad" || j.ExitCode == nil || *j.ExitCode != 1 || strings.Contains(j.JobRow.Reason, "truncated") {
		t.Errorf("%+v, reason %q", j.Now, j.JobRow.Reason)
	}
	m.becomes("second", "RUNNING")
	m.must(m.view.StopJob(pages.WithUser(t.Context(), "amara"), "second"))
	j = m.becomes("second", "STOPPED")
	has(t, "who stopped it", saysNote(j.Now)+lines(j.Timeline), "Stopped by amara")
	if err := m.view.StopJob(t.Context(), "second"); err == nil || !strings.Contains(err.Error(), "second is stopped already") {
		t.Errorf("stopping it again: %v", err)
	}
	if f := m.job("second").Again; f == nil || f.CPU != "2" || f.Entrypoint != "python /srv/second.py" || f.QueueTimeout != "1 h" {
		t.Errorf("again %+v", f)
	}
}

func TestAClustersRoomIsToldApart(t *testing.T) {
	t.Parallel()
	m := openMesh(t)
	ray := m.add("cpu", clustertest.Options{CPUs: 8, Nodes: 2})
	ray.Start(clusters.Submission{Entrypoint: "python other.py", SubmissionID: "theirs", NumCPUs: new(2.0)})
	m.submitJob("mine", 3)
	m.becomes("mine", "RUNNING")
	var r web.Room
	m.eventually("what others use is known", func() bool {
		r = m.row("cpu").Room[0]
		return r.Jobs == 3000 && r.Others == 2000
	})
	if r.Resource != "cpu" || r.Total != 16000 || r.Free() != 11000 {
		t.Errorf("%+v", r)
	}
	l, err := m.view.Clusters(t.Context(), web.ClusterFilter{})
	m.must(err)
	if l.Healthy != 1 || l.All != 1 || l.Free["cpu"] != 11000 || l.Whole["cpu"] != 16000 || l.Jobs["RUNNING"] != 1 || l.Items[0].Nodes != 2 || l.Items[0].Jobs["RUNNING"] != 1 {
		t.Errorf("%+v", l)
	}
	var p web.ClusterPage
	m.eventually("the others' job is listed", func() bool {
		p, err = m.view.Cluster(t.Context(), "cpu", 1)
		m.must(err)
		return len(p.Outside) == 1
	})
	if p.Outside[0].ID != "theirs" || len(p.Recent) != 1 || p.Recent[0].ID != "mine" || len(p.NodeList) != 2 || p.NodeList[0].Room[0].Total != 8000 {
		t.Errorf("%+v", p)
	}
	out, err := m.view.Jobs(t.Context(), web.JobFilter{Outside: true})
	m.must(err)
	if len(out.Outside) != 1 || out.Outside[0].Entrypoint != "python other.py" {
		t.Errorf("outside %+v", out.Outside)
	}
	f, err := m.view.Frame(t.Context(), "default")
	m.must(err)
	if f.Clusters != 1 || f.LiveJobs != 1 {
		t.Errorf("frame %+v", f)
	}
}

func TestASilentClusterIsSaidEverywhere(t *testing.T) {
	t.Parallel()
	m := openMesh(t)
	ray := m.add("east", clustertest.Options{CPUs: 4})
	m.submitJob("there", 1)
	m.becomes("there", "RUNNING")
	ray.Down()
	j := m.becomes("there", "UNKNOWN")
	has(t, "what is next", saysNote(j.Now), "Its cluster is silent", "east last answered", "After 1 min of silence the job counts as lost and fails.")
	c := m.row("east")
	if c.State != "unhealthy" || c.Error == "" || c.Score != 0 {
		t.Errorf("%+v", c)
	}
	l, err := m.view.JobLog(t.Context(), "there", -1, 1000)
	m.must(err)
	if l.Problem == "" {
		t.Errorf("log of a cluster that is away: %+v", l)
	}
	o, err := m.view.Overview(t.Context(), "default")
	m.must(err)
	if len(o.Fleet.Items) != 1 || len(o.Notes) != 1 {
		t.Fatalf("overview %+v, notes %+v", o.Fleet, o.Notes)
	}
	has(t, "the note", saysNote(o.Notes[0]), "Cluster east takes no jobs.")
}

func TestAClusterIsConfiguredByItsForm(t *testing.T) {
	t.Parallel()
	m := openMesh(t)
	ctx := pages.WithUser(t.Context(), "mei")
	token := filepath.Join(t.TempDir(), "token")
	m.must(os.WriteFile(token, []byte("open-sesame\n"), 0o600))
	m.add("gpu", clustertest.Options{CPUs: 4, Token: "open-sesame"}, func(s *web.ClusterSpec) {
		s.RuntimeEnv, s.TokenFile, s.Most, s.Tags = json.RawMessage(`{"env_vars": {"HF_TOKEN": "s3cret", "A": "1"}}`), token, web.Resources{"cpu": 64000}, []string{"gpu"}
	})
	f, err := m.view.ClusterForm(ctx, "gpu")
	m.must(err)
	if strings.Contains(f.RuntimeEnv, "s3cret") || f.Token != "file" || f.TokenRef != token || f.CPU != "64" || f.Tags != "gpu" {
		t.Errorf("form %+v", f)
	}
	f.Weight, f.RuntimeEnv = "0.5", strings.Replace(f.RuntimeEnv, `"1"`, `"2"`, 1)
	spec, errs := f.Parse()
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	m.must(m.view.EditCluster(ctx, spec))
	c, _ := m.registry.Get("gpu")
	if c.Weight != 0.5 || !strings.Contains(string(c.RuntimeEnv), "s3cret") || !strings.Contains(string(c.RuntimeEnv), `"2"`) || c.Token.File != token || c.Most.CPU != 64000 {
		t.Errorf("saved %+v, %s", c.Spec, c.RuntimeEnv)
	}
	code := func(err error) string {
		if coded, ok := err.(pages.Coded); ok {
			return coded.Code()
		}
		return fmt.Sprint(err)
	}
	if got := code(m.view.EditCluster(ctx, spec)); got != "version_conflict" {
		t.Errorf("an old form is answered with %s", got)
	}
	if got := code(m.view.AddCluster(ctx, spec)); got != "invalid" {
		t.Errorf("a name that is taken is answered with %s", got)
	}
	err = m.view.AddCluster(ctx, web.ClusterSpec{Name: "bad", HeadAddress: "no port here", Weight: 1, RuntimeEnv: json.RawMessage(`{"pip": 3}`)})
	coded, ok := err.(pages.Coded)
	if !ok || coded.Code() != "invalid" || len(coded.Fields()) == 0 {
		t.Fatalf("a bad form is answered with %v", err)
	}

	m.must(m.view.HoldCluster(ctx, "gpu", web.HoldRequest{State: "held", Reason: "new disks"}))
	if h := m.row("gpu").Hold; !h.On() || h.Actor != "mei" || h.Reason != "new disks" || h.Since.IsZero() {
		t.Errorf("hold %+v", h)
	}
	m.must(m.view.HoldCluster(ctx, "gpu", web.HoldRequest{}))
	if m.row("gpu").Hold.On() {
		t.Error("it is still held")
	}
	m.submitJob("there", 1)
	m.becomes("there", "RUNNING")
	if got := code(m.view.RemoveCluster(ctx, "gpu")); got != "cluster_in_use" {
		t.Errorf("a cluster with jobs is removed: %s", got)
	}
	m.must(m.view.StopJob(ctx, "there"))
	m.becomes("there", "STOPPED")
	m.must(m.view.RemoveCluster(ctx, "gpu"))
	if _, err := m.view.Cluster(ctx, "gpu", 1); code(err) != "unknown_cluster" {
		t.Errorf("it is still there: %v", err)
	}
}

func TestJobsAreFoundFilteredAndRefused(t *testing.T) {
	t.Parallel()
	m := openMesh(t)
	m.add("cpu", clustertest.Options{CPUs: 4, Run: time.Millisecond})
	for i := range 5 {
		m.submitJob(fmt.Sprintf("shard-%d", i), 1, func(n *web.NewJob) {
			n.Tags, n.Metadata = []string{fmt.Sprint("t", i%2)}, map[string]string{"n": fmt.Sprint(i)}
		})
	}
	for i := range 5 {
		m.becomes(fmt.Sprintf("shard-%d", i), "SUCCEEDED")
	}
	count := func(f web.JobFilter, want int) {
		t.Helper()
		f.Limit = 50
		l, err := m.view.Jobs(t.Context(), f)
		m.must(err)
		if len(l.Items) != want || l.Total != want {
			t.Errorf("%+v finds %d of %d, want %d", f, len(l.Items), l.Total, want)
		}
	}
	count(web.JobFilter{State: "all"}, 5)
	count(web.JobFilter{State: "live"}, 0)
	count(web.JobFilter{State: "SUCCEEDED", Tag: "t0"}, 3)
	count(web.JobFilter{State: "all", Metadata: []web.Label{{Key: "n", Value: "3"}}}, 1)
	count(web.JobFilter{State: "all", Text: "SHARD-2"}, 1)
	count(web.JobFilter{State: "all", Cluster: "elsewhere"}, 0)
	count(web.JobFilter{State: "all", Age: "1 h"}, 5)
	page, err := m.view.Jobs(t.Context(), web.JobFilter{State: "all", Limit: 2})
	m.must(err)
	if len(page.Items) != 2 || page.Next == "" || page.Total != 5 || page.Count["SUCCEEDED"] != 5 {
		t.Errorf("%+v", page)
	}
	hits, err := m.view.Find(t.Context(), "default", "shard-3", 10)
	m.must(err)
	if len(hits) != 1 || hits[0].Href != "/jobs/shard-3" || hits[0].Note != "succeeded on cpu" {
		t.Errorf("found %+v", hits)
	}
	if hits, err = m.view.Find(t.Context(), "default", "cp", 10); err != nil || len(hits) != 1 || hits[0].Kind != "cluster" {
		t.Errorf("found %+v, %v", hits, err)
	}
	for field, change := range map[string]func(*web.NewJob){
		"entrypoint":           func(n *web.NewJob) { n.Entrypoint = "python ./x.py" },
		"submission_id":        func(n *web.NewJob) { n.SubmissionID = "shard-1" },
		"runtime_env.env_vars": func(n *web.NewJob) { n.RuntimeEnv = json.RawMessage(`{"env_vars": 3}`) },
		"metadata":             func(n *web.NewJob) { n.Metadata = map[string]string{"a": strings.Repeat("x", 100_000)} },
		"gpu":                  func(n *web.NewJob) { n.Request = web.Resources{"gpu": 1500} },
	} {
		n := web.NewJob{Entrypoint: "python /x.py", Priority: 5, Reserve: "entrypoint"}
		change(&n)
		_, err := m.view.SubmitJob(t.Context(), n)
		coded, ok := err.(pages.Coded)
		if !ok || coded.Fields()[field] == "" {
			t.Errorf("a bad %s is answered with %v", field, err)
		}
	}
	_, err = m.view.SubmitJob(t.Context(), web.NewJob{Entrypoint: "python /x.py", Priority: 5, Reserve: "entrypoint", Request: web.Resources{"cpu": 99000}})
	if coded, ok := err.(pages.Coded); !ok || coded.Code() != "no_cluster_large_enough" {
		t.Errorf("a job that fits nowhere is answered with %v", err)
	}
	for _, err := range []error{m.view.StopJob(t.Context(), "gone"), second(m.view.Job(t.Context(), "gone")), second(m.view.JobLog(t.Context(), "gone", 0, 10))} {
		if coded, ok := err.(pages.Coded); !ok || coded.Code() != "unknown_job" {
			t.Errorf("a job that is not there is answered with %v", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestPagesHearOfJobsAndClusters(t *testing.T) {
	t.Parallel()
	m := openMesh(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	heard := m.view.Subscribe(ctx, "default")
	wait := func(want pages.Topic) {
		t.Helper()
		limit := time.After(20 * time.Second)
		for {
			select {
			case topic := <-heard:
				if topic == want {
					return
				}
			case <-limit:
				t.Fatalf("nothing was heard of %s", want)
			}
		}
	}
	m.add("cpu", clustertest.Options{CPUs: 4})
	wait(pages.Clusters)
	m.submitJob("x", 1)
	wait(pages.Jobs)
}

func TestChartsAreDrawnFromSamples(t *testing.T) {
	t.Parallel()
	m := openMesh(t)
	m.add("cpu", clustertest.Options{CPUs: 4})
	for i := range 5 {
		m.must(m.registry.Sample(t.Context(), map[string]clusters.Sample{"cpu": {At: time.Now().Add(time.Duration(i-40) * time.Minute), Score: 0.5, Total: sched.Resources{CPU: 4000}, Used: sched.Resources{CPU: int64(i) * 1000}, Jobs: i}}))
	}
	p, err := m.view.Cluster(t.Context(), "cpu", 1)
	m.must(err)
	if len(p.Charts) < 3 {
		t.Fatalf("%d charts", len(p.Charts))
	}
	cpu := p.Charts[0]
	if cpu.Title != "CPU in use" || cpu.Top != 4000 || cpu.TopWords != "4" || len(cpu.Points) < 5 || cpu.Points[4].Value != 4000 {
		t.Errorf("%+v", cpu)
	}
}

func TestAServerWithoutJobsSaysSo(t *testing.T) {
	t.Parallel()
	w := open(t)
	for what, err := range map[string]error{"clusters": second(w.view.Clusters(t.Context(), web.ClusterFilter{})), "jobs": second(w.view.Jobs(t.Context(), web.JobFilter{})), "a job": second(w.view.Job(t.Context(), "x"))} {
		if coded, ok := err.(pages.Coded); !ok || coded.Code() != "jobs_unavailable" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := w.view.Frame(t.Context(), "default"); err != nil {
		t.Error(err)
	}
}
