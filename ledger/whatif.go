package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
)

// Bounds of a what-if. It is answered by the lane between two transactions, so
// what it looks at is limited, and long answers are made in turns.
const (
	mostJudged   = 1000                 // live tasks judged for one newcomer: a sample, when there are more
	mostExposed  = 500                  // running tasks asked whether a draft exposes or protects them
	mostProfiles = 20                   // kinds of newcomer they are compared with
	turn         = 2 * time.Millisecond // after which others get the lane
)

// WhatIf supposes a task, another policy, or both. Nothing is changed by asking.
type WhatIf struct {
	Task *Supposed
	// Draft has the fields of the policy that would be different, as PolicyChange.Patch.
	Draft json.RawMessage
	Limit int // of each list of the answer; 0 = 20, at most 200
}

// Supposed is a task that is asked about instead of submitted.
type Supposed struct {
	// TaskID may name a queued task: what is left out below is taken from it, and who
	// preempted it before stays safe from it.
	TaskID   string
	Pool     string
	Priority *sched.Milli     // nil: 5
	Labels   *sched.Labels    // nil: none
	Request  *sched.Resources // nil: only who is eligible is asked, not whether it would fit
}

// WhatIfAnswer is what would be decided, under the active policy and under the draft.
type WhatIfAnswer struct {
	PolicyVersion int
	Changes       []sched.Change // from the active policy to the draft
	Warnings      []string       // what is odd about the draft
	Live          int            // live tasks of the namespace

	// For a supposed task.
	Task   *sched.Incoming // as it was asked
	Active *Judgement
	Draft  *Judgement // nil without a draft

	// For a draft without a task.
	Queued int           // tasks that wait in all
	Queue  []QueueEffect // those asked, what changes first
	Shift  Exposure
}

// Judgement is what one policy says of a supposed task.
type Judgement struct {
	Decision *sched.Decision // nil when no resources were asked for
	// Verdicts has the best of the eligible tasks, then a choice of the safe ones in which
	// every reason occurs.
	Verdicts []sched.Verdict
	Judged   int                // how many were looked at: all of them, or a sample
	Eligible int                // of these
	Safe     map[sched.Safe]int // the others, by why
}

// QueueEffect is what would become of one queued task if it were asked now, by itself.
type QueueEffect struct {
	UID      sched.ID
	TaskID   string
	Pool     string
	Priority sched.Milli
	Position int // in its pool's queue
	Active   sched.Decision
	Draft    sched.Decision
	Changed  bool
}

// Exposure says which running tasks a draft exposes to newcomers, and which it protects.
// Newcomers are supposed that are like the tasks that wait and run now.
type Exposure struct {
	Judged, Profiles    int // running tasks, and kinds of newcomers, compared
	Takeable, Protected int // how many tasks change for at least one of them
	Items               []ExposedTask
}

// ExposedTask is a running task that changes for some newcomers.
type ExposedTask struct {
	TaskID   string
	Pool     string
	Priority sched.Milli
	Takeable bool   // by the draft; else it is protected by it
	By       string // a task like those newcomers
	ByPool   string
	ByCount  int // how many kinds of them
	Active   string
	Draft    string // why, in words
}

// WhatIf answers a supposition against the state of this moment. A supposed task is
// answered from one state, under both policies; a draft alone is answered in turns, each
// from its own moment.
func (l *Ledger) WhatIf(ctx context.Context, ns string, w WhatIf) (WhatIfAnswer, error) {
	var out WhatIfAnswer
	if w.Task == nil && w.Draft == nil {
		return out, invalid("task", "is missing: suppose a task, or a draft of the policy, or both")
	}
	if w.Limit == 0 {
		w.Limit = 20
	}
	w.Limit = min(max(w.Limit, 1), 200)
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return out, err
	}
	var draft *sched.Policy
	if w.Draft != nil {
		p, warnings, err := l.CheckPolicy(ctx, ns, w.Draft)
		if err != nil {
			return out, err
		}
		draft, out.Warnings = &p, warnings
	}
	if w.Task != nil {
		return out, l.suppose(ctx, ns, w, draft, &out)
	}
	return out, l.supposeDraft(ctx, ns, *draft, w.Limit, &out)
}

