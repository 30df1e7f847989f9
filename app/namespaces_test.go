package app_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/app"
	"github.com/schedulemesh/schedulemesh/bridge"
)

// events follows the event stream of a server.
func events(t *testing.T, a *app.App) <-chan string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", a.URL()+"/api/v1/events?namespace=default", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+a.Token())
	req.Header.Set("Accept", "text/event-stream")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan string, 1000)
	go func() {
		defer close(out)
		defer func() { _ = res.Body.Close() }()
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				out <- data
			}
		}
	}()
	return out
}

// nobody wants no agent to be there.
func nobody(t *testing.T, s *shared) {
	t.Helper()
	agents, err := s.latest.Load().List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range agents {
		if a.State != bridge.StateGone {
			t.Errorf("an agent is left: %+v", a)
		}
	}
}

func inX(id string, cpu float64, more string) string {
	return fmt.Sprintf(`{"task_id": %q, "pool": "p", "resources": {"cpu": %v}, %s%s}`, id, cpu, class, more)
}

func TestASessionEndsOnOneServerAndNothingIsLeftOnAnother(t *testing.T) {
	t.Parallel()
	a, b, s := two(t)
	feed := events(t, b)
	const ns = "?namespace=x%2Fy"
	want(t, send(t, a, "PUT", "/api/v1/namespaces/x%2Fy", `{"session": "s1", "owner": "ann", "ttl": 30}`), 200, `"created":true`, `"cleared":false`, `"session_owner":"ann"`)
	want(t, send(t, a, "PUT", "/api/v1/namespaces/x%2Fy", `{"session": "s2"}`), 409, `"namespace_in_use"`, "held by ann since")
	want(t, send(t, a, "POST", "/api/v1/pools"+ns, `{"name": "p", "resources": {"cpu": 6}}`), 201)
	want(t, send(t, b, "PATCH", "/api/v1/policy"+ns, `{"policy": {"cross_pool_priority_threshold": 3}}`), 200)
	want(t, send(t, b, "POST", "/api/v1/tasks"+ns+"&wait=10s", inX("t", 4, "")), 201, `"running"`)
	want(t, send(t, a, "POST", "/api/v1/tasks"+ns+"&wait=10s", inX("high", 5, `, "priority": 9`)), 201, `"running"`)
	want(t, send(t, a, "POST", "/api/v1/tasks"+ns, inX("waits", 5, `, "on_insufficient": "queue"`)), 201, `"queued"`)
	want(t, send(t, b, "GET", "/api/v1/namespaces/x%2Fy", ""), 200, `"pools":1`, `"live_tasks":2`, `"agents":1`)
	want(t, send(t, b, "GET", "/api/v1/preemptions/stats"+ns, ""), 200, `"total_preemptions":1`)
	waits := make(chan answer, 1)
	go func() { waits <- send(t, b, "GET", "/api/v1/tasks/waits"+ns+"&wait=30s", "") }()

	want(t, send(t, b, "DELETE", "/api/v1/namespaces/x%2Fy?session=s2", ""), 409, `"namespace_in_use"`)
	want(t, send(t, b, "DELETE", "/api/v1/namespaces/x%2Fy?session=s1", ""), 204)
	nobody(t, s)
	if r := <-waits; r.status >= 500 {
		t.Errorf("who waited for a task of it was told %+v", r)
	}
	for _, x := range []*app.App{a, b} {
		want(t, send(t, x, "GET", "/api/v1/namespaces/x%2Fy", ""), 404, `"unknown_namespace"`)
		want(t, send(t, x, "GET", "/api/v1/pools"+ns, ""), 200, `"items":[]`)
		want(t, send(t, x, "GET", "/api/v1/tasks"+ns, ""), 200, `"items":[]`)
		want(t, send(t, x, "GET", "/api/v1/preemptions/stats"+ns, ""), 200, `"total_preemptions":0`)
		want(t, send(t, x, "GET", "/api/v1/policy"+ns, ""), 200, `"version":1`)
		want(t, send(t, x, "POST", "/api/v1/pools"+ns, `{"name": "p", "resources": {"cpu": 6}}`), 404, `"unknown_namespace"`)
		if past, err := x.Ledger().Events(t.Context(), "x/y", 0, 10); err != nil || len(past) != 0 {
			t.Errorf("its history is %+v %v", past, err)
		}
		for _, page := range []string{"/", "/pools", "/tasks", "/tasks/t", "/pools/p", "/policy", "/preemptions", "/agents"} {
			if r := send(t, x, "GET", page+ns, ""); r.status >= 500 {
				t.Errorf("%s: %d", page, r.status)
			}
		}
	}
	if body := send(t, a, "GET", "/api/v1/namespaces", "").body; strings.Contains(body, "x/y") {
		t.Errorf("it is listed: %s", body)
	}
	verified(t, a)

	// Streams that were open go on, though events they have not shown are gone.
	want(t, send(t, a, "POST", "/api/v1/pools", `{"name": "after", "resources": {"cpu": 1}}`), 201)
	for over := time.After(10 * time.Second); ; {
		select {
		case e := <-feed:
			if !strings.Contains(e, `"after"`) {
				continue
			}
		case <-over:
			t.Fatal("the stream tells nothing more")
		}
		break
	}
	// The next session begins anew, on the other server.
	want(t, send(t, b, "PUT", "/api/v1/namespaces/x%2Fy", `{"session": "s3"}`), 200, `"created":true`)
	want(t, send(t, b, "POST", "/api/v1/pools"+ns, `{"name": "p", "resources": {"cpu": 6}}`), 201)
	want(t, send(t, a, "POST", "/api/v1/tasks"+ns+"&wait=10s", inX("t", 4, "")), 201, `"running"`)
}

