package app_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/app"
	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/local"
	"github.com/schedulemesh/schedulemesh/testdb"
)

func start(t *testing.T, cfg app.Config) *app.App {
	t.Helper()
	cfg.Addr, cfg.AddrExplicit, cfg.BridgeURL = "127.0.0.1:0", true, "fake"
	if cfg.TokenFile == "" {
		cfg.TokenFile = filepath.Join(t.TempDir(), "token")
	}
	a, err := app.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Stop(context.Background()) })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := a.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return a
}

type answer struct {
	status int
	body   string
	header http.Header
}

func (r answer) code() string {
	var p struct{ Code string }
	_ = json.Unmarshal([]byte(r.body), &p)
	return p.Code
}

func send(t *testing.T, a *app.App, method, path, body string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, a.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+a.Token())
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, string(text), res.Header}
}

const class = `"actor_class": "schedulemesh.testing.agents:Counter"`

func TestTheWholeServerAnswersOnOnePort(t *testing.T) {
	t.Parallel()
	a := start(t, app.Config{DatabaseURL: testdb.New(t)})
	deployment, err := a.Deployment(t.Context())
	address, cluster, up := a.Ray()
	if err != nil || deployment == "" || address == "" || cluster == "" || !up {
		t.Errorf("deployment %q, %v; Ray %q, %q, %v", deployment, err, address, cluster, up)
	}
	if r := send(t, a, "GET", "/api/v1/server", ""); r.status != 200 || !strings.Contains(r.body, `"deployment":"`+deployment+`","ray_address":"`+address+`"`) ||
		!strings.Contains(r.body, `"url":"`+a.URL()+`"`) {
		t.Errorf("%+v", r)
	}
	if r := send(t, a, "POST", "/api/v1/pools", `{"name": "p", "resources": {"cpu": 2}}`); r.status != 201 {
		t.Fatalf("%+v", r)
	}
	r := send(t, a, "POST", "/api/v1/tasks?wait=10s", `{"task_id": "t", "pool": "p", "resources": {"cpu": 1}, `+class+`}`)
	if r.status != 201 || !strings.Contains(r.body, `"state":"running"`) {
		t.Fatalf("%+v", r)
	}
	for path, want := range map[string]string{
		"/":                   "Overview",
		"/tasks/t":            "Running",
		"/pools/p":            "p",
		"/policy":             "policy",
		"/healthz":            "ok",
		"/readyz":             "ledger: ok",
		"/metrics":            "schedulemesh_task_schedule_latency_ms",
		"/api/openapi.json":   `"openapi"`,
		"/api/docs":           "ScheduleMesh",
		"/api/v1/tasks/t":     `"task_id":"t"`,
		"/api/v1/preemptions": `"items"`,
	} {
		if r := send(t, a, "GET", path, ""); r.status != 200 || !strings.Contains(r.body, want) {
			t.Errorf("GET %s: %d, without %q", path, r.status, want)
		}
	}
	names := send(t, a, "GET", "/metrics", "").body
	for _, name := range []string{"schedulemesh_preemption_evaluation_latency_ms", "schedulemesh_preemption_execution_latency_ms", "schedulemesh_task_schedule_latency_ms", "schedulemesh_ledger_transaction_seconds", "schedulemesh_ledger_differences", "go_goroutines"} {
		if !strings.Contains(names, name) {
			t.Errorf("/metrics lacks %s", name)
		}
	}
}

