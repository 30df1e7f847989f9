package view

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/jobs"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/web"
)

// Job is one job, without its log.
func (v *View) Job(ctx context.Context, id string) (web.Job, error) {
	var out web.Job
	if err := v.noJobs(); err != nil {
		return out, err
	}
	j, err := v.o.Jobs.Job(ctx, id)
	if err != nil {
		return out, v.refused(ctx, err)
	}
	events, err := v.o.Jobs.Events(ctx, id)
	if err != nil {
		return out, v.refused(ctx, err)
	}
	out = web.Job{JobRow: jobRow(j), UID: uid(j.UID), Owner: j.SubmittedBy, RayID: j.RayID, Priority: j.Priority.Float(), Reserve: either(j.Reserve, jobs.ReserveEntrypoint), Timeout: j.QueueTimeout,
		Retries: j.MaxRetries, RetryOn: j.RetryOn, Preferred: j.PreferredCluster, Metadata: web.LabelsOf(j.Metadata), Why: placement(j.Placement, j.Requirements.IsZero()),
		ExitCode: j.ExitCode, ErrorType: j.ErrorType, Message: j.Message, Queued: j.QueuedAt, Placed: at(j.PlacedAt), Accepted: at(j.AcceptedAt)}
	for _, n := range j.Notes {
		out.Notes = append(out.Notes, sentence(plain(n)))
	}
	for _, t := range j.Tried {
		out.Tried = append(out.Tried, web.TriedCluster{Cluster: t.Cluster, Why: t.Why, At: t.At})
	}
	var hidden [2]int
	out.Env, hidden[0] = web.MaskEnv(j.RuntimeEnv)
	out.Merged, hidden[1] = web.MaskEnv(j.MergedEnv)
	out.Hidden = max(hidden[0], hidden[1])
	out.Timeline = jobTimeline(j, events)
	out.Now = v.jobNow(ctx, j)
	again := web.JobForm{Entrypoint: j.Entrypoint, JobID: j.JobID, Preferred: j.PreferredCluster, Reserve: j.Reserve, Priority: web.Decimal(j.Priority.Float()), QueueTimeout: web.TypedLength(j.QueueTimeout),
		Metadata: web.TypedLabels(out.Metadata), Tags: strings.Join(j.Tags, ", ")}
	if j.MaxRetries > 0 {
		again.MaxRetries = number(int64(j.MaxRetries))
	}
	if len(j.RetryOn) == 1 {
		again.RetryOn = j.RetryOn[0]
	}
	again.SetRequest(resources(j.Requirements))
	again.RuntimeEnv, again.Like, out.Again = out.Env, id, &again
	return out, nil
}

// reasons are the codes of a placement in words.
var reasons = map[string]string{"lower_score": "with a lower score", "not_preferred": "not the preferred one", "no_room": "without room now", "no_node": "without room on one machine", "kept": "kept for jobs before it",
	"held": "held", "unhealthy": "unhealthy", "unseen": "not asked yet", "tried": "did not take it", "too_small": "too small"}

// placement is why a job is where it is; small is one that asks for nothing.
func placement(p *jobs.Placement, small bool) *web.JobPlacement {
	if p == nil {
		return nil
	}
	out := &web.JobPlacement{Cluster: p.Cluster, Reason: sentence(plain(p.Reason)), Score: p.Score, Parts: scoreParts(p.Parts, small)}
	shown := map[string]int{}
	for _, o := range p.Others {
		shown[o.Code]++
		out.Others = append(out.Others, web.PlacementRow{Cluster: o.Cluster, Score: o.Score, Parts: partWords(o.Parts, small), Reason: plain(o.Reason)})
	}
	for _, r := range p.Not {
		if n := r.Count - shown[r.Code]; n > 0 {
			out.Not = append(out.Not, web.Label{Key: either(reasons[r.Code], r.Code), Value: web.Number(n)})
		}
	}
	for _, n := range p.Notes {
		out.Notes = append(out.Notes, sentence(plain(n)))
	}
	return out
}

func scoreParts(p *jobs.Parts, small bool) []web.ScorePart {
	if p == nil {
		return nil
	}
	free := "how often the job would fit into what was free"
	if small {
		free = "free cores for each job that asks for nothing"
	}
	out := []web.ScorePart{{Name: "free", Value: p.Free, Note: free}, {Name: "weight", Value: p.Weight, Note: "as configured"}, {Name: "health", Value: p.Health}}
	if p.Prefer != 1 {
		out = append(out, web.ScorePart{Name: "prefer", Value: p.Prefer, Note: "a preferred cluster"})
	}
	if p.Tags != 1 {
		out = append(out, web.ScorePart{Name: "tags", Value: p.Tags, Note: "they share tags"})
	}
	return out
}

