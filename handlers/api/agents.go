package api

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
	"github.com/schedulemesh/schedulemesh/ledger"
)

// Agent is an agent as answers have it.
type Agent struct {
	UID          UID               `json:"uid"`
	Name         string            `json:"name" example:"agent-1"`
	Namespace    string            `json:"namespace" example:"default"`
	Pool         string            `json:"pool" example:"train"`
	State        string            `json:"state" enum:"queued,reserved,launching,running,stopping,preempting,preempted,completed,failed,cancelled"`
	Code         string            `json:"code" doc:"Why it is in this state, for programs; empty when things just went well."`
	Reason       string            `json:"reason" doc:"The same for people."`
	Resources    Units             `json:"resources"`
	Labels       map[string]string `json:"labels"`
	TaskIDs      []string          `json:"task_ids" nullable:"false" doc:"What runs on it."`
	ActorClass   string            `json:"actor_class"`
	ActorName    string            `json:"actor_name" doc:"Ray's name of the actor; empty until it is launched."`
	RayNamespace string            `json:"ray_namespace"`
	ActorID      string            `json:"actor_id"`
	NodeID       string            `json:"node_id"`
	PID          int               `json:"pid"`
	CreatedAt    Stamp             `json:"created_at"`
	ReadyAt      Stamp             `json:"ready_at"`
	Metrics      json.RawMessage   `json:"metrics" doc:"The figures it reported last; null when it never did."`
	MetricsAt    Stamp             `json:"metrics_at"`
	Links        Links             `json:"links"`
}

func (a *API) agentDoc(g ledger.Agent) Agent {
	out := Agent{UID: UID(g.UID), Name: g.Name, Namespace: g.Namespace, Pool: g.Pool, State: string(g.State), Code: g.Code, Reason: g.Reason,
		Resources: Units(g.Request), Labels: g.Labels, TaskIDs: g.TaskIDs, ActorClass: g.ActorClass, ActorName: g.ActorName, RayNamespace: g.RayNS,
		ActorID: g.ActorID, NodeID: g.Node, PID: g.PID, CreatedAt: Stamp(g.CreatedAt), ReadyAt: Stamp(g.ReadyAt), Links: linksTo(g.Namespace, "agents", g.Name)}
	if out.TaskIDs == nil {
		out.TaskIDs = []string{}
	}
	figures, at := a.metrics.Latest(g.Namespace, g.Name)
	out.Metrics, out.MetricsAt = orNull(figures), Stamp(at)
	return out
}

// NewAgent asks for an agent that waits for work.
type NewAgent struct {
	Name      string  `json:"name" doc:"Unique among live agents of the namespace, at most 200 characters." example:"agent-1"`
	Pool      string  `json:"pool" doc:"The pool that is charged." example:"train"`
	Resources Amounts `json:"resources,omitempty" doc:"When left out: the pool's capacity / target_agents."`
	Launch
}

// AgentPath names an agent.
type AgentPath struct {
	Scope
	Name string `path:"name" doc:"Name of the agent, or the id of a task that runs on it; percent-encoded." example:"agent-1"`
}

func (p *AgentPath) check(f *faults) {
	p.Scope.check(f)
	f.name("path", "name", p.Name)
}

// Health is the state of all agents of a namespace.
type Health struct {
	Success   bool        `json:"success" doc:"No agent is unhealthy, or each that was is being made again."`
	Checked   int         `json:"checked" doc:"Live agents looked at."`
	Healthy   []string    `json:"healthy" nullable:"false" doc:"Names of agents that run and answered their ping."`
	Starting  []string    `json:"starting" nullable:"false" doc:"Names of agents on their way, for less than timeout, or waiting for others to make way."`
	Ending    []string    `json:"ending" nullable:"false" doc:"Names of agents that are being stopped or preempted."`
	Unhealthy []SickAgent `json:"unhealthy" nullable:"false" doc:"Agents that did not answer, have been starting for longer than timeout, or died by themselves within the last day and were not replaced."`
	Removed   []string    `json:"removed" nullable:"false" doc:"Of the unhealthy ones, those that are being removed."`
	Recreated []string    `json:"recreated" nullable:"false" doc:"Of the unhealthy ones, those that are being made again."`
}

// SickAgent is an agent that does not do what it should.
type SickAgent struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Code   string `json:"code" doc:"unhealthy; agent_died or node_lost for one that died by itself; for one that could not be made again, why." example:"unhealthy"`
	Reason string `json:"reason"`
}

func healthDoc(h ledger.Health) Health {
	names := func(list []string) []string { return append([]string{}, list...) }
	return Health{Success: len(h.Unhealthy) == len(h.Recreated), Checked: h.Checked, Healthy: names(h.Healthy), Starting: names(h.Starting), Ending: names(h.Ending),
		Unhealthy: mapped(h.Unhealthy, func(s ledger.SickAgent) SickAgent { return SickAgent(s) }), Removed: names(h.Removed), Recreated: names(h.Recreated)}
}

