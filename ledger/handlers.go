package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// maxHandler bounds a pickled handler, in bytes: it goes to the sidecar as base64, with what it is told.
const maxHandler = 32 << 20

// Handler is a pickled callable.
type Handler struct {
	Name    string // for people; never empty
	Pickled []byte // not read back by StateHandlers
}

// StateHandlers are what keeps the state of a pool's tasks when they make way, in place
// of what their agents would save, and what restores it when somebody asks. The pool
// need not be one of ours.
type StateHandlers struct {
	Pool      string
	Preserver *Handler // nil: none
	Restorer  *Handler
	UpdatedAt time.Time // zero when there are none
}

func (h *StateHandlers) check() error {
	if h.Pool == "" {
		return invalid("pool", "is missing")
	}
	if err := clean("pool", h.Pool, maxName); err != nil {
		return err
	}
	if h.Preserver == nil && h.Restorer == nil {
		return invalid("preserver", "is missing, and so is restorer: give at least one, or delete the pool's handlers")
	}
	for field, one := range map[string]*Handler{"preserver": h.Preserver, "restorer": h.Restorer} {
		if one == nil {
			continue
		}
		if one.Name == "" {
			one.Name = field
		}
		if err := clean(field+"_name", one.Name, maxName); err != nil {
			return err
		}
		if n := len(one.Pickled); n == 0 || n > maxHandler {
			return invalid(field, "has %d bytes: a pickled callable has 1 to %d; load large data from where it is instead of pickling it", n, maxHandler)
		}
	}
	return nil
}

// PutStateHandlers replaces both handlers of a pool.
func (l *Ledger) PutStateHandlers(ctx context.Context, ns string, h StateHandlers, actor string) (StateHandlers, error) {
	if err := h.check(); err != nil {
		return StateHandlers{}, err
	}
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return StateHandlers{}, err
	}
	p := dbgen.PutStateHandlersParams{NamespaceID: l.spaceID(ns), PoolName: h.Pool, UpdatedAt: l.now()}
	var are []string
	if h.Preserver != nil {
		p.Preserver, p.PreserverName = h.Preserver.Pickled, h.Preserver.Name
		are = append(are, "preserver "+h.Preserver.Name)
	}
	if h.Restorer != nil {
		p.Restorer, p.RestorerName = h.Restorer.Pickled, h.Restorer.Name
		are = append(are, "restorer "+h.Restorer.Name)
	}
	err := l.changeHandlers(ctx, p.NamespaceID, h.Pool, actor, "State of pool "+h.Pool+" is kept by "+strings.Join(are, " and "),
		func(q *dbgen.Queries) (bool, error) { return true, q.PutStateHandlers(ctx, p) })
	if err != nil {
		return StateHandlers{}, err
	}
	return l.StateHandlers(ctx, ns, h.Pool)
}

// DeleteStateHandlers removes the handlers of a pool; none is fine.
func (l *Ledger) DeleteStateHandlers(ctx context.Context, ns, pool, actor string) error {
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return err
	}
	id := l.spaceID(ns)
	return l.changeHandlers(ctx, id, pool, actor, "State of pool "+pool+" is kept by its agents again", func(q *dbgen.Queries) (bool, error) {
		n, err := q.DeleteStateHandlers(ctx, dbgen.DeleteStateHandlersParams{NamespaceID: id, PoolName: pool})
		return n > 0, err
	})
}

func (l *Ledger) changeHandlers(ctx context.Context, ns int64, pool, actor, said string, change func(*dbgen.Queries) (bool, error)) error {
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		q := dbgen.New(tx)
		changed, err := change(q)
		if err != nil || !changed {
			return err
		}
		// After the change: whoever clears the namespace now waits for it, or was first.
		if err := stillOpen(q.NamespaceState(ctx, ns)); err != nil {
			return err
		}
		return l.note(ctx, q, ns, "pool.handlers", pool, actor, said, 0)
	})
	if err != nil {
		return l.lane.outward(err)
	}
	l.feed.wake()
	return nil
}

// StateHandlers names the handlers of a pool; none when there are none.
func (l *Ledger) StateHandlers(ctx context.Context, ns, pool string) (StateHandlers, error) {
	out := StateHandlers{Pool: pool}
	row, err := l.q.StateHandlerNames(ctx, dbgen.StateHandlerNamesParams{Namespace: ns, PoolName: pool})
	if errors.Is(err, pgx.ErrNoRows) {
		return out, nil
	}
	if err != nil {
		return out, l.lane.outward(err)
	}
	out.UpdatedAt = row.UpdatedAt
	if row.PreserverName != "" {
		out.Preserver = &Handler{Name: row.PreserverName}
	}
	if row.RestorerName != "" {
		out.Restorer = &Handler{Name: row.RestorerName}
	}
	return out, nil
}

// TaskToSave is a task that makes way, and what its pool keeps its state with.
type TaskToSave struct {
	TaskID     string
	AgentName  string
	Pool       string
	Registered bool
	Priority   sched.Milli
	Labels     sched.Labels
	Estimate   time.Duration // 0 = none given
	StartedAt  time.Time     // of this attempt; zero when it never ran
	Attempt    int
	Node       string
	Preserver  *Handler // nil: none
	// Payload and RuntimeEnv are what came with the task, nil for nothing. Without a preserver only the
	// payload of registered tasks is read.
	Payload, RuntimeEnv json.RawMessage
}

// TaskToSave reads what is needed to save a task's state. Its pool's handlers are those of this moment.
func (l *Ledger) TaskToSave(ctx context.Context, uid sched.ID) (TaskToSave, error) {
	row, err := l.q.TaskToSave(ctx, pgUUID(uid))
	if errors.Is(err, pgx.ErrNoRows) {
		return TaskToSave{}, refuse(ErrUnknownTask, "no task has uid %s", uuidString(uid))
	}
	if err != nil {
		return TaskToSave{}, l.lane.outward(err)
	}
	t := TaskToSave{TaskID: row.TaskID, AgentName: row.AgentName, Pool: row.PoolName, Registered: Kind(row.Kind) == KindRegistered,
		Priority: sched.Milli(row.Priority), Labels: labelsOf(row.Labels), Estimate: ms(row.EstimateMs), StartedAt: orZero(row.StartedAt), Attempt: int(row.Attempt),
		Node: row.NodeID, Payload: notNull(row.Payload), RuntimeEnv: notNull(row.RuntimeEnv)}
	if row.Preserver != nil {
		t.Preserver = &Handler{Name: row.PreserverName, Pickled: row.Preserver}
	}
	return t, nil
}

// ToRestore is a restorer, and where and how the task ran whose state it is for.
type ToRestore struct {
	Handler
	Node       string
	RuntimeEnv json.RawMessage
}

// Restorer gives the restorer of a pool, nil when it has none.
func (l *Ledger) Restorer(ctx context.Context, ns, pool, taskID string) (*ToRestore, error) {
	row, err := l.q.Restorer(ctx, dbgen.RestorerParams{Namespace: ns, PoolName: pool, TaskID: taskID})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the restorer of pool %q: %w", pool, l.lane.outward(err))
	}
	return &ToRestore{Handler: Handler{Name: row.RestorerName, Pickled: row.Restorer}, Node: row.NodeID, RuntimeEnv: notNull(row.RuntimeEnv)}, nil
}

// Restored is what giving a saved state to its pool's restorer brought.
type Restored struct {
	Success  bool
	Error    string
	TaskID   string
	Pool     string
	Restorer string // "" when the pool has none, which is a success
}

// notNull drops a JSON null.
func notNull(raw []byte) json.RawMessage {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	return raw
}
