package jobs

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// Rows and values of the same thing.

func pgUUID(id sched.ID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// asJSON never fails for what we write: plain values of ours.
func asJSON(v any) []byte {
	b, _ := json.Marshal(v)
	return b
}

func fromRow(r dbgen.Job) (Job, error) {
	j := Job{
		UID: sched.ID(r.Uid.Bytes),
		Spec: Spec{Entrypoint: r.Entrypoint, SubmissionID: r.SubmissionID, JobID: r.JobID, RuntimeEnv: r.RuntimeEnv, Tags: r.Tags,
			PreferredCluster: r.PreferredCluster, Reserve: r.Reserve, Priority: sched.Milli(r.Priority), QueueTimeout: time.Duration(r.QueueTimeoutMs) * time.Millisecond,
			MaxRetries: int(r.MaxRetries), RetryOn: r.RetryOn, SubmittedBy: r.SubmittedBy},
		State: r.State, Code: r.Code, Reason: r.Reason, Attempt: int(r.Attempt), Cluster: r.Cluster, RayID: r.RayID, Session: r.Session, MergedEnv: r.MergedEnv,
		StopRequestedBy: r.StopRequestedBy, StopRequestedAt: r.StopRequestedAt, ErrorType: r.ErrorType, Message: r.Message,
		CreatedAt: r.CreatedAt, QueuedAt: r.QueuedAt, PlacedAt: r.PlacedAt, AcceptedAt: r.AcceptedAt, StartedAt: r.StartedAt, EndedAt: r.EndedAt, Rev: r.Rev,
	}
	if r.ExitCode != nil {
		code := int(*r.ExitCode)
		j.ExitCode = &code
	}
	for _, part := range []struct {
		text []byte
		into any
	}{{r.Metadata, &j.Metadata}, {r.Requirements, &j.Requirements}, {r.Placement, &j.Placement}, {r.Tried, &j.Tried}, {r.Notes, &j.Notes}} {
		if len(part.text) == 0 {
			continue
		}
		if err := json.Unmarshal(part.text, part.into); err != nil {
			return j, err
		}
	}
	return j, nil
}

func fromRows(rows []dbgen.Job) ([]Job, error) {
	out := make([]Job, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = fromRow(r); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func insertRow(j Job, print []byte) dbgen.InsertJobParams {
	return dbgen.InsertJobParams{Uid: pgUUID(j.UID), SubmissionID: j.SubmissionID, JobID: j.JobID, Entrypoint: j.Entrypoint, RuntimeEnv: j.RuntimeEnv,
		Metadata: asJSON(j.Metadata), Tags: j.Tags, PreferredCluster: j.PreferredCluster, Requirements: j.Requirements.AppendJSON(nil), Reserve: j.Reserve,
		Priority: int64(j.Priority), QueueTimeoutMs: j.QueueTimeout.Milliseconds(), MaxRetries: int32(j.MaxRetries), RetryOn: j.RetryOn, SubmittedBy: j.SubmittedBy,
		Fingerprint: print, Notes: asJSON(orEmpty(j.Notes)), CreatedAt: j.CreatedAt}
}

func moveRow(j Job, rev int64) dbgen.MoveJobParams {
	p := dbgen.MoveJobParams{Uid: pgUUID(j.UID), Rev: rev, State: j.State, Code: j.Code, Reason: j.Reason, Attempt: int32(j.Attempt), Cluster: j.Cluster, RayID: j.RayID,
		Session: j.Session, MergedEnv: j.MergedEnv, Tried: asJSON(orEmpty(j.Tried)), Notes: asJSON(orEmpty(j.Notes)), ErrorType: j.ErrorType, Message: j.Message,
		QueuedAt: j.QueuedAt, PlacedAt: j.PlacedAt, AcceptedAt: j.AcceptedAt, StartedAt: j.StartedAt, EndedAt: j.EndedAt}
	if j.Placement != nil {
		p.Placement = asJSON(j.Placement)
	}
	if j.ExitCode != nil {
		code := int32(*j.ExitCode)
		p.ExitCode = &code
	}
	return p
}

func eventRow(uid sched.ID, e Event) dbgen.AddJobEventParams {
	return dbgen.AddJobEventParams{JobUid: pgUUID(uid), At: e.At, Type: e.Type, Actor: e.Actor, Attempt: int32(e.Attempt), Cluster: e.Cluster, Code: e.Code, Message: e.Message, Detail: e.Detail}
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// fingerprint tells whether two requests ask for the same: by what was said, whoever said it.
func fingerprint(s Spec) []byte {
	s.SubmittedBy = ""
	var env bytes.Buffer
	_ = json.Compact(&env, s.RuntimeEnv)
	s.RuntimeEnv = env.Bytes()
	sum := sha256.Sum256(asJSON(s))
	return sum[:]
}
