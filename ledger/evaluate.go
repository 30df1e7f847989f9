package ledger

import (
	"context"
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
)

// Evaluation asks who would be preempted for a task that does not exist.
type Evaluation struct {
	Pool     string
	Priority sched.Milli
	Labels   sched.Labels
	Request  *sched.Resources // nil: every eligible task is a candidate
	Limit    int              // of candidates; 0 = 100
}

// EvaluationResult answers an Evaluation.
type EvaluationResult struct {
	ShouldPreempt bool
	Candidates    []sched.Candidate
	Decision      *sched.Decision // with a request
	PolicyVersion int
}

// Evaluate changes nothing.
func (l *Ledger) Evaluate(ctx context.Context, ns string, e Evaluation) (EvaluationResult, error) {
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return EvaluationResult{}, err
	}
	limit := e.Limit
	if limit == 0 {
		limit = 100
	}
	var out EvaluationResult
	err := l.lane.look(ctx, func(b *book) {
		s := b.spaces[ns]
		began := time.Now()
		in := sched.Incoming{Pool: e.Pool, Priority: e.Priority, Labels: e.Labels}
		now := sched.Time(l.now().UnixMilli())
		out.PolicyVersion = s.policyVersion
		if e.Request == nil {
			out.Candidates = s.core.Candidates(in, now, limit)
			out.ShouldPreempt = len(out.Candidates) > 0
		} else {
			in.Request = *e.Request
			d := s.core.Decide(in, now)
			out.Decision = &d
			out.ShouldPreempt = d.Outcome == sched.Preempt
			for _, v := range d.Victims {
				out.Candidates = append(out.Candidates, v.Tasks...)
			}
		}
		l.opts.Metrics.evaluated(time.Since(began))
	})
	return out, err
}

// Explain says of each live task whether it would make way for a newcomer, and why not.
func (l *Ledger) Explain(ctx context.Context, ns string, e Evaluation) ([]sched.Verdict, error) {
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return nil, err
	}
	var out []sched.Verdict
	err := l.lane.look(ctx, func(b *book) {
		in := sched.Incoming{Pool: e.Pool, Priority: e.Priority, Labels: e.Labels}
		if e.Request != nil {
			in.Request = *e.Request
		}
		out = b.spaces[ns].core.Explain(in, sched.Time(l.now().UnixMilli()), e.Limit)
	})
	return out, err
}
