package view

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/api"
	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/jobs"
	"github.com/schedulemesh/schedulemesh/web"
)

const (
	outsideShown = 200
	// logPatience is how long a page waits for a cluster to give a log.
	logPatience = 3 * time.Second
)

var liveStates = web.JobStates[:5]

// Jobs lists jobs, newest first.
func (v *View) Jobs(ctx context.Context, f web.JobFilter) (web.JobList, error) {
	var out web.JobList
	if err := v.noJobs(); err != nil {
		return out, err
	}
	out.Clusters, _ = v.ClusterNames(ctx)
	if f.Outside {
		all, err := v.o.Jobs.Outside(ctx, f.Cluster, outsideShown+1)
		if err != nil {
			return out, v.refused(ctx, err)
		}
		out.More = len(all) > outsideShown
		for _, o := range all[:min(outsideShown, len(all))] {
			out.Outside = append(out.Outside, outsideJob(o))
		}
		return out, nil
	}
	filter := jobs.Filter{Cluster: f.Cluster, JobID: f.JobID, Text: f.Text, Limit: f.Limit, Cursor: f.Cursor, Metadata: map[string]string{}}
	switch f.State {
	case "live":
		filter.States = liveStates
	case "all", "":
	default:
		filter.States = []string{f.State}
	}
	if f.Tag != "" {
		filter.Tags = []string{f.Tag}
	}
	for _, m := range f.Metadata {
		filter.Metadata[m.Key] = m.Value
	}
	if d, ok := web.ParseLength(f.Age); ok && d > 0 {
		filter.After = v.now().Add(-d)
	}
	page, err := v.o.Jobs.Find(ctx, filter)
	if err != nil {
		return out, v.refused(ctx, err)
	}
	out.Next, out.Total, out.Count = page.Next, page.Total, web.JobCounts(page.Count)
	for _, j := range page.Items {
		out.Items = append(out.Items, jobRow(j))
	}
	return out, nil
}

func jobRow(j jobs.Job) web.JobRow {
	if j.State == jobs.Queued {
		j.Cluster = "" // where it was last, before it came back
	}
	out := web.JobRow{ID: j.SubmissionID, JobID: j.JobID, State: j.State, Reason: jobReason(j), Cluster: j.Cluster, Entrypoint: j.Entrypoint, Request: resources(j.Requirements), Tags: j.Tags,
		Attempt: j.Attempt, Position: j.QueuePosition, Stopping: j.StopRequestedAt != nil && !jobs.Ended(j.State), Created: j.CreatedAt, Started: at(j.StartedAt), Ended: at(j.EndedAt)}
	if j.Placement != nil && j.Cluster != "" && j.Placement.Cluster == j.Cluster {
		out.Why = plain(j.Placement.Reason)
	}
	return out
}

// jobReason is why a job waits or how it ended, for a line of a list.
func jobReason(j jobs.Job) string {
	if j.Reason == "" && j.State == jobs.Queued && j.Placement != nil {
		return plain(j.Placement.Reason)
	}
	return plain(strings.TrimSuffix(rayLogs.ReplaceAllString(j.Reason, ""), ":"))
}

// rayLogs is what Ray adds to its reason; the log itself is on the page.
var rayLogs = regexp.MustCompile(`, last available logs \(truncated to [0-9,]+ chars\):[\s\S]*`)

