package ledger

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
)

// feed serves events in the order of their ids, and never one that another could
// still appear behind: ids are taken in order but transactions commit out of it.
//
// Ids that follow each other without a gap are settled: nothing is missing among
// them. A gap is a transaction that has not committed yet, or never will. The feed
// then notes a transaction id above all given out so far, and the last event id; once
// no older transaction runs, whatever is still missing up to there stays missing, and
// the feed goes on. Writers take their locks, and with them a transaction id, before
// they take event ids, which is what makes this hold. (The xmax of a snapshot would not
// do for that id: transactions above it may be running.)
type feed struct {
	l    *Ledger
	poke chan struct{}

	settling sync.Mutex // one at a time finds out what is settled
	bound    *bound     // while a gap is waited for

	mu   sync.Mutex
	subs map[*subscription]bool
	upto int64 // everything up to here is settled
}

// bound says when everything up to an event id is settled, gaps or not.
type bound struct {
	id  int64
	xid uint64 // no older transaction may run
}

type subscription struct {
	ns   string
	out  chan Event
	sent int64
}

// feedPoll finds events of other servers.
const feedPoll = time.Second

func newFeed(l *Ledger) *feed {
	return &feed{l: l, poke: make(chan struct{}, 1), subs: map[*subscription]bool{}}
}

func (f *feed) wake() {
	select {
	case f.poke <- struct{}{}:
	default:
	}
}

func (f *feed) run(ctx context.Context) {
	tick := time.NewTicker(feedPoll)
	defer tick.Stop()
	for {
		again := f.advance(ctx)
		var soon <-chan time.Time
		if again {
			soon = time.After(2 * time.Millisecond)
		}
		select {
		case <-f.poke:
		case <-soon:
		case <-tick.C:
		case <-ctx.Done():
			f.mu.Lock()
			for s := range f.subs {
				close(s.out)
			}
			f.subs = map[*subscription]bool{}
			f.mu.Unlock()
			return
		}
	}
}

// settleBatch is how many ids are looked at in one go.
const settleBatch = 5000

// settle finds out up to which id events may be shown. It reports whether a gap is
// being waited for, which ends soon.
func (f *feed) settle(ctx context.Context) (upto int64, again bool, err error) {
	f.settling.Lock()
	defer f.settling.Unlock()
	q := f.l.q
	for {
		upto = f.settled()
		gap := upto == 0 // at the start: what was there before is not gone through
		if !gap {
			ids, err := q.EventIDs(ctx, dbgen.EventIDsParams{After: upto, RowLimit: settleBatch})
			if err != nil {
				return 0, false, err
			}
			for _, id := range ids {
				if gap = id != upto+1; gap {
					break
				}
				upto = id
			}
			f.settleTo(upto)
			if !gap {
				if len(ids) == settleBatch {
					continue
				}
				return upto, false, nil
			}
		}
		if f.bound == nil {
			last, err := q.LastEventID(ctx)
			if err != nil {
				return 0, false, err
			}
			if last == 0 {
				return 0, false, nil
			}
			xid, err := q.NextTransaction(ctx)
			if err != nil {
				return 0, false, err
			}
			n, _ := strconv.ParseUint(xid, 10, 64)
			f.bound = &bound{id: last, xid: n}
		}
		oldest, err := q.OldestRunning(ctx)
		if err != nil {
			return 0, false, err
		}
		if n, _ := strconv.ParseUint(oldest, 10, 64); n < f.bound.xid {
			return upto, true, nil
		}
		f.settleTo(f.bound.id)
		f.bound = nil
	}
}

func (f *feed) settled() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.upto
}

func (f *feed) settleTo(id int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.upto = max(f.upto, id)
}

// advance shows subscribers what has settled.
func (f *feed) advance(ctx context.Context) (again bool) {
	f.mu.Lock()
	idle := len(f.subs) == 0
	f.mu.Unlock()
	if idle {
		return false
	}
	upto, again, err := f.settle(ctx)
	if err != nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	from := upto
	for s := range f.subs {
		from = min(from, s.sent)
	}
	for from < upto {
		events, err := f.read(ctx, "", from, upto, 1000)
		if err != nil {
			return false
		}
		for _, e := range events {
			for s := range f.subs {
				if e.ID <= s.sent || (s.ns != "" && s.ns != e.Namespace) {
					continue
				}
				select {
				case s.out <- e:
					s.sent = e.ID
				default: // too slow: it comes back with the id it has
					close(s.out)
					delete(f.subs, s)
				}
			}
		}
		if len(events) < 1000 {
			break
		}
		from = events[len(events)-1].ID
	}
	for s := range f.subs {
		s.sent = max(s.sent, upto)
	}
	return again
}

func (f *feed) read(ctx context.Context, ns string, after, upto int64, limit int) ([]Event, error) {
	rows, err := f.l.q.EventsAfter(ctx, dbgen.EventsAfterParams{After: after, Upto: upto, Namespace: ns, RowLimit: int32(limit)})
	if err != nil {
		return nil, f.l.lane.outward(err)
	}
	out := make([]Event, 0, len(rows))
	for _, e := range rows {
		out = append(out, Event{ID: e.ID, At: e.At, Namespace: e.Namespace, TaskUID: e.TaskUid.Bytes, TaskID: e.TaskID, Pool: e.PoolName, Attempt: int(e.Attempt),
			Type: e.Type, Actor: e.Actor, Code: e.Code, Message: e.Message, Detail: e.Detail, PolicyVersion: int(e.PolicyVersion)})
	}
	return out, nil
}

// Events reads on from an id, in an order in which nothing can appear behind what was read.
func (l *Ledger) Events(ctx context.Context, ns string, after int64, limit int) ([]Event, error) {
	upto, _, err := l.feed.settle(ctx)
	if err != nil {
		return nil, l.lane.outward(err)
	}
	return l.feed.read(ctx, ns, after, upto, pageSize(limit))
}

// Subscribe follows events after an id, or from now on when after is 0; ns "" is
// all namespaces. The channel is closed when ctx ends, or when the reader is so slow
// that thousands wait for it: it then subscribes again from the last id it has.
func (l *Ledger) Subscribe(ctx context.Context, ns string, after int64) (<-chan Event, error) {
	upto, _, err := l.feed.settle(ctx)
	if err != nil {
		return nil, l.lane.outward(err)
	}
	s := &subscription{ns: ns, out: make(chan Event, 4096), sent: after}
	if after == 0 {
		s.sent = upto
	}
	l.feed.mu.Lock()
	l.feed.subs[s] = true
	l.feed.mu.Unlock()
	l.feed.wake()
	context.AfterFunc(ctx, func() {
		l.feed.mu.Lock()
		defer l.feed.mu.Unlock()
		if l.feed.subs[s] {
			delete(l.feed.subs, s)
			close(s.out)
		}
	})
	return s.out, nil
}

func nows(l *Ledger) []time.Time { return slices.Repeat([]time.Time{l.now()}, 1) }
