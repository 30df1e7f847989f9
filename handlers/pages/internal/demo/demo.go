// Package demo is a product made of believable data: pages are drawn from it in
// tests and for screenshots. Actions change it a little, so that a form can be
// followed to its end.
package demo

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/web"
)

// Now is the moment of the demo when nobody hands in another one.
var Now = time.Date(2026, 11, 21, 14, 2, 23, 0, time.UTC)

// World is the whole fake product. It is a Source, an Actions and a Live.
type World struct {
	mu       sync.Mutex
	Fail     error // what every call answers, nil for none
	Refuse   error // what every action answers, nil for none
	Done     []string
	now      time.Time
	pools    []web.PoolPage
	tasks    []web.Task
	policies []web.Policy
	pre      []web.Preemption
	agents   []web.Agent
	events   []web.Event
	nodes    []web.Node
	clusters []web.ClusterPage
	jobs     []web.Job
	file     web.ClusterFile
	heard    []chan pages.Topic
}

// Empty is a product nobody has used yet.
func Empty(now time.Time) *World {
	return &World{now: now, policies: []web.Policy{{Version: 1, Author: "schedulemesh", At: now.Add(-time.Minute), Comment: "Defaults", Doc: web.DefaultPolicy(), Active: true}}}
}

func gpu(g, c, memGiB int64) web.Resources {
	return web.Resources{"gpu": g * 1000, "cpu": c * 1000, "memory": memGiB << 10}
}

func row(id string, s web.State, pool string, priority float64, labels string, req web.Resources, since time.Time) web.Task {
	return web.Task{
		TaskRow: web.TaskRow{ID: id, UID: uid(id), State: s, Pool: pool, Priority: priority, Labels: web.ParseLabels(labels), Request: req, Since: since, Attempt: 1},
		Owner:   "mei", Class: "trainers.llama:Trainer", Entry: "run", AgentName: id + ".1", OnInsufficient: "queue", OnPreempted: "requeue", OnFailure: "stop",
		MaxAttempts: 3, Submitted: since.Add(-time.Second), CanComplete: s == web.Running, CanPreempt: s == web.Running, CanCancel: s.Live(), CanRetune: s.Live(),
		Spec: "{\n  \"task_id\": \"" + strings.ReplaceAll(id, `"`, `\"`) + "\",\n  \"pool\": \"" + pool + "\",\n  \"actor_class\": \"trainers.llama:Trainer\",\n  \"entry\": {\"method\": \"run\"},\n  \"resources\": {\"gpu\": 8, \"cpu\": 64, \"memory\": 524288},\n  \"priority\": 5.0,\n  \"on_preempted\": \"requeue\"\n}",
	}
}

func uid(id string) string {
	h := uint64(14695981039346656037)
	for _, b := range []byte(id) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return fmt.Sprintf("019aa1c2-%04x-7%03x-8%03x-%012x", h&0xffff, h>>16&0xfff, h>>28&0xfff, h>>4&0xffffffffffff)
}

