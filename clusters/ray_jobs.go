package clusters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// What Ray calls the states of a job.
const (
	RayPending   = "PENDING"
	RayRunning   = "RUNNING"
	RayStopped   = "STOPPED"
	RaySucceeded = "SUCCEEDED"
	RayFailed    = "FAILED"
)

// rayEnded reports whether a job in this state is over.
func rayEnded(state string) bool {
	return state == RayStopped || state == RaySucceeded || state == RayFailed
}

// Submission is what Ray is asked to run. What is nil or empty is not sent.
type Submission struct {
	Entrypoint   string             `json:"entrypoint"`
	SubmissionID string             `json:"submission_id,omitempty"`
	RuntimeEnv   json.RawMessage    `json:"runtime_env,omitempty"`
	Metadata     map[string]string  `json:"metadata,omitempty"`
	NumCPUs      *float64           `json:"entrypoint_num_cpus,omitempty"`
	NumGPUs      *float64           `json:"entrypoint_num_gpus,omitempty"`
	Memory       *int64             `json:"entrypoint_memory,omitempty"` // bytes
	Resources    map[string]float64 `json:"entrypoint_resources,omitempty"`
}

// What Ray calls the kinds of jobs.
const (
	RaySubmission = "SUBMISSION" // came over REST
	RayDriver     = "DRIVER"     // a script that called ray.init
)

// JobInfo is a job as Ray shows it.
type JobInfo struct {
	Type         string // RaySubmission, RayDriver
	JobID        string // of the driver; "" before there is one
	SubmissionID string
	Status       string
	Entrypoint   string
	Message      string
	ErrorType    string
	Start, End   *time.Time
	Metadata     map[string]string
	RuntimeEnv   json.RawMessage // nil in lists
	ExitCode     *int
	NodeID       string // that its entrypoint runs on; "" before it does
	AgentURL     string // of Ray's agent on that node
}

// jobJSON is a job as Ray writes it. What Ray leaves out or says null of is empty.
type jobJSON struct {
	Type         string          `json:"type"`
	JobID        string          `json:"job_id"`
	SubmissionID string          `json:"submission_id"`
	Status       string          `json:"status"`
	Entrypoint   string          `json:"entrypoint"`
	Message      string          `json:"message"`
	ErrorType    string          `json:"error_type"`
	Start        *float64        `json:"start_time"`
	End          *float64        `json:"end_time"`
	Metadata     looseStrings    `json:"metadata"`
	RuntimeEnv   json.RawMessage `json:"runtime_env"`
	ExitCode     *int            `json:"driver_exit_code"`
	NodeID       string          `json:"driver_node_id"`
	AgentURL     string          `json:"driver_agent_http_address"`
}

func (j *jobJSON) info() JobInfo {
	if string(j.RuntimeEnv) == "null" {
		j.RuntimeEnv = nil
	}
	return JobInfo{
		Type: j.Type, JobID: j.JobID, SubmissionID: j.SubmissionID, Status: j.Status, Entrypoint: j.Entrypoint,
		Message: j.Message, ErrorType: j.ErrorType, Start: fromMillis(j.Start), End: fromMillis(j.End), Metadata: j.Metadata,
		RuntimeEnv: j.RuntimeEnv, ExitCode: j.ExitCode, NodeID: j.NodeID, AgentURL: j.AgentURL,
	}
}

func fromMillis(ms *float64) *time.Time {
	if ms == nil || *ms <= 0 {
		return nil
	}
	t := time.UnixMilli(int64(*ms)).UTC()
	return &t
}

// looseStrings are strings by name. A value that is none, which others than Ray's own client may have
// sent, becomes its JSON, so that one such job does not hide all the rest.
type looseStrings map[string]string

func (s *looseStrings) UnmarshalJSON(text []byte) error {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(text, &values); err != nil || len(values) == 0 {
		*s = nil
		return nil
	}
	*s = make(looseStrings, len(values))
	for name, value := range values {
		var plain string
		if json.Unmarshal(value, &plain) != nil {
			plain = string(value)
		}
		(*s)[name] = plain
	}
	return nil
}

// Submit has Ray run something. It is sent once: whether it arrived after an error says CallError.Sent, and
// Job by its id. Ray answers a second submission under the same id with an error.
func (r *Ray) Submit(ctx context.Context, s Submission) error {
	body, err := json.Marshal(s)
	if err != nil {
		return &CallError{Op: "submit", URL: r.base, Err: err}
	}
	var answer struct {
		SubmissionID string `json:"submission_id"`
		JobID        string `json:"job_id"` // of Ray before 2.0, where it was the same
	}
	// Ray may wait for its own agent before it answers.
	if err := r.post(ctx, "submit", "/api/jobs/", 3*r.timeout, body, &answer); err != nil {
		return err
	}
	if got := answer.SubmissionID; s.SubmissionID != "" && got != s.SubmissionID {
		return &CallError{Op: "submit", URL: r.base + "/api/jobs/", Status: http.StatusOK, Sent: true,
			Err: fmt.Errorf("answered submission_id %q, but %q was asked for", got, s.SubmissionID)}
	}
	return nil
}

