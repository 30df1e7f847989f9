package view

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/web"
)

const (
	queueShown = 25 // of a pool's line on its page
	tasksShown = 20 // of its other tasks
	poolsAsked = 20 // of a list of pools, for why their queues cannot move
)

// protected are the pools that lose nothing to others by the active policy.
func (v *View) protected(ctx context.Context, ns string) ([]string, error) {
	p, err := v.policy(ctx, ns)
	return p.Policy.ProtectedPools, err
}

func pool(p ledger.Pool, protected []string, heads map[string]ledger.Task) web.Pool {
	out := web.Pool{Name: p.Name, Cluster: p.Cluster, Labels: web.LabelsOf(p.Labels), Protected: slices.Contains(protected, p.Name), Running: p.Running, Queued: p.Queued, Hold: hold(p.Hold)}
	for _, b := range p.Balances {
		if b.Capacity == 0 && b.Used == 0 && b.Reserved == 0 && b.Borrowed == 0 && b.Lent == 0 {
			continue
		}
		out.Quota = append(out.Quota, web.Quota{Resource: b.Resource, Capacity: b.Capacity, Used: b.Used, Reserved: b.Reserved, Borrowed: b.Borrowed, Lent: b.Lent})
	}
	slices.SortStableFunc(out.Quota, func(a, b web.Quota) int { return web.CompareResources(a.Resource, b.Resource) })
	if head, ok := heads[p.Name]; ok && !out.Hold.On() {
		out.Stuck = stuckLine(head)
	}
	return out
}

// Pools lists the pools by name.
func (v *View) Pools(ctx context.Context, ns string) ([]web.Pool, error) {
	pools, err := v.l.Pools(ctx, ns)
	if err != nil || len(pools) == 0 {
		return nil, v.refused(ctx, err)
	}
	heads, err := v.l.QueueHeads(ctx, ns)
	if err != nil {
		return nil, v.refused(ctx, err)
	}
	if err := v.askAgain(ctx, heads, pools[:min(len(pools), poolsAsked)]); err != nil {
		return nil, v.refused(ctx, err)
	}
	protected, err := v.protected(ctx, ns)
	out := make([]web.Pool, 0, len(pools))
	for _, p := range pools {
		out = append(out, pool(p, protected, heads))
	}
	return out, v.refused(ctx, err)
}

// Pool is one pool's page.
func (v *View) Pool(ctx context.Context, ns, name string, behind int) (web.PoolPage, error) {
	p, err := v.l.Pool(ctx, ns, name)
	if err != nil {
		return web.PoolPage{}, v.refused(ctx, err)
	}
	out := web.PoolPage{Created: p.CreatedAt, Holding: p.Running, DefaultSize: web.Resources{}}
	capacity := web.Resources{}
	for _, b := range p.Balances {
		if b.Capacity > 0 {
			capacity[b.Resource] = b.Capacity
			out.DefaultSize[b.Resource] = b.Capacity / int64(max(1, p.TargetAgents))
		}
	}
	out.Settings = web.PoolForm{Name: p.Name, Cluster: p.Cluster, Labels: web.TypedLabels(web.LabelsOf(p.Labels)), PlacementStrategy: p.PlacementStrategy, PGPoolConfig: indented(p.PGPoolConfig)}
	if p.TargetAgents > 0 {
		out.Settings.TargetAgents = strconv.Itoa(p.TargetAgents)
	}
	out.Settings.MaxRuntime = web.TypedLength(p.MaxRuntime)
	out.Settings.SetResources(capacity)

	waiting, all, err := v.l.Line(ctx, ns, name, behind, queueShown)
	if err != nil {
		return out, v.refused(ctx, err)
	}
	holding, err := v.l.PoolTasks(ctx, ns, name, tasksShown)
	if err != nil {
		return out, v.refused(ctx, err)
	}
	heads := map[string]ledger.Task{}
	if len(waiting) > 0 && behind == 0 {
		heads[name] = waiting[0]
	} else if all > 0 {
		first, _, err := v.l.Line(ctx, ns, name, 0, 1)
		if err != nil {
			return out, v.refused(ctx, err)
		}
		for _, t := range first {
			heads[name] = t
		}
	}
	out.Behind, out.InLine = behind, all
	protected, err := v.protected(ctx, ns)
	if err != nil {
		return out, v.refused(ctx, err)
	}
	out.Pool = pool(p, protected, heads)
	for _, t := range waiting {
		r := row(t, ledger.Standing{Since: queuedSince(t), Position: t.QueuePosition})
		r.Reason = plain(t.Reason)
		out.Queue = append(out.Queue, r)
	}
	if out.Tasks, err = v.rows(ctx, ns, holding); err != nil {
		return out, err
	}
	loans, err := v.l.LoansOf(ctx, ns, name)
	if err != nil {
		return out, v.refused(ctx, err)
	}
	out.Loans = joined(loans)
	if out.Groups, err = v.groups(ctx, ns, p); err != nil {
		return out, err
	}
	_, out.Agents, err = v.l.FindAgents(ctx, ns, ledger.AgentFilter{Pool: name, Limit: 1})
	if idle := out.Agents - len(holding); err == nil && p.Running < out.Agents && idle > 0 {
		out.Notes = append(out.Notes, web.Note{Kind: "info", Title: web.Say(web.Count(out.Agents-p.Running, "agent") + " without a task hold quota here."),
			Text: web.Line{web.Link("All agents", "/agents")}})
	}
	return out, v.refused(ctx, err)
}

