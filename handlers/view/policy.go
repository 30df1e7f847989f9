package view

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/web"
)

// policy is the active one. Looking at a namespace that nobody made must not make it:
// it is shown what it would start with.
func (v *View) policy(ctx context.Context, ns string) (ledger.PolicyVersion, error) {
	names, err := v.l.Namespaces(ctx)
	if err != nil {
		return ledger.PolicyVersion{}, err
	}
	if !slices.Contains(names, ns) {
		return ledger.PolicyVersion{Version: 1, Policy: sched.DefaultPolicy()}, nil
	}
	return v.l.Policy(ctx, ns)
}

func policyView(p ledger.PolicyVersion) web.Policy {
	out := web.Policy{Version: p.Version, Author: p.Author, At: p.CreatedAt, Comment: p.Comment, Doc: policyDoc(p.Policy)}
	if p.Version == 1 && p.Author == "" && p.Comment == "" {
		out.Comment = "What a namespace starts with"
	}
	return out
}

func policyDoc(p sched.Policy) web.PolicyDoc {
	return web.PolicyDoc{
		SamePoolPriorityThreshold: p.SamePoolPriorityThreshold.Float(), CrossPoolPriorityThreshold: p.CrossPoolPriorityThreshold.Float(),
		LabelPriorityThreshold: p.LabelPriorityThreshold.Float(), RemainingTimeWeight: p.RemainingTimeWeight.Float(), MinPreemptScore: p.MinPreemptScore.Float(),
		EnableCrossPoolPreemption: p.EnableCrossPoolPreemption, EnableLabelPreemption: p.EnableLabelPreemption,
		ProtectedPools: p.ProtectedPools, LabelPreemptionRules: p.LabelPreemptionRules,
		CancelTimeout: p.CancelTimeout.Float(), SaveTimeout: p.SaveTimeout.Float(), VictimCoverage: string(p.VictimCoverage),
		MinRuntimeSeconds: p.MinRuntimeSeconds.Float(), MaxPreemptionsPerMinute: p.MaxPreemptionsPerMinute, MaxPreemptionsPerTask: p.MaxPreemptionsPerTask,
		AgeingWeight: p.AgeingWeight.Float(),
	}
}

// draft is a document as a change of the policy: every field it has.
func draft(d web.PolicyDoc) (json.RawMessage, error) {
	if d.ProtectedPools == nil {
		d.ProtectedPools = []string{}
	}
	if d.LabelPreemptionRules == nil {
		d.LabelPreemptionRules = map[string]map[string][]string{}
	}
	b, err := json.Marshal(d)
	if err != nil {
		return nil, invalid("", fmt.Sprintf("The policy cannot be written as JSON: %v.", err))
	}
	return b, nil
}

// Policy is the active version, with what is odd about it.
func (v *View) Policy(ctx context.Context, ns string) (web.Policy, error) {
	p, err := v.policy(ctx, ns)
	if err != nil {
		return web.Policy{}, v.refused(ctx, err)
	}
	out := policyView(p)
	out.Active = true
	pools, err := v.l.Pools(ctx, ns)
	if err != nil {
		return out, v.refused(ctx, err)
	}
	out.Pools = poolNames(pools)
	out.Warnings, err = v.CheckPolicy(ctx, ns, out.Doc)
	return out, err
}

func changes(before, after sched.Policy) []web.FieldChange {
	var out []web.FieldChange
	for _, c := range sched.Diff(before, after) {
		out = append(out, web.FieldChange(c))
	}
	return out
}

// PolicyVersion is one version.
func (v *View) PolicyVersion(ctx context.Context, ns string, version int) (web.Policy, error) {
	p, err := v.l.PolicyVersion(ctx, ns, version)
	if err != nil {
		return web.Policy{}, v.refused(ctx, err)
	}
	active, err := v.policy(ctx, ns)
	out := policyView(p)
	out.Active = active.Version == p.Version
	return out, v.refused(ctx, err)
}

// PolicyVersions is the history, newest first.
func (v *View) PolicyVersions(ctx context.Context, ns, cursor string, limit int) (web.PolicyVersions, error) {
	page, err := v.l.PolicyPage(ctx, ns, cursor, limit)
	if err != nil {
		return web.PolicyVersions{}, v.refused(ctx, err)
	}
	active, err := v.policy(ctx, ns)
	out := web.PolicyVersions{Next: page.Next}
	for i, p := range page.Items {
		x := policyView(p)
		x.Active = p.Version == active.Version
		before := ledger.PolicyVersion{}
		switch {
		case i+1 < len(page.Items):
			before = page.Items[i+1]
		case p.Version > 1:
			if before, err = v.l.PolicyVersion(ctx, ns, p.Version-1); err != nil {
				return out, v.refused(ctx, err)
			}
		}
		if p.Version > 1 {
			x.Changes = changes(before.Policy, p.Policy)
		}
		out.Items = append(out.Items, x)
	}
	return out, v.refused(ctx, err)
}

// CheckPolicy says what is wrong with a draft, and what is merely odd.
func (v *View) CheckPolicy(ctx context.Context, ns string, d web.PolicyDoc) ([]string, error) {
	patch, err := draft(d)
	if err != nil {
		return nil, err
	}
	names, err := v.l.Namespaces(ctx)
	if err != nil {
		return nil, v.refused(ctx, err)
	}
	var warnings []string
	if slices.Contains(names, ns) {
		_, warnings, err = v.l.CheckPolicy(ctx, ns, patch)
	} else { // not made by looking at it
		_, warnings, err = sched.ParsePolicy(patch)
	}
	for i := range warnings {
		warnings[i] = sentence(warnings[i])
	}
	return warnings, v.refused(ctx, err)
}

// SavePolicy makes a draft the active policy, if base still is.
func (v *View) SavePolicy(ctx context.Context, ns string, d web.PolicyDoc, base int, author, comment string) (int, error) {
	patch, err := draft(d)
	if err != nil {
		return 0, err
	}
	p, err := v.l.PutPolicy(ctx, ns, ledger.PolicyChange{Patch: patch, Base: base, Author: author, Comment: comment})
	return p.Version, v.refused(ctx, err)
}

// Rollback makes the content of an old version the active policy again.
func (v *View) Rollback(ctx context.Context, ns string, to, base int, author, comment string) (int, error) {
	p, err := v.l.Rollback(ctx, ns, to, base, author, comment)
	return p.Version, v.refused(ctx, err)
}
