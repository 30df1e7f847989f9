package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/schedulemesh/schedulemesh/testdb"
)

// anyOf sends a request to one of two servers, and to the other when that is dead.
func anyOf(first, second *server, method, path string, body, into any) error {
	err := first.try(method, path, body, into)
	if dead := (*url.Error)(nil); errors.As(err, &dead) {
		return second.try(method, path, body, into)
	}
	return err
}

// Two servers admit into one pool of a real Ray cluster; the one that runs its agents
// is killed at a bad moment. The other goes on, and nothing is lost or launched twice.
func TestTheSecondServerTakesOverFromOneThatIsKilled(t *testing.T) {
	needRay(t)
	database := testdb.New(t)
	a := startOn(t, database, false)
	b := startOn(t, database, false)
	a.call("POST", "/api/v1/pools", map[string]any{"name": "p", "resources": map[string]any{"cpu": 1.5}}, nil)
	const n = 12
	submit := func(i int) error {
		first, second := a, b
		if i%2 == 1 {
			first, second = b, a
		}
		return anyOf(first, second, "POST", "/api/v1/tasks", map[string]any{"task_id": fmt.Sprintf("t%d", i), "pool": "p", "resources": map[string]any{"cpu": 0.5},
			"actor_class": counter, "entry": map[string]any{"method": "run"}, "on_insufficient": "queue"}, nil)
	}
	var wg sync.WaitGroup
	errs := make(chan error, 2*n)
	for w := range 3 {
		wg.Go(func() {
			for i := w; i < n; i += 3 {
				if err := submit(i); err != nil {
					errs <- err
				}
			}
		})
	}
	// Somebody waits at b for what a is about to launch when it dies.
	waited := make(chan task, 1)
	wg.Go(func() {
		b.eventually("the first is there", 20*time.Second, func() bool { return b.try("GET", "/api/v1/tasks/t0", nil, nil) == nil })
		var got task
		if err := b.try("GET", "/api/v1/tasks/t0?wait=60s", nil, &got); err != nil {
			errs <- err
		}
		waited <- got
	})
	time.Sleep(150 * time.Millisecond)
	a.kill()
	killed := time.Now()
	wg.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
	if got := <-waited; got.State != "running" || got.Attempt != 1 {
		t.Errorf("who waited was told %+v", got)
	}
	t.Logf("the task that waited ran %s after the server was killed", time.Since(killed).Round(time.Millisecond))

	// All of them run, once each, as room comes free.
	pids := map[int]string{}
	for left := n; left > 0; {
		var list struct {
			Items []struct {
				ID    string `json:"task_id"`
				State string
			}
		}
		b.call("GET", "/api/v1/tasks?state=running", nil, &list)
		for _, x := range list.Items {
			got := b.task(x.ID)
			if got.Attempt != 1 || pids[got.Agent.PID] != "" {
				t.Errorf("task %s runs as attempt %d in process %d, which had %q", x.ID, got.Attempt, got.Agent.PID, pids[got.Agent.PID])
			}
			pids[got.Agent.PID] = x.ID
			b.call("POST", "/api/v1/tasks/"+x.ID+"/complete", nil, nil)
			b.becomes(x.ID, "completed")
			left--
		}
		if time.Since(killed) > 150*time.Second {
			t.Fatalf("%d tasks never ran", left)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if strings.Contains(b.logs.String(), "removing an agent the ledger does not know") {
		t.Error("something was launched twice")
	}
	b.verified()
}

// Many submissions through two servers, one of which is killed: what was taken is
// there once and runs, what was not can be sent again.
func TestNoSubmissionIsLostOrDoubledWhenAServerIsKilled(t *testing.T) {
	database := testdb.New(t)
	a := startOn(t, database, true)
	b := startOn(t, database, true)
	a.call("POST", "/api/v1/pools", map[string]any{"name": "p", "resources": map[string]any{"cpu": 1e6}}, nil)
	const workers, each = 16, 60
	var wg sync.WaitGroup
	errs := make(chan error, workers*each)
	for w := range workers {
		wg.Go(func() {
			first, second := a, b
			if w%2 == 1 {
				first, second = b, a
			}
			for i := range each {
				id := fmt.Sprintf("t%d-%d", w, i)
				// Both are asked for it: the same task, whoever answers first.
				err := anyOf(first, second, "POST", "/api/v1/tasks", map[string]any{"task_id": id, "pool": "p", "resources": map[string]any{"cpu": 1}, "actor_class": counter}, nil)
				if err != nil {
					errs <- err
				}
				if i == each/3 && w == 1 {
					b.kill()
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var there, names, running int
	a.eventually("all run", 30*time.Second, func() bool {
		if err := conn.QueryRow(t.Context(), "SELECT count(*), count(DISTINCT task_id), count(*) FILTER (WHERE state = 'running' AND attempt = 1) FROM tasks").Scan(&there, &names, &running); err != nil {
			t.Fatal(err)
		}
		return running == workers*each
	})
	if there != workers*each || names != there {
		t.Errorf("%d tasks of %d names, want %d", there, names, workers*each)
	}
	a.verified()
}
