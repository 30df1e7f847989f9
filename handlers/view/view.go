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
}

// View answers pages. It is safe for concurrent use.
type View struct {
	l       *ledger.Ledger
	logs    Logs
	o       Options
	frames  memo[web.Frame]
	days    memo[ledger.PreemptionDay]
	gpus    memo[gpuTime]
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
	v := &View{l: l, logs: logs, o: o}
	v.frames.age, v.days.age, v.gpus.age = frameAge, dayAge, gpuAge
	v.days.stale, v.gpus.stale = dayAge, gpuStale
	v.changes.l = l
	return v
}

// memo keeps an answer for each namespace, twenty times as long as it took to make: what
// is quick to read is never old, and what is slow costs the database a twentieth at
// most. While one is being made, those who ask for the same wait for it.
type memo[T any] struct {
	age   time.Duration // at most
	stale time.Duration // after its age a slow answer is given this long, while it is made anew
	mu    sync.Mutex
	kept  map[string]*answer[T]
}

type answer[T any] struct {
	mu     sync.Mutex
	until  time.Time
	value  T
	slow   bool // to make
	making bool // behind the scenes
}

const (
	worth    = 20                     // times its cost
	noticed  = 200 * time.Millisecond // by people: what takes longer is slow
	mostKept = 1000                   // namespaces come from addresses, which anybody may make up
)

// get gives the answer for a namespace. read is called with a context of its own when
// nobody waits for it.
func (m *memo[T]) get(ctx context.Context, ns string, read func(context.Context) (T, error)) (T, error) {
	m.mu.Lock()
	if m.kept == nil || len(m.kept) > mostKept {
		m.kept = map[string]*answer[T]{}
	}
	a := m.kept[ns]
	if a == nil {
		a = &answer[T]{}
		m.kept[ns] = a
	}
	m.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	began := time.Now()
	switch {
	case began.Before(a.until), a.making:
		return a.value, nil
	case a.slow && began.Before(a.until.Add(m.stale)):
		a.making = true
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			v, err := read(ctx)
			a.mu.Lock()
			defer a.mu.Unlock()
			a.making = false
			if err == nil {
				a.keep(v, time.Since(began), m.age)
			}
		}()
		return a.value, nil
	}
	v, err := read(ctx)
	if err == nil {
		a.keep(v, time.Since(began), m.age)
	}
	return v, err
}

// keep stores an answer that took so long to make.
func (a *answer[T]) keep(v T, cost, most time.Duration) {
	a.value, a.slow, a.until = v, cost > noticed, time.Now().Add(min(most, worth*cost))
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
	return v.frames.get(ctx, ns, func(ctx context.Context) (web.Frame, error) {
		names, err := v.l.Namespaces(ctx)
		if err != nil {
			return web.Frame{}, v.refused(ctx, err)
		}
		e, err := v.l.Extent(ctx, ns)
		return web.Frame{Namespaces: names, Pools: e.Pools, LiveTasks: e.LiveTasks, Agents: e.Agents}, v.refused(ctx, err)
	})
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
