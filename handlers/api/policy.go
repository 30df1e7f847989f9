package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// Policy is one version of the rules.
type Policy struct {
	Version   int       `json:"version" doc:"Counts every change; also the ETag." example:"3"`
	Policy    PolicyDoc `json:"policy"`
	Author    string    `json:"author" example:"operator"`
	Comment   string    `json:"comment" example:"protect production"`
	CreatedAt Stamp     `json:"created_at"`
	Warnings  []string  `json:"warnings" nullable:"false" doc:"What is allowed but probably not meant."`
}

// PolicyDoc is the rules themselves.
type PolicyDoc sched.Policy

// MarshalJSON writes all fields.
func (p PolicyDoc) MarshalJSON() ([]byte, error) {
	if p.ProtectedPools == nil {
		p.ProtectedPools = []string{}
	}
	if p.LabelPreemptionRules == nil {
		p.LabelPreemptionRules = map[string]map[string][]string{}
	}
	return json.Marshal(sched.Policy(p))
}

// Schema names every field with its unit, default and meaning.
func (PolicyDoc) Schema(r huma.Registry) *huma.Schema { return policySchema(r) }

// PolicyFields are fields of a policy as they were sent: the core reads them,
// with messages of its own.
type PolicyFields json.RawMessage

// UnmarshalJSON keeps the text.
func (p *PolicyFields) UnmarshalJSON(b []byte) error {
	*p = append((*p)[:0], b...)
	return nil
}

// Schema describes the fields; unknown ones are refused by the core, by name.
func (PolicyFields) Schema(r huma.Registry) *huma.Schema {
	// Only for people: were it the schema that huma validates by, its messages
	// would come instead of the core's, which know what is usual.
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true,
		Description: "Fields of a policy, as in the answer; preemption_aggressiveness (high, medium, low or an alias) sets same_pool_priority_threshold and label_priority_threshold unless they are given too.",
		Examples:    []any{map[string]any{"cross_pool_priority_threshold": 10, "protected_pools": []any{"production"}}}}
}

const policySchemaName = "PolicyDoc"

func policySchema(r huma.Registry) *huma.Schema {
	if _, ok := r.Map()[policySchemaName]; !ok {
		number := func(def float64, doc string) *huma.Schema {
			zero := 0.0
			return &huma.Schema{Type: huma.TypeNumber, Default: def, Minimum: &zero, Description: doc}
		}
		text := &huma.Schema{Type: huma.TypeString}
		texts := &huma.Schema{Type: huma.TypeArray, Items: text}
		s := &huma.Schema{Type: huma.TypeObject, AdditionalProperties: false, Properties: map[string]*huma.Schema{
			"same_pool_priority_threshold":  number(1, "Least priority difference to preempt within a pool."),
			"cross_pool_priority_threshold": number(5, "Least priority difference to preempt in another pool."),
			"remaining_time_weight":         number(0.1, "κ: score per second that a victim still has to run."),
			"min_preempt_score":             number(0.5, "Least score of a victim."),
			"enable_cross_pool_preemption":  {Type: huma.TypeBoolean, Default: true, Description: "Whether tasks may take from other pools."},
			"protected_pools":               {Type: huma.TypeArray, Items: text, Description: "Pools that lose nothing to other pools."},
			"label_preemption_rules": {Type: huma.TypeObject, Description: "Label key → value → the values it may preempt, as written, not transitive.",
				AdditionalProperties: &huma.Schema{Type: huma.TypeObject, AdditionalProperties: texts},
				Examples:             []any{map[string]any{"tier": map[string]any{"premium": []any{"standard", "batch"}}}}},
			"label_priority_threshold":   number(0.5, "Least score base of a victim by label."),
			"enable_label_preemption":    {Type: huma.TypeBoolean, Default: true, Description: "Whether label rules count."},
			"cancel_timeout":             number(5, "Seconds a victim may take to stop."),
			"save_timeout":               number(60, "Seconds a victim may take to save its state."),
			"victim_coverage":            {Type: huma.TypeString, Enum: []any{"deficit", "request"}, Default: "deficit", Description: "What victims must free: what is missing, or the whole request."},
			"min_runtime_seconds":        number(0, "Seconds for which a task is safe after its start."),
			"max_preemptions_per_minute": {Type: huma.TypeInteger, Default: 0, Description: "A pool is safe once it lost so many tasks in a minute; 0: no limit."},
			"max_preemptions_per_task":   {Type: huma.TypeInteger, Default: 0, Description: "A task is safe once it was preempted so often; 0: no limit."},
			"ageing_weight":              number(0, "Priority a queued task gains for each minute it waits, in the order of the queue only."),
		}}
		s.PrecomputeMessages()
		r.Map()[policySchemaName] = s
	}
	return &huma.Schema{Ref: "#/components/schemas/" + policySchemaName}
}

