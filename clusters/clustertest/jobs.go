package clustertest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
)

// node is one machine.
type node struct {
	id, address string
	alive       bool
	diedAt      time.Time
	used        map[string]float64 // by live jobs, in Ray's names
}

// job is a job's life. Its fields are under the cluster's lock.
type job struct {
	clusters.JobInfo
	asks     map[string]float64 // in Ray's names
	on       *node
	stopping bool
	log      []byte
	timers   []*time.Timer
}

func (j *job) over() bool { return j.End != nil }

// forget has nothing happen to a job any more.
func (j *job) forget() {
	for _, t := range j.timers {
		t.Stop()
	}
}

// Start runs something that others submitted.
func (c *Cluster) Start(s clusters.Submission) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.submit(s)
}

// Driver shows a script that called ray.init.
func (c *Cluster) Driver(jobID, entrypoint string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	j := &job{JobInfo: clusters.JobInfo{Type: clusters.RayDriver, JobID: jobID, Status: clusters.RayRunning, Entrypoint: entrypoint, Start: &now}}
	c.jobs[jobID] = j
	c.order = append(c.order, j)
}

// End ends a job: SUCCEEDED, or FAILED with an exit code of 1.
func (c *Cluster) End(id, status string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.jobs[id]
	if j == nil {
		c.t.Errorf("there is no job %s to end", id)
		return
	}
	c.finish(j, status)
}

// Print has a job print something.
func (c *Cluster) Print(id, text string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if j := c.jobs[id]; j != nil {
		j.log = append(j.log, text...)
		return
	}
	c.t.Errorf("there is no job %s to print", id)
}

// Forget has a job be gone as if it never was.
func (c *Cluster) Forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.jobs[id]
	if j == nil {
		return
	}
	if !j.over() {
		c.end(j, clusters.RayStopped, "", nil)
	}
	delete(c.jobs, id)
	c.order = slices.DeleteFunc(c.order, func(o *job) bool { return o == j })
}

// Job is a job as it is now.
func (c *Cluster) Job(id string) (clusters.JobInfo, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j, ok := c.jobs[id]
	if !ok {
		return clusters.JobInfo{}, false
	}
	return j.JobInfo, true
}

// Live gives the ids of the jobs that are not over.
func (c *Cluster) Live() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []string
	for _, j := range c.order {
		if !j.over() && j.Type == clusters.RaySubmission {
			ids = append(ids, j.SubmissionID)
		}
	}
	return ids
}

// Used is what live jobs take of a resource, in Ray's names: CPU, GPU, memory.
func (c *Cluster) Used(resource string) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var sum float64
	for _, n := range c.nodes {
		sum += n.used[resource]
	}
	return sum
}

const (
	notStarted = "Job has not started yet. It may be waiting for resources (CPUs, GPUs, memory, custom resources) to become available."
	isRunning  = "Job is currently running."
)

// submit takes a job that is new.
func (c *Cluster) submit(s clusters.Submission) {
	now := time.Now()
	j := &job{asks: map[string]float64{}, JobInfo: clusters.JobInfo{
		Type: clusters.RaySubmission, SubmissionID: s.SubmissionID, Status: clusters.RayPending, Entrypoint: s.Entrypoint,
		Message: notStarted, Start: &now, Metadata: s.Metadata, RuntimeEnv: s.RuntimeEnv,
	}}
	for name, amount := range s.Resources {
		j.asks[name] = amount
	}
	if s.NumCPUs != nil {
		j.asks["CPU"] = *s.NumCPUs
	}
	if s.NumGPUs != nil {
		j.asks["GPU"] = *s.NumGPUs
	}
	if s.Memory != nil {
		j.asks["memory"] = float64(*s.Memory)
	}
	c.jobs[s.SubmissionID] = j
	c.order = append(c.order, j)
	c.accepted = append(c.accepted, Submitted{s, now})
	c.schedule()
}