func TestStateHandlersOverREST(t *testing.T) {
	t.Parallel()
	a := start(t, app.Config{DatabaseURL: testdb.New(t)})
	says := func(status int, method, path, body string, words ...string) {
		t.Helper()
		r := send(t, a, method, path, body)
		if r.status != status {
			t.Errorf("%s %s: %d %s", method, path, r.status, r.body)
		}
		for _, w := range words {
			if !strings.Contains(r.body, w) {
				t.Errorf("%s %s answers %s, without %s", method, path, r.body, w)
			}
		}
	}
	code := func(name string) string {
		return base64.StdEncoding.EncodeToString(bridge.PickleOf("schedulemesh.testing.handlers", name))
	}
	const handlers = "/api/v1/pools/theirs/state-handlers"
	says(200, "GET", handlers, "", `"preserver_name":""`, `"restorer_name":""`, `"updated_at":null`)
	says(422, "PUT", handlers, `{}`, "give at least one")
	says(422, "PUT", handlers, `{"preserver": "%%%"}`, "base64")
	says(200, "PUT", handlers, `{"preserver": "`+code("keep")+`", "preserver_name": "keep", "restorer": "`+code("restore")+`"}`, `"preserver_name":"keep"`, `"restorer_name":"restorer"`)
	says(200, "PUT", "/api/v1/tasks/job/register", `{"agent_name": "theirs-1", "pool": "theirs", "payload": {"n": 1}}`)
	says(200, "POST", "/api/v1/preemption/execute", `{"agent_name": "theirs-1"}`, `"success":true`, `"cancel_success":false`, `"kept_by":"keep"`, "is not managed here", `"phase":"gone"`)
	says(200, "POST", "/api/v1/preemption/restore", `{"saved_state": {"task_id": "job", "pool_name": "theirs"}}`, `"success":true`, `"restorer":"restorer"`, `"task_id":"job"`)
	says(200, "POST", "/api/v1/preemption/restore", `{"saved_state": {"task_id": "job", "pool_name": "nowhere"}}`, `"success":true`, `"restorer":""`)
	says(200, "POST", "/api/v1/preemption/restore", `{"saved_state": {}}`, `"success":false`, "has no pool_name")
	says(200, "PUT", handlers, `{"restorer": "bm8gcGlja2xl"}`, `"preserver_name":""`)
	says(200, "POST", "/api/v1/preemption/restore", `{"saved_state": {"pool_name": "theirs"}}`, `"success":false`, "cannot be unpickled")
	says(204, "DELETE", handlers, "")
	says(204, "DELETE", handlers, "")
	says(200, "POST", "/api/v1/agents/ensure-health", `{"recreate": true}`, `"success":true`, `"checked":0`)
}

func TestWithoutATokenNothingIsAnsweredButHealth(t *testing.T) {
	t.Parallel()
	a := start(t, app.Config{DatabaseURL: testdb.New(t)})
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for path, want := range map[string]int{"/healthz": 200, "/metrics": 200, "/readyz": 200, "/api/v1/pools": 401, "/": 303} {
		res, err := client.Get(a.URL() + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("GET %s without a token: %d, want %d", path, res.StatusCode, want)
		}
	}
	res, err := client.Get(a.SignInURL())
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != 303 || len(res.Cookies()) == 0 {
		t.Errorf("the sign-in link: %d, cookies %v", res.StatusCode, res.Cookies())
	}
}

func TestItIsNeverOpenByAccident(t *testing.T) {
	t.Parallel()
	_, err := app.New(t.Context(), app.Config{DatabaseURL: "postgres://nowhere", Addr: "0.0.0.0:0"})
	if err == nil || !strings.Contains(err.Error(), "SCHEDULEMESH_TOKENS") {
		t.Errorf("%v", err)
	}
}

func TestATakenPortIsOneClearSentence(t *testing.T) {
	t.Parallel()
	a := start(t, app.Config{DatabaseURL: testdb.New(t)})
	u, _ := url.Parse(a.URL())
	b, err := app.New(t.Context(), app.Config{DatabaseURL: testdb.New(t), Addr: u.Host, AddrExplicit: true, BridgeURL: "fake", TokenFile: filepath.Join(t.TempDir(), "token")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Stop(context.Background()) }()
	if err := b.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "choose another with --addr") {
		t.Errorf("%v", err)
	}
}

