package web

import (
	"fmt"
	"time"
)

// PolicyDoc is a preemption policy, under the names of the REST API.
// Times are seconds; zero limits are off.
type PolicyDoc struct {
	SamePoolPriorityThreshold  float64                        `json:"same_pool_priority_threshold" yaml:"same_pool_priority_threshold"`
	CrossPoolPriorityThreshold float64                        `json:"cross_pool_priority_threshold" yaml:"cross_pool_priority_threshold"`
	LabelPriorityThreshold     float64                        `json:"label_priority_threshold" yaml:"label_priority_threshold"`
	RemainingTimeWeight        float64                        `json:"remaining_time_weight" yaml:"remaining_time_weight"`
	MinPreemptScore            float64                        `json:"min_preempt_score" yaml:"min_preempt_score"`
	EnableCrossPoolPreemption  bool                           `json:"enable_cross_pool_preemption" yaml:"enable_cross_pool_preemption"`
	EnableLabelPreemption      bool                           `json:"enable_label_preemption" yaml:"enable_label_preemption"`
	ProtectedPools             []string                       `json:"protected_pools" yaml:"protected_pools"`
	LabelPreemptionRules       map[string]map[string][]string `json:"label_preemption_rules" yaml:"label_preemption_rules"`
	CancelTimeout              float64                        `json:"cancel_timeout" yaml:"cancel_timeout"`
	SaveTimeout                float64                        `json:"save_timeout" yaml:"save_timeout"`
	VictimCoverage             string                         `json:"victim_coverage" yaml:"victim_coverage"` // deficit | request
	MinRuntimeSeconds          float64                        `json:"min_runtime_seconds" yaml:"min_runtime_seconds"`
	MaxPreemptionsPerMinute    int                            `json:"max_preemptions_per_minute" yaml:"max_preemptions_per_minute"`
	MaxPreemptionsPerTask      int                            `json:"max_preemptions_per_task" yaml:"max_preemptions_per_task"`
	AgeingWeight               float64                        `json:"ageing_weight" yaml:"ageing_weight"`
}

// DefaultPolicy is what a namespace starts with.
func DefaultPolicy() PolicyDoc {
	return PolicyDoc{
		SamePoolPriorityThreshold: 1, CrossPoolPriorityThreshold: 5, LabelPriorityThreshold: 0.5,
		RemainingTimeWeight: 0.1, MinPreemptScore: 0.5,
		EnableCrossPoolPreemption: true, EnableLabelPreemption: true,
		CancelTimeout: 5, SaveTimeout: 60, VictimCoverage: "deficit",
	}
}

// Policy is one version of a namespace's policy.
type Policy struct {
	Version  int
	Author   string
	At       time.Time
	Comment  string
	Doc      PolicyDoc
	Active   bool
	Warnings []string
	Pools    []string      // names to offer for protection; filled for the active version only
	Changes  []FieldChange // against the version before; filled in the history only
}

// FieldChange is a field that differs between two policies.
type FieldChange struct{ Field, Old, New string }

// Rollback asks whether an old version should be active again.
type Rollback struct {
	Version  Policy // the one to bring back
	Active   Policy
	Comment  string
	Conflict *Overtaken
	Errors   Errors
}

// Overtaken says that the policy changed while somebody made up their mind.
type Overtaken struct {
	Base Policy // what they began with
	Now  Policy // what is active
}

// Words says it in a sentence.
func (o Overtaken) Words() string {
	by := ""
	if o.Now.Author != "" {
		by = " by " + Cut(o.Now.Author, 60)
	}
	s := fmt.Sprintf("You began with version %d; version %d was saved%s meanwhile", o.Base.Version, o.Now.Version, by)
	if o.Now.Comment != "" {
		s += ": “" + Cut(o.Now.Comment, 200) + "”"
	}
	return s + ". Saving now replaces it."
}

// PolicyVersions is the history, newest first.
type PolicyVersions struct {
	Items []Policy
	Next  string
}
