package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
	"github.com/schedulemesh/schedulemesh/handlers/auth"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

func TestLedgerErrorsBecomeHTTP(t *testing.T) {
	status := map[string]int{
		"invalid": 422, "unknown_pool": 404, "unknown_task": 404, "unknown_agent": 404, "unknown_policy_version": 404, "not_found": 404,
		"task_exists": 409, "agent_exists": 409, "pool_exists": 409, "pool_in_use": 409, "wrong_state": 409, "version_conflict": 409,
		"request_too_large": 409, "no_node_large_enough": 409, "insufficient_resources": 409, "database_unavailable": 503, "bridge_unavailable": 503,
		"shutting_down": 503, "too_large": 413, "idempotency_key_reused": 422,
		"unknown_namespace": 404, "namespace_in_use": 409, "namespace_kept": 409, "namespace_closing": 409,
	}
	for code, want := range status {
		f := &fake{err: fmt.Errorf("wrapped: %w", &ledger.Error{Code: code, Message: "what was wrong", Fields: map[string]string{"b": "x", "a": "y"}})}
		for _, call := range []string{"GET /api/v1/tasks/t", "POST /api/v1/tasks"} { // through huma, and by hand
			method, path, _ := strings.Cut(call, " ")
			body := ""
			if method == "POST" {
				body = `{"pool":"p"}`
			}
			res := send(t, newAPI(f), method, path, body)
			res.want(t, want, code)
			res.has(t, map[string]any{"detail": "what was wrong", "errors.field": "a", "errors.location": "body.a"})
			if retry := res.Header.Get("Retry-After"); (retry != "") != (want == 503) {
				t.Errorf("%s: Retry-After %q", code, retry)
			}
		}
	}
}

func TestEveryLedgerErrorHasAPlaceInTheList(t *testing.T) {
	for _, e := range []*ledger.Error{ledger.ErrInvalid, ledger.ErrUnknownPool, ledger.ErrUnknownTask, ledger.ErrUnknownAgent, ledger.ErrUnknownVersion, ledger.ErrUnknown,
		ledger.ErrTaskExists, ledger.ErrAgentExists, ledger.ErrPoolExists, ledger.ErrPoolInUse, ledger.ErrTooLarge, ledger.ErrNoNode, ledger.ErrInsufficient,
		ledger.ErrWrongState, ledger.ErrPoolHeld, ledger.ErrUnknownNode, ledger.ErrConflict, ledger.ErrUnknownSpace, ledger.ErrSpaceInUse,
		ledger.ErrSpaceKept, ledger.ErrSpaceClosing, ledger.ErrUnavailable, ledger.ErrClosed, ledger.ErrInternal} {
		if !problem.Known(e.Code) {
			t.Errorf("%s would be answered as internal", e.Code)
		}
	}
}

func TestInternalsNeverLeak(t *testing.T) {
	for name, err := range map[string]error{
		"any error":       errors.New(`pq: password "hunter2" wrong`),
		"internal":        &ledger.Error{Code: "internal", Message: "hunter2"},
		"a code unknown":  &ledger.Error{Code: "hunter2", Message: "hunter2"},
		"a panic instead": nil,
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			f := &fake{err: err, panics: err == nil, task: sampleTask()}
			a := New(Deps{Ledger: f, Logs: f, Logger: slog.New(slog.NewJSONHandler(&log, nil))})
			for _, call := range []string{"GET /api/v1/tasks/t", "POST /api/v1/tasks"} {
				log.Reset()
				method, path, _ := strings.Cut(call, " ")
				body := ""
				if method == "POST" {
					body = `{"pool":"p"}`
				}
				res := send(t, a, method, path, body)
				res.want(t, 500, "internal")
				if strings.Contains(res.text, "hunter2") {
					t.Errorf("the answer tells: %s", res.text)
				}
				var line map[string]any
				if err := json.Unmarshal(log.Bytes(), &line); err != nil {
					t.Fatalf("log %q: %v", log.String(), err)
				}
				if line["level"] != "ERROR" || line["request_id"] != res.json["request_id"] || !strings.Contains(fmt.Sprint(line["error"]), "hunter2") {
					t.Errorf("the log does not have the cause under the request's id: %v", line)
				}
			}
		})
	}
}