// Busy is a product in the middle of a working day.
func Busy(now time.Time) *World {
	w := Empty(now)
	at := func(d time.Duration) time.Time { return now.Add(-d) }
	for i := range 6 {
		w.nodes = append(w.nodes, web.Node{ID: fmt.Sprintf("gpu-%02d", i+1), Cluster: "local", Total: gpu(26, 192, 1024), Free: gpu(int64(i*4), int64(20+i*17), int64(i*128)), Agents: 31 - i*4, Known: true})
	}
	w.nodes[5].Hold = web.Hold{State: "draining", Reason: "driver update", Actor: "jonas", Since: at(8 * time.Minute), Deadline: now.Add(22 * time.Minute)}
	w.nodes = append(w.nodes, web.Node{ID: "4f1c9a27e5b8d3064f1c9a27e5b8d3064f1c9a27e5b8d3064f1c9a27", Cluster: "gpu-east", Hold: web.Hold{State: "held", Reason: "fans are loud", Actor: "mei", Since: at(26 * time.Hour)}})
	w.policies = nil
	for n := 1; n <= 12; n++ {
		d := web.DefaultPolicy()
		if n > 3 {
			d.ProtectedPools = []string{"train-a100"}
		}
		if n > 5 {
			d.LabelPreemptionRules = map[string]map[string][]string{
				"training_stage": {"rlhf": {"sft", "pretraining"}, "dpo": {"pretraining"}, "sft": {"pretraining"}},
			}
		}
		if n > 8 {
			d.LabelPreemptionRules["role"] = map[string][]string{"train": {"reward", "rollout"}, "reward": {"rollout"}}
		}
		comments := []string{"Defaults", "Longer to save the 70B checkpoints", "Cross pool only for what matters", "Protect the paid GPUs", "Less greedy at night",
			"Stages before priorities", "Undo the night rule", "Try κ at 0.2", "Reward models before rollouts", "Back to version 8", "κ back to 0.1", "RLHF before SFT while the eval week lasts"}
		w.policies = append(w.policies, web.Policy{Version: n, Author: []string{"mei", "jonas", "amara"}[n%3], At: at(time.Duration(13-n) * 22 * time.Hour), Comment: comments[n-1], Doc: d, Active: n == 12})
	}
	w.policies[0].Author = "schedulemesh"

	add := func(t web.Task) *web.Task {
		w.tasks = append(w.tasks, t)
		return &w.tasks[len(w.tasks)-1]
	}
	w.fleet()
	w.tasks = make([]web.Task, 0, 400)
	rlhf := add(row("llama-7b-rlhf", web.Running, "train-a100", 5, "training_stage=rlhf, team=alignment", gpu(8, 64, 512), at(2*time.Minute)))
	rlhf.EndsAt, rlhf.Started, rlhf.Node, rlhf.Ran, rlhf.Estimate, rlhf.PID = now.Add(58*time.Minute), at(2*time.Minute), "gpu-04", 2*time.Minute, time.Hour, 41873
	pre := add(row("llama-70b-pretrain", web.Queued, "train-a100", 5, "training_stage=pretraining", gpu(8, 64, 512), at(12*time.Second)))
	pre.Position, pre.ETA, pre.Attempt, pre.Preemptions, pre.Ran, pre.Estimate = 1, now.Add(18*time.Minute), 2, 1, 30*time.Minute+31*time.Second, time.Hour
	pre.Class, pre.Pickled, pre.StateSize, pre.Submitted = "TrainingAgent", true, 412<<10, at(31*time.Minute)
	pre.Started, pre.AgentName = at(31*time.Minute), ""
	pre.Why = &web.Note{Kind: "warn", Title: web.Say("Waiting for 8 GPU; 5 are free on one node."), Text: web.Line{
		web.Text("Preempted 12 s ago by "), web.TaskRef("llama-7b-rlhf"), web.Text(", which it may not preempt in turn. Resumes from step 1,840 when room appears, about 14:20 ("), web.TaskRef("vision-03"), web.Text(" ends)."),
	}}
	pre.Handover = &web.Handover{Preemption: "481", Preemptor: "llama-7b-rlhf", Victims: []string{"llama-70b-pretrain"}, Phases: phases}
	ms := time.Millisecond
	pre.Timeline = []web.Step{
		{At: at(12 * time.Second), Tone: "warn", Title: web.Line{web.Strong("Queued again")}, Detail: web.Say("on_preempted: requeue · saved state 412 KiB, step 1,840, accuracy 0.913"), Took: -1},
		{At: at(12 * time.Second), Tone: "warn", Title: web.Line{web.Strong("Preempted"), web.Text(" by "), web.TaskRef("llama-7b-rlhf")},
			Detail: web.Line{web.Text("label rule training_stage: rlhf ≻ pretraining · Δ 0.0 → 0.5 + κ·remaining 3.0 = "), web.Strong("3.5"), web.Text(" · policy v12")}, Took: 84 * ms},
		{At: at(31 * time.Minute), Tone: "ok", Title: web.Line{web.Strong("Running"), web.Text(" on node gpu-04 as "), web.Code("llama-70b-pretrain.1")}, Took: 30*time.Minute + 31*time.Second},
		{At: at(31 * time.Minute), Title: web.Line{web.Strong("Launching")}, Detail: web.Say("warm worker"), Took: 78 * ms},
		{At: at(31 * time.Minute), Title: web.Line{web.Strong("Reserved"), web.Text(" 8 gpu · 64 cpu · 512 GiB in "), web.PoolRef("train-a100")}, Took: 400 * time.Microsecond},
		{At: at(31 * time.Minute), Title: web.Line{web.Strong("Submitted"), web.Text(" by mei through the Python SDK")}},
	}
	v := add(row("vision-03", web.Running, "train-a100", 4, "training_stage=sft", gpu(4, 32, 256), at(3*time.Hour)))
	v.EndsAt = now.Add(41 * time.Minute)
	r := add(row("reward-07", web.Running, "research-shared", 8.5, "role=reward", gpu(2, 16, 128), at(2*time.Minute)))
	r.EndsAt, r.Attempt = now.Add(28*time.Minute), 2
	l := add(row("rollout-113", web.Launching, "research-shared", 3, "role=rollout", gpu(1, 8, 64), at(time.Second)))
	l.Node = "gpu-04"
	p := add(row("rollout-112", web.Preempting, "research-shared", 3, "role=rollout", gpu(1, 8, 64), at(9*time.Minute)))
	p.Phase = "saving state"
	add(row("etl-nightly", web.Running, "batch", 1, "", web.Resources{"cpu": 32000, "memory": 64 << 10}, at(5*time.Hour)))
	f := add(row("tok-bench-9", web.Failed, "batch", 1, "", web.Resources{"cpu": 4000}, at(time.Hour)))
	f.Reason, f.Ended, f.Started = "constructor raised ValueError: vocab.json has 50,257 entries, the model 50,304", at(time.Hour), at(61*time.Minute)
	again := web.NewSubmitForm()
	again.TaskID, again.Pool, again.ActorClass, again.EntryMethod, again.CPU = f.ID, f.Pool, f.Class, "run", "4"
	f.Again = &again
	f.Why = &web.Note{Kind: "bad", Title: web.Say("Its constructor failed."), Text: web.Line{web.Code("ValueError: vocab.json has 50,257 entries, the model 50,304"), web.Text(" The traceback is in the log, on stderr.")}}
	f.Timeline = []web.Step{
		{At: at(time.Hour), Tone: "bad", Title: web.Line{web.Strong("Failed"), web.Text(": constructor raised ValueError")}, Detail: web.Say("on_failure: stop")},
		{At: at(time.Hour + 2*time.Second), Title: web.Line{web.Strong("Launching")}, Took: 2100 * ms},
		{At: at(time.Hour + 2*time.Second), Title: web.Line{web.Strong("Submitted"), web.Text(" over REST")}, Took: ms / 3},
	}
	for i := 1; i <= 17; i++ {
		q := add(row(fmt.Sprintf("llama-70b-sft-%02d", i), web.Queued, "train-a100", 4.5, "training_stage=sft", gpu(8, 64, 512), at(time.Duration(i)*time.Minute)))
		q.Position, q.Reason = i+1, "waits for 8 GPU"
	}
	for i := 1; i <= 120; i++ {
		e := add(row(fmt.Sprintf("eval-mmlu-%03d", i), web.Running, []string{"research-shared", "batch"}[i%2], 2.5+float64(i%5)/2, "suite=mmlu, model=llama-7b, shard="+fmt.Sprint(i), web.Resources{"gpu": 250, "cpu": 2000, "memory": 8 << 10}, at(time.Duration(i)*time.Minute)))
		e.EndsAt = now.Add(time.Duration(i-10) * time.Minute)
	}
	for i := 1; i <= 30; i++ {
		c := add(row(fmt.Sprintf("sweep-lr-%02d", i), []web.State{web.Completed, web.Completed, web.Cancelled, web.Preempted}[i%4], "batch", 1.5, "sweep=lr", web.Resources{"cpu": 8000}, at(time.Duration(i)*time.Hour)))
		c.Ended = c.Since
	}

	q := func(name string, capacity, used, reserved, borrowed, lent int64) web.Quota {
		unit := int64(1000)
		if name == "memory" {
			unit = 1024
		}
		return web.Quota{Resource: name, Capacity: capacity * unit, Used: used * unit, Reserved: reserved * unit, Borrowed: borrowed * unit, Lent: lent * unit}
	}
	pool := func(name string, labels string, quota ...web.Quota) *web.PoolPage {
		w.pools = append(w.pools, web.PoolPage{Pool: web.Pool{Name: name, Cluster: "local", Labels: web.ParseLabels(labels), Quota: quota}, Created: at(90 * 24 * time.Hour)})
		pp := &w.pools[len(w.pools)-1]
		pp.Settings = web.NewPoolForm()
		pp.Settings.Name, pp.Settings.Labels, pp.Settings.TargetAgents = name, web.TypedLabels(pp.Labels), "8"
		res := web.Resources{}
		for _, x := range quota {
			res[x.Resource] = x.Capacity
		}
		pp.Settings.SetResources(res)
		pp.DefaultSize = web.Resources{}
		for k, n := range res {
			pp.DefaultSize[k] = n / 8
		}
		return pp
	}
	w.pools = make([]web.PoolPage, 0, 8)
	a100 := pool("train-a100", "tier=premium", q("gpu", 64, 66, 6, 8, 0), q("cpu", 640, 370, 32, 0, 0), q("memory", 5120, 3840, 512, 0, 0))
	a100.Protected = true
	a100.Stuck = web.Line{web.Text("The head, "), web.TaskRef("llama-70b-pretrain"), web.Text(" (8 GPU), waits for 3 more GPU; nothing may be preempted.")}
	a100.Loans = []web.Loan{{From: "research-shared", To: "train-a100", Amount: web.Resources{"gpu": 8000}, Since: at(40 * time.Minute)}}
	shared := pool("research-shared", "tier=standard", q("gpu", 48, 26, 2, 0, 8), q("cpu", 480, 195, 16, 0, 0), q("memory", 3072, 900, 64, 0, 0))
	shared.Loans = a100.Loans
	shared.Groups = groups(at)
	r.GroupTier, r.GroupName = "reserved", shared.Groups.Items[0].Name
	r.Timeline = []web.Step{
		{At: at(2 * time.Minute), Tone: "ok", Title: web.Line{web.Strong("Running"), web.Text(" on node gpu-04")}, Took: -1},
		{At: at(2*time.Minute + 90*ms), Title: web.Line{web.Strong("Reserved"), web.Text(" 2 gpu · 16 cpu · 128 GiB in "), web.PoolRef("research-shared")},
			Detail: web.Line{web.Text("goes into a reserved placement group that is there · "), web.TaskRef("rollout-112"), web.Text(" makes way for it")}, Took: 90 * ms},
	}
	shared.Settings.PGPoolConfig = "{\n  \"enable\": true,\n  \"high_priority_pg_specs\": [\n    {\"gpu\": 2, \"cpu\": 16, \"memory\": 131072}\n  ],\n  \"max_dynamic_pgs\": 4\n}"
	pool("batch", "tier=batch", q("gpu", 32, 31, 0, 0, 0), q("cpu", 640, 562, 20, 0, 0))
	pool("interactive", "tier=standard, owner=platform", q("gpu", 8, 1, 0, 0, 0), q("cpu", 128, 12, 4, 0, 0))
	held := pool("ingest", "", q("cpu", 256, 200, 0, 0, 0), web.Quota{Resource: "fast_disk", Capacity: 12000, Used: 4500})
	held.Hold = web.Hold{State: "held", Reason: "the disk is being replaced", Actor: "jonas", Since: at(12 * time.Minute)}
	pool("edge", "", q("gpu", 4, 0, 0, 0, 0), q("cpu", 32, 0, 0, 0, 0))

	w.pre = preemptions(now)
	for _, t := range w.tasks {
		if !t.State.Live() || t.State == web.Queued {
			continue
		}
		w.agents = append(w.agents, web.Agent{Name: t.ID + ".1", Pool: t.Pool, State: t.State, Tasks: []string{t.ID}, Class: t.Class, Node: "gpu-0" + fmt.Sprint(len(t.ID)%6), PID: 40000 + len(w.agents)*7, Request: t.Request, Created: t.Since, Ready: t.Since})
	}
	w.agents = append(w.agents, web.Agent{Name: "warm-spare-1", Pool: "interactive", State: web.Running, Class: "notebooks.agents:Kernel", Node: "gpu-06", PID: 51234, Request: web.Resources{"gpu": 1000, "cpu": 8000}, Created: at(26 * time.Hour)})
	ev := func(ago time.Duration, kind, task, pool, actor string, took time.Duration, text ...web.Part) {
		w.events = append(w.events, web.Event{ID: fmt.Sprint(1000 - len(w.events)), At: at(ago), Type: kind, Task: task, Pool: pool, Actor: actor, Took: took, Text: text})
	}
	ev(12*time.Second, "preempted", "llama-70b-pretrain", "train-a100", "mei", 84*ms, web.Text("by "), web.TaskRef("llama-7b-rlhf"), web.Text(" · label training_stage: rlhf ≻ pretraining · score 3.5 · state saved (step 1,840)"))
	w.events[0].Policy = 12
	ev(40*time.Second, "completed", "eval-mmlu-114", "research-shared", "jonas", 18*time.Minute, web.Text("returned 2 GPU to "), web.PoolRef("train-a100"), web.Text("; 2 GPU of the loan from "), web.PoolRef("research-shared"), web.Text(" given back"))
	ev(2*time.Minute, "running", "reward-07", "research-shared", "amara", 96*ms, web.Text("requeued after preemption, resumed from its saved state, attempt 2"))
	ev(9*time.Minute, "launching", "rollout-112", "research-shared", "amara", 0, web.Text("on node gpu-04"))
	ev(35*time.Minute, "pool.updated", "", "batch", "jonas", 0, web.Text("gpu 24 → 32"))
	ev(time.Hour, "failed", "tok-bench-9", "batch", "ci", 2100*ms, web.Text("constructor raised ValueError: vocab.json has 50,257 entries, the model 50,304"))
	ev(22*time.Hour, "policy.changed", "", "", "mei", 0, web.Text("version 12: RLHF before SFT while the eval week lasts"))
	w.policies[len(w.policies)-1].Warnings = nil
	return w
}

