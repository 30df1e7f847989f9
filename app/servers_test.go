package app_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/app"
	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/testdb"
)

// shared is a cluster that several servers reach, and what they launched on it.
type shared struct {
	cluster  *bridge.FakeCluster
	mu       sync.Mutex
	launches map[string]int // by launch id, how often it was asked for
	open     atomic.Int32   // bridges that are open
	most     atomic.Int32
	stuck    atomic.Bool // launches hang until they are given up
	latest   atomic.Pointer[bridge.Fake]
}

func newShared() *shared {
	return &shared{launches: map[string]int{},
		cluster: bridge.NewFakeCluster(bridge.Node{ID: "n1", Address: "127.0.0.1", Alive: true, Total: bridge.Resources{"cpu": 8000, "memory": 1 << 20}})}
}

type counted struct {
	bridge.Bridge
	s *shared
}

func (s *shared) bridge(deployment string) bridge.Bridge {
	n := s.open.Add(1)
	for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
	}
	f := s.cluster.Bridge(deployment)
	s.latest.Store(f)
	return counted{f, s}
}

func (c counted) Launch(ctx context.Context, r bridge.LaunchRequest) (bridge.Launched, error) {
	c.s.mu.Lock()
	c.s.launches[r.LaunchID]++
	c.s.mu.Unlock()
	out, err := c.Bridge.Launch(ctx, r)
	if c.s.stuck.Load() { // sent, and its answer never comes back
		<-ctx.Done()
		return out, ctx.Err()
	}
	return out, err
}

func (c counted) Close() error {
	c.s.open.Add(-1)
	return c.Bridge.Close()
}

func (s *shared) launched(t *testing.T, of string) int {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.launches[of]
}

// two starts two servers on one database and one cluster; the first runs its agents.
func two(t *testing.T) (*app.App, *app.App, *shared) {
	t.Helper()
	s := newShared()
	url, file := testdb.New(t), t.TempDir()+"/token"
	a := start(t, app.Config{DatabaseURL: url, TokenFile: file, Bridge: s.bridge})
	b := start(t, app.Config{DatabaseURL: url, TokenFile: file, Bridge: s.bridge})
	if s.open.Load() != 1 {
		t.Fatalf("%d servers run the cluster's agents", s.open.Load())
	}
	return a, b, s
}

func want(t *testing.T, r answer, status int, parts ...string) {
	t.Helper()
	if r.status != status {
		t.Fatalf("%+v, want %d", r, status)
	}
	for _, p := range parts {
		if !strings.Contains(r.body, p) {
			t.Fatalf("%+v lacks %s", r, p)
		}
	}
}

func TestWhatOneServerAdmitsAnotherLaunches(t *testing.T) {
	t.Parallel()
	a, b, s := two(t)
	want(t, send(t, a, "POST", "/api/v1/pools", `{"name": "p", "resources": {"cpu": 8}}`), 201)
	// At once: b has not heard of the pool for certain.
	began := time.Now()
	want(t, send(t, b, "POST", "/api/v1/tasks?wait=10s", `{"task_id": "t", "pool": "p", "resources": {"cpu": 1}, `+class+`}`), 201, `"state":"running"`)
	if took := time.Since(began); took > 900*time.Millisecond { // a poll would take a second
		t.Errorf("it took %s until a task admitted on b ran", took)
	}
	want(t, send(t, b, "POST", "/api/v1/tasks", `{"task_id": "t", "pool": "p", "resources": {"cpu": 1}, `+class+`}`), 200)
	want(t, send(t, a, "POST", "/api/v1/tasks", `{"task_id": "t", "pool": "p", "resources": {"cpu": 1}, `+class+`}`), 200)
	want(t, send(t, a, "POST", "/api/v1/tasks", `{"task_id": "u", "pool": "p", "resources": {"cpu": 1}, `+class+`}`), 201)
	began = time.Now()
	want(t, send(t, b, "GET", "/api/v1/tasks/u?wait=10s", ""), 200, `"state":"running"`)
	if took := time.Since(began); took > 900*time.Millisecond {
		t.Errorf("it took %s until b heard that a task of a's runs", took)
	}
	// Preempted through one, requested through the other.
	want(t, send(t, a, "PATCH", "/api/v1/policy", `{"policy": {"cross_pool_priority_threshold": 3}}`), 200)
	want(t, send(t, b, "GET", "/api/v1/policy", ""), 200, `"version":2`)
	want(t, send(t, b, "POST", "/api/v1/tasks?wait=10s", `{"task_id": "high", "pool": "p", "resources": {"cpu": 7}, "priority": 9, `+class+`}`), 201, `"state":"running"`)
	want(t, send(t, b, "POST", "/api/v1/tasks/high/complete", ""), 200)
	want(t, send(t, a, "GET", "/readyz", ""), 200)
	want(t, send(t, b, "GET", "/readyz", ""), 200)
	verified(t, a)
	if s.most.Load() != 1 {
		t.Errorf("%d servers ran the cluster's agents at once", s.most.Load())
	}
}

