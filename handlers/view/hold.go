package view

import (
	"context"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/web"
)

func hold(h ledger.Hold) web.Hold {
	return web.Hold{State: h.State, Reason: h.Reason, Actor: h.Actor, Since: h.Since, Deadline: h.Deadline}
}

func holdRequest(ctx context.Context, h web.HoldRequest) ledger.HoldRequest {
	return ledger.HoldRequest{State: h.State, Reason: h.Reason, Deadline: h.Deadline, Actor: actor(ctx)}
}

// Nodes are the machines of all clusters.
func (v *View) Nodes(ctx context.Context) ([]web.Node, error) {
	nodes, _, err := v.nodes.get(ctx, "", func(ctx context.Context) ([]web.Node, error) {
		nodes, err := v.l.Nodes(ctx)
		out := make([]web.Node, len(nodes))
		for i, n := range nodes {
			out[i] = web.Node{ID: string(n.ID), Cluster: n.Cluster, Total: resources(n.Total), Free: resources(n.Free), Agents: n.Agents, Known: n.Known, Hold: hold(n.Hold)}
		}
		return out, v.refused(ctx, err)
	})
	return nodes, err
}

// HoldPool holds, drains or resumes a pool.
func (v *View) HoldPool(ctx context.Context, ns, name string, h web.HoldRequest) error {
	_, err := v.l.HoldPool(ctx, ns, name, holdRequest(ctx, h))
	return v.refused(ctx, err)
}

// HoldNode holds, drains or resumes a machine.
func (v *View) HoldNode(ctx context.Context, id string, h web.HoldRequest) error {
	_, err := v.l.HoldNode(ctx, sched.NodeID(id), holdRequest(ctx, h))
	v.nodes.forget("")
	return v.refused(ctx, err)
}
