package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

func (s *PoolSpec) check() error {
	if s.Name == "" {
		return invalid("name", "is missing")
	}
	if err := clean("name", s.Name, maxName); err != nil {
		return err
	}
	if s.Labels != nil {
		if err := cleanLabels(*s.Labels); err != nil {
			return err
		}
	}
	if s.Cluster != nil {
		if *s.Cluster == "" {
			return invalid("cluster", "is empty: leave it out for the local one")
		}
		if err := clean("cluster", *s.Cluster, maxName); err != nil {
			return err
		}
	}
	if s.TargetAgents != nil && (*s.TargetAgents < 0 || *s.TargetAgents > 1_000_000) {
		return invalid("target_agents", "is %d: must be 0 to 1,000,000", *s.TargetAgents)
	}
	if s.MaxRuntime != nil && *s.MaxRuntime < 0 {
		return invalid("max_runtime", "is %s: must not be negative; 0 means no bound", *s.MaxRuntime)
	}
	if s.PGPoolConfig != nil {
		c, err := ParseGroups(*s.PGPoolConfig)
		if err == nil && s.Capacity != nil {
			err = c.fits(*s.Capacity)
		}
		if err != nil {
			return err
		}
	}
	if s.PlacementStrategy != nil {
		if _, err := choice("placement_strategy", *s.PlacementStrategy, "", "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"); err != nil {
			return err
		}
	}
	return nil
}

// CreatePool makes a pool; pool_exists if there is one of that name.
func (l *Ledger) CreatePool(ctx context.Context, ns string, s PoolSpec) (Pool, error) {
	if err := s.check(); err != nil {
		return Pool{}, err
	}
	if s.Capacity == nil {
		return Pool{}, invalid("resources", "is missing: say what the pool has, such as {\"cpu\": 4, \"memory\": 8192}")
	}
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return Pool{}, err
	}
	nsID := l.spaceID(ns)
	p := dbgen.CreatePoolParams{NamespaceID: nsID, Name: s.Name, Cluster: "local", Labels: []byte("{}"), CreatedAt: l.now()}
	if s.Cluster != nil {
		p.Cluster = *s.Cluster
	}
	if s.Labels != nil {
		p.Labels = labelsJSON(*s.Labels)
	}
	if s.TargetAgents != nil {
		p.TargetAgents = int32(*s.TargetAgents)
	}
	if s.PlacementStrategy != nil {
		p.PlacementStrategy = *s.PlacementStrategy
	}
	if s.PGPoolConfig != nil {
		p.PgPoolConfig = *s.PGPoolConfig
	}
	if s.MaxRuntime != nil {
		p.MaxRuntimeMs = s.MaxRuntime.Milliseconds()
	}
	var id int64
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		q := dbgen.New(tx)
		var err error
		if id, err = q.CreatePool(ctx, p); err != nil {
			return err
		}
		// Now that the pool holds on to its namespace: should that be closed after this, the pool is seen.
		if err := stillOpen(q.NamespaceState(ctx, nsID)); err != nil {
			return err
		}
		b := dbgen.InsertBalancesParams{PoolID: id}
		for _, name := range resourceNames(*s.Capacity) {
			b.Resources = append(b.Resources, name)
			b.Capacities = append(b.Capacities, s.Capacity.Get(name))
		}
		if err := q.InsertBalances(ctx, b); err != nil {
			return err
		}
		return l.note(ctx, q, nsID, "pool.created", s.Name, s.Actor, "Pool "+s.Name+" made with "+s.Capacity.String(), 0)
	})
	if err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.ConstraintName == "pools_name_unique" {
			return Pool{}, refuse(ErrPoolExists, "a pool %q exists already in namespace %q: change it with PATCH, or choose another name", s.Name, ns)
		}
		return Pool{}, l.lane.outward(err)
	}
	if err := l.reload(ctx, id); err != nil {
		return Pool{}, err
	}
	l.feed.wake()
	l.news.changed()
	return l.Pool(ctx, ns, s.Name)
}

