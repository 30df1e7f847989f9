package demo

import (
	"context"
	"slices"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/web"
)

// Nodes are some machines, one of which is drained.
func (w *World) Nodes(context.Context) ([]web.Node, error) {
	defer w.lock()()
	return slices.Clone(w.nodes), w.Fail
}

// HoldPool does what it is asked, and forbids to resume what is not held.
func (w *World) HoldPool(_ context.Context, _, name string, h web.HoldRequest) error {
	defer w.lock()()
	if err := w.note("hold pool %s: %q for %q", name, h.State, h.Reason); err != nil {
		return err
	}
	for i := range w.pools {
		if w.pools[i].Name == name {
			return w.held(&w.pools[i].Hold, h)
		}
	}
	return missing("pool", name)
}

// HoldNode is the same for a machine.
func (w *World) HoldNode(_ context.Context, id string, h web.HoldRequest) error {
	defer w.lock()()
	if err := w.note("hold node %s: %q for %q", id, h.State, h.Reason); err != nil {
		return err
	}
	for i := range w.nodes {
		if w.nodes[i].ID == id {
			return w.held(&w.nodes[i].Hold, h)
		}
	}
	return missing("node", id)
}

func (w *World) held(at *web.Hold, h web.HoldRequest) error {
	if h.State == "" && !at.On() {
		return &pages.Refusal{ErrorCode: "wrong_state", Message: "It is not held: there is nothing to resume."}
	}
	*at = web.Hold{State: h.State, Reason: h.Reason, Actor: "mei", Since: w.now}
	if h.State == "" {
		*at = web.Hold{}
	}
	if h.Deadline != nil {
		at.Deadline = w.now.Add(*h.Deadline)
	}
	w.tell(pages.Pools)
	return nil
}
