// Package bridge is how the server reaches one Ray cluster: through a Python sidecar that is a
// driver on it. It holds the wire types, the client, the supervisor of a sidecar process and an
// in-process fake that keeps the same promises (bridgetest checks both with one suite).
//
// It knows agents, nodes and calls on them. It knows nothing of tasks' states, quota or policy:
// whoever calls decides; the bridge only does, and says truthfully what happened.
package bridge

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
)

// Protocol is the version of the wire format. A sidecar with another one is refused by Hello.
const Protocol = 1

// MaxBody is the largest request or answer body, in bytes. Larger ones are refused with
// CodeTooLarge before anything is done.
const MaxBody = 64 << 20

// Bridge is what the server may ask of one Ray cluster. Implementations are safe for concurrent use.
//
// Every error is, or wraps, an *Error. Error.Unknown tells "it was not done" from "it may have
// been done"; after the latter, ask again with the same launch id: every call here is idempotent.
type Bridge interface {
	// Hello says who is on the other side.
	Hello(ctx context.Context) (Hello, error)

	// Claim leaves this deployment's claim inside Ray, where the SDK finds the server by it. While
	// another live deployment holds the cluster it fails with ErrClaimed, Error.Holder saying whose
	// it is; Claim.Force takes it over. A claim is kept alive by the sidecar and free again when
	// the sidecar stops, or some seconds after it died.
	Claim(ctx context.Context, claim Claim) error

	// Launch starts an agent and returns once it is ready: constructed, and its saved state restored.
	// It is idempotent on LaunchID: while that launch is under way or alive the answer is the same
	// and nothing starts twice; once it has failed or ended, the answer is its error. Nothing is
	// left behind by a launch that failed. Cancelling ctx gives up waiting, not the launch: use Kill.
	Launch(ctx context.Context, req LaunchRequest) (Launched, error)

	// Run starts the entry of a ready agent and returns when it has been handed over. The outcome
	// comes as an event and stays readable in List. One entry a launch: later calls change nothing.
	Run(ctx context.Context, launchID string, entry Entry) error

	// Cancel asks the agent to stop what it does for taskID. It reaches a busy agent at once. An agent
	// that refuses, raises or does not answer in time is not an error but a result that says so.
	Cancel(ctx context.Context, launchID, taskID string, timeout time.Duration) (CancelResult, error)

	// SaveState asks the agent for its state. A handler that raises, does not answer in time or returns
	// something that is not JSON is a result with Error set, and State then holds the default state.
	SaveState(ctx context.Context, launchID string, timeout time.Duration) (SavedState, error)

	// Ping returns nil when the agent's worker answers within the timeout.
	Ping(ctx context.Context, launchID string, timeout time.Duration) error

	// Call runs a pickled callable with one argument in a worker process of its own, which ends with it, by
	// force when the timeout comes first. A callable that fails is not an error but a result that says so.
	// Asked again after an unknown outcome it runs again: it keeps no agent, and nothing remembers it.
	Call(ctx context.Context, req CallRequest) (CallResult, error)

	// Kill removes the agent and returns nil only once it was seen gone: its process has ended and
	// its node has the resources back. It works in every state, stops a launch under way, and is nil
	// for a launch that never existed (which can then not be launched later either). CodeTimeout
	// means it was not seen gone yet. Killing emits no event.
	Kill(ctx context.Context, launchID string, timeout time.Duration) error

	// List gives every agent of this deployment in the cluster, whoever launched it and whichever
	// sidecar ran then, and those that ended lately (StateGone), which stay for a while.
	List(ctx context.Context) ([]AgentStatus, error)

	// Nodes gives the cluster's nodes, dead ones for a while included.
	Nodes(ctx context.Context) ([]Node, error)

	// EnsureGroup makes a placement group and returns once Ray has placed all of it. It is idempotent on
	// Name: while it is on its way or stands the answer is the same and nothing is made twice. When it finds
	// no room in time, or never could, it fails with CodeGroupTimeout; one that stood and is gone, or was
	// removed before it was made, with CodeGroupLost. Nothing of it is left then, and the answer stays: a
	// name is never used again. Cancelling ctx gives up waiting, not the group: use RemoveGroup.
	EnsureGroup(ctx context.Context, req GroupRequest) (Group, error)

	// RemoveGroup removes a placement group with all agents in it, and returns nil only once it was seen gone.
	// It works in every state, and is nil for a group that never existed (which can then not be made later
	// either). CodeTimeout means it was not seen gone yet. It emits no EventGroupLost.
	RemoveGroup(ctx context.Context, name string, timeout time.Duration) error

	// Groups gives this deployment's placement groups that are there or on their way, whichever sidecar
	// made them.
	Groups(ctx context.Context) ([]Group, error)

	// Events follows what happens, from the event after `after` on, until ctx ends (then without an
	// error) or the connection breaks (one final error). When `after` is not a sequence number this
	// sidecar can continue from (0, another session's, or too old) the first event is EventResync:
	// List from scratch, then go on; nothing that List could have missed is left out after it.
	Events(ctx context.Context, after int64) iter.Seq2[Event, error]

	// Logs reads what an agent printed, from a byte offset, at most limit bytes (0: 64 KiB), while it
	// lives and for a while after.
	Logs(ctx context.Context, launchID string, stream Stream, offset int64, limit int) (LogChunk, error)

	// Close frees connections. It stops no agent.
	Close() error
}