// note writes an event that belongs to no task.
func (l *Ledger) note(ctx context.Context, q *dbgen.Queries, ns int64, typ, pool, actor, message string, policy int) error {
	return q.InsertEvents(ctx, dbgen.InsertEventsParams{Ats: nows(l), NamespaceIds: []int64{ns}, TaskUids: pgUUIDs([]sched.ID{{}}), TaskIds: []string{""},
		PoolNames: []string{pool}, Attempts: []int32{0}, Types: []string{typ}, Actors: []string{actor}, Codes: []string{""}, Messages: []string{message},
		Details: [][]byte{nil}, PolicyVersions: []int32{int32(policy)}})
}

// reload makes the book know a pool as it is now; the lane does it under the lock.
func (l *Ledger) reload(ctx context.Context, id int64) error {
	return l.lane.submit(ctx, &call{
		plan: func(b *book) []*pool {
			if p := b.pools[id]; p != nil {
				return []*pool{p}
			}
			return []*pool{{id: id}} // not known yet: locked all the same, and then loaded
		},
		do: func(b *batch) error {
			if p := b.pools[id]; p != nil && p.lacksReserved() {
				b.tendGroups(p)
			}
			return nil
		},
	})
}

func (l *Ledger) spaceID(ns string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spaces[ns]
}

// UpdatePool changes the given fields of a pool.
func (l *Ledger) UpdatePool(ctx context.Context, ns string, s PoolSpec) (Pool, error) {
	if err := s.check(); err != nil {
		return Pool{}, err
	}
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return Pool{}, err
	}
	err := l.find(ctx, &call{plan: poolOf(ns, s.Name), do: func(b *batch) error { return b.updatePool(ns, s) }}, l.wherePool(ctx, ns, s.Name))
	if err != nil {
		return Pool{}, err
	}
	return l.Pool(ctx, ns, s.Name)
}

func (l *Ledger) spaceIDOrLoad(ctx context.Context, ns string) int64 {
	_ = l.ensureNamespace(ctx, ns)
	return l.spaceID(ns)
}

func (b *batch) updatePool(ns string, s PoolSpec) error {
	p, err := b.openPool(ns, s.Name)
	if err != nil {
		return err
	}
	if s.Cluster != nil && *s.Cluster != p.cluster && (len(p.rows) > 0 || !p.lent.IsZero() || !p.borrowed.IsZero()) {
		return refuse(ErrPoolInUse, "pool %q cannot move to another cluster while it has tasks or loans", p.name)
	}
	if s.Capacity != nil {
		bound := p.reserved.Add(p.used).Add(p.lent).Sub(p.borrowed)
		if !s.Capacity.Covers(bound) {
			return &Error{Code: ErrPoolInUse.Code, Message: fmt.Sprintf("pool %q cannot shrink to %s: %s are in use or lent; end or preempt tasks first", p.name, s.Capacity, bound),
				Fields: map[string]string{"resources": fmt.Sprintf("at least %s, which are in use or lent", bound)}}
		}
	}
	capacity, grouping := p.capacity, p.grouping
	if s.Capacity != nil {
		capacity = *s.Capacity
	}
	if s.PGPoolConfig != nil {
		grouping, _ = ParseGroups(*s.PGPoolConfig) // checked
	}
	if err := grouping.fits(capacity); err != nil {
		return err
	}
	// What the book knows is current under the lock; what it does not, stays when it is not given.
	u := dbgen.UpdatePoolParams{ID: p.id, Cluster: p.cluster, Labels: labelsJSON(p.labels), TargetAgents: int32(p.targets), PlacementStrategy: s.PlacementStrategy,
		MaxRuntimeMs: p.maxRuntime.Milliseconds()}
	b.touchPool(p)
	if s.Cluster != nil {
		u.Cluster, p.cluster = *s.Cluster, *s.Cluster
	}
	if s.Labels != nil {
		u.Labels, p.labels = labelsJSON(*s.Labels), *s.Labels
	}
	if s.TargetAgents != nil {
		u.TargetAgents, p.targets = int32(*s.TargetAgents), *s.TargetAgents
	}
	if s.PlacementStrategy != nil {
		p.strategy = *s.PlacementStrategy
	}
	if s.PGPoolConfig != nil {
		u.PgPoolConfig = *s.PGPoolConfig
		p.grouping, _ = ParseGroups(*s.PGPoolConfig) // checked
	}
	if s.MaxRuntime != nil {
		was := p.maxRuntime
		u.MaxRuntimeMs, p.maxRuntime = s.MaxRuntime.Milliseconds(), *s.MaxRuntime
		b.redate(p, was)
	}
	said := "Pool " + p.name + " changed"
	if s.Capacity != nil {
		said += ": " + p.capacity.String() + " → " + s.Capacity.String()
		p.capacity = *s.Capacity
		var fresh []string
		for _, name := range resourceNames(*s.Capacity) {
			if !slices.Contains(p.names, name) {
				fresh = append(fresh, name)
			}
		}
		if fresh != nil {
			id := p.id
			p.names = append(slices.Clone(p.names), fresh...)
			b.first = append(b.first, sqlWrite(func(ctx context.Context, q *dbgen.Queries) error {
				return q.AddResources(ctx, dbgen.AddResourcesParams{PoolID: id, Resources: fresh})
			}))
		}
	}
	b.writes = append(b.writes, sqlWrite(func(ctx context.Context, q *dbgen.Queries) error { return q.UpdatePool(ctx, u) }))
	b.poolChanged(p)
	b.tendGroups(p)
	b.poolEvent(p, "pool.changed", s.Actor, said)
	b.repay(p) // with more of its own it needs less of others
	b.freed(p)
	return nil
}

