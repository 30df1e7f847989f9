package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// codeUnhealthy is the code of what was ended because it did not answer, or did not come
// up, and is made again when it was seen gone.
const codeUnhealthy = "unhealthy"

// deadFor is how long an agent that died by itself is offered to be made again.
const deadFor = 24 * time.Hour

// Health is how the agents of a namespace are. Names only, but for the sick.
type Health struct {
	Checked                   int
	Healthy, Starting, Ending []string
	Unhealthy                 []SickAgent
	Removed, Recreated        []string
}

// SickAgent is an agent that does not do what it should.
type SickAgent struct {
	Name, State, Code, Reason string
}

// Unhealthy removes an agent that does not answer, or does not come up. With again it is
// made again once it was seen gone: a submission as after a failed attempt, whatever its
// on_failure says, an agent that waits for work as it was.
func (l *Ledger) Unhealthy(ctx context.Context, uid sched.ID, attempt int, reason, actor string, again bool) error {
	return l.report(ctx, uid, func(b *batch) error {
		r, err := b.find(uid, attempt)
		if err != nil {
			return err
		}
		if r.state != Running && r.state != Launching && r.state != Reserved || len(r.victims) > 0 {
			return refuse(ErrWrongState, "the agent is %s", r.state)
		}
		ending := Failed
		if !again {
			ending = Cancelled
		}
		b.stopping(r, ending, codeUnhealthy, reason, actor)
		return nil
	})
}

// DeadAgent is an agent that ended by itself and that nobody has replaced.
type DeadAgent struct {
	SickAgent
	UID  sched.ID
	Pool string
}

// DeadAgents lists those of the last day.
func (l *Ledger) DeadAgents(ctx context.Context, ns string) ([]DeadAgent, error) {
	rows, err := l.q.DeadAgents(ctx, dbgen.DeadAgentsParams{Namespace: ns, Since: l.now().Add(-deadFor), Codes: dead[:]})
	if err != nil {
		return nil, l.lane.outward(err)
	}
	var out []DeadAgent
	for _, r := range rows {
		out = append(out, DeadAgent{SickAgent{r.AgentName, string(Failed), r.Code, r.Reason}, r.Uid.Bytes, r.PoolName})
	}
	return out, nil
}

var dead = [...]string{"agent_died", "node_lost", codeUnhealthy}

// Recreate makes an agent that ended by itself again: a submission waits in line as after
// a failed attempt, an agent that waits for work needs room now.
func (l *Ledger) Recreate(ctx context.Context, ns string, d DeadAgent, actor string) error {
	return l.find(ctx, &call{plan: poolOf(ns, d.Pool), do: func(b *batch) error {
		rows, err := l.reread(ctx, []sched.ID{d.UID}) // under the pool's lock, so what is read is what is
		if err != nil {
			return err
		}
		if len(rows) == 0 || rows[0].pool == nil {
			return refuse(ErrUnknownPool, "pool %q of agent %q is gone", d.Pool, d.Name)
		}
		r := rows[0]
		if r.state != Failed || r.space.tasks[r.taskID] != nil && r.kind == KindTask || r.space.agents[r.agentName] != nil {
			return refuse(ErrWrongState, "agent %q is there again", d.Name)
		}
		if r.kind == KindTask {
			b.adopt(r)
			b.change(r, func(r *row) {
				r.state, r.ended, r.queued = Queued, time.Time{}, b.now
				r.failures++
				r.code, r.reason = d.Code, d.Reason
			})
			b.event(r, string(Queued), actor, codeUnhealthy, "Queued again, its agent is to be made again: "+d.Reason, nil)
			b.freed(r.pool)
			return nil
		}
		return b.makeAgain(r, d.Reason, actor, func() { b.adopt(r) })
	}}, l.wherePool(ctx, ns, d.Pool))
}

// makeAgain launches an agent that waits for work anew, under its name. It had its room
// before anybody who stands in line. Nothing is changed when it is refused.
func (b *batch) makeAgain(r *row, why, actor string, begin func()) error {
	if r.pool.hold.on() {
		return refuse(ErrPoolHeld, "%s", r.pool.hold.sentence("pool "+r.pool.name))
	}
	d := b.decide(r)
	if d.Outcome != sched.Admit {
		return refusal(d)
	}
	begin()
	b.change(r, func(r *row) {
		r.state, r.ending, r.ended, r.queued = Reserved, "", time.Time{}, b.now
		r.attempt++
		b.prepare(r, d.Node)
	})
	b.sit(r, d.Node)
	b.event(r, "recreated", actor, codeUnhealthy, "Made again: "+why, nil)
	b.grant(r, d, nil, actor)
	return nil
}

// remake ends the removal of an unhealthy agent that waits for work.
func (b *batch) remake(r *row, message string) {
	if err := b.makeAgain(r, message, "", func() {}); err != nil {
		b.finish(r, Failed, codeUnhealthy, fmt.Sprintf("%s; it could not be made again: %v", message, err))
	}
}
