package api

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/jobs"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// TestJobRoutes sends one good request to every route of jobs and clusters: what is asked, and what is answered?
func TestJobRoutes(t *testing.T) {
	at := noon
	full := jobs.Spec{Entrypoint: "python /a/x.py", SubmissionID: "sub-1", JobID: "nightly", RuntimeEnv: json.RawMessage(`{"py_modules":["gcs://_ray_pkg_01234567.zip"],"working_dir":"s3://b/x.zip"}`),
		Metadata: map[string]string{"user": "alice"}, Tags: []string{"a", "b"}, PreferredCluster: "gpu", Reserve: jobs.ReserveNone, Priority: 7250, QueueTimeout: 1500 * time.Millisecond,
		MaxRetries: 2, RetryOn: []string{jobs.NodeLost}, SubmittedBy: "api", Requirements: sched.Resources{CPU: 4000, GPU: 500, Memory: 103, Other: []sched.Amount{{Name: "tpu", Value: 1}}}}
	tests := map[string]struct {
		method, target, body string
		call                 string
		args                 []any
		status               int
		has                  map[string]any
	}{
		"submit job": {
			"POST", "/api/v1/jobs", `{"entrypoint":"python /a/x.py","submission_id":"sub-1","job_id":"nightly","runtime_env":{"working_dir":"s3://b/x.zip","py_modules":["gcs://_ray_pkg_01234567.zip"]},
				"metadata":{"user":"alice"},"tags":["a","b","a"],"preferred_cluster":"gpu","resource_requirements":{"cpu":4,"GPU":0.5,"memory":0.1,"tpu":0.0001},"reserve":"none","priority":7.25,
				"queue_timeout":1.5,"max_retries":2,"retry_on":["node_lost"]}`,
			"Submit", []any{full}, 201, map[string]any{
				"uid": "01020000-0000-0000-0000-000000000000", "submission_id": "sub ü", "job_id": "nightly", "entrypoint": "python /a/x.py", "state": "RUNNING", "status": "RUNNING", "cluster": "gpu",
				"ray_submission_id": "sub ü-2", "attempt": 2.0, "preferred_cluster": "gpu", "resource_requirements": map[string]any{"CPU": 1.5, "GPU": 1.0, "memory": 1.5, "tpu": 0.25},
				"reserve": "entrypoint", "priority": 7.5, "queue_timeout": 90.0, "queue_position": nil, "max_retries": 2.0, "retry_on": []any{"cluster_lost"}, "runtime_env.pip": []any{"numpy"},
				"merged_runtime_env.pip": []any{"numpy", "torch"}, "metadata.user": "alice", "tags": []any{"gpu"}, "placement.cluster": "gpu", "placement.parts.free": 0.5,
				"placement.others.missing.gpu": 1.0, "placement.not.count": 1.0, "tried.cluster": "old", "notes": []any{"a note"}, "stop_requested_by": "", "stop_requested_at": nil, "exit_code": 3.0,
				"created_at": "2026-03-01T12:00:00.250Z", "started_at": "2026-03-01T12:00:00.250Z", "ended_at": nil, "submitted_by": "api",
				"links.self": "/api/v1/jobs/sub%20%C3%BC", "links.page": "/jobs/sub%20%C3%BC",
			},
		},
		"submit job with little": {"POST", "/api/v1/jobs", `{"entrypoint":"python"}`, "Submit", []any{jobs.Spec{Entrypoint: "python", Priority: 5000, SubmittedBy: "api"}}, 201, nil},
		"submit job with nulls": {"POST", "/api/v1/jobs", `{"entrypoint":"python","submission_id":null,"runtime_env":null,"metadata":null,"tags":null,"resource_requirements":null,"priority":null,"queue_timeout":null,"retry_on":null}`, "Submit",
			[]any{jobs.Spec{Entrypoint: "python", Priority: 5000, SubmittedBy: "api"}}, 201, nil},
		"list jobs": {
			"GET", "/api/v1/jobs?state=QUEUED,RUNNING&cluster=gpu&job_id=nightly&tag=a&tag=b&metadata=user%3Dalice&metadata=x=y=z&q=tr&after=2026-03-01T12:00:00.25Z&before=2026-03-02T00:00:00%2B01:00&limit=7&cursor=abc", "",
			"Find", []any{jobs.Filter{States: []string{"QUEUED", "RUNNING"}, Cluster: "gpu", JobID: "nightly", Tags: []string{"a", "b"}, Metadata: map[string]string{"user": "alice", "x": "y=z"}, Text: "tr",
				After: noon, Before: time.Date(2026, 3, 2, 0, 0, 0, 0, time.FixedZone("", 3600)), Limit: 7, Cursor: "abc"}}, 200,
			map[string]any{"items.submission_id": "sub ü", "items.runtime_env": nil, "items.merged_runtime_env": nil, "items.placement": nil, "items.metadata.user": "alice", "next_cursor": "next", "total": 12.0, "by_state": map[string]any{"RUNNING": 12.0}},
		},
		"list all jobs": {"GET", "/api/v1/jobs", "", "Find", []any{jobs.Filter{Limit: 50}}, 200, nil},
		"read job":      {"GET", "/api/v1/jobs/sub%20%C3%BC", "", "Job", []any{"sub ü"}, 200, map[string]any{"state": "RUNNING"}},
		"stop job":      {"POST", "/api/v1/jobs/sub-1/stop", "", "Stop", []any{"sub-1", "api"}, 200, map[string]any{"state": "RUNNING"}},
		"job events": {"GET", "/api/v1/jobs/sub-1/events", "", "Events", []any{"sub-1"}, 200,
			map[string]any{"items.id": 5.0, "items.type": "placed", "items.cluster": "gpu", "items.attempt": 1.0, "items.detail.a": 1.0, "items.at": "2026-03-01T12:00:00.250Z", "next_cursor": nil}},
		"job logs":                {"GET", "/api/v1/jobs/a%20b/logs?offset=-10&limit=100", "", "Logs", []any{"a b", int64(-10), int64(100)}, 200, map[string]any{"text": "one\ntwo\nthree\n", "next": 14.0, "ended": true, "kept": true}},
		"all of a job's logs":     {"GET", "/api/v1/jobs/s/logs?follow=false", "", "Logs", []any{"s", int64(0), int64(65536)}, 200, nil},
		"last lines of a job":     {"GET", "/api/v1/jobs/s/logs?tail=2", "", "Logs", []any{"s", int64(-1 << 20), int64(1 << 20)}, 200, map[string]any{"text": "two\nthree\n", "next": 14.0}},
		"last lines in few bytes": {"GET", "/api/v1/jobs/s/logs?tail=9&limit=20", "", "Logs", []any{"s", int64(-20), int64(20)}, 200, map[string]any{"text": "one\ntwo\nthree\n"}},
		"outside jobs": {"GET", "/api/v1/outside-jobs?cluster=gpu&limit=3", "", "Outside", []any{"gpu", 3}, 200,
			map[string]any{"items.ray_id": "raysubmit_1", "items.kind": "DRIVER", "items.metadata": map[string]any{}, "items.started_at": "2026-03-01T12:00:00.250Z", "items.ended_at": nil}},
		"outside jobs everywhere": {"GET", "/api/v1/outside-jobs", "", "Outside", []any{"", 100}, 200, nil},

		"list clusters": {"GET", "/api/v1/clusters", "", "", nil, 200,
			map[string]any{"items.name": "gpu", "items.nodes": nil, "items.alive_nodes": 1.0, "items.jobs": map[string]any{"RUNNING": 2.0}, "next_cursor": nil}},
		"read cluster": {"GET", "/api/v1/clusters/gpu", "", "", nil, 200, map[string]any{
			"source": "file", "head_address": "10.0.0.4:10001", "dashboard": "http://10.0.0.4:8265", "runtime_env.pip": []any{"torch"}, "prefer": true, "weight": 0.8, "tags": []any{"gpu"},
			"token": map[string]any{"env": "GPU_TOKEN"}, "max_resources.CPU": 64.0, "rev": 3.0, "hold.state": "held", "hold.reason": "drivers", "hold.by": "ann", "hold.since": "2026-03-01T12:00:00.250Z",
			"state": "healthy", "since": "2026-03-01T12:00:00.250Z", "error": "", "ray_version": "2.60.0", "session": "s1", "resources.total": map[string]any{"cpu": 8.0, "memory": 4096.0},
			"resources.used.cpu": 9.0, "resources.free": map[string]any{"memory": 4000.0}, "resources.usage_known": true, "nodes.node_id": "n1", "nodes.head": true, "nodes.total.cpu": 8.0,
			"score": 0.9, "reasons": []any{"it answers slowly"}, "breaker": "half_open", "retry_at": "2026-03-01T12:00:00.250Z", "latency_ms": 1.5, "jobs.RUNNING": 2.0, "links.page": "/clusters/gpu"}},
		"read a new cluster": {"GET", "/api/v1/clusters/new", "", "", nil, 200, map[string]any{"state": "unseen", "breaker": "closed", "since": nil, "hold": nil, "token": nil, "tags": []any{}, "reasons": []any{},
			"runtime_env": nil, "jobs": map[string]any{}, "resources.total": map[string]any{}}},
		"make a cluster": {"PUT", "/api/v1/clusters/new", `{"head_address":"10.0.0.9:10001","runtime_env":{"env_vars":["A=b=c"]},"weight":0.5,"tags":["x"],"token":{"env":"NEW_TOKEN"},"max_resources":{"CPU":64,"memory":1.5}}`, "Put",
			[]any{clusters.Spec{Name: "new", HeadAddress: "10.0.0.9:10001", Dashboard: "http://10.0.0.9:8265", RuntimeEnv: json.RawMessage(`{"env_vars":{"A":"b=c"}}`), Weight: 0.5, Tags: []string{"x"},
				Token: &clusters.Secret{Env: "NEW_TOKEN"}, Most: sched.Resources{CPU: 64000, Memory: 1536}}, "api", int64(0)}, 200,
			map[string]any{"name": "new", "source": "api", "rev": 1.0, "weight": 0.5, "runtime_env.env_vars.A": "b=c", "max_resources": map[string]any{"CPU": 64.0, "memory": 1.5}, "state": "unseen"}},
		"import clusters": {"POST", "/api/v1/clusters/import", `{"yaml":"clusters:\n  new:\n    head_address: 10.0.0.9:10001\n  gpu:\n    head_address: 10.0.0.4:10001\n    prefer: true\n"}`, "Import",
			[]any{[]clusters.Spec{{Name: "new", HeadAddress: "10.0.0.9:10001", Dashboard: "http://10.0.0.9:8265", Weight: 1}, {Name: "gpu", HeadAddress: "10.0.0.4:10001", Dashboard: "http://10.0.0.4:8265", Weight: 1, Prefer: true}}, "api"}, 200,
			map[string]any{"items.name": "new"}},
		"remove cluster":                   {"DELETE", "/api/v1/clusters/gpu", "", "Delete", []any{"gpu", "api"}, 204, nil},
		"hold cluster":                     {"POST", "/api/v1/clusters/gpu/hold", `{"reason":"drivers"}`, "Hold", []any{"gpu", true, "drivers", "api"}, 200, map[string]any{"name": "gpu"}},
		"hold cluster without a word":      {"POST", "/api/v1/clusters/gpu/hold", "", "Hold", []any{"gpu", true, "", "api"}, 200, nil},
		"resume cluster":                   {"POST", "/api/v1/clusters/gpu/resume", "", "Hold", []any{"gpu", false, "", "api"}, 200, nil},
		"history of a cluster":             {"GET", "/api/v1/clusters/gpu/history?hours=1.5&points=10", "", "History", []any{"gpu", noon.Add(-90 * time.Minute), 10}, 200, map[string]any{"items.score": 0.5, "items.total.cpu": 8.0, "items.used.cpu": 1.0, "items.jobs": 4.0}},
		"history of a cluster, unadjusted": {"GET", "/api/v1/clusters/gpu/history", "", "History", []any{"gpu", noon.Add(-time.Hour), 120}, 200, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := &fake{mesh: mesh{
				found:    jobs.Page{Items: []jobs.Job{sampleJob()}, Next: "next", Total: 12, Count: map[string]int{"RUNNING": 12}},
				history:  []jobs.Event{{ID: 5, At: noon, Type: "placed", Attempt: 1, Cluster: "gpu", Detail: json.RawMessage(`{"a":1}`)}},
				outside:  []jobs.Outside{{Cluster: "gpu", RayID: "raysubmit_1", Kind: "DRIVER", StartedAt: &at}},
				log:      jobs.Log{Text: "one\ntwo\nthree\n", Next: 14, Ended: true, Kept: true},
				clusters: map[string]clusters.Cluster{"gpu": sampleCluster(), "new": {Spec: clusters.Spec{Name: "new"}, Source: clusters.FromAPI}},
				samples:  []clusters.Sample{{At: noon, Score: 0.5, Total: sched.Resources{CPU: 8000}, Used: sched.Resources{CPU: 1000}, Jobs: 4}},
			}}
			res := send(t, newAPI(f), tt.method, tt.target, tt.body)
			res.want(t, tt.status, "")
			if f.call != tt.call || tt.args != nil && !sameArgs(f.args, tt.args) {
				t.Errorf("asked %s\n %+v, want %s\n %+v", f.call, f.args, tt.call, tt.args)
			}
			res.has(t, tt.has)
			if tt.method == "GET" && strings.HasPrefix(tt.target, "/api/v1/clusters/gpu") && !strings.Contains(tt.target, "history") && res.Header.Get("ETag") != `"3"` {
				t.Errorf("ETag %q", res.Header.Get("ETag"))
			}
		})
	}
}

