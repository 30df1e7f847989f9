package api

import (
	"context"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// Hold is why nothing starts in a pool, or on a node.
type Hold struct {
	State    string `json:"state" enum:"held,draining" doc:"held: nothing starts, what runs goes on. draining: the same, and at the deadline what still runs is taken."`
	Reason   string `json:"reason" example:"new disks"`
	By       string `json:"by" doc:"Who did it." example:"api"`
	Since    Stamp  `json:"since"`
	Deadline Stamp  `json:"deadline" doc:"Of a drain; null: what runs ends by itself."`
}

func holdDoc(h ledger.Hold) *Hold {
	if h.State == "" {
		return nil
	}
	return &Hold{h.State, h.Reason, h.Actor, Stamp(h.Since), Stamp(h.Deadline)}
}

// Node is a machine as answers have it.
type Node struct {
	ID      string `json:"node_id" doc:"Ray's id of the node."`
	Cluster string `json:"cluster" example:"local"`
	Total   Units  `json:"total" doc:"What it has."`
	Free    Units  `json:"free" doc:"What is left of it, when everything that sits there, or is on its way there, is counted."`
	Agents  int    `json:"agents" doc:"Agents of ours on it, or on their way."`
	Known   bool   `json:"known" doc:"false: it is held, but not in its cluster now."`
	Hold    *Hold  `json:"hold,omitempty" doc:"Why nothing starts there; left out when it may."`
}

func nodeDoc(n ledger.Node) Node {
	return Node{string(n.ID), n.Cluster, Units(n.Total), Units(n.Free), n.Agents, n.Known, holdDoc(n.Hold)}
}

// NewHold says why.
type NewHold struct {
	Reason string `json:"reason,omitempty" maxLength:"1000" doc:"For whoever wonders." example:"new disks"`
}

// NewDrain says why, and until when.
type NewDrain struct {
	NewHold
	Deadline *float64 `json:"deadline,omitempty" doc:"Seconds from now until what still runs is taken: saved, and with on_preempted requeue queued again, else ended as preempted with the code drained. Left out, what runs ends by itself." example:"600"`
}

func (h *NewHold) request(ctx context.Context) ledger.HoldRequest {
	r := ledger.HoldRequest{State: ledger.Held, Actor: actor(ctx)}
	if h != nil {
		r.Reason = h.Reason
	}
	return r
}

func (d *NewDrain) request(ctx context.Context) (ledger.HoldRequest, error) {
	var f faults
	r := ledger.HoldRequest{State: ledger.Draining, Actor: actor(ctx)}
	if d == nil {
		return r, nil
	}
	r.Reason = d.Reason
	if d.Deadline != nil {
		after := f.seconds("deadline", *d.Deadline)
		if after > 366*24*time.Hour {
			f.add("body", "deadline", "%v s is more than a year", *d.Deadline)
		}
		r.Deadline = &after
	}
	return r, f.err()
}

// NodePath names a node.
type NodePath struct {
	ID string `path:"id" doc:"Ray's id of the node."`
}

func (p *NodePath) check(f *faults) { f.name("path", "id", p.ID) }

func (a *API) registerHolds() {
	pool := func(ctx context.Context, p *PoolPath, r ledger.HoldRequest) (*Doc[Pool], error) {
		held, err := a.ledger.HoldPool(ctx, p.Namespace, p.Name, r)
		return doc(poolDoc(held), err)
	}
	node := func(ctx context.Context, p *NodePath, r ledger.HoldRequest) (*Doc[Node], error) {
		held, err := a.ledger.HoldNode(ctx, sched.NodeID(p.ID), r)
		return doc(nodeDoc(held), err)
	}
	register(a, operation{id: "hold-pool", method: "POST", path: "/pools/{name}/hold", tag: "Pools",
		summary: "Hold a pool", about: "Nothing starts in it until it is resumed; what runs goes on. Who submits with on_insufficient fail is refused with `pool_held`; others wait. Holding it again replaces the reason.",
		codes: []string{"unknown_pool"}, request: `{"reason": "new disks"}`,
	}, func(ctx context.Context, in *struct {
		PoolPath
		Body *NewHold
	}) (*Doc[Pool], error) {
		return pool(ctx, &in.PoolPath, in.Body.request(ctx))
	})
	register(a, operation{id: "drain-pool", method: "POST", path: "/pools/{name}/drain", tag: "Pools",
		summary: "Drain a pool", about: "Holds it, and at the deadline takes what still runs, its state saved. Draining it again replaces reason and deadline.",
		codes: []string{"unknown_pool"}, request: `{"reason": "new disks", "deadline": 600}`,
	}, func(ctx context.Context, in *struct {
		PoolPath
		Body *NewDrain
	}) (*Doc[Pool], error) {
		r, err := in.Body.request(ctx)
		if err != nil {
			return nil, err
		}
		return pool(ctx, &in.PoolPath, r)
	})
	register(a, operation{id: "resume-pool", method: "POST", path: "/pools/{name}/resume", tag: "Pools",
		summary: "Resume a pool", about: "Ends a hold or a drain; its queue moves at once.", codes: []string{"unknown_pool", "wrong_state"},
	}, func(ctx context.Context, in *PoolPath) (*Doc[Pool], error) {
		return pool(ctx, in, ledger.HoldRequest{Actor: actor(ctx)})
	})

	register(a, operation{id: "list-nodes", method: "GET", path: "/nodes", tag: "Nodes",
		summary: "List nodes", about: "The machines of all clusters with their room, on one page.",
	}, func(ctx context.Context, _ *struct{}) (*Doc[List[Node]], error) {
		nodes, err := a.ledger.Nodes(ctx)
		return doc(list(mapped(nodes, nodeDoc), ""), err)
	})
	register(a, operation{id: "hold-node", method: "POST", path: "/nodes/{id}/hold", tag: "Nodes",
		summary: "Hold a node", about: "Nothing starts on it until it is resumed; what runs goes on. Other servers on the same database follow within seconds.",
		codes: []string{"unknown_node"}, request: `{"reason": "noisy fan"}`,
	}, func(ctx context.Context, in *struct {
		NodePath
		Body *NewHold
	}) (*Doc[Node], error) {
		return node(ctx, &in.NodePath, in.Body.request(ctx))
	})
	register(a, operation{id: "drain-node", method: "POST", path: "/nodes/{id}/drain", tag: "Nodes",
		summary: "Drain a node", about: "Holds it, and at the deadline takes what still runs there: with on_preempted requeue it goes on elsewhere from its saved state, else it ends as preempted.",
		codes: []string{"unknown_node"}, request: `{"reason": "noisy fan", "deadline": 600}`,
	}, func(ctx context.Context, in *struct {
		NodePath
		Body *NewDrain
	}) (*Doc[Node], error) {
		r, err := in.Body.request(ctx)
		if err != nil {
			return nil, err
		}
		return node(ctx, &in.NodePath, r)
	})
	register(a, operation{id: "resume-node", method: "POST", path: "/nodes/{id}/resume", tag: "Nodes",
		summary: "Resume a node", about: "Ends a hold or a drain; queues move at once.", codes: []string{"unknown_node", "wrong_state"},
	}, func(ctx context.Context, in *NodePath) (*Doc[Node], error) {
		return node(ctx, in, ledger.HoldRequest{Actor: actor(ctx)})
	})
}
