package jobs

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of jobs; a nil *Metrics counts nothing.
type Metrics struct {
	taken      prometheus.Counter
	endings    *prometheus.CounterVec
	placements *prometheus.CounterVec
	waited     prometheus.Histogram
	deliveries *prometheus.HistogramVec
	starts     prometheus.Histogram
	passes     prometheus.Histogram
	retries    *prometheus.CounterVec
}

// NewMetrics registers them; nil means none.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	if reg == nil {
		return nil
	}
	m := &Metrics{
		taken:      prometheus.NewCounter(prometheus.CounterOpts{Name: "schedulemesh_jobs_submitted_total", Help: "Jobs taken."}),
		endings:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "schedulemesh_jobs_ended_total", Help: "Jobs that are over, by state."}, []string{"state"}),
		placements: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "schedulemesh_job_placements_total", Help: "Jobs sent to a cluster."}, []string{"cluster"}),
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "schedulemesh_job_queue_seconds", Help: "From the submission, or the end of the last attempt, until a cluster was chosen.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 12)}),
		deliveries: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "schedulemesh_job_delivery_seconds", Help: "Time until a cluster had a job, or it was known that it has not, by what came of it.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 15)}, []string{"outcome"}),
		starts: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "schedulemesh_job_start_seconds", Help: "From the submission until Ray said that the job runs.",
			Buckets: prometheus.ExponentialBuckets(0.1, 2, 16)}),
		passes: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "schedulemesh_job_placement_pass_seconds", Help: "Time of one pass over the line that placed something.",
			Buckets: prometheus.ExponentialBuckets(0.00001, 4, 10)}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "schedulemesh_job_retries_total", Help: "Jobs tried again, by what happened to them."}, []string{"after"}),
	}
	reg.MustRegister(m.taken, m.endings, m.placements, m.waited, m.deliveries, m.starts, m.passes, m.retries)
	return m
}

func (m *Metrics) submitted() {
	if m != nil {
		m.taken.Inc()
	}
}

func (m *Metrics) ended(state string) {
	if m != nil {
		m.endings.WithLabelValues(state).Inc()
	}
}

func (m *Metrics) placed(cluster string, waited time.Duration) {
	if m != nil {
		m.placements.WithLabelValues(cluster).Inc()
		m.waited.Observe(waited.Seconds())
	}
}

func (m *Metrics) passed(took time.Duration) {
	if m != nil {
		m.passes.Observe(took.Seconds())
	}
}

func (m *Metrics) delivered(out outcome, took time.Duration) {
	if m == nil {
		return
	}
	what := "unreachable"
	switch {
	case out.taken:
		what = "taken"
	case out.refused:
		what = "refused"
	case out.unsure:
		what = "unsure"
	}
	m.deliveries.WithLabelValues(what).Observe(took.Seconds())
}

func (m *Metrics) running(after time.Duration) {
	if m != nil {
		m.starts.Observe(after.Seconds())
	}
}

func (m *Metrics) retried(on string) {
	if m != nil {
		m.retries.WithLabelValues(on).Inc()
	}
}