// Resources is a vector of whole numbers: "memory" in MiB, everything else ("cpu", "gpu", custom
// names) in thousandths.
type Resources map[string]int64

// Hello describes a sidecar and the cluster it is on.
type Hello struct {
	Protocol      int    `json:"protocol"`
	Session       string `json:"session"` // this run of the sidecar
	Deployment    string `json:"deployment"`
	ClusterID     string `json:"cluster_id"` // of the Ray cluster; another one means every agent is gone
	RayAddress    string `json:"ray_address"`
	Dashboard     string `json:"dashboard"`     // URL of Ray's dashboard, "" when there is none (yet)
	RayNamespace  string `json:"ray_namespace"` // where agents live unless they choose another
	NodeID        string `json:"node_id"`       // the node the sidecar is on
	RayVersion    string `json:"ray_version"`
	PythonVersion string `json:"python_version"`
	PID           int    `json:"pid"`
	Claim         *Claim `json:"claim,omitempty"` // who holds the cluster, nil for nobody
}

// Claim says which control plane a Ray cluster belongs to.
type Claim struct {
	Deployment string `json:"deployment"`
	URL        string `json:"url"` // where that deployment's server answers
	Force      bool   `json:"force,omitempty"`
}

// Method is a public method of the user's class that other drivers may call on the actor's handle.
type Method struct {
	Name       string `json:"name"`
	Async      bool   `json:"async,omitempty"`
	Generator  bool   `json:"generator,omitempty"` // results are streamed
	NumReturns int    `json:"num_returns,omitempty"`
}

// LaunchRequest describes one agent to start.
type LaunchRequest struct {
	LaunchID  string `json:"launch_id"` // unique per attempt, e.g. "<uid>.<attempt>"
	AgentName string `json:"agent_name"`
	TaskID    string `json:"task_id,omitempty"`
	Pool      string `json:"pool,omitempty"`
	Attempt   int    `json:"attempt,omitempty"`

	// ActorName and RayNamespace are what Ray knows the actor by. Empty: the launch id, in the
	// deployment's own namespace.
	ActorName    string `json:"actor_name,omitempty"`
	RayNamespace string `json:"ray_namespace,omitempty"`

	// ClassPath is "module:Class". Pickled replaces it: base64 of cloudpickle of
	// {"class", "args", "kwargs"}, plain or in an envelope that says which versions made it
	// (python/src/schedulemesh/bridge/pickled.py). Either is loaded inside the worker only.
	ClassPath string          `json:"class_path,omitempty"`
	Pickled   string          `json:"pickled,omitempty"`
	Methods   []Method        `json:"methods,omitempty"`
	Args      json.RawMessage `json:"args,omitempty"`   // array, after name and labels
	Kwargs    json.RawMessage `json:"kwargs,omitempty"` // object

	Labels     map[string]string `json:"labels,omitempty"`
	Resources  Resources         `json:"resources"`
	NodeID     string            `json:"node_id,omitempty"` // preferred, not required
	RuntimeEnv json.RawMessage   `json:"runtime_env,omitempty"`
	RayOptions json.RawMessage   `json:"ray_options,omitempty"` // for Ray's .options(), besides what is named above

	// Group is the placement group the agent goes into, made first when it is not there (then the launch
	// may fail with its codes, too). The agent sits in the first bundle that has room for Resources, or in any
	// one; what is more than the largest bundle stays for what it starts itself. NodeID does not count then.
	Group *GroupRequest `json:"group,omitempty"`

	SavedState json.RawMessage `json:"saved_state,omitempty"` // given to restore_state before it is ready

	Timeout     time.Duration `json:"-"` // to be ready; 0: 2 minutes
	RoomTimeout time.Duration `json:"-"` // to be placed on a node; 0: Timeout. What fits on no node at all fails at once
}