func at(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

func outsideJob(o jobs.Outside) web.OutsideJob {
	return web.OutsideJob{Cluster: o.Cluster, ID: o.RayID, Kind: o.Kind, Entrypoint: o.Entrypoint, State: o.State, Message: o.Message, Metadata: web.LabelsOf(o.Metadata),
		Started: at(o.StartedAt), Ended: at(o.EndedAt), Seen: o.SeenAt}
}

// JobLog reads a piece of what a job printed. A cluster that does not give it in time is no error of the page.
func (v *View) JobLog(ctx context.Context, id string, offset int64, limit int) (web.JobLog, error) {
	var out web.JobLog
	if err := v.noJobs(); err != nil {
		return out, err
	}
	if offset < 0 {
		offset = -int64(limit)
	}
	patient, cancel := context.WithTimeout(ctx, logPatience)
	defer cancel()
	l, err := v.o.Jobs.Logs(patient, id, offset, int64(limit))
	switch {
	case ctx.Err() != nil:
		return out, ctx.Err()
	case errors.Is(err, jobs.ErrUnknownJob):
		return out, v.refused(ctx, err)
	case errors.Is(err, jobs.ErrUnreachable), patient.Err() != nil:
		out.Problem = "Its cluster does not answer in time, so the log cannot be read now."
		return out, nil
	case err != nil:
		return out, v.refused(ctx, err)
	}
	out.LogChunk = web.LogChunk{Text: l.Text, Offset: offset, Next: l.Next, Ended: l.Ended, EOF: l.Ended || offset < 0 || l.Next-offset < int64(limit)}
	if offset < 0 {
		out.Offset = max(0, l.Next-int64(len(l.Text)))
	}
	out.Kept = l.Kept
	return out, nil
}

// jobFields are the fields of the form of a job.
var jobFields = []string{
	"entrypoint", "submission_id", "job_id", "preferred_cluster", "cpu", "gpu", "memory", "resources", "reserve", "priority", "queue_timeout",
	"max_retries", "retry_on", "runtime_env", "metadata", "tags",
}

// SubmitJob submits what the form says.
func (v *View) SubmitJob(ctx context.Context, n web.NewJob) (string, error) {
	if err := v.noJobs(); err != nil {
		return "", err
	}
	if n.Like != "" {
		like, err := v.o.Jobs.Job(ctx, n.Like)
		if err != nil && !errors.Is(err, jobs.ErrUnknownJob) {
			return "", v.refused(ctx, err)
		}
		n.RuntimeEnv = web.Unmask(n.RuntimeEnv, like.RuntimeEnv)
	}
	if bytes.Contains(n.RuntimeEnv, []byte(web.Masked)) {
		return "", invalid("runtime_env", "It has "+web.Masked+" where there is nothing to put in its place; type the value.")
	}
	timeout := n.QueueTimeout.Seconds()
	body := api.NewJob{Entrypoint: n.Entrypoint, SubmissionID: n.SubmissionID, JobID: n.JobID, RuntimeEnv: n.RuntimeEnv, Metadata: n.Metadata, Tags: n.Tags, PreferredCluster: n.Preferred,
		Requirements: api.JobAmounts{}, Reserve: n.Reserve, Priority: &n.Priority, QueueTimeout: &timeout, MaxRetries: n.MaxRetries, RetryOn: n.RetryOn}
	for name, amount := range n.Request {
		switch name {
		case "cpu", "gpu":
			body.Requirements[strings.ToUpper(name)] = float64(amount) / 1000
		case "memory":
			body.Requirements[name] = float64(amount) / 1024 // GiB
		default:
			body.Requirements[name] = float64(amount) / 1000
		}
	}
	spec, err := body.Spec(actor(ctx))
	if err != nil {
		return "", jobFault(err)
	}
	j, _, err := v.o.Jobs.Submit(ctx, spec)
	v.loads.forget("")
	byCode := map[string]string{jobs.ErrJobExists.Code: "submission_id"}
	return j.SubmissionID, v.onForm(ctx, err, byCode, jobFields...)
}

// jobFault is what REST would say of a job, under the names of the form.
func jobFault(err error) error {
	var p *problem.Problem
	if !errors.As(err, &p) {
		return err
	}
	out := &pages.Refusal{ErrorCode: p.Code, Message: sentence(p.Detail), ByField: map[string]string{}}
	for _, item := range p.Errors {
		field := item.Field
		if name, ok := strings.CutPrefix(field, "resource_requirements."); ok {
			if field = strings.ToLower(name); field != "cpu" && field != "gpu" && field != "memory" {
				field = "resources"
			}
		}
		out.ByField[field] = sentence(item.Message)
	}
	return out
}

// StopJob has a job stopped.
func (v *View) StopJob(ctx context.Context, id string) error {
	if err := v.noJobs(); err != nil {
		return err
	}
	j, err := v.o.Jobs.Job(ctx, id)
	if err != nil {
		return v.refused(ctx, err)
	}
	if jobs.Ended(j.State) {
		return &pages.Refusal{ErrorCode: "wrong_state", Message: fmt.Sprintf("%s is %s already.", id, strings.ToLower(j.State))}
	}
	_, err = v.o.Jobs.Stop(ctx, id, actor(ctx))
	v.loads.forget("")
	return v.refused(ctx, err)
}

// findJobs adds clusters and jobs to what the jump box found.
func (v *View) findJobs(ctx context.Context, text string, limit int, out []web.Hit) ([]web.Hit, error) {
	if v.noJobs() != nil {
		return out, nil
	}
	low := strings.ToLower(text)
	var exact, rest []web.Hit
	put := func(h web.Hit) {
		if h.Name == text {
			exact = append(exact, h)
		} else {
			rest = append(rest, h)
		}
	}
	for _, c := range v.o.Registry.All() {
		if strings.Contains(strings.ToLower(c.Name), low) && len(exact)+len(rest) < limit {
			put(web.Hit{Kind: "cluster", Name: c.Name, Note: either(c.Status.State, "unseen"), Href: "/clusters/" + web.Escape(c.Name)})
		}
	}
	if j, err := v.o.Jobs.Job(ctx, text); err == nil {
		put(jobHit(j))
	} else if !errors.Is(err, jobs.ErrUnknownJob) {
		return out, v.refused(ctx, err)
	}
	page, err := v.o.Jobs.Find(ctx, jobs.Filter{Text: text, Limit: limit})
	if err != nil {
		return out, v.refused(ctx, err)
	}
	for _, j := range page.Items {
		if j.SubmissionID != text && strings.Contains(strings.ToLower(j.SubmissionID+"\n"+j.JobID), low) { // not merely in its entrypoint
			put(jobHit(j))
		}
	}
	split := 0 // what is called exactly like that stays in front
	for split < len(out) && out[split].Name == text {
		split++
	}
	all := append(append(append(append([]web.Hit{}, out[:split]...), exact...), out[split:]...), rest...)
	return all[:min(limit, len(all))], nil
}

func jobHit(j jobs.Job) web.Hit {
	note := strings.ToLower(j.State)
	if j.Cluster != "" {
		note += " on " + j.Cluster
	}
	return web.Hit{Kind: "job", Name: j.SubmissionID, Note: note, Href: "/jobs/" + web.Escape(j.SubmissionID)}
}
