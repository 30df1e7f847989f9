package sched

// Coverage says what victims must free together.
type Coverage string

const (
	// CoverDeficit asks for what is missing: request − free.
	CoverDeficit Coverage = "deficit"
	// CoverRequest asks for the whole request once anything is missing.
	CoverRequest Coverage = "request"
)

// Policy decides who may preempt whom. Treat it as immutable: Patch makes a
// new one. Numbers travel as plain JSON numbers and are thousandths inside.
type Policy struct {
	// SamePoolPriorityThreshold is the least priority difference within a pool.
	SamePoolPriorityThreshold Milli `json:"same_pool_priority_threshold"`
	// CrossPoolPriorityThreshold is the least priority difference between pools.
	CrossPoolPriorityThreshold Milli `json:"cross_pool_priority_threshold"`
	// RemainingTimeWeight is κ: score per second a victim still has to run.
	RemainingTimeWeight Milli `json:"remaining_time_weight"`
	// MinPreemptScore is the least score of a victim.
	MinPreemptScore Milli `json:"min_preempt_score"`
	// EnableCrossPoolPreemption switches rule 3, and loans made by it.
	EnableCrossPoolPreemption bool `json:"enable_cross_pool_preemption"`
	// ProtectedPools lose nothing to other pools.
	ProtectedPools []string `json:"protected_pools"`
	// LabelPreemptionRules is key → value → the values it may preempt. Only
	// what is written counts: premium > standard and standard > batch do not
	// make premium > batch.
	LabelPreemptionRules map[string]map[string][]string `json:"label_preemption_rules"`
	// LabelPriorityThreshold is the least score base of a victim by label.
	LabelPriorityThreshold Milli `json:"label_priority_threshold"`
	// EnableLabelPreemption switches label rules, and the rank they give.
	EnableLabelPreemption bool `json:"enable_label_preemption"`
	// CancelTimeout is how long a victim may take to stop, in seconds.
	CancelTimeout Milli `json:"cancel_timeout"`
	// SaveTimeout is how long a victim may take to save its state, in seconds.
	SaveTimeout Milli `json:"save_timeout"`
	// VictimCoverage is what victims must free together.
	VictimCoverage Coverage `json:"victim_coverage"`
	// MinRuntimeSeconds is how long a task is safe after it started.
	MinRuntimeSeconds Milli `json:"min_runtime_seconds"`
	// MaxPreemptionsPerMinute makes a pool safe once it lost that many tasks
	// within a minute; 0 = no limit. It is asked when a decision begins: one
	// decision is never cut in half.
	MaxPreemptionsPerMinute int `json:"max_preemptions_per_minute"`
	// MaxPreemptionsPerTask makes a task safe once it was preempted that often;
	// 0 = no limit.
	MaxPreemptionsPerTask int `json:"max_preemptions_per_task"`
	// AgeingWeight is the priority a queued task gains for each minute it waits, in
	// the order of the queue only: it makes nobody a preemptor.
	AgeingWeight Milli `json:"ageing_weight"`
}

// DefaultPolicy is what a new namespace starts with.
func DefaultPolicy() Policy {
	return Policy{
		SamePoolPriorityThreshold:  1_000,
		CrossPoolPriorityThreshold: 5_000,
		RemainingTimeWeight:        100,
		MinPreemptScore:            500,
		EnableCrossPoolPreemption:  true,
		ProtectedPools:             []string{},
		LabelPreemptionRules:       map[string]map[string][]string{},
		LabelPriorityThreshold:     500,
		EnableLabelPreemption:      true,
		CancelTimeout:              5_000,
		SaveTimeout:                60_000,
		VictimCoverage:             CoverDeficit,
	}
}

// The fields by type, so that reading, validating and comparing are each said
// once. Names are the JSON names above; a test keeps the two in step.
var (
	milliFields = []struct {
		name string
		at   func(*Policy) *Milli
		max  Milli
	}{
		{"same_pool_priority_threshold", func(p *Policy) *Milli { return &p.SamePoolPriorityThreshold }, maxThreshold},
		{"cross_pool_priority_threshold", func(p *Policy) *Milli { return &p.CrossPoolPriorityThreshold }, maxThreshold},
		{"remaining_time_weight", func(p *Policy) *Milli { return &p.RemainingTimeWeight }, maxWeight},
		{"min_preempt_score", func(p *Policy) *Milli { return &p.MinPreemptScore }, maxThreshold},
		{"label_priority_threshold", func(p *Policy) *Milli { return &p.LabelPriorityThreshold }, maxThreshold},
		{"cancel_timeout", func(p *Policy) *Milli { return &p.CancelTimeout }, maxTimeout},
		{"save_timeout", func(p *Policy) *Milli { return &p.SaveTimeout }, maxTimeout},
		{"min_runtime_seconds", func(p *Policy) *Milli { return &p.MinRuntimeSeconds }, maxMinRuntime},
		{"ageing_weight", func(p *Policy) *Milli { return &p.AgeingWeight }, maxWeight},
	}
	boolFields = []struct {
		name string
		at   func(*Policy) *bool
	}{
		{"enable_cross_pool_preemption", func(p *Policy) *bool { return &p.EnableCrossPoolPreemption }},
		{"enable_label_preemption", func(p *Policy) *bool { return &p.EnableLabelPreemption }},
	}
	countFields = []struct {
		name string
		at   func(*Policy) *int
	}{
		{"max_preemptions_per_minute", func(p *Policy) *int { return &p.MaxPreemptionsPerMinute }},
		{"max_preemptions_per_task", func(p *Policy) *int { return &p.MaxPreemptionsPerTask }},
	}
)