// DefaultLaunchTimeout is LaunchRequest.Timeout when it is 0.
const DefaultLaunchTimeout = 2 * time.Minute

// Launched describes an agent that is ready.
type Launched struct {
	LaunchID     string  `json:"launch_id"`
	ActorID      string  `json:"actor_id"`
	ActorName    string  `json:"actor_name"`
	RayNamespace string  `json:"ray_namespace"`
	NodeID       string  `json:"node_id"`
	PID          int     `json:"pid"`
	Warm         bool    `json:"warm"` // an idle worker process was used
	Timings      Timings `json:"timings"`

	GroupNodes []string `json:"group_nodes,omitempty"` // the node of each bundle of its placement group
}

// GroupRequest describes a placement group to make.
type GroupRequest struct {
	Name     string        // for us and in Ray; never used twice
	Bundles  []Resources   // what each reserves
	Strategy string        // Ray's: PACK (also for ""), SPREAD, STRICT_PACK or STRICT_SPREAD
	NodeID   string        // preferred, where all of it must be on one node
	Timeout  time.Duration // to be placed; 0: DefaultGroupTimeout
}

// DefaultGroupTimeout is GroupRequest.Timeout when it is 0.
const DefaultGroupTimeout = 30 * time.Second

// MarshalJSON gives the timeout in seconds.
func (r GroupRequest) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Name     string      `json:"name"`
		Bundles  []Resources `json:"bundles"`
		Strategy string      `json:"strategy,omitempty"`
		NodeID   string      `json:"node_id,omitempty"`
		Timeout  float64     `json:"timeout"`
	}{r.Name, r.Bundles, r.Strategy, r.NodeID, cmp.Or(r.Timeout, DefaultGroupTimeout).Seconds()})
}

// GroupState is where a placement group is in its life.
type GroupState string

// The states of a placement group.
const (
	GroupPending GroupState = "pending" // not, or not any more, placed on nodes
	GroupCreated GroupState = "created"
)

// Group is one placement group in Ray.
type Group struct {
	Name    string      `json:"name"`
	State   GroupState  `json:"state"`
	Bundles []Resources `json:"bundles"`
	Nodes   []string    `json:"nodes"` // of each bundle, once it is created
}

// Timings says where a launch's time went, in milliseconds.
type Timings struct {
	Create float64 `json:"create_ms"` // registering the actor with Ray
	Place  float64 `json:"place_ms"`  // until a worker process began to construct it
	Ready  float64 `json:"ready_ms"`  // construction and restore
	Total  float64 `json:"total_ms"`
}

// Entry is the method an agent is to run.
type Entry struct {
	Method string          `json:"method"`
	Args   json.RawMessage `json:"args,omitempty"`   // array
	Kwargs json.RawMessage `json:"kwargs,omitempty"` // object
}

// CancelResult is an agent's answer to a cancel.
type CancelResult struct {
	Success  bool            `json:"success"`
	TimedOut bool            `json:"timed_out,omitempty"`
	Error    string          `json:"error,omitempty"`
	Result   json.RawMessage `json:"result,omitempty"` // what its cancel method returned
}

// SavedState is an agent's state: always a JSON object with "task_id" and "pool_name" in it.
type SavedState struct {
	State    json.RawMessage `json:"state"`
	Default  bool            `json:"default,omitempty"` // not the class's own: it has no save_state, or that failed
	TimedOut bool            `json:"timed_out,omitempty"`
	Error    string          `json:"error,omitempty"`
}

// CallKind says what a callable is for, which decides what it is given and what it may return.
type CallKind string

// The kinds of calls.
const (
	// CallPreserver is called with a TaskState, made of the argument's fields, and returns a dict.
	CallPreserver CallKind = "preserver"
	// CallRestorer is called with the argument as a dict. False, or a dict whose "success" is false, is a failure.
	CallRestorer CallKind = "restorer"
)

