package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/db/dbgen"
)

// What becomes of jobs that Ray has.

const (
	pollFirst    = 300 * time.Millisecond // after something happened on a cluster
	pollLeast    = 500 * time.Millisecond
	pollMost     = 5 * time.Second
	pollSlower   = 10 // a tenth of the time since something happened is waited
	listFrom     = 6  // jobs of ours on a cluster; from there on all its jobs are listed at once
	askAtOnce    = 4  // otherwise so many are asked after at a time
	outsideEvery = 15 * time.Second
	outsideMost  = 500 // jobs of others that are kept of one cluster, the newest
	absentMost   = 2   // times in a row that a cluster may not know a job
	stopAgain    = 5 * time.Second
	logKept      = 64 << 10        // bytes of what a job printed that are kept
	followAgain  = 2 * time.Second // before a log that broke off is read on
	callTime     = 15 * time.Second
)

// keepPlace notes what a cluster's silence, or its new life, means for the jobs there. Under e.mu, as
// everything in this file that does not say otherwise.
func (e *engine) keepPlace(p *place, now time.Time) {
	if len(p.live) == 0 {
		return
	}
	c, ok := e.s.o.Fleet.Get(p.name)
	healthy := ok && c.Status.State == clusters.Healthy
	silent := e.silentFor(p.name)
	for _, j := range p.live {
		if j.State == Submitting {
			continue // whoever submits it asks after it
		}
		switch {
		case healthy:
			if anew(j, c) {
				p.pollAt = now // it is asked what it still knows
			}
			if j.StopRequestedAt != nil && !now.Before(j.stopAt) {
				e.sendStop(j)
			}
		case silent > e.s.o.LostAfter:
			e.lose(j, fmt.Sprintf("%s has not answered for %v", p.name, e.s.o.LostAfter), true)
		case j.State != Unknown:
			why := "its cluster does not answer"
			if ok && c.Status.Error != "" {
				why += ": " + c.Status.Error
			}
			e.move(j, nil, Event{Type: "unknown", Code: "cluster_silent", Message: why}, func(x *Job) {
				x.State, x.Code, x.Reason = Unknown, "cluster_silent", why
			})
		}
	}
}

// anew tells that a cluster's head was started after it accepted a job, as far as that was known then.
func anew(j *job, c clusters.Cluster) bool {
	return j.Session != "" && c.Status.Session != "" && j.Session != c.Status.Session
}

// pollWhenDue asks a cluster after its jobs: often while things happen there, less often later.
func (e *engine) pollWhenDue(p *place, now time.Time) {
	outside := !now.Before(p.outsideAt)
	var asked []Job
	for _, j := range p.live {
		if j.State != Submitting {
			asked = append(asked, j.Job)
		}
	}
	if p.polling || !outside && (len(asked) == 0 || now.Before(p.pollAt)) {
		return
	}
	ray, ok := e.s.o.Client(p.name)
	if !ok {
		return
	}
	p.polling = true
	if outside {
		p.outsideAt = now.Add(outsideEvery)
	}
	e.work.Go(func() {
		ctx, cancel := context.WithTimeout(e.ctx, 4*callTime)
		defer cancel()
		found, all, err := ask(ctx, ray, asked, outside || len(asked) >= listFrom)
		e.mu.Lock()
		defer e.mu.Unlock()
		p.polling = false
		for _, j := range asked {
			x := e.jobs[j.UID]
			if x == nil || x.Attempt != j.Attempt || x.Cluster != j.Cluster || x.State == Submitting || x.State == Queued {
				continue
			}
			if f, ok := found[j.RayID]; ok {
				e.answered(x, f)
			}
		}
		now := e.s.now()
		p.pollAt = now.Add(min(max(now.Sub(p.movedAt)/pollSlower, pollLeast), pollMost))
		if err == nil && all != nil {
			e.work.Go(func() { e.keepOutside(p.name, all) })
		}
	})
}

// found is what a cluster says of a job: it, or that there is none.
type found struct {
	info clusters.JobInfo
	none bool
}

