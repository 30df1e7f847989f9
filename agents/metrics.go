package agents

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of the worker pool; a nil *Metrics counts nothing. The names in
// milliseconds are the seeds'.
type Metrics struct {
	schedule  prometheus.Histogram
	execution prometheus.Histogram
	launch    *prometheus.HistogramVec
	failures  *prometheus.CounterVec
	up        prometheus.Gauge
	nodeCount prometheus.Gauge
	groups    prometheus.Histogram
	groupsBad *prometheus.CounterVec
	groupsOut prometheus.Counter
}

// NewMetrics registers the pool's metrics; nil means none.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	if reg == nil {
		return nil
	}
	ms := []float64{5, 10, 20, 40, 60, 80, 100, 150, 200, 300, 500, 1000, 2000, 5000, 15000, 60000}
	m := &Metrics{
		schedule:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "schedulemesh_task_schedule_latency_ms", Help: "From a task's decision until its agent runs, in milliseconds.", Buckets: ms}),
		execution: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "schedulemesh_preemption_execution_latency_ms", Help: "From the begin of a handover until the victim was seen gone, in milliseconds.", Buckets: ms}),
		launch: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "schedulemesh_agent_launch_seconds", Help: "Time to make an agent ready, by whether a spare worker was used.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 14)}, []string{"warm"}),
		failures:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "schedulemesh_agent_launch_failures_total", Help: "Launches that failed, by code."}, []string{"code"}),
		up:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "schedulemesh_bridge_up", Help: "1 while the sidecar of the local cluster answers."}),
		nodeCount: prometheus.NewGauge(prometheus.GaugeOpts{Name: "schedulemesh_cluster_nodes", Help: "Live nodes of the local cluster."}),
		groups: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "schedulemesh_placement_group_make_seconds", Help: "Time to make a placement group for which no launch waited.",
			Buckets: prometheus.ExponentialBuckets(0.002, 2, 15)}),
		groupsBad: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "schedulemesh_placement_group_make_failures_total", Help: "Placement groups that could not be made, by code."}, []string{"code"}),
		groupsOut: prometheus.NewCounter(prometheus.CounterOpts{Name: "schedulemesh_placement_groups_lost_total", Help: "Placement groups that were gone though nobody had removed them."}),
	}
	reg.MustRegister(m.schedule, m.execution, m.launch, m.failures, m.up, m.nodeCount, m.groups, m.groupsBad, m.groupsOut)
	return m
}

func (m *Metrics) launched(took, sinceDecided time.Duration, warm bool) {
	if m == nil {
		return
	}
	label := "no"
	if warm {
		label = "yes"
	}
	m.launch.WithLabelValues(label).Observe(took.Seconds())
	if sinceDecided < time.Hour { // unknown for work found again after a restart
		m.schedule.Observe(float64(sinceDecided.Microseconds()) / 1000)
	}
}

func (m *Metrics) launchFailed(code string) {
	if m != nil {
		m.failures.WithLabelValues(code).Inc()
	}
}

func (m *Metrics) took(d time.Duration) {
	if m != nil {
		m.execution.Observe(float64(d.Microseconds()) / 1000)
	}
}

func (m *Metrics) bridgeUp(up bool) {
	if m == nil {
		return
	}
	m.up.Set(0)
	if up {
		m.up.Set(1)
	}
}

func (m *Metrics) nodes(n int) {
	if m != nil {
		m.nodeCount.Set(float64(n))
	}
}

func (m *Metrics) groupMade(took time.Duration) {
	if m != nil {
		m.groups.Observe(took.Seconds())
	}
}

func (m *Metrics) groupFailed(code string) {
	if m != nil {
		m.groupsBad.WithLabelValues(code).Inc()
	}
}

func (m *Metrics) groupLost() {
	if m != nil {
		m.groupsOut.Inc()
	}
}
