package api

import (
	"context"
	"encoding/json"

	"github.com/danielgtaylor/huma/v2"
	jsonv2 "github.com/go-json-experiment/json"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// PGPoolConfig is which placement groups a pool keeps, as people write it: the ledger
// reads it, with messages of its own.
type PGPoolConfig json.RawMessage

// MarshalJSON writes null for none.
func (c PGPoolConfig) MarshalJSON() ([]byte, error) { return orNull(json.RawMessage(c)), nil }

// UnmarshalJSON keeps the text.
func (c *PGPoolConfig) UnmarshalJSON(b []byte) error {
	*c = append((*c)[:0], b...)
	return nil
}

const groupConfigName = "PGPoolConfig"

// Schema names every field with its default and meaning. What it leaves open the ledger
// checks, and says what is usual.
func (PGPoolConfig) Schema(r huma.Registry) *huma.Schema {
	if _, ok := r.Map()[groupConfigName]; !ok {
		field := func(kind string, def any, doc string) *huma.Schema {
			return &huma.Schema{Type: kind, Default: def, Description: doc, Nullable: true}
		}
		spec := &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true,
			Description: "Amounts of one bundle, such as {\"cpu\": 2, \"memory\": 2048}; or {\"bundles\": [amounts, …], \"strategy\": PACK, SPREAD, STRICT_PACK or STRICT_SPREAD}; the pool's placement_strategy counts when it names none."}
		s := &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true, Nullable: true,
			Description: "Placement groups of a pool. Agents in them are charged to the quota as anywhere; groups in which nobody sits are not, but take room on machines.",
			Properties: map[string]*huma.Schema{
				"enable": field(huma.TypeBoolean, false, "Whether the pool has placement groups. Switching it off removes each once nobody sits in it."),
				"high_priority_pg_specs": {Type: huma.TypeArray, Items: spec, Nullable: true,
					Description: "Reserved groups, at most 1,000: made at once, kept, and made again when they are lost. None may be larger than the pool."},
				"enable_dynamic_pgs":      field(huma.TypeBoolean, true, "Whether a group is made for a task that finds none."),
				"max_dynamic_pgs":         field(huma.TypeInteger, 10, "Dynamic groups at once, 0 to 1,000. Set below what there is, idle ones go at once and others with who sits in them."),
				"enable_pg_reuse":         field(huma.TypeBoolean, true, "Whether a group stays for the next agent. Without it each agent gets a fresh one."),
				"high_priority_threshold": field(huma.TypeNumber, 8, "Tasks of at least this priority sit in reserved groups first, others in dynamic ones."),
				"creation_timeout":        field(huma.TypeNumber, 30, "Seconds that making a group may take, at least 0.1; a reserved one is then tried again."),
				"idle_timeout":            field(huma.TypeNumber, 60, "Seconds after which a dynamic group in which nobody sits is removed."),
			},
			Examples: []any{map[string]any{"enable": true, "high_priority_pg_specs": []any{map[string]any{"cpu": 2, "memory": 2048}}, "max_dynamic_pgs": 2}},
		}
		s.PrecomputeMessages()
		r.Map()[groupConfigName] = s
	}
	return &huma.Schema{Ref: "#/components/schemas/" + groupConfigName}
}

// groupConfigDoc is a configuration as people write it, with what it leaves out filled in.
func groupConfigDoc(c ledger.GroupConfig) PGPoolConfig {
	type spec struct {
		Bundles  []Units `json:"bundles"`
		Strategy string  `json:"strategy,omitempty"`
	}
	specs := []spec{}
	for _, s := range c.Reserved {
		specs = append(specs, spec{mapped(s.Bundles, func(r sched.Resources) Units { return Units(r) }), s.Strategy})
	}
	b, _ := jsonv2.Marshal(struct {
		Enable    bool    `json:"enable"`
		Reserved  []spec  `json:"high_priority_pg_specs"`
		Dynamic   bool    `json:"enable_dynamic_pgs"`
		Most      int     `json:"max_dynamic_pgs"`
		Reuse     bool    `json:"enable_pg_reuse"`
		Threshold float64 `json:"high_priority_threshold"`
		Timeout   float64 `json:"creation_timeout"`
		Idle      float64 `json:"idle_timeout"`
	}{c.Enable, specs, c.Dynamic, c.Most, c.Reuse, c.Threshold.Float(), c.Timeout.Seconds(), c.Idle.Seconds()}) // never fails
	return b
}

