package api

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/jobs"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// What the API was written against.
var (
	_ Clusters = (*clusters.Registry)(nil)
	_ Packages = (*jobs.PackageStore)(nil)
)

// fakeJobs are the jobs and clusters of a fake; like it they answer with what a test put into it.
type fakeJobs struct{ *fake }

// mesh is what a fake has of jobs, clusters and packages.
type mesh struct {
	job      *jobs.Job // sampleJob unless said
	known    bool      // Submit says that it was there
	waits    func(ctx context.Context, until func(jobs.Job) bool) (jobs.Job, error)
	found    jobs.Page
	history  []jobs.Event
	outside  []jobs.Outside
	log      jobs.Log
	follow   func(ctx context.Context, offset int64, give func(jobs.Log) error) error
	clusters map[string]clusters.Cluster
	samples  []clusters.Sample
	package_ []byte // what was saved; nil: nothing is there
	saving   func(io.Reader) error
}

func (f fakeJobs) theJob() jobs.Job {
	if f.job == nil {
		return sampleJob()
	}
	return *f.job
}

func (f fakeJobs) Submit(_ context.Context, s jobs.Spec) (jobs.Job, bool, error) {
	return f.theJob(), !f.known, f.asked("Submit", "", s)
}

func (f fakeJobs) Job(_ context.Context, id string) (jobs.Job, error) {
	return f.theJob(), f.asked("Job", "", id)
}

func (f fakeJobs) Wait(ctx context.Context, id string, until func(jobs.Job) bool) (jobs.Job, error) {
	if err := f.asked("Wait", "", id); err != nil {
		return jobs.Job{}, err
	}
	return f.waits(ctx, until)
}

func (f fakeJobs) Find(_ context.Context, q jobs.Filter) (jobs.Page, error) {
	return f.found, f.asked("Find", "", q)
}

func (f fakeJobs) Live(context.Context) (map[string]map[string]int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return map[string]map[string]int{"gpu": {jobs.Running: 2}}, f.err
}

func (f fakeJobs) Stop(_ context.Context, id, who string) (jobs.Job, error) {
	return f.theJob(), f.asked("Stop", "", id, who)
}

func (f fakeJobs) Events(_ context.Context, id string) ([]jobs.Event, error) {
	return f.history, f.asked("Events", "", id)
}

func (f fakeJobs) Logs(_ context.Context, id string, offset, limit int64) (jobs.Log, error) {
	l := f.log
	if l == (jobs.Log{}) {
		l.Next = max(offset, 0) // nothing there yet
	}
	return l, f.asked("Logs", "", id, offset, limit)
}

func (f fakeJobs) Follow(ctx context.Context, id string, offset int64, give func(jobs.Log) error) error {
	if err := f.asked("Follow", "", id, offset); err != nil {
		return err
	}
	return f.follow(ctx, offset, give)
}

func (f fakeJobs) Outside(_ context.Context, cluster string, limit int) ([]jobs.Outside, error) {
	return f.outside, f.asked("Outside", "", cluster, limit)
}

func (f fakeJobs) Changes(context.Context) <-chan jobs.Change { return nil }

// fakeRegistry are the clusters of a fake.
type fakeRegistry struct{ *fake }

func (f fakeRegistry) All() []clusters.Cluster {
	return slices.SortedFunc(maps.Values(f.clusters), func(a, b clusters.Cluster) int { return slices.Compare([]byte(a.Name), []byte(b.Name)) })
}

func (f fakeRegistry) Get(name string) (clusters.Cluster, bool) {
	c, ok := f.clusters[name]
	return c, ok
}

func (f fakeRegistry) Put(_ context.Context, s clusters.Spec, who string, rev int64) (clusters.Cluster, error) {
	return clusters.Cluster{Spec: s, Source: clusters.FromAPI, Rev: 1}, f.asked("Put", "", s, who, rev)
}

func (f fakeRegistry) Delete(_ context.Context, name, who string) error {
	return f.asked("Delete", "", name, who)
}

func (f fakeRegistry) Hold(_ context.Context, name string, held bool, reason, who string) (clusters.Cluster, error) {
	return f.clusters["gpu"], f.asked("Hold", "", name, held, reason, who)
}

