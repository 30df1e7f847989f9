package clusters_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/clusters/clustertest"
)

// watched is a registry with a watcher that works.
type watched struct {
	*clusters.Watcher
	t   *testing.T
	reg *clusters.Registry

	mu   sync.Mutex
	seen map[string][]clusters.Status // all statuses, by cluster
}

func watch(t *testing.T, reg *clusters.Registry, o clusters.WatcherOptions) *watched {
	t.Helper()
	w := &watched{t: t, reg: reg, seen: map[string][]clusters.Status{}}
	last := map[string]clusters.Status{}
	o.OnStatus = func(name string, before, now clusters.Status) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if old, ok := last[name]; ok && !before.At.IsZero() && !before.At.Equal(old.At) {
			t.Errorf("%s: what was before is not what was said last", name)
		}
		last[name] = now
		w.seen[name] = append(w.seen[name], now)
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Second
	}
	w.Watcher = clusters.NewWatcher(reg, o)
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { w.Run(ctx) })
	t.Cleanup(func() {
		stop()
		done.Wait()
	})
	return w
}

// put configures a cluster.
func (w *watched) put(name, dashboard string) {
	w.t.Helper()
	put(w.t, w.reg, name, dashboard)
}

func put(t *testing.T, reg *clusters.Registry, name, dashboard string) {
	t.Helper()
	if _, err := reg.Put(t.Context(), spec(t, name, fmt.Sprintf(`{"head_address":"127.0.0.1:6379","dashboard":%q}`, dashboard)), "test", 0); err != nil {
		t.Fatal(err)
	}
}

// await waits until the status of a cluster is so.
func (w *watched) await(name string, so func(clusters.Status) bool) clusters.Status {
	w.t.Helper()
	for deadline := time.Now().Add(patience / 2); ; time.Sleep(5 * time.Millisecond) {
		s, _ := w.Status(name)
		if so(s) {
			return s
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s is still %+v", name, s)
		}
	}
}

func in(state string) func(clusters.Status) bool {
	return func(s clusters.Status) bool { return s.State == state }
}

func TestAClusterIsSeenAndItsStatusKept(t *testing.T) {
	t.Parallel()
	pool := database(t)
	reg, other := open(t, pool), open(t, pool)
	w := watch(t, reg, clusters.WatcherOptions{Busy: 20 * time.Millisecond, Idle: 50 * time.Millisecond, Sample: 100 * time.Millisecond, Jobs: func(string) int { return 7 }})
	if _, ok := w.Status("a"); ok {
		t.Error("a cluster that is not there has a status")
	}
	cluster := clustertest.New(t, clustertest.Options{CPUs: 8, Memory: 1 << 30, Resources: map[string]float64{"my_res": 2}})
	w.put("a", cluster.URL)
	s := w.await("a", in(clusters.Healthy))
	if s.Score <= 0.5 || s.Breaker != clusters.Closed || s.Session != cluster.Session() || s.Version != "2.60.0" || s.Total.CPU != 8000 || s.Total.Get("my_res") != 2000 || s.Since.IsZero() || s.SeenAt.IsZero() {
		t.Errorf("%+v", s)
	}
	since := s.Since
	cpus := 1.5
	cluster.Start(clusters.Submission{SubmissionID: "x", NumCPUs: &cpus, Resources: map[string]float64{"my_res": 1}})
	s = w.await("a", func(s clusters.Status) bool { return s.Used.CPU == 1500 })
	if s.Used.Get("my_res") != 1000 || !s.Since.Equal(since) {
		t.Errorf("%+v", s)
	}
	cluster.HideUsage(true)
	s = w.await("a", func(s clusters.Status) bool { return !s.UsageKnown })
	if s.State != clusters.Healthy || s.Total.CPU != 8000 || s.Used.CPU != 1500 {
		t.Errorf("without usage: %+v", s)
	}
	for deadline := time.Now().Add(patience / 2); ; time.Sleep(10 * time.Millisecond) {
		c, _ := other.Get("a")
		points, err := reg.History(t.Context(), "a", time.Now().Add(-time.Hour), 100)
		if err != nil {
			t.Fatal(err)
		}
		if c.Status.State == clusters.Healthy && !c.Status.UsageKnown && len(points) > 2 && points[0].Jobs == 7 && points[len(points)-1].Used.CPU == 1500 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("another server sees %+v and %+v", c.Status, points)
		}
	}
}

