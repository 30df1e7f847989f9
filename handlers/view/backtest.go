package view

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/sched/replay"
	"github.com/schedulemesh/schedulemesh/web"
)

const (
	backtestsKept   = 20                     // those that ended, the latest
	backtestDiffers = 20                     // tasks listed
	lookAway        = 20 * time.Second       // a backtest that nobody looks at ends
	quickBacktest   = 300 * time.Millisecond // is waited for: what is wrong with a form is said at once
)

// backtests are those begun from pages. They are in this server's memory: one that
// restarts forgets them.
type backtests struct {
	mu   sync.Mutex
	kept []*backtest // oldest first
}

type backtest struct {
	id, ns string
	form   web.BacktestForm
	cancel context.CancelFunc
	away   *time.Timer
	began  time.Time
	took   time.Duration
	done   chan struct{}

	mu       sync.Mutex
	progress ledger.BacktestProgress
	result   *ledger.BacktestResult
	err      error
}

// BeginBacktest starts one; its page asks how far it is.
func (v *View) BeginBacktest(ctx context.Context, ns string, f web.BacktestForm, r web.BacktestRequest) (string, error) {
	names, err := v.l.Namespaces(ctx)
	if err != nil {
		return "", v.refused(ctx, err)
	}
	if !slices.Contains(names, ns) { // asking must not make it
		return "", invalid("last", "There is nothing in this namespace yet, so there is nothing to replay.")
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b := &backtest{id: strings.ToLower(rand.Text()), ns: ns, form: f, cancel: cancel, began: time.Now(), done: make(chan struct{})}
	b.away = time.AfterFunc(lookAway, cancel)
	go func() {
		defer cancel()
		result, err := v.l.Backtest(run, ns, ledger.BacktestRequest{Draft: r.Draft, Last: r.Last, Limit: backtestDiffers}, func(p ledger.BacktestProgress) {
			b.mu.Lock()
			b.progress = p
			b.mu.Unlock()
		})
		b.mu.Lock()
		b.err, b.took = err, time.Since(b.began)
		if err == nil {
			b.result = &result
		}
		b.mu.Unlock()
		close(b.done)
	}()
	select {
	case <-b.done:
		if b.err != nil {
			return "", v.onDraft(ctx, b.err)
		}
	case <-time.After(quickBacktest):
	case <-ctx.Done():
		cancel()
		return "", ctx.Err()
	}
	v.tests.keep(b)
	return b.id, nil
}

// keep notes one, and forgets old ones that ended.
func (t *backtests) keep(b *backtest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b)
	for i := 0; len(t.kept) > backtestsKept && i < len(t.kept)-1; {
		select {
		case <-t.kept[i].done:
			t.kept = slices.Delete(t.kept, i, i+1)
		default:
			i++
		}
	}
}

func (t *backtests) find(ns, id string) *backtest {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range t.kept {
		if b.id == id && b.ns == ns {
			return b
		}
	}
	return nil
}

// Backtest says how far one is, or what came out. Being asked keeps it going.
func (v *View) Backtest(ctx context.Context, ns, id string) (web.Backtest, error) {
	b := v.tests.find(ns, id)
	if b == nil {
		return web.Backtest{}, &pages.Refusal{ErrorCode: "not_found", Message: "This backtest is not here: the server was started anew since, or forgot it. Begin it again."}
	}
	b.away.Reset(lookAway)
	b.mu.Lock()
	defer b.mu.Unlock()
	out := web.Backtest{ID: id, Form: b.form, Tasks: b.progress.Tasks, Of: b.progress.Of, Simulated: b.progress.Simulated}
	switch {
	case b.result != nil:
		out.Result = backtestResult(*b.result)
		out.Result.Took = b.took
	case b.err != nil:
		if out.Problem = "Nobody looked at it for a while, so it was ended. Begin it again."; ledger.CodeOf(b.err) != ledger.ErrInternal.Code {
			out.Problem = v.refused(ctx, b.err).Error()
		}
	default:
		out.Running = true
	}
	return out, nil
}

