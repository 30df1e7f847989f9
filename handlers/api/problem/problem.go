// Package problem is the one shape in which the server refuses a request:
// problem+json (RFC 9457) with a stable code. It knows HTTP and the list of
// codes; it must not know what a task or a pool is.
package problem

import (
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json"
)

// ContentType is the media type of every error answer.
const ContentType = "application/problem+json"

// Problem is an error as a caller reads it. Code is for programs, Detail for people.
type Problem struct {
	Type        string `json:"type" doc:"Where this code is explained; relative to the server." example:"/api/docs#error-unknown_pool"`
	Title       string `json:"title" doc:"What the code means, always the same for the same code." example:"No such pool"`
	Status      int    `json:"status" doc:"The HTTP status again." example:"404"`
	Detail      string `json:"detail" doc:"What was wrong with this request, with the value, and what to do about it." example:"there is no pool \"gpu\" in namespace \"default\""`
	Code        string `json:"code" doc:"Stable name of the error; the docs list all of them." example:"unknown_pool"`
	Errors      []Item `json:"errors,omitempty" doc:"One entry for each field that was wrong."`
	Explanation any    `json:"explanation,omitempty" doc:"Further facts about the refusal, for example what is missing where and why no running task could make way."`
	RequestID   string `json:"request_id,omitempty" doc:"The X-Request-Id of this answer; the server's log has it too." example:"b7c1d2-42"`

	// RetryAfter, in seconds, becomes a Retry-After header when it is not 0.
	RetryAfter int `json:"-"`
}

// Item is one wrong field.
type Item struct {
	Field    string `json:"field" doc:"Name of the field, parameter or header, nested ones with dots." example:"resources.cpu"`
	Location string `json:"location" doc:"The same with where it was: body, query, path or header." example:"body.resources.cpu"`
	Message  string `json:"message" doc:"What is wrong with it." example:"-1 is negative; give an amount of 0 or more"`
}

// Code is one entry of the list of errors.
type Code struct {
	Name   string
	Status int
	Title  string
	Help   string // for the docs page: when it happens and what to do
}

// Codes lists every code an answer may carry, in the order of their status.
var Codes = []Code{
	{"bad_json", 400, "Not JSON", "The body is not one well-formed JSON value. The detail has line and column. NaN and Infinity are not JSON; a name may appear once in an object."},
	{"bad_request", 400, "Bad request", "The request cannot be read: no body where one is needed, a broken header."},
	{"unauthorized", 401, "Sign in first", "No valid token came with the request. Send it as `Authorization: Bearer <token>`."},
	{"cross_origin", 403, "Sent by another site", "A browser sent this with its cookie from a page of another origin."},
	{"not_found", 404, "Not found", "There is nothing at this address."},
	{"unknown_task", 404, "No such task", "No task of this namespace has this id."},
	{"unknown_pool", 404, "No such pool", "No pool of this namespace has this name."},
	{"unknown_agent", 404, "No such agent", "No agent has this name, and none runs a task with this id."},
	{"unknown_node", 404, "No such node", "No cluster has a node of this id; GET /nodes lists them."},
	{"unknown_namespace", 404, "No such namespace", "No namespace has this name, or it was cleared away with its session. PUT /namespaces/{name} holds or keeps it."},
	{"unknown_policy_version", 404, "No such version of the policy", "Versions start at 1; GET /policy/versions lists them."},
	{"unknown_cluster", 404, "No such cluster", "No cluster has this name; GET /clusters lists them."},
	{"unknown_job", 404, "No such job", "No job has this submission_id. A job_id need not be unique: GET /jobs?job_id= finds those."},
	{"unknown_package", 404, "No such package", "It was never uploaded, not completely, or nobody used it for a week. PUT /packages/{name} uploads it."},
	{"method_not_allowed", 405, "Method not allowed", "This address does not know this method. The Allow header lists those it knows."},
	{"request_timeout", 408, "Body did not arrive in time", "The request's body was sent too slowly."},
	{"task_exists", 409, "Task exists", "A live task has this id and another body. The same body would have been answered with the task."},
	{"agent_exists", 409, "Agent exists", "A live agent has this name."},
	{"pool_exists", 409, "Pool exists", "A pool has this name already. PATCH changes it."},
	{"pool_in_use", 409, "Pool in use", "Something still runs, waits or borrows there. End it first."},
	{"wrong_state", 409, "Not in this state", "The task is in a state in which this cannot be done."},
	{"pool_held", 409, "Pool is held", "Nothing starts in this pool until somebody resumes it. Submit with on_insufficient=queue to wait."},
	{"namespace_in_use", 409, "Namespace in use", "Another session holds the namespace, or something lives in it. Attach to it, use another name, or end that first."},
	{"namespace_kept", 409, "Namespace is kept", "The namespace is kept and belongs to no session. Attach to it, or use another name."},
	{"namespace_closing", 409, "Namespace is being cleared", "The session of the namespace ended or expired and what was in it is being removed. Nothing can be changed in it until that is done."},
	{"version_conflict", 409, "Changed meanwhile", "Somebody else changed it first. Read it again, then repeat. With If-Match the status is 412."},
	{"job_exists", 409, "Job exists", "Another job has this submission_id. The same body would have been answered with the job."},
	{"cluster_in_use", 409, "Cluster in use", "Jobs of ours are live there. Hold it, and end them first."},
	{"no_clusters", 409, "No clusters", "There is no cluster that jobs could go to. Name some in clusters.yaml, or PUT /clusters/{name}."},
	{"no_cluster_large_enough", 409, "No cluster is large enough", "No cluster has this much, or may grow to it: the job could never run. The explanation says what is missing where."},
	{"insufficient_resources", 409, "Not enough free", "The pool has too little free and nobody may be preempted for it; the explanation says what is missing. Submit with on_insufficient=queue to wait."},
	{"request_too_large", 409, "More than the pool ever has", "The request exceeds the whole capacity of the pool: it could never run."},
	{"no_node_large_enough", 409, "No node is large enough", "The pool has the quota, but no single node of its cluster has this much."},
	{"too_large", 413, "Body too large", "500 MiB for a package, 64 MiB for a task, an agent, state handlers and a state to restore, 2 MiB for a job, of which 1 MiB for its runtime_env, 1 MiB for everything else."},
	{"unsupported_media_type", 415, "Not JSON", "Send application/json, a package as it is, neither compressed."},
	{"misdirected_request", 421, "Unknown host name", "The Host header names a host this server does not answer for. Allow it in the server's configuration."},
	{"invalid", 422, "Invalid request", "Some field is missing, unknown, of the wrong type or out of range; errors lists them."},
	{"idempotency_key_reused", 422, "Idempotency key used before", "The same Idempotency-Key came with another request. Use a new key."},
	{"too_many_backtests", 429, "Too many backtests", "As many backtests are under way as the server allows at once. Retry after the given seconds."},
	{"internal", 500, "Internal error", "Our fault. The log has the request_id and the cause."},
	{"database_unavailable", 503, "Database unavailable", "Nothing was done. Retry after the given seconds."},
	{"bridge_unavailable", 503, "Ray unavailable", "The connection to the Ray cluster is down. Retry after the given seconds."},
	{"cluster_unreachable", 503, "Cluster does not answer", "The Ray cluster that the job is on does not answer. Retry after the given seconds."},
	{"shutting_down", 503, "Shutting down", "The server is stopping. Retry after the given seconds."},
}