func TestRefusalOfRoomIsExplainedInUnits(t *testing.T) {
	f := &fake{err: &ledger.Error{Code: "insufficient_resources", Message: "m", Detail: sched.Refusal{
		Code: sched.NoVictims, Short: sched.Resources{GPU: 500}, Tally: sched.Tally{Considered: 5, Protected: 3, BelowThreshold: 2}}}}
	send(t, newAPI(f), "POST", "/api/v1/tasks", `{"pool":"p"}`).has(t, map[string]any{
		"explanation.code": "no_victims", "explanation.missing.gpu": 0.5, "explanation.considered": 5.0, "explanation.safe": map[string]any{"protected": 3.0, "below_threshold": 2.0}})
}

func TestVersionConflictIs412OnlyWithIfMatch(t *testing.T) {
	f := &fake{err: &ledger.Error{Code: "version_conflict", Message: "version 4 is active"}}
	a := newAPI(f)
	for _, call := range []struct{ method, path, body string }{
		{"PUT", "/api/v1/policy", `{"policy":{}}`}, {"PATCH", "/api/v1/policy", `{"policy":{}}`}, {"POST", "/api/v1/policy/versions/1/rollback", `{}`},
	} {
		send(t, a, call.method, call.path, call.body).want(t, 409, "version_conflict")
		send(t, a, call.method, call.path, call.body, "If-Match", `"3"`).want(t, 412, "version_conflict")
		send(t, a, call.method, call.path, call.body, "If-Match", `"three"`).want(t, 422, "invalid")
		send(t, a, call.method, call.path, call.body, "If-Match", `-1`).want(t, 422, "invalid")
	}
}