// total is what each machine has, in Ray's names.
func (c *Cluster) total() map[string]float64 {
	all := map[string]float64{}
	for name, amount := range c.o.Resources {
		all[name] = amount
	}
	for name, amount := range map[string]float64{"CPU": c.o.CPUs, "GPU": c.o.GPUs, "memory": float64(c.o.Memory)} {
		if amount > 0 {
			all[name] = amount
		}
	}
	return all
}

// schedule starts what fits.
func (c *Cluster) schedule() {
	for _, j := range c.order {
		if j.Status != clusters.RayPending || j.on != nil {
			continue
		}
		for _, n := range c.nodes {
			if n.alive && c.fits(j, n) {
				c.place(j, n)
				break
			}
		}
	}
}

func (c *Cluster) fits(j *job, n *node) bool {
	total := c.total()
	for name, amount := range j.asks {
		if n.used[name]+amount > total[name]+1e-9 {
			return false
		}
	}
	return true
}

func (c *Cluster) place(j *job, n *node) {
	j.on, j.NodeID = n, n.id
	for name, amount := range j.asks {
		n.used[name] += amount
	}
	j.AgentURL = c.URL
	if c.o.FarAgents {
		j.AgentURL = "http://127.0.0.1:1"
	}
	j.log = fmt.Appendf(j.log, "Running entrypoint for job %s: %s\n", j.SubmissionID, j.Entrypoint)
	switch {
	case j.stopping:
		c.halt(j)
		return
	case c.o.StartTakes == 0:
		c.run(j)
		return
	}
	c.later(j, c.o.StartTakes, func() { c.run(j) })
}

func (c *Cluster) run(j *job) {
	j.Status, j.Message = clusters.RayRunning, isRunning
	fate := Fate{After: c.o.Run}
	if c.o.Fate != nil {
		fate = c.o.Fate(clusters.Submission{Entrypoint: j.Entrypoint, SubmissionID: j.SubmissionID, Metadata: j.Metadata, RuntimeEnv: j.RuntimeEnv})
	}
	j.log = append(j.log, fate.Prints...)
	if fate.After > 0 {
		status := fate.Status
		if status == "" {
			status = clusters.RaySucceeded
		}
		c.later(j, fate.After, func() { c.finish(j, status) })
	}
}

// later does something with a job that is still known and not over.
func (c *Cluster) later(j *job, d time.Duration, do func()) {
	j.timers = append(j.timers, time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.ended.Load() && !j.over() && c.jobs[j.SubmissionID] == j {
			do()
		}
	}))
}

func (c *Cluster) finish(j *job, status string) {
	code, message := 0, "Job finished successfully."
	switch status {
	case clusters.RayFailed:
		code, message = 1, "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):\n"+lastLines(j.log)
	case clusters.RayStopped:
		c.end(j, status, "Job was intentionally stopped.", nil)
		return
	}
	c.end(j, status, message, &code)
}

func lastLines(log []byte) string {
	lines := strings.SplitAfter(string(log), "\n")
	return strings.Join(lines[max(len(lines)-10, 0):], "")
}

func (c *Cluster) end(j *job, status, message string, code *int) {
	if j.over() {
		return
	}
	now := time.Now()
	j.Status, j.Message, j.End, j.ExitCode = status, message, &now, code
	if status == clusters.RayFailed {
		j.ErrorType = "JOB_ENTRYPOINT_COMMAND_ERROR"
	}
	j.forget()
	if j.on != nil {
		for name, amount := range j.asks {
			j.on.used[name] -= amount
		}
	}
	c.schedule()
}

// stop ends a job a moment later; false when there is nothing to stop. As in Ray, one that was not started
// for want of room stays PENDING until there is some.
func (c *Cluster) stop(j *job) bool {
	if j.over() {
		return false
	}
	if !j.stopping && j.on != nil {
		c.halt(j)
	}
	j.stopping = true
	return true
}

func (c *Cluster) halt(j *job) {
	if c.o.StopTakes == 0 {
		c.finish(j, clusters.RayStopped)
		return
	}
	c.later(j, c.o.StopTakes, func() { c.finish(j, clusters.RayStopped) })
}
