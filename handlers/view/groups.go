package view

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/web"
)

// groups are the placement groups of a pool; most pools have none, and cost nothing.
func (v *View) groups(ctx context.Context, ns string, p ledger.Pool) (web.Groups, error) {
	if p.Groups == nil {
		return web.Groups{}, nil
	}
	found, err := v.l.PoolGroups(ctx, ns, p.Name, false)
	if err != nil {
		return web.Groups{}, v.refused(ctx, err)
	}
	sum := found.Sum()
	out := web.Groups{Enabled: found.Enabled, Reserves: resources(found.Reserves), Unused: resources(found.Unused), Held: web.Resources{},
		Waiting: sum.Waiting, Made: sum.Created, Gone: sum.Removed, Reused: sum.Reuses}
	if found.Config.Dynamic {
		out.MayBeMade = found.Config.Most
	}
	for _, b := range p.Balances {
		if n := b.Used + b.Reserved; n > 0 {
			out.Held[b.Resource] = n
		}
	}
	for _, tier := range []string{ledger.TierReserved, ledger.TierDynamic} {
		for _, g := range slices.Backward(found.Items) { // those that have been there longest first
			if g.Tier == tier {
				out.Items = append(out.Items, group(g))
			}
		}
	}
	return out, nil
}

func group(g ledger.Group) web.Group {
	var size sched.Resources
	for _, b := range g.Bundles {
		size = size.Add(b)
	}
	out := web.Group{Name: g.Name, Tier: g.Tier, State: g.State, Leaving: g.Leaving, Size: resources(size), Bundles: len(g.Bundles), Strategy: g.Strategy,
		Uses: g.Uses, Reuses: g.Reuses, Since: g.ReadyAt, Reason: plain(g.Reason)}
	if g.State == "creating" || g.State == "failed" || g.State == "removed" {
		out.Since = g.EndedAt // none: it is not there
	}
	for _, n := range g.Nodes {
		if n = nodeWords(n); !slices.Contains(out.Nodes, n) {
			out.Nodes = append(out.Nodes, n)
		}
	}
	for _, s := range g.Sitting {
		out.Sitters = append(out.Sitters, web.Sitter{Task: s.TaskID, Agent: s.AgentName, State: web.State(s.State)})
	}
	return out
}

// seat says of a reserved event into which placement group the task goes, "" for none.
func seat(detail json.RawMessage) string {
	var d struct {
		Group  string `json:"placement_group"`
		Tier   string `json:"tier"`
		Reused bool   `json:"reused"`
	}
	switch _ = json.Unmarshal(detail, &d); {
	case d.Group == "":
		return ""
	case d.Reused:
		return "goes into a " + d.Tier + " placement group that is there"
	}
	return "a " + d.Tier + " placement group is made for it"
}