// partWords is a score's factors in one line.
func partWords(p *jobs.Parts, small bool) string {
	var out []string
	for _, x := range scoreParts(p, small) {
		out = append(out, x.Name+" "+web.Factor(x.Value))
	}
	return strings.Join(out, " × ")
}

func clusterRef(name string) web.Part { return web.Link(name, "/clusters/"+web.Escape(name)) }

// jobNow says what a job is at and what happens next.
func (v *View) jobNow(ctx context.Context, j jobs.Job) web.Note {
	n := web.Note{}
	add := func(parts ...web.Part) { n.Text = append(n.Text, parts...) }
	if j.StopRequestedAt != nil && !jobs.Ended(j.State) {
		n.Kind, n.Title = "warn", web.Say(fmt.Sprintf("%s asked %s to stop it.", either(j.StopRequestedBy, "somebody"), web.Ago(*j.StopRequestedAt, v.now())))
		if j.State == jobs.Unknown {
			add(web.Text("Its cluster is silent; it is stopped there as soon as that answers."))
		} else {
			add(web.Text("It has ended once Ray says so."))
		}
		return n
	}
	switch j.State {
	case jobs.Queued:
		n.Kind = "warn"
		n.Title = web.Say("Waits" + positionWords(j.QueuePosition) + ".")
		if why := jobReason(j); why != "" {
			add(web.Text(sentence(why) + " "))
		}
		add(v.largestFree(ctx, j)...)
		if j.Attempt > 1 {
			add(web.Text(fmt.Sprintf("This is attempt %d of at most %d. ", j.Attempt, j.MaxRetries+1)))
		}
		if j.QueueTimeout > 0 {
			add(web.Text("It fails if it still waits " + inWords(j.QueuedAt.Add(j.QueueTimeout).Sub(v.now())) + "."))
		}
	case jobs.Submitting:
		n.Title = web.Line{web.Text("Being submitted to "), clusterRef(j.Cluster), web.Text(".")}
		add(web.Text("If the answer is lost, the cluster is asked for it by its id before anything is sent again."))
	case jobs.Pending:
		n.Title = web.Line{web.Text("Accepted by "), clusterRef(j.Cluster), web.Text(", not running yet.")}
		add(web.Text("Ray sets up its runtime environment and starts its command when there is room."))
	case jobs.Running:
		n.Title = web.Line{web.Text("Runs on "), clusterRef(j.Cluster), web.Text(".")}
		add(web.Text("When it ends, how it ended and the end of its log are kept here."))
	case jobs.Unknown:
		n.Kind = "warn"
		n.Title = web.Say("Its cluster is silent, so nobody knows how it is.")
		add(v.silence(j)...)
	case jobs.Succeeded:
		n.Title = web.Say("Succeeded" + tookWords(j) + ".")
	case jobs.Stopped:
		n.Title = web.Say("Stopped" + byWords(j.StopRequestedBy) + ".")
	case jobs.Failed:
		n.Kind, n.Title = "bad", web.Line{web.Text("Failed: " + strings.TrimSuffix(either(jobReason(j), "Ray says so"), ".") + ".")}
		if last := lastLine(j.Message); last != "" && !strings.Contains(j.Reason, last) {
			add(web.Code(last))
		}
	}
	return n
}

func positionWords(position int) string {
	switch position {
	case 0:
		return ""
	case 1:
		return ", first in line"
	}
	return ", position " + web.Number(position)
}

func inWords(d time.Duration) string {
	if d <= 0 {
		return "now"
	}
	return "in " + web.Brief(d)
}

func byWords(actor string) string {
	if actor == "" {
		return ""
	}
	return " by " + actor
}

func tookWords(j jobs.Job) string {
	if j.StartedAt == nil || j.EndedAt == nil {
		return ""
	}
	return " after " + web.Duration(j.EndedAt.Sub(*j.StartedAt))
}

