package api

import (
	"context"
	"encoding/json"

	"github.com/schedulemesh/schedulemesh/ledger"
)

// StateHandlers are the handlers of a pool as answers have them.
type StateHandlers struct {
	Pool          string `json:"pool" example:"train"`
	PreserverName string `json:"preserver_name" doc:"Empty when there is none: agents save their own state." example:"save_checkpoint"`
	RestorerName  string `json:"restorer_name" doc:"Empty when there is none." example:"load_checkpoint"`
	UpdatedAt     Stamp  `json:"updated_at" doc:"When they were put; null when there are none."`
}

func handlersDoc(h ledger.StateHandlers) StateHandlers {
	out := StateHandlers{Pool: h.Pool, UpdatedAt: Stamp(h.UpdatedAt)}
	if h.Preserver != nil {
		out.PreserverName = h.Preserver.Name
	}
	if h.Restorer != nil {
		out.RestorerName = h.Restorer.Name
	}
	return out
}

// NewHandlers replaces the handlers of a pool.
type NewHandlers struct {
	Preserver     []byte `json:"preserver,omitempty" doc:"Base64 of a cloudpickled callable that takes a TaskState and returns a dict: the state that is kept. At most 32 MiB. Only a worker unpickles it. When left out there is none."`
	PreserverName string `json:"preserver_name,omitempty" doc:"Its name, for people; preserver when left out." example:"save_checkpoint"`
	Restorer      []byte `json:"restorer,omitempty" doc:"Base64 of a cloudpickled callable that takes such a dict. When left out there is none."`
	RestorerName  string `json:"restorer_name,omitempty" doc:"Its name, for people; restorer when left out." example:"load_checkpoint"`
}

// StateBody is a saved state to be restored.
type StateBody struct {
	SavedState map[string]json.RawMessage `json:"saved_state" doc:"As a preemption saved it, with its task_id and pool_name."`
	Timeout    *float64                   `json:"timeout,omitempty" doc:"Seconds the restorer may take, at most 600; 60 when left out."`
}

// RestoreResult is what restoring a saved state brought.
type RestoreResult struct {
	Success  bool   `json:"success" doc:"The restorer ran to its end, or the pool has none."`
	Error    string `json:"error" doc:"Why it did not succeed."`
	TaskID   string `json:"task_id"`
	PoolName string `json:"pool_name"`
	Restorer string `json:"restorer" doc:"Name of the restorer that was called; empty when the pool has none."`
}

// maxRestore bounds the time a request may ask a restorer to have, in seconds.
const maxRestore = 600

func (a *API) registerHandlers() {
	register(a, operation{id: "put-state-handlers", method: "PUT", path: "/pools/{name}/state-handlers", tag: "Pools",
		summary: "Set the state handlers of a pool", about: "Replaces both. When a task of the pool makes way, the preserver is called in place of its agent's save_state: in a worker process of its own, under the task's runtime_env, for at most the policy's save_timeout. When it fails the agent is asked after all, and save_error says why. The pool need not be one that was created.",
		request: `{"preserver": "gASVCgAAAAAAAAB9lC4=", "preserver_name": "save_checkpoint"}`,
	}, func(ctx context.Context, in *struct {
		PoolPath
		Body NewHandlers
	}) (*Doc[StateHandlers], error) {
		var f faults
		b := in.Body
		f.optionalName("body", "preserver_name", b.PreserverName)
		f.optionalName("body", "restorer_name", b.RestorerName)
		h := ledger.StateHandlers{Pool: in.Name, Preserver: handler(&f, "preserver", b.Preserver, b.PreserverName), Restorer: handler(&f, "restorer", b.Restorer, b.RestorerName)}
		if err := f.err(); err != nil {
			return nil, err
		}
		h, err := a.ledger.PutStateHandlers(ctx, in.Namespace, h, actor(ctx))
		return doc(handlersDoc(h), err)
	})

	register(a, operation{id: "get-state-handlers", method: "GET", path: "/pools/{name}/state-handlers", tag: "Pools",
		summary: "Read the state handlers of a pool", about: "Their names; the code itself is not given back. A pool without any has empty names.",
	}, func(ctx context.Context, in *PoolPath) (*Doc[StateHandlers], error) {
		h, err := a.ledger.StateHandlers(ctx, in.Namespace, in.Name)
		return doc(handlersDoc(h), err)
	})

	register(a, operation{id: "delete-state-handlers", method: "DELETE", path: "/pools/{name}/state-handlers", tag: "Pools", status: 204,
		summary: "Remove the state handlers of a pool", about: "From now on agents save their own state. A preemption that is calling one already goes on with it. None is fine.",
	}, func(ctx context.Context, in *PoolPath) (*Nothing, error) {
		return nil, a.ledger.DeleteStateHandlers(ctx, in.Namespace, in.Name, actor(ctx))
	})

	register(a, operation{id: "restore-state", method: "POST", path: "/preemption/restore", tag: "Preemption",
		summary: "Restore a saved state", about: "Calls the restorer of the state's pool with it, in a worker process of its own, and says how that went. It launches nothing: `POST /tasks/{task_id}/restore` runs a preempted task again.",
		codes: []string{"bridge_unavailable"}, request: `{"saved_state": {"task_id": "batch-job", "pool_name": "train", "step": 120}}`,
	}, func(ctx context.Context, in *struct {
		Scope
		Body StateBody
	}) (*Doc[RestoreResult], error) {
		var f faults
		timeout := f.seconds("timeout", orDefault(in.Body.Timeout, 0))
		if timeout.Seconds() > maxRestore {
			f.add("body", "timeout", "is %v; at most %d seconds are possible", *in.Body.Timeout, maxRestore)
		}
		if err := f.err(); err != nil {
			return nil, err
		}
		state, err := json.Marshal(in.Body.SavedState)
		if err != nil {
			return nil, err
		}
		r, err := a.agents.Restore(ctx, in.Namespace, state, timeout)
		return doc(RestoreResult{Success: r.Success, Error: r.Error, TaskID: r.TaskID, PoolName: r.Pool, Restorer: r.Restorer}, err)
	})
}

func handler(f *faults, field string, pickled []byte, name string) *ledger.Handler {
	if len(pickled) == 0 {
		if name != "" {
			f.add("body", field, "is missing, but %s_name is given", field)
		}
		return nil
	}
	return &ledger.Handler{Name: name, Pickled: pickled}
}
