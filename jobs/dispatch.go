package jobs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
)

// Who goes next, and where to.

// placing passes over the line whenever something may have become possible.
func (e *engine) placing() {
	idle := time.NewTicker(time.Second)
	defer idle.Stop()
	for {
		select {
		case <-e.poked:
		case <-idle.C:
		case <-e.ctx.Done():
			return
		}
		e.pass()
		if !e.sleep(passGap) {
			return
		}
	}
}

// behind is the placement of a job for which nothing is left to look at.
var behind = Placement{Reason: "every cluster that could take it is kept for jobs that stand before it", Others: []Candidate{}, Not: []Reject{}}

// pass sends on whoever can go, in order. A job that cannot keeps the cluster that is nearest to having
// room for it, so that those behind it do not take that room for ever.
func (e *engine) pass() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.line) == 0 {
		return
	}
	began := time.Now()
	e.sites = Sites(e.sites, e.s.o.Fleet.All(), e.loadOf)
	sites := e.sites
	left, notes, placed := true, 0, 0
	for _, j := range slices.Clone(e.line) {
		if !left && !j.Requirements.IsZero() {
			if notes < notesAPass && e.tellWhy(j, behind) {
				notes++
			}
			continue
		}
		a := j.ask()
		a.Tried = e.stillTried(j)
		p, at := Place(sites, a)
		switch {
		case at >= 0:
			placed++
			e.send(j, p)
		case e.refusedByAll(j, sites, a):
		default:
			if !j.Requirements.IsZero() {
				left = keepFor(sites, j.SubmissionID, a)
			}
			if notes < notesAPass && e.tellWhy(j, p) {
				notes++
			}
		}
	}
	if placed > 0 {
		e.s.o.Metrics.passed(time.Since(began))
	}
}

// stillTried are the clusters that a job does not go to: those that refused it, and those that did not
// answer a moment ago.
func (e *engine) stillTried(j *job) []Tried {
	now := e.s.now()
	return slices.DeleteFunc(slices.Clone(j.Tried), func(t Tried) bool { return !t.Refused && now.Sub(t.At) > askedAgain })
}

// refusedByAll ends a job that every cluster that could take it has refused.
func (e *engine) refusedByAll(j *job, sites []*Site, a Ask) bool {
	var said []string
	for _, t := range a.Tried {
		if t.Refused {
			said = append(said, t.Cluster+": "+t.Why)
		}
	}
	if len(said) == 0 || slices.ContainsFunc(sites, func(s *Site) bool {
		return (!s.seen() || s.could(a)) && !slices.ContainsFunc(a.Tried, func(t Tried) bool { return t.Refused && t.Cluster == s.c.Name })
	}) {
		return false
	}
	e.end(j, Failed, "submission_refused", "no cluster took it. "+strings.Join(said, "; "), "")
	return true
}

// tellWhy notes why a job waits, when that is news.
func (e *engine) tellWhy(j *job, p Placement) bool {
	now := e.s.now()
	first := j.Code != "waits"
	if !first && (p.Reason == j.Reason || now.Sub(j.told) < waitsTold) {
		return false
	}
	j.told = now
	event := Event{}
	if first {
		event = Event{Type: "waits", Code: "waits", Message: p.Reason}
	}
	e.move(j, nil, event, func(x *Job) {
		x.Code, x.Reason, x.Placement = "waits", p.Reason, &p
		x.Notes = notesOf(x.Notes, p.Notes)
	})
	return true
}

// notesOf adds what is new.
func notesOf(have, more []string) []string {
	out := slices.Clone(have)
	for _, n := range more {
		if !slices.Contains(out, n) && len(out) < 10 {
			out = append(out, n)
		}
	}
	return out
}

