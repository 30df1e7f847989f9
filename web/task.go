package web

import "time"

// TaskRow is a task in a list.
type TaskRow struct {
	ID        string
	UID       string
	State     State
	Phase     string // what a reserved or preempting task is doing: "saving state"
	Pool      string
	Priority  float64
	Labels    []Label
	Request   Resources
	Since     time.Time // when it came into this state
	EndsAt    time.Time // running: start + estimate; zero when none was given
	Position  int       // queued: 1 is next
	ETA       time.Time // queued: when it may start, as far as known
	ETANote   string    // what that rests on, or why it is not known
	Node      string
	Attempt   int
	Reason    string // why it ended or waits, for people
	Unmanaged bool   // registered on a pool or agent that is not ours: evaluated, never charged
}

// Now says in a few words what the task is at. Times that go on are left to the template.
func (t TaskRow) Now() string {
	switch {
	case t.State == Running && t.EndsAt.IsZero():
		return "no estimate"
	case (t.State == Launching || t.State == Reserved) && t.Phase != "":
		return t.Phase
	case t.State == Launching && t.Node != "":
		return "on node " + t.Node
	case t.State == Preempting && t.Phase != "":
		return t.Phase
	}
	return t.Reason
}

// TaskFilter narrows the list of tasks.
type TaskFilter struct {
	State  string // "live" (the default), "all", or a State
	Pool   string
	Text   string // part of the id
	Labels []Label
	Cursor string
	Limit  int
}

// Narrowed says that something other than the state is asked for.
func (f TaskFilter) Narrowed() bool { return f.Pool != "" || f.Text != "" || len(f.Labels) > 0 }

// TaskList is one page of tasks.
type TaskList struct {
	Items []TaskRow
	Next  string // cursor of the next page, "" on the last
	Total int    // that match; −1 when not counted
	All   int    // in the namespace whatever the filter; −1 when not counted
	Pools []string
}

// Task is one task's page.
type Task struct {
	TaskRow
	Owner          string
	Class          string // "module:Class", or the name of a pickled one
	Pickled        bool
	Entry          string // the method called after every launch; "" for none
	AgentName      string
	ActorName      string
	GroupTier      string // of the placement group that its agent sits in, "" for none
	GroupName      string
	PID            int
	Submitted      time.Time
	Started        time.Time
	Ended          time.Time
	Estimate       time.Duration // 0: none given
	Ran            time.Duration // all attempts together
	MaxRuntime     time.Duration
	MaxAttempts    int
	Preemptions    int
	OnInsufficient string
	OnPreempted    string
	OnFailure      string
	Why            *Note // why it waits, or how it ended, when that needs saying
	Timeline       []Step
	Handover       *Handover
	StateSize      int64 // of the saved state, 0 for none
	Spec           string
	Result         string   // JSON of what its entry returned, "" for none
	Earlier        []string // uids of earlier tasks with the same id
	CanComplete    bool
	CanPreempt     bool
	CanCancel      bool
	CanRetune      bool        // its priority may change
	Again          *SubmitForm // the form that would submit the same once more; nil when it cannot (pickled, registered)
}

// Step is one entry of a timeline, newest first.
type Step struct {
	At     time.Time
	Tone   string // ok, warn, bad or "" : the word in Title says the same
	Title  Line
	Detail Line
	Took   time.Duration // until the next step; negative: still going on
}

// Handover is what one change of hands cost, phase by phase.
type Handover struct {
	Preemption string // its id, "" when there was none (a plain launch)
	Preemptor  string
	Victims    []string
	Phases     []Phase
}

// Total adds the phases up.
func (h Handover) Total() time.Duration {
	var d time.Duration
	for _, p := range h.Phases {
		d += max(p.Took, 0)
	}
	return d
}

// Phase is one phase; Took is negative while it goes on.
type Phase struct {
	Name string
	Took time.Duration
	Note string // "timed out", "refused: …"
}

// LogChunk is a piece of what a task printed.
type LogChunk struct {
	Text   string
	Offset int64 // where Text begins
	Next   int64 // where to read on
	Size   int64
	EOF    bool
	Ended  bool // nothing will follow
}

// SavedState is what a task last saved.
type SavedState struct {
	JSON    string
	At      time.Time
	Attempt int
	Default bool   // not the class's own: it has no save_state, or that failed
	Problem string // why saving went wrong, "" when it did not
}
