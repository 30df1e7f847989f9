package clusters

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

var errDown = errors.New("down")

func TestTheBreakerOpensAfterThreeFailuresInARow(t *testing.T) {
	t.Parallel()
	b := newBreaker(20 * time.Second)
	b.probed.Store(true)
	for range 5 { // now and then is not in a row
		b.note(true)
		b.note(true)
		b.note(false)
	}
	if err := b.allow(); err != nil {
		t.Fatal(err)
	}
	b.note(true)
	b.note(true)
	if asked, err := b.probe(t.Context(), func() error { return errDown }); !asked || !errors.Is(err, errDown) {
		t.Error(asked, err)
	}
	if err := b.allow(); !errors.Is(err, ErrOpen) || !strings.Contains(err.Error(), "it is asked again in 20s") {
		t.Error(err)
	}
	if asked, _ := b.probe(t.Context(), func() error { return nil }); asked {
		t.Error("probed before the delay was over")
	}
	b.note(false) // of a call that began before
	if state, retry := b.state(time.Now()); state != Open || time.Until(retry) < 19*time.Second {
		t.Error(state, retry)
	}
	b.probed.Store(false)
	if err := b.allow(); err != nil {
		t.Error("nobody probes, and calls are kept away all the same:", err)
	}
}

func TestTheDelayDoublesAndOnlyAProbeCloses(t *testing.T) {
	t.Parallel()
	const first = 20 * time.Millisecond
	b := newBreaker(first)
	b.probed.Store(true)
	for range failuresToOpen {
		b.note(true)
	}
	for n := range 4 {
		_, retry := b.state(time.Now())
		want := first << n
		if left := time.Until(retry); left > want || left < want/4 {
			t.Errorf("delay %d: %v, not %v", n+1, left, want)
		}
		time.Sleep(time.Until(retry) + time.Millisecond) // the library's clock is the real one
		if err := b.allow(); !errors.Is(err, ErrOpen) {
			t.Error("a call went through before a probe did:", err)
		}
		fails := n < 3
		asked, err := b.probe(t.Context(), func() error {
			if state, _ := b.state(time.Now()); state != HalfOpen {
				t.Error(state)
			}
			if err := b.allow(); !errors.Is(err, ErrOpen) {
				t.Error("a call went through beside the probe:", err)
			}
			if fails {
				return errDown
			}
			return nil
		})
		if !asked || (err != nil) != fails {
			t.Fatal(asked, err)
		}
	}
	if state, _ := b.state(time.Now()); state != Closed || b.allow() != nil {
		t.Error(state)
	}
	for range failuresToOpen {
		b.note(true)
	}
	if _, retry := b.state(time.Now()); time.Until(retry) > first {
		t.Error("the delay did not begin anew:", time.Until(retry))
	}
	for b.opened.Load() < 40 { // as if it had failed for long
		b.opened.Add(1)
	}
	if b.probe(t.Context(), func() error { return errDown }); b.opened.Load() == 0 {
		t.Error("closed")
	}
}

func TestTheDelayStaysWithinHalfAMinute(t *testing.T) {
	t.Parallel()
	b := newBreaker(time.Second)
	b.opened.Store(1000)
	for range failuresToOpen {
		_, _ = b.probe(t.Context(), func() error { return errDown })
	}
	if _, retry := b.state(time.Now()); time.Until(retry) > mostDelay || time.Until(retry) < mostDelay-time.Second {
		t.Error(time.Until(retry))
	}
}

func TestAProbeThatWeEndedIsNobodysFault(t *testing.T) {
	t.Parallel()
	b := newBreaker(time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 * failuresToOpen {
		_, _ = b.probe(ctx, func() error { return ctx.Err() })
	}
	if state, _ := b.state(time.Now()); state != Closed {
		t.Error(state)
	}
}