// send has a job submitted to the cluster that was chosen, once that is on disk.
func (e *engine) send(j *job, p Placement) {
	c, ok := e.s.o.Fleet.Get(p.Cluster)
	if !ok {
		return // removed this moment; the next pass knows
	}
	merged, notes, err := clusters.MergeEnv(c.RuntimeEnv, j.RuntimeEnv)
	if err != nil {
		now := e.s.now()
		e.move(j, nil, Event{Type: "submit_failed", Cluster: c.Name, Code: "runtime_env", Message: err.Error()}, func(x *Job) {
			x.Tried = append(slices.Clone(x.Tried), Tried{Cluster: c.Name, Why: "its runtime_env and the job's cannot be merged: " + err.Error(), At: now, Refused: true})
		})
		e.poke()
		return
	}
	now := e.s.now()
	e.dequeue(j)
	j.before, j.sending, j.absent = c.Status.Used, true, 0
	e.s.o.Metrics.placed(c.Name, now.Sub(j.QueuedAt))
	e.move(j, func() { e.begin(j) }, Event{Type: "placed", Cluster: c.Name, Message: "goes to " + c.Name + ": " + p.Reason}, func(x *Job) {
		x.State, x.Code, x.Reason = Submitting, "", p.Reason
		x.Cluster, x.RayID, x.Session, x.MergedEnv = c.Name, rayID(x), "", merged
		x.Placement, x.PlacedAt = &p, &now
		x.Notes = notesOf(notesOf(x.Notes, p.Notes), notes)
	})
}

// rayID is what a job is called in Ray: the same for one attempt, wherever it is sent.
func rayID(j *Job) string {
	if j.Attempt == 1 {
		return j.SubmissionID
	}
	return fmt.Sprintf("%s-%d", j.SubmissionID, j.Attempt)
}

// begin submits what is on disk as sent.
func (e *engine) begin(j *job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if j.State != Submitting || e.jobs[j.UID] != j {
		return
	}
	// It may lie there already, left behind by an earlier try of the same attempt.
	id := strayID{j.Cluster, j.RayID}
	known := e.strays[id] != nil
	if known {
		e.dropStray(id)
	}
	now := j.Job
	e.work.Go(func() { e.submit(now, known) })
}

// requeue puts a job back in line, which is not an attempt: nothing of it runs anywhere.
func (e *engine) requeue(j *job, event Event, f func(*Job)) {
	e.move(j, nil, event, func(x *Job) {
		f(x)
		x.State, x.Code = Queued, "" // Cluster stays: where it was last
	})
	j.sending = false
	e.enqueue(j)
	e.poke()
}

// keep does what time alone makes due.
func (e *engine) keep() {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.s.now()
	for _, j := range slices.Clone(e.line) {
		if j.QueueTimeout > 0 && now.Sub(j.QueuedAt) >= j.QueueTimeout {
			e.end(j, Failed, "queue_timeout", fmt.Sprintf("waited for %v; %s", j.QueueTimeout, cmp.Or(j.Reason, "no cluster could take it")), "")
		}
	}
	for _, p := range e.places {
		e.keepPlace(p, now)
	}
	for _, c := range e.s.o.Fleet.All() { // what others do there is looked at also where we have nothing
		if p := e.place(c.Name); c.Status.State == clusters.Healthy {
			e.pollWhenDue(p, now)
		}
	}
	e.keepStrays(now)
}

// siteCache is the clusters without any load, for what depends on their size alone.
type siteCache struct {
	mu    sync.Mutex
	fleet []clusters.Cluster
	sites []*Site
}

func (c *siteCache) get(f Fleet) []*Site {
	fleet := f.All()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(fleet) != len(c.fleet) || len(fleet) > 0 && &fleet[0] != &c.fleet[0] {
		c.fleet, c.sites = fleet, Sites(nil, fleet, func(*clusters.Cluster) Load { return Load{} })
	}
	return c.sites
}

// explain is a placement that takes nothing; it is for jobs that cannot go anywhere.
func explain(sites []*Site, a Ask) Placement {
	p, _ := Place(slices.Clone(sites), a)
	return p
}
