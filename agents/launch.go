package agents

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// launch makes the agent of a reserved row and calls its entry.
func (p *Pool) launch(j ledger.Job) {
	began := time.Now()
	spec, saved := j.Spec, json.RawMessage(nil)
	if spec == nil {
		d, err := p.l.Details(p.ctx, j.UID)
		if err != nil {
			p.complain("reading task "+j.TaskID, err)
			return // claimWork tries it again
		}
		spec, saved = &d.Spec, d.SavedState
	}
	req, err := launchRequest(j, spec, saved)
	if err != nil {
		p.fail(j, string(bridge.CodeBadRequest), err.Error())
		return
	}

	slow := time.AfterFunc(slowLaunch, func() { p.complain("noting a slow launch", ignoreOver(p.l.Launching(p.ctx, j.UID, j.Attempt))) })
	defer slow.Stop()
	deadline := began.Add(p.o.Grace)
	for {
		launched, err := p.b.Launch(p.ctx, req)
		if p.ctx.Err() != nil {
			return // whoever leads next finds the launch under its id
		}
		if err == nil {
			slow.Stop()
			p.started(j, spec, launched, began)
			return
		}
		if bridge.CodeOf(err) == bridge.CodeUnavailable || bridge.IsUnknown(err) {
			// Nothing is known to have failed: ask again, the launch id makes it one launch.
			if time.Now().Before(deadline) {
				p.sleep(50 * time.Millisecond)
				p.waitUp(time.Until(deadline))
				continue
			}
			up, why := p.Up()
			if !up && why != nil {
				err = &bridge.Error{Code: bridge.CodeUnavailable, Message: why.Error()}
			}
		}
		p.o.Metrics.launchFailed(string(bridge.CodeOf(err)))
		// Nothing may be left behind, also not what comes up late.
		if e := p.b.Kill(p.ctx, j.LaunchID, killTimeout); e != nil && bridge.CodeOf(e) != bridge.CodeUnavailable {
			p.complain("removing a failed launch", e)
		}
		code, message := explain(err)
		if j.Group != nil && errors.Is(err, bridge.ErrGroupLost) {
			p.groupLost(j.Group.Name, message) // first: nobody is to be put there any more
		}
		p.fail(j, code, message)
		return
	}
}

func (p *Pool) fail(j ledger.Job, code, message string) {
	_ = p.report("launch failed", func() error { return p.l.LaunchFailed(p.ctx, j.UID, j.Attempt, code, message) })
}

// explain gives code and sentence of a bridge error.
func explain(err error) (code, message string) {
	var e *bridge.Error
	if !errors.As(err, &e) {
		return "internal", err.Error()
	}
	return string(e.Code), e.Message
}

func ignoreOver(err error) error {
	if errors.Is(err, ledger.ErrWrongState) || errors.Is(err, ledger.ErrUnknownTask) {
		return nil
	}
	return err
}

func (p *Pool) started(j ledger.Job, spec *ledger.Spec, s bridge.Launched, began time.Time) {
	took := time.Since(began)
	err := p.report("started", func() error {
		return p.l.Started(p.ctx, j.UID, j.Attempt, ledger.Started{ActorName: s.ActorName, RayNS: s.RayNamespace, ActorID: s.ActorID,
			Node: sched.NodeID(s.NodeID), PID: s.PID, Warm: s.Warm, Launch: took, Group: s.GroupNodes})
	})
	if err != nil {
		return // somebody stopped or took it meanwhile, and removes the agent
	}
	p.o.Metrics.launched(took, time.Since(j.Decided), s.Warm)
	if spec.Entry != nil {
		p.runEntry(j.LaunchID, spec.Entry)
	}
}

func (p *Pool) runEntry(launchID string, e *ledger.Entry) {
	err := p.b.Run(p.ctx, launchID, bridge.Entry{Method: e.Method, Args: e.Args, Kwargs: e.Kwargs})
	if err == nil || bridge.CodeOf(err) == bridge.CodeAgentDied || bridge.CodeOf(err) == bridge.CodeAgentNotFound {
		return // its death is an event of its own
	}
	if bridge.CodeOf(err) == bridge.CodeUnavailable || bridge.IsUnknown(err) {
		return // the next reconcile starts it, once
	}
	_, message := explain(err)
	h, ok, e2 := p.l.ByLaunch(p.ctx, launchID)
	if e2 != nil || !ok {
		return
	}
	_ = p.report("entry failed", func() error {
		return p.l.EntryDone(p.ctx, h.UID, h.Attempt, true, "entry "+e.Method+" could not be called: "+message, nil, false)
	})
}

// launchRequest is the wire form of a job.
func launchRequest(j ledger.Job, spec *ledger.Spec, saved json.RawMessage) (bridge.LaunchRequest, error) {
	r := bridge.LaunchRequest{LaunchID: j.LaunchID, AgentName: j.AgentName, TaskID: j.TaskID, Pool: j.Pool, Attempt: j.Attempt,
		ClassPath: spec.ActorClass, Args: spec.Args, Kwargs: spec.Kwargs, Labels: withPool(j.Labels, j.Pool), Resources: wireResources(j.Request),
		NodeID: string(j.Node), RuntimeEnv: spec.RuntimeEnv, SavedState: saved, Timeout: j.Timeout}
	if j.Group != nil {
		g := groupRequest(j.Group)
		r.Group = &g
	}
	if spec.Pickled != nil {
		r.ClassPath, r.Pickled = "", base64.StdEncoding.EncodeToString(spec.Pickled)
	}
	if len(spec.Methods) > 0 {
		if err := json.Unmarshal(spec.Methods, &r.Methods); err != nil {
			return r, fmt.Errorf("methods: %w", err)
		}
	}
	if len(spec.RayOptions) > 0 {
		// name and namespace are the user's choice, used as they are; the rest goes to Ray's options.
		var options map[string]json.RawMessage
		if err := json.Unmarshal(spec.RayOptions, &options); err != nil {
			return r, fmt.Errorf("ray_options must be an object: %w", err)
		}
		for key, into := range map[string]*string{"name": &r.ActorName, "namespace": &r.RayNamespace} {
			if raw, ok := options[key]; ok {
				if err := json.Unmarshal(raw, into); err != nil {
					return r, fmt.Errorf("ray_options.%s must be text", key)
				}
				delete(options, key)
			}
		}
		if len(options) > 0 {
			r.RayOptions, _ = json.Marshal(options)
		}
	}
	return r, r.Validate()
}

// withPool adds the pool's name to what the agent is told of its labels, as users of the seeds expect.
func withPool(labels map[string]string, pool string) map[string]string {
	out := map[string]string{"pool": pool}
	for k, v := range labels {
		out[k] = v
	}
	return out
}
