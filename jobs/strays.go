package jobs

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/db/dbgen"
)

// A submission that was left behind, or a run that was given up because its cluster was silent, is a stray.
// When the cluster answers again: what is not there is forgotten; what is there, and was replaced by nothing,
// is the job itself, found again; anything else is stopped.

const (
	strayEvery = 5 * time.Second
	strayLife  = 2 * time.Minute // for how long a cluster that answers may still bring one up
)

// keepStrays looks for strays where the cluster answers. Under e.mu.
func (e *engine) keepStrays(now time.Time) {
	for id, s := range e.strays {
		c, ok := e.s.o.Fleet.Get(id.cluster)
		if !ok && now.Sub(s.since) > 24*time.Hour { // that cluster is not coming back
			e.dropStray(id)
			continue
		}
		if s.looking || now.Before(s.at) || !ok || c.Status.State != clusters.Healthy {
			continue
		}
		ray, ok := e.s.o.Client(id.cluster)
		if !ok {
			continue
		}
		s.looking, s.at = true, now.Add(strayEvery)
		e.work.Go(func() { e.lookFor(ray, id, s) })
	}
}

// lookFor asks a cluster after one stray. Not under e.mu.
func (e *engine) lookFor(ray Ray, id strayID, s *stray) {
	ctx, cancel := context.WithTimeout(e.ctx, 2*callTime)
	defer cancel()
	info, err := ray.Job(ctx, id.rayID)
	var row Job
	there := err == nil
	if there {
		r, readErr := e.s.q.JobByUID(ctx, pgUUID(s.uid))
		if readErr == nil {
			row, readErr = fromRow(r)
		}
		sent := row
		sent.Attempt = s.attempt
		if there = readErr == nil && ours(info, &sent); readErr != nil {
			err = readErr
		}
	}
	stop := false
	e.mu.Lock()
	s.looking = false
	now := e.s.now()
	switch {
	case e.strays[id] != s:
	case there && e.isItself(row, id, s):
		e.foundAgain(row, info)
		e.dropStray(id)
	case there && (info.Status == clusters.RayPending || info.Status == clusters.RayRunning):
		stop = true
		e.tellStray(row, id, "stray_stopped", "it had arrived on "+id.cluster+" after all and is stopped there")
	case there:
		e.tellStray(row, id, "stray_ended", "on "+id.cluster+", where it had been given up, it ended as "+info.Status)
		e.dropStray(id)
	case err == nil, errors.Is(err, clusters.ErrNoJob) && now.Sub(s.since) > strayLife: // not ours, or not there
		e.dropStray(id)
	}
	e.mu.Unlock()
	if stop {
		if _, err := ray.Stop(ctx, id.rayID); err != nil && e.ctx.Err() == nil {
			e.s.log.Warn("a stray job could not be stopped; tried again", "job", id.rayID, "cluster", id.cluster, "error", err)
		}
	}
}

// isItself tells that a stray is the run that a job ended with, for want of any news.
func (e *engine) isItself(row Job, id strayID, s *stray) bool {
	return e.jobs[row.UID] == nil && row.Cluster == id.cluster && row.RayID == id.rayID && row.Attempt == s.attempt && row.Code == ClusterLost && row.State == Failed
}

// foundAgain brings back a job that had been given up: what Ray says of it is true, and nothing was started in its place.
func (e *engine) foundAgain(row Job, info clusters.JobInfo) {
	j := &job{Job: row}
	e.jobs[j.UID] = j
	c, _ := e.s.o.Fleet.Get(row.Cluster)
	e.move(j, nil, Event{Type: "found_again", Message: row.Cluster + " answers again, and has it: " + info.Status}, func(x *Job) {
		x.State, x.Code, x.Reason, x.EndedAt, x.Session = Unknown, "", "", nil, cmp.Or(c.Status.Session, x.Session)
	})
	e.apply(j, info)
}

// tellStray notes in a job's history what became of a run that it left behind, once.
func (e *engine) tellStray(row Job, id strayID, kind, text string) {
	if s := e.strays[id]; s.told == kind {
		return
	} else {
		s.told = kind
	}
	e.s.log.Warn("a stray job", "job", row.SubmissionID, "cluster", id.cluster, "what", strings.TrimPrefix(kind, "stray_"))
	e.writes.push(change{job: row, beside: true, done: func(error) {},
		events: []Event{{At: e.s.now(), Type: kind, Actor: "server", Attempt: row.Attempt, Cluster: id.cluster, Message: text}}})
}

// stray is a submission that was left behind.
type stray struct {
	uid     [16]byte
	attempt int
	since   time.Time
	at      time.Time // when it is looked for next
	looking bool
	told    string // what was noted of it
}

type strayID struct{ cluster, rayID string }

// addStray has a submission looked for that may turn up. Its row is written with the job's next change.
func (e *engine) addStray(j *job) {
	id := strayID{j.Cluster, j.RayID}
	s := &stray{uid: j.UID, attempt: j.Attempt, since: e.s.now()}
	e.strays[id] = s
	e.writes.push(change{strays: []dbgen.AddStrayParams{{Cluster: id.cluster, RayID: id.rayID, JobUid: pgUUID(j.UID), Attempt: int32(j.Attempt), Since: s.since}},
		beside: true, done: func(error) {}})
}

func (e *engine) dropStray(id strayID) {
	delete(e.strays, id)
	e.work.Go(func() {
		if err := e.s.q.DropStray(context.WithoutCancel(e.ctx), dbgen.DropStrayParams{Cluster: id.cluster, RayID: id.rayID}); err != nil {
			e.s.log.Warn("a stray could not be forgotten; it is looked for again", "error", err)
		}
	})
}