// sameArgs compares times by what they mean.
func sameArgs(a, b []any) bool {
	clean := func(args []any) []any {
		out := append([]any{}, args...)
		for i, v := range out {
			switch v := v.(type) {
			case time.Time:
				out[i] = v.UnixNano()
			case jobs.Filter:
				v.After, v.Before = v.After.UTC(), v.Before.UTC()
				out[i] = v
			}
		}
		return out
	}
	return reflect.DeepEqual(clean(a), clean(b))
}

func TestAJobThatWasThereIsAnswered200(t *testing.T) {
	f := &fake{mesh: mesh{known: true}}
	res := send(t, newAPI(f), "POST", "/api/v1/jobs", `{"entrypoint":"python"}`)
	res.want(t, 200, "")
	if got := res.Header.Get("Location"); got != "/api/v1/jobs/sub%20%C3%BC" {
		t.Errorf("Location %q", got)
	}
}

// TestJobErrors sends every route every refusal it may get.
func TestJobErrors(t *testing.T) {
	for _, tt := range []struct {
		method, target, body string
		codes                string
	}{
		{"POST", "/jobs", `{"entrypoint":"python"}`, "job_exists no_clusters no_cluster_large_enough unknown_package invalid database_unavailable shutting_down"},
		{"GET", "/jobs", "", "invalid database_unavailable"},
		{"GET", "/jobs/s", "", "unknown_job database_unavailable"},
		{"GET", "/jobs/s?wait=1s", "", "unknown_job database_unavailable"},
		{"POST", "/jobs/s/stop", "", "unknown_job database_unavailable"},
		{"GET", "/jobs/s/events", "", "unknown_job database_unavailable"},
		{"GET", "/jobs/s/logs", "", "unknown_job cluster_unreachable database_unavailable"},
		{"GET", "/jobs/s/logs?tail=3", "", "unknown_job cluster_unreachable"},
		{"GET", "/jobs/s/logs?follow=true", "", "unknown_job cluster_unreachable database_unavailable"},
		{"GET", "/jobs/s/logs?follow=true&tail=3", "", "unknown_job cluster_unreachable"},
		{"GET", "/outside-jobs", "", "database_unavailable"},
		{"GET", "/clusters", "", "database_unavailable"},
		{"GET", "/clusters/gpu", "", "database_unavailable"},
		{"DELETE", "/clusters/gpu", "", "unknown_cluster cluster_in_use database_unavailable"},
		{"POST", "/clusters/gpu/hold", "", "unknown_cluster database_unavailable"},
		{"POST", "/clusters/gpu/resume", "", "unknown_cluster database_unavailable"},
		{"GET", "/clusters/gpu/history", "", "database_unavailable"},
		{"PUT", "/packages/_ray_pkg_01234567.zip", "PK", "too_large database_unavailable"},
	} {
		for _, code := range strings.Fields(tt.codes) {
			f := &fake{err: &ledger.Error{Code: code, Message: "what was wrong"}, mesh: mesh{clusters: map[string]clusters.Cluster{"gpu": sampleCluster()}}}
			status := map[string]int{"unknown_job": 404, "unknown_cluster": 404, "unknown_package": 404, "job_exists": 409, "cluster_in_use": 409, "no_clusters": 409, "no_cluster_large_enough": 409, "too_large": 413,
				"invalid": 422, "cluster_unreachable": 503, "database_unavailable": 503, "shutting_down": 503}[code]
			res := send(t, newAPI(f), tt.method, "/api/v1"+tt.target, tt.body)
			res.want(t, status, code)
			if res.json["detail"] != "what was wrong" {
				t.Errorf("%s %s says %v", tt.method, tt.target, res.json["detail"])
			}
			if retry := res.Header.Get("Retry-After"); (retry != "") != (status == 503) {
				t.Errorf("%s: Retry-After %q", code, retry)
			}
		}
	}
	for _, target := range []string{"/clusters/none", "/clusters/none/history", "/outside-jobs?cluster=none"} {
		send(t, newAPI(&fake{}), "GET", "/api/v1"+target, "").want(t, 404, "unknown_cluster")
	}
}

