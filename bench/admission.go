package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const connections = 64

// admission submits tasks over HTTP as fast as 64 connections can, once to a server
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
			rate, err := b.admit(ctx, args)
			if err != nil {
				return err
			}
			if lanes {
				batched = append(batched, rate)
			} else {
				single = append(single, rate)
			}
		}
		fmt.Printf("round %d: batched %.0f/s, single %.0f/s\n", round+1, batched[round], single[round])
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

func (b *bench) admit(ctx context.Context, args []string) (float64, error) {
	s, err := b.start(ctx, args...)
	if err != nil {
		return 0, err
	}
	defer s.stop()
	if err := s.call(ctx, "POST", "/api/v1/pools", map[string]any{"name": "hot", "resources": map[string]any{"cpu": 1e7}}, nil); err != nil {
		return 0, err
	}
	var n, failed atomic.Int64
	var measuring, over atomic.Bool
	var wg sync.WaitGroup
	errs := make(chan error, connections)
	for c := range connections {
		wg.Go(func() {
			if err := submitter(s.addr, c, &measuring, &over, &n, &failed); err != nil {
				errs <- err
			}
		})
	}
	time.Sleep(time.Second) // connections are up, the batch size has settled
	measuring.Store(true)
	began := time.Now()
	time.Sleep(b.each)
	done, took := n.Load(), time.Since(began)
	over.Store(true)
	wg.Wait()
	select {
	case err := <-errs:
		return 0, err
	default:
	}
	if f := failed.Load(); f > 0 {
		return 0, fmt.Errorf("%d submissions were refused", f)
	}
	return float64(done) / took.Seconds(), nil
}

// submitter sends submissions on one connection, each after the answer to the one before.
// It speaks HTTP by hand: the client's share of two cores is part of the figure.
func submitter(addr string, c int, measuring, over *atomic.Bool, n, failed *atomic.Int64) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for i := 0; !over.Load(); i++ {
		body := fmt.Sprintf(`{"task_id": "bench-%d-%d", "pool": "hot", "resources": {"cpu": 1}, "priority": 5, "labels": {"stage": "bench"}, "actor_class": "schedulemesh.core.agent_actor:AgentActor"}`, c, i)
		if _, err := fmt.Fprintf(conn, "POST /api/v1/tasks HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", addr, benchToken, len(body), body); err != nil {
			return err
		}
		status, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		length := 0
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return err
			}
			if line = strings.TrimSpace(line); line == "" {
				break
			}
			if name, value, ok := strings.Cut(line, ":"); ok && http.CanonicalHeaderKey(name) == "Content-Length" {
				if _, err := fmt.Sscan(value, &length); err != nil {
					return err
				}
			}
		}
		if _, err := io.CopyN(io.Discard, in, int64(length)); err != nil {
			return err
		}
		if !strings.Contains(status, " 201 ") {
			failed.Add(1)
		} else if measuring.Load() {
			n.Add(1)
		}
	}
	return nil
}