func (f fakeRegistry) Import(_ context.Context, specs []clusters.Spec, who string) error {
	return f.asked("Import", "", specs, who)
}

func (f fakeRegistry) History(_ context.Context, name string, since time.Time, points int) ([]clusters.Sample, error) {
	return f.samples, f.asked("History", "", name, since, points)
}

// fakePackages keep one package of a fake.
type fakePackages struct{ *fake }

func (f fakePackages) HasPackage(_ context.Context, uri string) (bool, error) {
	return f.package_ != nil, f.asked("HasPackage", "", uri)
}

func (f fakePackages) SavePackage(_ context.Context, uri string, size int64, body io.Reader) error {
	if err := f.asked("SavePackage", "", uri, size); err != nil {
		return err
	}
	if f.saving != nil {
		return f.saving(body)
	}
	b, err := io.ReadAll(body)
	if err == nil {
		f.package_ = b
	}
	return err
}

func sampleJob() jobs.Job {
	at := noon
	code := 3
	return jobs.Job{UID: sched.ID{1, 2}, Spec: jobs.Spec{Entrypoint: "python /a/x.py", SubmissionID: "sub ü", JobID: "nightly", RuntimeEnv: json.RawMessage(`{"pip":["numpy"]}`),
		Metadata: map[string]string{"user": "alice"}, Tags: []string{"gpu"}, PreferredCluster: "gpu", Requirements: sched.Resources{CPU: 1500, GPU: 1000, Memory: 1536, Other: []sched.Amount{{Name: "tpu", Value: 250}}},
		Reserve: jobs.ReserveEntrypoint, Priority: 7500, QueueTimeout: 90 * time.Second, MaxRetries: 2, RetryOn: []string{jobs.ClusterLost}, SubmittedBy: "api"},
		State: jobs.Running, Attempt: 2, Cluster: "gpu", RayID: "sub ü-2", MergedEnv: json.RawMessage(`{"pip":["numpy","torch"]}`),
		Placement: &jobs.Placement{Cluster: "gpu", Reason: "it has most room", Score: 0.5, Parts: &jobs.Parts{Free: 0.5, Weight: 1, Health: 1, Prefer: 1, Tags: 1},
			Others: []jobs.Candidate{{Cluster: "cpu", Code: "no_room", Reason: "lacks 1 gpu", Missing: sched.Resources{GPU: 1000}}}, Not: []jobs.Reject{{Code: "no_room", Count: 1, Clusters: []string{"cpu"}}}},
		Tried: []jobs.Tried{{Cluster: "old", Why: "it answered 500", At: noon}}, ExitCode: &code, CreatedAt: noon, QueuedAt: noon, PlacedAt: &at, AcceptedAt: &at, StartedAt: &at, Notes: []string{"a note"}}
}

func sampleCluster() clusters.Cluster {
	at := noon
	return clusters.Cluster{Spec: clusters.Spec{Name: "gpu", HeadAddress: "10.0.0.4:10001", Dashboard: "http://10.0.0.4:8265", RuntimeEnv: json.RawMessage(`{"pip":["torch"]}`), Prefer: true, Weight: 0.8,
		Tags: []string{"gpu"}, Token: &clusters.Secret{Env: "GPU_TOKEN"}, Most: sched.Resources{CPU: 64000}}, Source: clusters.FromFile, Rev: 3,
		Hold: clusters.Hold{Held: true, Reason: "drivers", Actor: "ann", Since: &at},
		Status: clusters.Status{State: clusters.Healthy, Since: noon, At: noon, SeenAt: noon, Version: "2.60.0", Session: "s1", Total: sched.Resources{CPU: 8000, Memory: 4096},
			Used: sched.Resources{CPU: 9000, Memory: 96}, UsageKnown: true, Nodes: []clusters.Node{{ID: "n1", Address: "10.0.0.4", Head: true, Alive: true, Total: sched.Resources{CPU: 8000}}, {ID: "n2"}},
			Latency: 1500 * time.Microsecond, Score: 0.9, Reasons: []string{"it answers slowly"}, Breaker: clusters.HalfOpen, RetryAt: noon}}
}

var errCluster = &ledger.Error{Code: "cluster_unreachable", Message: "cluster gpu does not answer"}
