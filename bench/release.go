package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// release measures the other half of a task's life at the ledger's door, where the
// agents knock: commit (its agent is ready) and release (its agent was seen gone),
// by lanes and with a transaction for each.
func (b *bench) release(ctx context.Context) error {
	var batched, single []float64
	for round := range b.rounds {
		for _, lanes := range []bool{true, false} {
			tasks := 20_000
			if !lanes {
				tasks = 2_000
			}
			r, err := b.commitAndRelease(ctx, !lanes, tasks)
			if err != nil {
				return err
			}
			if lanes {
				batched = append(batched, r)
			} else {
				single = append(single, r)
			}
		}
		fmt.Printf("round %d: batched %.0f/s, single %.0f/s\n", round+1, batched[round], single[round])
	}
	say("commit_release", median(batched), "tasks/s")
	say("commit_release_single", median(single), "tasks/s")
	say("commit_release_ratio", median(batched)/median(single), "x")
	return nil
}

func (b *bench) commitAndRelease(ctx context.Context, single bool, tasks int) (float64, error) {
	database, err := b.database(ctx)
	if err != nil {
		return 0, err
	}
	s, err := b.listen(ctx, database, "--bridge-url", "fake") // makes the tables
	if err != nil {
		return 0, err
	}
	if err := s.ready(); err != nil {
		return 0, err
	}
	s.stop()
	conns, err := pgxpool.New(ctx, database)
	if err != nil {
		return 0, err
	}
	defer conns.Close()
	l, err := ledger.Open(ctx, conns, ledger.Options{SingleTransactions: single})
	if err != nil {
		return 0, err
	}
	defer l.Close()
	capacity := sched.Resources{CPU: 1e10}
	if _, err := l.CreatePool(ctx, "default", ledger.PoolSpec{Name: "hot", Capacity: &capacity}); err != nil {
		return 0, err
	}
	uids := make([]sched.ID, tasks)
	err = inParallel(tasks, func(i int) error {
		t, err := l.Submit(ctx, "default", ledger.Submission{TaskID: fmt.Sprint("release-", i), Pool: "hot", Request: sched.Resources{CPU: 1000}, Priority: 5000,
			Spec: ledger.Spec{ActorClass: "schedulemesh.core.agent_actor:AgentActor"}})
		uids[i] = t.UID
		return err
	})
	if err != nil {
		return 0, err
	}
	commit := func(i int) error {
		return l.Started(ctx, uids[i], 1, ledger.Started{Node: "n1", ActorName: "release", ActorID: "a1", PID: 1})
	}
	end := func(i int) error {
		_, err := l.Complete(ctx, "default", fmt.Sprint("release-", i), "bench")
		return err
	}
	release := func(i int) error { return l.Gone(ctx, uids[i], 1) }
	began := time.Now()
	if err := inParallel(tasks, commit); err != nil {
		return 0, err
	}
	took := time.Since(began)
	if err := inParallel(tasks, end); err != nil {
		return 0, err
	}
	began = time.Now()
	if err := inParallel(tasks, release); err != nil {
		return 0, err
	}
	took += time.Since(began)
	if wrong, err := l.Verify(ctx); err != nil || len(wrong) > 0 {
		return 0, fmt.Errorf("the ledger does not add up: %v %w", wrong, err)
	}
	return float64(tasks) / took.Seconds(), nil
}

// inParallel calls f(0…n-1), as many at once as there are connections.
func inParallel(n int, f func(i int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, connections)
	for range connections {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}
