package clusters

import (
	"strings"
	"testing"
	"time"
)

func TestHealthSaysWhy(t *testing.T) {
	t.Parallel()
	good := vitals{healthy: true, probes: 10, latency: 20 * time.Millisecond, nodes: 4}
	for name, c := range map[string]struct {
		change  func(*vitals)
		score   float64
		reasons []string // the beginnings, in order
	}{
		"all is well":           {func(*vitals) {}, 1, nil},
		"silent is not idle":    {func(v *vitals) { v.healthy, v.problem, v.silent = false, "no answer", 90*time.Second }, 0, []string{"no answer", "the last answer is 90 s old"}},
		"never seen":            {func(v *vitals) { v.healthy, v.problem, v.never = false, "no answer", true }, 0, []string{"no answer"}},
		"some probes failed":    {func(v *vitals) { v.failed = 5 }, 0.65, []string{"5 of the last 10 probes failed"}},
		"the first one failed":  {func(v *vitals) { v.failed, v.probes = 1, 2 }, 0.65, []string{"1 of the last 2 probes failed"}},
		"a little slow":         {func(v *vitals) { v.latency = 300 * time.Millisecond }, 0.995, []string{"it takes 300 ms to answer"}},
		"very slow":             {func(v *vitals) { v.latency = time.Minute }, 0.5, []string{"it takes 60 s to answer"}},
		"a node died":           {func(v *vitals) { v.dead = 4 }, 0.75, []string{"4 of 8 nodes died within the last hour"}},
		"usage unknown, early":  {func(v *vitals) { v.unknown = 10 * time.Second }, 1, nil},
		"usage unknown, long":   {func(v *vitals) { v.unknown = 3 * time.Minute }, 0.5, []string{"it has not said for 3 min what is used"}},
		"started anew":          {func(v *vitals) { v.restarts, v.restart = true, 0 }, 0.5, []string{"its head started anew 0 ms ago"}},
		"started anew long ago": {func(v *vitals) { v.restarts, v.restart = true, time.Hour }, 1, nil},
		"several, the weightiest first": {func(v *vitals) { v.dead, v.failed, v.latency = 1, 9, time.Second }, 0.307,
			[]string{"9 of the last 10", "1 of 5 nodes", "it takes 1.0 s"}},
	} {
		v := good
		c.change(&v)
		score, reasons := health(v)
		if score != c.score || len(reasons) != len(c.reasons) {
			t.Errorf("%s: %v %q, not %v %q", name, score, reasons, c.score, c.reasons)
			continue
		}
		for i, want := range c.reasons {
			if !strings.HasPrefix(reasons[i], want) {
				t.Errorf("%s: reason %q, not %q…", name, reasons[i], want)
			}
		}
	}
}

func TestHealthIsNeverOutOfBounds(t *testing.T) {
	t.Parallel()
	for failed := range 11 {
		for dead := range 5 {
			for _, latency := range []time.Duration{0, time.Second, time.Hour} {
				v := vitals{healthy: true, probes: 10, failed: failed, dead: dead, nodes: 1, latency: latency, unknown: time.Hour, restarts: true}
				if score, reasons := health(v); score <= 0 || score >= 1 || len(reasons) == 0 {
					t.Errorf("%+v: %v %q", v, score, reasons)
				}
			}
		}
	}
}
