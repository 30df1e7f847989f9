package jobs

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/sched"
)

func cpus(n float64) sched.Resources { return sched.Resources{CPU: int64(n * 1000)} }

// site is a healthy cluster with so many CPUs on one machine, of which some are used.
func site(name string, total, used float64, change ...func(*clusters.Cluster)) clusters.Cluster {
	c := clusters.Cluster{Spec: clusters.Spec{Name: name, Weight: 1}}
	c.Status = clusters.Status{State: clusters.Healthy, SeenAt: time.Unix(1, 0), Score: 1, Total: cpus(total), Used: cpus(used), UsageKnown: true}
	for _, f := range change {
		f(&c)
	}
	return c
}

func machines(amounts ...float64) func(*clusters.Cluster) {
	return func(c *clusters.Cluster) {
		for i, n := range amounts {
			c.Status.Nodes = append(c.Status.Nodes, clusters.Node{ID: fmt.Sprint(i), Alive: true, Total: cpus(n)})
		}
	}
}

func sitesOf(list ...clusters.Cluster) []*Site {
	out := make([]*Site, len(list))
	for i, c := range list {
		out[i] = NewSite(c, Load{})
	}
	return out
}

func TestWhereAJobGoes(t *testing.T) {
	t.Parallel()
	heavy := func(c *clusters.Cluster) { c.Weight = 3 }
	preferred := func(c *clusters.Cluster) { c.Prefer = true }
	sick := func(c *clusters.Cluster) { c.Status.Score = 0.3 }
	silent := func(c *clusters.Cluster) { c.Status.State, c.Status.Error = clusters.Unhealthy, "no answer" }
	unseen := func(c *clusters.Cluster) {
		c.Status = clusters.Status{State: clusters.Unseen, Breaker: clusters.Closed}
	}
	held := func(c *clusters.Cluster) { c.Hold = clusters.Hold{Held: true, Reason: "upgrade"} }
	tagged := func(c *clusters.Cluster) { c.Tags = []string{"gpu", "stable"} }
	for name, x := range map[string]struct {
		sites   []*Site
		ask     Ask
		want    string
		because string // in the reason, or among the others and notes
	}{
		"the most free":                        {sitesOf(site("a", 4, 0), site("b", 16, 8)), Ask{Requirements: cpus(1)}, "b", "its score is lower"},
		"the only one":                         {sitesOf(site("a", 4, 0)), Ask{}, "a", "only cluster"},
		"weight":                               {sitesOf(site("a", 4, 0, heavy), site("b", 8, 0)), Ask{Requirements: cpus(1)}, "a", ""},
		"health":                               {sitesOf(site("a", 16, 0, sick), site("b", 8, 0)), Ask{Requirements: cpus(1)}, "b", ""},
		"prefer is a bonus":                    {sitesOf(site("a", 8, 0, preferred), site("b", 8, 0)), Ask{Requirements: cpus(1)}, "a", ""},
		"and not a wall":                       {sitesOf(site("a", 8, 8, preferred), site("b", 8, 0)), Ask{Requirements: cpus(1)}, "b", "1 cpu"},
		"shared tags are a bonus":              {sitesOf(site("a", 8, 0), site("b", 8, 0, tagged)), Ask{Requirements: cpus(1), Tags: []string{"gpu"}}, "b", ""},
		"named, with room":                     {sitesOf(site("a", 2, 0), site("b", 100, 0)), Ask{Requirements: cpus(1), Preferred: "a"}, "a", "the job names it"},
		"named, without room":                  {sitesOf(site("a", 2, 2), site("b", 4, 0)), Ask{Requirements: cpus(1), Preferred: "a"}, "b", "a was preferred, but 1 cpu more would have to be free"},
		"named, silent":                        {sitesOf(site("a", 2, 0, silent), site("b", 4, 0)), Ask{Requirements: cpus(1), Preferred: "a"}, "b", "a was preferred, but no answer"},
		"named, unknown":                       {sitesOf(site("a", 2, 0)), Ask{Preferred: "x"}, "a", `there is no cluster "x"`},
		"nobody has room":                      {sitesOf(site("a", 2, 2), site("b", 4, 4)), Ask{Requirements: cpus(1)}, "", "2 without room"},
		"held":                                 {sitesOf(site("a", 2, 0, held)), Ask{Requirements: cpus(1)}, "", "a is held"},
		"silent":                               {sitesOf(site("a", 2, 0, silent), site("b", 1, 0)), Ask{Requirements: cpus(2)}, "", "a is unhealthy, b is too small"},
		"not heard of":                         {sitesOf(site("a", 0, 0, unseen)), Ask{Requirements: cpus(2)}, "", "a was not heard of yet"},
		"refused":                              {sitesOf(site("a", 8, 0), site("b", 2, 0)), Ask{Requirements: cpus(1), Tried: []Tried{{Cluster: "a", Why: "answered 500"}}}, "b", "it did not take this job: answered 500"},
		"enough, but on no machine":            {sitesOf(site("a", 8, 0, machines(4, 4))), Ask{Requirements: cpus(5), OneNode: true}, "", "a is too small"},
		"no machine is needed":                 {sitesOf(site("a", 8, 0, machines(4, 4))), Ask{Requirements: cpus(5)}, "a", ""},
		"nothing asked for: spread by CPUs":    {sitesOf(site("a", 4, 0), site("b", 16, 0)), Ask{}, "b", ""},
		"nothing asked for: full ones will do": {sitesOf(site("a", 4, 4)), Ask{}, "a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, at := Place(x.sites, x.ask)
			if p.Cluster != x.want || (at < 0) != (x.want == "") {
				t.Fatalf("goes to %q: %s", p.Cluster, p.Reason)
			}
			said := p.Reason + strings.Join(p.Notes, "\n")
			for _, o := range p.Others {
				said += "\n" + o.Reason
			}
			if !strings.Contains(said, x.because) {
				t.Errorf("%q is not said:\n%s", x.because, said)
			}
			total := 0
			for _, r := range p.Not {
				total += r.Count
			}
			if chosen := len(x.sites) - total; chosen != 1 && x.want != "" || chosen != 0 && x.want == "" {
				t.Errorf("%d of %d clusters are accounted for", total, len(x.sites))
			}
		})
	}
}