// CallRequest is a callable to be run once.
type CallRequest struct {
	Pickled    []byte          `json:"pickled"` // cloudpickle of the callable, plain or in an envelope
	Kind       CallKind        `json:"kind"`
	Name       string          `json:"name,omitempty"`    // of the callable, for messages
	Argument   json.RawMessage `json:"argument"`          // object
	NodeID     string          `json:"node_id,omitempty"` // preferred, not required
	RuntimeEnv json.RawMessage `json:"runtime_env,omitempty"`
	Timeout    time.Duration   `json:"-"` // from being asked to the answer; 0: 10 s
}

// DefaultCallTimeout is CallRequest.Timeout when it is 0.
const DefaultCallTimeout = 10 * time.Second

// CallResult is what a callable returned, or why it did not.
type CallResult struct {
	Result   json.RawMessage `json:"result,omitempty"` // a preserver's is an object
	TimedOut bool            `json:"timed_out,omitempty"`
	Error    string          `json:"error,omitempty"`
	Detail   string          `json:"detail,omitempty"` // a traceback, if there is one
}

// AgentState is where an agent is in its life.
type AgentState string

// The states of an agent.
const (
	StateLaunching AgentState = "launching"
	StateReady     AgentState = "ready"
	StateGone      AgentState = "gone"
)

// EntryState is how far an agent's entry is.
type EntryState string

// The states of an entry.
const (
	EntryNone      EntryState = ""
	EntryRunning   EntryState = "running"
	EntryCompleted EntryState = "completed"
	EntryFailed    EntryState = "failed"
)

// Outcome is how an entry ended.
type Outcome struct {
	Result    json.RawMessage `json:"result,omitempty"`
	Error     string          `json:"error,omitempty"`
	Traceback string          `json:"traceback,omitempty"`
	Cancelled bool            `json:"cancelled,omitempty"` // a cancel had been asked before it ended
}

// AgentStatus is one agent as the bridge knows it.
type AgentStatus struct {
	LaunchID     string     `json:"launch_id"`
	AgentName    string     `json:"agent_name"`
	TaskID       string     `json:"task_id,omitempty"`
	Pool         string     `json:"pool,omitempty"`
	Attempt      int        `json:"attempt,omitempty"`
	State        AgentState `json:"state"`
	Reason       string     `json:"reason,omitempty"` // why it is gone
	ActorID      string     `json:"actor_id,omitempty"`
	ActorName    string     `json:"actor_name"`
	RayNamespace string     `json:"ray_namespace"`
	NodeID       string     `json:"node_id,omitempty"`
	PID          int        `json:"pid,omitempty"`
	Resources    Resources  `json:"resources,omitempty"`
	Entry        EntryState `json:"entry,omitempty"`
	Outcome      *Outcome   `json:"outcome,omitempty"` // once the entry has ended
}

// Node is one node of the cluster.
type Node struct {
	ID      string    `json:"id"`
	Address string    `json:"address"`
	Alive   bool      `json:"alive"`
	Head    bool      `json:"head,omitempty"`
	Total   Resources `json:"total"`
	// Foreign is what others than this deployment's agents use. Only readings that no launch or kill
	// of ours disturbed count; until the first one it is empty and ForeignKnown false, later the last
	// such reading stays.
	Foreign      Resources `json:"foreign"`
	ForeignKnown bool      `json:"foreign_known"`
}

// EventType names what an event is about.
type EventType string

// The events.
const (
	EventAgentDied      EventType = "agent_died"      // a ready agent ended and nobody had asked for it: Reason
	EventEntryCompleted EventType = "entry_completed" // Outcome.Result
	EventEntryFailed    EventType = "entry_failed"    // Outcome.Error, Outcome.Traceback
	EventNodesChanged   EventType = "nodes_changed"   // ask Nodes again
	EventAgentMetrics   EventType = "agent_metrics"   // Metrics
	EventGroupLost      EventType = "group_lost"      // a placement group that stood is gone, and nobody had asked for it: Name, Reason
	EventResync         EventType = "resync"          // events were missed: ask List
)

// Event is one thing that happened. Seq grows, also from one session to the next.
type Event struct {
	Seq      int64           `json:"seq"`
	Type     EventType       `json:"type"`
	Session  string          `json:"session,omitempty"` // with EventResync
	LaunchID string          `json:"launch_id,omitempty"`
	Name     string          `json:"name,omitempty"` // of a placement group
	Reason   string          `json:"reason,omitempty"`
	Outcome  *Outcome        `json:"outcome,omitempty"`
	Metrics  json.RawMessage `json:"metrics,omitempty"`
}

