package web

import "time"

// Agent is the Ray actor that holds quota and runs tasks.
type Agent struct {
	Name    string
	Pool    string
	State   State
	Tasks   []string
	Class   string
	Node    string
	PID     int
	Request Resources
	Labels  []Label
	Created time.Time
	Ready   time.Time
	Reason  string
}

// AgentFilter narrows the list of agents.
type AgentFilter struct {
	Pool, Text string
	Cursor     string
	Limit      int
}

// AgentList is one page of agents.
type AgentList struct {
	Items []Agent
	Next  string
	Total int // −1 when not counted
	Pools []string
}

// Hit is something the jump box found.
type Hit struct {
	Kind string // task, pool, agent, policy
	Name string
	Note string // "running in train-a100"
	Href string // path without the namespace
}