func TestAClusterIsChangedOnlyAsItWasRead(t *testing.T) {
	const body = `{"head_address":"10.0.0.9:10001"}`
	f := &fake{}
	a := newAPI(f)
	send(t, a, "PUT", "/api/v1/clusters/gpu", body, "If-Match", `"3"`).want(t, 200, "")
	if rev := arg[int64](t, f, 2); rev != 3 {
		t.Errorf("asked for revision %d", rev)
	}
	f.err = &ledger.Error{Code: "version_conflict", Message: "it is at 4"}
	send(t, a, "PUT", "/api/v1/clusters/gpu", body, "If-Match", `"3"`).want(t, 412, "version_conflict")
	send(t, a, "PUT", "/api/v1/clusters/gpu", body).want(t, 409, "version_conflict")
	send(t, a, "PUT", "/api/v1/clusters/gpu", body, "If-Match", `"x"`).want(t, 422, "invalid")
}

func TestClustersThatCannotBe(t *testing.T) {
	for name, tt := range map[string]struct{ method, target, body, field, says string }{
		"no address":              {"PUT", "/clusters/a", `{}`, "head_address", "missing"},
		"no port":                 {"PUT", "/clusters/a", `{"head_address":"10.0.0.4"}`, "head_address", "10.0.0.4:10001"},
		"a field unheard of":      {"PUT", "/clusters/a", `{"head_address":"10.0.0.4:1","address":"x"}`, "address", "head_address"},
		"a token itself":          {"PUT", "/clusters/a", `{"head_address":"10.0.0.4:1","token":"hunter2"}`, "token", "env"},
		"a weight of nothing":     {"PUT", "/clusters/a", `{"head_address":"10.0.0.4:1","weight":0}`, "weight", "above 0"},
		"negative room":           {"PUT", "/clusters/a", `{"head_address":"10.0.0.4:1","max_resources":{"tpu":-1}}`, "max_resources.tpu", "negative"},
		"a local working_dir":     {"PUT", "/clusters/a", `{"head_address":"10.0.0.4:1","runtime_env":{"working_dir":"."}}`, "runtime_env.working_dir", "gcs://"},
		"a list":                  {"PUT", "/clusters/a", `[]`, "", "object"},
		"a name with a slash":     {"PUT", "/clusters/a%2Fb", `{"head_address":"10.0.0.4:1"}`, "cluster", "a/b"},
		"a name with a NUL":       {"GET", "/clusters/a%00", ``, "name", "U+0000"},
		"no YAML":                 {"POST", "/clusters/import", `{"yaml":" "}`, "yaml", "empty"},
		"broken YAML":             {"POST", "/clusters/import", `{"yaml":"clusters:\n  gpu:\n    head_address: [","file":"my.yaml"}`, "yaml", "my.yaml:3:"},
		"YAML of something":       {"POST", "/clusters/import", `{"yaml":"clusters:\n  gpu:\n    head_address: 10.0.0.4:1\n    weight: heavy\n"}`, "yaml", "clusters.yaml:4:13"},
		"the same name twice":     {"POST", "/clusters/import", `{"yaml":"clusters:\n  - {name: a, head_address: \"h:1\"}\n  - {name: a, head_address: \"h:1\"}\n"}`, "yaml", "clusters.yaml:3:"},
		"a name with a bell":      {"POST", "/clusters/import", `{"yaml":"clusters: {}","file":"\u0007"}`, "file", "U+0007"},
		"hours in words":          {"GET", "/clusters/a/history?hours=all", ``, "hours", "float"},
		"a year":                  {"GET", "/clusters/a/history?hours=8760", ``, "hours", "<= 6"},
		"no points":               {"GET", "/clusters/a/history?points=0", ``, "points", ">= 1"},
		"a hold at length":        {"POST", "/clusters/a/hold", `{"reason":"` + strings.Repeat("x", 1001) + `"}`, "reason", "1000"},
		"a state unheard of":      {"GET", "/jobs?state=DONE", ``, "state[0]", "DONE"},
		"metadata without =":      {"GET", "/jobs?metadata=user", ``, "metadata", "key=value"},
		"a time of no day":        {"GET", "/jobs?after=monday", ``, "after", "monday"},
		"a filter unheard of":     {"GET", "/jobs?pool=a", ``, "pool", ""},
		"a NUL in a filter":       {"GET", "/jobs?q=%00", ``, "q", "U+0000"},
		"a NUL in a tag":          {"GET", "/jobs?tag=%00", ``, "tag", "U+0000"},
		"no jobs at all":          {"GET", "/jobs?limit=0", ``, "limit", ">= 1"},
		"a NUL in an id":          {"GET", "/jobs/%00", ``, "submission_id", "U+0000"},
		"a NUL in another id":     {"POST", "/jobs/%00/stop", ``, "submission_id", "U+0000"},
		"many outside jobs":       {"GET", "/outside-jobs?limit=1001", ``, "limit", "<= 1000"},
		"import with a namespace": {"POST", "/clusters/import?namespace=a", `{"yaml":"clusters: {}"}`, "namespace", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			res := send(t, newAPI(f), tt.method, "/api/v1"+tt.target, tt.body)
			res.want(t, 422, "invalid")
			if says := strings.NewReplacer(`\u003e`, ">", `\u003c`, "<").Replace(res.text); !strings.Contains(says, tt.says) || strings.Contains(says, "hunter2") {
				t.Errorf("says not %q, or too much: %s", tt.says, says)
			}
			if tt.field != "" && res.field("errors.field") != tt.field {
				t.Errorf("names %v, want %s: %s", res.field("errors.field"), tt.field, res.text)
			}
			if f.call != "" {
				t.Errorf("asked %s", f.call)
			}
		})
	}
}

