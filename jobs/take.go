package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// Jobs are taken, and asked to stop, on any server.

// Submit takes a job: it is on disk when this returns. created is false when the same job was there.
func (s *Service) Submit(ctx context.Context, spec Spec) (Job, bool, error) {
	j, err := s.prepare(spec)
	if err != nil {
		return Job{}, false, err
	}
	said := j.Spec
	said.JobID = spec.JobID // one that was made up is another each time
	print := fingerprint(said)
	if spec.SubmissionID != "" { // a repeated request is answered with the job, whatever has become of the clusters since
		if old, err := s.same(ctx, j.SubmissionID, print); err == nil || !errors.Is(err, ErrUnknownJob) {
			return old, false, err
		}
	}
	if err := s.possible(&j); err != nil {
		return Job{}, false, err
	}
	answer := make(chan error, 1)
	c := change{job: j, print: print, isNew: true, done: func(err error) { answer <- err },
		events: []Event{{At: j.CreatedAt, Type: "queued", Actor: j.SubmittedBy, Attempt: 1, Message: "taken", Detail: nil}}}
	s.inserts.push(c)
	select {
	case err = <-answer:
	case <-ctx.Done(): // it may be taken all the same: the same id asks
		return Job{}, false, ctx.Err()
	}
	switch {
	case errors.Is(err, errTaken):
		old, err := s.same(ctx, j.SubmissionID, print)
		return old, false, err
	case err != nil:
		return Job{}, false, unavailable(err)
	}
	s.o.Metrics.submitted()
	return j, true, nil
}

// prepare fills in what a Spec leaves open.
func (s *Service) prepare(spec Spec) (Job, error) {
	fields := map[string]string{}
	if err := CheckEntrypoint(spec.Entrypoint); err != nil {
		fields["entrypoint"] = err.Error()
	}
	if spec.MaxRetries < 0 {
		fields["max_retries"] = "is negative; 0 means none"
	}
	for _, on := range spec.RetryOn {
		if on != ClusterLost && on != NodeLost {
			fields["retry_on"] = fmt.Sprintf("%q is neither %s nor %s", on, ClusterLost, NodeLost)
		}
	}
	if spec.Reserve == "" {
		spec.Reserve = ReserveEntrypoint
	} else if spec.Reserve != ReserveEntrypoint && spec.Reserve != ReserveNone {
		fields["reserve"] = fmt.Sprintf("%q is neither %s nor %s", spec.Reserve, ReserveEntrypoint, ReserveNone)
	}
	if len(fields) > 0 {
		return Job{}, &ledger.Error{Code: "invalid", Message: "the job cannot be taken as it is", Fields: fields}
	}
	if spec.SubmissionID == "" {
		spec.SubmissionID = "sub_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	}
	if spec.JobID == "" {
		spec.JobID = "job_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	}
	if len(spec.RuntimeEnv) == 0 {
		spec.RuntimeEnv = json.RawMessage("{}")
	}
	if spec.Metadata == nil {
		spec.Metadata = map[string]string{}
	}
	if spec.MaxRetries > 0 && len(spec.RetryOn) == 0 {
		spec.RetryOn = []string{ClusterLost, NodeLost}
	}
	spec.Tags, spec.RetryOn = orEmpty(spec.Tags), orEmpty(spec.RetryOn)
	now := s.now()
	return Job{UID: sched.ID(uuid.Must(uuid.NewV7())), Spec: spec, State: Queued, Attempt: 1, CreatedAt: now, QueuedAt: now, Rev: 1}, nil
}

// ask is what a job asks of a placement.
func (j *Job) ask() Ask {
	return Ask{Requirements: j.Requirements, OneNode: j.Reserve == ReserveEntrypoint, Tags: j.Tags, Preferred: j.PreferredCluster, Tried: j.Tried}
}

// possible refuses a job that no cluster could ever take, and notes what its sender should know.
func (s *Service) possible(j *Job) error {
	sites := s.sites.get(s.o.Fleet)
	if len(sites) == 0 {
		return &ledger.Error{Code: ErrNoClusters.Code, Message: "no cluster is configured: name one in clusters.yaml, or add it on the page or with PUT /api/v1/clusters/{name}"}
	}
	a := j.ask()
	if Impossible(sites, a) {
		p := explain(sites, a)
		return &ledger.Error{Code: ErrImpossible.Code, Message: fmt.Sprintf("no cluster could ever take a job that asks for %s: %s", j.Requirements, tooSmall(p)), Detail: p}
	}
	if j.PreferredCluster != "" && !slices.ContainsFunc(sites, func(s *Site) bool { return s.c.Name == j.PreferredCluster }) {
		j.Notes = preferredNote(sites, a, "")
	}
	return nil
}

// same reads the job that has an id already, when it is the same.
func (s *Service) same(ctx context.Context, id string, print []byte) (Job, error) {
	row, err := s.q.JobBySubmission(ctx, id)
	if err != nil {
		return Job{}, s.readError(err, id)
	}
	if string(row.Fingerprint) != string(print) {
		return Job{}, &ledger.Error{Code: ErrJobExists.Code, Message: fmt.Sprintf("another job has the submission_id %q: give each submission an id of its own, or none", id)}
	}
	j, err := fromRow(row)
	return j, err
}

// Stop has a job stopped; one that is over already is just answered.
func (s *Service) Stop(ctx context.Context, id, actor string) (Job, error) {
	now := s.now()
	row, err := s.q.RequestStop(ctx, dbgen.RequestStopParams{SubmissionID: id, Actor: actor, At: &now})
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Job{}, unavailable(err)
	}
	if err == nil {
		if e := s.engine.Load(); e != nil {
			e.stop(sched.ID(row.Uid.Bytes), actor, now)
		} else if _, err := s.pool.Exec(ctx, "SELECT pg_notify($1, $2)", Channel, saysStop); err != nil {
			s.log.Warn("the server that moves jobs could not be told of a stop; it looks by itself", "error", err)
		}
	}
	return s.Job(ctx, id)
}