var byName = func() map[string]Code {
	m := make(map[string]Code, len(Codes))
	for _, c := range Codes {
		m[c.Name] = c
	}
	return m
}()

// New makes the problem of a code. A code that is not in the list is "internal".
func New(code, detail string) *Problem {
	c, ok := byName[code]
	if !ok {
		c = byName["internal"]
	}
	if c.Name == "internal" { // whatever went wrong is nobody's business but the log's
		detail = "Something went wrong on our side; the log has the cause under the request_id."
	}
	p := &Problem{Type: "/api/docs#error-" + c.Name, Title: c.Title, Status: c.Status, Code: c.Name, Detail: detail}
	switch c.Status {
	case http.StatusServiceUnavailable:
		p.RetryAfter = 2
	case http.StatusTooManyRequests:
		p.RetryAfter = 10
	}
	return p
}

// Known reports whether the list has this code.
func Known(code string) bool { _, ok := byName[code]; return ok }

// Invalid makes an "invalid" about one field; location is "body", "query", "path" or "header".
func Invalid(location, field, message string) *Problem {
	p := New("invalid", field+": "+message)
	p.Errors = []Item{{Field: field, Location: location + "." + field, Message: message}}
	return p
}

// Error makes a Problem an error.
func (p *Problem) Error() string { return p.Detail }

// GetStatus is what huma asks for.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType is what huma asks for.
func (p *Problem) ContentType(string) string { return ContentType }

// GetHeaders is what huma asks for.
func (p *Problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	return h
}

var (
	_ huma.StatusError       = (*Problem)(nil)
	_ huma.HeadersError      = (*Problem)(nil)
	_ huma.ContentTypeFilter = (*Problem)(nil)
)

// Write answers with p. The request id is the answer's own X-Request-Id.
func Write(w http.ResponseWriter, p *Problem) {
	h := w.Header()
	if p.RequestID == "" {
		p.RequestID = h.Get("X-Request-Id")
	}
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	body, err := json.Marshal(p)
	if err != nil { // an explanation that is not JSON must not hide the refusal
		p.Explanation = nil
		body, _ = json.Marshal(p)
	}
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	_, _ = w.Write(body)
}
