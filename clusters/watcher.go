package clusters

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Book is what a Watcher needs of a Registry.
type Book interface {
	All() []Cluster
	Changes(ctx context.Context) <-chan struct{}
	SaveStatus(ctx context.Context, statuses map[string]Status) error
	Sample(ctx context.Context, samples map[string]Sample) error
}

// WatcherOptions are the settings of a Watcher; the zero value is good.
type WatcherOptions struct {
	// OnStatus is called after each probe, for one cluster one call after the other, for several at once.
	OnStatus func(name string, before, now Status)
	// Jobs gives how many of our jobs are alive on a cluster: it is asked more often where there are some.
	Jobs     func(name string) int
	Metrics  prometheus.Registerer // nil: none
	Logger   *slog.Logger
	Busy     time.Duration // between probes where something happens; 2 s
	Idle     time.Duration // between probes elsewhere; 5 s
	Timeout  time.Duration // of one question of a probe; 5 s
	Parallel int           // probes at once; 128
}

// Watcher asks every cluster of a registry how it is, while it runs. Only the server that looks after jobs runs one.
type Watcher struct {
	book Book
	o    WatcherOptions
}

// NewWatcher makes a watcher; Run has it work.
func NewWatcher(book Book, o WatcherOptions) *Watcher { return &Watcher{book: book, o: o} }

// Run watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) { <-ctx.Done() }

// Poke has a cluster probed now.
func (w *Watcher) Poke(name string) {}

// Status is how a cluster was when it was asked last.
func (w *Watcher) Status(name string) (Status, bool) { return Status{}, false }

// Client gives the client of a cluster. It goes through the breaker: while that is open, calls fail at once with
// an error that is ErrOpen and says that nothing was sent.
func (w *Watcher) Client(name string) (*Ray, bool) { return nil, false }
