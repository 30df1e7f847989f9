package main

import (
	"context"
	"fmt"
	"slices"
)

const connections = 256

// admission submits tasks over HTTP as fast as 256 connections can, once to a server
// with lanes and once to the same binary with a transaction for each call. Both
// answer only after the commit is on disk.
func (b *bench) admission(ctx context.Context) error {
	var batched, single []float64
	for round := range b.rounds {
		for _, lanes := range []bool{true, false} {
			args := []string{"--bridge-url", "fake"}
			if !lanes {
				args = append(args, "--single-transactions")
			}
			r, err := b.admit(ctx, args)
			if err != nil {
				return err
			}
			if lanes {
				batched = append(batched, r.perSecond)
			} else {
				single = append(single, r.perSecond)
			}
			fmt.Printf("round %d: lanes %v: %.0f/s; %s\n", round+1, lanes, r.perSecond, r.cpu)
		}
	}
	say("admission_batched", median(batched), "submissions/s")
	say("admission_single", median(single), "submissions/s")
	say("admission_ratio", median(batched)/median(single), "x")
	return nil
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}

func (b *bench) admit(ctx context.Context, args []string) (rate, error) {
	s, err := b.start(ctx, args...)
	if err != nil {
		return rate{}, err
	}
	defer s.stop()
	if err := s.call(ctx, "POST", "/api/v1/pools", map[string]any{"name": "hot", "resources": map[string]any{"cpu": 1e7}}, nil); err != nil {
		return rate{}, err
	}
	return load{connections: connections, each: b.each, body: submission("hot", 5)}.run(b, s)
}

func submission(pool string, priority int) func(c, i int) []byte {
	return func(c, i int) []byte {
		return fmt.Appendf(nil, `{"task_id": "%s-%d-%d", "pool": %q, "resources": {"cpu": 1}, "priority": %d, "labels": {"stage": "bench"}, "actor_class": "schedulemesh.core.agent_actor:AgentActor"}`, pool, c, i, pool, priority)
	}
}
