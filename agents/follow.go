package agents

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/ledger"
)

// follow keeps the connection to the sidecar: claim the cluster, read its nodes,
// compare what is there with what should be, then hear what happens.
func (p *Pool) follow() {
	var last int64
	wait := 100 * time.Millisecond
	for p.ctx.Err() == nil {
		err := p.connect()
		if err == nil {
			wait = 100 * time.Millisecond
			last, err = p.listen(last)
		}
		if p.ctx.Err() != nil {
			return
		}
		if was, _ := p.Up(); was {
			p.log.Warn("the connection to the sidecar broke", "cluster", p.o.Cluster, "error", err)
		}
		p.setDown(err)
		p.o.Metrics.bridgeUp(false)
		if !p.sleep(wait) {
			return
		}
		wait = min(2*wait, 2*time.Second)
	}
}

func (p *Pool) connect() error {
	ctx, cancel := context.WithTimeout(p.ctx, 10*time.Second)
	defer cancel()
	hello, err := p.b.Hello(ctx)
	if err != nil {
		return err
	}
	deployment, err := p.l.Deployment(ctx)
	if err != nil {
		return err
	}
	if err := p.b.Claim(ctx, bridge.Claim{Deployment: deployment, URL: p.o.URL}); err != nil {
		var e *bridge.Error
		if errors.As(err, &e) && e.Holder != nil {
			err = fmt.Errorf("this Ray cluster belongs to another ScheduleMesh deployment (%s at %s): stop that one, or use another cluster", e.Holder.Deployment, e.Holder.URL)
			p.log.Error(err.Error())
		}
		return err
	}
	if err := p.readNodes(); err != nil {
		return err
	}
	p.setUp(hello)
	p.o.Metrics.bridgeUp(true)
	p.log.Info("connected to Ray", "cluster", p.o.Cluster, "ray", hello.RayVersion, "python", hello.PythonVersion, "address", hello.RayAddress)
	p.complain("reconciling", p.reconcile())
	return nil
}

// listen hears events after `last` until the stream breaks.
func (p *Pool) listen(last int64) (int64, error) {
	for e, err := range p.b.Events(p.ctx, last) {
		if err != nil {
			return last, err
		}
		p.hear(e)
		last = e.Seq
	}
	return last, errors.New("the event stream ended")
}

func (p *Pool) hear(e bridge.Event) {
	switch e.Type {
	case bridge.EventResync:
		p.complain("reconciling", p.reconcile())
	case bridge.EventNodesChanged:
		p.complain("reading nodes", p.readNodes())
	case bridge.EventGroupLost:
		p.groupLost(e.Name, e.Reason)
	case bridge.EventAgentMetrics:
		h, ok, err := p.l.ByLaunch(p.ctx, e.LaunchID)
		if err == nil && ok && p.o.Figures != nil {
			p.complain("keeping figures of "+h.AgentName, p.o.Figures(p.ctx, h.Namespace, h.AgentName, e.Metrics))
		}
	case bridge.EventAgentDied, bridge.EventEntryCompleted, bridge.EventEntryFailed:
		h, ok, err := p.l.ByLaunch(p.ctx, e.LaunchID)
		if err != nil || !ok {
			return
		}
		if e.Type == bridge.EventAgentDied {
			p.died(h, orElse(e.Reason, "its process ended"))
			return
		}
		p.outcome(h, e.Outcome, e.Type == bridge.EventEntryFailed)
	}
}

