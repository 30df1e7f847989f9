package ledger

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// rowReader makes rows of the book of rows of Postgres, one by one as they arrive and
// without reflection: a start reads a million. What rows have in common they share.
type rowReader struct {
	spaces  map[int64]*space
	pools   map[int64]*pool
	words   map[string]string
	labels  map[string]sched.Labels
	amounts map[string]sched.Resources
	terms   sharing
	unique  []byte // of the row at hand; reused
}

func newRowReader(spaces map[int64]*space, pools map[int64]*pool) *rowReader {
	return &rowReader{spaces: spaces, pools: pools, words: map[string]string{}, labels: map[string]sched.Labels{}, amounts: map[string]sched.Resources{}, terms: sharing{}}
}

// each calls f for every row that a query with the columns of LiveTasks answers. Rows of
// namespaces or pools that the reader does not know are left out.
func (rr *rowReader) each(ctx context.Context, conn dbgen.DBTX, f func(*row) error, sql string, args ...any) error {
	// Prepared, whatever the URL says: then integers, times and uuids come in binary.
	rows, err := conn.Query(ctx, sql, append([]any{pgx.QueryExecModeCacheStatement}, args...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		r, err := rr.row(rows.RawValues())
		if err != nil {
			return err
		}
		if r == nil {
			continue
		}
		if err := f(r); err != nil {
			return err
		}
	}
	return rows.Err()
}

// row makes a row of the columns of LiveTasks; nil when its pool is not known.
func (rr *rowReader) row(raw [][]byte) (*row, error) {
	c := columns{raw: raw}
	uid, space := c.uuid(), rr.spaces[c.integer()]
	if space == nil {
		return nil, nil
	}
	r := &row{uid: uid, space: space}
	t := terms{kind: Kind(rr.word(c.next()))}
	taskID := c.next()
	if id := c.next(); id != nil {
		if r.pool = rr.pools[int64(binary.BigEndian.Uint64(id))]; r.pool == nil {
			return nil, nil
		}
	}
	t.poolName, r.state, r.phase = rr.word(c.next()), State(rr.word(c.next())), rr.word(c.next())
	r.attempt, r.priority = int(c.integer()), sched.Milli(c.integer())
	r.labels = rr.labelsOf(c.next())
	var err error
	if t.request, err = rr.amountsOf(c.next()); err != nil {
		return nil, fmt.Errorf("request of task %s: %w", uuidString(r.uid), err)
	}
	if r.held, err = rr.amountsOf(c.next()); err != nil {
		return nil, fmt.Errorf("held of task %s: %w", uuidString(r.uid), err)
	}
	r.heldAs = rr.word(c.next())
	agentName := c.next()
	r.agentUID, r.node = c.uuid(), sched.NodeID(rr.word(c.next()))
	actorName := c.next()
	r.rayNS = rr.word(c.next())
	actorID := c.next()
	r.pid = int(c.integer())
	bodyHash := c.next()
	r.estimate, t.maxRuntime, t.launch = c.milliseconds(), c.milliseconds(), c.milliseconds()
	t.onInsufficient, t.onPreempted, t.onFailure = rr.word(c.next()), rr.word(c.next()), rr.word(c.next())
	t.maxAttempts, r.failures, r.preemptions, r.preemptedBy = int(c.integer()), int(c.integer()), int(c.integer()), c.uuids()
	r.ending, r.code = State(rr.word(c.next())), rr.word(c.next())
	reason := c.next()
	r.submitted, r.queued, r.started = c.time(), c.time(), c.time()
	launchID := c.next()
	t.hasEntry, t.wantsGroup, t.preemptForQuota = c.boolean(), c.boolean(), !c.boolean()
	e := extras{queueTimeout: c.milliseconds(), retryBackoff: c.milliseconds()}
	r.notBefore, e.gang = timeOf(c.time()), c.uuid()
	if e != usual {
		r.extras = &e
	}
	r.terms = rr.terms.of(t)

	named := len(actorName) > 0
	if bytes.Equal(actorName, launchID) { // its usual name
		actorName = nil
	}
	rr.unique = rr.unique[:0]
	for _, part := range [...][]byte{taskID, agentName, actorName, actorID, bodyHash, reason, launchID} {
		rr.unique = append(rr.unique, part...)
	}
	rest := string(rr.unique) // one string for all that only this row has
	cut := func(part []byte) (s string) {
		s, rest = rest[:len(part)], rest[len(part):]
		return s
	}
	r.taskID, r.agentName, r.actorName, r.actorID, r.bodyHash = cut(taskID), cut(agentName), cut(actorName), cut(actorID), cut(bodyHash)
	r.reason, r.launchID = cut(reason), cut(launchID)
	if named && r.actorName == "" {
		r.actorName = r.launchID
	}
	return r, nil
}

// word gives text that many rows have.
func (rr *rowReader) word(raw []byte) string {
	w, known := rr.words[string(raw)]
	if !known {
		w = string(raw)
		rr.words[w] = w
	}
	return w
}

func (rr *rowReader) labelsOf(raw []byte) sched.Labels {
	l, known := rr.labels[string(raw)]
	if !known {
		l = labelsOf(raw)
		rr.labels[string(raw)] = l
	}
	return l
}

func (rr *rowReader) amountsOf(raw []byte) (sched.Resources, error) {
	a, known := rr.amounts[string(raw)]
	if known {
		return a, nil
	}
	if err := a.UnmarshalJSON(raw); err != nil {
		return a, err
	}
	rr.amounts[string(raw)] = a
	return a, nil
}

// columns reads the values of one row from left to right, as Postgres sends them in binary.
type columns struct {
	raw [][]byte
	at  int
}

func (c *columns) next() []byte {
	v := c.raw[c.at]
	c.at++
	return v
}

// integer reads an int8 or an int4.
func (c *columns) integer() int64 {
	v := c.next()
	if len(v) == 4 {
		return int64(int32(binary.BigEndian.Uint32(v)))
	}
	return int64(binary.BigEndian.Uint64(v))
}

func (c *columns) boolean() bool { return c.next()[0] != 0 }

func (c *columns) milliseconds() time.Duration { return time.Duration(c.integer()) * time.Millisecond }

// uuid reads a uuid, the zero one for null.
func (c *columns) uuid() (id sched.ID) {
	copy(id[:], c.next())
	return id
}

// uuids reads a one-dimensional uuid[]: a header of twelve bytes, length and lower bound
// unless it is empty, and each element after its size.
func (c *columns) uuids() []sched.ID {
	v := c.next()
	if len(v) < 20 {
		return nil
	}
	var ids []sched.ID
	for v = v[20:]; len(v) >= 20; v = v[20:] {
		ids = append(ids, sched.ID(v[4:20]))
	}
	return ids
}

// postgresEpoch is where Postgres counts microseconds from.
var postgresEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// time reads a timestamptz, the zero time for null.
func (c *columns) time() time.Time {
	v := c.next()
	if v == nil {
		return time.Time{}
	}
	return time.UnixMicro(postgresEpoch + int64(binary.BigEndian.Uint64(v))).UTC()
}

// labelsOf reads a labels column.
func labelsOf(doc []byte) sched.Labels {
	if len(doc) <= 2 {
		return nil
	}
	var out sched.Labels
	_ = json.Unmarshal(doc, &out)
	return out
}
