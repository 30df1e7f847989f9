package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
	"github.com/schedulemesh/schedulemesh/ledger"
)

// Launch is what runs: the part of a body that tasks and agents share.
type Launch struct {
	ActorClass    string            `json:"actor_class,omitempty" doc:"The class to run, as module:Class, imported by the worker. One of actor_class and pickled is needed to run anything." example:"my_project.train:Trainer"`
	Pickled       []byte            `json:"pickled,omitempty" doc:"Base64 of a cloudpickled {class, args, kwargs}, in place of actor_class. Only the worker unpickles it."`
	PickledName   string            `json:"pickled_name,omitempty" doc:"Name of the pickled class, for people."`
	Methods       json.RawMessage   `json:"methods,omitempty" doc:"Array of the public methods of the class: name, async, generator, num_returns."`
	ActorArgs     json.RawMessage   `json:"actor_args,omitempty" doc:"Array of positional arguments, after name and labels."`
	ActorKwargs   json.RawMessage   `json:"actor_kwargs,omitempty" doc:"Object of named arguments."`
	RuntimeEnv    json.RawMessage   `json:"runtime_env,omitempty" doc:"Ray's runtime_env of the worker."`
	RayOptions    json.RawMessage   `json:"ray_options,omitempty" doc:"For Ray's .options(); a name in it is used as it is."`
	LaunchTimeout *float64          `json:"launch_timeout,omitempty" doc:"Seconds until its agent must be ready; 60 when left out."`
	Labels        map[string]string `json:"labels,omitempty" doc:"At most 64; keys up to 200 characters, values up to 1,000."`
}

// NewTask asks for a task to be run.
type NewTask struct {
	TaskID    string    `json:"task_id,omitempty" doc:"Unique among live tasks, at most 200 characters. Made up when left out." example:"llama-7b-rlhf"`
	Pool      string    `json:"pool" doc:"The pool that is charged." example:"train"`
	Resources Amounts   `json:"resources,omitempty"`
	Priority  *float64  `json:"priority,omitempty" doc:"Higher goes first; 5 when left out." example:"8"`
	AgentName string    `json:"agent_name,omitempty" doc:"Name of its agent; made from pool and uid when left out."`
	Entry     *NewEntry `json:"entry,omitempty" doc:"The method called after every launch and restore: its return completes the task, its exception fails it. Without one the task ends by complete or cancel."`
	Launch
	EstimatedDuration *float64        `json:"estimated_duration,omitempty" doc:"Seconds it will run. More time left makes it a likelier victim; and it may pass a larger task in the queue when it ends before that could start."`
	MaxRuntime        *float64        `json:"max_runtime,omitempty" doc:"Seconds after which it is stopped as failed; no limit when left out. If its pool has one, the lesser counts."`
	QueueTimeout      *float64        `json:"queue_timeout,omitempty" doc:"Seconds after which a task that still waits fails with the code queue_timeout; each wait counts by itself. Left out, or 0: it waits for ever."`
	RetryBackoff      *float64        `json:"retry_backoff,omitempty" doc:"With on_failure requeue: seconds before the second attempt, doubled for each one after it, at most 300; 1 when left out, 0 for at once."`
	OnInsufficient    string          `json:"on_insufficient,omitempty" enum:"fail,queue" doc:"With no room, even by preemption: answer with an error (fail, the default) or wait (queue)."`
	OnPreempted       string          `json:"on_preempted,omitempty" enum:"stop,requeue" doc:"Once preempted: end there (stop, the default) or wait for another turn with the saved state (requeue)."`
	OnFailure         string          `json:"on_failure,omitempty" enum:"stop,requeue" doc:"When an attempt fails: end there (stop, the default) or try again (requeue)."`
	MaxAttempts       int             `json:"max_attempts,omitempty" minimum:"0" maximum:"1000" doc:"Attempts with on_failure requeue; 3 when left out."`
	UsePlacementGroup bool            `json:"use_placement_group,omitempty" doc:"Run it in a placement group of the pool: an idle one that fits, else a new dynamic one, else that of somebody who makes way. Without any such configuration it runs as any other."`
	PreemptForQuota   *bool           `json:"preempt_for_quota,omitempty" doc:"With use_placement_group: whether others make way also when it is quota that lacks, rather than a group; true when left out."`
	Payload           json.RawMessage `json:"payload,omitempty" doc:"Whatever should be kept with it."`
}

