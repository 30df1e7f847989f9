package api

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/schedulemesh/schedulemesh/jobs"
	"github.com/schedulemesh/schedulemesh/sched"
)

// maxJobWait is the most a request may wait for a job.
const maxJobWait = time.Minute

// Job is a job as answers have it. Lists leave out what can be large: runtime_env,
// merged_runtime_env and placement.
type Job struct {
	UID              UID               `json:"uid" doc:"Identifies the job for ever."`
	SubmissionID     string            `json:"submission_id" doc:"Unique." example:"sub_0197a2b46d1e7c3f"`
	JobID            string            `json:"job_id" doc:"For people; several jobs may share it." example:"nightly-train"`
	Entrypoint       string            `json:"entrypoint" example:"python /home/user/train.py"`
	State            string            `json:"state" enum:"QUEUED,SUBMITTING,PENDING,RUNNING,UNKNOWN,SUCCEEDED,FAILED,STOPPED" doc:"QUEUED and SUBMITTING are ours, before Ray knows of it. UNKNOWN: its cluster does not answer. The rest are Ray's."`
	Status           string            `json:"status" enum:"PENDING,RUNNING,UNKNOWN,SUCCEEDED,FAILED,STOPPED" doc:"The same as Ray names it: QUEUED and SUBMITTING are PENDING."`
	Code             string            `json:"code" doc:"Why, for programs: cluster_lost, queue_timeout, …; empty when things just went well."`
	Reason           string            `json:"reason" doc:"The same for people."`
	Cluster          string            `json:"cluster" doc:"Where it is, or was last; empty: nowhere yet." example:"gpu_cluster"`
	RayID            string            `json:"ray_submission_id" doc:"Its submission_id in Ray; empty until it goes somewhere."`
	Attempt          int               `json:"attempt" doc:"1 for the first." example:"1"`
	PreferredCluster string            `json:"preferred_cluster"`
	Requirements     JobUnits          `json:"resource_requirements"`
	Reserve          string            `json:"reserve" enum:"entrypoint,none"`
	Priority         sched.Milli       `json:"priority" example:"5"`
	QueueTimeout     *float64          `json:"queue_timeout" nullable:"true" doc:"Seconds; null when it waits for ever."`
	QueuePosition    *int              `json:"queue_position" nullable:"true" doc:"1 goes next; null when it is not in line."`
	MaxRetries       int               `json:"max_retries"`
	RetryOn          []string          `json:"retry_on" nullable:"false"`
	RuntimeEnv       json.RawMessage   `json:"runtime_env,omitzero" doc:"As it was sent."`
	MergedEnv        json.RawMessage   `json:"merged_runtime_env,omitzero" doc:"What Ray got: the cluster's, with the job's laid over it."`
	Metadata         map[string]string `json:"metadata"`
	Tags             []string          `json:"tags" nullable:"false"`
	Placement        *Placement        `json:"placement,omitempty" doc:"Why it is where it is, or why it is nowhere yet; left out until that was first tried."`
	Tried            []Tried           `json:"tried" nullable:"false" doc:"Clusters that did not take this attempt."`
	Notes            []string          `json:"notes" nullable:"false" doc:"What to know of how it was taken, such as an unknown preferred_cluster."`
	StopRequestedBy  string            `json:"stop_requested_by" doc:"Empty when nobody asked."`
	StopRequestedAt  Stamp             `json:"stop_requested_at"`
	ExitCode         *int              `json:"exit_code" nullable:"true" doc:"Of the entrypoint; null until Ray says."`
	ErrorType        string            `json:"error_type" doc:"Ray's name of what went wrong."`
	Message          string            `json:"message" doc:"Ray's words."`
	CreatedAt        Stamp             `json:"created_at"`
	QueuedAt         Stamp             `json:"queued_at" doc:"Of this attempt."`
	PlacedAt         Stamp             `json:"placed_at"`
	AcceptedAt       Stamp             `json:"accepted_at" doc:"When Ray took it."`
	StartedAt        Stamp             `json:"started_at"`
	EndedAt          Stamp             `json:"ended_at"`
	SubmittedBy      string            `json:"submitted_by" example:"api"`
	Links            Links             `json:"links"`
}

// Tried is a cluster that did not take a job.
type Tried struct {
	Cluster string `json:"cluster"`
	Why     string `json:"why"`
	At      Stamp  `json:"at"`
	Refused bool   `json:"refused" doc:"It said no; else it did not answer, and may be asked again."`
}