func (b *batch) poolEvent(p *pool, typ, actor, message string) {
	b.events = append(b.events, Event{At: b.now, Namespace: p.space.name, Pool: p.name, Type: typ, Actor: actor, Message: message, PolicyVersion: p.space.policyVersion})
}

// EnsurePool makes a pool, or changes the one of that name to what is given.
func (l *Ledger) EnsurePool(ctx context.Context, ns string, s PoolSpec) (Pool, error) {
	p, err := l.CreatePool(ctx, ns, s)
	if errors.Is(err, ErrPoolExists) {
		return l.UpdatePool(ctx, ns, s)
	}
	return p, err
}

// DeletePool removes a pool that nobody uses.
func (l *Ledger) DeletePool(ctx context.Context, ns, name, actor string) error {
	return l.find(ctx, &call{plan: poolOf(ns, name), do: func(b *batch) error {
		p, err := b.poolNamed(ns, name)
		if err != nil {
			return err
		}
		var why []string
		if n := len(p.rows); n > 0 {
			why = append(why, fmt.Sprintf("%d tasks or agents are in it", n))
		}
		if !p.lent.IsZero() {
			why = append(why, fmt.Sprintf("it lends %s to other pools", p.lent))
		}
		if !p.borrowed.IsZero() {
			why = append(why, fmt.Sprintf("it borrows %s", p.borrowed))
		}
		if why != nil {
			return refuse(ErrPoolInUse, "pool %q cannot be deleted: %s", name, strings.Join(why, ", and "))
		}
		b.deletePool(p, actor)
		return nil
	}}, l.wherePool(ctx, ns, name))
}

// deletePool removes a pool in which nothing is.
func (b *batch) deletePool(p *pool, actor string) {
	b.forgetGroups(p)
	now, id := b.now, p.id
	b.writes = append(b.writes, sqlWrite(func(ctx context.Context, q *dbgen.Queries) error {
		return q.DeletePool(ctx, dbgen.DeletePoolParams{Now: now, ID: id})
	}))
	b.poolEvent(p, "pool.deleted", actor, "Pool "+p.name+" deleted")
	b.dropped = append(b.dropped, p)
}

// Policy gives the active policy; of a namespace that nobody made, what it would start with.
func (l *Ledger) Policy(ctx context.Context, ns string) (PolicyVersion, error) {
	row, err := l.q.PolicyNow(ctx, ns)
	if errors.Is(err, pgx.ErrNoRows) {
		return PolicyVersion{Version: 1, Policy: sched.DefaultPolicy(), Comment: "defaults"}, nil
	}
	if err != nil {
		return PolicyVersion{}, l.lane.outward(err)
	}
	return policyVersionOf(row)
}