func TestWhyNoClusterIsLargeEnoughIsExplained(t *testing.T) {
	p := jobs.Placement{Reason: "all are too small", Others: []jobs.Candidate{{Cluster: "cpu", Code: "too_small", Missing: sched.Resources{GPU: 1500, Memory: 2048}}}, Not: []jobs.Reject{{Code: "too_small", Count: 1}}}
	for _, detail := range []any{p, &p} {
		f := &fake{err: &ledger.Error{Code: "no_cluster_large_enough", Message: "m", Detail: detail}}
		send(t, newAPI(f), "POST", "/api/v1/jobs", `{"entrypoint":"python"}`).has(t, map[string]any{
			"explanation.reason": "all are too small", "explanation.others.missing": map[string]any{"gpu": 1.5, "memory": 2048.0}, "explanation.not.code": "too_small", "explanation.notes": []any{}})
	}
}

func TestJobsErrorsHaveAPlaceInTheList(t *testing.T) {
	for _, e := range []*ledger.Error{jobs.ErrUnknownJob, jobs.ErrJobExists, jobs.ErrImpossible, jobs.ErrNoClusters, jobs.ErrUnreachable, jobs.ErrUnknownPackage, clusters.ErrUnknownCluster, clusters.ErrClusterInUse} {
		f := &fake{err: e}
		if res := send(t, newAPI(f), "GET", "/api/v1/jobs/s", ""); res.json["code"] != e.Code {
			t.Errorf("%s is answered as %v", e.Code, res.json["code"])
		}
	}
}