// NewEntry is the method to call.
type NewEntry struct {
	Method string          `json:"method" doc:"Name of the method." example:"run"`
	Args   json.RawMessage `json:"args,omitempty" doc:"Array of positional arguments."`
	Kwargs json.RawMessage `json:"kwargs,omitempty" doc:"Object of named arguments."`
}

// spec checks what runs.
func (l *Launch) spec(f *faults) ledger.Spec {
	f.optionalName("body", "actor_class", l.ActorClass)
	f.optionalName("body", "pickled_name", l.PickledName)
	if l.ActorClass != "" && len(l.Pickled) > 0 {
		f.add("body", "pickled", "comes together with actor_class; send one of them")
	}
	f.labels(l.Labels)
	return ledger.Spec{
		ActorClass: l.ActorClass, Pickled: l.Pickled, PickledName: l.PickledName,
		Methods: f.kind("methods", l.Methods, '['), Args: f.kind("actor_args", l.ActorArgs, '['), Kwargs: f.kind("actor_kwargs", l.ActorKwargs, '{'),
		RuntimeEnv: f.kind("runtime_env", l.RuntimeEnv, '{'), RayOptions: f.kind("ray_options", l.RayOptions, '{'),
	}
}

// submission checks everything that can be checked without knowing any state.
func (t *NewTask) submission(who string) (ledger.Submission, error) {
	var f faults
	f.optionalName("body", "task_id", t.TaskID)
	f.name("body", "pool", t.Pool)
	f.optionalName("body", "agent_name", t.AgentName)
	s := ledger.Submission{
		TaskID: t.TaskID, Pool: t.Pool, AgentName: t.AgentName, Labels: t.Labels, Actor: who,
		Request:        f.resources("resources", t.Resources),
		Priority:       f.priority("priority", orDefault(t.Priority, defaultPriority)),
		Spec:           t.Launch.spec(&f),
		Estimate:       f.seconds("estimated_duration", orDefault(t.EstimatedDuration, 0)),
		MaxRuntime:     f.seconds("max_runtime", orDefault(t.MaxRuntime, 0)),
		QueueTimeout:   f.seconds("queue_timeout", orDefault(t.QueueTimeout, 0)),
		LaunchTimeout:  f.seconds("launch_timeout", orDefault(t.LaunchTimeout, 0)),
		OnInsufficient: f.oneOf("on_insufficient", t.OnInsufficient, ledger.Fail, ledger.Queue),
		OnPreempted:    f.oneOf("on_preempted", t.OnPreempted, ledger.Stop, ledger.Requeue),
		OnFailure:      f.oneOf("on_failure", t.OnFailure, ledger.Stop, ledger.Requeue),
		MaxAttempts:    t.MaxAttempts,
	}
	if t.RetryBackoff != nil {
		backoff := f.seconds("retry_backoff", *t.RetryBackoff)
		s.RetryBackoff = &backoff
	}
	if t.MaxAttempts < 0 || t.MaxAttempts > 1000 {
		f.add("body", "max_attempts", "is %d; give 1 to 1000, or 0 for the default", t.MaxAttempts)
	}
	if t.Entry != nil {
		if t.Entry.Method == "" {
			f.add("body", "entry.method", "is missing; name the method to call")
		}
		f.optionalName("body", "entry.method", t.Entry.Method)
		s.Spec.Entry = &ledger.Entry{Method: t.Entry.Method, Args: f.kind("entry.args", t.Entry.Args, '['), Kwargs: f.kind("entry.kwargs", t.Entry.Kwargs, '{')}
	}
	s.Spec.UsePlacementGroup, s.Spec.Payload = t.UsePlacementGroup, given(t.Payload)
	if t.PreemptForQuota != nil {
		if s.Spec.KeepQuota = !*t.PreemptForQuota; !t.UsePlacementGroup {
			f.add("body", "preempt_for_quota", "is for tasks with use_placement_group; send that too, or leave it out")
		}
	}
	return s, f.err()
}