var phases = []web.Phase{
	{Name: "decide", Took: 400 * time.Microsecond}, {Name: "cancel", Took: 12 * time.Millisecond}, {Name: "save state", Took: 20 * time.Millisecond},
	{Name: "kill, seen gone", Took: 9 * time.Millisecond}, {Name: "launch", Took: 43 * time.Millisecond},
}

func preemptions(now time.Time) []web.Preemption {
	var out []web.Preemption
	first := web.Preemption{
		PreemptionRow:     web.PreemptionRow{ID: "481", At: now.Add(-12 * time.Second), Victim: "llama-70b-pretrain", VictimPool: "train-a100", Preemptor: "llama-7b-rlhf", PreemptorPool: "train-a100", Reason: "label_based_preemption", Score: 180.5, Took: 84 * time.Millisecond, Phase: "gone", CancelOK: true, Saved: true, Policy: 12},
		Rule:              web.Line{web.Text("Label rule "), web.Code("training_stage"), web.Text(": rlhf ≻ pretraining. It applies whatever the priorities are.")},
		PreemptorPriority: 5, VictimPriority: 5,
		Parts:     web.Score{Delta: 0, Base: 0.5, Kappa: 0.1, Remaining: 30 * time.Minute, Total: 180.5, Least: 0.5},
		Requested: gpu(8, 64, 512), Free: web.Resources{"gpu": 5000, "cpu": 238000, "memory": 768 << 10}, Missing: web.Resources{"gpu": 3000}, Taken: gpu(8, 64, 512), Node: "gpu-04",
		Handover: web.Handover{Preemption: "481", Phases: phases}, StateSize: 412 << 10,
		Candidates: []web.Candidate{
			{Task: "llama-70b-pretrain", Pool: "train-a100", Reason: "label_based_preemption", Score: web.Score{Base: 0.5, Total: 180.5}, Taken: true, Verdict: "taken"},
			{Task: "vision-03", Pool: "train-a100", Reason: "label_based_preemption", Score: web.Score{Base: 1, Total: 147}, Verdict: "not needed: the first one frees enough"},
			{Task: "eval-mmlu-115", Pool: "research-shared", Reason: "cross_pool_preemption", Score: web.Score{Base: 5, Total: 5}, Verdict: "not needed"},
		},
		Safe: []web.Safe{
			{Task: "reward-07", Pool: "research-shared", Why: "its priority is higher: Δ −3.5"},
			{Task: "etl-nightly", Pool: "batch", Why: "holds no GPU: would not help"},
			{Task: "rollout-113", Pool: "research-shared", Why: "Δ priority 2.0 < 5.0, the threshold across pools"},
		},
		SafeMore: web.Say("and 131 more: 98 hold no GPU, 26 outrank it, 7 were just started on other clusters"),
		Now:      web.Line{web.TaskRef("llama-70b-pretrain"), web.Text(" is queued again, position 1.")},
	}
	out = append(out, first)
	reasons := []string{"label_based_preemption", "same_pool_preemption", "cross_pool_preemption", "label_based_preemption", "manual"}
	for i := 1; i <= 73; i++ {
		x := web.Preemption{PreemptionRow: web.PreemptionRow{
			ID: fmt.Sprint(481 - i), At: now.Add(-time.Duration(i) * 19 * time.Minute), Victim: fmt.Sprintf("rollout-%03d", 112-i), VictimPool: "research-shared",
			Preemptor: fmt.Sprintf("reward-%02d", i%20), PreemptorPool: "research-shared", Reason: reasons[i%5], Score: 3 + float64(i%9)*1.25, Took: time.Duration(60+i*3) * time.Millisecond, Phase: "gone", CancelOK: i%11 != 0, Saved: i%4 != 0, Policy: 12 - i/30,
		}}
		switch x.Reason {
		case "manual":
			x.Preemptor, x.PreemptorPool, x.Score, x.Actor = "", "", 0, "jonas"
		case "cross_pool_preemption":
			x.PreemptorPool, x.Loan = "train-a100", true
		}
		if i == 2 {
			x.Phase, x.Took = "saving", 0
		}
		if !x.CancelOK {
			x.CancelProblem = "cancel() did not return within 5 s."
		}
		x.Handover = web.Handover{Phases: phases}
		out = append(out, x)
	}
	return out
}

func (w *World) lock() func() { w.mu.Lock(); return w.mu.Unlock }

func missing(kind, name string) error {
	return &pages.Refusal{ErrorCode: "unknown_" + kind, Message: fmt.Sprintf("There is no %s called %q.", kind, web.Cut(name, 120))}
}

func match(t web.TaskRow, f web.TaskFilter) bool {
	switch {
	case f.State == "live" && !t.State.Live(), f.State != "live" && f.State != "all" && string(t.State) != f.State,
		f.Pool != "" && t.Pool != f.Pool, !strings.Contains(t.ID, f.Text):
		return false
	}
	for _, l := range f.Labels {
		if !slices.Contains(t.Labels, l) {
			return false
		}
	}
	return true
}

func part[T any](all []T, cursor string, limit int) ([]T, string) {
	start := 0
	_, _ = fmt.Sscanf(cursor, "%d", &start)
	start = min(max(start, 0), len(all))
	end := min(start+limit, len(all))
	if end < len(all) {
		return all[start:end], fmt.Sprint(end)
	}
	return all[start:end], ""
}