func TestWaitingForAJob(t *testing.T) {
	queued, waiting, running := sampleJob(), sampleJob(), sampleJob()
	queued.State, queued.Placement = jobs.Queued, nil
	waiting.State, waiting.Placement, waiting.QueuePosition = jobs.Queued, &jobs.Placement{Reason: "nobody has room"}, 3
	over := sampleJob()
	over.State = jobs.Failed
	var until func(jobs.Job) bool
	var left time.Duration
	f := &fake{mesh: mesh{job: &queued, waits: func(ctx context.Context, u func(jobs.Job) bool) (jobs.Job, error) {
		deadline, _ := ctx.Deadline()
		until, left = u, time.Until(deadline)
		return waiting, nil
	}}}
	a := newAPI(f)
	submit := func(target string) reply {
		until, left = nil, 0
		return send(t, a, "POST", target, `{"entrypoint":"python"}`)
	}
	submit("/api/v1/jobs?wait=10s").has(t, map[string]any{"state": "QUEUED", "status": "PENDING", "queue_position": 3.0, "placement.reason": "nobody has room"})
	if left < 9*time.Second || left > 10*time.Second {
		t.Errorf("it would wait %v", left)
	}
	submitting := running
	submitting.State = jobs.Submitting
	for _, tt := range []struct {
		j    jobs.Job
		want bool
	}{{queued, false}, {waiting, true}, {submitting, false}, {running, true}, {over, true}} {
		if until(tt.j) != tt.want {
			t.Errorf("a submission is answered when %s (%v): %v", tt.j.State, tt.j.Placement, !tt.want)
		}
	}
	submit("/api/v1/jobs?wait=1h")
	if left < 59*time.Second || left > time.Minute {
		t.Errorf("it would wait %v, want at most a minute", left)
	}
	if submit("/api/v1/jobs"); until != nil {
		t.Error("it waits although nobody asked")
	}
	f.job = &over
	if submit("/api/v1/jobs?wait=10s"); until != nil {
		t.Error("it waits for what is over")
	}
	send(t, a, "GET", "/api/v1/jobs/s?wait=30", "").want(t, 200, "")
	if left < 29*time.Second || left > 30*time.Second || until(running) || until(waiting) || !until(over) {
		t.Errorf("reading waits %v for %v %v %v", left, until(running), until(waiting), until(over))
	}
	for _, wait := range []string{"soon", "-1", "NaN"} {
		for _, call := range []string{"POST /api/v1/jobs", "GET /api/v1/jobs/s"} {
			method, target, _ := strings.Cut(call, " ")
			body := map[string]string{"POST": `{"entrypoint":"python"}`}[method]
			res := send(t, a, method, target+"?wait="+wait, body)
			res.want(t, 422, "invalid")
			if res.field("errors.location") != "query.wait" {
				t.Errorf("%s names %v", call, res.field("errors.location"))
			}
		}
	}
}

