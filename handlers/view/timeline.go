package view

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/web"
)

// timeline is what happened to a task, newest first, with how long each step lasted.
func timeline(t ledger.TaskReport, now time.Time) []web.Step {
	var out []web.Step
	if len(t.Events) > 0 && t.Kind == ledger.KindTask {
		s := web.Step{At: t.SubmittedAt, Title: web.Line{web.Strong("Submitted")}, Took: t.Events[0].At.Sub(t.SubmittedAt)}
		if t.Actor != "" {
			s.Title = append(s.Title, web.Text(" by "+t.Actor))
		}
		out = append(out, s)
	}
	for i, e := range t.Events {
		s := step(e, t)
		switch {
		case i+1 < len(t.Events):
			s.Took = t.Events[i+1].At.Sub(e.At)
		case t.State.Live():
			s.Took = -1
		}
		out = append(out, s)
	}
	slices.Reverse(out)
	return out
}

// step is one event as a line of a timeline.
func step(e ledger.Event, t ledger.TaskReport) web.Step {
	s := web.Step{At: e.At, Title: web.Line{web.Strong(title(e.Type))}}
	by := func() {
		if e.Actor != "" {
			s.Title = append(s.Title, web.Text(" by "+e.Actor))
		}
	}
	switch e.Type {
	case string(ledger.Queued):
		if e.Code == "preempted" || e.Code == "restored" || e.Code == "preemptor_failed" || strings.HasPrefix(e.Message, "Queued again") {
			s.Title, s.Tone = web.Line{web.Strong("Queued again")}, "warn"
			by()
		}
		s.Detail = web.Say(plain(afterColon(e.Message)))
	case string(ledger.Reserved):
		s.Title = append(s.Title, web.Text(" "+resources(t.Request).String()+" in "), web.PoolRef(e.Pool))
		s.Detail = web.Say(seat(e.Detail))
		if s.Detail != nil && len(t.Handovers) > 0 {
			s.Detail = append(s.Detail, web.Text(" · "))
		}
		for _, h := range t.Handovers {
			if h.PreemptorUID == t.UID && h.PreemptorAttempt == e.Attempt && h.DecidedAt.Equal(e.At) {
				s.Detail = append(s.Detail, web.TaskRef(h.VictimTask), web.Text(" makes way for it · "), web.Part{Text: "why", Preemption: number(h.ID)}, web.Text(" "))
			}
		}
	case string(ledger.Launching):
		s.Title = append(s.Title, web.Text(" "+afterWord(e.Message)))
	case string(ledger.Running):
		s.Tone = "ok"
		if e.Code != "" { // a preemption that was put back
			s.Title, s.Detail = web.Line{web.Strong("Goes on running")}, web.Say(afterColon(e.Message))
			break
		}
		var r running
		_ = json.Unmarshal(e.Detail, &r)
		if r.Node != "" {
			s.Title = append(s.Title, web.Text(" on node "), web.Code(nodeWords(r.Node)))
		}
		var more []string
		if e.Attempt > 1 {
			more = append(more, "attempt "+web.Number(e.Attempt))
		}
		if r.Warm {
			more = append(more, "warm worker")
		}
		if r.LaunchMS > 0 {
			more = append(more, "its agent came up in "+web.Duration(time.Duration(r.LaunchMS*float64(time.Millisecond))))
		}
		s.Detail = web.Say(strings.Join(more, " · "))
	case string(ledger.Preempting):
		s.Tone = "warn"
		p := preemptionAt(t, e)
		if p == nil || p.PreemptorTask == "" {
			s.Title = web.Line{web.Strong("Preempted by hand")}
			by()
			break
		}
		s.Title = web.Line{web.Strong("Makes way"), web.Text(" for "), web.TaskRef(p.PreemptorTask)}
		if x, ok := explained(e.Detail); ok {
			s.Detail = append(x.line(), web.Text(" · "), web.Part{Text: "why", Preemption: number(p.ID)})
		}
	case "phase:cancelling", "phase:saving", "phase:killing":
		if e.Code != "" {
			s.Tone, s.Detail = "warn", web.Say(afterColon(strings.Replace(e.Message, ";", ":", 1)))
		}
	case string(ledger.Preempted):
		s.Tone = "warn"
		if by, found := strings.CutPrefix(afterColon(e.Message), "preempted by "); !found {
			s.Detail = web.Say(afterColon(e.Message))
		} else if by != "hand" {
			s.Title = append(s.Title, web.Text(" by "), web.TaskRef(by))
		}
	case "registered":
		by()
		s.Detail = web.Say(afterWord(e.Message))
	case string(ledger.Completed):
		s.Tone = "ok"
		by()
		s.Detail = web.Say(afterColon(e.Message))
	case string(ledger.Failed), "attempt_failed":
		s.Tone = "bad"
		s.Detail = web.Say(afterColon(e.Message))
	case string(ledger.Cancelled):
		by()
		if r := afterColon(e.Message); r != "by "+e.Actor {
			s.Detail = web.Say(r)
		}
	case "pg.lost":
		s.Tone, s.Title = "bad", web.Line{web.Strong("Placement group lost")}
		s.Detail = web.Say(afterColon(e.Message))
	case string(ledger.Stopping):
		s.Detail = web.Say(e.Message)
		by()
	default:
		by()
		s.Detail = web.Say(e.Message)
	}
	return s
}

// title is the word for a kind of event.
func title(kind string) string {
	switch kind {
	case "phase:cancelling":
		return "Told to stop"
	case "phase:saving":
		return "Saving its state"
	case "phase:killing":
		return "Stopping its agent"
	case "attempt_failed":
		return "An attempt failed"
	case "agent.detached":
		return "Agent kept"
	}
	s := strings.NewReplacer(".", " ", "_", " ", ":", " ").Replace(kind)
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// preemptionAt finds the record that an event of a victim is about.
func preemptionAt(t ledger.TaskReport, e ledger.Event) *ledger.Preemption {
	for i, h := range t.Handovers {
		if h.VictimUID == t.UID && h.VictimAttempt == e.Attempt && h.DecidedAt.Equal(e.At) {
			return &t.Handovers[i]
		}
	}
	return nil
}

// afterColon is what a message says beyond its first words, which the title says.
func afterColon(s string) string {
	_, rest, _ := strings.Cut(s, ": ")
	return rest
}

func afterWord(s string) string {
	_, rest, _ := strings.Cut(s, " ")
	return rest
}