// died reports that an agent is gone which nobody stopped; when its node is gone too,
// that is the reason, and nothing is to be placed there any more.
func (p *Pool) died(h ledger.Holding, reason string) {
	code := "agent_died"
	nodes, err := p.b.Nodes(p.ctx)
	if err == nil && h.Node != "" && !slices.ContainsFunc(nodes, func(n bridge.Node) bool { return n.Alive && n.ID == h.Node }) {
		code, reason = "node_lost", "its node "+h.Node+" is gone: "+reason
		p.complain("reading nodes", p.readNodes())
	}
	_ = p.report("agent died", func() error { return p.l.AgentDied(p.ctx, h.UID, h.Attempt, code, reason) })
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func (p *Pool) outcome(h ledger.Holding, o *bridge.Outcome, failed bool) {
	if o == nil {
		o = &bridge.Outcome{}
	}
	_ = p.report("entry done", func() error { return p.l.EntryDone(p.ctx, h.UID, h.Attempt, failed, o.Error, o.Result, o.Cancelled) })
}

// reconcile compares Ray's lists of our placement groups and agents with the ledger's, both ways.
func (p *Pool) reconcile() error {
	if err := p.reconcileGroups(); err != nil {
		return err
	}
	// What ran before the list was made must be on it; what is on it must be live
	// after it was made. Launches in between are neither.
	before, err := p.l.Holdings(p.ctx, p.o.Cluster)
	if err != nil {
		return err
	}
	list, err := p.b.List(p.ctx)
	if err != nil {
		return err
	}
	after, err := p.l.Holdings(p.ctx, p.o.Cluster)
	if err != nil {
		return err
	}
	there := make(map[string]bridge.AgentStatus, len(list))
	for _, a := range list {
		there[a.LaunchID] = a
	}
	believed := make(map[string]ledger.Holding, len(after))
	for _, h := range after {
		believed[h.LaunchID] = h
	}
	for _, h := range before {
		if h.State != ledger.Running {
			continue // a job is responsible for it
		}
		a, ok := there[h.LaunchID]
		switch {
		case !ok || a.State == bridge.StateGone:
			p.died(h, orElse(a.Reason, "it is not in the Ray cluster any more"))
		case !h.HasEntry:
		case a.Entry == bridge.EntryCompleted || a.Entry == bridge.EntryFailed:
			p.outcome(h, a.Outcome, a.Entry == bridge.EntryFailed)
		case a.Entry == bridge.EntryNone && a.State == bridge.StateReady:
			d, err := p.l.Details(p.ctx, h.UID)
			if err != nil {
				return err
			}
			if d.Spec.Entry != nil {
				p.runEntry(h.LaunchID, d.Spec.Entry)
			}
		}
	}
	for _, a := range list {
		if _, ok := believed[a.LaunchID]; !ok && a.State != bridge.StateGone {
			p.log.Warn("removing an agent the ledger does not know", "launch", a.LaunchID)
			p.complain("removing a stray agent", p.b.Kill(p.ctx, a.LaunchID, killTimeout))
		}
	}
	return nil
}

// Logs reads what a task's agent printed, for as long as Ray keeps it. A negative
// offset means the last -offset bytes. A task that never ran has an empty log.
func (p *Pool) Logs(ctx context.Context, ns, taskID, stream string, offset, limit int64) (text string, next int64, ended bool, err error) {
	launchID, live, err := p.l.LaunchOf(ctx, ns, taskID)
	if err != nil || launchID == "" {
		return "", 0, !live, err
	}
	s := bridge.Stdout
	if stream == "stderr" {
		s = bridge.Stderr
	}
	if offset < 0 {
		size, err := p.b.Logs(ctx, launchID, s, 0, 1)
		if err != nil {
			return "", 0, !live, p.logError(err)
		}
		offset = max(0, size.Size+offset)
	}
	chunk, err := p.b.Logs(ctx, launchID, s, offset, int(limit))
	if err != nil {
		return "", offset, !live, p.logError(err)
	}
	return chunk.Text, chunk.Next, chunk.EOF && chunk.Ended, nil
}

func (p *Pool) logError(err error) error {
	if errors.Is(err, bridge.ErrAgentNotFound) {
		return nil // not up yet, or so long ago that Ray forgot
	}
	code, message := explain(err)
	return &ledger.Error{Code: code, Message: "the log cannot be read: " + message}
}
