package ledger

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// What another server made a moment ago may not be in the book yet. Under a lock that
// is found out; but who knows nothing of a pool does not lock it.

// find submits a call. When that finds no pool or task, and where says in which pool
// Postgres has it, the call is made again with that pool up to date.
func (l *Ledger) find(ctx context.Context, c *call, where func() (int64, error)) error {
	err := l.lane.submit(ctx, c)
	if !errors.Is(err, ErrUnknownPool) && !errors.Is(err, ErrUnknownTask) && !errors.Is(err, ErrUnknownAgent) {
		return err
	}
	id, missing := where()
	var closed *Error
	if errors.As(missing, &closed) {
		return closed
	}
	if missing != nil {
		return err
	}
	if e := l.reload(ctx, id); e != nil {
		return e
	}
	return l.lane.submit(ctx, &call{whole: c.whole, plan: c.plan, do: c.do})
}

func (l *Ledger) wherePool(ctx context.Context, ns, name string) func() (int64, error) {
	return func() (int64, error) {
		space := l.spaceIDOrLoad(ctx, ns)
		p, err := l.q.PoolByName(ctx, dbgen.PoolByNameParams{NamespaceID: space, Name: name})
		if errors.Is(err, pgx.ErrNoRows) {
			if closed := stillOpen(l.q.NamespaceState(ctx, space)); closed != nil {
				return 0, closed
			}
		}
		return p.ID, err
	}
}

// wherePools brings all pools of some submissions up to date but one, and says where that is.
func (l *Ledger) wherePools(ctx context.Context, ns string, subs []Submission) func() (int64, error) {
	return func() (last int64, err error) {
		for i := range subs {
			if i > 0 && subs[i].Pool == subs[i-1].Pool {
				continue
			}
			if last != 0 {
				if err := l.reload(ctx, last); err != nil {
					return 0, err
				}
			}
			if last, err = l.wherePool(ctx, ns, subs[i].Pool)(); err != nil {
				return 0, err
			}
		}
		return last, nil
	}
}

func (l *Ledger) whereTask(ctx context.Context, ns, taskID string) func() (int64, error) {
	return func() (int64, error) {
		return l.q.LivePool(ctx, dbgen.LivePoolParams{Namespace: ns, TaskID: &taskID})
	}
}

func (l *Ledger) whereAgent(ctx context.Context, ns, name string) func() (int64, error) {
	return func() (int64, error) {
		id, err := l.q.LiveAgentPool(ctx, dbgen.LiveAgentPoolParams{Namespace: ns, AgentName: name})
		if err != nil {
			return l.whereTask(ctx, ns, name)()
		}
		return id, nil
	}
}

// sharedNode is one machine as servers tell each other of it.
type sharedNode struct {
	ID    sched.NodeID    `json:"id"`
	Room  json.RawMessage `json:"room"`
	Total json.RawMessage `json:"total"`
}

// shareNodes tells the other servers of the nodes of a cluster that this one leads.
func (l *Ledger) shareNodes(ctx context.Context, cluster string, nodes []sched.Node) {
	shared := make([]sharedNode, 0, len(nodes))
	for _, n := range nodes {
		shared = append(shared, sharedNode{ID: n.ID, Room: n.Room.AppendJSON(nil), Total: n.Total.AppendJSON(nil)})
	}
	doc, err := json.Marshal(shared)
	if err != nil {
		l.log.Warn("the nodes could not be shared", "cluster", cluster, "error", err)
		return
	}
	changed, err := l.q.ShareNodes(ctx, dbgen.ShareNodesParams{Nodes: doc, Cluster: cluster, Server: l.server})
	if err != nil {
		l.log.Warn("the nodes could not be shared", "cluster", cluster, "error", err)
		return
	}
	if changed > 0 && l.servers.others() {
		l.notify(ctx, "nodes")
	}
}

// followNodes takes over what the servers that lead know of their clusters' nodes.
func (l *Ledger) followNodes(ctx context.Context) error {
	rows, err := l.q.SharedNodes(ctx, l.server)
	if err != nil {
		return err
	}
	held := error(nil)
	if err := l.lane.glance(ctx, func(*book) { held = l.lane.loadHolds(ctx, l.q) }); err != nil || held != nil {
		return errors.Join(err, held)
	}
	for _, r := range rows {
		if leader, _ := l.Leader(r.Cluster); leader != r.Server || l.news.sameNodes(r.Cluster, r.Nodes) {
			continue
		}
		var shared []sharedNode
		if err := json.Unmarshal(r.Nodes, &shared); err != nil {
			return err
		}
		nodes := make([]sched.Node, len(shared))
		for i, n := range shared {
			nodes[i] = sched.Node{ID: n.ID, Cluster: r.Cluster}
			if err := errors.Join(nodes[i].Room.UnmarshalJSON(n.Room), nodes[i].Total.UnmarshalJSON(n.Total)); err != nil {
				return err
			}
		}
		if err := l.lane.look(ctx, func(b *book) { b.setNodes(r.Cluster, nodes) }); err != nil {
			return err
		}
	}
	return nil
}