// lastLine is what a command said last, where Ray's message carries it.
func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// largestFree tells who comes nearest to what a job that waits asks for.
func (v *View) largestFree(ctx context.Context, j jobs.Job) []web.Part {
	if j.Requirements.IsZero() || j.Placement == nil {
		return nil
	}
	var lack, best string
	var most int64 = -1
	c, err := v.carried(ctx)
	if err != nil {
		return nil
	}
	for _, o := range j.Placement.Others {
		if lack == "" {
			o.Missing.Each(func(name string, n int64) {
				if lack == "" && n > 0 {
					lack = name
				}
			})
		}
	}
	if lack == "" {
		return nil
	}
	for _, x := range v.o.Registry.All() {
		if x.Status.State != clusters.Healthy || x.Hold.Held {
			continue
		}
		for _, r := range room(x.Status.Total, x.Status.Used, sched.Resources{}, c.loads[x.Name]) {
			if r.Resource == lack && max(0, r.Free()) > most {
				most, best = max(0, r.Free()), x.Name
			}
		}
	}
	if best == "" {
		return nil
	}
	amount := web.Amount(lack, most)
	if lack != "memory" {
		amount += " " + lack
	}
	if most == 0 {
		return []web.Part{web.Text("No " + lack + " is free anywhere. ")}
	}
	return []web.Part{web.Text("The most that is free is " + amount + ", on "), clusterRef(best), web.Text(". ")}
}

// silence says since when a cluster is silent, and what that leads to.
func (v *View) silence(j jobs.Job) []web.Part {
	out := []web.Part{clusterRef(j.Cluster)}
	c, ok := v.o.Registry.Get(j.Cluster)
	switch {
	case !ok:
		out = append(out, web.Text(" is not configured any more. "))
	case c.Status.SeenAt.IsZero():
		out = append(out, web.Text(" has not answered yet. "))
	default:
		out = append(out, web.Text(" last answered "+web.Ago(c.Status.SeenAt, v.now())+". "))
	}
	s := "If it stays silent the job counts as lost"
	if v.o.LostAfter > 0 {
		s = "After " + web.Duration(v.o.LostAfter) + " of silence the job counts as lost"
	}
	if j.MaxRetries >= j.Attempt && (len(j.RetryOn) == 0 || slices.Contains(j.RetryOn, jobs.ClusterLost)) {
		return append(out, web.Text(s+" and is tried on another cluster."))
	}
	return append(out, web.Text(s+" and fails."))
}

// jobTimeline is what happened, newest first, with how long each step lasted.
func jobTimeline(j jobs.Job, events []jobs.Event) []web.Step {
	var out []web.Step
	for i, e := range events {
		s := jobStep(e, i == 0)
		switch {
		case i+1 < len(events):
			s.Took = events[i+1].At.Sub(e.At)
		case !jobs.Ended(j.State):
			s.Took = -1
		}
		out = append(out, s)
	}
	slices.Reverse(out)
	return out
}

// jobSteps are the words and the tone of what happens to a job.
var jobSteps = map[string][2]string{
	"queued": {"Waits for a cluster", ""}, "waits": {"No room yet", ""}, "placed": {"Placed", ""}, "submitting": {"Being submitted", ""}, "submit_failed": {"Not taken", "warn"}, "pending": {"Accepted by Ray", ""},
	"running": {"Running", "ok"}, "unknown": {"Its cluster went silent", "warn"}, "succeeded": {"Succeeded", "ok"}, "failed": {"Failed", "bad"}, "stopped": {"Stopped", "warn"},
	"lost": {"Lost", "bad"}, "found_again": {"Found again", "ok"}, "retry": {"Tried again", "warn"}, "stop_requested": {"Asked to stop", "warn"}, "stray_stopped": {"A stray copy was stopped", "warn"},
}

func jobStep(e jobs.Event, first bool) web.Step {
	words, ok := jobSteps[e.Type]
	if !ok {
		words[0] = strings.ReplaceAll(e.Type, "_", " ")
	}
	if first && e.Type == "queued" {
		words[0] = "Submitted"
	}
	s := web.Step{At: e.At, Tone: words[1], Title: web.Line{web.Strong(words[0])}}
	if e.Actor != "" && (first || e.Type == "stop_requested" || e.Type == "stopped") {
		s.Title = append(s.Title, web.Text(" by "+e.Actor))
	}
	if e.Cluster != "" {
		preposition := " on "
		switch e.Type {
		case "submit_failed", "pending":
			preposition = " by "
			if e.Type == "pending" {
				preposition = ", "
			}
		case "submitting":
			preposition = " to "
		}
		s.Title = append(s.Title, web.Text(preposition), clusterRef(e.Cluster))
	}
	if e.Attempt > 1 {
		s.Title = append(s.Title, web.Text(", attempt "+web.Number(e.Attempt)))
	}
	text := e.Message
	switch e.Type {
	case "queued":
		if first {
			text = ""
		}
	case "placed":
		text = strings.TrimPrefix(text, "goes to "+e.Cluster+": ")
	case "pending", "running", "stop_requested":
		if e.Code == "" && len(text) < 24 { // says what the title does
			text = ""
		}
	case "failed":
		text = rayLogs.ReplaceAllString(text, "")
	}
	s.Detail = web.Say(plain(text))
	return s
}
