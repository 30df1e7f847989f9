package api

import (
	"context"
	"encoding/json"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// Pool is a pool as answers have it.
type Pool struct {
	Namespace         string            `json:"namespace" example:"default"`
	Name              string            `json:"name" example:"train"`
	Cluster           string            `json:"cluster" doc:"The Ray cluster its agents run on." example:"local"`
	Labels            map[string]string `json:"labels"`
	Resources         Units             `json:"resources" doc:"Capacity: what it owns."`
	Available         Units             `json:"available" doc:"What nobody holds now, loans counted; never negative."`
	Balances          []Balance         `json:"balances" doc:"The ledger of each resource." nullable:"false"`
	Loans             []Loan            `json:"loans" doc:"Quota lent to and borrowed from other pools." nullable:"false"`
	TargetAgents      int               `json:"target_agents" doc:"An agent that names no resources gets capacity / target_agents; 0 counts as 1." example:"2"`
	PlacementStrategy string            `json:"placement_strategy" doc:"Ray's placement strategy for its agents, empty for the default."`
	PGPoolConfig      PGPoolConfig      `json:"pg_pool_config" doc:"Placement groups to keep, as it was given; null when it has none."`
	PlacementGroups   *PoolGroups       `json:"placement_groups,omitempty" doc:"What its placement groups come to now; left out when it has none."`
	MaxRuntime        *float64          `json:"max_runtime" nullable:"true" doc:"Seconds that any task of the pool may run; null when there is no bound."`
	Hold              *Hold             `json:"hold,omitempty" doc:"Who stopped the pool from starting tasks, and why; left out when nobody did."`
	Version           int64             `json:"version" doc:"Counts every change of its quota or tasks."`
	Running           int               `json:"running" doc:"Tasks that run."`
	Queued            int               `json:"queued" doc:"Tasks that wait."`
	CreatedAt         Stamp             `json:"created_at"`
	Links             Links             `json:"links"`
}

// Balance is one resource of a pool, in its unit. reserved + used ≤ capacity + borrowed − lent.
type Balance struct {
	Resource string  `json:"resource" example:"gpu"`
	Unit     string  `json:"unit" doc:"cores, cards, MiB or units." example:"cards"`
	Capacity float64 `json:"capacity"`
	Reserved float64 `json:"reserved" doc:"Promised to tasks that are not ready yet."`
	Used     float64 `json:"used" doc:"Held by running agents."`
	Borrowed float64 `json:"borrowed"`
	Lent     float64 `json:"lent"`
	Free     float64 `json:"free" doc:"capacity + borrowed − lent − reserved − used; negative after the pool was shrunk."`
}

// Loan is quota of one pool in use by another.
type Loan struct {
	Lender   string  `json:"lender"`
	Borrower string  `json:"borrower"`
	Resource string  `json:"resource"`
	Amount   float64 `json:"amount" doc:"In the resource's unit."`
}

// Links lead to the same thing elsewhere.
type Links struct {
	Self string `json:"self" doc:"In this API." example:"/api/v1/tasks/train-1"`
	Page string `json:"page" doc:"In the dashboard." example:"/tasks/train-1"`
}

func linksTo(ns, kind, name string) Links {
	return Links{Self: address(ns, prefix, kind, name), Page: address(ns, kind, name)}
}

func unitOf(resource string) string {
	switch resource {
	case "cpu":
		return "cores"
	case "gpu":
		return "cards"
	case "memory":
		return "MiB"
	}
	return "units"
}

func poolDoc(p ledger.Pool) Pool {
	out := Pool{
		Namespace: p.Namespace, Name: p.Name, Cluster: p.Cluster, Labels: p.Labels, TargetAgents: p.TargetAgents,
		PlacementStrategy: p.PlacementStrategy, PGPoolConfig: PGPoolConfig(p.PGPoolConfig), PlacementGroups: poolGroupsDoc(p.Groups), MaxRuntime: secondsOrNull(p.MaxRuntime), Hold: holdDoc(p.Hold), Version: p.Version,
		Running: p.Running, Queued: p.Queued, CreatedAt: Stamp(p.CreatedAt), Links: linksTo(p.Namespace, "pools", p.Name),
		Balances: []Balance{}, Loans: []Loan{},
	}
	var capacity, free sched.Resources
	for _, b := range p.Balances {
		left := b.Capacity + b.Borrowed - b.Lent - b.Reserved - b.Used
		capacity, free = capacity.With(b.Resource, b.Capacity), free.With(b.Resource, max(left, 0))
		u := func(v int64) float64 { return units(b.Resource, v) }
		out.Balances = append(out.Balances, Balance{b.Resource, unitOf(b.Resource), u(b.Capacity), u(b.Reserved), u(b.Used), u(b.Borrowed), u(b.Lent), u(left)})
	}
	out.Resources, out.Available = Units(capacity), Units(free)
	for _, l := range p.Loans {
		out.Loans = append(out.Loans, Loan{l.Lender, l.Borrower, l.Resource, units(l.Resource, l.Amount)})
	}
	return out
}

// orNull keeps an absent document from becoming invalid JSON.
func orNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}