// begin notes what an answer is about.
func (a *WhatIfAnswer) begin(s *space, draft *sched.Policy) {
	a.PolicyVersion, a.Live = s.policyVersion, s.core.Len()
	if draft != nil {
		a.Changes = sched.Diff(s.core.Policy(), *draft)
	}
}

func (l *Ledger) suppose(ctx context.Context, ns string, w WhatIf, draft *sched.Policy, out *WhatIfAnswer) error {
	if w.Task.Labels != nil {
		if err := cleanLabels(*w.Task.Labels); err != nil {
			return err
		}
	}
	var refused error
	err := l.lane.look(ctx, func(b *book) {
		s := b.spaces[ns]
		in, err := b.supposed(s, w.Task)
		if err != nil {
			refused = err
			return
		}
		out.begin(s, draft)
		out.Task = &in
		now := sched.Time(l.now().UnixMilli())
		out.Active = b.judge(s, s.core, in, now, w.Limit)
		if draft != nil {
			out.Draft = b.judge(s, s.core.Under(*draft), in, now, w.Limit)
		}
	})
	if err != nil {
		return err
	}
	return refused
}

// supposed completes a supposed task from the queued one it names.
func (b *book) supposed(s *space, t *Supposed) (sched.Incoming, error) {
	in := sched.Incoming{Pool: t.Pool, Priority: 5000}
	if t.TaskID != "" {
		r := s.tasks[t.TaskID]
		switch {
		case r == nil:
			return in, refuse(ErrUnknownTask, "there is no live task %q in namespace %q", t.TaskID, s.name)
		case r.state != Queued:
			return in, refuse(ErrWrongState, "task %q is %s: only one that waits can be asked about; leave task_id out to suppose one like it", t.TaskID, r.state)
		}
		in = b.incoming(r)
		if t.Pool != "" {
			in.Pool = t.Pool
		}
	}
	if in.Pool == "" {
		return in, invalid("task.pool", "is missing")
	}
	if t.Priority != nil {
		in.Priority = *t.Priority
	}
	if t.Labels != nil {
		in.Labels = *t.Labels
	}
	if t.Request != nil {
		in.Request = *t.Request
	}
	return in, nil
}

// would is what becomes of a newcomer, decided as for a submission: nothing starts in a
// pool that is held, and who is not in front of the line may not delay whoever is. One
// that stands in the line already is asked as if it were in front.
func (b *book) would(s *space, core *sched.Core, in sched.Incoming, now sched.Time) sched.Decision {
	p := s.pools[in.Pool]
	if p == nil {
		return core.Decide(in, now)
	}
	if p.hold.on() {
		return sched.Decision{Outcome: sched.Refuse, Refusal: sched.Refusal{Code: codePoolHeld, Message: p.hold.sentence("pool " + p.name)}}
	}
	head := b.head(p)
	if head == nil || b.rows[in.ID] != nil || p.line.Leads(sched.Waiting{ID: in.ID, Priority: in.Priority, Since: now}) {
		return core.Decide(in, now)
	}
	return core.Backfill(in, 0, b.reserve(head, time.UnixMilli(int64(now))), head.taskID, now)
}

