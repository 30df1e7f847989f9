package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// What the agents package asks and reports. Every report names the attempt it is
// about: a report on an attempt that is over is refused with wrong_state and
// changes nothing.

// Launching notes that an agent takes a while to come up.
func (l *Ledger) Launching(ctx context.Context, uid sched.ID, attempt int) error {
	return l.report(ctx, uid, func(b *batch) error { return b.launching(uid, attempt) })
}

// Started commits a reservation: the agent is ready.
func (l *Ledger) Started(ctx context.Context, uid sched.ID, attempt int, s Started) error {
	return l.report(ctx, uid, func(b *batch) error { return b.ready(uid, attempt, s) })
}

// LaunchFailed releases a reservation whose agent did not come up; victims it took come back.
func (l *Ledger) LaunchFailed(ctx context.Context, uid sched.ID, attempt int, code, message string) error {
	revive, plan, err := l.revivals(ctx, uid)
	if err != nil {
		return l.lane.outward(err)
	}
	return l.lane.submit(ctx, &call{plan: plan, do: func(b *batch) error {
		rows, err := l.reread(ctx, revive)
		if err != nil {
			return err
		}
		return b.launchFailed(uid, attempt, code, message, rows)
	}})
}

// Gone says that the agent of a stopping or preempting row was seen gone.
func (l *Ledger) Gone(ctx context.Context, uid sched.ID, attempt int) error {
	revive, plan, err := l.revivals(ctx, uid)
	if err != nil {
		return l.lane.outward(err)
	}
	return l.lane.submit(ctx, &call{plan: plan, do: func(b *batch) error {
		var rows []*row
		if r := b.rows[uid]; r != nil && r.state == Stopping && r.started.IsZero() {
			if rows, err = l.reread(ctx, revive); err != nil {
				return err
			}
		}
		return b.gone(uid, attempt, rows)
	}})
}

// revivals are the tasks an attempt took, which come back if it cannot run, and the
// plan that locks their pools too.
func (l *Ledger) revivals(ctx context.Context, uid sched.ID) ([]sched.ID, func(*book) []*pool, error) {
	attempt := 0
	if err := l.lane.look(ctx, func(b *book) {
		if r := b.rows[uid]; r != nil && r.started.IsZero() && r.state != Preempting {
			attempt = r.attempt
		}
	}); err != nil {
		return nil, nil, err
	}
	if attempt == 0 {
		return nil, uidOf(uid), nil
	}
	// Asked of the database, not of the book: another server may have seen them go.
	handed, err := l.q.HandedOver(ctx, dbgen.HandedOverParams{PreemptorUid: pgUUID(uid), Attempt: int32(attempt)})
	if err != nil || len(handed) == 0 {
		return nil, uidOf(uid), err
	}
	took := make([]sched.ID, len(handed))
	for i, h := range handed {
		took[i] = h.VictimUid.Bytes
	}
	found, err := l.q.TasksByUID(ctx, pgUUIDs(took))
	if err != nil {
		return nil, nil, err
	}
	plan := func(b *book) []*pool {
		out := rowPools(b, b.rows[uid])
		for _, t := range found {
			if t.PoolID != nil {
				out = append(out, b.pools[*t.PoolID])
			}
		}
		return out
	}
	return took, plan, nil
}

// EntryDone says that a task's entry returned or raised.
func (l *Ledger) EntryDone(ctx context.Context, uid sched.ID, attempt int, failed bool, message string, result json.RawMessage, cancelled bool) error {
	return l.report(ctx, uid, func(b *batch) error { return b.entryDone(uid, attempt, failed, message, result, cancelled) })
}

// AgentDied says that a running agent ended and nobody had asked for it. The code is
// agent_died, or node_lost when its machine is gone.
func (l *Ledger) AgentDied(ctx context.Context, uid sched.ID, attempt int, code, reason string) error {
	return l.report(ctx, uid, func(b *batch) error { return b.agentDied(uid, attempt, code, reason) })
}

// TakePhase persists that the next phase of a handover begins.
func (l *Ledger) TakePhase(ctx context.Context, uid sched.ID, attempt int, rep TakeReport) error {
	return l.report(ctx, uid, func(b *batch) error {
		if r := b.rows[uid]; r != nil && r.taking != nil && r.taking.holder != uid {
			return b.takePhaseByHand(r, attempt, rep)
		}
		return b.takePhase(uid, attempt, rep)
	})
}

// HandDone ends a preemption by hand: cancelled and saved, the agent stays.
func (l *Ledger) HandDone(ctx context.Context, uid sched.ID, attempt int, saved SaveOutcome) error {
	return l.report(ctx, uid, func(b *batch) error { return b.handDone(uid, attempt, saved) })
}