func TestPoolsPoliciesAndRegistrationsOfOneServerAreKnownToTheOther(t *testing.T) {
	t.Parallel()
	a, b, _ := two(t)
	task := func(id, pool string, cpu int) string {
		return fmt.Sprintf(`{"task_id": %q, "pool": %q, "resources": {"cpu": %d}, %s}`, id, pool, cpu, class)
	}
	// In a namespace that only a has heard of.
	want(t, send(t, a, "POST", "/api/v1/pools?namespace=team", `{"name": "p", "resources": {"cpu": 2}}`), 201)
	want(t, send(t, b, "POST", "/api/v1/tasks?namespace=team", task("t1", "p", 3)), 409)
	want(t, send(t, a, "PATCH", "/api/v1/pools/p?namespace=team", `{"resources": {"cpu": 4}}`), 200)
	want(t, send(t, b, "POST", "/api/v1/tasks?namespace=team&wait=10s", task("t1", "p", 3)), 201, `"running"`)
	want(t, send(t, a, "DELETE", "/api/v1/pools/p?namespace=team", ""), 409)
	want(t, send(t, a, "DELETE", "/api/v1/tasks/t1?namespace=team", ""), 200)
	eventually(t, "the task has gone", func() bool {
		return strings.Contains(send(t, b, "GET", "/api/v1/tasks/t1?namespace=team", "").body, `"cancelled"`)
	})
	want(t, send(t, a, "DELETE", "/api/v1/pools/p?namespace=team", ""), 204)
	want(t, send(t, b, "POST", "/api/v1/tasks?namespace=team", task("t2", "p", 1)), 404)
	want(t, send(t, b, "POST", "/api/v1/pools?namespace=team", `{"name": "p", "resources": {"cpu": 1}}`), 201)
	want(t, send(t, a, "POST", "/api/v1/tasks?namespace=team", task("t3", "p", 2)), 409)
	want(t, send(t, a, "POST", "/api/v1/tasks?namespace=team", task("t3", "p", 1)), 201)

	// Registered with a, on an agent of nobody: b may end it, and says it would make way.
	want(t, send(t, a, "PUT", "/api/v1/tasks/r/register", `{"pool": "elsewhere", "agent_name": "x", "priority": 1}`), 200)
	eventually(t, "b would preempt it", func() bool {
		return strings.Contains(send(t, b, "POST", "/api/v1/preemption/evaluate", `{"pool": "elsewhere", "priority": 9}`).body, `"r"`)
	})
	want(t, send(t, b, "PUT", "/api/v1/tasks/r2/register", `{"pool": "elsewhere", "agent_name": "x", "priority": 1}`), 200)
	want(t, send(t, a, "POST", "/api/v1/tasks/r2/complete", ""), 200, `"completed"`)
	want(t, send(t, b, "POST", "/api/v1/tasks/r/complete", ""), 200, `"completed"`)
	verified(t, a)
}

func TestTheOtherServerGoesOnWithALaunchThatWasSent(t *testing.T) {
	t.Parallel()
	a, b, s := two(t)
	want(t, send(t, a, "POST", "/api/v1/pools", `{"name": "p", "resources": {"cpu": 4}}`), 201)
	s.stuck.Store(true)
	want(t, send(t, b, "POST", "/api/v1/tasks", `{"task_id": "t", "pool": "p", "resources": {"cpu": 1}, `+class+`}`), 201)
	var id string
	eventually(t, "a has sent the launch", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for id = range s.launches {
		}
		return id != ""
	})
	s.stuck.Store(false)
	waits := make(chan answer, 1)
	go func() { waits <- send(t, b, "GET", "/api/v1/tasks/t?wait=20s", "") }()
	_ = a.Stop(context.Background())
	select {
	case r := <-waits:
		want(t, r, 200, `"running"`, `"attempt":1`)
	case <-time.After(15 * time.Second):
		t.Fatal("nobody went on with the launch")
	}
	if n := s.launched(t, id); n != 2 {
		t.Errorf("the launch was asked for %d times, want once by each", n)
	}
	if s.most.Load() != 1 {
		t.Errorf("%d servers ran the cluster's agents at once", s.most.Load())
	}
	verified(t, b)
}

func verified(t *testing.T, a *app.App) {
	t.Helper()
	diffs, err := a.Ledger().Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range diffs {
		t.Error(d)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestAServerWithoutRayLeavesAgentsToTheOthers(t *testing.T) {
	t.Parallel()
	s := newShared()
	url, file := testdb.New(t), t.TempDir()+"/token"
	a := start(t, app.Config{DatabaseURL: url, TokenFile: file, Bridge: s.bridge, NoRay: true})
	for end := time.Now().Add(10 * time.Second); send(t, a, "GET", "/readyz", "").status != 200 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond) // pools are being loaded
	}
	want(t, send(t, a, "GET", "/readyz", ""), 200, "ledger: ok\nray: not used here\n")
	want(t, send(t, a, "POST", "/api/v1/pools", `{"name": "p", "resources": {"cpu": 8}}`), 201)
	want(t, send(t, a, "POST", "/api/v1/tasks", `{"task_id": "t", "pool": "p", "resources": {"cpu": 1}, `+class+`}`), 201, `"state":"reserved"`)
	if s.open.Load() != 0 {
		t.Fatal("it opened a bridge")
	}
	start(t, app.Config{DatabaseURL: url, TokenFile: file, Bridge: s.bridge})
	want(t, send(t, a, "GET", "/api/v1/tasks/t?wait=10s", ""), 200, `"state":"running"`)
}
