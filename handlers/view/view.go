// Package view turns what the ledger says into what the dashboard shows: it is the
// pages' Source, Actions and Live on a real ledger.
//
// It decides nothing and stores nothing but answers it may give again for a moment.
// It must not know HTTP, templates or Ray.
package view

import (
	"context"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/web"
)

// Logs reads what a task's agent printed; see handlers/api.Logs.
type Logs interface {
	Logs(ctx context.Context, ns, taskID, stream string, offset, limit int64) (text string, next int64, ended bool, err error)
}

// Options are the rest. The zero value of a field means its default.
type Options struct {
	Now    func() time.Time // time.Now
	Logger *slog.Logger     // none
	// Clusters says how the Ray clusters are, for the overview and the form of a new
	// pool. It is asked often and must answer from memory. Nil: nothing is known of them.
	Clusters func(ctx context.Context) []web.Cluster
	// Jobs and Registry are the jobs over many clusters, and those clusters. Nil: this server has none.
	Jobs     Jobs
	Registry Registry
	// LostAfter is how long a cluster may be silent before its jobs are lost, for a sentence; 0: not known.
	LostAfter time.Duration
	// Patience is how long the overview waits for a figure that is added up from much
	// history; without it in time it says that it comes. 75 ms.
	Patience time.Duration
}

// View answers pages. It is safe for concurrent use.
type View struct {
	l       *ledger.Ledger
	logs    Logs
	o       Options
	frames  memo[web.Frame]
	days    memo[ledger.PreemptionDay]
	gpus    memo[gpuTime]
	nodes   memo[[]web.Node] // of all clusters, under no namespace: counting agents looks at every live row
	loads   memo[carried]    // of all clusters, under no namespace
	tests   backtests
	changes hub
}

var (
	_ pages.Source  = (*View)(nil)
	_ pages.Actions = (*View)(nil)
	_ pages.Live    = (*View)(nil)
)

// The longest an answer is given again, and how long an old one still serves while a
// new one is made.
const (
	frameAge = time.Second
	dayAge   = 15 * time.Second
	gpuAge   = time.Minute // it reads every task of a day
	gpuStale = 10 * time.Minute
)

// New shows a ledger; logs may be nil, then nothing was printed.
func New(l *ledger.Ledger, logs Logs, o Options) *View {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Patience == 0 {
		o.Patience = 75 * time.Millisecond
	}
	v := &View{l: l, logs: logs, o: o}
	v.frames.age, v.days.age, v.gpus.age, v.nodes.age = frameAge, dayAge, gpuAge, frameAge
	v.loads.age = frameAge
	v.days.stale, v.gpus.stale = dayAge, gpuStale
	v.days.patience, v.gpus.patience = o.Patience, o.Patience
	v.changes.l = l
	if o.Jobs != nil {
		v.changes.jobs = o.Jobs
	}
	return v
}

// memo keeps an answer for each namespace, twenty times as long as it took to make: what
// is quick to read is never old, and what is slow costs the database a twentieth at
// most. While one is being made, those who ask for the same wait for it, but for the
// first of something that may take long nobody waits longer than patience.
type memo[T any] struct {
	age      time.Duration // at most
	stale    time.Duration // after its age a slow answer is given this long, while it is made anew
	patience time.Duration // 0: no limit
	mu       sync.Mutex
	kept     map[string]*answer[T]
}

type answer[T any] struct {
	known  bool
	value  T
	until  time.Time
	slow   bool          // to make
	making chan struct{} // closed when the one under way is there; nil: none is
	err    error         // of the last try
}

const (
	worth    = 20                     // times its cost
	noticed  = 200 * time.Millisecond // by people: what takes longer is slow
	mostKept = 1000                   // namespaces come from addresses, which anybody may make up
)

// get gives the answer for a namespace; ready is false when it is still being made.
// read is called with a context of its own, since others may wait for it too.
func (m *memo[T]) get(ctx context.Context, ns string, read func(context.Context) (T, error)) (value T, ready bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil || len(m.kept) > mostKept {
		m.kept = map[string]*answer[T]{}
	}
	a := m.kept[ns]
	if a == nil {
		a = &answer[T]{}
		m.kept[ns] = a
	}
	now := time.Now()
	if a.known && now.Before(a.until) {
		return a.value, true, nil
	}
	if a.making == nil {
		a.making = make(chan struct{})
		go m.make(context.WithoutCancel(ctx), a, read)
	}
	if a.known && a.slow && now.Before(a.until.Add(m.stale)) {
		return a.value, true, nil
	}
	making, patience := a.making, make(<-chan time.Time)
	if m.patience > 0 {
		patience = time.After(m.patience)
	}
	m.mu.Unlock()
	select {
	case <-making:
	case <-patience:
	case <-ctx.Done():
		err = ctx.Err()
	}
	m.mu.Lock()
	if err == nil {
		err = a.err
	}
	return a.value, a.known, err
}

func (m *memo[T]) make(ctx context.Context, a *answer[T], read func(context.Context) (T, error)) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	began := time.Now()
	v, err := read(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.err = err; err == nil {
		cost := time.Since(began)
		a.known, a.value, a.slow, a.until = true, v, cost > noticed, time.Now().Add(min(m.age, worth*cost))
	}
	close(a.making)
	a.making = nil
}

// forget makes the next question be asked anew: after a change made here, its maker
// must see it.
func (m *memo[T]) forget(ns string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.kept, ns)
}

func (v *View) now() time.Time { return v.o.Now() }

// Frame is the figures of the navigation.
func (v *View) Frame(ctx context.Context, ns string) (web.Frame, error) {
	f, _, err := v.frames.get(ctx, ns, func(ctx context.Context) (web.Frame, error) {
		names, err := v.l.Namespaces(ctx)
		if err != nil {
			return web.Frame{}, v.refused(ctx, err)
		}
		e, err := v.l.Extent(ctx, ns)
		return web.Frame{Namespaces: names, Pools: e.Pools, LiveTasks: e.LiveTasks, Agents: e.Agents}, v.refused(ctx, err)
	})
	if err == nil && v.noJobs() == nil {
		var c carried
		if c, err = v.carried(ctx); err == nil {
			f.Clusters = len(v.o.Registry.All())
			for _, states := range c.live {
				for _, n := range states {
					f.LiveJobs += n
				}
			}
		}
	}
	return f, err
}

// resources converts amounts; both sides are fixed-point.
func resources(r sched.Resources) web.Resources {
	out := web.Resources{}
	r.Each(func(name string, n int64) { out[name] = n })
	return out
}

var inMiB = regexp.MustCompile(`([0-9]+) MiB memory`)

// plain writes the memory in a sentence of the ledger or the core as pages do: 524288 MiB memory → 512 GiB.
func plain(s string) string {
	return inMiB.ReplaceAllStringFunc(s, func(m string) string {
		n, err := strconv.ParseInt(strings.TrimSuffix(m, " MiB memory"), 10, 64)
		if err != nil {
			return m
		}
		return web.Amount("memory", n)
	})
}

func poolNames(pools []ledger.Pool) []string {
	out := make([]string, len(pools))
	for i, p := range pools {
		out[i] = p.Name
	}
	return out
}