// What our own jobs take never exceeds what a cluster has, whether Ray says so yet or not.
func TestPlacedJobsCountBeforeRaySaysSo(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		used  float64
		load  Load
		free  float64
		words string
	}{
		"nothing of ours":                    {3, Load{}, 5, ""},
		"on its way":                         {3, Load{Live: cpus(2)}, 3, "used by others, and ours on top"},
		"counted by Ray":                     {3, Load{Live: cpus(2), Running: cpus(2)}, 5, "ours is in it"},
		"more than Ray says":                 {1, Load{Live: cpus(6), Running: cpus(6)}, 2, "never beyond what it has"},
		"over a moment ago":                  {3, Load{Ended: cpus(2)}, 7, "Ray counts it still"},
		"ours ask for nothing and use a lot": {8, Load{Count: 3}, 0, ""},
		"more promised than there is":        {0, Load{Live: cpus(20)}, 0, ""},
	} {
		if free := NewSite(site("a", 8, x.used), x.load).Free(); free.CPU != int64(x.free*1000) {
			t.Errorf("%s: %v free, want %v CPU (%s)", name, free, x.free, x.words)
		}
	}
}

func TestImpossibleIsOnlySaidWhenItIsCertain(t *testing.T) {
	t.Parallel()
	silent := func(c *clusters.Cluster) { c.Status.State = clusters.Unhealthy }
	unseen := func(c *clusters.Cluster) { c.Status = clusters.Status{} }
	grows := func(c *clusters.Cluster) { c.Most = cpus(64) }
	ask := Ask{Requirements: cpus(16), OneNode: true}
	for name, x := range map[string]struct {
		sites []*Site
		want  bool
	}{
		"too small":         {sitesOf(site("a", 8, 0)), true},
		"large, but full":   {sitesOf(site("a", 8, 0), site("b", 16, 16)), false},
		"large, but silent": {sitesOf(site("a", 8, 0), site("b", 16, 0, silent)), false},
		"small and silent":  {sitesOf(site("a", 8, 0, silent)), true},
		"never heard of":    {sitesOf(site("a", 8, 0), site("b", 0, 0, unseen)), false},
		"large in sum":      {sitesOf(site("a", 16, 0, machines(8, 8))), true},
		"can grow":          {sitesOf(site("a", 8, 0, machines(8), grows)), false},
	} {
		if got := Impossible(x.sites, ask); got != x.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A large job that waits is not overtaken for ever by small ones behind it.
func TestAClusterIsKeptForWhoWaits(t *testing.T) {
	t.Parallel()
	sites := sitesOf(site("a", 8, 2), site("b", 8, 4))
	big, small := Ask{Requirements: cpus(8)}, Ask{Requirements: cpus(1)}
	if p, at := Place(sites, big); at >= 0 {
		t.Fatal(p)
	}
	if !keepFor(sites, "sub_big", big) {
		t.Fatal("no cluster is left")
	}
	p, _ := Place(sites, small)
	if p.Cluster != "b" || p.Others[0].Code != notKept || !strings.Contains(p.Others[0].Reason, "sub_big") {
		t.Errorf("%+v", p)
	}
	if p, _ := Place(sites, Ask{}); p.Cluster != "a" {
		t.Errorf("a job that asks for nothing takes nothing away: %+v", p)
	}
}

// The order of clusters, and what is placed before, do not change what is true of a placement.
func TestPlacementsAreTheBestAndKeepWithinRoom(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var list []clusters.Cluster
		for i := range 1 + r.IntN(12) {
			total := float64(1 + r.IntN(16))
			list = append(list, site(fmt.Sprint("c", i), total, float64(r.IntN(int(total)+1)), func(c *clusters.Cluster) {
				c.Weight, c.Prefer, c.Status.Score = 0.1+r.Float64()*2, r.IntN(4) == 0, r.Float64()
				if r.IntN(6) == 0 {
					c.Status.State = clusters.Unhealthy
				}
			}))
		}
		shuffled := slices.Clone(list)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		one, two := sitesOf(list...), sitesOf(shuffled...)
		placed := map[string]sched.Resources{}
		for range 20 {
			ask := Ask{Requirements: cpus(float64(1 + r.IntN(6)))}
			if r.IntN(3) == 0 {
				ask.Preferred = fmt.Sprint("c", r.IntN(14))
			}
			free := map[string]sched.Resources{}
			for _, s := range one {
				free[s.c.Name] = s.Free()
			}
			a, _ := Place(one, ask)
			b, _ := Place(two, ask)
			if a.Cluster != b.Cluster || a.Score != b.Score {
				t.Fatalf("%s or %s, by the order", a.Cluster, b.Cluster)
			}
			for _, c := range list {
				fits := c.Status.State == clusters.Healthy && free[c.Name].Covers(ask.Requirements)
				if fits && a.Cluster == "" {
					t.Fatalf("%s had room", c.Name)
				}
				if c.Name == a.Cluster {
					if !fits {
						t.Fatalf("%s had no room", c.Name)
					}
					placed[c.Name] = placed[c.Name].Add(ask.Requirements)
					if !c.Status.Total.Sub(c.Status.Used).Covers(placed[c.Name]) {
						t.Fatalf("%s is over its room", c.Name)
					}
				}
				if fits && c.Name == ask.Preferred && a.Cluster != c.Name {
					t.Fatalf("%s was named and had room", c.Name)
				}
			}
		}
	}
}
