package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/web"
)

func (w *World) Frame(context.Context, string) (web.Frame, error) {
	defer w.lock()()
	f := web.Frame{Namespaces: []string{"default", "research", "ci"}, Pools: len(w.pools), Agents: len(w.agents)}
	for _, t := range w.tasks {
		if t.State.Live() {
			f.LiveTasks++
		}
	}
	f.Clusters = len(w.clusters)
	for _, j := range w.jobs {
		if j.Live() {
			f.LiveJobs++
		}
	}
	return f, w.Fail
}

func (w *World) poolNames() []string {
	var out []string
	for _, p := range w.pools {
		out = append(out, p.Name)
	}
	return out
}

func (w *World) filled(p web.PoolPage) web.PoolPage {
	for _, t := range w.tasks {
		if t.Pool != p.Name || !t.State.Live() {
			continue
		}
		if t.State == web.Queued {
			p.Queued++
			p.InLine++
			p.Queue = append(p.Queue, t.TaskRow)
			continue
		}
		p.Running++
		p.Agents++
		if p.Holding++; len(p.Tasks) < 10 {
			p.Tasks = append(p.Tasks, t.TaskRow)
		}
	}
	return p
}

func (w *World) Overview(context.Context, string) (web.Overview, error) {
	defer w.lock()()
	o := web.Overview{Fleet: w.clusterList(web.ClusterFilter{Limit: 4})}
	for _, t := range w.tasks {
		switch t.State {
		case web.Running:
			o.Running++
		case web.Launching, web.Reserved:
			o.Launching++
		case web.Queued:
			o.Queued++
		case web.Preempting:
			o.Preempting++
		}
	}
	for i, p := range w.pools {
		if i < 3 {
			o.Pools = append(o.Pools, w.filled(p).Pool)
		}
	}
	if len(w.pools) == 0 {
		return o, w.Fail
	}
	o.Notes = []web.Note{{Kind: "warn", Title: web.Line{web.Text("Queue of "), web.Code("train-a100"), web.Text(" cannot move.")}, Text: web.Line{
		web.Text("The head, "), web.TaskRef("llama-70b-pretrain"), web.Text(" (8 GPU), waits for 3 more GPU; nothing may be preempted: 5 tasks are in a protected pool. ETA 14:20 when "), web.TaskRef("vision-03"), web.Text(" ends."),
	}}}
	o.Before, o.P50, o.P99, o.Phases, o.GPULost, o.GPUUsed, o.Recent = 83, 84*time.Millisecond, 212*time.Millisecond, phases[1:], 3.1, 812, w.events[:5]
	for i := range 24 {
		h := web.Hour{Start: w.now.Truncate(time.Hour).Add(time.Duration(i-23) * time.Hour), PreemptionCount: web.PreemptionCount{Label: (i*7 + 3) % 6, SamePool: i * 5 % 3, CrossPool: i % 5 / 3}}
		o.Hours = append(o.Hours, h)
		o.Preemptions.Label, o.Preemptions.SamePool, o.Preemptions.CrossPool = o.Preemptions.Label+h.Label, o.Preemptions.SamePool+h.SamePool, o.Preemptions.CrossPool+h.CrossPool
	}
	return o, w.Fail
}

func (w *World) Pools(context.Context, string) ([]web.Pool, error) {
	defer w.lock()()
	var out []web.Pool
	for _, p := range w.pools {
		out = append(out, w.filled(p).Pool)
	}
	return out, w.Fail
}

func (w *World) Pool(_ context.Context, _ string, name string, behind int) (web.PoolPage, error) {
	defer w.lock()()
	for _, p := range w.pools {
		if p.Name == name {
			p = w.filled(p)
			p.Behind = min(behind, len(p.Queue))
			p.Queue = p.Queue[p.Behind:min(len(p.Queue), p.Behind+10)]
			return p, w.Fail
		}
	}
	return web.PoolPage{}, missing("pool", name)
}

func (w *World) PoolClusters(context.Context) ([]string, error) {
	return []string{"local", "gpu-east"}, w.Fail
}

func (w *World) Tasks(_ context.Context, _ string, f web.TaskFilter) (web.TaskList, error) {
	defer w.lock()()
	l := web.TaskList{All: len(w.tasks), Pools: w.poolNames()}
	for _, t := range w.tasks {
		if match(t.TaskRow, f) {
			l.Items = append(l.Items, t.TaskRow)
		}
	}
	l.Total = len(l.Items)
	l.Items, l.Next = part(l.Items, f.Cursor, f.Limit)
	return l, w.Fail
}

func (w *World) find(id string) *web.Task {
	for i := range w.tasks {
		if w.tasks[i].ID == id || w.tasks[i].UID == id {
			return &w.tasks[i]
		}
	}
	return nil
}

func (w *World) Task(_ context.Context, _ string, id string) (web.Task, error) {
	defer w.lock()()
	if t := w.find(id); t != nil {
		return *t, w.Fail
	}
	return web.Task{}, missing("task", id)
}

func (w *World) TaskLog(_ context.Context, _, id, stream string, offset int64, limit int) (web.LogChunk, error) {
	defer w.lock()()
	t := w.find(id)
	if t == nil {
		return web.LogChunk{}, missing("task", id)
	}
	var b strings.Builder
	if stream == "stdout" && !t.Started.IsZero() {
		for i := range 400 {
			fmt.Fprintf(&b, "2026-11-21 13:%02d:%02d step %4d loss %.4f lr 2.9e-05 tokens/s 41,233\n", 31+i/60, i%60, 1440+i, 2.31-float64(i)/900)
		}
	}
	text := b.String()
	if offset < 0 {
		offset = int64(max(0, len(text)-limit))
	}
	offset = min(offset, int64(len(text)))
	end := min(int64(len(text)), offset+int64(limit))
	return web.LogChunk{Text: text[offset:end], Offset: offset, Next: end, Size: int64(len(text)), EOF: end == int64(len(text)), Ended: t.State != web.Running}, w.Fail
}

