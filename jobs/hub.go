package jobs

import (
	"context"
	"encoding/hex"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/schedulemesh/schedulemesh/sched"
)

// hub tells those who wait on this server what became of jobs, wherever it was moved.
type hub struct {
	mu       sync.Mutex
	waiting  map[sched.ID]map[chan struct{}]bool
	watching map[chan Change]bool
}

func newHub() *hub {
	return &hub{waiting: map[sched.ID]map[chan struct{}]bool{}, watching: map[chan Change]bool{}}
}

// watch gives a channel that is signalled when a job changed.
func (h *hub) watch(id sched.ID) (news <-chan struct{}, cancel func()) {
	ch := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting[id] == nil {
		h.waiting[id] = map[chan struct{}]bool{}
	}
	h.waiting[id][ch] = true
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.waiting[id], ch)
		if len(h.waiting[id]) == 0 {
			delete(h.waiting, id)
		}
	}
}

// changes gives a channel that has a signal of each kind at most once waiting.
func (h *hub) changes(ctx context.Context) <-chan Change {
	jobs, clusters := make(chan Change, 1), make(chan Change, 1)
	h.mu.Lock()
	h.watching[jobs], h.watching[clusters] = false, true
	h.mu.Unlock()
	out := make(chan Change)
	go func() {
		defer close(out)
		defer func() {
			h.mu.Lock()
			delete(h.watching, jobs)
			delete(h.watching, clusters)
			h.mu.Unlock()
		}()
		for {
			var c Change
			select {
			case c = <-jobs:
			case c = <-clusters:
			case <-ctx.Done():
				return
			}
			select {
			case out <- c:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// tell wakes who waits for any of these jobs, and who watches.
func (h *hub) tell(c Change, ids []sched.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		for ch := range h.waiting[id] {
			poke(ch)
		}
	}
	for ch, ofClusters := range h.watching {
		if ofClusters == (c == ClustersChanged) {
			select {
			case ch <- c:
			default:
			}
		}
	}
}

// all wakes everybody: something may have been missed.
func (h *hub) all() {
	h.mu.Lock()
	ids := make([]sched.ID, 0, len(h.waiting))
	for id := range h.waiting {
		ids = append(ids, id)
	}
	h.mu.Unlock()
	h.tell(JobsChanged, ids)
	h.tell(ClustersChanged, nil)
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// listen hears what servers say, until ctx ends.
func (h *hub) listen(ctx context.Context, s *Service) {
	for ctx.Err() == nil {
		if err := h.hear(ctx, s); err != nil && ctx.Err() == nil {
			s.log.Warn("the connection among servers broke; jobs are heard of again in a moment", "error", err)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}
}

func (h *hub) hear(ctx context.Context, s *Service) error {
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(after)
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+Channel); err != nil {
		return err
	}
	h.all()
	if e := s.engine.Load(); e != nil {
		e.look()
	}
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		kind, rest, _ := strings.Cut(n.Payload, " ")
		switch kind {
		case saysNew, saysStop:
			if e := s.engine.Load(); e != nil {
				e.look()
			}
		case saysClusters:
			h.tell(ClustersChanged, nil)
		case saysJobs:
			var ids []sched.ID
			for word := range strings.SplitSeq(rest, " ") {
				if b, err := hex.DecodeString(word); err == nil && len(b) == len(sched.ID{}) {
					ids = append(ids, sched.ID(b))
				}
			}
			h.tell(JobsChanged, ids)
		}
	}
}
