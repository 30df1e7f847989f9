package view

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/web"
)

const (
	overviewPools  = 6 // the fullest
	overviewNotes  = 4 // queues that cannot move
	overviewEvents = 8
)

// worthTelling are the events of the overview: what a task came to, not each step on the way.
var worthTelling = []string{
	string(ledger.Running), string(ledger.Queued), string(ledger.Preempting), string(ledger.Completed), string(ledger.Failed), string(ledger.Cancelled),
	"attempt_failed", "registered", "changed", "pool.created", "pool.changed", "pool.deleted", "policy.changed",
}

type gpuTime struct{ lost, used time.Duration }

// Overview is the first page.
func (v *View) Overview(ctx context.Context, ns string) (web.Overview, error) {
	var out web.Overview
	pools, err := v.l.Pools(ctx, ns)
	if err != nil {
		return out, v.refused(ctx, err)
	}
	if v.o.Clusters != nil {
		out.Clusters = v.o.Clusters(ctx)
	}
	out.Notes = clusterNotes(out.Clusters)
	if out.Fleet, err = v.fleet(ctx); err != nil {
		return out, err
	}
	out.Notes = append(out.Notes, fleetNotes(out.Fleet)...)
	if len(pools) > 0 {
		if err := v.overviewFigures(ctx, ns, pools, &out); err != nil {
			return out, v.refused(ctx, err)
		}
	}
	events, err := v.l.FindEvents(ctx, ns, ledger.EventFilter{Types: worthTelling, Limit: overviewEvents})
	if err != nil {
		return out, v.refused(ctx, err)
	}
	for _, e := range events.Items {
		out.Recent = append(out.Recent, event(e))
	}
	return out, nil
}

func (v *View) overviewFigures(ctx context.Context, ns string, pools []ledger.Pool, out *web.Overview) error {
	counts, err := v.l.Counts(ctx, ns)
	if err != nil {
		return err
	}
	out.Running, out.Queued, out.Preempting = counts[ledger.Running], counts[ledger.Queued], counts[ledger.Preempting]
	out.Launching = counts[ledger.Launching] + counts[ledger.Reserved]

	heads, err := v.l.QueueHeads(ctx, ns)
	if err != nil {
		return err
	}
	protected, err := v.protected(ctx, ns)
	if err != nil {
		return err
	}
	slices.SortStableFunc(pools, func(a, b ledger.Pool) int { return int(1000*fullness(b)) - int(1000*fullness(a)) })
	if err := v.askAgain(ctx, heads, pools[:min(len(pools), overviewPools)]); err != nil {
		return err
	}
	stuck := 0
	for i, p := range pools {
		head, waits := heads[p.Name]
		if p.Hold.State != "" {
			out.Notes = append(out.Notes, web.Note{Kind: "warn", Title: web.Line{web.Text("Nothing starts in "), web.PoolRef(p.Name), web.Text(".")}, Text: hold(p.Hold).Line(v.now())})
		} else if waits {
			if stuck++; stuck <= overviewNotes {
				out.Notes = append(out.Notes, queueNote(head, v.now()))
			}
		}
		if i < overviewPools {
			out.Pools = append(out.Pools, pool(p, protected, heads))
		}
	}
	if more := stuck - overviewNotes; more > 0 {
		out.Notes = append(out.Notes, web.Note{Kind: "warn", Title: web.Line{web.Text("The queues of " + web.Count(more, "other pool") + " cannot move either.")},
			Text: web.Line{web.Link("All pools", "/pools")}})
	}

	day, ready, err := v.days.get(ctx, ns, func(ctx context.Context) (ledger.PreemptionDay, error) { return v.l.PreemptionDay(ctx, ns, v.now()) })
	if err != nil {
		return err
	}
	if ready {
		v.overviewDay(day, out)
	}
	out.Pending = !ready
	if !slices.ContainsFunc(pools, hasGPU) {
		return nil
	}
	gpu, ready, err := v.gpus.get(ctx, ns, func(ctx context.Context) (gpuTime, error) {
		lost, used, err := v.l.GPUTime(ctx, ns, v.now().Add(-24*time.Hour), v.now())
		return gpuTime{lost, used}, err
	})
	out.GPULost, out.GPUUsed, out.GPUPending = gpu.lost.Hours(), gpu.used.Hours(), !ready
	return err
}

