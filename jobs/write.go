package jobs

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// Many jobs move at the same time, and each move is on disk before its next step. What there is to write at
// a moment goes in one transaction: one fsync, each with its own answer.

// Channel is where servers tell each other what became of jobs and clusters.
const Channel = "schedulemesh_jobs"

// Payloads on it; jobsSaid is followed by uids.
const (
	saysNew      = "new"
	saysStop     = "stop"
	saysJobs     = "jobs"
	saysClusters = "clusters"
)

const (
	mostAtOnce  = 500 // changes in one transaction
	writeTime   = 10 * time.Second
	notifyBytes = 7900 // Postgres takes less than 8000
)

// errStale says that a row is not as the writer believed: another server moved it.
var errStale = errors.New("the job was changed by another server")

// change is a row that is written with all that belongs to it.
type change struct {
	job    Job
	print  []byte // of a new row
	isNew  bool
	events []Event
	strays []dbgen.AddStrayParams
	beside bool        // only the strays; the row stays as it is
	done   func(error) // after it is on disk, or not: errStale, exists, or what the database said
}

// errTaken says that the submission_id is another job's.
var errTaken = errors.New("the submission_id is taken")

// combiner hands over what came together while the last lot was under way. Pushing never waits.
type combiner[T any] struct {
	run   func([]T)
	more  chan struct{}
	mu    sync.Mutex
	queue []T
}

func newCombiner[T any](run func([]T)) *combiner[T] {
	return &combiner[T]{run: run, more: make(chan struct{}, 1)}
}

func (c *combiner[T]) push(x T) {
	c.mu.Lock()
	c.queue = append(c.queue, x)
	c.mu.Unlock()
	poke(c.more)
}

func (c *combiner[T]) next() []T {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(c.queue), mostAtOnce)
	lot := slices.Clone(c.queue[:n])
	c.queue = c.queue[n:]
	if len(c.queue) > 0 {
		poke(c.more)
	}
	return lot
}

// loop runs until ctx ends; what is in line then is handed over still.
func (c *combiner[T]) loop(ctx context.Context) {
	for {
		select {
		case <-c.more:
		case <-ctx.Done():
			for lot := c.next(); len(lot) > 0; lot = c.next() {
				c.run(lot)
			}
			return
		}
		if lot := c.next(); len(lot) > 0 {
			c.run(lot)
		}
	}
}

// writeEach is write for a lot of which one may be unfit: the others are not held up by it.
func writeEach(ctx context.Context, pool *pgxpool.Pool, lot []change) ([]error, error) {
	answers, err := write(ctx, pool, lot)
	var refused *pgconn.PgError
	if err == nil || len(lot) == 1 || !errors.As(err, &refused) {
		return answers, err
	}
	for i := range lot {
		one, err := write(ctx, pool, lot[i:i+1])
		if err == nil {
			err = one[0]
		}
		answers[i] = err
	}
	return answers, nil
}

// write puts a lot of changes on disk and gives each its answer, nil for written.
func write(ctx context.Context, pool *pgxpool.Pool, lot []change) (answers []error, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	answers = make([]error, len(lot))
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		q := dbgen.New(tx)
		clear(answers)
		if err := writeRows(ctx, q, lot, answers); err != nil {
			return err
		}
		return writeBeside(ctx, tx, q, lot, answers)
	})
	return answers, err
}

func writeRows(ctx context.Context, q *dbgen.Queries, lot []change, answers []error) error {
	var inserts []dbgen.InsertJobParams
	var moves []dbgen.MoveJobParams
	var insertAt, moveAt []int
	for i, c := range lot {
		if c.beside {
			continue
		}
		if c.isNew {
			inserts, insertAt = append(inserts, insertRow(c.job, c.print)), append(insertAt, i)
		} else {
			moves, moveAt = append(moves, moveRow(c.job, c.job.Rev-1)), append(moveAt, i)
		}
	}
	var failed error
	answer := func(at []int, missed error) func(i int, err error) {
		return func(i int, err error) {
			if errors.Is(err, pgx.ErrNoRows) {
				answers[at[i]] = missed
			} else if err != nil && failed == nil {
				failed = err
			}
		}
	}
	if len(inserts) > 0 {
		one := answer(insertAt, errTaken)
		q.InsertJob(ctx, inserts).QueryRow(func(i int, _ pgtype.UUID, err error) { one(i, err) })
	}
	if failed == nil && len(moves) > 0 {
		one := answer(moveAt, errStale)
		q.MoveJob(ctx, moves).QueryRow(func(i int, _ int64, err error) { one(i, err) })
	}
	return failed
}

// writeBeside adds what belongs to rows that were written, and tells the others.
func writeBeside(ctx context.Context, tx pgx.Tx, q *dbgen.Queries, lot []change, answers []error) error {
	var events []dbgen.AddJobEventParams
	var strays []dbgen.AddStrayParams
	var moved []sched.ID
	fresh := false
	for i, c := range lot {
		if answers[i] != nil {
			continue
		}
		for _, e := range c.events {
			events = append(events, eventRow(c.job.UID, e))
		}
		strays = append(strays, c.strays...)
		if !c.beside {
			moved = append(moved, c.job.UID)
		}
		fresh = fresh || c.isNew
	}
	var failed error
	note := func(_ int, err error) {
		if err != nil && failed == nil {
			failed = err
		}
	}
	if len(events) > 0 {
		q.AddJobEvent(ctx, events).Exec(note)
	}
	if len(strays) > 0 && failed == nil {
		q.AddStray(ctx, strays).Exec(note)
	}
	if failed != nil || len(moved) == 0 {
		return failed
	}
	messages := said(moved)
	if fresh {
		messages = append(messages, saysNew)
	}
	for _, m := range messages {
		if _, err := tx.Exec(ctx, "SELECT pg_notify($1, $2)", Channel, m); err != nil {
			return err
		}
	}
	return nil
}

// said is the messages that name jobs.
func said(uids []sched.ID) (out []string) {
	var b strings.Builder
	for _, id := range uids {
		if b.Len()+33 > notifyBytes {
			out = append(out, b.String())
			b.Reset()
		}
		if b.Len() == 0 {
			b.WriteString(saysJobs)
		}
		b.WriteByte(' ')
		b.WriteString(hex.EncodeToString(id[:]))
	}
	if b.Len() > 0 {
		out = append(out, b.String())
	}
	return out
}
