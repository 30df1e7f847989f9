package e2e

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"
)

const counter = "schedulemesh.testing.agents:Counter"

func (s *server) submit(id string, cpu, priority float64, more map[string]any) {
	s.t.Helper()
	body := map[string]any{"task_id": id, "pool": "p", "resources": map[string]any{"cpu": cpu}, "priority": priority, "actor_class": counter, "entry": map[string]any{"method": "run"}}
	for k, v := range more {
		body[k] = v
	}
	s.call("POST", "/api/v1/tasks", body, nil)
}

// Everything is found again after kill -9 of the server, at whatever moment, and
// nothing is launched twice.
func TestTheServerKilledAtAnyMomentFindsEverythingAgain(t *testing.T) {
	s := startServer(t)
	s.call("POST", "/api/v1/pools", map[string]any{"name": "p", "resources": map[string]any{"cpu": 2}}, nil)
	s.submit("low", 2, 1, map[string]any{"on_preempted": "requeue"})
	before := s.becomes("low", "running")
	s.killAndRestart()
	if after := s.becomes("low", "running"); after.Attempt != 1 || after.Agent.PID != before.Agent.PID {
		t.Errorf("it was launched again: %+v, before %+v", after, before)
	}
	// Each time the handover is a little further when the server dies.
	for i, after := range []time.Duration{0, 5 * time.Millisecond, 15 * time.Millisecond, 40 * time.Millisecond} {
		id := fmt.Sprintf("high%d", i)
		s.submit(id, 2, 9, nil)
		time.Sleep(after)
		s.killAndRestart()
		s.becomes(id, "running")
		low := s.task("low")
		if low.State != "queued" || low.SavedState["step"] == nil {
			t.Fatalf("low is %+v", low)
		}
		s.verified()
		s.call("POST", "/api/v1/tasks/"+id+"/complete", nil, nil)
		s.becomes(id, "completed")
		s.becomes("low", "running")
	}
	var agents struct{ Items []any }
	s.call("GET", "/api/v1/agents", nil, &agents)
	if len(agents.Items) != 1 {
		t.Errorf("agents: %v", agents.Items)
	}
	s.verified()
}

func TestAWorkerKilledBehindOurBackFailsItsTaskAndTheQueueMoves(t *testing.T) {
	s := startServer(t)
	s.call("POST", "/api/v1/pools", map[string]any{"name": "p", "resources": map[string]any{"cpu": 2}}, nil)
	s.submit("first", 2, 5, nil)
	pid := s.becomes("first", "running").Agent.PID
	s.submit("second", 2, 5, map[string]any{"on_insufficient": "queue"})
	p, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.eventually("first fails", 60*time.Second, func() bool { t := s.task("first"); return t.State == "failed" && t.Code == "agent_died" })
	s.becomes("second", "running")
	s.verified()
}