func (v *View) overviewDay(day ledger.PreemptionDay, out *web.Overview) {
	for i, by := range day.Hours {
		h := web.Hour{Start: v.now().Add(time.Duration(i-24) * time.Hour), PreemptionCount: count(by)}
		out.Hours = append(out.Hours, h)
		p := &out.Preemptions
		p.Label, p.SamePool, p.CrossPool, p.Manual = p.Label+h.Label, p.SamePool+h.SamePool, p.CrossPool+h.CrossPool, p.Manual+h.Manual
	}
	out.Before = day.Before
	if day.Waits > 0 {
		out.P50, out.P99 = day.P50, day.P99
		out.Phases = []web.Phase{{Name: "cancel", Took: day.Cancel}, {Name: "save", Took: day.Save}, {Name: "kill", Took: day.Kill}, {Name: "launch", Took: day.Launch}}
	}
}

func count(by map[string]int) web.PreemptionCount {
	return web.PreemptionCount{Label: by["label_based_preemption"], SamePool: by["same_pool_preemption"], CrossPool: by["cross_pool_preemption"], Manual: by["manual"] + by["drained"]}
}

// queueNote says why a queue cannot move: what its head waits for.
func queueNote(head ledger.Task, now time.Time) web.Note {
	n := web.Note{Kind: "warn", Title: web.Line{web.Text("Queue of "), web.PoolRef(head.Pool), web.Text(" cannot move.")}, Text: stuckLine(head)}
	since := head.QueuedAt
	if since.IsZero() {
		since = head.SubmittedAt
	}
	if d := now.Sub(since); d > 5*time.Second {
		n.Text = append(n.Text, web.Text(" It has waited for "+web.Brief(d)+"."))
	}
	return n
}

// stuckLine says what the first in a queue waits for.
func stuckLine(head ledger.Task) web.Line {
	l := web.Line{web.Text("First in line is "), web.TaskRef(head.TaskID)}
	if !waits(head) {
		return append(l, web.Text(", which waits for "+resources(head.Request).String()+"."))
	}
	return append(l, web.Text(": it "+strings.TrimSuffix(plain(head.Reason), ".")+"."))
}

// askAgain brings the reasons of who is first in line up to date, in some pools: the
// core looks at every running task for each.
func (v *View) askAgain(ctx context.Context, heads map[string]ledger.Task, pools []ledger.Pool) error {
	var uids []sched.ID
	for _, p := range pools {
		if h, ok := heads[p.Name]; ok {
			uids = append(uids, h.UID)
		}
	}
	if len(uids) == 0 {
		return nil
	}
	why, err := v.l.WhyQueued(ctx, uids...)
	for name, h := range heads {
		if r, ok := why[h.UID]; ok {
			h.Code, h.Reason = string(r.Code), r.Message
			heads[name] = h
		}
	}
	return err
}

func clusterNotes(cs []web.Cluster) []web.Note {
	var out []web.Note
	for _, c := range cs {
		if c.State == "down" {
			out = append(out, web.Note{Kind: "bad", Title: web.Line{web.Text("Ray cluster "), web.Code(c.Name), web.Text(" does not answer.")}, Text: web.Say(sentence(c.Detail))})
		}
	}
	return out
}

func hasGPU(p ledger.Pool) bool {
	for _, b := range p.Balances {
		if b.Resource == "gpu" && (b.Capacity > 0 || b.Borrowed > 0) {
			return true
		}
	}
	return false
}

// fullness is the fullest resource of a pool, from 0 to 1.
func fullness(p ledger.Pool) float64 {
	most := 0.0
	for _, b := range p.Balances {
		if total := b.Capacity + b.Borrowed - b.Lent; total > 0 {
			most = max(most, float64(b.Used+b.Reserved)/float64(total))
		}
	}
	return most
}
