package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// The real ledger is what the API was written against.
var _ Ledger = (*ledger.Ledger)(nil)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 250e6, time.UTC)

// fake answers every call with what a test put into it, and remembers what it was asked.
type fake struct {
	mu   sync.Mutex
	err  error // every method fails with it
	call string
	ns   string
	args []any

	task    ledger.Task
	tasks   ledger.Page[ledger.Task]
	waited  func(ctx context.Context) (ledger.Task, error)
	pool    ledger.Pool
	groups  ledger.Groups
	agent   ledger.Agent
	agents  []ledger.Page[ledger.Agent]
	policy  ledger.PolicyVersion
	whatIf  ledger.WhatIfAnswer
	tried   ledger.BacktestResult
	steps   int                          // of progress a backtest tells before it ends
	earlier map[int]ledger.PolicyVersion // by number; policy is meant by any other
	preempt ledger.Preemption
	eval    ledger.EvaluationResult
	stats   ledger.Stats
	events  []ledger.Event
	feed    chan ledger.Event
	keys    map[string]kept
	panics  bool
	node    ledger.Node
	many    []ledger.Submitted

	handlers ledger.StateHandlers
	restored ledger.Restored
	health   ledger.Health

	mesh
}

type kept struct {
	print  []byte
	status int
	body   []byte
}

func (f *fake) asked(call, ns string, args ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.panics {
		panic("a bug: password=hunter2")
	}
	f.call, f.ns, f.args = call, ns, args
	return f.err
}