// ask asks a cluster after jobs, for all at once or one by one. What it does not answer is not in the result. Not under e.mu.
func ask(ctx context.Context, ray Ray, jobs []Job, list bool) (map[string]found, []clusters.JobInfo, error) {
	out := map[string]found{}
	var all []clusters.JobInfo
	if list {
		infos, err := ray.Jobs(ctx)
		var call *clusters.CallError
		switch {
		case err == nil:
			all = append([]clusters.JobInfo{}, infos...)
		case errors.As(err, &call) && call.Status == 0:
			return out, nil, err
		}
		for _, i := range infos {
			if i.SubmissionID != "" {
				out[i.SubmissionID] = found{info: i}
			}
		}
		jobs = slices.DeleteFunc(slices.Clone(jobs), func(j Job) bool { _, ok := out[j.RayID]; return ok }) // asked for by name
	}
	var mu sync.Mutex
	var work sync.WaitGroup
	slots := make(chan struct{}, askAtOnce)
	for _, j := range jobs {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, callTime)
			defer cancel()
			info, err := ray.Job(ctx, j.RayID)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				out[j.RayID] = found{info: info}
			case errors.Is(err, clusters.ErrNoJob):
				out[j.RayID] = found{none: true}
			}
		})
	}
	work.Wait()
	return out, all, nil
}

// answered notes what a cluster said of a job.
func (e *engine) answered(j *job, f found) {
	c, _ := e.s.o.Fleet.Get(j.Cluster)
	switch {
	case !f.none:
		j.absent = 0
		if anew(j, c) { // the head was new already when it accepted the job
			j.Session = c.Status.Session
		}
		e.apply(j, f.info)
	case anew(j, c):
		e.lose(j, "the head of "+j.Cluster+" was started anew, and knows nothing of before", false)
	default:
		if j.absent++; j.absent >= absentMost {
			e.lose(j, j.Cluster+" does not know it any more", false)
		}
	}
}

// apply brings a job to the state that Ray says.
func (e *engine) apply(j *job, info clusters.JobInfo) {
	switch {
	case info.Status == clusters.RayPending && j.State != Pending:
		e.move(j, nil, Event{Type: "pending", Message: "waits in its cluster"}, func(x *Job) {
			x.State, x.Code, x.Reason, x.Message = Pending, "", "", info.Message
		})
	case info.Status == clusters.RayRunning && j.State != Running:
		now := e.s.now()
		text := "runs"
		if j.State == Unknown {
			text = "runs, its cluster answers again"
		}
		e.move(j, nil, Event{Type: "running", Message: text}, func(x *Job) {
			x.State, x.Code, x.Reason, x.Message = Running, "", "", info.Message
			if x.StartedAt == nil {
				x.StartedAt = &now
			}
		})
		if j.PlacedAt != nil {
			e.s.o.Metrics.running(now.Sub(j.CreatedAt))
		}
	case info.Status == clusters.RaySucceeded:
		e.endAs(j, Succeeded, "", "", "", e.endOf(info), &info)
	case info.Status == clusters.RayStopped:
		code, why := "stop_requested", "stopped"
		if j.StopRequestedAt == nil {
			code, why = "stopped_outside", "stopped in Ray, by somebody else"
		}
		e.endAs(j, Stopped, code, why, j.StopRequestedBy, e.endOf(info), &info)
	case info.Status == clusters.RayFailed:
		e.failed(j, info)
	}
}

// endOf is when Ray says that a job was over; its clock may be another.
func (e *engine) endOf(info clusters.JobInfo) time.Time {
	now := e.s.now()
	if info.End == nil || info.End.After(now) {
		return now
	}
	return *info.End
}

// sendStop asks a cluster to stop a job, again and again until it is over.
func (e *engine) sendStop(j *job) {
	switch j.State {
	case Pending, Running, Unknown:
	default:
		return
	}
	ray, ok := e.s.o.Client(j.Cluster)
	if !ok {
		return
	}
	j.stopAt = e.s.now().Add(stopAgain)
	id, cluster := j.RayID, j.Cluster
	e.work.Go(func() {
		ctx, cancel := context.WithTimeout(e.ctx, callTime)
		defer cancel()
		if _, err := ray.Stop(ctx, id); err != nil && !errors.Is(err, clusters.ErrNoJob) && e.ctx.Err() == nil {
			e.s.log.Info("a job could not be told to stop; it is told again", "job", id, "cluster", cluster, "error", err)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if p := e.places[cluster]; p != nil {
			p.movedAt, p.pollAt = e.s.now(), e.s.now().Add(pollFirst)
		}
	})
}

// keepLog keeps the end of what a job printed: its cluster may be gone tomorrow. Not under e.mu.
func (e *engine) keepLog(j Job, info clusters.JobInfo) {
	ray, ok := e.s.o.Client(j.Cluster)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(e.ctx, callTime)
	defer cancel()
	text, _, err := ray.Logs(ctx, info, -logKept, logKept)
	if err == nil && text != "" {
		err = e.s.q.KeepLogTail(ctx, dbgen.KeepLogTailParams{JobUid: pgUUID(j.UID), Tail: clean(text)})
	}
	if err != nil && e.ctx.Err() == nil {
		e.s.log.Info("the end of a job's log could not be kept", "job", j.SubmissionID, "error", err)
	}
}