// joined makes one loan of the resources that two pools share.
func joined(loans []ledger.LoanSince) []web.Loan {
	var out []web.Loan
	for _, l := range loans {
		i := slices.IndexFunc(out, func(x web.Loan) bool { return x.From == l.Lender && x.To == l.Borrower })
		if i < 0 {
			out = append(out, web.Loan{From: l.Lender, To: l.Borrower, Amount: web.Resources{}, Since: l.Since})
			i = len(out) - 1
		}
		out[i].Amount[l.Resource] = l.Amount
		if l.Since.Before(out[i].Since) {
			out[i].Since = l.Since
		}
	}
	return out
}

// PoolClusters are the names a pool may belong to.
func (v *View) PoolClusters(ctx context.Context) ([]string, error) {
	out := []string{"local"}
	if v.o.Clusters != nil {
		for _, c := range v.o.Clusters(ctx) {
			if !slices.Contains(out, c.Name) {
				out = append(out, c.Name)
			}
		}
	}
	return out, nil
}

// poolFields are the fields of the form of a pool.
var poolFields = []string{"name", "cluster", "cpu", "gpu", "memory", "resources", "labels", "target_agents", "max_runtime", "placement_strategy", "pg_pool_config"}

func poolSpec(ctx context.Context, p web.PoolSpec) (ledger.PoolSpec, error) {
	capacity, err := amounts(p.Capacity)
	labels := sched.Labels(p.Labels)
	if labels == nil {
		labels = sched.Labels{}
	}
	return ledger.PoolSpec{Name: p.Name, Cluster: &p.Cluster, Labels: &labels, Capacity: &capacity, TargetAgents: &p.TargetAgents, MaxRuntime: &p.MaxRuntime,
		PlacementStrategy: &p.PlacementStrategy, PGPoolConfig: &p.PGPoolConfig, Actor: actor(ctx)}, err
}

// CreatePool makes a pool.
func (v *View) CreatePool(ctx context.Context, ns string, p web.PoolSpec) error {
	spec, err := poolSpec(ctx, p)
	if err == nil {
		_, err = v.l.CreatePool(ctx, ns, spec)
	}
	v.frames.forget(ns)
	return v.onForm(ctx, err, map[string]string{"pool_exists": "name"}, poolFields...)
}

// UpdatePool changes a pool to what the form says. Its cluster stays.
func (v *View) UpdatePool(ctx context.Context, ns, name string, p web.PoolSpec) error {
	p.Name = name
	spec, err := poolSpec(ctx, p)
	if err == nil {
		spec.Cluster = nil
		_, err = v.l.UpdatePool(ctx, ns, spec)
	}
	return v.onForm(ctx, err, nil, poolFields...)
}

// DeletePool removes a pool that nobody uses.
func (v *View) DeletePool(ctx context.Context, ns, name string) error {
	err := v.l.DeletePool(ctx, ns, name, actor(ctx))
	v.frames.forget(ns)
	return v.refused(ctx, err)
}

// amounts takes a vector of the forms into the core's, which checks the names.
func amounts(r web.Resources) (sched.Resources, error) {
	units := make(map[string]float64, len(r))
	for name, n := range r {
		if name == "memory" {
			units[name] = float64(n)
		} else {
			units[name] = float64(n) / 1000
		}
	}
	out, err := sched.FromUnits(units)
	if err == nil {
		return out, nil
	}
	field, message := "resources", sentence(err.Error())
	if e, ok := err.(*sched.ResourceError); ok { //nolint:errorlint // FromUnits gives nothing else
		if message = sentence(fmt.Sprintf("%s %s", e.Name, e.Reason)); e.Name == "cpu" || e.Name == "gpu" || e.Name == "memory" {
			field, message = e.Name, sentence("it "+e.Reason)
		}
	}
	return out, invalid(field, message)
}
