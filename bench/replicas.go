package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// replicas submits tasks to one pool as fast as all connections can: through one
// server, and through two on the same database with half of the connections each.
// Afterwards nothing may be lost or doubled, and everything must run.
func (b *bench) replicas(ctx context.Context) error {
	var one, two []float64
	for round := range b.rounds {
		for n := 1; n <= 2; n++ {
			r, cpu, err := b.through(ctx, n)
			if err != nil {
				return err
			}
			if n == 1 {
				one = append(one, r)
			} else {
				two = append(two, r)
			}
			fmt.Printf("round %d: %d servers: %.0f/s; %s\n", round+1, n, r, cpu)
		}
	}
	say("replicas_one", median(one), "submissions/s")
	say("replicas_two", median(two), "submissions/s")
	say("replicas_ratio", median(two)/median(one), "x")
	return nil
}

// through measures n servers together.
func (b *bench) through(ctx context.Context, n int) (perSecond float64, cpu string, err error) {
	database, err := b.database(ctx)
	if err != nil {
		return 0, "", err
	}
	var servers []*served
	for range n {
		s, err := b.listen(ctx, database, "--bridge-url", "fake")
		if err != nil {
			return 0, "", err
		}
		defer s.stop()
		if err := s.ready(); err != nil {
			return 0, "", err
		}
		servers = append(servers, s)
	}
	if err := servers[0].call(ctx, "POST", "/api/v1/pools", map[string]any{"name": "hot", "resources": map[string]any{"cpu": 1e7}}, nil); err != nil {
		return 0, "", err
	}
	var wg sync.WaitGroup
	rates, errs := make([]rate, n), make([]error, n)
	for i, s := range servers {
		wg.Go(func() {
			body := submission("hot", 5)
			rates[i], errs[i] = load{connections: connections / n, each: b.each, body: func(c, k int) []byte { return body(c+i*connections, k) }}.run(b, s)
		})
	}
	wg.Wait()
	var taken int64
	for i, r := range rates {
		if errs[i] != nil {
			return 0, "", errs[i]
		}
		perSecond += r.perSecond
		taken += r.taken
		cpu += fmt.Sprintf("server %d of %.0f/s: %s; ", i+1, r.perSecond, r.cpu)
	}
	return perSecond, cpu, b.nothingLost(ctx, database, taken)
}

// nothingLost fails unless exactly the submissions that were taken are there, run, and add up.
func (b *bench) nothingLost(ctx context.Context, database string, taken int64) error {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	var there, names, running int64
	for range 600 {
		if err := conn.QueryRow(ctx, "SELECT count(*), count(DISTINCT task_id), count(*) FILTER (WHERE state = 'running' AND attempt = 1) FROM tasks").Scan(&there, &names, &running); err != nil {
			return err
		}
		if running == there {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if there != taken || names != taken || running != taken {
		return fmt.Errorf("%d submissions were taken, but %d tasks of %d names are there and %d run", taken, there, names, running)
	}
	verify := exec.CommandContext(ctx, b.server, "verify")
	verify.Env = append(os.Environ(), "DATABASE_URL="+database)
	if out, err := verify.CombinedOutput(); err != nil {
		return fmt.Errorf("the ledger does not add up: %w: %s", err, out)
	}
	return nil
}