func policyDoc(v ledger.PolicyVersion) Policy {
	out := Policy{Version: v.Version, Policy: PolicyDoc(v.Policy), Author: v.Author, Comment: v.Comment, CreatedAt: Stamp(v.CreatedAt), Warnings: v.Warnings}
	if out.Warnings == nil {
		out.Warnings = []string{}
	}
	return out
}

// PolicyAnswer is a policy with its version as ETag.
type PolicyAnswer struct {
	ETag string `header:"ETag" doc:"The version, quoted."`
	Body Policy
}

func policyAnswer(v ledger.PolicyVersion, err error) (*PolicyAnswer, error) {
	if err != nil {
		return nil, err
	}
	return &PolicyAnswer{ETag: strconv.Quote(strconv.Itoa(v.Version)), Body: policyDoc(v)}, nil
}

// PolicyBody is a new policy, or fields of one.
type PolicyBody struct {
	Policy  PolicyFields `json:"policy"`
	Author  string       `json:"author,omitempty" doc:"Who changes it; by default the signed-in user."`
	Comment string       `json:"comment,omitempty" doc:"Why." example:"protect production"`
}

// IfMatch makes a change conditional.
type IfMatch struct {
	IfMatch string `header:"If-Match" doc:"The ETag that was read: the change is refused (412) when somebody has changed it since." example:"\"3\""`
}

// base is the version that must still be active, 0 for any.
func (m *IfMatch) base() (int, error) {
	s := strings.TrimSpace(m.IfMatch)
	if s == "" || s == "*" {
		return 0, nil
	}
	n, err := strconv.Atoi(strings.Trim(strings.TrimPrefix(s, "W/"), `"`))
	if err != nil || n < 1 {
		return 0, problem.Invalid("header", "If-Match", fmt.Sprintf("%.100q is not an ETag of ours; send it as it was read, such as \"3\" in quotes", s))
	}
	return n, nil
}

// change reads what PUT and PATCH have in common.
func (b *PolicyBody) change(ctx context.Context, m *IfMatch) (ledger.PolicyChange, error) {
	base, err := m.base()
	if err != nil {
		return ledger.PolicyChange{}, err
	}
	var f faults
	f.optionalName("body", "author", b.Author)
	f.text("body", "comment", b.Comment, maxComment)
	c := ledger.PolicyChange{Base: base, Author: b.Author, Comment: b.Comment}
	if c.Author == "" {
		c.Author = actor(ctx)
	}
	return c, f.err()
}

// conditional turns a version conflict into 412 when the caller had asked for it.
func (m *IfMatch) conditional(ctx context.Context, err error) error {
	if err == nil || m.IfMatch == "" || !errors.Is(err, ledger.ErrConflict) {
		return err
	}
	p := toProblem(ctx, err)
	p.Status = http.StatusPreconditionFailed
	return p
}

// policyFaults names the fields of a policy that are wrong.
func policyFaults(err error) error {
	var fields sched.FieldErrors
	if !errors.As(err, &fields) {
		return err
	}
	var f faults
	for _, e := range fields {
		name := "policy." + e.Field
		if e.Field == "policy" {
			name = "policy"
		}
		f.add("body", name, "%s", e.Message)
	}
	return f.err()
}