func policyVersionOf(row dbgen.Policy) (PolicyVersion, error) {
	p, err := policyOf(row.Document)
	return PolicyVersion{Version: int(row.Version), Policy: p, Author: row.Author, Comment: row.Comment, CreatedAt: row.CreatedAt}, err
}

// PolicyVersion gives one version; they never change.
func (l *Ledger) PolicyVersion(ctx context.Context, ns string, n int) (PolicyVersion, error) {
	row, err := l.q.PolicyAt(ctx, dbgen.PolicyAtParams{Namespace: ns, Version: int32(n)})
	if errors.Is(err, pgx.ErrNoRows) {
		return PolicyVersion{}, refuse(ErrUnknownVersion, "namespace %q has no policy version %d", ns, n)
	}
	if err != nil {
		return PolicyVersion{}, l.lane.outward(err)
	}
	return policyVersionOf(row)
}

// PolicyVersions lists the versions, latest first.
func (l *Ledger) PolicyVersions(ctx context.Context, ns string, limit int) ([]PolicyVersion, error) {
	page, err := l.PolicyPage(ctx, ns, "", limit)
	return page.Items, err
}

// PolicyChange is a new policy: a whole one, or a patch that replaces the fields it has.
type PolicyChange struct {
	Policy  *sched.Policy
	Patch   json.RawMessage
	Base    int // the version it was made from; 0 = whatever is active
	Author  string
	Comment string
}

// PutPolicy makes a change the active policy, as a new version. A change that
// changes nothing answers the active version.
func (l *Ledger) PutPolicy(ctx context.Context, ns string, c PolicyChange) (PolicyVersion, error) {
	if err := clean("author", c.Author, maxName); err != nil {
		return PolicyVersion{}, err
	}
	if err := clean("comment", c.Comment, 2000); err != nil {
		return PolicyVersion{}, err
	}
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return PolicyVersion{}, err
	}
	var out PolicyVersion
	epoch := int64(0)
	// Before the transaction: its lock on the namespace is one that a lane may wait for.
	names, labels, err := l.known(ctx, ns)
	if err != nil {
		return PolicyVersion{}, err
	}
	err = pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		q := dbgen.New(tx)
		locked, err := q.LockNamespace(ctx, ns)
		if err != nil {
			return err
		}
		if err := closedTo(locked.Name, locked.State); err != nil {
			return err
		}
		epoch = locked.Epoch
		row, err := q.PolicyNow(ctx, ns)
		if err != nil {
			return err
		}
		active, err := policyVersionOf(row)
		if err != nil {
			return err
		}
		if c.Base != 0 && c.Base != active.Version {
			return overtaken(ctx, q, ns, c.Base, active)
		}
		var warnings []string
		var next sched.Policy
		if c.Policy != nil {
			next = *c.Policy
		} else {
			next, warnings, err = active.Policy.Patch(c.Patch)
			var errs sched.FieldErrors
			if errors.As(err, &errs) {
				return fieldErrors(errs)
			} else if err != nil {
				return err
			}
		}
		if errs := next.Validate(); len(errs) > 0 {
			return fieldErrors(errs)
		}
		doc, err := json.Marshal(next)
		if err != nil {
			return err
		}
		warnings = append(warnings, next.Warnings(names, labels)...)
		if before, _ := json.Marshal(active.Policy); bytes.Equal(before, doc) {
			out = active
			out.Warnings = warnings
			return nil
		}
		out = PolicyVersion{Version: active.Version + 1, Policy: next, Author: c.Author, Comment: c.Comment, CreatedAt: l.now(), Warnings: warnings}
		if err := q.InsertPolicy(ctx, dbgen.InsertPolicyParams{NamespaceID: locked.ID, Version: int32(out.Version), Document: doc, Author: c.Author, Comment: c.Comment, CreatedAt: out.CreatedAt}); err != nil {
			return err
		}
		if err := q.ActivatePolicy(ctx, dbgen.ActivatePolicyParams{ID: locked.ID, Version: int32(out.Version)}); err != nil {
			return err
		}
		said := fmt.Sprintf("Policy version %d", out.Version)
		if changes := sched.Diff(active.Policy, next); len(changes) > 0 {
			said += "; " + inShort(changes)
		}
		return l.note(ctx, q, locked.ID, "policy.changed", "", c.Author, said, out.Version)
	})
	if err != nil {
		return PolicyVersion{}, l.lane.outward(err)
	}
	l.feed.wake()
	l.news.changed()
	return out, l.followPolicy(ctx, ns, epoch, out)
}