func TestASilentClusterIsUnhealthyAndLeftAlone(t *testing.T) {
	t.Parallel()
	cluster := clustertest.New(t, clustertest.Options{})
	w := watch(t, open(t, database(t)), clusters.WatcherOptions{Busy: 20 * time.Millisecond, Idle: 20 * time.Millisecond})
	w.put("a", cluster.URL)
	healthy := w.await("a", in(clusters.Healthy))
	ray, ok := w.Client("a")
	if !ok {
		t.Fatal("no client")
	}
	cluster.Down()
	s := w.await("a", in(clusters.Unhealthy))
	if s.Score != 0 || !strings.Contains(s.Error, "refused") || strings.Contains(s.Error, "/api/") || len(s.Reasons) == 0 || s.Since.Equal(healthy.Since) || s.Total.CPU != 4000 || s.SeenAt.IsZero() {
		t.Errorf("%+v", s)
	}
	s = w.await("a", func(s clusters.Status) bool { return s.Breaker == clusters.Open })
	if s.RetryAt.Before(s.At) {
		t.Errorf("%+v", s)
	}
	calls := cluster.Calls("")
	_, err := ray.Version(t.Context())
	var call *clusters.CallError
	if !errors.Is(err, clusters.ErrOpen) || !errors.As(err, &call) || call.Sent || call.Status != 0 {
		t.Errorf("%+v: %v", call, err)
	}
	cluster.Up()
	if cluster.Calls("") != calls {
		t.Error("it was called while the breaker was open")
	}
	s = w.await("a", in(clusters.Healthy))
	if s.Breaker != clusters.Closed || s.Score <= 0 || s.Score >= 1 || !strings.Contains(strings.Join(s.Reasons, ","), "probes failed") || !s.RetryAt.IsZero() || s.Error != "" {
		t.Errorf("%+v", s)
	}
	if _, err := ray.Version(t.Context()); err != nil {
		t.Error(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.seen["a"] {
		if s.State != clusters.Healthy && s.Score != 0 {
			t.Errorf("not healthy, and still %+v", s)
		}
	}
}

// A dashboard that refuses single submissions, or that a caller left, is not broken by that.
func TestOnlyWhatTheClusterIsToBlameForOpensTheBreaker(t *testing.T) {
	t.Parallel()
	cluster := clustertest.New(t, clustertest.Options{})
	w := watch(t, open(t, database(t)), clusters.WatcherOptions{Idle: time.Hour})
	w.put("a", cluster.URL)
	w.await("a", in(clusters.Healthy))
	ray, _ := w.Client("a")
	mend := cluster.Break(clustertest.Fault{Kind: clustertest.Fail, Method: "POST"})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 5 {
		if err := ray.Submit(t.Context(), echo); err == nil || errors.Is(err, clusters.ErrOpen) {
			t.Fatal(err)
		}
		if _, err := ray.Version(gone); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if _, err := ray.Job(t.Context(), "none"); !errors.Is(err, clusters.ErrNoJob) {
			t.Fatal(err)
		}
	}
	mend()
	cluster.Break(clustertest.Fault{Kind: clustertest.CutBefore, Method: "POST"})
	for range 3 {
		if err := ray.Submit(t.Context(), echo); err == nil || errors.Is(err, clusters.ErrOpen) {
			t.Fatal(err)
		}
	}
	if err := ray.Submit(t.Context(), echo); !errors.Is(err, clusters.ErrOpen) {
		t.Error("three cut connections did not open it:", err)
	}
	w.Poke("a") // it may be probed when its delay is over
	w.await("a", func(s clusters.Status) bool { return ray.Submit(gone, echo) != nil && s.Breaker == clusters.Closed })
}

func TestWhatIsWrongWithAClusterIsSaid(t *testing.T) {
	t.Parallel()
	w := watch(t, open(t, database(t)), clusters.WatcherOptions{Timeout: time.Second})
	for name, c := range map[string]struct {
		o     clustertest.Options
		fault clustertest.Fault
		says  string
	}{
		"old":      {clustertest.Options{Version: "2.6.3"}, clustertest.Fault{}, "2.6.3 of Ray is too old"},
		"token":    {clustertest.Options{Token: "secret"}, clustertest.Fault{}, "needs a token"},
		"garbage":  {clustertest.Options{}, clustertest.Fault{Kind: clustertest.Garbage}, "Welcome to nginx!"},
		"broken":   {clustertest.Options{}, clustertest.Fault{Kind: clustertest.Fail, Path: "/api/cluster_status", Body: "oh no"}, "answered 500: oh no"},
		"hanging":  {clustertest.Options{}, clustertest.Fault{Kind: clustertest.Hang}, "no answer within 1s"},
		"half way": {clustertest.Options{}, clustertest.Fault{Kind: clustertest.CutHalfway}, "cut off"},
		"empty":    {clustertest.Options{}, clustertest.Fault{Kind: clustertest.Fail, Status: 404, Path: "/api/v0"}, ""},
	} {
		cluster := clustertest.New(t, c.o)
		if c.fault.Kind != 0 {
			cluster.Break(c.fault)
		}
		name = strings.ReplaceAll(name, " ", "-")
		w.put(name, cluster.URL)
		if c.says == "" {
			if s := w.await(name, in(clusters.Healthy)); len(s.Nodes) != 0 || s.Total.CPU != 4000 {
				t.Errorf("%s: %+v", name, s)
			}
			continue
		}
		so := func(s clusters.Status) bool {
			return s.State == clusters.Unhealthy && strings.Contains(s.Error, c.says)
		}
		if s := w.await(name, so); s.Reasons[0] != s.Error || strings.Contains(s.Error, "\n") {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestAnotherSessionIsSeen(t *testing.T) {
	t.Parallel()
	cluster := clustertest.New(t, clustertest.Options{Nodes: 2})
	w := watch(t, open(t, database(t)), clusters.WatcherOptions{Idle: 20 * time.Millisecond})
	w.put("a", cluster.URL)
	first := w.await("a", in(clusters.Healthy))
	cluster.NewSession()
	s := w.await("a", func(s clusters.Status) bool { return s.Session != first.Session })
	if s.Session != cluster.Session() || s.Score > 0.6 || !strings.Contains(s.Reasons[0], "started anew") {
		t.Errorf("%+v", s)
	}
	cluster.KillNode(1)
	s = w.await("a", func(s clusters.Status) bool { return s.Total.CPU == 4000 })
	if len(s.Nodes) != 2 || s.Nodes[1].Alive || !strings.Contains(strings.Join(s.Reasons, ","), "1 of 2 nodes died") {
		t.Errorf("%+v", s)
	}
}

func TestAClusterThatChangesOrGoes(t *testing.T) {
	t.Parallel()
	metrics := prometheus.NewRegistry()
	w := watch(t, open(t, database(t)), clusters.WatcherOptions{Idle: time.Hour, Metrics: metrics})
	labels := func() string {
		families, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					all = append(all, l.GetValue())
				}
			}
		}
		return strings.Join(all, " ")
	}
	one, two := clustertest.New(t, clustertest.Options{CPUs: 1}), clustertest.New(t, clustertest.Options{CPUs: 2})
	w.put("a", one.URL)
	w.await("a", in(clusters.Healthy))
	if !strings.Contains(labels(), "a") {
		t.Error(labels())
	}
	before := one.Calls("")
	w.Poke("a")
	w.await("a", func(clusters.Status) bool { return one.Calls("") > before+2 })

	w.put("a", two.URL)
	if s := w.await("a", func(s clusters.Status) bool { return s.Total.CPU == 2000 }); s.Session != two.Session() || strings.Contains(strings.Join(s.Reasons, ","), "anew") {
		t.Errorf("%+v", s) // another cluster is not one that started anew
	}
	ray, _ := w.Client("a")
	if err := ray.Submit(t.Context(), echo); err != nil || len(two.Accepted()) != 1 {
		t.Error(err)
	}
	if err := w.reg.Delete(t.Context(), "a", "test"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience / 2); ; time.Sleep(5 * time.Millisecond) {
		_, there := w.Status("a")
		if _, client := w.Client("a"); !there && !client && labels() == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there: %t, %q", there, labels())
		}
	}
}

// On a server that does not look after jobs, clients work all the same, and nothing is probed.
func TestClientsWithoutAnybodyWhoProbes(t *testing.T) {
	t.Parallel()
	reg := open(t, database(t))
	cluster := clustertest.New(t, clustertest.Options{})
	put(t, reg, "a", cluster.URL)
	w := clusters.NewWatcher(reg, clusters.WatcherOptions{Idle: 10 * time.Millisecond})
	ray, ok := w.Client("a")
	if !ok {
		t.Fatal("no client")
	}
	cluster.Down()
	for range 5 {
		if _, err := ray.Version(t.Context()); err == nil || errors.Is(err, clusters.ErrOpen) {
			t.Fatal(err)
		}
	}
	cluster.Up()
	if _, err := ray.Version(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, ok := w.Client("b"); ok {
		t.Error("a client of nobody")
	}
	for range 2 { // the lease comes and goes
		ctx, stop := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { w.Run(ctx) })
		for deadline := time.Now().Add(patience / 2); ; time.Sleep(5 * time.Millisecond) {
			if s, ok := w.Status("a"); ok && s.State == clusters.Healthy {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("not seen")
			}
		}
		stop()
		done.Wait()
		if _, ok := w.Status("a"); ok {
			t.Error("a status of nobody")
		}
	}
}

func TestAThousandClustersAreSeenSoon(t *testing.T) {
	t.Parallel()
	const n = 1000
	cluster := clustertest.New(t, clustertest.Options{})
	reg := open(t, database(t))
	var specs []clusters.Spec
	for i := range n {
		specs = append(specs, spec(t, fmt.Sprintf("c%d", i), fmt.Sprintf(`{"head_address":"127.0.0.1:6379","dashboard":%q}`, cluster.URL)))
	}
	if err := reg.Import(t.Context(), specs, "test"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	w := watch(t, reg, clusters.WatcherOptions{Timeout: 10 * time.Second})
	for _, s := range specs {
		w.await(s.Name, in(clusters.Healthy))
	}
	t.Logf("all %d were seen after %v", n, time.Since(began).Round(time.Millisecond))
}
