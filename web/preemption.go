package web

import "time"

// PreemptionRow is one task that made way.
type PreemptionRow struct {
	ID            string
	At            time.Time
	Victim        string
	VictimPool    string
	Preemptor     string // "" when asked for by hand
	PreemptorPool string
	Reason        string // label_based_preemption, same_pool_preemption, cross_pool_preemption, manual
	Score         float64
	Took          time.Duration // decided → preemptor running; 0: not there yet
	Phase         string        // decided, cancelling, saving, killing, gone, undone
	CancelOK      bool
	Saved         bool
	Policy        int
}

// ReasonWords says a reason as people do.
func ReasonWords(reason string) string {
	switch reason {
	case "label_based_preemption":
		return "label"
	case "same_pool_preemption":
		return "same pool"
	case "cross_pool_preemption":
		return "cross pool"
	case "manual":
		return "by hand"
	case "drained":
		return "drain"
	}
	return reason
}

// PreemptionFilter narrows the history.
type PreemptionFilter struct {
	Reason string
	Pool   string
	Task   string // as victim or preemptor
	Cursor string
	Limit  int
}

// PreemptionList is one page of the history, newest first.
type PreemptionList struct {
	Items []PreemptionRow
	Next  string
	Total int // −1 when not counted
	Pools []string
}

// Preemption is the explanation of one.
type Preemption struct {
	PreemptionRow
	Actor             string // who asked, for one by hand
	Rule              Line   // "label rule training_stage: rlhf ≻ pretraining"
	PreemptorPriority float64
	VictimPriority    float64
	Parts             Score
	Requested         Resources
	Free              Resources // in the preemptor's pool at that moment
	Missing           Resources
	Taken             Resources
	Loan              bool
	Node              string
	Handover          Handover
	CancelProblem     string
	SaveProblem       string
	StateSize         int64
	Others            []string // victims taken together with this one
	Candidates        []Candidate
	Safe              []Safe
	SafeMore          Line // "and 1,276 more: …"
	Now               Line // where the victim is now
}

// Score says how a score is made up: Base + Kappa · Remaining, which must reach Least.
type Score struct {
	Delta     float64 // priority difference
	Base      float64 // Delta, or the label threshold when that is more
	Kappa     float64 // per second
	Remaining time.Duration
	Total     float64
	Least     float64
}

// Waiting is the part of the score that time left makes up.
func (s Score) Waiting() float64 { return s.Total - s.Base }

// Candidate is a task that could have been taken.
type Candidate struct {
	Task, Pool string
	Reason     string
	Score      Score
	Taken      bool
	Verdict    string // "taken", "not needed: …"
}

// Safe is a task that could not be taken, and why.
type Safe struct {
	Task, Pool string
	Why        string
}
