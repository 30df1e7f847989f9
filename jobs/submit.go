package jobs

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
)

// One submission to one cluster. It may be cut off anywhere, by the network, by the cluster or by the end of
// this server, and then nobody knows whether it arrived. So it is never sent to another cluster before
// the first one said that it has not got it; and to the same one it is sent under the same id, which Ray takes
// once.

// Marks in the metadata of a job in Ray: whose it is, and which.
const (
	markKey  = "schedulemesh_job"
	ownerKey = "schedulemesh_deployment"
)

func mark(j *Job) string { return fmt.Sprintf("%x.%d", j.UID[:], j.Attempt) }

// ours tells that what a cluster has under a job's id is that job: it has its mark or, where metadata was not
// kept, at least its command and nobody else's mark.
func ours(info clusters.JobInfo, j *Job) bool {
	if has := info.Metadata[markKey]; has != "" {
		return has == mark(j)
	}
	return info.Entrypoint == "" || info.Entrypoint == j.Entrypoint
}

const (
	postsMost = 2                      // times that a submission is sent to one cluster
	missWait  = 700 * time.Millisecond // before a cluster that does not know it is asked again
	askWait   = 200 * time.Millisecond // before a cluster that did not answer is asked again, growing
	askMost   = 2 * time.Second
	slotWait  = 500 * time.Millisecond // before who waits to be sent looks whether the cluster answers at all
)

// outcome is what became of a submission.
type outcome struct {
	taken   bool
	info    clusters.JobInfo
	refused bool   // the cluster said no; else it just could not be reached
	unsure  bool   // it may turn up there
	why     string // it was not taken
}

// submit sends a job to its cluster and notes what came of it. resumed says that it may have arrived.
func (e *engine) submit(j Job, resumed bool) {
	e.mu.Lock()
	slots := e.place(j.Cluster).slots
	e.mu.Unlock()
	began := time.Now()
	var out outcome
	for waits := true; waits; {
		select {
		case slots <- struct{}{}:
			out = e.deliver(j, resumed)
			<-slots
			waits = false
		case <-time.After(slotWait):
			// Those before it wait for answers that do not come; of this one nothing was sent.
			if waits = resumed || e.silentFor(j.Cluster) == 0; !waits {
				out = outcome{why: "it does not answer, and nothing was sent"}
			}
		case <-e.ctx.Done():
			return
		}
	}
	if e.ctx.Err() != nil && !out.taken {
		return // whoever leads next asks
	}
	e.s.o.Metrics.delivered(out, time.Since(began))
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.jobs[j.UID]
	if x == nil || x.State != Submitting || x.Attempt != j.Attempt || x.Cluster != j.Cluster {
		return
	}
	x.sending = false
	if out.taken {
		e.accepted(x, out.info)
		return
	}
	e.notTaken(x, out)
}

// accepted notes that Ray has the job.
func (e *engine) accepted(j *job, info clusters.JobInfo) {
	now := e.s.now()
	c, _ := e.s.o.Fleet.Get(j.Cluster)
	e.move(j, nil, Event{Type: "pending", Message: "Ray has it"}, func(x *Job) {
		x.State, x.Code, x.Reason, x.AcceptedAt, x.Session = Pending, "", "", &now, c.Status.Session
	})
	p := e.place(j.Cluster)
	p.pollAt = now.Add(pollFirst)
	if info.Status != "" {
		e.apply(j, info)
	}
	if e.jobs[j.UID] == j && j.StopRequestedAt != nil {
		e.sendStop(j)
	}
}

// notTaken puts a job back in line for the next best cluster.
func (e *engine) notTaken(j *job, out outcome) {
	if j.StopRequestedAt != nil && !out.unsure {
		e.end(j, Stopped, "stop_requested", "stopped before any cluster had it", j.StopRequestedBy)
		return
	}
	event := Event{Type: "submit_failed", Code: "unreachable", Message: out.why}
	if out.refused {
		event.Code = "refused"
	}
	if out.unsure {
		event.Code, event.Message = "unsure", out.why+"; should it turn up there it is stopped"
		e.addStray(j)
	}
	if j.StopRequestedAt != nil {
		e.end(j, Stopped, "stop_requested", "stopped; whether "+j.Cluster+" had it could not be learned", j.StopRequestedBy)
		return
	}
	e.requeue(j, event, func(x *Job) {
		tried := slices.DeleteFunc(slices.Clone(x.Tried), func(t Tried) bool { return t.Cluster == x.Cluster })
		x.Tried = append(tried, Tried{Cluster: x.Cluster, Why: clean(out.why), At: e.s.now(), Refused: out.refused})
		x.Reason = fmt.Sprintf("%s did not take it: %s", x.Cluster, clean(out.why))
	})
}