// judge is what a core says of a newcomer, about a bounded number of tasks.
func (b *book) judge(s *space, core *sched.Core, in sched.Incoming, now sched.Time, limit int) *Judgement {
	j := &Judgement{Safe: map[sched.Safe]int{}}
	taken := map[sched.ID]bool{}
	seen := map[sched.ID]bool{}
	var ids []sched.ID
	add := func(id sched.ID) {
		if !seen[id] && len(ids) < mostJudged {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	if !in.Request.IsZero() {
		d := b.would(s, core, in, now)
		j.Decision = &d
		for _, v := range d.Victims {
			taken[v.Agent] = true
			for _, t := range v.Tasks {
				add(t.Task)
			}
		}
	}
	for _, c := range core.Candidates(in, now, limit) {
		add(c.Task)
	}
	s.sample(in.Pool, add, func() bool { return len(ids) >= mostJudged })
	all := core.ExplainTasks(in, ids, now)
	var safe []sched.Verdict
	for _, v := range all {
		if v.Taken && !taken[v.Agent] { // the core alone would take it; the line or a hold says no
			v.Taken, v.Message = false, strings.Replace(v.Message, ": it makes way", ": eligible, but not taken", 1)
		}
		switch {
		case v.Code == sched.SafeItself:
			continue
		case !v.Eligible:
			j.Safe[v.Code]++
			safe = append(safe, v)
		default:
			if j.Eligible++; j.Eligible <= limit || v.Taken {
				j.Verdicts = append(j.Verdicts, v)
			}
		}
		j.Judged++
	}
	j.Verdicts = append(j.Verdicts, variety(safe, limit)...)
	return j
}

// sample walks over live tasks, those of a pool first, until it is enough.
func (s *space) sample(first string, add func(sched.ID), enough func() bool) {
	walk := func(p *pool) {
		for _, r := range p.rows {
			if enough() {
				return
			}
			if r.kind != KindAgent && r.state != Queued {
				add(r.uid)
			}
		}
	}
	if p := s.pools[first]; p != nil {
		walk(p)
	}
	for name, p := range s.pools {
		if name != first {
			walk(p)
		}
	}
	for _, r := range s.tasks { // registered ones in pools that we never made
		if enough() {
			return
		}
		if r.pool == nil {
			add(r.uid)
		}
	}
}

// variety keeps some of the safe tasks, in their order, so that each reason occurs
// before one occurs more often than the others.
func variety(safe []sched.Verdict, limit int) []sched.Verdict {
	keep := make([]bool, len(safe))
	for round, kept := 1, 0; kept < min(limit, len(safe)); round++ {
		n := map[sched.Safe]int{}
		for i, v := range safe {
			if n[v.Code]++; n[v.Code] == round && kept < limit {
				keep[i] = true
				kept++
			}
		}
	}
	out := safe[:0:0]
	for i, v := range safe {
		if keep[i] {
			out = append(out, v)
		}
	}
	return out
}

func (l *Ledger) supposeDraft(ctx context.Context, ns string, draft sched.Policy, limit int, out *WhatIfAnswer) error {
	var waiting, running []sched.ID
	var profiles []sched.Incoming
	err := l.lane.look(ctx, func(b *book) {
		s := b.spaces[ns]
		out.begin(s, &draft)
		waiting, out.Queued = s.waiting(limit)
		profiles = b.profiles(s, waiting)
		s.sample("", func(id sched.ID) { running = append(running, id) }, func() bool { return len(running) >= mostExposed })
	})
	if err != nil {
		return err
	}
	err = l.inTurns(ctx, len(waiting), func(b *book, i int) {
		r := b.rows[waiting[i]]
		if r == nil || r.state != Queued || r.pool == nil {
			return // it started meanwhile
		}
		now := sched.Time(l.now().UnixMilli())
		e := QueueEffect{UID: r.uid, TaskID: r.taskID, Pool: r.poolName, Priority: r.priority, Position: r.pool.line.Position(r.uid),
			Active: b.would(r.space, r.space.core, b.incoming(r), now)}
		e.Draft = b.would(r.space, r.space.core.Under(draft), b.incoming(r), now)
		e.Changed = decidesDifferently(e.Active, e.Draft)
		out.Queue = append(out.Queue, e)
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(out.Queue, func(a, b QueueEffect) int {
		switch {
		case a.Changed == b.Changed:
			return 0
		case a.Changed:
			return -1
		}
		return 1
	})
	return l.exposure(ctx, ns, draft, profiles, running, limit, &out.Shift)
}

// waiting gives who waits: the first in line of each pool, then the second of each, …
func (s *space) waiting(limit int) (ids []sched.ID, all int) {
	var lines [][]sched.ID
	for _, name := range slices.Sorted(maps.Keys(s.pools)) {
		line := s.pools[name].line
		all += line.Len()
		var first []sched.ID
		for id := range line.All() {
			if len(first) == limit {
				break
			}
			first = append(first, id)
		}
		lines = append(lines, first)
	}
	for at := 0; len(ids) < min(limit, all); at++ {
		for _, first := range lines {
			if at < len(first) && len(ids) < limit {
				ids = append(ids, first[at])
			}
		}
	}
	return ids, all
}

// profiles are kinds of newcomers: like those that wait, then like those that run.
func (b *book) profiles(s *space, waiting []sched.ID) []sched.Incoming {
	seen := map[string]bool{}
	var out []sched.Incoming
	add := func(r *row) {
		key, _ := json.Marshal([]any{r.poolName, r.priority, r.labels})
		if r.taskID != "" && !seen[string(key)] && len(out) < mostProfiles {
			seen[string(key)] = true
			in := b.incoming(r)
			in.Request = sched.Resources{} // who is eligible does not depend on it
			out = append(out, in)
		}
	}
	for _, id := range waiting {
		if r := b.rows[id]; r != nil {
			add(r)
		}
	}
	looked := 0
	for _, r := range s.tasks {
		if looked++; looked > mostJudged {
			break
		}
		add(r)
	}
	return out
}

func decidesDifferently(a, b sched.Decision) bool {
	return a.Outcome != b.Outcome || !slices.EqualFunc(a.Victims, b.Victims, func(x, y sched.Victim) bool { return x.Agent == y.Agent })
}

// exposure compares what both policies let newcomers take.
func (l *Ledger) exposure(ctx context.Context, ns string, draft sched.Policy, profiles []sched.Incoming, running []sched.ID, limit int, out *Exposure) error {
	type key struct {
		task     sched.ID
		takeable bool
	}
	found := map[key]*ExposedTask{}
	judged := map[sched.ID]bool{}
	err := l.inTurns(ctx, len(profiles), func(b *book, i int) {
		s, in := b.spaces[ns], profiles[i]
		now := sched.Time(l.now().UnixMilli())
		before := map[sched.ID]sched.Verdict{}
		for _, v := range s.core.ExplainTasks(in, running, now) {
			before[v.Task] = v
			judged[v.Task] = true
		}
		for _, v := range s.core.Under(draft).ExplainTasks(in, running, now) {
			was := before[v.Task]
			if was.Eligible == v.Eligible {
				continue
			}
			k := key{v.Task, v.Eligible}
			if found[k] == nil {
				found[k] = &ExposedTask{TaskID: v.TaskName, Pool: v.Pool, Priority: v.Priority, Takeable: v.Eligible, By: in.Name, ByPool: in.Pool, Active: was.Message, Draft: v.Message}
			}
			found[k].ByCount++
		}
	})
	out.Judged, out.Profiles = len(judged), len(profiles)
	for _, x := range found {
		if x.Takeable {
			out.Takeable++
		} else {
			out.Protected++
		}
		out.Items = append(out.Items, *x)
	}
	slices.SortFunc(out.Items, func(a, b ExposedTask) int {
		if a.Takeable != b.Takeable {
			if a.Takeable {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.ByCount, a.ByCount), cmp.Compare(a.TaskID, b.TaskID))
	})
	out.Items = out.Items[:min(len(out.Items), limit)]
	return err
}

// inTurns runs n steps on the book. After a turn the lane goes on with what waits for it.
func (l *Ledger) inTurns(ctx context.Context, n int, step func(b *book, i int)) error {
	for i := 0; i < n; {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := l.lane.look(ctx, func(b *book) {
			for began, first := time.Now(), true; i < n && (first || time.Since(began) < turn); i, first = i+1, false {
				step(b, i)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}
