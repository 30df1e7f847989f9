package view

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/jobs"
	"github.com/schedulemesh/schedulemesh/ledger"
)

// hub follows the ledger's feed once for all browsers, while there are any, and tells
// each what changed in its namespace.
type hub struct {
	l         *ledger.Ledger
	jobs      jobs.API // nil: there are none
	mu        sync.Mutex
	listeners map[*listener]bool
	stop      context.CancelFunc // of the following; nil while nobody listens
}

// listener is one browser. It misses no topic: each waits in pending until it was taken.
type listener struct {
	ns      string
	mu      sync.Mutex
	pending []pages.Topic
	more    chan struct{}
	ended   chan struct{} // closed when the ledger will tell nothing more
	once    sync.Once
}

var every = []pages.Topic{pages.Tasks, pages.Pools, pages.Policy, pages.Preemptions, pages.Agents, pages.Events, pages.Jobs, pages.Clusters}

// topics are what an event changes on the pages.
func topics(kind string) []pages.Topic {
	switch {
	case kind == "policy.changed":
		return []pages.Topic{pages.Policy, pages.Events}
	case strings.HasPrefix(kind, "pg."):
		return []pages.Topic{pages.Pools, pages.Tasks, pages.Events}
	case strings.HasPrefix(kind, "pool."):
		return []pages.Topic{pages.Pools, pages.Events}
	case kind == "changed":
		return []pages.Topic{pages.Tasks, pages.Events}
	case strings.HasPrefix(kind, "phase:"):
		return []pages.Topic{pages.Tasks, pages.Agents, pages.Preemptions, pages.Events}
	case kind == string(ledger.Preempting), kind == string(ledger.Preempted), kind == string(ledger.Queued), kind == string(ledger.Running):
		// One that runs may have waited for others to make way.
		return []pages.Topic{pages.Tasks, pages.Agents, pages.Pools, pages.Preemptions, pages.Events}
	}
	return []pages.Topic{pages.Tasks, pages.Agents, pages.Pools, pages.Events}
}

// Subscribe tells what changes in a namespace until ctx ends or the ledger closes.
func (v *View) Subscribe(ctx context.Context, ns string) <-chan pages.Topic {
	s := &listener{ns: ns, more: make(chan struct{}, 1), ended: make(chan struct{})}
	leave := v.changes.join(s)
	out := make(chan pages.Topic)
	go func() {
		defer close(out)
		defer leave()
		for {
			t, ok := s.next()
			if !ok {
				select {
				case <-s.more:
					continue
				case <-s.ended:
					return
				case <-ctx.Done():
					return
				}
			}
			select {
			case out <- t:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func (s *listener) next() (pages.Topic, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) == 0 {
		return "", false
	}
	t := s.pending[0]
	s.pending = s.pending[1:]
	return t, true
}

func (s *listener) tell(ts []pages.Topic) {
	s.mu.Lock()
	for _, t := range ts {
		known := false
		for _, p := range s.pending {
			known = known || p == t
		}
		if !known {
			s.pending = append(s.pending, t)
		}
	}
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *listener) end() { s.once.Do(func() { close(s.ended) }) }

// join makes the hub follow the feed, if it does not yet.
func (h *hub) join(s *listener) (leave func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listeners == nil {
		h.listeners = map[*listener]bool{}
	}
	h.listeners[s] = true
	if h.stop == nil {
		ctx, cancel := context.WithCancel(context.Background())
		h.stop = cancel
		go h.follow(ctx)
		if h.jobs != nil {
			go h.followJobs(ctx)
		}
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.listeners, s)
		if len(h.listeners) == 0 && h.stop != nil {
			h.stop()
			h.stop = nil
		}
	}
}

func (h *hub) tell(ns string, ts []pages.Topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.listeners {
		if ns == "" || s.ns == ns {
			s.tell(ts)
		}
	}
}

// follow reads the feed of all namespaces. When it breaks off, because we were too
// slow or the database was away, everything may have changed meanwhile.
func (h *hub) follow(ctx context.Context) {
	const again = time.Second
	var last int64
	for ctx.Err() == nil {
		events, err := h.l.Subscribe(ctx, "", last)
		if err == nil {
			for e := range events {
				last = e.ID
				h.tell(e.Namespace, topics(e.Type))
			}
		}
		if ctx.Err() != nil {
			return
		}
		if ledger.CodeOf(h.l.Ready(ctx)) == ledger.ErrClosed.Code {
			h.closed()
			return
		}
		h.tell("", every)
		if err != nil {
			select {
			case <-time.After(again):
			case <-ctx.Done():
			}
		}
	}
}

// followJobs tells everybody what changes of jobs and clusters, which belong to no namespace.
func (h *hub) followJobs(ctx context.Context) {
	for c := range h.jobs.Changes(ctx) {
		switch c {
		case jobs.JobsChanged:
			h.tell("", []pages.Topic{pages.Jobs})
		case jobs.ClustersChanged:
			h.tell("", []pages.Topic{pages.Clusters})
		}
	}
}

// closed ends every stream: the ledger will tell nothing more.
func (h *hub) closed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.listeners {
		s.end()
	}
	if h.stop != nil {
		h.stop()
		h.stop = nil
	}
}
