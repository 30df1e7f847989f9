package view

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/web"
)

// Agents lists live agents by name.
func (v *View) Agents(ctx context.Context, ns string, f web.AgentFilter) (web.AgentList, error) {
	page, total, err := v.l.FindAgents(ctx, ns, ledger.AgentFilter{Pool: f.Pool, Text: f.Text, Limit: f.Limit, Cursor: f.Cursor})
	if err != nil {
		return web.AgentList{}, v.refused(ctx, err)
	}
	out := web.AgentList{Next: page.Next, Total: total}
	for _, a := range page.Items {
		out.Items = append(out.Items, web.Agent{Name: a.Name, Pool: a.Pool, State: web.State(a.State), Tasks: a.TaskIDs, Class: a.ActorClass, Node: nodeWords(a.Node),
			PID: a.PID, Request: resources(a.Request), Labels: web.LabelsOf(a.Labels), Created: a.CreatedAt, Ready: a.ReadyAt, Reason: a.Reason})
	}
	pools, err := v.l.Pools(ctx, ns)
	out.Pools = poolNames(pools)
	return out, v.refused(ctx, err)
}

// Events is the feed, newest first.
func (v *View) Events(ctx context.Context, ns string, f web.EventFilter) (web.EventList, error) {
	filter := ledger.EventFilter{TaskID: f.Task, Pool: f.Pool, Limit: f.Limit, Cursor: f.Cursor}
	if f.Type != "" {
		filter.Types = []string{f.Type, "phase:" + f.Type} // which are shown without that word
	}
	page, err := v.l.FindEvents(ctx, ns, filter)
	if err != nil {
		return web.EventList{}, v.refused(ctx, err)
	}
	out := web.EventList{Next: page.Next}
	for _, e := range page.Items {
		out.Items = append(out.Items, event(e))
	}
	return out, nil
}

// event is one line of the feed. The kind of event stands beside it, so its text does
// not say that again.
func event(e ledger.TimedEvent) web.Event {
	out := web.Event{ID: number(e.ID), At: e.At, Type: strings.TrimPrefix(e.Type, "phase:"), Task: e.TaskID, Pool: e.Pool, Actor: e.Actor, Took: e.Took}
	text := e.Message
	switch e.Type {
	case string(ledger.Queued):
		text = either(afterColon(text), text)
	case "registered":
		text = afterWord(text)
	case string(ledger.Launching), string(ledger.Reserved), string(ledger.Running):
		text = afterWord(text)
		if e.Type == string(ledger.Running) && e.Code != "" {
			text = e.Message // goes on after a preemption was put back
		}
		var r running
		if json.Unmarshal(e.Detail, &r) == nil && r.Warm {
			text += ", on a warm worker"
		}
		if e.Type == string(ledger.Running) && e.Attempt > 1 {
			text += ", attempt " + web.Number(e.Attempt)
		}
		if e.Type == string(ledger.Running) && e.Pool != "" && e.Code == "" {
			out.Text = web.Line{web.Text("in "), web.PoolRef(e.Pool), web.Text(", " + text)}
			return out
		}
	case "phase:cancelling", "phase:saving", "phase:killing":
		if text = ""; e.Code != "" {
			text = afterColon(strings.Replace(e.Message, ";", ":", 1))
		}
	case string(ledger.Preempting):
		if e.Code == "manual" {
			text = "by hand"
		}
		if x, ok := explained(e.Detail); ok {
			if by, _, found := strings.Cut(strings.TrimPrefix(text, "Makes way for "), ": "); found {
				out.Text = append(web.Line{web.Text("for "), web.TaskRef(by), web.Text(" · ")}, x.line()...)
				out.Policy = e.PolicyVersion
				return out
			}
		}
	case string(ledger.Preempted), string(ledger.Completed), string(ledger.Failed), string(ledger.Cancelled):
		text = afterColon(text)
	case "policy.changed":
		out.Policy = e.PolicyVersion
		_, text, _ = strings.Cut(text, "; ")
		text = either(text, e.Message)
	case "pool.created", "pool.changed", "pool.deleted":
		text = strings.TrimPrefix(text, "Pool "+e.Pool+" ")
	}
	if out.Text == nil {
		out.Text = web.Say(plain(text))
	}
	return out
}

// Find answers the jump box.
func (v *View) Find(ctx context.Context, ns, text string, limit int) ([]web.Hit, error) {
	found, err := v.l.Find(ctx, ns, text, limit)
	if err != nil {
		return nil, v.refused(ctx, err)
	}
	out := make([]web.Hit, 0, len(found)+1)
	for _, f := range found {
		h := web.Hit{Kind: f.Kind, Name: f.Name, Note: string(f.State) + " in " + f.Place}
		switch f.Kind {
		case "pool":
			h.Note, h.Href = "on "+f.Place, "/pools/"+web.Escape(f.Name)
		case "agent":
			h.Href = "/agents"
		default:
			h.Href = "/tasks/" + web.Escape(f.Name)
		}
		out = append(out, h)
	}
	if out, err = v.findJobs(ctx, text, limit, out); err != nil {
		return nil, err
	}
	if len(out) < limit && strings.Contains("policy", strings.ToLower(text)) {
		out = append(out, web.Hit{Kind: "policy", Name: "policy", Note: "who may preempt whom", Href: "/policy"})
	}
	return out, nil
}
