package ledger

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// groupCounters count what becomes of placement groups. Those of several namespaces whose
// pools share a name are counted together, as preemptions are.
type groupCounters struct {
	made, reused, removed, failed *prometheus.CounterVec
}

func newGroupCounters(reg prometheus.Registerer) groupCounters {
	counter := func(what, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "schedulemesh_placement_groups_" + what + "_total", Help: help}, []string{"pool", "tier"})
		reg.MustRegister(c)
		return c
	}
	return groupCounters{
		made:    counter("made", "Placement groups that Ray has made."),
		reused:  counter("reused", "Agents that took over a placement group from an earlier one."),
		removed: counter("removed", "Placement groups that were seen gone, told to or not."),
		failed:  counter("failed", "Reserved placement groups that could not be made; each is tried again."),
	}
}

// groups counts what a batch, now durable, did with placement groups.
func (m *Metrics) groups(b *batch) {
	if m == nil || len(b.groups) == 0 {
		return
	}
	before := map[*pool]*pool{}
	for i := range b.touched {
		before[b.touched[i].pool] = &b.touched[i].before
	}
	for uid, w := range b.groups {
		was := &group{}
		if p := before[w.pool]; p != nil {
			if g := p.group(uid); g != nil {
				was = g
			}
		}
		count := func(c *prometheus.CounterVec, n int) {
			if n > 0 {
				c.WithLabelValues(w.pool.name, w.g.tier).Add(float64(n))
			}
		}
		count(m.groupsBy.made, w.g.made-was.made)
		count(m.groupsBy.reused, w.g.reuses-was.reuses)
		count(m.groupsBy.removed, w.g.removed-was.removed)
		if w.g.state == groupFailed && was.state != groupFailed {
			count(m.groupsBy.failed, 1)
		}
	}
}

// groupGauges say what placement groups there are, from memory.
type groupGauges struct {
	l              *Ledger
	groups, queued *prometheus.Desc
}

// GroupGauges are gauges of the placement groups of all pools; every server that shares
// the database tells the same.
func (l *Ledger) GroupGauges() prometheus.Collector {
	return groupGauges{l,
		prometheus.NewDesc("schedulemesh_placement_groups", "Placement groups of pools by what they are doing.", []string{"pool", "tier", "state"}, nil),
		prometheus.NewDesc("schedulemesh_placement_group_waits", "Tasks in line that want a placement group, by the tier where they would sit first.", []string{"pool", "tier"}, nil)}
}

// Describe is for the registry.
func (c groupGauges) Describe(out chan<- *prometheus.Desc) { out <- c.groups; out <- c.queued }

// groupScrape bounds how long a scrape waits for the book; without it the gauges are left out.
const groupScrape = time.Second

// Collect is for the registry.
func (c groupGauges) Collect(out chan<- prometheus.Metric) {
	type series struct{ pool, tier, state string }
	groups, waits := map[series]int{}, map[series]int{}
	ctx, cancel := context.WithTimeout(context.Background(), groupScrape)
	defer cancel()
	if err := c.l.lane.glance(ctx, func(b *book) {
		for _, p := range b.pools {
			if !p.grouped() {
				continue
			}
			for _, tier := range []string{tierReserved, tierDynamic} {
				for _, state := range []string{groupCreating, groupIdle, groupOccupied, groupReleasing, groupRemoved, groupFailed} {
					groups[series{p.name, tier, state}] += 0 // said also when there is none
				}
			}
			for _, g := range p.groups {
				groups[series{p.name, g.tier, g.state}]++
			}
			for tier, n := range p.waitingForGroups() {
				waits[series{p.name, tier, ""}] += n
			}
		}
	}); err != nil {
		return
	}
	for s, n := range groups {
		out <- prometheus.MustNewConstMetric(c.groups, prometheus.GaugeValue, float64(n), s.pool, s.tier, s.state)
	}
	for s, n := range waits {
		out <- prometheus.MustNewConstMetric(c.queued, prometheus.GaugeValue, float64(n), s.pool, s.tier)
	}
}
