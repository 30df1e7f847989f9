package clusters

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// gauges are a watcher's metrics; nil counts nothing. The label is a cluster's name, and goes with the cluster.
type gauges struct {
	probes   prometheus.Histogram
	latency  *prometheus.GaugeVec
	failures *prometheus.CounterVec
	health   *prometheus.GaugeVec
	breaker  *prometheus.GaugeVec
}

func newGauges(reg prometheus.Registerer) *gauges {
	if reg == nil {
		return nil
	}
	label := []string{"cluster"}
	g := &gauges{
		probes: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "schedulemesh_cluster_probe_seconds", Help: "Time to ask a cluster for jobs how it is.",
			Buckets: prometheus.ExponentialBuckets(0.002, 2, 13)}),
		latency:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "schedulemesh_cluster_latency_seconds", Help: "How long the dashboard of a cluster took for its last answer."}, label),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "schedulemesh_cluster_probe_failures_total", Help: "Probes that a cluster did not answer, or not well."}, label),
		health:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "schedulemesh_cluster_health", Help: "Health of a cluster, from 0 to 1."}, label),
		breaker:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "schedulemesh_cluster_breaker", Help: "The circuit breaker of a cluster: 0 closed, 1 half open, 2 open."}, label),
	}
	reg.MustRegister(g.probes, g.latency, g.failures, g.health, g.breaker)
	return g
}

func (g *gauges) probed(name string, took time.Duration, failed bool, s Status) {
	if g == nil {
		return
	}
	g.probes.Observe(took.Seconds())
	failures := g.failures.WithLabelValues(name)
	if failed {
		failures.Inc()
	} else {
		g.latency.WithLabelValues(name).Set(s.Latency.Seconds())
	}
	g.health.WithLabelValues(name).Set(s.Score)
	g.breaker.WithLabelValues(name).Set(map[string]float64{HalfOpen: 1, Open: 2}[s.Breaker])
}

func (g *gauges) forget(name string) {
	if g == nil {
		return
	}
	g.latency.DeleteLabelValues(name)
	g.failures.DeleteLabelValues(name)
	g.health.DeleteLabelValues(name)
	g.breaker.DeleteLabelValues(name)
}