// TestHumaRefuses checks what is wrong with requests that huma reads.
func TestHumaRefuses(t *testing.T) {
	tests := map[string]struct {
		method, target, body string
		headers              []string
		status               int
		code, field, says    string
	}{
		"broken JSON":                    {"POST", "/api/v1/pools", "{\n\"name\": x}", nil, 400, "bad_json", "body", "line 2, column 9"},
		"duplicate key":                  {"POST", "/api/v1/pools", `{"name":"a","name":"b"}`, nil, 400, "bad_json", "body", "appears twice"},
		"trailing garbage":               {"POST", "/api/v1/pools", `{"name":"a"} x`, nil, 400, "bad_json", "body", "follows the end"},
		"no body":                        {"POST", "/api/v1/pools", "", nil, 400, "bad_request", "", "body is required"},
		"required field missing":         {"POST", "/api/v1/pools", `{}`, nil, 422, "invalid", "name", "is missing"},
		"required field null":            {"POST", "/api/v1/pools", `{"name":null}`, nil, 422, "invalid", "name", "is missing"},
		"unknown field":                  {"POST", "/api/v1/pools", `{"name":"a","size":1}`, nil, 422, "invalid", "size", "no such field"},
		"wrong type":                     {"POST", "/api/v1/pools", `{"name":5}`, nil, 422, "invalid", "name", "expected string"},
		"out of range":                   {"POST", "/api/v1/pools", `{"name":"a","target_agents":-1}`, nil, 422, "invalid", "target_agents", ">= 0, got -1"},
		"1e400":                          {"POST", "/api/v1/pools", `{"name":"a","resources":{"cpu":1e400}}`, nil, 422, "invalid", "resources.cpu", "too large"},
		"negative resources":             {"POST", "/api/v1/pools", `{"name":"a","resources":{"cpu":-1}}`, nil, 422, "invalid", "resources.cpu", "-1 is negative"},
		"NUL in a name":                  {"POST", "/api/v1/pools", `{"name":"a\u0000"}`, nil, 422, "invalid", "name", "NUL"},
		"control character in a name":    {"POST", "/api/v1/pools", `{"name":"a\u0007"}`, nil, 422, "invalid", "name", "U+0007"},
		"PG config that is no object":    {"POST", "/api/v1/pools", `{"name":"a","pg_pool_config":[1]}`, nil, 422, "invalid", "pg_pool_config", "expected object"},
		"PG config with a word":          {"PATCH", "/api/v1/pools/a", `{"pg_pool_config":{"max_dynamic_pgs":"many"}}`, nil, 422, "invalid", "pg_pool_config.max_dynamic_pgs", "integer"},
		"PG config with half a group":    {"PATCH", "/api/v1/pools/a", `{"pg_pool_config":{"max_dynamic_pgs":1.5}}`, nil, 422, "invalid", "pg_pool_config.max_dynamic_pgs", "integer"},
		"a PG that is no object":         {"PATCH", "/api/v1/pools/a", `{"pg_pool_config":{"high_priority_pg_specs":[2]}}`, nil, 422, "invalid", "pg_pool_config.high_priority_pg_specs[0]", "object"},
		"ended that is no flag":          {"GET", "/api/v1/pools/a/placement-groups?ended=maybe", "", nil, 422, "invalid", "ended", "maybe"},
		"PGs with a filter unheard of":   {"GET", "/api/v1/pools/a/placement-groups?tier=dynamic", "", nil, 422, "invalid", "tier", ""},
		"quota kept without a PG":        {"POST", "/api/v1/tasks", `{"pool":"p","preempt_for_quota":false}`, nil, 422, "invalid", "preempt_for_quota", "use_placement_group"},
		"quota kept in words":            {"POST", "/api/v1/tasks", `{"pool":"p","use_placement_group":true,"preempt_for_quota":"no"}`, nil, 422, "invalid", "preempt_for_quota", "true or false"},
		"a gang in PGs":                  {"POST", "/api/v1/tasks", `{"all_or_nothing":true,"tasks":[{"pool":"p"},{"pool":"p","use_placement_group":true}]}`, nil, 422, "invalid", "tasks.1.use_placement_group", "all_or_nothing"},
		"a body of another type":         {"POST", "/api/v1/pools", `name: a`, []string{"Content-Type", "application/yaml"}, 415, "unsupported_media_type", "", "application/yaml"},
		"a form":                         {"POST", "/api/v1/tasks", `pool=a`, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "unsupported_media_type", "", "send application/json"},
		"a body in Latin-1":              {"POST", "/api/v1/tasks", `{"pool":"p"}`, []string{"Content-Type", "application/json; charset=latin1"}, 415, "unsupported_media_type", "", "UTF-8"},
		"a compressed body":              {"POST", "/api/v1/tasks", `{"pool":"p"}`, []string{"Content-Encoding", "gzip"}, 415, "unsupported_media_type", "", "gzip"},
		"limit of 0":                     {"GET", "/api/v1/tasks?limit=0", "", nil, 422, "invalid", "limit", ">= 1"},
		"limit beyond the most":          {"GET", "/api/v1/tasks?limit=501", "", nil, 422, "invalid", "limit", "<= 500"},
		"limit that is no number":        {"GET", "/api/v1/tasks?limit=x", "", nil, 422, "invalid", "limit", "integer"},
		"unknown state":                  {"GET", "/api/v1/tasks?state=running,sleeping", "", nil, 422, "invalid", "", "sleeping"},
		"label without a value":          {"GET", "/api/v1/tasks?label=tier", "", nil, 422, "invalid", "label", "key=value"},
		"NUL in a filter":                {"GET", "/api/v1/tasks?q=%00", "", nil, 422, "invalid", "q", "U+0000"},
		"NUL in a cursor":                {"GET", "/api/v1/tasks?cursor=%00", "", nil, 422, "invalid", "cursor", "U+0000"},
		"NUL in the namespace":           {"GET", "/api/v1/pools?namespace=a%00", "", nil, 422, "invalid", "namespace", "U+0000"},
		"NUL in the namespace of submit": {"POST", "/api/v1/tasks?namespace=%00", `{"pool":"p"}`, nil, 422, "invalid", "namespace", "U+0000"},
		"NUL in a path":                  {"GET", "/api/v1/tasks/a%00b", "", nil, 422, "invalid", "task_id", "U+0000"},
		"invalid UTF-8 in a path":        {"GET", "/api/v1/pools/%ff", "", nil, 422, "invalid", "name", "UTF-8"},
		"unknown stream":                 {"GET", "/api/v1/tasks/t/logs?stream=stdin", "", nil, 422, "invalid", "stream", "stdout"},
		"preemption that is no number":   {"GET", "/api/v1/preemptions/x", "", nil, 422, "invalid", "id", "integer"},
		"backtest without a policy":      {"POST", "/api/v1/policy/backtest", `{}`, nil, 422, "invalid", "policy", "missing"},
		"backtest a bad policy":          {"POST", "/api/v1/policy/backtest", `{"policy":{"nonsense":1}}`, nil, 422, "invalid", "policy.nonsense", "not a field"},
		"backtest no time":               {"POST", "/api/v1/policy/backtest", `{"policy":{},"last":0}`, nil, 422, "invalid", "last", "more than 0"},
		"backtest some day":              {"POST", "/api/v1/policy/backtest", `{"policy":{},"from":"monday"}`, nil, 422, "invalid", "from", ""},
		"what if nothing":                {"POST", "/api/v1/policy/what-if", `{}`, nil, 422, "invalid", "task", "suppose"},
		"what if nowhere":                {"POST", "/api/v1/policy/what-if", `{"task":{"priority":1}}`, nil, 422, "invalid", "task.pool", "missing"},
		"what if in pieces":              {"POST", "/api/v1/policy/what-if", `{"task":{"pool":"p","resources":{"cpu":-1}}}`, nil, 422, "invalid", "task.resources.cpu", ""},
		"what if a bad policy":           {"POST", "/api/v1/policy/what-if", `{"policy":{"nonsense":1}}`, nil, 422, "invalid", "policy.nonsense", "not a field"},
		"version against a word":         {"GET", "/api/v1/policy/versions/2?against=last", "", nil, 422, "invalid", "against", "integer"},
		"version 0":                      {"GET", "/api/v1/policy/versions/0", "", nil, 422, "invalid", "n", ">= 1"},
		"bad policy":                     {"PATCH", "/api/v1/policy", `{"policy":{"min_preempt_score":-1,"nonsense":1}}`, nil, 422, "invalid", "policy.nonsense", "not a field"},
		"policy with a cycle":            {"PUT", "/api/v1/policy", `{"policy":{"label_preemption_rules":{"t":{"a":["b"],"b":["a"]}}}}`, nil, 422, "invalid", "policy.label_preemption_rules", "circle"},
		"policy that is no object":       {"PUT", "/api/v1/policy", `{"policy":[1]}`, nil, 422, "invalid", "policy", "object"},
		"long comment":                   {"PUT", "/api/v1/policy", `{"policy":{},"comment":"` + strings.Repeat("x", 2001) + `"}`, nil, 422, "invalid", "comment", "2000"},
		"execute without a name":         {"POST", "/api/v1/preemption/execute", `{}`, nil, 422, "invalid", "task_id", "is missing"},
		"event id that is no number":     {"GET", "/api/v1/events?after=x", "", nil, 422, "invalid", "after", "whole number"},
		"Last-Event-ID of nonsense":      {"GET", "/api/v1/events", "", []string{"Last-Event-ID", "abc"}, 422, "invalid", "Last-Event-ID", "whole number"},
		"idempotency key with a NUL":     {"POST", "/api/v1/tasks", `{"pool":"p"}`, []string{"Idempotency-Key", "a\x01"}, 422, "invalid", "Idempotency-Key", "U+0001"},
		"empty idempotency key":          {"POST", "/api/v1/tasks", `{"pool":"p"}`, []string{"Idempotency-Key", ""}, 422, "invalid", "Idempotency-Key", "missing"},
		"drain in the past":              {"POST", "/api/v1/pools/a/drain", `{"deadline":-1}`, nil, 422, "invalid", "deadline", "-1 is not a duration"},
		"drain in two years":             {"POST", "/api/v1/nodes/n/drain", `{"deadline":64000000}`, nil, 422, "invalid", "deadline", "more than a year"},
		"drain by a date":                {"POST", "/api/v1/nodes/n/drain", `{"deadline":"soon"}`, nil, 422, "invalid", "deadline", "number"},
		"hold with a long reason":        {"POST", "/api/v1/pools/a/hold", `{"reason":"` + strings.Repeat("x", 1001) + `"}`, nil, 422, "invalid", "reason", "1000"},
		"max_runtime below nothing":      {"PATCH", "/api/v1/pools/a", `{"max_runtime":-1}`, nil, 422, "invalid", "max_runtime", "-1 is not a duration"},
		"queue_timeout below nothing":    {"POST", "/api/v1/tasks", `{"pool":"p","queue_timeout":-1}`, nil, 422, "invalid", "queue_timeout", "-1 is not a duration"},
		"queue_timeout of NaN":           {"POST", "/api/v1/tasks", `{"pool":"p","queue_timeout":NaN}`, nil, 400, "bad_json", "body", "NaN is not JSON"},
		"retry_backoff below nothing":    {"POST", "/api/v1/tasks", `{"pool":"p","retry_backoff":-1}`, nil, 422, "invalid", "retry_backoff", "-1 is not a duration"},
		"metrics that are no object":     {"POST", "/api/v1/agents/a/metrics", `[1]`, nil, 422, "invalid", "body", "object"},
		"metrics of 100 KiB":             {"POST", "/api/v1/agents/a/metrics", `{"a":"` + strings.Repeat("x", 100<<10) + `"}`, nil, 413, "too_large", "", "at most"},
		"unknown address":                {"GET", "/api/v1/nowhere", "", nil, 404, "not_found", "", "/api/v1/nowhere"},
		"unknown version of the API":     {"GET", "/api/v2/tasks", "", nil, 404, "not_found", "", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			res := send(t, newAPI(f), tt.method, tt.target, tt.body, tt.headers...)
			res.want(t, tt.status, tt.code)
			if !strings.Contains(strings.ReplaceAll(res.text, `\u003e`, ">"), tt.says) {
				t.Errorf("does not say %q: %s", tt.says, res.text)
			}
			if tt.field != "" && res.field("errors.field") != tt.field {
				t.Errorf("names the field %v, want %s: %s", res.field("errors.field"), tt.field, res.text)
			}
			if f.call != "" {
				t.Errorf("the ledger was asked %s", f.call)
			}
		})
	}
}