func (f *fake) Submit(_ context.Context, ns string, s ledger.Submission) (ledger.Task, error) {
	t := f.task
	if t.TaskID == "" {
		t.TaskID = s.TaskID
	}
	return t, f.asked("Submit", ns, s)
}
func (f *fake) SubmitAll(_ context.Context, ns string, subs []ledger.Submission, gang bool) ([]ledger.Submitted, error) {
	return f.many, f.asked("SubmitAll", ns, subs, gang)
}
func (f *fake) Task(_ context.Context, ns, id string) (ledger.Task, error) {
	return f.task, f.asked("Task", ns, id)
}
func (f *fake) Tasks(_ context.Context, ns string, q ledger.TaskFilter) (ledger.Page[ledger.Task], error) {
	return f.tasks, f.asked("Tasks", ns, q)
}
func (f *fake) WaitTask(ctx context.Context, ns string, uid sched.ID) (ledger.Task, error) {
	if err := f.asked("WaitTask", ns, uid); err != nil {
		return ledger.Task{}, err
	}
	return f.waited(ctx)
}
func (f *fake) TaskEvents(_ context.Context, ns, id string) ([]ledger.Event, error) {
	return f.events, f.asked("TaskEvents", ns, id)
}
func (f *fake) Complete(_ context.Context, ns, id, who string) (ledger.Task, error) {
	return f.task, f.asked("Complete", ns, id, who)
}
func (f *fake) Cancel(_ context.Context, ns, id, who string) (ledger.Task, error) {
	return f.task, f.asked("Cancel", ns, id, who)
}
func (f *fake) Restore(_ context.Context, ns, id, who string) (ledger.Task, error) {
	return f.task, f.asked("Restore", ns, id, who)
}
func (f *fake) Patch(_ context.Context, ns, id string, p ledger.TaskPatch) (ledger.Task, error) {
	return f.task, f.asked("Patch", ns, id, p)
}
func (f *fake) Register(_ context.Context, ns string, r ledger.Registration) (ledger.Task, error) {
	return f.task, f.asked("Register", ns, r)
}
func (f *fake) Preempt(_ context.Context, ns string, p ledger.PreemptRequest) (ledger.Preemption, error) {
	return f.preempt, f.asked("Preempt", ns, p)
}
func (f *fake) Evaluate(_ context.Context, ns string, e ledger.Evaluation) (ledger.EvaluationResult, error) {
	return f.eval, f.asked("Evaluate", ns, e)
}
func (f *fake) Preemptions(_ context.Context, ns string, limit int, cursor string) (ledger.Page[ledger.Preemption], error) {
	return ledger.Page[ledger.Preemption]{Items: []ledger.Preemption{f.preempt}, Next: "p2"}, f.asked("Preemptions", ns, limit, cursor)
}
func (f *fake) Preemption(_ context.Context, ns string, id int64) (ledger.Preemption, error) {
	return f.preempt, f.asked("Preemption", ns, id)
}
func (f *fake) Stats(_ context.Context, ns string) (ledger.Stats, error) {
	return f.stats, f.asked("Stats", ns)
}
func (f *fake) PoolGroups(_ context.Context, ns, name string, ended bool) (ledger.Groups, error) {
	return f.groups, f.asked("PoolGroups", ns, name, ended)
}
func (f *fake) CreatePool(_ context.Context, ns string, p ledger.PoolSpec) (ledger.Pool, error) {
	return f.pool, f.asked("CreatePool", ns, p)
}
func (f *fake) UpdatePool(_ context.Context, ns string, p ledger.PoolSpec) (ledger.Pool, error) {
	return f.pool, f.asked("UpdatePool", ns, p)
}
func (f *fake) Pool(_ context.Context, ns, name string) (ledger.Pool, error) {
	return f.pool, f.asked("Pool", ns, name)
}
func (f *fake) Pools(_ context.Context, ns string) ([]ledger.Pool, error) {
	return []ledger.Pool{f.pool}, f.asked("Pools", ns)
}
func (f *fake) HoldPool(_ context.Context, ns, name string, r ledger.HoldRequest) (ledger.Pool, error) {
	return f.pool, f.asked("HoldPool", ns, name, r)
}
func (f *fake) Nodes(context.Context) ([]ledger.Node, error) {
	return []ledger.Node{f.node}, f.asked("Nodes", "")
}
func (f *fake) HoldNode(_ context.Context, id sched.NodeID, r ledger.HoldRequest) (ledger.Node, error) {
	return f.node, f.asked("HoldNode", "", id, r)
}
func (f *fake) DeletePool(_ context.Context, ns, name, who string) error {
	return f.asked("DeletePool", ns, name, who)
}
func (f *fake) PutStateHandlers(_ context.Context, ns string, h ledger.StateHandlers, who string) (ledger.StateHandlers, error) {
	return f.handlers, f.asked("PutStateHandlers", ns, h, who)
}
func (f *fake) StateHandlers(_ context.Context, ns, pool string) (ledger.StateHandlers, error) {
	return f.handlers, f.asked("StateHandlers", ns, pool)
}
func (f *fake) DeleteStateHandlers(_ context.Context, ns, pool, who string) error {
	return f.asked("DeleteStateHandlers", ns, pool, who)
}
func (f *fake) CreateAgent(_ context.Context, ns string, s ledger.AgentSubmission) (ledger.Agent, error) {
	return f.agent, f.asked("CreateAgent", ns, s)
}
func (f *fake) WaitAgent(_ context.Context, ns string, uid sched.ID) (ledger.Agent, error) {
	return f.agent, f.asked("WaitAgent", ns, uid)
}
func (f *fake) Agent(_ context.Context, ns, name string) (ledger.Agent, error) {
	return f.agent, f.asked("Agent", ns, name)
}
func (f *fake) Agents(_ context.Context, ns string, limit int, cursor string) (ledger.Page[ledger.Agent], error) {
	err := f.asked("Agents", ns, limit, cursor)
	if len(f.agents) == 0 {
		return ledger.Page[ledger.Agent]{}, err
	}
	page := f.agents[0]
	f.agents = f.agents[1:]
	return page, err
}
func (f *fake) DeleteAgent(_ context.Context, ns, name string, force, destroy bool, who string) error {
	return f.asked("DeleteAgent", ns, name, force, destroy, who)
}
func (f *fake) Policy(_ context.Context, ns string) (ledger.PolicyVersion, error) {
	return f.policy, f.asked("Policy", ns)
}
func (f *fake) PolicyVersions(_ context.Context, ns string, limit int) ([]ledger.PolicyVersion, error) {
	return []ledger.PolicyVersion{f.policy}, f.asked("PolicyVersions", ns, limit)
}
func (f *fake) PolicyVersion(_ context.Context, ns string, n int) (ledger.PolicyVersion, error) {
	if v, ok := f.earlier[n]; ok {
		return v, f.asked("PolicyVersion", ns, n)
	}
	return f.policy, f.asked("PolicyVersion", ns, n)
}
func (f *fake) PutPolicy(_ context.Context, ns string, c ledger.PolicyChange) (ledger.PolicyVersion, error) {
	return f.policy, f.asked("PutPolicy", ns, c)
}
func (f *fake) Rollback(_ context.Context, ns string, to, base int, author, comment string) (ledger.PolicyVersion, error) {
	return f.policy, f.asked("Rollback", ns, to, base, author, comment)
}

