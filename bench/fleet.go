package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters/clustertest"
)

const (
	fleetSize = 20
	fleetCPUs = 50 // of each: together exactly what the jobs ask for
	fleetJobs = fleetSize * fleetCPUs
	// A cluster where something happens is asked so often how its jobs are.
	pollEvery = 2 * time.Second
)

// fleet submits 1,000 jobs at once to a server with 20 stand-in clusters that have just enough room.
// `jobs_placed` is from the first request until the last job was accepted by a cluster, `jobs_known`
// how long after that the server says of all that they run.
func (b *bench) fleet(ctx context.Context) error {
	var rates, known []float64
	for round := range b.rounds {
		rate, late, err := b.fleetRound(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("round %d: %.0f placements/s, all known %s later\n", round+1, rate, late.Round(time.Millisecond))
		rates, known = append(rates, rate), append(known, late.Seconds())
	}
	say("jobs_placed", median(rates), "placements/s")
	say("jobs_known", median(known), "s")
	say("jobs_known_polls", median(known)/pollEvery.Seconds(), "polls")
	return nil
}

func (b *bench) fleetRound(ctx context.Context) (perSecond float64, known time.Duration, err error) {
	stage := &stage{}
	defer stage.end()
	all := make([]*clustertest.Cluster, fleetSize)
	var file strings.Builder
	file.WriteString("clusters:\n")
	for i := range all {
		all[i] = clustertest.New(stage, clustertest.Options{CPUs: fleetCPUs, Memory: 1 << 40})
		fmt.Fprintf(&file, "  c%d: {head_address: 127.0.0.1:10001, dashboard: %s}\n", i, all[i].URL)
	}
	path := filepath.Join(b.dir, "clusters.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		return 0, 0, err
	}
	s, err := b.start(ctx, "--no-ray", "--clusters", path)
	if err != nil {
		return 0, 0, err
	}
	defer s.stop()
	if err := eventually("all clusters are healthy", func() (bool, error) {
		var list struct{ Items []struct{ State string } }
		err := s.call(ctx, "GET", "/api/v1/clusters", nil, &list)
		healthy := 0
		for _, c := range list.Items {
			if c.State == "healthy" {
				healthy++
			}
		}
		return healthy == fleetSize, err
	}); err != nil {
		return 0, 0, err
	}

	began := time.Now()
	if err := submitAll(s); err != nil {
		return 0, 0, err
	}
	accepted := func() (n int, last time.Time) {
		for _, c := range all {
			for _, j := range c.Accepted() {
				n++
				if j.At.After(last) {
					last = j.At
				}
			}
		}
		return n, last
	}
	if err := eventually("all jobs are accepted", func() (bool, error) { n, _ := accepted(); return n >= fleetJobs, nil }); err != nil {
		return 0, 0, err
	}
	_, last := accepted()
	if err := eventually("all jobs are known to run", func() (bool, error) {
		var list struct{ Total int }
		err := s.call(ctx, "GET", "/api/v1/jobs?state=RUNNING&limit=1", nil, &list)
		return list.Total == fleetJobs, err
	}); err != nil {
		return 0, 0, err
	}
	known = time.Since(last)
	return fleetJobs / last.Sub(began).Seconds(), known, nothingTwice(all)
}

// submitAll sends all jobs at once.
func submitAll(s *served) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	const connections = 32
	errs := make(chan error, connections)
	for range connections {
		wg.Go(func() {
			conn, err := dial(s.addr)
			if err != nil {
				errs <- err
				return
			}
			defer conn.close()
			for i := next.Add(1); i <= fleetJobs; i = next.Add(1) {
				body := fmt.Appendf(nil, `{"entrypoint": "python /app/train.py --step %d", "submission_id": "job-%d", "resource_requirements": {"CPU": 1}, "tags": ["bench"]}`, i, i)
				status, answer, err := conn.post("/api/v1/jobs", body)
				if err == nil && status != 201 {
					err = fmt.Errorf("a submission was answered with %d: %.300s", status, answer)
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

// nothingTwice fails unless each job is on one cluster, and none has more than it has room for.
func nothingTwice(all []*clustertest.Cluster) error {
	seen := map[string]bool{}
	for _, c := range all {
		list := c.Accepted()
		if len(list) > fleetCPUs {
			return fmt.Errorf("%s has room for %d jobs and was given %d", c.URL, fleetCPUs, len(list))
		}
		for _, j := range list {
			if seen[j.SubmissionID] {
				return fmt.Errorf("%s was submitted twice", j.SubmissionID)
			}
			seen[j.SubmissionID] = true
		}
	}
	if len(seen) != fleetJobs {
		return fmt.Errorf("%d jobs arrived, not %d", len(seen), fleetJobs)
	}
	return nil
}

func eventually(what string, look func() (bool, error)) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok, err := look(); ok || err != nil {
			return err
		}
	}
	return errors.New("not within a minute: " + what)
}

// stage is what stand-in clusters want of a test.
type stage struct {
	testing.TB
	mu       sync.Mutex
	cleanups []func()
}

func (s *stage) Helper()           {}
func (s *stage) Fatal(args ...any) { panic(fmt.Sprint(args...)) }
func (s *stage) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

func (s *stage) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.cleanups {
		f()
	}
}