func (w *World) TaskState(_ context.Context, _, id string) (web.SavedState, error) {
	defer w.lock()()
	t := w.find(id)
	if t == nil {
		return web.SavedState{}, missing("task", id)
	}
	if t.StateSize == 0 {
		return web.SavedState{}, w.Fail
	}
	return web.SavedState{JSON: "{\n  \"accuracy\": 0.913,\n  \"checkpoint\": \"s3://ckpt/llama-70b/step-1840\",\n  \"pool_name\": \"train-a100\",\n  \"step\": 1840,\n  \"task_id\": \"llama-70b-pretrain\"\n}", At: w.now.Add(-12 * time.Second), Attempt: 1}, w.Fail
}

func (w *World) Classes(context.Context, string) ([]string, error) {
	return []string{"trainers.llama:Trainer", "evals.mmlu:Shard"}, w.Fail
}

func (w *World) Policy(context.Context, string) (web.Policy, error) {
	defer w.lock()()
	p := w.policies[len(w.policies)-1]
	p.Pools = w.poolNames()
	return p, w.Fail
}

func (w *World) PolicyVersion(_ context.Context, _ string, n int) (web.Policy, error) {
	defer w.lock()()
	for _, p := range w.policies {
		if p.Version == n {
			return p, w.Fail
		}
	}
	return web.Policy{}, &pages.Refusal{ErrorCode: "unknown_policy_version", Message: fmt.Sprintf("There is no policy version %d.", n)}
}

func (w *World) PolicyVersions(_ context.Context, _, cursor string, limit int) (web.PolicyVersions, error) {
	defer w.lock()()
	var all []web.Policy
	for i := len(w.policies) - 1; i >= 0; i-- {
		p := w.policies[i]
		if i > 0 && i%2 == 0 {
			p.Changes = []web.FieldChange{{Field: "cross_pool_priority_threshold", Old: "5.0", New: "4.5"}, {Field: "label_preemption_rules.training_stage", Old: "none", New: "rlhf > pretraining, sft"}}
		}
		all = append(all, p)
	}
	var l web.PolicyVersions
	l.Items, l.Next = part(all, cursor, limit)
	return l, w.Fail
}

func (w *World) Preemptions(_ context.Context, _ string, f web.PreemptionFilter) (web.PreemptionList, error) {
	defer w.lock()()
	l := web.PreemptionList{Pools: w.poolNames()}
	for _, x := range w.pre {
		if (f.Reason == "" || x.Reason == f.Reason) && (f.Pool == "" || x.VictimPool == f.Pool || x.PreemptorPool == f.Pool) && (f.Task == "" || x.Victim == f.Task || x.Preemptor == f.Task) {
			l.Items = append(l.Items, x.PreemptionRow)
		}
	}
	l.Total = len(l.Items)
	l.Items, l.Next = part(l.Items, f.Cursor, f.Limit)
	return l, w.Fail
}

func (w *World) Preemption(_ context.Context, _, id string) (web.Preemption, error) {
	defer w.lock()()
	for _, x := range w.pre {
		if x.ID == id {
			return x, w.Fail
		}
	}
	return web.Preemption{}, missing("preemption", id)
}

func (w *World) Agents(_ context.Context, _ string, f web.AgentFilter) (web.AgentList, error) {
	defer w.lock()()
	l := web.AgentList{Pools: w.poolNames()}
	for _, a := range w.agents {
		if (f.Pool == "" || a.Pool == f.Pool) && strings.Contains(a.Name, f.Text) {
			l.Items = append(l.Items, a)
		}
	}
	l.Total = len(l.Items)
	l.Items, l.Next = part(l.Items, f.Cursor, f.Limit)
	return l, w.Fail
}

func (w *World) Events(_ context.Context, _ string, f web.EventFilter) (web.EventList, error) {
	defer w.lock()()
	var l web.EventList
	for _, e := range w.events {
		if (f.Task == "" || e.Task == f.Task) && (f.Pool == "" || e.Pool == f.Pool) && (f.Type == "" || e.Type == f.Type) {
			l.Items = append(l.Items, e)
		}
	}
	l.Items, l.Next = part(l.Items, f.Cursor, f.Limit)
	return l, w.Fail
}

func (w *World) Find(_ context.Context, _, text string, limit int) ([]web.Hit, error) {
	defer w.lock()()
	var exact, rest []web.Hit
	put := func(h web.Hit) {
		if h.Name == text {
			exact = append(exact, h)
		} else if strings.Contains(h.Name, text) {
			rest = append(rest, h)
		}
	}
	for _, p := range w.pools {
		put(web.Hit{Kind: "pool", Name: p.Name, Note: "on " + p.Cluster, Href: "/pools/" + web.Escape(p.Name)})
	}
	for _, c := range w.clusters {
		put(web.Hit{Kind: "cluster", Name: c.Name, Note: c.State, Href: "/clusters/" + web.Escape(c.Name)})
	}
	for _, j := range w.jobs {
		put(web.Hit{Kind: "job", Name: j.ID, Note: strings.ToLower(j.State), Href: "/jobs/" + web.Escape(j.ID)})
	}
	for _, t := range w.tasks {
		put(web.Hit{Kind: "task", Name: t.ID, Note: string(t.State) + " in " + t.Pool, Href: "/tasks/" + web.Escape(t.ID)})
	}
	all := append(exact, rest...)
	return all[:min(limit, len(all))], w.Fail
}
