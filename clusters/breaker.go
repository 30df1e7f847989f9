package clusters

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
)

// ErrOpen says that a cluster is not asked at the moment, because it failed several times in a row.
var ErrOpen = errors.New("the cluster failed several times in a row and is left alone for a moment")

const (
	failuresToOpen = 3
	firstDelay     = time.Second
	mostDelay      = 30 * time.Second
)

// breaker is the circuit breaker of one cluster. Probes and calls that say the cluster is broken open it; only
// a probe closes it again, and each that fails doubles the delay until the next.
type breaker struct {
	inner  circuitbreaker.CircuitBreaker[any]
	probes failsafe.Executor[any]
	opened atomic.Int32 // times in a row
	probed atomic.Bool  // there is who probes; without, everything goes through
}

func newBreaker(first time.Duration) *breaker {
	b := &breaker{}
	b.inner = circuitbreaker.NewBuilder[any]().
		WithFailureThreshold(failuresToOpen).
		WithSuccessThreshold(1).
		WithDelay(first). // when a call opened it
		WithDelayFunc(func(failsafe.ExecutionAttempt[any]) time.Duration {
			return min(first<<min(b.opened.Load(), 20), mostDelay)
		}).
		OnStateChanged(func(e circuitbreaker.StateChangedEvent) {
			switch e.NewState {
			case circuitbreaker.OpenState:
				b.opened.Add(1)
			case circuitbreaker.ClosedState:
				b.opened.Store(0)
			}
		}).
		Build()
	b.probes = failsafe.With[any](b.inner)
	return b
}

// allow implements gate.
func (b *breaker) allow() error {
	if !b.probed.Load() || b.inner.IsClosed() {
		return nil
	}
	return fmt.Errorf("%w: it is asked again in %v", ErrOpen, b.inner.RemainingDelay().Round(100*time.Millisecond))
}

// note implements gate.
func (b *breaker) note(broken bool) {
	switch {
	case !b.probed.Load() || !b.inner.IsClosed():
	case broken:
		b.inner.RecordFailure()
	default:
		b.inner.RecordSuccess()
	}
}

// probe runs one, or says that it is too early. A context that ended says nothing of the cluster.
func (b *breaker) probe(ctx context.Context, ask func() error) (asked bool, err error) {
	_ = b.probes.Run(func() error {
		asked = true
		if err = ask(); ctx.Err() != nil {
			return nil
		}
		return err
	})
	return asked, err
}

// state gives what Status calls it, and when it lets the next probe through.
func (b *breaker) state(now time.Time) (state string, retry time.Time) {
	switch b.inner.State() {
	case circuitbreaker.OpenState:
		return Open, now.Add(b.inner.RemainingDelay())
	case circuitbreaker.HalfOpenState:
		return HalfOpen, time.Time{}
	default:
		return Closed, time.Time{}
	}
}