const taskExample = `{"task_id": "llama-7b-rlhf", "pool": "train", "resources": {"cpu": 2, "memory": 4096, "gpu": 1}, "priority": 8,
 "labels": {"training_stage": "rlhf"}, "actor_class": "my_project.train:Trainer", "actor_kwargs": {"steps": 1000},
 "entry": {"method": "run"}, "estimated_duration": 3600, "on_insufficient": "queue", "on_preempted": "requeue"}`

// registerSubmit documents POST /tasks as huma would, and serves it by hand.
//
// It is the one operation asked for tens of thousands of times a second. Huma
// reads a body into an any, walks the schema, and reads it again into the
// struct; see BenchmarkSubmit for what that costs beside the JSON itself.
func (a *API) registerSubmit(v1 chi.Router) {
	op := operation{id: "submit-task", method: "POST", path: "/tasks", tag: "Tasks", status: 201,
		summary: "Submit a task",
		about: "Asks for quota and, when there is none, for whoever may be preempted to make way; then launches one agent for the task. " +
			"The answer comes once that is decided and durable, or, with `wait`, once the task is running or has ended.\n\n" +
			"The same task_id with the same body is answered 200 with the task; with another body it is refused while the task lives.\n\n" +
			"Several tasks, at most 1,000, come as `{\"tasks\": […], \"all_or_nothing\": true}`: all are admitted, in one transaction and with one set of victims, or none is; " +
			"the answer is `{\"items\": [tasks in their order]}`. With `on_insufficient: queue` they wait as a whole, and then must be in one pool. " +
			"That is about admission: a member whose agent fails later fails by itself. " +
			"Without all_or_nothing, or as a bare JSON array, each is for itself, and the answer is 207.\n\n" +
			"A submission that would make a task wait longer which waits in front of it, with at least its priority, is refused (`room_reserved` in the explanation), or waits behind it.",
		codes:   []string{"unknown_pool", "task_exists", "agent_exists", "pool_held", "insufficient_resources", "request_too_large", "no_node_large_enough", "bridge_unavailable"},
		request: taskExample,
	}
	h := op.huma()
	registry := a.huma.OpenAPI().Components.Schemas
	param := func(v any, field string) *huma.Param {
		sf, _ := reflect.TypeOf(v).FieldByName(field)
		return &huma.Param{Name: sf.Tag.Get("query"), In: "query", Description: sf.Tag.Get("doc"), Example: sf.Tag.Get("example"),
			Schema: &huma.Schema{Type: huma.TypeString}}
	}
	h.Parameters = []*huma.Param{param(Scope{}, "Namespace"), param(WaitParam{}, "Wait")}
	h.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: registry.Schema(reflect.TypeFor[NewTask](), true, "")},
	}}
	answer := map[string]*huma.MediaType{"application/json": {Schema: registry.Schema(reflect.TypeFor[Task](), true, "")}}
	h.Responses = map[string]*huma.Response{
		"201": {Description: "The task was made.", Content: answer, Headers: map[string]*huma.Param{
			"Location": {Schema: &huma.Schema{Type: huma.TypeString}, Description: "Address of the task."},
		}},
		"200": {Description: "The same task was submitted before; this is how it is now.", Content: answer},
		"207": {Description: "Several tasks, each for itself: what became of each, in their order.", Content: map[string]*huma.MediaType{
			"application/json": {Schema: registry.Schema(reflect.TypeFor[List[Outcome]](), true, "")},
		}},
	}
	a.huma.OpenAPI().AddOperation(&h)
	op.describe(a.huma.OpenAPI())
	v1.Method(http.MethodPost, "/tasks", a.idempotent(http.HandlerFunc(a.submitTask)))
}

func (a *API) submitTask(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	ns, wait, err := submitQuery(r)
	if err != nil {
		refuse(w, r, err)
		return
	}
	buf := buffers.Get().(*bytes.Buffer)
	defer putBuffer(buf)
	data, err := readTasks(w, r, buf)
	if err != nil {
		refuse(w, r, err)
		return
	}
	if isMany(data) {
		a.submitMany(w, r, ns, wait, data)
		return
	}
	sub, err := readSubmission(r, data)
	if err != nil {
		refuse(w, r, err)
		return
	}
	if sub.TaskID == "" {
		sub.TaskID = "task-" + newID()
	}
	t, err := a.ledger.Submit(ctx, ns, sub)
	if err != nil {
		refuse(w, r, err)
		return
	}
	status := http.StatusCreated
	if !t.Created {
		status = http.StatusOK // it was there before we asked
	}
	if wait > 0 {
		if t, err = a.waitTask(ctx, ns, t, wait); err != nil {
			refuse(w, r, err)
			return
		}
	}
	out := taskDoc(t)
	buf.Reset()
	buf.Write(appendTask(buf.AvailableBuffer(), &out))
	writeDocument(w, status, out.Links.Self, buf)
}