func TestMethodNotAllowedSaysWhatIs(t *testing.T) {
	a := newAPI(&fake{})
	for target, allow := range map[string]string{"/api/v1/tasks": "GET, POST", "/api/v1/tasks/a%2Fb": "GET, PATCH, DELETE", "/api/v1/preemptions/stats": "GET", "/api/openapi.json": "GET"} {
		res := send(t, a, "PUT", target, "")
		res.want(t, 405, "method_not_allowed")
		if got := res.Header.Get("Allow"); got != allow {
			t.Errorf("%s allows %q, want %q", target, got, allow)
		}
	}
}

func TestMountedUnderAnotherRouterWithSignIn(t *testing.T) {
	f := &fake{}
	guard, err := auth.New(auth.Config{Tokens: []string{"0123456789abcdef"}, Addr: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	h := Access(nil)(guard.Middleware(newAPI(f)))
	send(t, h, "GET", "http://localhost/api/v1/tasks", "").want(t, 401, "unauthorized")
	send(t, h, "GET", "http://evil.example/api/v1/tasks", "").want(t, 421, "misdirected_request")
	res := send(t, h, "DELETE", "http://localhost/api/v1/tasks/t", "", "Authorization", "Bearer 0123456789abcdef", "X-Request-Id", "mine-1")
	res.want(t, 200, "")
	if got := res.Header.Values("X-Request-Id"); !slices.Equal(got, []string{"mine-1"}) {
		t.Errorf("X-Request-Id %q", got)
	}
	if who := arg[string](t, f, 1); who != "api" {
		t.Errorf("the event would say %q", who)
	}
	res = send(t, h, "GET", "http://localhost/api/v1/pools", "", "Authorization", "Bearer 0123456789abcdef", "X-Request-Id", "a\"b")
	if got := res.Header.Get("X-Request-Id"); got == "" || strings.Contains(got, `"`) {
		t.Errorf("a harmful id is echoed: %q", got)
	}
}

func TestIdempotencyKeyMakesAPostHappenOnce(t *testing.T) {
	f := &fake{task: sampleTask(), pool: ledger.Pool{Name: "p", Namespace: "default"}}
	a := newAPI(f)
	for _, target := range []string{"/api/v1/tasks", "/api/v1/pools"} {
		body := map[string]string{"/api/v1/tasks": `{"pool":"p"}`, "/api/v1/pools": `{"name":"p"}`}[target]
		key := []string{"Idempotency-Key", "k" + target}
		first := send(t, a, "POST", target, body, key...)
		first.want(t, 201, "")
		f.call = ""
		again := send(t, a, "POST", target+"?wait=1s", body, key...)
		if target == "/api/v1/pools" {
			again = send(t, a, "POST", target, body, key...)
		}
		again.want(t, 201, "")
		if f.call != "" || again.text != first.text || again.Header.Get("Idempotency-Replayed") != "true" || again.Header.Get("Location") != first.Header.Get("Location") || again.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: again %q asked %s: %v", target, again.text, f.call, again.Header)
		}
		send(t, a, "POST", target, strings.Replace(body, `"p"`, `"q"`, 1), key...).want(t, 422, "idempotency_key_reused")
		send(t, a, "POST", target+"?namespace=other", body, key...).want(t, 201, "") // keys are per namespace
	}
	if send(t, a, "POST", "/api/v1/tasks/t/complete", "", "Idempotency-Key", "c"); f.call != "Complete" {
		t.Errorf("asked %s", f.call)
	}
}

func TestRefusalDoesNotUseUpAnIdempotencyKey(t *testing.T) {
	f := &fake{err: &ledger.Error{Code: "insufficient_resources", Message: "m"}}
	a := newAPI(f)
	send(t, a, "POST", "/api/v1/tasks", `{"pool":"p"}`, "Idempotency-Key", "k").want(t, 409, "insufficient_resources")
	f.err = nil
	send(t, a, "POST", "/api/v1/tasks", `{"pool":"p"}`, "Idempotency-Key", "k").want(t, 201, "")
}

func TestEventStream(t *testing.T) {
	f := &fake{feed: make(chan ledger.Event)}
	srv := httptest.NewServer(newAPI(f))
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "GET", srv.URL+"/api/v1/events?after=3&namespace=ml", nil)
	r.Header.Set("Last-Event-ID", "41")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if ct := res.Header.Get("Content-Type"); res.StatusCode != 200 || ct != "text/event-stream" {
		t.Fatalf("%d %s", res.StatusCode, ct)
	}
	if f.ns != "ml" || arg[int64](t, f, 0) != 41 {
		t.Errorf("subscribed to %q after %v; Last-Event-ID must win", f.ns, f.args)
	}
	lines := bufio.NewScanner(res.Body)
	until := func(prefix string) string {
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), prefix) {
				return lines.Text()
			}
		}
		t.Fatalf("the stream ended before %q: %v", prefix, lines.Err())
		return ""
	}
	until(": alive")
	go func() {
		f.feed <- ledger.Event{ID: 42, Type: "phase:cancelling", TaskID: "a\nb", At: noon}
		f.feed <- ledger.Event{ID: 43, Type: "running", Detail: json.RawMessage(`broken`)}
		close(f.feed)
	}()
	if got := until("id:"); got != "id: 42" {
		t.Error(got)
	}
	var e map[string]any
	if err := json.Unmarshal([]byte(strings.TrimPrefix(until("data:"), "data: ")), &e); err != nil || e["type"] != "phase:cancelling" || e["task_id"] != "a\nb" {
		t.Errorf("%v %v", e, err)
	}
	if got := until("id:"); got != "id: 43" {
		t.Error(got)
	}
	until("data:")
	for lines.Scan() { // the ledger closed the channel: the stream ends
	}
	if err := lines.Err(); err != nil {
		t.Errorf("the stream broke: %v", err)
	}
}

func TestEventStreamEndsWithItsContext(t *testing.T) {
	f := &fake{feed: make(chan ledger.Event)}
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequest("GET", "/api/v1/events", nil).WithContext(ctx)
	done := make(chan struct{})
	go func() { newAPI(f).ServeHTTP(httptest.NewRecorder(), r); close(done) }()
	cancel()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("the stream goes on")
	}
}

func TestEventStreamRefusesBeforeItBegins(t *testing.T) {
	f := &fake{err: &ledger.Error{Code: "shutting_down", Message: "m"}}
	send(t, newAPI(f), "GET", "/api/v1/events", "").want(t, 503, "shutting_down")
}
