package jobs

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters/clustertest"
)

// A cluster dies with a hundred jobs on their way, waiting and running there. Each ends in a state that is
// true, none runs twice, and the rest goes on elsewhere.
func TestAClusterDiesWithAHundredJobsInFlight(t *testing.T) {
	t.Parallel()
	for name, returns := range map[string]string{"and stays away": "", "and comes back empty": "empty", "and was only out of reach": "as it was"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := open(t)
			a := r.cluster("a", clustertest.Options{CPUs: 60, StartTakes: 20 * time.Millisecond})
			b := r.cluster("b", clustertest.Options{CPUs: 200})
			const n = 100
			var wg sync.WaitGroup
			id := func(i int) string { return fmt.Sprintf("sub%02d", i) }
			for i := range n {
				wg.Go(func() {
					time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
					s := Spec{SubmissionID: id(i), Requirements: cpus(1), PreferredCluster: "a"}
					if i%2 == 0 {
						s.MaxRetries = 2
					}
					r.submit(s)
				})
			}
			r.eventually("some are there", func() bool { return len(ids(a)) > 25 })
			a.Down()
			switch returns {
			case "empty":
				a.NewSession()
				time.Sleep(200 * time.Millisecond)
				a.Up()
			case "as it was":
				time.AfterFunc(2*time.Second, a.Up)
			}
			wg.Wait()
			for i := range n {
				j := r.settles(id(i), returns)
				if j.State == Failed && (i%2 == 0 || j.Code != ClusterLost || !slices.Contains(ids(a), j.RayID)) {
					t.Errorf("%s: %s %s\n%s", j.SubmissionID, j.Code, j.Reason, r.story(j.SubmissionID))
				}
			}
			// What runs is what the books say, once.
			r.eventually("strays are stopped", func() bool {
				running := map[string]int{}
				live := b.Live()
				if returns != "" { // else whatever ran there is gone
					live = slices.Concat(live, a.Live())
				}
				for _, id := range live {
					running[strings.TrimSuffix(strings.TrimSuffix(id, "-2"), "-3")]++
				}
				for i := range n {
					j, err := r.Job(t.Context(), id(i))
					want := 0
					if err != nil || j.State == Running {
						want = 1
					}
					if running[id(i)] != want {
						return false
					}
				}
				return true
			})
			for _, c := range []*clustertest.Cluster{a, b} {
				got := ids(c)
				slices.Sort(got)
				if len(slices.Compact(slices.Clone(got))) != len(got) && returns != "empty" {
					t.Errorf("a submission was accepted twice by one cluster: %v", got)
				}
			}
		})
	}
}

// settles waits until a job is over, or runs where that can be true.
func (r *rig) settles(id, returns string) Job {
	r.t.Helper()
	var j Job
	r.eventually(id+" settles", func() bool {
		var err error
		if j, err = r.Job(r.t.Context(), id); err != nil {
			r.t.Fatal(err)
		}
		switch j.State {
		case Running:
			return j.Cluster == "b" || returns != ""
		case Failed:
			return returns != "as it was"
		}
		return false
	})
	return j
}

// The database cuts every connection now and then: nothing is lost, and nothing is done twice.
func TestTheDatabaseCutsConnections(t *testing.T) {
	t.Parallel()
	r := open(t)
	a := r.cluster("a", clustertest.Options{CPUs: 100, Run: 300 * time.Millisecond})
	stop := make(chan struct{})
	var cutter sync.WaitGroup
	cutter.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(120 * time.Millisecond):
				_, _ = r.pool.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
			}
		}
	})
	const n = 60
	for i := range n {
		s := Spec{Entrypoint: "python /a/x.py", SubmissionID: fmt.Sprint("j", i), Requirements: cpus(1)}
		r.eventually("it is taken", func() bool { _, _, err := r.Submit(t.Context(), s); return err == nil })
		time.Sleep(10 * time.Millisecond)
	}
	r.eventually("all are there", func() bool { return len(ids(a)) == n })
	close(stop)
	cutter.Wait()
	for i := range n {
		r.becomes(fmt.Sprint("j", i), Succeeded)
	}
	got := ids(a)
	slices.Sort(got)
	if len(got) != n || len(slices.Compact(got)) != n {
		t.Errorf("%d submissions for %d jobs", len(got), n)
	}
}