// submitQuery reads ?namespace= and ?wait=, and refuses anything else.
func submitQuery(r *http.Request) (ns string, wait time.Duration, err error) {
	if r.URL.RawQuery == "" {
		return defaultNamespace, 0, nil
	}
	var f faults
	ns = defaultNamespace
	for k, v := range r.URL.Query() {
		switch k {
		case "namespace":
			if v[0] != "" {
				ns = v[0]
			}
			f.name("query", "namespace", ns)
		case "wait":
			var bad string
			if wait, bad = parseWait(v[0]); bad != "" {
				f.add("query", "wait", "%s", bad)
			}
		default:
			f.add("query", k, "there is no such parameter here")
		}
	}
	return ns, wait, f.err()
}

// newTasks are reused: a decoded task is a kilobyte of mostly zeros.
var newTasks = sync.Pool{New: func() any { return new(NewTask) }}

// readTasks reads a body that has a task, or several.
func readTasks(w http.ResponseWriter, r *http.Request, buf *bytes.Buffer) ([]byte, error) {
	data, err := readBody(w, r, maxLaunchBody, buf)
	switch {
	case err != nil:
		return nil, err
	case len(data) == 0:
		return nil, problem.New("bad_request", "there is no body; send a task as JSON")
	case needsCheck(data):
		return data, checkJSON(data)
	}
	return data, nil
}

func readSubmission(r *http.Request, data []byte) (ledger.Submission, error) {
	in := newTasks.Get().(*NewTask)
	defer func() {
		*in = NewTask{}
		newTasks.Put(in)
	}()
	if err := decode(data, in); err != nil {
		return ledger.Submission{}, err
	}
	return in.submission(actor(r.Context()))
}

// decode reads a body strictly, in one pass, and says what was wrong and where.
func decode(data []byte, into any) error {
	err := jsonv2.Unmarshal(data, into, jsonv2.RejectUnknownMembers(true))
	var semantic *jsonv2.SemanticError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &semantic):
		return badJSON(data, err)
	case errors.Is(err, jsonv2.ErrUnknownName):
		return invalidAt(semantic.JSONPointer, "there is no such field here")
	}
	value := string(semantic.JSONValue)
	if len(value) > 100 {
		value = value[:100] + "…"
	}
	switch {
	case semantic.JSONKind == '0' && value != "" && badNumber(value) != "":
		return invalidAt(semantic.JSONPointer, badNumber(value))
	case value != "":
		return invalidAt(semantic.JSONPointer, fmt.Sprintf("must be %s, not %s", wanted(semantic.GoType), value))
	}
	return invalidAt(semantic.JSONPointer, "must be "+wanted(semantic.GoType)+", not "+kindName(semantic.JSONKind))
}

func wanted(t reflect.Type) string {
	if t == nil {
		return "something else"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "base64"
		}
		return "an array"
	case reflect.Map:
		if t.Elem().Kind() == reflect.Float64 {
			return "an object of numbers"
		}
		return "an object of strings"
	}
	return "an object"
}

func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "true or false"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "this"
}

// writeJSON answers outside of huma.
func writeJSON(w http.ResponseWriter, r *http.Request, status int, v any) {
	buf := buffers.Get().(*bytes.Buffer)
	defer putBuffer(buf)
	if err := jsonv2.MarshalWrite(buf, v); err != nil {
		refuse(w, r, fmt.Errorf("writing the answer: %w", err))
		return
	}
	writeDocument(w, status, "", buf)
}

func writeDocument(w http.ResponseWriter, status int, location string, buf *bytes.Buffer) {
	h := w.Header()
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(buf.Len())}
	if location != "" {
		h["Location"] = []string{location}
	}
	w.WriteHeader(status)
	_, _ = w.Write(buf.Bytes())
}

var jsonType = []string{"application/json"}

func newID() string { return uuid.Must(uuid.NewV7()).String() }