func TestWaitingEndsWithItsSender(t *testing.T) {
	queued := sampleJob()
	queued.State, queued.Placement = jobs.Queued, nil
	begun := make(chan struct{})
	f := &fake{mesh: mesh{job: &queued, waits: func(ctx context.Context, _ func(jobs.Job) bool) (jobs.Job, error) {
		close(begun)
		<-ctx.Done()
		return queued, nil
	}}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		r, _ := http.NewRequestWithContext(ctx, "GET", "/api/v1/jobs/s?wait=60s", nil)
		newAPI(f).ServeHTTP(discard{}, r)
		close(done)
	}()
	<-begun
	cancel()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("it waits on")
	}
}

// discard is a reader who went.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

func TestIdempotencyKeyMakesAJobHappenOnce(t *testing.T) {
	f := &fake{}
	a := newAPI(f)
	key := []string{"Idempotency-Key", "k"}
	first := send(t, a, "POST", "/api/v1/jobs", `{"entrypoint":"python"}`, key...)
	first.want(t, 201, "")
	f.call = ""
	again := send(t, a, "POST", "/api/v1/jobs?wait=5s", `{"entrypoint":"python"}`, key...)
	again.want(t, 201, "")
	if f.call != "" || again.text != first.text || again.Header.Get("Idempotency-Replayed") != "true" || again.Header.Get("Location") != first.Header.Get("Location") {
		t.Errorf("again asked %s: %s", f.call, again.text)
	}
	send(t, a, "POST", "/api/v1/jobs", `{"entrypoint":"ls"}`, key...).want(t, 422, "idempotency_key_reused")
}
