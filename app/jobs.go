package app

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/jobs"
)

// openJobs brings up what is known of clusters and jobs.
func (a *App) openJobs(ctx context.Context) (err error) {
	if a.clusters, err = clusters.OpenRegistry(ctx, a.pool, clusters.RegistryOptions{Logger: a.log}); err != nil {
		return err
	}
	deployment, err := a.ledger.Deployment(ctx)
	if err != nil {
		return err
	}
	a.watcher = clusters.NewWatcher(a.clusters, clusters.WatcherOptions{Jobs: func(cluster string) int { return a.jobs.LiveOn(cluster) }, Metrics: a.registry, Logger: a.log})
	a.packages = jobs.NewPackageStore(a.pool, nil)
	a.jobs = jobs.Open(a.pool, jobs.Options{Fleet: a.clusters, Client: a.client, Leases: a.ledger, Deployment: deployment, Packages: a.packages, Leading: a.besideJobs,
		LostAfter: a.cfg.ClusterLostAfter, Metrics: jobs.NewMetrics(a.registry), Logger: a.log})
	return nil
}

// client is the way to a cluster's dashboard.
func (a *App) client(cluster string) (jobs.Ray, bool) {
	ray, ok := a.watcher.Client(cluster)
	return ray, ok
}

// besideJobs is the rest of the work of the one server that moves jobs: it reads the configuration
// file and asks clusters how they are, until ctx ends.
func (a *App) besideJobs(ctx context.Context) {
	var work sync.WaitGroup
	work.Go(func() { a.watcher.Run(ctx) })
	if a.cfg.Clusters != "" {
		work.Go(func() { a.clusters.WatchFile(ctx, a.cfg.Clusters) })
	}
	work.Wait()
}

const lookAtLocal = 250 * time.Millisecond

// followLocal keeps the cluster whose agents this server runs among those that jobs may go to.
func (a *App) followLocal(ctx context.Context) {
	var known bridge.Hello
	for ; ctx.Err() == nil; sleep(ctx, lookAtLocal) {
		hello := a.agents.Load().Hello()
		if hello.RayAddress == known.RayAddress && hello.ClusterID == known.ClusterID {
			continue
		}
		if hello.Dashboard == "" { // it starts after what the sidecar needs
			if hello, _ = a.agents.Load().Ask(ctx); hello.Dashboard == "" {
				continue
			}
		}
		spec := clusters.Spec{Name: clusters.FromLocal, HeadAddress: hello.RayAddress, Dashboard: hello.Dashboard, Weight: 1, Token: rayToken(os.Getenv)}
		if !a.reaches(hello.Dashboard) {
			a.log.Warn("no jobs can go to the cluster of this server's agents: its dashboard answers only on its own machine; start its head with --dashboard-host", "dashboard", hello.Dashboard)
		} else if err := a.clusters.SetLocal(ctx, spec); err != nil {
			if ctx.Err() == nil {
				a.log.Error("the cluster of this server's agents is not among those for jobs", "error", err)
			}
			sleep(ctx, time.Second)
			continue
		}
		known = hello
	}
}

// reaches says whether a dashboard that the sidecar tells of can be asked from here: one on
// loopback is on the sidecar's machine, at best.
func (a *App) reaches(dashboard string) bool {
	sidecar, err := url.Parse(a.cfg.BridgeURL)
	if err != nil || sidecar.Hostname() == "" || onLoopback(sidecar.Hostname()) {
		return true
	}
	at, err := url.Parse(dashboard)
	return err == nil && !onLoopback(at.Hostname())
}

func onLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// rayToken says where Ray's own programs find the token of the cluster they use, nil when
// it asks for none.
func rayToken(getenv func(string) string) *clusters.Secret {
	if strings.EqualFold(getenv("RAY_AUTH_MODE"), "disabled") {
		return nil
	}
	if getenv("RAY_AUTH_TOKEN") != "" {
		return &clusters.Secret{Env: "RAY_AUTH_TOKEN"}
	}
	file := getenv("RAY_AUTH_TOKEN_PATH")
	if home := getenv("HOME"); file == "" && home != "" {
		file = filepath.Join(home, ".ray", "auth_token")
	}
	if _, err := os.Stat(file); err != nil {
		return nil
	}
	return &clusters.Secret{File: file}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