func TestClearingGoesOnWhenRayIsBack(t *testing.T) {
	t.Parallel()
	a, b, s := two(t)
	const ns = "?namespace=x"
	want(t, send(t, a, "PUT", "/api/v1/namespaces/x", `{"session": "s1"}`), 200)
	want(t, send(t, a, "POST", "/api/v1/pools"+ns, `{"name": "p", "resources": {"cpu": 6}}`), 201)
	want(t, send(t, a, "POST", "/api/v1/tasks"+ns+"&wait=10s", inX("t", 4, "")), 201, `"running"`)
	s.latest.Load().Down()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "DELETE", a.URL()+"/api/v1/namespaces/x?session=s1", nil)
	req.Header.Set("Authorization", "Bearer "+a.Token())
	if res, err := http.DefaultClient.Do(req); err == nil {
		t.Fatalf("it was answered %d while its agent runs", res.StatusCode)
	}
	want(t, send(t, b, "GET", "/api/v1/namespaces/x", ""), 200, `"closing":true`, `"live_tasks":1`, `"expires_at":null`)
	want(t, send(t, b, "POST", "/api/v1/tasks"+ns, inX("new", 1, "")), 409, `"namespace_closing"`)
	// The server that began it ends; the other one runs the agents now, and goes on.
	_ = a.Stop(context.Background())
	eventually(t, "it is cleared", func() bool { return send(t, b, "GET", "/api/v1/namespaces/x", "").status == 404 })
	nobody(t, s)
	verified(t, b)
}

// What is being taken, or made, is stopped by force: nobody waits for its cancel, its state or
// its constructor.
func TestClearingWaitsForNoAgentThatHangs(t *testing.T) {
	t.Parallel()
	a, b, s := two(t)
	const ns = "?namespace=x"
	hangs := func(id, class string, cpu float64, more string) string {
		return fmt.Sprintf(`{"task_id": %q, "pool": "p", "resources": {"cpu": %v}, "actor_class": "schedulemesh.testing.agents:%s"%s}`, id, cpu, class, more)
	}
	for name, by := range map[string]*app.App{"the server that runs the agents": a, "the other": b} {
		want(t, send(t, a, "PUT", "/api/v1/namespaces/x", `{"session": "s `+name+`"}`), 200, `"created":true`)
		want(t, send(t, a, "PATCH", "/api/v1/policy"+ns, `{"policy": {"cancel_timeout": 300, "save_timeout": 300}}`), 200)
		want(t, send(t, a, "POST", "/api/v1/pools"+ns, `{"name": "p", "resources": {"cpu": 8}}`), 201)
		want(t, send(t, a, "POST", "/api/v1/tasks"+ns+"&wait=10s", hangs("by-hand", "HangingCancel", 1, `, "priority": 9`)), 201, `"running"`)
		want(t, send(t, a, "POST", "/api/v1/tasks"+ns+"&wait=10s", hangs("cancel", "HangingCancel", 2, "")), 201, `"running"`)
		want(t, send(t, a, "POST", "/api/v1/tasks"+ns+"&wait=10s", hangs("save", "HangingSave", 2, "")), 201, `"running"`)
		want(t, send(t, a, "POST", "/api/v1/tasks"+ns, hangs("made", "HangingConstructor", 1, `, "priority": 9`)), 201)
		want(t, send(t, a, "POST", "/api/v1/tasks"+ns, hangs("high", "Counter", 6, `, "priority": 9`)), 201, `"reserved"`)
		go func() { // answered when it is over
			req, _ := http.NewRequestWithContext(t.Context(), "POST", a.URL()+"/api/v1/tasks/by-hand/preempt"+ns, nil)
			req.Header.Set("Authorization", "Bearer "+a.Token())
			if res, err := http.DefaultClient.Do(req); err == nil {
				_ = res.Body.Close()
			}
		}()
		eventually(t, "all are being taken", func() bool {
			return strings.Count(send(t, a, "GET", "/api/v1/tasks"+ns, "").body, `"state":"preempting"`) == 3
		})
		began := time.Now()
		want(t, send(t, by, "DELETE", "/api/v1/namespaces/x?session=s+"+strings.ReplaceAll(name, " ", "+"), ""), 204)
		if took := time.Since(began); took > 8*time.Second {
			t.Errorf("through %s it took %s", name, took)
		}
		nobody(t, s)
		verified(t, a)
	}
}
