package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/local"
)

//go:embed raw_ray.py
var rawRay string

// preemption compares, on one Ray head and in turns, the time from POST until a
// task that preempts another is running (cancel, saved state, kill, seen gone and
// launch included) with plain Ray's kill + create + ready.
func (b *bench) preemption(ctx context.Context) error {
	ray, err := local.StartRay(ctx, local.RayOptions{Python: b.python, NumCPUs: 8})
	if err != nil {
		return err
	}
	defer func() { _ = ray.Stop(context.WithoutCancel(ctx)) }()

	raw := exec.CommandContext(ctx, b.python, "-c", rawRay, ray.Address())
	raw.Env = append(os.Environ(), ray.Env()...)
	raw.Stderr = os.Stderr
	ask, err := raw.StdinPipe()
	if err != nil {
		return err
	}
	out, err := raw.StdoutPipe()
	if err != nil {
		return err
	}
	if err := raw.Start(); err != nil {
		return err
	}
	defer func() { _ = ask.Close(); _ = raw.Wait() }()
	answers := bufio.NewScanner(out)
	if !answers.Scan() {
		return errors.New("plain Ray did not start")
	}

	s, err := b.start(ctx, "--python", b.python, "--ray-address", ray.Address())
	if err != nil {
		return err
	}
	defer s.stop()
	if err := s.call(ctx, "POST", "/api/v1/pools", map[string]any{"name": "p", "resources": map[string]any{"cpu": 1, "memory": 512}}, nil); err != nil {
		return err
	}
	var ours, plain []float64
	if err := b.submitAndWait(ctx, s, 0); err != nil {
		return err
	}
	const times = 21
	for i := 1; i <= times; i++ {
		time.Sleep(700 * time.Millisecond) // as in plain Ray below: spare workers are back
		began := time.Now()
		if err := b.submitAndWait(ctx, s, i); err != nil {
			return err
		}
		took := time.Since(began).Seconds() * 1000
		if _, err := fmt.Fprintln(ask, "once"); err != nil {
			return err
		}
		if !answers.Scan() {
			return errors.New("plain Ray ended")
		}
		var rawMS float64
		if err := json.Unmarshal(answers.Bytes(), &rawMS); err != nil {
			return err
		}
		if i > 1 { // the first of each is warm-up
			ours, plain = append(ours, took), append(plain, rawMS)
		}
	}
	say("preempt_to_running", median(ours), "ms_p50")
	say("raw_ray_kill_create", median(plain), "ms_p50")
	say("preempt_ratio", median(ours)/median(plain), "x")
	return nil
}

// submitAndWait submits task i, which outranks the one before, and returns when it runs.
func (b *bench) submitAndWait(ctx context.Context, s *served, i int) error {
	var t struct{ State, Reason string }
	err := s.call(ctx, "POST", "/api/v1/tasks?wait=30s", map[string]any{"task_id": fmt.Sprintf("t%d", i), "pool": "p",
		"resources": map[string]any{"cpu": 1, "memory": 256}, "priority": float64(i) * 2, "actor_class": "schedulemesh.core.agent_actor:AgentActor"}, &t)
	if err != nil {
		return err
	}
	if !strings.EqualFold(t.State, "running") {
		return fmt.Errorf("task t%d is %s: %s", i, t.State, t.Reason)
	}
	return nil
}