// Placement says why a job is where it is.
type Placement struct {
	Cluster string           `json:"cluster" doc:"Empty: nobody has room now."`
	Reason  string           `json:"reason" doc:"A sentence."`
	Score   float64          `json:"score" doc:"Of the chosen one."`
	Parts   *jobs.Parts      `json:"parts,omitempty" doc:"How the score is made up: free × weight × health × prefer × tags."`
	Others  []PlaceCandidate `json:"others" nullable:"false" doc:"The best of the rest."`
	Not     []jobs.Reject    `json:"not" nullable:"false" doc:"All others, counted by why not: lower_score, no_room, too_small, unhealthy, unseen, held, tried."`
	Notes   []string         `json:"notes" nullable:"false"`
}

// PlaceCandidate is a cluster that was not chosen.
type PlaceCandidate struct {
	Cluster string      `json:"cluster"`
	Code    string      `json:"code" doc:"Why not: lower_score, no_room, too_small, unhealthy, unseen, held, tried."`
	Reason  string      `json:"reason"`
	Score   float64     `json:"score"`
	Parts   *jobs.Parts `json:"parts,omitempty"`
	Missing Units       `json:"missing" doc:"What it lacks."`
}

func placementDoc(p *jobs.Placement) *Placement {
	if p == nil {
		return nil
	}
	return &Placement{p.Cluster, p.Reason, p.Score, p.Parts, mapped(p.Others, func(c jobs.Candidate) PlaceCandidate {
		return PlaceCandidate{c.Cluster, c.Code, c.Reason, c.Score, c.Parts, Units(c.Missing)}
	}), append([]jobs.Reject{}, p.Not...), orEmpty(p.Notes)}
}

// statusOf is a state as Ray names it.
func statusOf(state string) string {
	if state == jobs.Queued || state == jobs.Submitting {
		return jobs.Pending
	}
	return state
}

// jobDoc is the whole job.
func jobDoc(j jobs.Job) Job {
	out := jobRow(j)
	out.RuntimeEnv, out.MergedEnv, out.Placement = orNil(j.RuntimeEnv), orNil(j.MergedEnv), placementDoc(j.Placement)
	return out
}

// jobRow is the job in a list.
func jobRow(j jobs.Job) Job {
	out := Job{UID: UID(j.UID), SubmissionID: j.SubmissionID, JobID: j.JobID, Entrypoint: j.Entrypoint, State: j.State, Status: statusOf(j.State),
		Code: j.Code, Reason: j.Reason, Cluster: j.Cluster, RayID: j.RayID, Attempt: j.Attempt, PreferredCluster: j.PreferredCluster,
		Requirements: JobUnits(j.Requirements), Reserve: j.Reserve, Priority: j.Priority, QueueTimeout: secondsOrNull(j.QueueTimeout),
		MaxRetries: j.MaxRetries, RetryOn: orEmpty(j.RetryOn), Metadata: j.Metadata, Tags: orEmpty(j.Tags), Notes: orEmpty(j.Notes),
		Tried:           mapped(j.Tried, func(t jobs.Tried) Tried { return Tried{t.Cluster, t.Why, Stamp(t.At), t.Refused} }),
		StopRequestedBy: j.StopRequestedBy, StopRequestedAt: stampOf(j.StopRequestedAt), ExitCode: j.ExitCode, ErrorType: j.ErrorType, Message: j.Message,
		CreatedAt: Stamp(j.CreatedAt), QueuedAt: Stamp(j.QueuedAt), PlacedAt: stampOf(j.PlacedAt), AcceptedAt: stampOf(j.AcceptedAt),
		StartedAt: stampOf(j.StartedAt), EndedAt: stampOf(j.EndedAt), SubmittedBy: j.SubmittedBy, Links: linksTo(defaultNamespace, "jobs", j.SubmissionID)}
	if out.Metadata == nil {
		out.Metadata = map[string]string{}
	}
	if j.QueuePosition > 0 {
		out.QueuePosition = &j.QueuePosition
	}
	return out
}

// JobEvent is one line of a job's history.
type JobEvent struct {
	ID      int64           `json:"id"`
	At      Stamp           `json:"at"`
	Type    string          `json:"type" doc:"A state in lower case, or what happened besides: placed, submit_failed, lost, found_again, retry, stop_requested, stray_stopped." example:"placed"`
	Actor   string          `json:"actor" doc:"Who did it; empty for the scheduler."`
	Attempt int             `json:"attempt"`
	Cluster string          `json:"cluster"`
	Code    string          `json:"code"`
	Message string          `json:"message" doc:"For people."`
	Detail  json.RawMessage `json:"detail,omitzero"`
}

// OutsideJob is a job that others started on one of our clusters; it can only be looked at.
type OutsideJob struct {
	Cluster    string            `json:"cluster"`
	RayID      string            `json:"ray_id" doc:"Its submission_id in Ray, or the job id of a plain driver."`
	Kind       string            `json:"kind" enum:"SUBMISSION,DRIVER"`
	Entrypoint string            `json:"entrypoint"`
	State      string            `json:"state" doc:"As Ray says."`
	Message    string            `json:"message"`
	Metadata   map[string]string `json:"metadata"`
	StartedAt  Stamp             `json:"started_at"`
	EndedAt    Stamp             `json:"ended_at"`
	SeenAt     Stamp             `json:"seen_at" doc:"When the cluster last said so."`
}