// Stream is one of an agent's two outputs.
type Stream string

// The streams of an agent.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// LogChunk is a piece of an agent's output. Read on from Next. Text is valid UTF-8: what was not is
// replaced, so only Next counts bytes.
type LogChunk struct {
	Text  string `json:"text"`
	Next  int64  `json:"next"`
	Size  int64  `json:"size"`
	EOF   bool   `json:"eof"`   // Next is the end, for now
	Ended bool   `json:"ended"` // the agent is gone: with EOF, nothing will follow
}

// Code says what kind of failure an Error is.
type Code string

// The codes.
const (
	CodeImportFailed      Code = "import_failed"      // the class could not be imported or unpickled
	CodeVersionMismatch   Code = "version_mismatch"   // it was pickled with another Python or Ray
	CodeInvalidClass      Code = "invalid_class"      // it is not a class, or takes no name and labels
	CodeConstructorFailed Code = "constructor_failed" // it raised
	CodeRestoreFailed     Code = "restore_failed"     // restore_state raised
	CodeRuntimeEnvFailed  Code = "runtime_env_failed" // Ray could not set up the runtime_env
	CodeLaunchTimeout     Code = "launch_timeout"     // placed, but not ready in time
	CodeNoRoom            Code = "no_room"            // no node had, or ever could have, room
	CodeGroupTimeout      Code = "group_timeout"      // no room for a placement group, in time or ever
	CodeGroupLost         Code = "group_lost"         // a placement group is not there any more
	CodeNameTaken         Code = "name_taken"         // a live actor has that name
	CodeAgentNotFound     Code = "agent_not_found"    // no such launch
	CodeAgentDied         Code = "agent_died"         // it has ended
	CodeClaimed           Code = "claimed"            // the cluster is another deployment's
	CodeTimeout           Code = "timeout"            // a call did not end in time
	CodeBadRequest        Code = "bad_request"        // the message says what is wrong
	CodeTooLarge          Code = "too_large"          // a body above MaxBody
	CodeUnavailable       Code = "bridge_unavailable" // no sidecar, or it cannot reach Ray
	CodeInternal          Code = "internal"           // a defect in the sidecar
)

// Error is what every call here fails with.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`          // one sentence for a person
	Detail  string `json:"detail,omitempty"` // a traceback, if there is one
	Holder  *Claim `json:"holder,omitempty"` // with CodeClaimed
	// Unknown: the call may have been carried out. Without it, it was not.
	Unknown bool  `json:"unknown,omitempty"`
	Err     error `json:"-"`
}