// Undo puts everything back while no cancel was sent yet: the victims of the
// preemptor that takes this agent go on, and the preemptor fails with the reason
// or waits in line. It reports false when it is too late for that.
func (l *Ledger) Undo(ctx context.Context, victim sched.ID, code, reason string) (bool, error) {
	undone := false
	err := l.lane.submit(ctx, &call{
		plan: func(b *book) []*pool {
			h := b.rows[victim]
			if h == nil || h.taking == nil {
				return nil
			}
			return append(rowPools(b, h), rowPools(b, b.rows[h.taking.by])...)
		},
		do: func(b *batch) error {
			undone = false
			h := b.rows[victim]
			if h == nil || h.taking == nil {
				undone = true // somebody else undid it
				return nil
			}
			p := b.rows[h.taking.by]
			if p == nil || p.state != Reserved {
				return nil
			}
			members := b.waitingWith(p)
			for _, m := range members {
				b.need(m.pool)
				if m.state != Reserved || m.pool != p.pool {
					return nil // what is lent to several pools, or wanted less by now, only goes forward
				}
			}
			if undone = b.undo(p, reason); !undone {
				return nil
			}
			for _, m := range members {
				b.release(m)
				if m.onInsufficient == Queue {
					b.requeue(m, code, reason)
				} else {
					b.finish(m, Failed, code, reason)
				}
			}
			if p.onInsufficient == Queue {
				b.drain = nil // not at once: the reason has not gone away
			}
			return nil
		},
	})
	return undone, err
}

func (l *Ledger) report(ctx context.Context, uid sched.ID, do func(*batch) error) error {
	return l.find(ctx, &call{plan: uidOf(uid), do: func(b *batch) error {
		b.need(rowPools(b.book, b.rows[uid])...)
		return do(b)
	}}, func() (int64, error) { return l.q.LiveRowPool(ctx, pgUUID(uid)) })
}

// takePhaseByHand is takePhase for a preemption by hand, where the task, not the agent, moves.
func (b *batch) takePhaseByHand(r *row, attempt int, rep TakeReport) error {
	if r.attempt != attempt || r.state != Preempting {
		return refuse(ErrWrongState, "the task is not being preempted")
	}
	return b.advance(r, rep)
}

// SetNodes says which machines a cluster has: Room is what agents of ours may use
// of each, that is its total less what others use.
func (l *Ledger) SetNodes(ctx context.Context, cluster string, nodes []sched.Node) error {
	l.shareNodes(ctx, cluster, nodes)
	return l.lane.submit(ctx, &call{
		whole: true,
		plan:  queuesOf(cluster),
		do: func(b *batch) error {
			if err := l.lane.loadHolds(ctx, l.q); err != nil { // another server may have held some
				return err
			}
			b.setNodes(cluster, nodes)
			b.freedOn(cluster)
			return nil
		},
	})
}

// LaunchDetails is what a launch needs beyond its job.
type LaunchDetails struct {
	Spec       Spec
	SavedState json.RawMessage
}

// Details reads the spec, pickle included, and the saved state of a task.
func (l *Ledger) Details(ctx context.Context, uid sched.ID) (LaunchDetails, error) {
	row, err := l.q.TaskPickle(ctx, pgUUID(uid))
	if err != nil {
		return LaunchDetails{}, l.lane.outward(err)
	}
	d := LaunchDetails{SavedState: row.SavedState}
	if err := json.Unmarshal(row.Spec, &d.Spec); err != nil {
		return d, err
	}
	d.Spec.Pickled = row.Pickled
	return d, nil
}

// Holding is a live row that has, or is about to have, an agent.
type Holding struct {
	UID       sched.ID
	Attempt   int
	LaunchID  string
	State     State
	Waits     bool // for victims: nothing of it can exist yet
	Cluster   string
	TaskID    string
	AgentName string
	Node      string
	HasEntry  bool
	Namespace string
	Pool      string
	Code      string
	Reason    string
	// Since is when it got its quota, as far as this server knows, else when it was asked for.
	Since time.Time
}

// Holdings lists what the ledger believes to exist in a cluster, to compare with what does.
func (l *Ledger) Holdings(ctx context.Context, cluster string) ([]Holding, error) {
	return l.holdings(ctx, func(p *pool) bool { return p.cluster == cluster })
}

// HoldingsIn lists those of a namespace.
func (l *Ledger) HoldingsIn(ctx context.Context, cluster, ns string) ([]Holding, error) {
	return l.holdings(ctx, func(p *pool) bool { return p.cluster == cluster && p.space.name == ns })
}

func (l *Ledger) holdings(ctx context.Context, of func(*pool) bool) ([]Holding, error) {
	var pools []int64
	err := l.lane.look(ctx, func(b *book) {
		for id, p := range b.pools {
			if of(p) {
				pools = append(pools, id)
			}
		}
	})
	var out []Holding
	for _, id := range pools { // one by one: admissions go on in between
		if err != nil {
			return nil, err
		}
		err = l.lane.look(ctx, func(b *book) {
			if p := b.pools[id]; p != nil {
				for _, r := range p.rows {
					if r.onAgent() {
						out = append(out, r.holding())
					}
				}
			}
		})
	}
	return out, err
}

