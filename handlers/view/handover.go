package view

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/web"
)

// explanation is how a score is made up, as the ledger writes it down.
type explanation struct {
	Rule      string  `json:"rule"`
	Delta     float64 `json:"delta_priority"`
	Base      float64 `json:"score_base"`
	Kappa     float64 `json:"remaining_time_weight"`
	Remaining float64 `json:"remaining_seconds"`
	Score     float64 `json:"score"`
	LabelKey  string  `json:"label_key"`
	LabelBy   string  `json:"label_by"`
	LabelOver string  `json:"label_over"`
}

func explained(raw json.RawMessage) (explanation, bool) {
	var e explanation
	return e, len(raw) > 0 && json.Unmarshal(raw, &e) == nil
}

// rule says which rule applied.
func (e explanation) rule() string {
	switch {
	case e.Rule == "label_based_preemption" && e.LabelKey != "":
		return "label rule " + e.LabelKey + ": " + e.LabelBy + " ≻ " + e.LabelOver
	case e.Rule == "cross_pool_preemption":
		return "priority, across pools"
	case e.Rule == "same_pool_preemption":
		return "priority, same pool"
	}
	return e.Rule
}

// line says the rule and the score in one sentence.
func (e explanation) line() web.Line {
	base := "Δ priority " + web.Decimal(e.Delta)
	if e.Base != e.Delta {
		base += " → " + web.Decimal(e.Base)
	}
	if e.Remaining > 0 {
		left := time.Duration(e.Remaining * float64(time.Second))
		base += " + " + strconv.FormatFloat(e.Kappa, 'f', -1, 64) + " × " + web.Duration(left) + " left"
	}
	return web.Line{web.Text(e.rule() + " · " + base + " = "), web.Strong(web.Decimal(e.Score))}
}

// phasesOf is what a handover of one or several agents cost, phase by phase: each
// ends when the last of them is through it. now ends the one that goes on.
func phasesOf(ps []ledger.Preemption, byHand bool) []web.Phase {
	last := func(at func(ledger.Preemption) time.Time) (t time.Time, all bool) {
		all = true
		for _, p := range ps {
			x := at(p)
			all = all && !x.IsZero()
			if x.After(t) {
				t = x
			}
		}
		return t, all
	}
	steps := []struct {
		name string
		at   func(ledger.Preemption) time.Time
		note func(ledger.Preemption) string
	}{
		{"decide", func(p ledger.Preemption) time.Time { return p.CancellingAt }, nil},
		{"cancel", func(p ledger.Preemption) time.Time { return p.CancelledAt }, func(p ledger.Preemption) string {
			if p.CancelSuccess != nil && !*p.CancelSuccess {
				return either(p.CancelError, "it did not stop when asked")
			}
			return ""
		}},
		{"save state", func(p ledger.Preemption) time.Time { return p.SavedAt }, func(p ledger.Preemption) string { return p.SaveError }},
		{"kill, seen gone", func(p ledger.Preemption) time.Time { return p.GoneAt }, nil},
		{"launch", func(p ledger.Preemption) time.Time { return p.RunningAt }, nil},
	}
	if byHand { // its agent stays
		steps = steps[:3]
	}
	from := ps[0].DecidedAt
	for _, p := range ps {
		if p.DecidedAt.Before(from) {
			from = p.DecidedAt
		}
	}
	var out []web.Phase
	for _, s := range steps {
		to, all := last(s.at)
		ph := web.Phase{Name: s.name, Took: to.Sub(from)}
		if s.note != nil {
			for _, p := range ps {
				if ph.Note = s.note(p); ph.Note != "" {
					break
				}
			}
		}
		if !all {
			ph.Took = -1
			return append(out, ph)
		}
		if to.After(from) {
			from = to
		}
		out = append(out, ph)
	}
	return out
}

func either(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// handoverPanel is what the last change of hands of a task cost: as the one that made
// way, or the one that was made way for, or else just its launch.
func handoverPanel(t ledger.TaskReport, now time.Time) *web.Handover {
	var latest *ledger.Preemption
	for i, h := range t.Handovers {
		if h.Phase != "undone" {
			latest = &t.Handovers[i]
			break
		}
	}
	launch := lastLaunch(t)
	if latest == nil || launch != nil && launch.attempt > latest.VictimAttempt && latest.VictimUID == t.UID {
		if launch == nil {
			return nil
		}
		return &web.Handover{Phases: launch.phases}
	}
	out := &web.Handover{Preemption: strconv.FormatInt(latest.ID, 10), Preemptor: latest.PreemptorTask}
	together := []ledger.Preemption{*latest}
	if latest.PreemptorUID == t.UID {
		together = nil
		for _, h := range t.Handovers {
			if h.PreemptorUID == t.UID && h.PreemptorAttempt == latest.PreemptorAttempt && h.Phase != "undone" {
				together = append(together, h)
				out.Victims = append(out.Victims, h.VictimTask)
			}
		}
	} else {
		out.Victims = []string{latest.VictimTask}
	}
	out.Phases = phasesOf(together, latest.PreemptorTask == "")
	if ended := latest.PreemptorUID == t.UID && !t.State.Live(); ended || latest.PreemptorUID != t.UID && latest.Phase == "gone" {
		out.Phases = dropOpen(out.Phases) // what never came is not going on
	}
	return out
}

func dropOpen(ps []web.Phase) []web.Phase {
	if n := len(ps); n > 0 && ps[n-1].Took < 0 {
		return ps[:n-1]
	}
	return ps
}

// launch is how an attempt came up.
type launch struct {
	attempt int
	phases  []web.Phase
}

// running is what the ledger notes of an agent that came up.
type running struct {
	Node      string  `json:"node"`
	PID       int     `json:"pid"`
	ActorName string  `json:"actor_name"`
	Warm      bool    `json:"warm_worker"`
	LaunchMS  float64 `json:"launch_ms"`
}

func lastLaunch(t ledger.TaskReport) *launch {
	var queued, reserved time.Time
	var out *launch
	for _, e := range t.Events {
		switch e.Type {
		case string(ledger.Queued):
			queued = e.At
		case string(ledger.Reserved):
			reserved = e.At
		case string(ledger.Running):
			if reserved.IsZero() {
				continue // goes on after a preemption was put back
			}
			out = &launch{attempt: e.Attempt}
			if !queued.IsZero() {
				out.phases = append(out.phases, web.Phase{Name: "wait in the queue", Took: reserved.Sub(queued)})
			}
			var r running
			_ = json.Unmarshal(e.Detail, &r)
			took, inRay := e.At.Sub(reserved), time.Duration(r.LaunchMS*float64(time.Millisecond))
			note := ""
			if r.Warm {
				note = "a warm worker was waiting"
			}
			if inRay > 0 && inRay < took {
				out.phases = append(out.phases, web.Phase{Name: "hand to Ray", Took: took - inRay}, web.Phase{Name: "start the agent", Took: inRay, Note: note})
			} else {
				out.phases = append(out.phases, web.Phase{Name: "launch", Took: took, Note: note})
			}
			queued, reserved = time.Time{}, time.Time{}
		}
	}
	return out
}