// overtaken refuses a change that was made from a version which is not active any
// more, and says what changed since.
func overtaken(ctx context.Context, q *dbgen.Queries, ns string, base int, active PolicyVersion) error {
	row, err := q.PolicyAt(ctx, dbgen.PolicyAtParams{Namespace: ns, Version: int32(base)})
	if errors.Is(err, pgx.ErrNoRows) {
		return refuse(ErrConflict, "the policy is at version %d, and there is no version %d that this change could be made from: read the policy and apply it again", active.Version, base)
	}
	if err != nil {
		return err
	}
	from, err := policyVersionOf(row)
	if err != nil {
		return err
	}
	e := refuse(ErrConflict, "the policy is at version %d, this change was made from version %d: look at what changed and apply it again", active.Version, base)
	changes := sched.Diff(from.Policy, active.Policy)
	if len(changes) == 0 {
		e.Message += " (nothing differs between the two by now)"
	} else {
		e.Message += "; meanwhile " + inShort(changes)
	}
	e.Detail = changes
	return e
}

// inShort names the first few of some changes.
func inShort(changes []sched.Change) string {
	var parts []string
	for i, d := range changes {
		if i == 5 {
			parts = append(parts, "…")
			break
		}
		parts = append(parts, fmt.Sprintf("%s: %s → %s", d.Field, d.Old, d.New))
	}
	return strings.Join(parts, "; ")
}

// known lists the pools, and the label values of live tasks, that a policy may name.
func (l *Ledger) known(ctx context.Context, ns string) (pools []string, labels map[string][]string, err error) {
	labels = map[string][]string{}
	err = l.lane.look(ctx, func(b *book) {
		s := b.spaces[ns]
		for name := range s.pools {
			pools = append(pools, name)
		}
		for _, t := range s.tasks {
			for k, v := range t.labels {
				if !slices.Contains(labels[k], v) {
					labels[k] = append(labels[k], v)
				}
			}
		}
	})
	if len(labels) == 0 {
		labels = nil // nothing runs: every label would be unknown
	}
	return pools, labels, err
}

func fieldErrors(errs []sched.FieldError) *Error {
	e := &Error{Code: ErrInvalid.Code, Fields: map[string]string{}}
	for _, f := range errs {
		e.Fields[f.Field] = f.Message
		if e.Message != "" {
			e.Message += "; "
		}
		e.Message += f.Field + ": " + f.Message
	}
	return e
}

// followPolicy lets the core use a policy at once, and queues move under it.
func (l *Ledger) followPolicy(ctx context.Context, ns string, epoch int64, v PolicyVersion) error {
	return l.lane.submit(ctx, &call{
		whole: true,
		plan: func(b *book) []*pool {
			var out []*pool
			for _, p := range b.spaces[ns].pools {
				if p.line.Len() > 0 {
					out = append(out, p)
				}
			}
			return out
		},
		do: func(b *batch) error {
			s := b.spaces[ns]
			b.follows(s, edition{epoch, v.Version}, spaceOpen, v.Policy)
			for _, p := range s.pools {
				if b.locked[p.id] {
					b.freed(p)
				}
			}
			return nil
		},
	})
}

// Rollback makes an older version the active policy again, as a new version.
func (l *Ledger) Rollback(ctx context.Context, ns string, to, base int, author, comment string) (PolicyVersion, error) {
	old, err := l.PolicyVersion(ctx, ns, to)
	if err != nil {
		return PolicyVersion{}, err
	}
	if comment == "" {
		comment = fmt.Sprintf("back to version %d", to)
	}
	return l.PutPolicy(ctx, ns, PolicyChange{Policy: &old.Policy, Base: base, Author: author, Comment: comment})
}