func (f *fake) Backtest(ctx context.Context, ns string, r ledger.BacktestRequest, progress func(ledger.BacktestProgress)) (ledger.BacktestResult, error) {
	for i := range f.steps {
		progress(ledger.BacktestProgress{Tasks: i, Of: f.steps, Simulated: noon})
		if ctx.Err() != nil {
			return f.tried, ctx.Err()
		}
	}
	return f.tried, f.asked("Backtest", ns, r)
}
func (f *fake) WhatIf(_ context.Context, ns string, w ledger.WhatIf) (ledger.WhatIfAnswer, error) {
	return f.whatIf, f.asked("WhatIf", ns, w)
}
func (f *fake) ListNamespaces(context.Context) ([]ledger.Namespace, error) {
	return []ledger.Namespace{{Name: "default"}, {Name: "团队", Ephemeral: true, Owner: "ann", Since: noon, ExpiresAt: noon, Closing: true}}, f.asked("ListNamespaces", "")
}

func (f *fake) GetNamespace(_ context.Context, name string) (ledger.Namespace, ledger.Extent, error) {
	return ledger.Namespace{Name: name}, ledger.Extent{Pools: 2, LiveTasks: 12, Agents: 9}, f.asked("GetNamespace", "", name)
}

func (f *fake) HoldNamespace(_ context.Context, name string, h ledger.NamespaceHold) (ledger.NamespaceHeld, error) {
	return ledger.NamespaceHeld{Namespace: ledger.Namespace{Name: name, Ephemeral: true, Owner: h.Owner, ExpiresAt: noon}, Created: true, Cleared: true}, f.asked("HoldNamespace", "", name, h)
}

func (f *fake) EndNamespace(_ context.Context, name, session string, force bool) error {
	return f.asked("EndNamespace", "", name, session, force)
}
func (f *fake) Events(_ context.Context, ns string, after int64, limit int) ([]ledger.Event, error) {
	return f.events, f.asked("Events", ns, after, limit)
}
func (f *fake) Subscribe(_ context.Context, ns string, after int64) (<-chan ledger.Event, error) {
	return f.feed, f.asked("Subscribe", ns, after)
}
func (f *fake) Idempotent(ctx context.Context, ns, key string, print []byte, do func(context.Context) (int, []byte, error)) (int, []byte, bool, error) {
	if k, ok := f.keys[ns+"/"+key]; ok {
		if !bytes.Equal(k.print, print) {
			return 0, nil, false, &ledger.Error{Code: "idempotency_key_reused", Message: "the key came with another request"}
		}
		return k.status, k.body, true, nil
	}
	status, body, err := do(ctx)
	if err == nil {
		if f.keys == nil {
			f.keys = map[string]kept{}
		}
		f.keys[ns+"/"+key] = kept{print, status, body}
	}
	return status, body, false, err
}
func (f *fake) Logs(_ context.Context, ns, id, stream string, offset, limit int64) (string, int64, bool, error) {
	return "step 1\n", offset + 7, true, f.asked("Logs", ns, id, stream, offset, limit)
}

// cluster is what needs Ray; it answers as its fake says.
type cluster struct{ *fake }

func (c cluster) Restore(_ context.Context, ns string, state json.RawMessage, timeout time.Duration) (ledger.Restored, error) {
	return c.restored, c.asked("RestoreState", ns, state, timeout)
}

func (c cluster) EnsureHealth(_ context.Context, ns string, timeout time.Duration, recreate bool, who string) (ledger.Health, error) {
	return c.health, c.asked("EnsureHealth", ns, timeout, recreate, who)
}

