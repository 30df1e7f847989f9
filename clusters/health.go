package clusters

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// vitals are what a cluster's health is judged by.
type vitals struct {
	healthy  bool          // the last probe succeeded
	problem  string        // of the last probe, when it did not
	silent   time.Duration // since the last answer that could be used, then
	never    bool          // there was none yet
	probes   int           // of late, at most recentProbes
	failed   int           // of them
	latency  time.Duration // of answers of late
	nodes    int           // that live
	dead     int           // that died of late, without being told to
	unknown  time.Duration // since when it does not say what is used
	restart  time.Duration // since the head started anew
	restarts bool          // it did, while we looked
}

const (
	recentProbes = 10
	goodLatency  = 250 * time.Millisecond // nothing to complain about
	badLatency   = 5 * time.Second        // costs half of the score
	longUnknown  = 30 * time.Second       // Ray takes that long to say it after its start, at most
	longDown     = time.Minute            // in which a head that started anew is not trusted much
)

// health gives a score from 0 to 1 and why it is not 1, the weightiest first. A cluster that does not answer
// has 0: it is not idle, nobody knows.
func health(v vitals) (score float64, reasons []string) {
	if !v.healthy {
		reasons = []string{v.problem}
		if !v.never && v.silent >= time.Second {
			reasons = append(reasons, fmt.Sprintf("the last answer is %s old", roughly(v.silent)))
		}
		return 0, reasons
	}
	type fault struct {
		factor float64
		reason string
	}
	var faults []fault
	add := func(factor float64, format string, args ...any) {
		if factor < 1 {
			faults = append(faults, fault{factor, fmt.Sprintf(format, args...)})
		}
	}
	if v.failed > 0 {
		add(1-0.7*float64(v.failed)/float64(v.probes), "%d of the last %d probes failed", v.failed, v.probes)
	}
	if v.latency > goodLatency {
		share := float64(min(v.latency, badLatency)-goodLatency) / float64(badLatency-goodLatency)
		add(1-0.5*share, "it takes %s to answer", roughly(v.latency))
	}
	if v.dead > 0 {
		add(1-0.5*float64(v.dead)/float64(v.dead+v.nodes), "%d of %d nodes died within the last hour", v.dead, v.dead+v.nodes)
	}
	if v.unknown > longUnknown {
		add(0.5, "it has not said for %s what is used", roughly(v.unknown))
	}
	if v.restarts && v.restart < longDown {
		add(0.5+0.5*float64(v.restart)/float64(longDown), "its head started anew %s ago", roughly(v.restart))
	}
	slices.SortStableFunc(faults, func(a, b fault) int {
		switch {
		case a.factor < b.factor:
			return -1
		case a.factor > b.factor:
			return 1
		}
		return 0
	})
	score = 1
	for _, f := range faults {
		score *= f.factor
		reasons = append(reasons, f.reason)
	}
	return math.Round(score*1000) / 1000, reasons
}

// roughly says a duration to people.
func roughly(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.0f h", d.Hours())
}
