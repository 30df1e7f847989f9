package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
)

// outlook is what a queued task is told. It is made for whoever asks, from what the
// book says now: what a row says of it is as old as the last time it was tried.
type outlook struct {
	position     int
	eta          time.Time // zero: cannot be known
	note         string    // what the ETA rests on, or why there is none
	code, reason string
}

func (o outlook) tell(t *Task) {
	t.QueuePosition, t.ETA, t.ETANote = o.position, o.eta, o.note
	if o.code != "" {
		t.Code, t.Reason = o.code, o.reason
	}
}

// outlooks are those of some rows that wait in one pool.
func (b *book) outlooks(p *pool, rows []*row, now time.Time) map[sched.ID]outlook {
	out := make(map[sched.ID]outlook, len(rows))
	last := 0
	for _, r := range rows {
		last = max(last, p.line.Position(r.uid))
	}
	var first outlook
	var starts []sched.Time
	head := b.head(p)
	if last > 0 {
		first = b.headsOutlook(head, now)
		starts = b.forecast(p, min(last, maxForecast), now)
	}
	for _, r := range rows {
		o := outlook{position: p.line.Position(r.uid)}
		switch {
		case o.position == 0:
			o.eta, o.note, o.code, o.reason = time.UnixMilli(int64(r.notBefore)).UTC(), "it is tried again then, if there is room", codeBackoff, r.reason
		case o.position == 1:
			o = first
		default:
			o.code, o.reason = codeBehind, "waits behind "+head.taskID
			if o.position > 2 {
				o.reason = fmt.Sprintf("waits behind %d tasks, the first of which is %s", o.position-1, head.taskID)
			}
			if first.reason != "" {
				o.reason += ", which " + first.reason
			}
			switch {
			case first.eta.IsZero():
				o.note = "it is not known when the first in line starts: " + first.note
			case o.position > maxForecast:
				o.note = fmt.Sprintf("more than %d wait in front of it", maxForecast)
			case starts[o.position-1] == 0:
				o.note = "those in front of it, or what runs, do not say how long they take"
			default:
				o.eta, o.note = time.UnixMilli(int64(starts[o.position-1])).UTC(), "if everything takes as long as estimated, and nobody comes with more priority"
				if o.eta.Before(first.eta) {
					o.eta = first.eta
				}
			}
		}
		out[r.uid] = o
	}
	return out
}

// whyNot is why the head of a line cannot start; nil when it can.
func (b *book) whyNot(head *row, now sched.Time) *sched.Refusal {
	if gang := b.inLine(head); len(gang) > 1 {
		if d := head.space.core.DecideGang(b.incomings(gang), now); d.Outcome == sched.Refuse {
			return &d.Refusal
		}
		return nil
	}
	if d := head.space.core.Decide(b.incoming(head), now); d.Outcome == sched.Refuse {
		return &d.Refusal
	}
	return nil
}

// headsOutlook is that of who is next.
func (b *book) headsOutlook(head *row, now time.Time) outlook {
	o := outlook{position: 1}
	p := head.pool
	if p.hold.on() {
		o.code, o.reason, o.note = codePoolHeld, p.hold.sentence("pool "+p.name), "nothing starts until the pool is resumed"
		return o
	}
	refusal := b.whyNot(head, timeOf(now))
	if refusal == nil {
		o.eta, o.note = now.UTC(), "it is about to start"
		return o
	}
	o.code, o.reason = string(refusal.Code), refusal.Message
	kept := b.reserve(head, now)
	if !kept.Known {
		o.note = "what runs does not say when it ends"
		return o
	}
	o.eta, o.note = time.UnixMilli(int64(kept.At)).UTC(), "if what runs takes as long as estimated"
	return o
}

func (b *book) forecast(p *pool, n int, now time.Time) []sched.Time {
	line := make([]sched.Expected, 0, n)
	for id := range p.line.All() {
		if len(line) == n {
			break
		}
		r := b.rows[id]
		line = append(line, sched.Expected{Request: r.request, Duration: r.runs()})
	}
	return sched.Forecast(p.free(), b.endsOf(p), line, timeOf(now))
}

// tellWaiting completes tasks that wait.
func (l *Ledger) tellWaiting(ctx context.Context, tasks []Task) error {
	waiting := false
	for _, t := range tasks {
		waiting = waiting || t.State == Queued
	}
	if !waiting {
		return nil
	}
	return l.lane.look(ctx, func(b *book) {
		rows := map[*pool][]*row{}
		for _, t := range tasks {
			if r := b.rows[t.UID]; r != nil && r.state == Queued && r.pool != nil {
				rows[r.pool] = append(rows[r.pool], r)
			}
		}
		told := map[sched.ID]outlook{}
		for p, these := range rows {
			for id, o := range b.outlooks(p, these, l.now()) {
				told[id] = o
			}
		}
		for i := range tasks {
			if o, ok := told[tasks[i].UID]; ok && tasks[i].State == Queued {
				o.tell(&tasks[i])
			}
		}
	})
}