// JobPath names a job.
type JobPath struct {
	ID string `path:"submission_id" doc:"Its submission_id, percent-encoded." example:"sub_0197a2b46d1e7c3f"`
}

func (p *JobPath) check(f *faults) { f.name("path", "submission_id", p.ID) }

// JobWait lets a request wait for a job.
type JobWait struct {
	Wait string `query:"wait" doc:"Wait, at most this long: 30s, 1m, or seconds. More than a minute counts as a minute." example:"30s"`

	wait time.Duration
}

func (w *JobWait) checkWait(f *faults) {
	d, bad := parseWait(w.Wait)
	if bad != "" {
		f.add("query", "wait", "%s", bad)
	}
	w.wait = min(d, maxJobWait)
}

// waitJob gives the job as soon as until says yes, or as it is when the time is up.
func (a *API) waitJob(ctx context.Context, submissionID string, wait time.Duration, until func(jobs.Job) bool) (jobs.Job, error) {
	bounded, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return a.jobs.Wait(bounded, submissionID, until)
}

func ended(j jobs.Job) bool { return jobs.Ended(j.State) }

// settled is when somebody who submitted knows what to expect: Ray has it, it waits in line, or it is over.
func settled(j jobs.Job) bool {
	switch j.State {
	case jobs.Submitting:
		return false
	case jobs.Queued:
		return j.Placement != nil && j.Placement.Cluster == ""
	}
	return true
}

// JobQuery narrows a list of jobs.
type JobQuery struct {
	Paging
	State    []string  `query:"state" doc:"Only these states, separated by commas." enum:"QUEUED,SUBMITTING,PENDING,RUNNING,UNKNOWN,SUCCEEDED,FAILED,STOPPED"`
	Cluster  string    `query:"cluster" doc:"Only jobs that are there, or were last."`
	JobID    string    `query:"job_id" doc:"Only jobs with this job_id."`
	Tag      []string  `query:"tag,explode" doc:"Only jobs with this tag; repeat it for several."`
	Metadata []string  `query:"metadata,explode" doc:"Only jobs with this in their metadata, as key=value; repeat it for several."`
	Text     string    `query:"q" doc:"Only jobs with this in their submission_id, job_id or entrypoint."`
	After    time.Time `query:"after" doc:"Only jobs made at this time or later."`
	Before   time.Time `query:"before" doc:"Only jobs made before this time."`

	metadata map[string]string
}

func (q *JobQuery) check(f *faults) {
	q.checkPaging(f)
	f.optionalName("query", "cluster", q.Cluster)
	f.optionalName("query", "job_id", q.JobID)
	f.optionalName("query", "q", q.Text)
	for _, t := range q.Tag {
		f.optionalName("query", "tag", t)
	}
	for _, m := range q.Metadata {
		k, v, ok := strings.Cut(m, "=")
		if !ok || k == "" || unprintable(m) != "" {
			f.add("query", "metadata", "%.200q is not key=value", m)
			continue
		}
		if q.metadata == nil {
			q.metadata = map[string]string{}
		}
		q.metadata[k] = v
	}
}

// Jobs is one page of a list of jobs.
type JobList struct {
	List[Job]
	Total   int            `json:"total" doc:"Jobs on all pages."`
	ByState map[string]int `json:"by_state" doc:"Jobs of each state, whatever ?state= says; the other filters count."`
}

