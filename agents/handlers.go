package agents

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/ledger"
)

// save keeps the state of one task: with its pool's preserver, else, or when that fails, as
// its agent saves it, else what is known of the task.
func (p *Pool) save(j ledger.Job, t ledger.JobTask) (out ledger.SaveOutcome, ok bool) {
	var task ledger.TaskToSave
	err := p.report("reading what to save", func() (err error) { task, err = p.l.TaskToSave(p.ctx, t.UID); return err })
	if err != nil {
		return out, false
	}
	failed := ""
	if task.Preserver != nil && !task.StartedAt.IsZero() { // of what never ran in this attempt, what was saved before stays
		state, why := p.preserve(j, task)
		if why == "" {
			return ledger.SaveOutcome{State: state}, true
		}
		failed = why
	}
	if j.LaunchID == "" {
		return ledger.SaveOutcome{State: defaultState(task), Error: failed}, true
	}
	out, ok = p.saveOwn(j, task)
	if failed != "" {
		out.Error, ok = joined(failed+"; its agent was asked instead", out.Error), true
	}
	return out, ok
}

// preserve runs a preserver; why says what went wrong.
func (p *Pool) preserve(j ledger.Job, task ledger.TaskToSave) (state json.RawMessage, why string) {
	res, err := p.again(func() (any, error) {
		return p.b.Call(p.ctx, bridge.CallRequest{Kind: bridge.CallPreserver, Pickled: task.Preserver.Pickled, Name: task.Preserver.Name,
			Argument: taskState(task), NodeID: task.Node, RuntimeEnv: task.RuntimeEnv, Timeout: j.SaveTimeout})
	})
	if err != nil {
		_, why = explain(err)
		return nil, why
	}
	r := res.(bridge.CallResult)
	if r.Error != "" {
		return nil, r.Error
	}
	return identified(r.Result, task)
}

// taskState is what a preserver is told, by the names of TaskState's fields.
func taskState(t ledger.TaskToSave) json.RawMessage {
	state := struct {
		TaskID    string            `json:"task_id"`
		AgentName string            `json:"agent_name"`
		PoolName  string            `json:"pool_name"`
		Priority  float64           `json:"priority"`
		Labels    map[string]string `json:"labels"`
		Payload   json.RawMessage   `json:"payload"`
		Estimate  *float64          `json:"estimated_duration"`
		StartedAt *float64          `json:"started_at"`
		Attempt   int               `json:"attempt"`
	}{t.TaskID, t.AgentName, t.Pool, t.Priority.Float(), t.Labels, t.Payload, nil, nil, t.Attempt}
	if state.Labels == nil {
		state.Labels = map[string]string{}
	}
	if t.Estimate != 0 {
		seconds := t.Estimate.Seconds()
		state.Estimate = &seconds
	}
	if !t.StartedAt.IsZero() {
		seconds := float64(t.StartedAt.UnixMicro()) / 1e6
		state.StartedAt = &seconds
	}
	raw, _ := json.Marshal(state) // names, numbers and JSON
	return raw
}

// saveOwn asks the agent.
func (p *Pool) saveOwn(j ledger.Job, task ledger.TaskToSave) (ledger.SaveOutcome, bool) {
	res, err := p.again(func() (any, error) { return p.b.SaveState(p.ctx, j.LaunchID, j.SaveTimeout) })
	if err != nil {
		if absent(err) {
			return ledger.SaveOutcome{}, false // never ran in this attempt: what was saved before stays
		}
		_, message := explain(err)
		return ledger.SaveOutcome{Error: message}, true
	}
	s := res.(bridge.SavedState)
	if !task.Registered {
		return ledger.SaveOutcome{State: s.State, Error: s.Error}, true
	}
	// The agent knows nothing of what was registered on it.
	if s.Default {
		return ledger.SaveOutcome{State: defaultState(task), Error: s.Error}, true
	}
	state, why := identified(s.State, task)
	return ledger.SaveOutcome{State: state, Error: joined(s.Error, why)}, true
}

// defaultState is what can be kept of a task that nobody can save.
func defaultState(t ledger.TaskToSave) json.RawMessage {
	labels := t.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	raw, _ := json.Marshal(map[string]any{"task_id": t.TaskID, "pool_name": t.Pool, "labels": labels, "payload": t.Payload})
	return raw
}

// identified adds to a state whose it is.
func identified(state json.RawMessage, t ledger.TaskToSave) (out json.RawMessage, why string) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(state, &fields); err != nil || fields == nil {
		return nil, "the state is not a JSON object"
	}
	fields["task_id"], _ = json.Marshal(t.TaskID)
	fields["pool_name"], _ = json.Marshal(t.Pool)
	out, err := json.Marshal(fields)
	if err != nil {
		return nil, err.Error()
	}
	return out, ""
}

func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// RestoreTimeout is how long a restorer may take when nobody says.
const RestoreTimeout = time.Minute

// Restore gives a saved state to the restorer of its pool. It launches nothing. Only the
// server that leads the cluster can, unless there is no restorer.
func (s *Seat) Restore(ctx context.Context, ns string, state json.RawMessage, timeout time.Duration) (ledger.Restored, error) {
	var whose struct {
		TaskID string `json:"task_id"`
		Pool   string `json:"pool_name"`
	}
	if err := json.Unmarshal(state, &whose); err != nil {
		return ledger.Restored{Error: "task_id and pool_name of the saved state must be text: give it as the preemption saved it"}, nil
	}
	out := ledger.Restored{TaskID: whose.TaskID, Pool: whose.Pool}
	if out.Pool == "" {
		out.Error = "the saved state has no pool_name, which says whose restorer is to be run: give the state as the preemption saved it"
		return out, nil
	}
	r, err := s.o.Ledger.Restorer(ctx, ns, out.Pool, out.TaskID)
	if err != nil {
		return out, err
	}
	if r == nil {
		out.Success = true
		return out, nil
	}
	out.Restorer = r.Name
	p, _ := s.current()
	if p == nil {
		return out, s.elsewhere("the state cannot be restored")
	}
	res, err := p.b.Call(ctx, bridge.CallRequest{Kind: bridge.CallRestorer, Pickled: r.Pickled, Name: r.Name, Argument: state, NodeID: r.Node,
		RuntimeEnv: r.RuntimeEnv, Timeout: cmp.Or(timeout, RestoreTimeout)})
	switch {
	case ctx.Err() != nil:
		return out, ctx.Err()
	case bridge.CodeOf(err) == bridge.CodeUnavailable || err != nil && bridge.IsUnknown(err):
		_, message := explain(err)
		return out, unavailable("the state cannot be restored: %s", message)
	case err != nil:
		_, out.Error = explain(err)
	default:
		out.Error = res.Error
	}
	out.Success = out.Error == ""
	return out, nil
}

// elsewhere refuses what only the server that leads the cluster can do.
func (s *Seat) elsewhere(what string) error {
	if _, url := s.o.Ledger.Leader(s.o.Cluster); url != "" {
		return unavailable("%s here: ask the server that runs the cluster's agents, %s", what, url)
	}
	return unavailable("%s: no server reaches the Ray cluster right now, try again", what)
}

func unavailable(format string, args ...any) error {
	return &ledger.Error{Code: string(bridge.CodeUnavailable), Message: fmt.Sprintf(format, args...)}
}