// Job asks for one job by its submission_id, or by the job id of a driver. The error is ErrNoJob when Ray
// does not know it.
func (r *Ray) Job(ctx context.Context, id string) (JobInfo, error) {
	var j jobJSON
	if err := r.get(ctx, "job", jobPath(id), &j); err != nil {
		return JobInfo{}, missing(err)
	}
	if j.Status == "" {
		return JobInfo{}, &CallError{Op: "job", URL: r.base + jobPath(id), Status: http.StatusOK, Sent: true, Err: errors.New("answered a job without a status")}
	}
	return j.info(), nil
}

func jobPath(id string) string { return "/api/jobs/" + url.PathEscape(id) }

// missing turns Ray's "there is no such job" into ErrNoJob. Another 404, of a proxy or a wrong address,
// says nothing about the job.
func missing(err error) error {
	var call *CallError
	if errors.As(err, &call) && call.Status == http.StatusNotFound && strings.Contains(call.Body, "does not exist") {
		return ErrNoJob
	}
	return err
}

// Stop has a job stopped, which takes Ray some seconds. It says false when there was nothing to stop. Ray stops
// only what it started: a job that is PENDING for want of room stays so until there is some, or until Ray fails
// it after fifteen minutes.
func (r *Ray) Stop(ctx context.Context, id string) (bool, error) {
	var answer struct {
		Stopped bool `json:"stopped"`
	}
	if err := r.post(ctx, "stop", jobPath(id)+"/stop", r.timeout, nil, &answer); err != nil {
		return false, missing(err)
	}
	return answer.Stopped, nil
}

// Jobs lists all jobs that Ray knows, without their runtime environments: there may be ten thousand.
func (r *Ray) Jobs(ctx context.Context) ([]JobInfo, error) {
	var list []JobInfo
	err := r.EachJob(ctx, func(j JobInfo) error {
		list = append(list, j)
		return nil
	})
	return list, err
}

// maxListed bounds one job in a list, in bytes; most of a job is its runtime environment.
const maxListed = 16 << 20

// EachJob hands over all jobs that Ray knows, one after the other as they arrive, until do fails.
func (r *Ray) EachJob(ctx context.Context, do func(JobInfo) error) error {
	ctx, cancel := bounded(ctx, 6*r.timeout)
	defer cancel()
	resp, err := r.send(ctx, request{op: "jobs", method: http.MethodGet, path: "/api/jobs/"})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	fail := func(err error) error {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return &CallError{Op: "jobs", URL: r.base + "/api/jobs/", Status: resp.StatusCode, Sent: true, Err: err}
	}
	from := &peeked{allowance{r: resp.Body, left: maxListed}, nil}
	dec := json.NewDecoder(from)
	if open, err := dec.Token(); err != nil || open != json.Delim('[') {
		return fail(from.notJSON(err))
	}
	for dec.More() {
		var j jobJSON
		if err := dec.Decode(&j); err != nil {
			return fail(from.notJSON(err))
		}
		from.left = maxListed
		j.RuntimeEnv = nil
		if err := do(j.info()); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return fail(from.notJSON(err))
	}
	return nil
}

// allowance reads until its bytes are used up; whoever gets on gives new ones.
type allowance struct {
	r    io.Reader
	left int
}

var errAllowance = fmt.Errorf("a job larger than %d MiB", maxListed>>20)

func (a *allowance) Read(p []byte) (int, error) {
	if a.left <= 0 {
		return 0, errAllowance
	}
	n, err := a.r.Read(p[:min(len(p), a.left)])
	a.left -= n
	return n, err
}

// peeked keeps the first bytes of an answer, to show them when they turn out not to be JSON.
type peeked struct {
	allowance
	first []byte
}

func (p *peeked) Read(b []byte) (int, error) {
	n, err := p.allowance.Read(b)
	if room := 4*shownOfBodies - len(p.first); room > 0 {
		p.first = append(p.first, b[:min(n, room)]...)
	}
	return n, err
}

// notJSON says why reading failed: the connection, or what was read.
func (p *peeked) notJSON(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil || errors.As(err, &syntax) || errors.As(err, &kind):
		return notJSON(p.first)
	case errors.Is(err, errAllowance):
		return err
	}
	return fmt.Errorf("the answer was cut off: %w", err)
}