func (a *API) registerAgents() {
	type created struct {
		Location string `header:"Location" doc:"Address of the agent."`
		Body     Agent
	}
	register(a, operation{id: "create-agent", method: "POST", path: "/agents", tag: "Agents", status: 201,
		summary: "Create an agent", about: "Makes an agent that holds quota and waits for work. It takes room, and never takes it from others. With `wait` the answer comes once it is ready.",
		codes:   []string{"unknown_pool", "agent_exists", "insufficient_resources", "request_too_large", "no_node_large_enough", "bridge_unavailable"},
		request: `{"name": "agent-1", "pool": "train", "resources": {"cpu": 2, "memory": 4096}, "actor_class": "my_project.agents:Worker"}`,
	}, func(ctx context.Context, in *struct {
		Scope
		WaitParam
		Body NewAgent
	}) (*created, error) {
		wait, err := in.duration()
		if err != nil {
			return nil, err
		}
		var f faults
		b := in.Body
		f.name("body", "name", b.Name)
		f.name("body", "pool", b.Pool)
		s := ledger.AgentSubmission{Name: b.Name, Pool: b.Pool, Labels: b.Labels, Actor: actor(ctx), Request: f.resources("resources", b.Resources),
			Spec: b.Launch.spec(&f), LaunchTimeout: f.seconds("launch_timeout", orDefault(b.LaunchTimeout, 0))}
		if err := f.err(); err != nil {
			return nil, err
		}
		g, err := a.ledger.CreateAgent(ctx, in.Namespace, s)
		if err == nil && wait > 0 && g.State != ledger.Running {
			ctx, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			g, err = a.ledger.WaitAgent(ctx, in.Namespace, g.UID)
		}
		if err != nil {
			return nil, err
		}
		d := a.agentDoc(g)
		return &created{d.Links.Self, d}, nil
	})

	register(a, operation{id: "list-agents", method: "GET", path: "/agents", tag: "Agents",
		summary: "List agents", about: "Live agents with what runs on them.",
	}, func(ctx context.Context, in *struct {
		Scope
		Paging
	}) (*Doc[List[Agent]], error) {
		var f faults
		if in.checkPaging(&f); f.err() != nil {
			return nil, f.err()
		}
		page, err := a.ledger.Agents(ctx, in.Namespace, in.Limit, in.Cursor)
		return doc(list(mapped(page.Items, a.agentDoc), page.Next), err)
	})

	register(a, operation{id: "get-agent", method: "GET", path: "/agents/{name}", tag: "Agents",
		summary: "Read an agent", about: "By its name, or by the id of a task that runs on it.", codes: []string{"unknown_agent"},
	}, func(ctx context.Context, in *AgentPath) (*Doc[Agent], error) {
		g, err := a.ledger.Agent(ctx, in.Namespace, in.Name)
		if err != nil {
			return nil, err
		}
		return &Doc[Agent]{Body: a.agentDoc(g)}, nil
	})

	register(a, operation{id: "delete-agent", method: "DELETE", path: "/agents/{name}", tag: "Agents", status: 204,
		summary: "Delete an agent", about: "Stops the agent and gives its quota back once it was seen gone. One that is gone already is fine.",
		codes: []string{"wrong_state", "bridge_unavailable"},
	}, func(ctx context.Context, in *struct {
		AgentPath
		Force     bool `query:"force" doc:"Do not ask what runs on it to stop first."`
		DestroyPG bool `query:"destroy_pg" doc:"Destroy the placement group it sat in, rather than keep it for the next agent."`
	}) (*Nothing, error) {
		return nil, a.ledger.DeleteAgent(ctx, in.Namespace, in.Name, in.Force, in.DestroyPG, actor(ctx))
	})

	register(a, operation{id: "report-agent-metrics", method: "POST", path: "/agents/{name}/metrics", tag: "Agents", status: 204,
		summary: "Report figures of an agent", about: "Keeps the figures as the agent's latest, in place of its earlier ones. The agent need not be one of ours. At most 64 KiB.",
		request: `{"step": 1200, "loss": 0.37, "tokens_per_second": 5300}`,
	}, func(ctx context.Context, in *struct {
		AgentPath
		Body map[string]json.RawMessage
	}) (*Nothing, error) {
		figures, err := json.Marshal(in.Body)
		if err != nil {
			return nil, err
		}
		if len(figures) > maxFigures {
			return nil, problem.New("too_large", fmt.Sprintf("the figures are %d bytes; at most %d are kept", len(figures), maxFigures))
		}
		return nil, a.metrics.Report(ctx, in.Namespace, in.Name, figures)
	})

	register(a, operation{id: "ensure-agent-health", method: "POST", path: "/agents/ensure-health", tag: "Agents",
		summary: "Check the health of all agents", about: "Pings every agent that runs. With recreate, those that do not answer, and those that take too long to start, are removed and made again: a submission as after a failed attempt, whatever its on_failure says, with the state it saved last; an agent that waits for work under its name. So are those that died by themselves within the last day and were not replaced. While Ray cannot be reached nothing is touched. It answers before agents are gone, or there again.",
		codes: []string{"bridge_unavailable"}, request: `{"timeout": 120, "recreate": true}`,
	}, func(ctx context.Context, in *struct {
		Scope
		Body *struct {
			Timeout  *float64 `json:"timeout,omitempty" doc:"Seconds after which an agent that is still starting counts as unhealthy; 120 when left out. One that runs has as long to answer, at least 1 and at most 10 seconds."`
			Recreate bool     `json:"recreate,omitempty" doc:"Have unhealthy agents removed and made again; else they are only told of."`
		}
	}) (*Doc[Health], error) {
		timeout, recreate := 120*time.Second, false
		if in.Body != nil {
			recreate = in.Body.Recreate
			if in.Body.Timeout != nil {
				var f faults
				if timeout = f.seconds("timeout", *in.Body.Timeout); f.err() != nil {
					return nil, f.err()
				}
			}
		}
		h, err := a.agents.EnsureHealth(ctx, in.Namespace, timeout, recreate, actor(ctx))
		return doc(healthDoc(h), err)
	})
}
