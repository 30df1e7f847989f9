package app_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/app"
	"github.com/schedulemesh/schedulemesh/testdb"
)

type queued struct {
	TaskID        string `json:"task_id"`
	State         string
	Code          string
	QueuePosition *int `json:"queue_position"`
	Queue         *struct {
		Position           *int
		Code, Reason, Note string
		ETA                *time.Time
	}
}

// The line, holds and gangs as a service sees them, on the whole server.
func TestTheQueueIsReadableAndPoolsCanBeHeldAndDrained(t *testing.T) {
	t.Parallel()
	a := start(t, app.Config{DatabaseURL: testdb.New(t)})
	call := func(want int, method, path, body string, into any) {
		t.Helper()
		r := send(t, a, method, path, body)
		if r.status != want {
			t.Fatalf("%s %s: %d %s", method, path, r.status, r.body)
		}
		if into != nil {
			if err := json.Unmarshal([]byte(r.body), into); err != nil {
				t.Fatal(err)
			}
		}
	}
	becomes := func(id, state string) (q queued) {
		t.Helper()
		for began := time.Now(); q.State != state; {
			q = queued{}
			call(200, "GET", "/api/v1/tasks/"+id, "", &q)
			if time.Since(began) > 20*time.Second {
				t.Fatalf("%s is %s (%s), want %s", id, q.State, q.Code, state)
			}
			time.Sleep(5 * time.Millisecond)
		}
		return q
	}
	task := func(id string, cpu int, more string) string {
		return fmt.Sprintf(`{"task_id": %q, "pool": "p", "resources": {"cpu": %d}, %s%s}`, id, cpu, class, more)
	}
	call(201, "POST", "/api/v1/pools", `{"name": "p", "resources": {"cpu": 2}}`, nil)
	call(201, "POST", "/api/v1/tasks?wait=20", task("runs", 1, `, "estimated_duration": 600, "on_preempted": "requeue"`), nil)

	var q queued
	call(201, "POST", "/api/v1/tasks", task("big", 2, `, "on_insufficient": "queue"`), &q)
	if q.State != "queued" || q.Queue == nil || *q.Queue.Position != 1 || q.Queue.Code != "no_victims" || !strings.Contains(q.Queue.Reason, "needs 2.0 cpu") && !strings.Contains(q.Queue.Reason, "needs 2 cpu") ||
		q.Queue.ETA == nil || time.Until(*q.Queue.ETA) > 10*time.Minute || time.Until(*q.Queue.ETA) < 9*time.Minute {
		t.Fatalf("%+v %+v", q, q.Queue)
	}
	if r := send(t, a, "POST", "/api/v1/tasks", task("jumps", 1, "")); r.status != 409 || r.code() != "insufficient_resources" || !strings.Contains(r.body, "kept for big") || !strings.Contains(r.body, "room_reserved") {
		t.Errorf("%d %s", r.status, r.body)
	}
	call(201, "POST", "/api/v1/tasks", task("hasty", 2, `, "on_insufficient": "queue", "queue_timeout": 0.3`), &q)
	if q = becomes("hasty", "failed"); q.Code != "queue_timeout" || q.Queue != nil {
		t.Errorf("%+v", q)
	}

	call(200, "POST", "/api/v1/pools/p/hold", `{"reason": "disks"}`, nil)
	call(200, "DELETE", "/api/v1/tasks/big", "", nil)
	if r := send(t, a, "POST", "/api/v1/tasks", task("late", 1, "")); r.status != 409 || r.code() != "pool_held" {
		t.Errorf("%d %s", r.status, r.body)
	}
	call(200, "POST", "/api/v1/pools/p/drain", `{"reason": "disks", "deadline": 0}`, nil)
	becomes("runs", "queued")
	call(200, "POST", "/api/v1/pools/p/resume", "", nil)
	becomes("runs", "running")
	if r := send(t, a, "POST", "/api/v1/pools/p/resume", ""); r.status != 409 || r.code() != "wrong_state" {
		t.Errorf("%d %s", r.status, r.body)
	}

	var nodes struct {
		Items []struct {
			NodeID string `json:"node_id"`
			Agents int
			Hold   *struct{ State, By string }
		}
	}
	call(200, "GET", "/api/v1/nodes", "", &nodes)
	if len(nodes.Items) != 1 || nodes.Items[0].Agents != 1 {
		t.Fatalf("%+v", nodes)
	}
	node := "/api/v1/nodes/" + nodes.Items[0].NodeID
	call(200, "POST", node+"/hold", "", nil)
	if r := send(t, a, "POST", "/api/v1/tasks", task("nowhere", 1, "")); r.status != 409 || !strings.Contains(r.body, "held") {
		t.Errorf("%d %s", r.status, r.body)
	}
	call(200, "POST", node+"/resume", "", nil)
	call(404, "POST", "/api/v1/nodes/none/hold", "", nil)

	gang := `{"all_or_nothing": true, "tasks": [` + task("g1", 1, "") + `,` + task("g2", 1, "") + `]}`
	if r := send(t, a, "POST", "/api/v1/tasks", gang); r.status != 409 || !strings.Contains(r.body, "tasks.1") {
		t.Errorf("%d %s", r.status, r.body)
	}
	call(200, "DELETE", "/api/v1/tasks/runs", "", nil)
	becomes("runs", "cancelled")
	call(201, "POST", "/api/v1/tasks?wait=20", gang, nil)
	becomes("g1", "running")
	becomes("g2", "running")
	call(200, "POST", "/api/v1/tasks", gang, nil)
	call(207, "POST", "/api/v1/tasks", `[`+task("g1", 1, "")+`,`+task("g3", 9, "")+`]`, nil)
	if diffs, err := a.Ledger().Verify(t.Context()); err != nil || len(diffs) > 0 {
		t.Error(diffs, err)
	}
}
