package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/jobs"
	"github.com/schedulemesh/schedulemesh/local"
	"github.com/schedulemesh/schedulemesh/sched"
)

// jobs measures jobs over many clusters: what deciding costs, how fast many at once get to
// many clusters, and what our submit_job costs beside Ray's own.
func (b *bench) jobs(ctx context.Context) error {
	for _, n := range []int{20, 1000} {
		b.placement(n)
	}
	if err := b.fleet(ctx); err != nil {
		return err
	}
	return b.jobsBeside(ctx)
}

// jobsBeside compares our submit_job with Ray's own on the same cluster.
func (b *bench) jobsBeside(ctx context.Context) error {
	ray, err := local.StartRay(ctx, local.RayOptions{Python: b.python, NumCPUs: 8})
	if err != nil {
		return err
	}
	defer func() { _ = ray.Stop(context.WithoutCancel(ctx)) }()
	dashboard, err := timing(ray.DashboardURL())
	if err != nil {
		return err
	}
	defer dashboard.Close()
	path := filepath.Join(b.dir, "clusters.yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, "clusters:\n  one: {head_address: %q, dashboard: %q}\n", ray.Address(), dashboard.URL), 0o600); err != nil {
		return err
	}
	s, err := b.start(ctx, "--no-ray", "--clusters", path)
	if err != nil {
		return err
	}
	defer s.stop()
	if err := eventually("the cluster is healthy", func() (bool, error) {
		var c struct{ State string }
		_ = s.call(ctx, "GET", "/api/v1/clusters/one", nil, &c)
		return c.State == "healthy", nil
	}); err != nil {
		return err
	}
	return b.script(ctx, jobsScript, dashboard.URL, append(ray.Env()[1:], "RAY_ADDRESS=", "SCHEDULEMESH_URL=http://"+s.addr, "SCHEDULEMESH_TOKEN="+benchToken)) // Ray's client prefers RAY_ADDRESS to its argument
}

// placement is one decision among n clusters of four machines, each partly full: half of the
// jobs name a cluster, half have tags, some need a single machine. `full` is the same when
// nobody has room, so that every cluster's reason is told.
func (b *bench) placement(n int) {
	r := rand.New(rand.NewPCG(7, 7))
	fleet := make([]clusters.Cluster, n)
	now := time.Now()
	for i := range fleet {
		c := clusters.Cluster{Spec: clusters.Spec{Name: fmt.Sprintf("cluster-%04d", i), Weight: 0.5 + r.Float64(), Prefer: r.IntN(4) == 0, Tags: []string{"gpu", "cpu", "stable", "spot"}[r.IntN(4):]},
			Source: clusters.FromFile, Status: clusters.Status{State: clusters.Healthy, SeenAt: now, UsageKnown: true, Score: 0.5 + r.Float64()/2}}
		for k := range 4 {
			total := sched.Resources{CPU: 64_000, GPU: 8_000, Memory: 512 << 10}
			used := sched.Resources{CPU: r.Int64N(48_000), GPU: r.Int64N(8) * 1000, Memory: r.Int64N(400 << 10)}
			c.Status.Nodes = append(c.Status.Nodes, clusters.Node{ID: fmt.Sprint(k), Alive: true, Total: total, Used: used})
			c.Status.Total, c.Status.Used = c.Status.Total.Add(total), c.Status.Used.Add(used)
		}
		fleet[i] = c
	}
	nothing := func(*clusters.Cluster) jobs.Load { return jobs.Load{} }
	asks := make([]jobs.Ask, 2000)
	for i := range asks {
		asks[i] = jobs.Ask{Requirements: sched.Resources{CPU: 1000 + r.Int64N(8)*1000, Memory: r.Int64N(8 << 10)}, OneNode: i%3 > 0}
		if i%2 == 0 {
			asks[i].Preferred = fleet[r.IntN(n)].Name
		}
		if i%4 < 2 {
			asks[i].Tags = []string{"gpu", "stable"}
		}
		if i%8 == 0 {
			asks[i].Requirements.GPU = 1000
		}
	}
	open := jobs.Sites(nil, fleet, nothing)
	p50, p99 := b.quantiles(len(asks), func(i int) func() {
		return func() { jobs.Place(open, asks[i]) }
	})
	say(fmt.Sprintf("placement_%d_p50", n), p50, "µs")
	say(fmt.Sprintf("placement_%d_p99", n), p99, "µs")
	for i := range fleet {
		fleet[i].Status.Used = fleet[i].Status.Total
	}
	full := jobs.Sites(nil, fleet, nothing)
	p50, p99 = b.quantiles(len(asks), func(i int) func() {
		return func() { jobs.Place(full, asks[i]) }
	})
	say(fmt.Sprintf("placement_%d_full_p50", n), p50, "µs")
	say(fmt.Sprintf("placement_%d_full_p99", n), p99, "µs")
	p50, p99 = b.quantiles(200, func(int) func() { return func() { jobs.Sites(full, fleet, nothing) } })
	say(fmt.Sprintf("placement_%d_sites_p50", n), p50, "µs")
	say(fmt.Sprintf("placement_%d_sites_p99", n), p99, "µs")
}
