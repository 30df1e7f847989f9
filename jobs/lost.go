package jobs

import (
	"fmt"
	"slices"
	"strings"

	"github.com/schedulemesh/schedulemesh/clusters"
)

// Jobs that failed, or that nobody knows of any more, and what follows from it. All under e.mu.

// failed ends a job that failed, or tries it again.
func (e *engine) failed(j *job, info clusters.JobInfo) {
	code := "job_failed"
	switch {
	case info.ErrorType != "":
		code = strings.ToLower(info.ErrorType)
	case info.ExitCode != nil:
		code = "exit_code"
	}
	if e.nodeLost(j, info) {
		code = NodeLost
		if e.retry(j, NodeLost, "the node that it ran on is gone") {
			return
		}
	}
	e.endAs(j, Failed, code, whyFailed(info), "", e.endOf(info), &info)
}

// whyFailed is a sentence of what Ray says. Of an entrypoint that failed it says the exit code and
// then much of what was printed, of which the last line tells most.
func whyFailed(info clusters.JobInfo) string {
	text := strings.TrimSpace(clean(info.Message))
	switch {
	case text == "":
		return "it failed, and Ray does not say why"
	case info.ExitCode == nil || !strings.HasPrefix(text, "Job entrypoint command failed"):
		return firstLine(text)
	}
	why := fmt.Sprintf("its entrypoint ended with exit code %d", *info.ExitCode)
	if lines := strings.Split(text, "\n"); len(lines) > 1 {
		why += ": " + firstLine(lines[len(lines)-1])
	}
	return why
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if r := []rune(line); len(r) > 500 {
		return string(r[:500]) + "…"
	}
	return line
}

// nodeLost tells that a job failed because the node of its entrypoint is gone: Ray says that what looked
// after it died, and the node is not among the living.
func (e *engine) nodeLost(j *job, info clusters.JobInfo) bool {
	if info.ExitCode != nil || !strings.Contains(info.ErrorType, "SUPERVISOR_ACTOR") && !strings.Contains(strings.ToLower(info.Message), "node") {
		return false
	}
	c, _ := e.s.o.Fleet.Get(j.Cluster)
	if info.NodeID != "" && len(c.Status.Nodes) > 0 {
		return !slices.ContainsFunc(c.Status.Nodes, func(n clusters.Node) bool { return n.ID == info.NodeID && n.Alive })
	}
	m := strings.ToLower(info.Message)
	return strings.Contains(m, "node") && (strings.Contains(m, "died") || strings.Contains(m, "dead") || strings.Contains(m, "terminated"))
}

// retry puts a job back in line for its next attempt, if it may be tried again after what happened.
func (e *engine) retry(j *job, on, why string) bool {
	if j.StopRequestedAt != nil || !slices.Contains(j.RetryOn, on) || j.Attempt > j.MaxRetries {
		return false
	}
	now := e.s.now()
	from := j.Cluster
	e.move(j, nil, Event{Type: "retry", Cluster: from, Code: on, Message: fmt.Sprintf("%s; it is tried again, attempt %d of %d", why, j.Attempt+1, j.MaxRetries+1)}, func(x *Job) {
		x.State, x.Code, x.Reason, x.Attempt = Queued, on, why, x.Attempt+1
		x.QueuedAt, x.PlacedAt, x.AcceptedAt, x.StartedAt = now, nil, nil, nil
		x.Tried, x.Session, x.Message, x.ErrorType, x.ExitCode = nil, "", "", "", nil
	})
	e.s.o.Metrics.retried(on)
	e.enqueue(j)
	e.poke()
	return true
}

// lose gives up a job's run. It may turn up again if its cluster just does not answer.
func (e *engine) lose(j *job, why string, mayReturn bool) {
	e.s.log.Warn("a job is lost", "job", j.SubmissionID, "cluster", j.Cluster, "reason", why)
	if mayReturn {
		e.addStray(j)
	}
	if j.StopRequestedAt != nil {
		e.end(j, Stopped, ClusterLost, why, j.StopRequestedBy)
		return
	}
	if !e.retry(j, ClusterLost, why) {
		e.end(j, Failed, ClusterLost, why, "")
	}
}