func (r *row) holding() Holding {
	since := r.submitted
	if r.queued.After(since) {
		since = r.queued
	}
	if r.granted != 0 {
		since = time.UnixMilli(int64(r.granted)).UTC()
	}
	return Holding{UID: r.uid, Attempt: r.attempt, LaunchID: r.launchID, State: r.state, Cluster: r.pool.cluster, Waits: len(r.victims) > 0,
		TaskID: r.taskID, AgentName: r.agentName, Node: string(r.node), HasEntry: r.hasEntry && r.kind == KindTask, Namespace: r.space.name, Pool: r.poolName, Code: r.code, Reason: r.reason, Since: since}
}

// ByLaunch finds the live row that holds the agent of a launch.
func (l *Ledger) ByLaunch(ctx context.Context, launchID string) (h Holding, ok bool, err error) {
	err = l.lane.look(ctx, func(b *book) {
		if r := b.launched(launchID); r != nil && r.pool != nil {
			h, ok = r.holding(), true
		}
	})
	return h, ok, err
}

// Work gives the jobs of all rows that need somebody. Jobs are also announced when they
// arise: asking finds those that were lost on the way, or left by a server that died.
func (l *Ledger) Work(ctx context.Context) ([]Job, error) {
	var jobs []Job
	err := l.lane.look(ctx, func(b *book) {
		for _, r := range b.working {
			jobs = append(jobs, b.jobOf(r)...)
		}
		jobs = append(jobs, b.groupWork()...)
	})
	slices.SortFunc(jobs, func(x, y Job) int { return bytes.Compare(x.UID[:], y.UID[:]) })
	return jobs, err
}

// jobOf says what a row in a working state needs done.
func (b *book) jobOf(r *row) []Job {
	j := Job{UID: r.uid, Attempt: r.attempt, LaunchID: r.launchID, Pool: r.poolName, Namespace: r.space.name, TaskID: r.taskID, AgentName: r.agentName}
	j.Cluster = r.cluster()
	switch {
	case (r.state == Reserved || r.state == Launching) && len(r.victims) == 0:
		j.Kind, j.Labels, j.Request, j.Node, j.Timeout = JobLaunch, r.labels, r.request, r.node, r.launch
		j.Group = r.jobGroup()
	case r.state == Stopping && len(r.victims) == 0:
		j.Kind = JobStop
	case r.state == Preempting && r.taking != nil && (r.taking.holder != r.uid || r.pool == nil) && r.kind != KindAgent && r.taking.byHand():
		j.Kind, j.Phase, j.KeepAgent = JobTake, r.taking.phase, true
		j.Tasks = []JobTask{{UID: r.uid, TaskID: r.taskID, Pool: r.poolName}}
		if h := b.rows[r.taking.holder]; h != nil {
			j.LaunchID = h.launchID // none when the agent is not ours
		}
	case r.state == Preempting && r.taking != nil && r.taking.holder == r.uid:
		j.Kind, j.Phase = JobTake, r.taking.phase
		for _, id := range r.taking.tasks {
			if t := b.rows[id]; t != nil {
				j.Tasks = append(j.Tasks, JobTask{UID: t.uid, TaskID: t.taskID, Pool: t.poolName})
			}
		}
	default:
		return nil
	}
	if j.Kind == JobTake {
		p := r.space.core.Policy()
		j.CancelTimeout, j.SaveTimeout = p.CancelTimeout.Duration(), p.SaveTimeout.Duration()
		if r.space.state == spaceClosing && r.taking.holder == r.uid { // nobody waits for its state
			return []Job{j, {Kind: JobStop, UID: r.uid, Attempt: r.attempt, LaunchID: r.launchID, Namespace: r.space.name, Pool: r.poolName, Cluster: j.Cluster, TaskID: r.taskID}}
		}
	}
	return []Job{j}
}

// Deployment identifies this database to Ray clusters.
func (l *Ledger) Deployment(ctx context.Context) (string, error) {
	id, err := l.q.Deployment(ctx)
	if err != nil {
		return "", l.lane.outward(err)
	}
	return uuidString(id.Bytes), nil
}

func pgUUIDs(ids []sched.ID) []pgtype.UUID {
	out := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		out[i] = pgUUID(id)
	}
	return out
}

// LaunchOf gives what the bridge knows a task's latest agent by, "" when it never
// had one, and whether the task is live.
func (l *Ledger) LaunchOf(ctx context.Context, ns, taskID string) (launchID string, live bool, err error) {
	row, err := l.q.TaskByID(ctx, dbgen.TaskByIDParams{Namespace: ns, TaskID: &taskID})
	if errors.Is(err, pgx.ErrNoRows) {
		return "", false, refuse(ErrUnknownTask, "there is no task %q in namespace %q", taskID, ns)
	}
	if err != nil {
		return "", false, l.lane.outward(err)
	}
	return row.Task.LaunchID, State(row.Task.State).Live(), nil
}
