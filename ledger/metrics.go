package ledger

import (
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of the ledger. The names that begin with schedulemesh_ and end in _ms or
// _count are the seeds'; the others follow Prometheus' conventions. A nil *Metrics counts nothing.
type Metrics struct {
	preemptions  *prometheus.CounterVec
	evaluation   prometheus.Histogram
	evaluationS  prometheus.Histogram
	batchCalls   prometheus.Histogram
	batchTime    prometheus.Histogram
	retries      prometheus.Counter
	replays      prometheus.Counter
	unknowns     prometheus.Counter
	failures     *prometheus.CounterVec
	catchUps     prometheus.Counter
	reloads      prometheus.Counter
	takeOvers    prometheus.Counter
	eventsByType *prometheus.CounterVec
	groupsBy     groupCounters
}

// NewMetrics registers the ledger's metrics; nil means none.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	if reg == nil {
		return nil
	}
	m := &Metrics{
		preemptions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "schedulemesh_preemption_count", Help: "Tasks that had to make way, by pool and reason."}, []string{"pool", "reason"}),
		evaluation: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "schedulemesh_preemption_evaluation_latency_ms", Help: "Time to evaluate who would be preempted, in milliseconds.",
			Buckets: []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 10, 50}}),
		evaluationS: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "schedulemesh_evaluation_seconds", Help: "Time to evaluate who would be preempted.",
			Buckets: prometheus.ExponentialBuckets(1e-6, 4, 10)}),
		batchCalls:   prometheus.NewHistogram(prometheus.HistogramOpts{Name: "schedulemesh_ledger_batch_calls", Help: "Calls combined into one transaction.", Buckets: prometheus.ExponentialBuckets(1, 2, 10)}),
		batchTime:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "schedulemesh_ledger_transaction_seconds", Help: "Time of one transaction of the ledger.", Buckets: prometheus.ExponentialBuckets(0.0002, 2, 14)}),
		retries:      prometheus.NewCounter(prometheus.CounterOpts{Name: "schedulemesh_ledger_retries_total", Help: "Transactions tried again after a serialization failure, a deadlock or a lost connection."}),
		replays:      prometheus.NewCounter(prometheus.CounterOpts{Name: "schedulemesh_ledger_replays_total", Help: "Batches that failed and were replayed one call at a time."}),
		failures:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "schedulemesh_ledger_failures_total", Help: "Calls that failed because of the database, by SQLSTATE or `connection`."}, []string{"cause"}),
		unknowns:     prometheus.NewCounter(prometheus.CounterOpts{Name: "schedulemesh_ledger_unknown_commits_total", Help: "Commits whose answer was lost."}),
		catchUps:     prometheus.NewCounter(prometheus.CounterOpts{Name: "schedulemesh_ledger_pool_catch_ups_total", Help: "Pools brought up to what another server had changed, by reading those changes."}),
		reloads:      prometheus.NewCounter(prometheus.CounterOpts{Name: "schedulemesh_ledger_pool_reloads_total", Help: "Pools reloaded whole because what another server had changed was not known."}),
		takeOvers:    prometheus.NewCounter(prometheus.CounterOpts{Name: "schedulemesh_takeovers_total", Help: "Leases of clusters taken from a server that had died."}),
		eventsByType: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "schedulemesh_events_total", Help: "Transitions of tasks, by type."}, []string{"type"}),
	}
	reg.MustRegister(m.preemptions, m.evaluation, m.evaluationS, m.batchCalls, m.batchTime, m.retries, m.replays, m.unknowns, m.failures, m.catchUps, m.reloads, m.takeOvers, m.eventsByType)
	m.groupsBy = newGroupCounters(reg)
	return m
}

func (m *Metrics) batch(calls int, took time.Duration) {
	if m != nil {
		m.batchCalls.Observe(float64(calls))
		m.batchTime.Observe(took.Seconds())
	}
}

func (m *Metrics) retried() {
	if m != nil {
		m.retries.Inc()
	}
}

func (m *Metrics) replayed() {
	if m != nil {
		m.replays.Inc()
	}
}

func (m *Metrics) failed(err error) {
	if m == nil {
		return
	}
	cause := "connection"
	var pg *pgconn.PgError
	var known *Error
	switch {
	case errors.As(err, &pg):
		cause = pg.Code
	case errors.As(err, &known):
		cause = known.Code
	}
	m.failures.WithLabelValues(cause).Inc()
}

func (m *Metrics) unknown() {
	if m != nil {
		m.unknowns.Inc()
	}
}

func (m *Metrics) caughtUp(byChange, whole int) {
	if m != nil {
		m.catchUps.Add(float64(byChange))
		m.reloads.Add(float64(whole))
	}
}

func (m *Metrics) tookOver() {
	if m != nil {
		m.takeOvers.Inc()
	}
}

func (m *Metrics) evaluated(took time.Duration) {
	if m != nil {
		m.evaluation.Observe(float64(took.Microseconds()) / 1000)
		m.evaluationS.Observe(took.Seconds())
	}
}

func (m *Metrics) events(events []Event) {
	if m == nil {
		return
	}
	for _, e := range events {
		m.eventsByType.WithLabelValues(e.Type).Inc()
		if e.Type == string(Preempting) {
			m.preemptions.WithLabelValues(e.Pool, e.Code).Inc()
		}
	}
}
