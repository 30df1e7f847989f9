package web

import (
	"fmt"
	"strings"
	"time"
)

// Groups are the placement groups of a pool.
type Groups struct {
	Enabled    bool
	Items      []Group   // reserved ones first, then dynamic ones
	Held       Resources // quota that the pool's agents hold, in groups or not
	Reserves   Resources // what groups reserve on machines
	Unused     Resources // the part of it in which nobody sits
	MayBeMade  int       // dynamic ones at once; 0: none are made
	Waiting    int       // tasks in line that want one
	Made, Gone int64     // so far
	Reused     int64
}

// Any says that there is something to show.
func (g Groups) Any() bool { return g.Enabled || len(g.Items) > 0 }

// Group is one placement group.
type Group struct {
	Name     string // in Ray
	Tier     string // reserved, dynamic
	State    string // creating, idle, occupied, releasing, removed, failed
	Leaving  bool
	Size     Resources // of all bundles together
	Bundles  int
	Strategy string
	Nodes    []string // each once
	Sitters  []Sitter
	Uses     int
	Reuses   int
	Since    time.Time // when it was made last; zero before
	Reason   string
}

// Sitter is an agent in a placement group.
type Sitter struct {
	Task  string // "" for an agent that waits for work
	Agent string
	State State
}

// Shape says what it consists of beyond its size, "" for one bundle that Ray places as it likes.
func (g Group) Shape() string {
	more := ""
	if g.Bundles > 1 {
		more = Count(g.Bundles, "bundle")
	}
	return join(", ", more != "", more, g.Strategy != "", g.Strategy)
}

// Where names its machines, the first few of many.
func (g Group) Where() string {
	const most = 2
	if len(g.Nodes) > most {
		return fmt.Sprintf("%s and %d more", Cut(g.Nodes[0], 40), len(g.Nodes)-1)
	}
	return Cut(strings.Join(g.Nodes, ", "), 80)
}

// Dot is the class of the mark beside its state: that of a task in a like state.
func (g Group) Dot() string {
	switch g.State {
	case "occupied":
		return string(Running)
	case "creating":
		return string(Launching)
	case "releasing":
		return string(Stopping)
	case "failed":
		return string(Failed)
	}
	return string(Cancelled)
}

// Word is its state in words.
func (g Group) Word() string {
	switch {
	case g.State == "removed":
		return "made again when needed"
	case g.Leaving && g.State == "occupied":
		return "occupied, then removed"
	}
	return g.State
}

// Failed are the reserved groups that could not be made.
func (g Groups) Failed() (out []Group) {
	for _, x := range g.Items {
		if x.State == "failed" {
			out = append(out, x)
		}
	}
	return out
}

// FailedNote says in plain words what is wrong with groups that could not be made.
func (g Groups) FailedNote() *Note {
	failed := g.Failed()
	if len(failed) == 0 {
		return nil
	}
	n := &Note{Kind: "warn", Title: Say("A reserved placement group could not be made.")}
	if len(failed) > 1 {
		n.Title = Say(Number(len(failed)) + " reserved placement groups could not be made.")
	}
	first := failed[0]
	text := "It needs " + Cut(first.Size.String(), 200)
	switch {
	case first.Strategy == "STRICT_PACK" || first.Bundles < 2:
		text += " on one machine"
	case first.Strategy == "STRICT_SPREAD":
		text += fmt.Sprintf(" on %d machines", first.Bundles)
	}
	text += ". "
	if first.Reason != "" {
		text += "Ray says: " + Cut(first.Reason, 300) + ". "
	}
	n.Text = Say(text + "It is tried again by itself. Tasks that belong in it sit in dynamic groups meanwhile, or wait. Free room on the cluster, or make the group smaller under Edit.")
	return n
}

// Sums says what the groups take beside what the quota says.
func (g Groups) Sums() string {
	s := fmt.Sprintf("Agents of this pool hold %s of its quota. Its groups reserve %s on machines", g.Held, g.Reserves)
	if g.Unused.String() != "nothing" {
		s += fmt.Sprintf("; in %s of that nobody sits, which takes room in Ray but is charged to nobody", g.Unused)
	}
	return s + "."
}