func (e *Error) Error() string {
	if e.Message == "" {
		return string(e.Code)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

func (e *Error) Unwrap() error { return e.Err }

// Is matches by code, so errors.Is(err, bridge.ErrClaimed) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}

// Sentinels for errors.Is, for the codes callers branch on.
var (
	ErrNoRoom        error = &Error{Code: CodeNoRoom}
	ErrGroupTimeout  error = &Error{Code: CodeGroupTimeout}
	ErrGroupLost     error = &Error{Code: CodeGroupLost}
	ErrNameTaken     error = &Error{Code: CodeNameTaken}
	ErrLaunchTimeout error = &Error{Code: CodeLaunchTimeout}
	ErrAgentNotFound error = &Error{Code: CodeAgentNotFound}
	ErrAgentDied     error = &Error{Code: CodeAgentDied}
	ErrClaimed       error = &Error{Code: CodeClaimed}
	ErrTimeout       error = &Error{Code: CodeTimeout}
	ErrTooLarge      error = &Error{Code: CodeTooLarge}
	ErrBadRequest    error = &Error{Code: CodeBadRequest}
	ErrUnavailable   error = &Error{Code: CodeUnavailable}
)

// CodeOf gives the code of an error from this package, "" for any other.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// IsUnknown says that the call that failed with err may have been carried out all the same.
// Errors that are not from this package count as unknown.
func IsUnknown(err error) bool {
	var e *Error
	if errors.As(err, &e) {
		return e.Unknown
	}
	return err != nil
}

func errf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Validate finds what is wrong with a request before it is sent anywhere.
func (r *LaunchRequest) Validate() error {
	switch {
	case r.LaunchID == "":
		return errf(CodeBadRequest, "launch_id is empty")
	case len(r.LaunchID) > 256:
		return errf(CodeBadRequest, "launch_id has %d bytes, at most 256 are allowed", len(r.LaunchID))
	case r.ClassPath == "" && r.Pickled == "":
		return errf(CodeBadRequest, "neither class_path nor pickled is given")
	case r.ClassPath != "" && r.Pickled != "":
		return errf(CodeBadRequest, "both class_path and pickled are given, give one")
	case r.Timeout < 0 || r.RoomTimeout < 0:
		return errf(CodeBadRequest, "a timeout is negative")
	}
	for _, s := range [...]string{r.LaunchID, r.AgentName, r.TaskID, r.Pool, r.ActorName, r.RayNamespace, r.ClassPath, r.NodeID} {
		for i := range len(s) {
			if s[i] == 0 {
				return errf(CodeBadRequest, "a name contains a NUL byte: %q", s)
			}
		}
	}
	if err := r.Resources.validate(); err != nil {
		return err
	}
	if r.Group != nil {
		if err := r.Group.Validate(); err != nil {
			return err
		}
	}
	return cmp.Or(
		shaped("args", r.Args, '['), shaped("kwargs", r.Kwargs, '{'), shaped("runtime_env", r.RuntimeEnv, '{'),
		shaped("ray_options", r.RayOptions, '{'), shaped("saved_state", r.SavedState, '{'),
	)
}

func (r Resources) validate() error {
	for name, n := range r {
		if n < 0 || name == "" {
			return errf(CodeBadRequest, "resource %q is %d, it must be named and not negative", name, n)
		}
	}
	return nil
}

// Validate finds what is wrong with a placement group before it is sent anywhere.
func (r *GroupRequest) Validate() error {
	switch {
	case r.Name == "" || len(r.Name) > 256 || strings.ContainsRune(r.Name+r.NodeID, 0):
		return errf(CodeBadRequest, "%.300q is no name of a placement group", r.Name)
	case !slices.Contains([]string{"", "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}, r.Strategy):
		return errf(CodeBadRequest, "strategy is %q, it must be one of PACK, SPREAD, STRICT_PACK, STRICT_SPREAD", r.Strategy)
	case len(r.Bundles) == 0:
		return errf(CodeBadRequest, "the placement group has no bundles")
	case r.Timeout < 0:
		return errf(CodeBadRequest, "the timeout is negative")
	}
	for _, b := range r.Bundles {
		if err := b.validate(); err != nil {
			return err
		}
		reserved := int64(0)
		for _, n := range b {
			reserved = max(reserved, n)
		}
		if reserved == 0 {
			return errf(CodeBadRequest, "a bundle of the placement group reserves nothing")
		}
	}
	return nil
}

// Validate finds what is wrong with an entry before it is sent anywhere.
func (e *Entry) Validate() error {
	if e.Method == "" || e.Method[0] == '_' {
		return errf(CodeBadRequest, "%q is not the name of a public method", e.Method)
	}
	return cmp.Or(shaped("args", e.Args, '['), shaped("kwargs", e.Kwargs, '{'))
}

// Validate finds what is wrong with a call before it is sent anywhere.
func (r *CallRequest) Validate() error {
	switch {
	case len(r.Pickled) == 0:
		return errf(CodeBadRequest, "pickled is empty")
	case r.Kind != CallPreserver && r.Kind != CallRestorer:
		return errf(CodeBadRequest, "%q is no kind of call", r.Kind)
	case len(r.Argument) == 0:
		return errf(CodeBadRequest, "argument is missing")
	case r.Timeout < 0:
		return errf(CodeBadRequest, "the timeout is negative")
	}
	return cmp.Or(shaped("argument", r.Argument, '{'), shaped("runtime_env", r.RuntimeEnv, '{'))
}

// shaped wants JSON that begins with open, or nothing, or null.
func shaped(name string, raw json.RawMessage, open byte) error {
	trimmed := bytes.TrimLeft(raw, " \t\r\n")
	if len(trimmed) == 0 || string(trimmed) == "null" {
		return nil
	}
	if trimmed[0] != open || !json.Valid(raw) {
		kind := map[byte]string{'[': "array", '{': "object"}[open]
		return errf(CodeBadRequest, "%s is not a JSON %s: %.80s", name, kind, trimmed)
	}
	return nil
}