func (a *API) registerJobs(v1 chi.Router) {
	type submitted struct {
		Status   int
		Location string `header:"Location" doc:"Address of the job."`
		Body     Job
	}
	register(a, operation{id: "submit-job", method: "POST", path: "/jobs", tag: "Jobs", status: 201,
		summary: "Submit a job", about: "Takes a command that shall run on one of the clusters. The job is durable when the answer comes. It goes to `preferred_cluster` if there is room, else to the healthy cluster with the best score; " +
			"when nobody has room it waits, by priority, then by age. Whatever happens on the way it runs once.\n\n" +
			"With `wait` the answer comes once Ray has it, it waits in line, or it is over. The same submission_id with the same body is answered 200 with the job; with another body it is refused.",
		codes:   []string{"job_exists", "no_clusters", "no_cluster_large_enough", "unknown_package"},
		request: jobExample,
	}, func(ctx context.Context, in *struct {
		SubmitJob
		Body NewJob
	}) (*submitted, error) {
		spec, err := in.Body.Spec(actor(ctx))
		if err != nil {
			return nil, err
		}
		j, created, err := a.jobs.Submit(ctx, spec)
		if err == nil && in.wait > 0 && !settled(j) {
			j, err = a.waitJob(ctx, j.SubmissionID, in.wait, settled)
		}
		if err != nil {
			return nil, err
		}
		out := &submitted{Status: 201, Body: jobDoc(j)}
		out.Location = out.Body.Links.Self
		if !created {
			out.Status = 200
		}
		return out, nil
	})

	register(a, operation{id: "list-jobs", method: "GET", path: "/jobs", tag: "Jobs",
		summary: "List jobs", about: "Newest first. Large fields are left out; read the job for them.", query: "state=QUEUED,RUNNING&tag=nightly&metadata=user%3Dalice",
	}, func(ctx context.Context, in *JobQuery) (*Doc[JobList], error) {
		p, err := a.jobs.Find(ctx, jobs.Filter{States: in.State, Cluster: in.Cluster, JobID: in.JobID, Tags: in.Tag, Metadata: in.metadata, Text: in.Text,
			After: in.After, Before: in.Before, Limit: in.Limit, Cursor: in.Cursor})
		out := JobList{list(mapped(p.Items, jobRow), p.Next), p.Total, p.Count}
		if out.ByState == nil {
			out.ByState = map[string]int{}
		}
		return doc(out, err)
	})

	register(a, operation{id: "get-job", method: "GET", path: "/jobs/{submission_id}", tag: "Jobs",
		summary: "Read a job", about: "With `wait` the answer comes once it is over, at the latest after that time.", codes: []string{"unknown_job"},
	}, func(ctx context.Context, in *ReadJob) (*Doc[Job], error) {
		if in.wait > 0 {
			j, err := a.waitJob(ctx, in.ID, in.wait, ended)
			return doc(jobDoc(j), err)
		}
		j, err := a.jobs.Job(ctx, in.ID)
		return doc(jobDoc(j), err)
	})

	register(a, operation{id: "stop-job", method: "POST", path: "/jobs/{submission_id}/stop", tag: "Jobs",
		summary: "Stop a job", about: "A job in line is over at once; one on a cluster is stopped there, which takes Ray some seconds: read it to see it STOPPED. One that is over stays as it is.",
		codes: []string{"unknown_job"},
	}, func(ctx context.Context, in *JobPath) (*Doc[Job], error) {
		j, err := a.jobs.Stop(ctx, in.ID, actor(ctx))
		return doc(jobDoc(j), err)
	})

	register(a, operation{id: "list-job-events", method: "GET", path: "/jobs/{submission_id}/events", tag: "Jobs",
		summary: "Read a job's history", about: "All that happened to it, oldest first, on one page.", codes: []string{"unknown_job"},
	}, func(ctx context.Context, in *JobPath) (*Doc[List[JobEvent]], error) {
		events, err := a.jobs.Events(ctx, in.ID)
		return doc(list(mapped(events, func(e jobs.Event) JobEvent {
			return JobEvent{e.ID, Stamp(e.At), e.Type, e.Actor, e.Attempt, e.Cluster, e.Code, e.Message, orNil(e.Detail)}
		}), ""), err)
	})

	register(a, operation{id: "list-outside-jobs", method: "GET", path: "/outside-jobs", tag: "Jobs",
		summary: "List what others started", about: "Jobs on our clusters that did not come through here, newest first, on one page. They can only be looked at.",
		codes: []string{"unknown_cluster"}, query: "cluster=gpu_cluster",
	}, func(ctx context.Context, in *struct {
		Cluster string `query:"cluster" doc:"Only those on this cluster."`
		Limit   int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"The most items to answer with."`
	}) (*Doc[List[OutsideJob]], error) {
		if in.Cluster != "" {
			if _, err := a.cluster(in.Cluster); err != nil {
				return nil, err
			}
		}
		found, err := a.jobs.Outside(ctx, in.Cluster, in.Limit)
		return doc(list(mapped(found, outsideDoc), ""), err)
	})

	a.registerJobLogs(v1)
}

// SubmitJob is the query of a submission.
type SubmitJob struct{ JobWait }

func (s *SubmitJob) check(f *faults) { s.checkWait(f) }

// ReadJob names a job, and how long to wait for its end.
type ReadJob struct {
	JobPath
	JobWait
}

func (r *ReadJob) check(f *faults) {
	r.JobPath.check(f)
	r.checkWait(f)
}

func outsideDoc(o jobs.Outside) OutsideJob {
	out := OutsideJob{o.Cluster, o.RayID, o.Kind, o.Entrypoint, o.State, o.Message, o.Metadata, stampOf(o.StartedAt), stampOf(o.EndedAt), Stamp(o.SeenAt)}
	if out.Metadata == nil {
		out.Metadata = map[string]string{}
	}
	return out
}