func backtestResult(r ledger.BacktestResult) *web.BacktestResult {
	a, d := r.Active, r.Draft
	out := &web.BacktestResult{Version: r.PolicyVersion, From: r.From, To: r.To, Differs: r.Different, About: replayed(r),
		Waiting: [2]web.Series{series(a.Timeline), series(d.Timeline)}}
	for _, c := range r.Changes {
		out.Changes = append(out.Changes, web.FieldChange(c))
	}
	for _, w := range r.Warnings {
		out.Warnings = append(out.Warnings, sentence(w))
	}
	// number adds a figure; less says whether less of it is better (1), worse (−1) or neither.
	number := func(name string, a, d int64, less int) {
		row := web.BacktestRow{Name: name, Active: web.Number(a), Draft: web.Number(d), Tone: tone(float64(d-a), less)}
		if d > a {
			row.Change = "+" + web.Number(d-a)
		} else if d < a {
			row.Change = "−" + web.Number(a-d)
		}
		out.Rows = append(out.Rows, row)
	}
	span := func(name string, a, d float64) {
		row := web.BacktestRow{Name: name, Active: taskTime(a), Draft: taskTime(d), Tone: tone(d-a, 1)}
		if d > a {
			row.Change = "+" + taskTime(d-a)
		} else if d < a {
			row.Change = "−" + taskTime(a-d)
		}
		out.Rows = append(out.Rows, row)
	}
	number("Preemptions", a.Preemptions.Total, d.Preemptions.Total, 0)
	number("… by label", a.Preemptions.Label, d.Preemptions.Label, 0)
	number("… in the same pool", a.Preemptions.SamePool, d.Preemptions.SamePool, 0)
	number("… across pools", a.Preemptions.CrossPool, d.Preemptions.CrossPool, 0)
	span("Work lost to them, task-time", a.WorkLostSeconds, d.WorkLostSeconds)
	span("Held while making way, task-time", a.HandoverSeconds, d.HandoverSeconds)
	number("Tasks done", a.Completed, d.Completed, -1)
	number("Preempted for good", a.Stopped, d.Stopped, 1)
	number("Refused", total(a.Refused), total(d.Refused), 1)
	number("Gave up waiting", a.TimedOut, d.TimedOut, 1)
	number("Waiting at once, at most", a.PeakWaiting, d.PeakWaiting, 1)
	out.Rows = append(out.Rows, web.BacktestRow{Name: "Fairness between pools, 0 to 1", Active: fmt.Sprintf("%.3f", a.Fairness), Draft: fmt.Sprintf("%.3f", d.Fairness), Tone: tone(float64(int(1000*d.Fairness)-int(1000*a.Fairness)), -1)})
	for i := range min(len(a.Waits), len(d.Waits)) {
		if a.Waits[i].Tasks+d.Waits[i].Tasks+a.Waits[i].StillWaiting+d.Waits[i].StillWaiting == 0 {
			continue
		}
		out.Waits = append(out.Waits, web.WaitClass{Name: classWords(a.Waits[i]), Tasks: int(max(a.Waits[i].Tasks, d.Waits[i].Tasks)), Active: waited(a.Waits[i]), Draft: waited(d.Waits[i])})
	}
	slices.Reverse(out.Waits) // who matters most comes first
	for _, x := range r.Differences {
		out.Differ = append(out.Differ, web.DiffersRow{Task: x.TaskID, Pool: x.Pool, At: x.At, Active: times(x.Active, x.ActiveBy), Draft: times(x.Draft, x.DraftBy)})
	}
	return out
}

func tone(change float64, less int) string {
	switch {
	case change == 0 || less == 0:
		return ""
	case (change < 0) == (less > 0):
		return "ok"
	}
	return "warn"
}

func total(by map[sched.Code]int64) (n int64) {
	for _, v := range by {
		n += v
	}
	return n
}

func taskTime(seconds float64) string {
	return web.Duration(time.Duration(seconds * float64(time.Second)))
}

func waited(w replay.Waits) web.Waits {
	d := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	return web.Waits{P50: d(w.P50), P95: d(w.P95), Max: d(w.Max), Still: int(w.StillWaiting)}
}

func classWords(w replay.Waits) string {
	switch {
	case w.From == nil && w.Below == nil:
		return "any"
	case w.From == nil:
		return "below " + w.Below.String()
	case w.Below == nil:
		return w.From.String() + " and more"
	}
	return w.From.String() + " to " + w.Below.String()
}

func series(t replay.Timeline) web.Series {
	return web.Series{Step: time.Duration(t.StepSeconds * float64(time.Second)), Values: t.Waiting}
}

func times(n int, by string) string {
	switch n {
	case 0:
		return "never"
	case 1:
		return "once, by " + by
	}
	return fmt.Sprintf("%s times, first by %s", web.Number(n), by)
}

// replayed says what was replayed, what was left out, and what the replay does not know.
func replayed(r ledger.BacktestResult) web.Line {
	s := web.Count(r.Tasks, "submission") + " replayed"
	if r.Guessed > 0 {
		s += ", " + web.Number(r.Guessed) + " of which had not ended by themselves: they run as long as they estimated"
	}
	s += "."
	if len(r.LeftOut) > 0 {
		var parts []string
		for _, why := range slices.SortedFunc(maps.Keys(r.LeftOut), func(a, b string) int { return cmp.Or(cmp.Compare(r.LeftOut[b], r.LeftOut[a]), cmp.Compare(a, b)) }) {
			words := map[string]string{"never_ran": "never ran, so nobody knows for how long they would have", "pool_gone": "were for pools that are gone"}[why]
			parts = append(parts, web.Number(r.LeftOut[why])+" "+either(words, why))
		}
		s += " Left out: " + strings.Join(parts, "; ") + "."
	}
	return web.Say(s + " Both start with the pools as they are now, nothing fails, and handovers take the usual time: compare the two with each other rather than with what happened.")
}