// deliver sends one job to one cluster until it is known what came of it.
func (e *engine) deliver(j Job, resumed bool) outcome {
	body, uris, err := e.submission(&j)
	if err != nil {
		return outcome{refused: true, why: err.Error()}
	}
	var (
		ask     = resumed
		posts   = 0
		misses  = 0
		refusal error // an answer that says no
		last    error
		wait    = askWait
	)
	if resumed {
		posts = 1 // perhaps
	}
	for {
		ray, ok := e.s.o.Client(j.Cluster)
		if !ok {
			return outcome{unsure: posts > 0, why: "the cluster is not configured any more"}
		}
		for ask {
			info, err := ray.Job(e.ctx, j.RayID)
			switch {
			case err == nil && ours(info, &j):
				return outcome{taken: true, info: info}
			case err == nil:
				return outcome{refused: true, why: fmt.Sprintf("a job that is not ours has the submission_id %q there", j.RayID)}
			case errors.Is(err, clusters.ErrNoJob):
				misses++
				switch {
				case refusal != nil:
					return outcome{refused: true, why: refusal.Error()}
				case misses == 1:
					if !e.sleep(missWait) { // what was cut off may be on its way
						return outcome{unsure: true}
					}
				case posts >= postsMost:
					return outcome{unsure: true, why: reasonOf(last)}
				default:
					ask = false
				}
				continue
			}
			last = err
			if e.silentFor(j.Cluster) > e.s.o.LostAfter {
				return outcome{unsure: true, why: "it does not answer, so whether it has the job is not known: " + reasonOf(err)}
			}
			if !e.sleep(wait) {
				return outcome{unsure: true}
			}
			wait = min(2*wait, askMost)
		}
		if err := e.bringPackages(ray, uris); err != nil {
			return outcome{refused: refuses(err), unsure: posts > 0, why: reasonOf(err)}
		}
		posts++
		err := ray.Submit(e.ctx, body)
		var call *clusters.CallError
		switch {
		case err == nil:
			return outcome{taken: true}
		case !errors.As(err, &call):
			ask, last = true, err
		case !call.Sent && posts == 1:
			return outcome{why: reasonOf(err)}
		case refuses(err) && posts == 1 && call.Status < 500:
			return outcome{refused: !ofCluster(call.Status), why: reasonOf(err)}
		case call.Status >= 300:
			ask, refusal, last = true, errors.New(reasonOf(err)), err
		default:
			ask, last = true, err
		}
		if e.ctx.Err() != nil {
			return outcome{unsure: true}
		}
	}
}

// refuses tells that an error is the cluster's answer.
func refuses(err error) bool {
	var call *clusters.CallError
	return !errors.As(err, &call) || call.Status >= 300
}

// ofCluster tells that an answer is about the cluster, or who asks, and not about the job.
func ofCluster(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusTooManyRequests, http.StatusRequestTimeout:
		return true
	}
	return status < 400
}

func reasonOf(err error) string {
	var call *clusters.CallError
	switch {
	case errors.As(err, &call):
		return call.Err.Error()
	case err == nil:
		return "it did not answer"
	}
	return err.Error()
}

// silentFor is how long a cluster has not answered, as far as this server can know.
func (e *engine) silentFor(cluster string) time.Duration {
	c, ok := e.s.o.Fleet.Get(cluster)
	if ok && c.Status.State == clusters.Healthy {
		return 0
	}
	since := e.began
	if ok && c.Status.SeenAt.After(since) {
		since = c.Status.SeenAt
	}
	return e.s.now().Sub(since)
}