// FieldChange is a field of the policy that differs between two versions.
type FieldChange struct {
	Field string `json:"field" doc:"Label rules are listed by key: label_preemption_rules.tier." example:"min_preempt_score"`
	Old   string `json:"old" doc:"As text for people." example:"0.5"`
	New   string `json:"new" example:"2.0"`
}

func fieldChange(c sched.Change) FieldChange { return FieldChange(c) }

// VersionDoc is one version, with what it changed.
type VersionDoc struct {
	Policy
	Against int           `json:"against" doc:"The version it is compared with; 0 for the first version, which has none before it." example:"2"`
	Changes []FieldChange `json:"changes" nullable:"false" doc:"What differs from that version to this one, in the order of the fields."`
}

// VersionAnswer is a version with its number as ETag.
type VersionAnswer struct {
	ETag string `header:"ETag" doc:"The version, quoted."`
	Body VersionDoc
}

// VersionPath names a version.
type VersionPath struct {
	Scope
	N int `path:"n" minimum:"1" doc:"The version." example:"2"`
}

// PolicyCheck is what is wrong with a policy.
type PolicyCheck struct {
	Valid    bool           `json:"valid"`
	Errors   []problem.Item `json:"errors" nullable:"false"`
	Warnings []string       `json:"warnings" nullable:"false"`
	Policy   *PolicyDoc     `json:"policy,omitempty" doc:"The whole policy as it would be; left out when it is not valid."`
}