// PoolChange is the part of a pool that people set. What is left out stays as it is.
type PoolChange struct {
	Cluster           *string            `json:"cluster,omitempty" doc:"The Ray cluster its agents run on; local unless said."`
	Labels            *map[string]string `json:"labels,omitempty" doc:"At most 64; keys up to 200 characters, values up to 1,000."`
	Resources         *Amounts           `json:"resources,omitempty" doc:"Capacity: the quota of the pool."`
	TargetAgents      *int               `json:"target_agents,omitempty" minimum:"0" maximum:"1000000" doc:"Sets the default agent size, capacity / target_agents; it creates none."`
	PlacementStrategy *string            `json:"placement_strategy,omitempty" maxLength:"200" doc:"Ray's placement strategy for its agents." example:"PACK"`
	MaxRuntime        *float64           `json:"max_runtime,omitempty" doc:"Seconds after which any task of the pool is stopped as failed; 0 = no bound. If a task has one too, the lesser counts."`
	PGPoolConfig      *PGPoolConfig      `json:"pg_pool_config,omitempty" doc:"Placement groups to keep, replaced as a whole. Agents in groups that are no longer wanted go on; the group goes with the last of them."`
}

func (c *PoolChange) spec(ctx context.Context, name string) (ledger.PoolSpec, error) {
	var f faults
	s := ledger.PoolSpec{Name: name, Cluster: c.Cluster, TargetAgents: c.TargetAgents, PlacementStrategy: c.PlacementStrategy, Actor: actor(ctx)}
	if c.Cluster != nil {
		f.name("body", "cluster", *c.Cluster)
	}
	if c.PlacementStrategy != nil {
		f.optionalName("body", "placement_strategy", *c.PlacementStrategy)
	}
	if c.Labels != nil {
		f.labels(*c.Labels)
		l := sched.Labels(*c.Labels)
		s.Labels = &l
	}
	if c.Resources != nil {
		r := f.resources("resources", *c.Resources)
		s.Capacity = &r
	}
	if c.MaxRuntime != nil {
		bound := f.seconds("max_runtime", *c.MaxRuntime)
		s.MaxRuntime = &bound
	}
	if c.PGPoolConfig != nil {
		if raw := f.kind("pg_pool_config", json.RawMessage(*c.PGPoolConfig), '{'); raw != nil {
			s.PGPoolConfig = &raw
		}
	}
	return s, f.err()
}

// NewPool asks for a pool.
type NewPool struct {
	Name string `json:"name" minLength:"1" doc:"Unique in the namespace, at most 200 characters." example:"train"`
	PoolChange
}

// PoolPath names a pool.
type PoolPath struct {
	Scope
	Name string `path:"name" doc:"Name of the pool, percent-encoded." example:"train"`
}

func (p *PoolPath) check(f *faults) {
	p.Scope.check(f)
	f.name("path", "name", p.Name)
}

const poolExample = `{"name": "train", "labels": {"tier": "standard"}, "resources": {"cpu": 8, "memory": 16384, "gpu": 2}, "target_agents": 4}`

func (a *API) registerPools() {
	type created struct {
		Location string `header:"Location" doc:"Address of the pool."`
		Body     Pool
	}
	register(a, operation{id: "create-pool", method: "POST", path: "/pools", tag: "Pools", status: 201,
		summary: "Create a pool", about: "Makes a pool with its quota. Pools may promise more than the cluster has; the dashboard shows it.",
		codes: []string{"pool_exists"}, request: poolExample,
	}, func(ctx context.Context, in *struct {
		Scope
		Body NewPool
	}) (*created, error) {
		var f faults
		f.name("body", "name", in.Body.Name)
		spec, err := in.Body.spec(ctx, in.Body.Name)
		if e := f.err(); e != nil {
			err = e
		}
		if err != nil {
			return nil, err
		}
		p, err := a.ledger.CreatePool(ctx, in.Namespace, spec)
		if err != nil {
			return nil, err
		}
		d := poolDoc(p)
		return &created{d.Links.Self, d}, nil
	})

	register(a, operation{id: "list-pools", method: "GET", path: "/pools", tag: "Pools",
		summary: "List pools", about: "All pools of the namespace with their balances, on one page.",
	}, func(ctx context.Context, in *struct{ Scope }) (*Doc[List[Pool]], error) {
		pools, err := a.ledger.Pools(ctx, in.Namespace)
		return doc(list(mapped(pools, poolDoc), ""), err)
	})

	register(a, operation{id: "get-pool", method: "GET", path: "/pools/{name}", tag: "Pools",
		summary: "Read a pool", about: "Capacity, what is free, and the balance of every resource.", codes: []string{"unknown_pool"},
	}, func(ctx context.Context, in *PoolPath) (*Doc[Pool], error) {
		p, err := a.ledger.Pool(ctx, in.Namespace, in.Name)
		return doc(poolDoc(p), err)
	})

	register(a, operation{id: "update-pool", method: "PATCH", path: "/pools/{name}", tag: "Pools",
		summary: "Change a pool", about: "Replaces the fields given. `resources` is replaced as a whole: a resource left out of it is no longer in the pool.",
		codes: []string{"unknown_pool", "pool_in_use"}, request: `{"resources": {"cpu": 16, "memory": 32768, "gpu": 4}}`,
	}, func(ctx context.Context, in *struct {
		PoolPath
		Body PoolChange
	}) (*Doc[Pool], error) {
		spec, err := in.Body.spec(ctx, in.Name)
		if err != nil {
			return nil, err
		}
		p, err := a.ledger.UpdatePool(ctx, in.Namespace, spec)
		return doc(poolDoc(p), err)
	})

	register(a, operation{id: "delete-pool", method: "DELETE", path: "/pools/{name}", tag: "Pools", status: 204,
		summary: "Delete a pool", about: "Removes an empty pool: no live task, no agent, no loan.", codes: []string{"unknown_pool", "pool_in_use"},
	}, func(ctx context.Context, in *PoolPath) (*Nothing, error) {
		return nil, a.ledger.DeletePool(ctx, in.Namespace, in.Name, actor(ctx))
	})
}