// PGStats are sums over placement groups, of one tier or of both.
type PGStats struct {
	Total     int   `json:"total_pgs" doc:"Groups of now, in whatever state."`
	Reserved  int   `json:"high_priority_pgs" doc:"Of those, reserved ones."`
	Dynamic   int   `json:"dynamic_pgs" doc:"Of those, dynamic ones."`
	Available int   `json:"available_pgs" doc:"Groups that are there and in which nobody sits."`
	Allocated int   `json:"allocated_pgs" doc:"Groups in which somebody sits."`
	Reuses    int64 `json:"total_reuse_count" doc:"Agents so far that took over a group from an earlier one."`
	Created   int64 `json:"created" doc:"Times that Ray made one, so far."`
	Removed   int64 `json:"removed" doc:"Times that one was seen gone, so far."`
	Waits     int   `json:"waits" doc:"Tasks in line that want one."`
}

// PlacementGroups is what a pool has of placement groups.
type PlacementGroups struct {
	Enabled bool             `json:"enabled"`
	Config  PGPoolConfig     `json:"config" doc:"What the pool's pg_pool_config comes to, with what it leaves out."`
	Items   []PlacementGroup `json:"items" nullable:"false" doc:"The newest first; with ended, those that are gone follow."`
	Tiers   struct {
		Reserved PGStats `json:"reserved"`
		Dynamic  PGStats `json:"dynamic"`
	} `json:"tiers" doc:"The sums by tier."`
	PGStats
	Reserves Units `json:"reserves" doc:"What all of them reserve on machines, whoever sits in them."`
	Unused   Units `json:"unused" doc:"The part of it in which nobody sits: taken in Ray, but not charged to the quota."`
}

// PlacementGroup is one of a pool.
type PlacementGroup struct {
	UID       UID        `json:"uid" doc:"Identifies the group for ever, also when it is made again."`
	Name      string     `json:"name" doc:"Its name in Ray; another one each time it is made." example:"sm-0192f0c4-8a3e-7c51-b1de-2f0f6a9c3d10.1"`
	Tier      string     `json:"tier" enum:"reserved,dynamic"`
	State     string     `json:"state" enum:"creating,idle,occupied,releasing,removed,failed" doc:"removed: a reserved one that is made again when it is needed, or one that is gone for good (ended_at)."`
	Leaving   bool       `json:"leaving" doc:"It is removed as soon as nobody sits in it."`
	Code      string     `json:"code" doc:"Why it is in this state, for programs; empty when things just went well." example:"group_timeout"`
	Reason    string     `json:"reason" doc:"The same for people."`
	Resources Units      `json:"resources" doc:"What its bundles reserve together."`
	Bundles   []Units    `json:"bundles" nullable:"false"`
	Strategy  string     `json:"strategy" doc:"Ray's placement strategy, empty for the default." example:"PACK"`
	Nodes     []string   `json:"nodes" nullable:"false" doc:"Where each bundle is; empty until it is there."`
	Occupants []Occupant `json:"occupants" nullable:"false" doc:"Who sits in it, or is about to."`
	Attempt   int        `json:"attempt" doc:"1 for the first making."`
	Uses      int        `json:"uses" doc:"Agents that sat in it so far."`
	Reuses    int        `json:"reuse_count" doc:"Of those, the ones that took it over from an earlier one."`
	CreatedAt Stamp      `json:"created_at"`
	ReadyAt   Stamp      `json:"ready_at" doc:"When Ray made it last; null before."`
	IdleSince Stamp      `json:"idle_since" doc:"null while somebody sits in it."`
	EndedAt   Stamp      `json:"ended_at" doc:"When it was gone for good; null before."`
}

