package sched

import (
	"iter"
	"slices"
	"strings"
)

// Nodes are the machines of all Ray clusters. One set is shared by the cores of
// all namespaces, because all of them place agents on the same machines.
type Nodes struct {
	byID      map[NodeID]*Node
	byCluster map[string][]*Node // sorted by id
}

// NewNodes returns an empty set.
func NewNodes() *Nodes {
	return &Nodes{byID: map[NodeID]*Node{}, byCluster: map[string][]*Node{}}
}

// Put adds a node or replaces the one with the same id.
func (n *Nodes) Put(node Node) {
	n.Remove(node.ID)
	n.byID[node.ID] = &node
	list := n.byCluster[node.Cluster]
	at, _ := slices.BinarySearchFunc(list, node.ID, compareNode)
	n.byCluster[node.Cluster] = slices.Insert(list, at, &node)
}

// Remove forgets a node; unknown ones are ignored.
func (n *Nodes) Remove(id NodeID) {
	node, ok := n.byID[id]
	if !ok {
		return
	}
	delete(n.byID, id)
	list := n.byCluster[node.Cluster]
	at, _ := slices.BinarySearchFunc(list, id, compareNode)
	n.byCluster[node.Cluster] = slices.Delete(list, at, at+1)
}

// Get returns a node by id.
func (n *Nodes) Get(id NodeID) (Node, bool) {
	if node, ok := n.byID[id]; ok {
		return *node, true
	}
	return Node{}, false
}

// Adjust adds delta to a node's room: negative when something is placed there.
// Unknown nodes are ignored.
func (n *Nodes) Adjust(id NodeID, delta Resources) {
	if node, ok := n.byID[id]; ok {
		node.Room = node.Room.Add(delta)
	}
}

// Of yields the nodes of a cluster by id.
func (n *Nodes) Of(cluster string) iter.Seq[Node] {
	return func(yield func(Node) bool) {
		for _, node := range n.byCluster[cluster] {
			if !yield(*node) {
				return
			}
		}
	}
}

func compareNode(n *Node, id NodeID) int { return strings.Compare(string(n.ID), string(id)) }

// Core is what one namespace looks like right now, and the rules that hold in
// it. It is not safe for concurrent use: one goroutine owns it. Pools, agents
// and tasks may arrive in any order and refer to ones that never do.
type Core struct {
	policy Policy
	rules  rules
	nodes  *Nodes

	pools  map[string]Pool
	agents map[ID]*Agent
	tasks  map[ID]*Task
	on     map[ID][]*Task // by agent, in no particular order

	hot   map[string]struct{} // pools that lost tasks in the last minute
	sizes sizes
	index *index // nil while there are few tasks
	live  *Core  // of which this is a view under another policy; see Under
	spots []spot // of the decision under way; reused
}

// NewCore returns an empty core.
func NewCore(p Policy, nodes *Nodes) *Core {
	c := &Core{
		nodes:  nodes,
		pools:  map[string]Pool{},
		agents: map[ID]*Agent{},
		tasks:  map[ID]*Task{},
		on:     map[ID][]*Task{},
		hot:    map[string]struct{}{},
		sizes:  usualSizes,
	}
	c.SetPolicy(p)
	return c
}

// SetPolicy replaces the policy, which must be valid.
func (c *Core) SetPolicy(p Policy) {
	old := c.rules
	c.policy, c.rules = p, compile(p)
	c.repolicy(&old)
}

// Policy returns the policy in force.
func (c *Core) Policy() Policy { return c.policy }

// PutPool adds a pool or replaces the one of that name.
func (c *Core) PutPool(p Pool) {
	old, known := c.pools[p.Name]
	c.pools[p.Name] = p
	if p.Preempted > 0 {
		c.hot[p.Name] = struct{}{}
	} else if len(c.hot) > 0 {
		delete(c.hot, p.Name)
	}
	if !known || old.Cluster != p.Cluster {
		c.touchPool(p.Name)
		c.noted()
	}
}

// Pool returns a pool by name.
func (c *Core) Pool(name string) (Pool, bool) {
	p, ok := c.pools[name]
	return p, ok
}

// RemovePool forgets a pool. Its agents and tasks stay, unmanaged, until removed.
func (c *Core) RemovePool(name string) {
	delete(c.pools, name)
	delete(c.hot, name)
	c.touchPool(name)
	c.noted()
}

// PutAgent adds an agent or replaces the one with the same id.
func (c *Core) PutAgent(a Agent) {
	a.Gives = a.Gives.Positive()
	c.agents[a.ID] = &a
	c.touchAgent(a.ID)
	c.noted()
}

// Agent returns an agent by id.
func (c *Core) Agent(id ID) (Agent, bool) {
	if a, ok := c.agents[id]; ok {
		return *a, true
	}
	return Agent{}, false
}

// RemoveAgent forgets an agent. Its tasks stay until they are removed.
func (c *Core) RemoveAgent(id ID) {
	delete(c.agents, id)
	c.touchAgent(id)
	c.noted()
}

// PutTask adds a live task or replaces the one with the same id. Numbers beyond
// reason are cut down to reason, so that no score can overflow.
func (c *Core) PutTask(t Task) {
	t.Priority = bounded(t.Priority)
	t.Start = min(max(t.Start, 0), maxStart)
	t.Estimate = min(max(t.Estimate, 0), maxEstimate)
	c.removeTask(t.ID)
	c.tasks[t.ID] = &t
	c.on[t.Agent] = append(c.on[t.Agent], &t)
	c.touchAgent(t.Agent)
	c.noted()
}

// Task returns a live task by id.
func (c *Core) Task(id ID) (Task, bool) {
	if t, ok := c.tasks[id]; ok {
		return *t, true
	}
	return Task{}, false
}

// RemoveTask forgets a task; unknown ones are ignored.
func (c *Core) RemoveTask(id ID) {
	c.removeTask(id)
	c.noted()
}

func (c *Core) removeTask(id ID) {
	t, ok := c.tasks[id]
	if !ok {
		return
	}
	delete(c.tasks, id)
	left := slices.DeleteFunc(c.on[t.Agent], func(o *Task) bool { return o == t })
	if len(left) == 0 {
		delete(c.on, t.Agent)
	} else {
		c.on[t.Agent] = left
	}
	c.touch(id)
	c.touchAgent(t.Agent)
}

// Len is the number of live tasks.
func (c *Core) Len() int { return len(c.tasks) }
