package agents

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/ledger"
)

// How agents are asked for a sign of life.
const (
	pingsAtOnce = 32
	leastPing   = time.Second
	mostPing    = 10 * time.Second
)

// sick is an agent that does not do what it should, and what is to be done about it.
type sick struct {
	ledger.Holding
	reason string
}

// EnsureHealth asks the agents of a namespace for a sign of life. One that gives none, or
// has been starting for longer than the timeout, is unhealthy; recreate has it removed,
// and made again when it was seen gone. So are those that died and nobody replaced. That
// the sidecar is away is no reason to remove anything: then nothing is.
func (s *Seat) EnsureHealth(ctx context.Context, ns string, timeout time.Duration, recreate bool, actor string) (ledger.Health, error) {
	var out ledger.Health
	p, _ := s.current()
	if p == nil {
		return out, s.elsewhere("agents cannot be asked how they are")
	}
	if up, why := p.Up(); !up {
		return out, unavailable("agents cannot be asked how they are: %s", orElse(sentence(why), "the sidecar does not answer"))
	}
	all, err := p.l.HoldingsIn(ctx, p.o.Cluster, ns)
	if err != nil {
		return out, err
	}
	out.Checked = len(all)
	var running []ledger.Holding
	var found []sick
	for _, h := range all {
		age := time.Since(h.Since)
		switch {
		case h.State == ledger.Running:
			running = append(running, h)
		case h.State != ledger.Reserved && h.State != ledger.Launching:
			out.Ending = append(out.Ending, h.AgentName)
		case h.Waits || age <= timeout:
			out.Starting = append(out.Starting, h.AgentName)
		default:
			found = append(found, sick{h, fmt.Sprintf("it has been starting for %s", age.Round(100*time.Millisecond))})
		}
	}
	silent, err := p.pingAll(ctx, running, min(max(timeout, leastPing), mostPing))
	if err != nil {
		return out, err
	}
	for i, h := range running {
		switch {
		case silent[i] == "":
			out.Healthy = append(out.Healthy, h.AgentName)
		case p.isSo(ctx, h):
			found = append(found, sick{h, silent[i]})
		default: // it ended while it was asked
			out.Ending = append(out.Ending, h.AgentName)
		}
	}
	for _, one := range found {
		out.Unhealthy = append(out.Unhealthy, ledger.SickAgent{Name: one.AgentName, State: string(one.State), Code: "unhealthy", Reason: one.reason})
	}
	if recreate {
		for i, one := range found {
			if err := p.recreate(ctx, one, actor, &out); err != nil {
				out.Unhealthy[i].Code, out.Unhealthy[i].Reason = ledger.CodeOf(err), one.reason+"; it was left as it is: "+err.Error()
			}
		}
	}
	gone, err := p.l.DeadAgents(ctx, ns)
	for _, d := range gone {
		if recreate {
			if err := p.l.Recreate(ctx, ns, d, actor); err != nil {
				d.Code, d.Reason = ledger.CodeOf(err), d.Reason+"; it could not be made again: "+err.Error()
			} else {
				out.Recreated = append(out.Recreated, d.Name)
			}
		}
		out.Unhealthy = append(out.Unhealthy, d.SickAgent)
	}
	return out, err
}

// recreate has one that lives removed, and made again when there is something to make it of.
func (p *Pool) recreate(ctx context.Context, one sick, actor string, out *ledger.Health) error {
	d, err := p.l.Details(ctx, one.UID)
	if err != nil {
		return err
	}
	again := d.Spec.ActorClass != "" || d.Spec.Pickled != nil // an agent that a task left behind has no class of its own
	if err := p.l.Unhealthy(ctx, one.UID, one.Attempt, one.reason, actor, again); err != nil {
		return err
	}
	out.Removed = append(out.Removed, one.AgentName)
	if again {
		out.Recreated = append(out.Recreated, one.AgentName)
	}
	return nil
}

// isSo reports whether an agent is still what it was when it was asked.
func (p *Pool) isSo(ctx context.Context, h ledger.Holding) bool {
	now, ok, err := p.l.ByLaunch(ctx, h.LaunchID)
	return err == nil && ok && now.State == h.State && now.Attempt == h.Attempt
}

// pingAll says of each agent why it gave no sign of life, "" when it did. It fails when the
// sidecar is away: then nothing is known of any.
func (p *Pool) pingAll(ctx context.Context, agents []ledger.Holding, timeout time.Duration) ([]string, error) {
	silent := make([]string, len(agents))
	var first sync.Once
	var failed error
	turns := make(chan struct{}, pingsAtOnce)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for i, h := range agents {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			err := p.b.Ping(ctx, h.LaunchID, timeout)
			switch {
			case err == nil:
			case errors.Is(err, bridge.ErrTimeout):
				silent[i] = fmt.Sprintf("it did not answer its ping within %s", timeout)
			case errors.Is(err, bridge.ErrAgentDied), errors.Is(err, bridge.ErrAgentNotFound):
				_, silent[i] = explain(err)
			default:
				first.Do(func() { failed = err })
				cancel() // the others would wait for nothing
			}
		})
	}
	wg.Wait()
	if failed != nil {
		_, message := explain(failed)
		return nil, unavailable("agents cannot be asked how they are: %s", message)
	}
	return silent, nil
}

func sentence(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