// Occupant is an agent in a placement group.
type Occupant struct {
	UID       UID    `json:"uid"`
	TaskID    string `json:"task_id" doc:"Empty for an agent that waits for work."`
	AgentName string `json:"agent_name"`
	State     string `json:"state"`
}

func groupDoc(g ledger.Group) PlacementGroup {
	var sum sched.Resources
	for _, b := range g.Bundles {
		sum = sum.Add(b)
	}
	out := PlacementGroup{UID: UID(g.UID), Name: g.Name, Tier: g.Tier, State: g.State, Leaving: g.Leaving, Code: g.Code, Reason: g.Reason, Resources: Units(sum),
		Bundles: mapped(g.Bundles, func(r sched.Resources) Units { return Units(r) }), Strategy: g.Strategy, Nodes: append([]string{}, g.Nodes...),
		Occupants: mapped(g.Sitting, func(s ledger.Sitter) Occupant { return Occupant{UID(s.UID), s.TaskID, s.AgentName, string(s.State)} }),
		Attempt:   g.Attempt, Uses: g.Uses, Reuses: g.Reuses, CreatedAt: Stamp(g.CreatedAt), ReadyAt: Stamp(g.ReadyAt), IdleSince: Stamp(g.IdleSince), EndedAt: Stamp(g.EndedAt)}
	return out
}

func groupStats(s ledger.GroupStats, reserved, dynamic int) PGStats {
	return PGStats{s.Total, reserved, dynamic, s.Available, s.Allocated, s.Reuses, s.Created, s.Removed, s.Waiting}
}

func groupsDoc(g ledger.Groups) PlacementGroups {
	reserved, dynamic := g.Tiers[ledger.TierReserved], g.Tiers[ledger.TierDynamic]
	out := PlacementGroups{Enabled: g.Enabled, Config: groupConfigDoc(g.Config), Items: mapped(g.Items, groupDoc), PGStats: groupStats(g.Sum(), reserved.Total, dynamic.Total),
		Reserves: Units(g.Reserves), Unused: Units(g.Unused)}
	out.Tiers.Reserved, out.Tiers.Dynamic = groupStats(reserved, reserved.Total, 0), groupStats(dynamic, 0, dynamic.Total)
	return out
}

// PoolGroups is what a pool's placement groups come to.
type PoolGroups struct {
	Enabled   bool  `json:"enabled"`
	Total     int   `json:"total_pgs"`
	Available int   `json:"available_pgs" doc:"Nobody sits in them."`
	Allocated int   `json:"allocated_pgs" doc:"Somebody sits in them."`
	Reserves  Units `json:"reserves" doc:"What they reserve on machines, whoever sits in them."`
	Unused    Units `json:"unused" doc:"The part of it in which nobody sits: Ray has so much less room than the balances say."`
}

func poolGroupsDoc(t *ledger.GroupTotals) *PoolGroups {
	if t == nil {
		return nil
	}
	return &PoolGroups{t.Enabled, t.Total, t.Available, t.Allocated, Units(t.Reserves), Units(t.Unused)}
}

// TaskSeat is the placement group of a task.
type TaskSeat struct {
	Name string `json:"name" doc:"Its name in Ray." example:"sm-0192f0c4-8a3e-7c51-b1de-2f0f6a9c3d10.1"`
	Tier string `json:"tier" enum:"reserved,dynamic"`
}

func seatDoc(s *ledger.Seat) *TaskSeat {
	if s == nil {
		return nil
	}
	return &TaskSeat{s.Group, s.Tier}
}

func (a *API) registerGroups() {
	register(a, operation{id: "list-placement-groups", method: "GET", path: "/pools/{name}/placement-groups", tag: "Pools",
		summary: "List the placement groups of a pool", about: "Each with who sits in it, and sums by tier. A pool without `pg_pool_config` has none.", codes: []string{"unknown_pool"},
	}, func(ctx context.Context, in *struct {
		PoolPath
		Ended bool `query:"ended" doc:"Also the latest 200 that are gone."`
	}) (*Doc[PlacementGroups], error) {
		g, err := a.ledger.PoolGroups(ctx, in.Namespace, in.Name, in.Ended)
		return doc(groupsDoc(g), err)
	})
}