func TestBadInputIsRefusedWithItsCodeAndNothingIsHeld(t *testing.T) {
	t.Parallel()
	a := start(t, app.Config{DatabaseURL: testdb.New(t)})
	send(t, a, "POST", "/api/v1/pools", `{"name": "p", "resources": {"cpu": 2}}`)
	send(t, a, "POST", "/api/v1/tasks", `{"task_id": "there", "pool": "p", "resources": {"cpu": 1}, `+class+`}`)
	long := strings.Repeat("x", 10<<20)
	for _, c := range []struct {
		name, body string
		status     int
		code       string
	}{
		{"unknown pool", `{"task_id": "t", "pool": "nope", "resources": {"cpu": 1}, ` + class + `}`, 404, "unknown_pool"},
		{"the same id with another body", `{"task_id": "there", "pool": "p", "resources": {"cpu": 2}, ` + class + `}`, 409, "task_exists"},
		{"negative resources", `{"task_id": "t", "pool": "p", "resources": {"cpu": -1}, ` + class + `}`, 422, "invalid"},
		{"NaN", `{"task_id": "t", "pool": "p", "resources": {"cpu": NaN}, ` + class + `}`, 400, "bad_json"},
		{"absurd resources", `{"task_id": "t", "pool": "p", "resources": {"cpu": 1e300}, ` + class + `}`, 422, "invalid"},
		{"more than the pool can ever be", `{"task_id": "t", "pool": "p", "resources": {"cpu": 3}, ` + class + `}`, 409, "request_too_large"},
		{"broken JSON", `{"task_id": "t", `, 400, "bad_json"},
		{"a NUL byte in a label", `{"task_id": "t", "pool": "p", "resources": {"cpu": 1}, "labels": {"a": "x\u0000y"}, ` + class + `}`, 422, "invalid"},
		{"a 10 MB label", `{"task_id": "t", "pool": "p", "resources": {"cpu": 1}, "labels": {"a": "` + long + `"}, ` + class + `}`, 422, "invalid"},
		{"a NUL byte deep in the arguments", `{"task_id": "t", "pool": "p", "resources": {"cpu": 1}, "actor_kwargs": {"a": ["x\u0000y"]}, ` + class + `}`, 422, "invalid"},
		{"an unknown field", `{"task_id": "t", "pool": "p", "resources": {"cpu": 1}, "prioritty": 3, ` + class + `}`, 422, "invalid"},
	} {
		if r := send(t, a, "POST", "/api/v1/tasks", c.body); r.status != c.status || r.code() != c.code {
			t.Errorf("%s: %d %s %s, want %d %s", c.name, r.status, r.code(), r.body[:min(len(r.body), 300)], c.status, c.code)
		}
	}
	pool, err := a.Ledger().Pool(t.Context(), "default", "p")
	if err != nil {
		t.Fatal(err)
	}
	if b := pool.Balances[0]; b.Used+b.Reserved != 1000 {
		t.Errorf("held: %+v", b)
	}
	if diffs, err := a.Ledger().Verify(t.Context()); err != nil || len(diffs) > 0 {
		t.Error(diffs, err)
	}
}

func TestPostgresRestartedUnderneathCostsAnErrorAndNothingElse(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/tmp", "schedulemesh-app-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	pg, err := local.StartPostgres(t.Context(), local.PostgresOptions{Dir: dir + "/pg"})
	if err != nil {
		t.Fatal(err)
	}
	u, _ := url.Parse(pg.URL())
	port, _ := strconv.Atoi(u.Port())
	a := start(t, app.Config{DatabaseURL: pg.URL()})
	send(t, a, "POST", "/api/v1/pools", `{"name": "p", "resources": {"cpu": 20}}`)
	submit := func(id string) answer {
		return send(t, a, "POST", "/api/v1/tasks", fmt.Sprintf(`{"task_id": %q, "pool": "p", "resources": {"cpu": 1}, %s}`, id, class))
	}
	if r := submit("before"); r.status != 201 {
		t.Fatalf("%+v", r)
	}
	if err := pg.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := submit("during"); r.status != 503 || r.code() != "database_unavailable" || r.header.Get("Retry-After") == "" {
		t.Errorf("%+v", r)
	}
	if r := send(t, a, "GET", "/readyz", ""); r.status != 503 {
		t.Errorf("readyz: %+v", r)
	}
	pg, err = local.StartPostgres(t.Context(), local.PostgresOptions{Dir: dir + "/pg", Port: port})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pg.Stop(context.Background()) })
	var r answer
	for range 100 {
		if r = submit("after"); r.status == 201 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if r.status != 201 {
		t.Fatalf("it does not recover: %+v", r)
	}
	for _, id := range []string{"before", "after"} {
		deadline := time.Now().Add(20 * time.Second)
		for {
			task, err := a.Ledger().Task(t.Context(), "default", id)
			if err == nil && task.State == ledger.Running {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("task %s is %s: %v", id, task.State, err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	if diffs, err := a.Ledger().Verify(t.Context()); err != nil || len(diffs) > 0 {
		t.Error(diffs, err)
	}
}
