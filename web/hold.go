package web

import (
	"net/url"
	"strings"
	"time"
)

// Hold says that nothing may start in a pool, or on a node. The zero value says that it may.
type Hold struct {
	State    string // "", held or draining
	Reason   string
	Actor    string
	Since    time.Time
	Deadline time.Time // of a drain; zero: what runs may end by itself
}

// On reports whether nothing may start.
func (h Hold) On() bool { return h.State != "" }

// Line says it in a sentence. what is "pool" or "node".
func (h Hold) Line(now time.Time) Line {
	s := "Held"
	if h.State == "draining" {
		s = "Drained"
	}
	if h.Actor != "" {
		s += " by " + Cut(h.Actor, 60)
	}
	s += " " + Ago(h.Since, now)
	if h.Reason != "" {
		s += ": " + Cut(h.Reason, 300)
	}
	l := Line{Text(strings.TrimSuffix(s, ".") + ".")}
	switch {
	case h.State != "draining":
		return append(l, Text(" What runs goes on."))
	case h.Deadline.IsZero():
		return append(l, Text(" What runs may end by itself."))
	case h.Deadline.After(now):
		return append(l, Text(" What still runs in "+Brief(h.Deadline.Sub(now))+" is preempted."))
	}
	return append(l, Text(" What still ran "+Ago(h.Deadline, now)+" is preempted."))
}

// HoldVerbs are what can be asked of a pool or a node.
var HoldVerbs = []string{"hold", "drain", "resume"}

// HoldForm asks whether a pool, a node or a cluster should be held, drained or resumed.
type HoldForm struct {
	Verb     string // hold, drain, resume
	What     string // "pool", "node" or "cluster"
	Name     string
	Action   string // where it posts to
	Cancel   string // where "No" leads
	Reason   string
	Deadline string
	Now      Hold
	Errors   Errors
}

// HoldRequest is what a HoldForm says once it parses.
type HoldRequest struct {
	State    string // held, draining; "" resumes
	Reason   string
	Deadline *time.Duration // from now; nil: what runs may end by itself
}

// Read takes what was posted.
func (f *HoldForm) Read(v url.Values) {
	f.Reason, f.Deadline = strings.TrimSpace(v.Get("reason")), strings.TrimSpace(v.Get("deadline"))
}

// Parse checks and converts the form.
func (f HoldForm) Parse() (HoldRequest, Errors) {
	e := Errors{}
	r := HoldRequest{Reason: f.Reason}
	switch f.Verb {
	case "hold":
		r.State = "held"
	case "drain":
		r.State = "draining"
		if f.Deadline != "" {
			d := length(e, "deadline", f.Deadline)
			r.Deadline = &d
		}
	}
	if f.Verb != "resume" {
		required(e, "reason", f.Reason, "Say why in a few words: whoever waits reads it.")
	}
	return r, e
}

func (f HoldForm) title() string {
	return strings.ToUpper(f.Verb[:1]) + f.Verb[1:] + " the " + f.What + " " + Cut(f.Name, 120) + "?"
}

func (f HoldForm) text() string {
	switch {
	case f.What == "cluster" && f.Verb == "hold":
		return "It gets no new jobs until it is resumed: they go elsewhere, or wait. The jobs that are there go on."
	case f.What == "cluster":
		return "Jobs may go there again, those that wait first."
	case f.Verb == "hold":
		return "Nothing starts there until it is resumed; tasks wait in line. What runs goes on."
	case f.Verb == "drain":
		return "Nothing starts there until it is resumed. What runs may end by itself, or is preempted after the time you give: its state is saved, and it is queued again if it was submitted so."
	}
	return "Tasks start there again, those that wait first."
}

func (f HoldForm) button() string {
	return map[string]string{"hold": "Hold it", "drain": "Drain it", "resume": "Resume it"}[f.Verb]
}

// Node is a machine of a Ray cluster.
type Node struct {
	ID      string
	Cluster string
	Total   Resources
	Free    Resources
	Agents  int  // of ours
	Known   bool // false: held, but not in its cluster now
	Hold    Hold
}

// Short is the id as it is shown: Ray's have 56 digits.
func (n Node) Short() string {
	if len(n.ID) > 16 {
		return n.ID[:12]
	}
	return n.ID
}

// Quotas are bars of what is in use of the node.
func (n Node) Quotas() []Quota {
	var out []Quota
	for _, name := range n.Total.Names() {
		if CompareResources(name, "memory") <= 0 || len(out) < 3 {
			out = append(out, Quota{Resource: name, Capacity: n.Total[name], Used: max(0, n.Total[name]-n.Free[name])})
		}
	}
	return out[:min(3, len(out))]
}
