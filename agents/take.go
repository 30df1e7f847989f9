package agents

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// stop removes the agent of a stopping row and says so once it was seen gone.
func (p *Pool) stop(j ledger.Job) {
	if !p.kill(j.LaunchID) {
		return
	}
	_ = p.report("gone", func() error { return p.l.Gone(p.ctx, j.UID, j.Attempt) })
}

// kill asks until the agent was seen gone; only the end of the server stops it.
func (p *Pool) kill(launchID string) bool {
	return p.insist("an agent", launchID, func() error { return p.b.Kill(p.ctx, launchID, killTimeout) })
}

// insist repeats the removal of something until it was seen gone.
func (p *Pool) insist(what, name string, remove func() error) bool {
	wait := 50 * time.Millisecond
	for {
		err := remove()
		if err == nil {
			return true
		}
		if p.ctx.Err() != nil {
			return false
		}
		if bridge.CodeOf(err) != bridge.CodeUnavailable {
			p.log.Warn(what+" was not seen gone; trying again", "name", name, "error", err)
		}
		if !p.sleep(wait) {
			return false
		}
		p.waitUp(5 * time.Second)
		wait = min(2*wait, 5*time.Second)
	}
}

// take carries a decided preemption through its phases. Each is written down before
// it is done, so that whoever goes on after a crash knows where to.
func (p *Pool) take(j ledger.Job) {
	began := time.Now()
	phase := j.Phase
	if phase == "decided" {
		if !j.KeepAgent && !p.reachable() {
			up, why := p.Up()
			reason := "the sidecar is down"
			if !up && why != nil {
				reason = why.Error()
			}
			undone, err := p.l.Undo(p.ctx, j.UID, string(bridge.CodeUnavailable), "Ray cannot be reached ("+reason+"); nothing was preempted")
			if err == nil && undone {
				return
			}
		}
		if p.phase(j, ledger.TakeReport{Phase: "cancelling"}) != nil {
			return
		}
		phase = "cancelling"
	}

	rep := ledger.TakeReport{Phase: "saving", Cancel: map[sched.ID]ledger.CancelOutcome{}}
	if phase == "cancelling" {
		p.each(j, func(t ledger.JobTask, mu *sync.Mutex) {
			out := p.cancelTask(j, t)
			mu.Lock()
			rep.Cancel[t.UID] = out
			mu.Unlock()
		})
		if p.ctx.Err() != nil || p.phase(j, rep) != nil {
			return
		}
		phase = "saving"
	}

	if phase == "saving" {
		rep = ledger.TakeReport{Phase: "killing", Saved: map[sched.ID]ledger.SaveOutcome{}}
		p.each(j, func(t ledger.JobTask, mu *sync.Mutex) {
			out, ok := p.save(j, t)
			mu.Lock()
			defer mu.Unlock()
			if ok {
				rep.Saved[t.UID] = out
			}
		})
		if p.ctx.Err() != nil {
			return
		}
		if j.KeepAgent {
			_ = p.report("preempted by hand", func() error { return p.l.HandDone(p.ctx, j.UID, j.Attempt, rep.Saved[j.UID]) })
			p.o.Metrics.took(time.Since(began))
			return
		}
		if p.phase(j, rep) != nil {
			return
		}
	}
	if p.kill(j.LaunchID) {
		_ = p.report("victim gone", func() error { return p.l.Gone(p.ctx, j.UID, j.Attempt) })
		p.o.Metrics.took(time.Since(began))
	}
}

// reachable reports whether the sidecar answers, now or within the grace that a
// launch has: one that is just being started again is no reason to undo a decision.
func (p *Pool) reachable() bool {
	if !p.waitUp(p.o.Grace) {
		return false
	}
	ctx, cancel := context.WithTimeout(p.ctx, 2*time.Second)
	defer cancel()
	_, err := p.b.Hello(ctx)
	return err == nil
}

func (p *Pool) phase(j ledger.Job, rep ledger.TakeReport) error {
	return p.report("phase "+rep.Phase, func() error { return p.l.TakePhase(p.ctx, j.UID, j.Attempt, rep) })
}

func (p *Pool) each(j ledger.Job, f func(ledger.JobTask, *sync.Mutex)) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, t := range j.Tasks {
		wg.Go(func() { f(t, &mu) })
	}
	wg.Wait()
}

// cancelTask asks one task to stop. Whatever comes of it, the handover goes on.
func (p *Pool) cancelTask(j ledger.Job, t ledger.JobTask) ledger.CancelOutcome {
	res, err := p.again(func() (any, error) { return p.b.Cancel(p.ctx, j.LaunchID, t.TaskID, j.CancelTimeout) })
	if err != nil {
		if absent(err) {
			return ledger.CancelOutcome{Success: true} // it was not up yet: there is nothing to cancel
		}
		_, message := explain(err)
		return ledger.CancelOutcome{Error: message}
	}
	c := res.(bridge.CancelResult)
	return ledger.CancelOutcome{Success: c.Success, Error: c.Error}
}

func absent(err error) bool { return errors.Is(err, bridge.ErrAgentNotFound) }

// again repeats a call while the sidecar is away: from the cancel on a handover only goes forward.
func (p *Pool) again(f func() (any, error)) (any, error) {
	for {
		out, err := f()
		if err == nil || p.ctx.Err() != nil || (bridge.CodeOf(err) != bridge.CodeUnavailable && !bridge.IsUnknown(err)) {
			return out, err
		}
		if !p.sleep(50 * time.Millisecond) {
			return out, err
		}
		p.waitUp(5 * time.Second)
	}
}