// arg is the i-th argument of the last call.
func arg[T any](t *testing.T, f *fake, i int) T {
	t.Helper()
	if len(f.args) <= i {
		t.Fatalf("the ledger was asked %s%v", f.call, f.args)
	}
	v, ok := f.args[i].(T)
	if !ok {
		t.Fatalf("argument %d of %s is a %T", i, f.call, f.args[i])
	}
	return v
}

// reply is an answer.
type reply struct {
	*http.Response
	text string
	json map[string]any
}

func send(t *testing.T, h http.Handler, method, target, body string, headers ...string) reply {
	t.Helper()
	var r *http.Request
	if body == "" {
		r = httptest.NewRequest(method, target, nil)
	} else {
		r = httptest.NewRequest(method, target, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	out := reply{Response: w.Result(), text: w.Body.String()}
	if media := w.Header().Get("Content-Type"); strings.Contains(media, "json") && media != "application/x-ndjson" {
		if err := json.Unmarshal(w.Body.Bytes(), &out.json); err != nil {
			t.Fatalf("%s %s answered broken JSON: %v\n%s", method, target, err, out.text)
		}
	}
	return out
}

// want fails unless the answer has this status and, for errors, this code.
func (r reply) want(t *testing.T, status int, code string) {
	t.Helper()
	if r.StatusCode != status {
		t.Errorf("status %d, want %d: %s", r.StatusCode, status, r.text)
	}
	if code == "" {
		return
	}
	if got := r.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("content type %q of an error", got)
	}
	if r.json["code"] != code {
		t.Errorf("code %v, want %s: %s", r.json["code"], code, r.text)
	}
	for _, field := range []string{"type", "title", "detail", "request_id"} {
		if s, _ := r.json[field].(string); s == "" {
			t.Errorf("the error has no %s: %s", field, r.text)
		}
	}
	if r.json["status"] != float64(status) {
		t.Errorf("the error says status %v, want %d", r.json["status"], status)
	}
}

// field is a value inside the answer, by dotted path.
func (r reply) field(path string) any {
	var v any = r.json
	for _, k := range strings.Split(path, ".") {
		if list, ok := v.([]any); ok && len(list) > 0 {
			v = list[0] // the first is enough for tests
		}
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[k]
	}
	return v
}

func (r reply) has(t *testing.T, want map[string]any) {
	t.Helper()
	for path, w := range want {
		if got := r.field(path); !reflect.DeepEqual(got, w) {
			t.Errorf("%s is %#v, want %#v", path, got, w)
		}
	}
}

func newAPI(f *fake) *API {
	if f.task.UID == (sched.ID{}) {
		f.task = sampleTask()
	}
	return New(Deps{Ledger: f, Logs: f, Agents: cluster{f}, Jobs: fakeJobs{f}, Clusters: fakeRegistry{f}, Packages: fakePackages{f}, Now: func() time.Time { return noon }, Heartbeat: 10 * time.Millisecond,
		Server: func(context.Context) (Server, error) {
			return Server{Version: "1.2.3", Deployment: "d", RayAddress: "10.0.0.4:6379", RayVersion: "2.60.0", PythonVersion: "3.11.7", URL: "http://127.0.0.1:1"}, nil
		}})
}

func sampleTask() ledger.Task {
	return ledger.Task{
		UID: sched.ID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, Namespace: "default", Kind: ledger.KindTask, TaskID: "train/1 ü",
		Pool: "gpu", Managed: true, State: ledger.Running, Attempt: 2, Priority: 7500, Labels: sched.Labels{"tier": "premium"},
		Request: sched.Resources{CPU: 1500, Memory: 2048, Other: []sched.Amount{{Name: "tpu", Value: 250}}}, AgentName: "gpu-agent-1",
		ActorName: "actor", RayNS: "mesh", ActorID: "ab", Node: "node-1", PID: 42, Estimate: 90 * time.Second, OnPreempted: "requeue", OnFailure: "stop",
		Spec:        ledger.Spec{ActorClass: "m:C", Args: json.RawMessage(`[1]`), Entry: &ledger.Entry{Method: "run"}, Payload: json.RawMessage(`{"a":null}`)},
		PreemptedBy: []sched.ID{{9}}, SavedState: json.RawMessage(`{"step":3}`), SubmittedAt: noon, StartedAt: noon.Add(time.Second), Actor: "api", Created: true,
	}
}
