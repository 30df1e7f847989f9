package web

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// BacktestForm asks for a replay of history under a draft of the policy.
type BacktestForm struct {
	Draft string // fields of the policy that would be different, as YAML or JSON
	Last  string // how far back, as people write it

	Errors  Errors
	Version int // the active policy's
}

// BacktestFields are the names of BacktestForm's fields.
var BacktestFields = []string{"draft", "last"}

// ReadBacktestForm takes what was posted.
func ReadBacktestForm(v url.Values) BacktestForm {
	return BacktestForm{Draft: strings.TrimRight(v.Get("draft"), " \r\n"), Last: strings.TrimSpace(v.Get("last"))}
}

// BacktestRequest is what a BacktestForm says once it parses.
type BacktestRequest struct {
	Draft json.RawMessage
	Last  time.Duration
}

// Parse checks and converts the form.
func (f BacktestForm) Parse() (BacktestRequest, Errors) {
	e := Errors{}
	r := BacktestRequest{Draft: draftFields(e, "draft", f.Draft), Last: 24 * time.Hour}
	if r.Draft == nil {
		e.Add("draft", "Say what would be different, for example cross_pool_priority_threshold: 4.")
	}
	if f.Last != "" {
		if r.Last = length(e, "last", f.Last); r.Last == 0 {
			e.Add("last", "It must be more than nothing; write 24 h or 7 d.")
		}
	}
	return r, e
}

// Backtest is one that was begun.
type Backtest struct {
	ID        string
	Form      BacktestForm
	Running   bool
	Tasks, Of int       // submissions replayed so far
	Simulated time.Time // where in time that is
	Problem   string    // why it ended without a result
	Result    *BacktestResult
}

// Percent is how far it is.
func (b Backtest) Percent() float64 {
	if b.Of == 0 {
		return 0
	}
	return min(99, float64(b.Tasks)*100/float64(b.Of))
}

// BacktestResult is the same history under two policies.
type BacktestResult struct {
	Version  int // of the active policy
	Changes  []FieldChange
	Warnings []string
	From, To time.Time
	Took     time.Duration
	About    Line // what was replayed, and what was not
	Rows     []BacktestRow
	Waits    []WaitClass
	Waiting  [2]Series // tasks that wait, over time: active, draft
	Differ   []DiffersRow
	Differs  int // in all
}

// BacktestRow is a figure under both policies. Tone is ok or warn when the draft is better or worse.
type BacktestRow struct {
	Name          string
	Active, Draft string
	Change        string // "+39", "" for none
	Tone          string
}

// WaitClass is how long tasks of some priorities wait, under both policies.
type WaitClass struct {
	Name          string
	Tasks         int
	Active, Draft Waits
}

// Waits are percentiles of waiting times.
type Waits struct {
	P50, P95, Max time.Duration
	Still         int // never ran
}

// Tone is whether the draft makes waiting shorter or longer by a tenth, and a second, at least.
func (c WaitClass) Tone() string {
	switch d := c.Draft.P95 - c.Active.P95; {
	case d <= -time.Second && float64(-d) >= 0.1*float64(c.Active.P95):
		return "ok"
	case d >= time.Second && float64(d) >= 0.1*float64(c.Active.P95):
		return "warn"
	}
	return ""
}

func longestWait(cs []WaitClass) time.Duration {
	most := time.Duration(1)
	for _, c := range cs {
		most = max(most, c.Active.P95, c.Draft.P95)
	}
	return most
}

// Series is a figure over time.
type Series struct {
	Step   time.Duration
	Values []float64
}

// DiffersRow is a task that the draft would have preempted more or less often.
type DiffersRow struct {
	Task, Pool    string
	At            time.Time // in the replay
	Active, Draft string    // "never", "once, by x"
}

// line writes a series as the points of a polyline in a box of 520 × 100.
func (s Series) line(span time.Duration, most float64) string {
	var b strings.Builder
	for i, v := range s.Values {
		x := 0.0
		if span > 0 {
			x = 520 * float64(time.Duration(i)*s.Step) / float64(span)
		}
		fmt.Fprintf(&b, "%.1f,%.1f ", x, 108-100*v/most)
	}
	return b.String()
}

// extent is how long and how high some series are.
func extent(all [2]Series) (span time.Duration, most float64) {
	most = 1
	for _, s := range all {
		span = max(span, time.Duration(max(0, len(s.Values)-1))*s.Step)
		for _, v := range s.Values {
			most = max(most, v)
		}
	}
	return span, most
}