func (a *API) registerPolicy() {
	register(a, operation{id: "get-policy", method: "GET", path: "/policy", tag: "Policy",
		summary: "Read the active policy", about: "The rules that decide now, with their version.",
	}, func(ctx context.Context, in *struct{ Scope }) (*PolicyAnswer, error) {
		return policyAnswer(a.ledger.Policy(ctx, in.Namespace))
	})

	type change struct {
		Scope
		IfMatch
		Body PolicyBody
	}
	register(a, operation{id: "replace-policy", method: "PUT", path: "/policy", tag: "Policy",
		summary: "Replace the policy", about: "Makes a new version. Fields left out get their defaults.", codes: []string{"version_conflict"},
		request: `{"policy": {"cross_pool_priority_threshold": 10, "protected_pools": ["production"]}, "comment": "protect production"}`,
	}, func(ctx context.Context, in *change) (*PolicyAnswer, error) {
		c, err := in.Body.change(ctx, &in.IfMatch)
		if err != nil {
			return nil, err
		}
		p, _, err := sched.ParsePolicy(in.Body.Policy)
		if err != nil {
			return nil, policyFaults(err)
		}
		c.Policy = &p
		v, err := a.ledger.PutPolicy(ctx, in.Namespace, c)
		return policyAnswer(v, in.conditional(ctx, policyFaults(err)))
	})

	register(a, operation{id: "change-policy", method: "PATCH", path: "/policy", tag: "Policy",
		summary: "Change fields of the policy", about: "Makes a new version in which the fields given are replaced, each as a whole.", codes: []string{"version_conflict"},
		request: `{"policy": {"preemption_aggressiveness": "high", "label_preemption_rules": {"tier": {"premium": ["standard", "batch"]}}}, "comment": "premium first"}`,
	}, func(ctx context.Context, in *change) (*PolicyAnswer, error) {
		c, err := in.Body.change(ctx, &in.IfMatch)
		if err != nil {
			return nil, err
		}
		// Checked against the defaults here only to answer quickly with every
		// field at fault; the ledger patches the version that is active then.
		_, warnings, err := sched.DefaultPolicy().Patch(in.Body.Policy)
		if err != nil {
			return nil, policyFaults(err)
		}
		c.Patch = json.RawMessage(in.Body.Policy)
		v, err := a.ledger.PutPolicy(ctx, in.Namespace, c)
		for _, w := range warnings {
			if !slices.Contains(v.Warnings, w) {
				v.Warnings = append(v.Warnings, w)
			}
		}
		return policyAnswer(v, in.conditional(ctx, policyFaults(err)))
	})

	register(a, operation{id: "list-policy-versions", method: "GET", path: "/policy/versions", tag: "Policy",
		summary: "List versions of the policy", about: "Newest first, on one page.",
	}, func(ctx context.Context, in *struct {
		Scope
		Limit int `query:"limit" minimum:"1" maximum:"500" default:"50" doc:"The most versions."`
	}) (*Doc[List[Policy]], error) {
		versions, err := a.ledger.PolicyVersions(ctx, in.Namespace, in.Limit)
		return doc(list(mapped(versions, policyDoc), ""), err)
	})

	register(a, operation{id: "get-policy-version", method: "GET", path: "/policy/versions/{n}", tag: "Policy",
		summary: "Read a version of the policy", about: "Versions never change. The answer says what this one changed, against the version before it or the one asked for.", codes: []string{"unknown_policy_version"},
	}, func(ctx context.Context, in *struct {
		VersionPath
		Against int `query:"against" minimum:"0" doc:"The version to compare with; the one before when left out." example:"1"`
	}) (*VersionAnswer, error) {
		v, err := a.ledger.PolicyVersion(ctx, in.Namespace, in.N)
		if err != nil {
			return nil, err
		}
		out := VersionDoc{Policy: policyDoc(v), Against: in.Against, Changes: []FieldChange{}}
		if out.Against == 0 {
			out.Against = in.N - 1
		}
		if out.Against > 0 {
			before, err := a.ledger.PolicyVersion(ctx, in.Namespace, out.Against)
			if err != nil {
				return nil, err
			}
			out.Changes = mapped(sched.Diff(before.Policy, v.Policy), fieldChange)
		}
		return &VersionAnswer{ETag: strconv.Quote(strconv.Itoa(v.Version)), Body: out}, nil
	})

	register(a, operation{id: "rollback-policy", method: "POST", path: "/policy/versions/{n}/rollback", tag: "Policy",
		summary: "Go back to a version", about: "Makes a new version with the content of an old one.", codes: []string{"unknown_policy_version", "version_conflict"},
		request: `{"comment": "too eager"}`,
	}, func(ctx context.Context, in *struct {
		VersionPath
		IfMatch
		Body *struct {
			Author  string `json:"author,omitempty" doc:"Who changes it; by default the signed-in user."`
			Comment string `json:"comment,omitempty" doc:"Why."`
		}
	}) (*PolicyAnswer, error) {
		var b PolicyBody
		if in.Body != nil {
			b.Author, b.Comment = in.Body.Author, in.Body.Comment
		}
		c, err := b.change(ctx, &in.IfMatch)
		if err != nil {
			return nil, err
		}
		v, err := a.ledger.Rollback(ctx, in.Namespace, in.N, c.Base, c.Author, c.Comment)
		return policyAnswer(v, in.conditional(ctx, err))
	})

	register(a, operation{id: "validate-policy", method: "POST", path: "/policy/validate", tag: "Policy",
		summary: "Check a policy", about: "Says what is wrong with a policy, and what is odd about it, without changing anything. Always answers 200 when it could read the body.",
		request: `{"policy": {"min_preempt_score": -1}}`,
	}, func(ctx context.Context, in *struct {
		Scope
		Body struct {
			Policy PolicyFields `json:"policy"`
		}
	}) (*Doc[PolicyCheck], error) {
		out := PolicyCheck{Errors: []problem.Item{}, Warnings: []string{}}
		p, warnings, err := sched.ParsePolicy(in.Body.Policy)
		if err != nil {
			var pr *problem.Problem
			if !errors.As(policyFaults(err), &pr) {
				return nil, err
			}
			out.Errors = pr.Errors
			return &Doc[PolicyCheck]{Body: out}, nil
		}
		pools, err := a.ledger.Pools(ctx, in.Namespace)
		if err != nil {
			return nil, err
		}
		known := make([]string, 0, len(pools))
		for _, pool := range pools {
			known = append(known, pool.Name)
		}
		d := PolicyDoc(p)
		out.Valid, out.Policy = true, &d
		out.Warnings = append(append(out.Warnings, warnings...), p.Warnings(known, nil)...)
		return &Doc[PolicyCheck]{Body: out}, nil
	})
}
