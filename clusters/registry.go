package clusters

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/ledger"
)

// Errors that callers can do something about; ledger.ErrInvalid and ledger.ErrConflict are the others.
var (
	ErrUnknownCluster = &ledger.Error{Code: "unknown_cluster"}
	ErrClusterInUse   = &ledger.Error{Code: "cluster_in_use"} // jobs of ours are live there
)

// RegistryOptions adjust a Registry; the zero value is right for servers.
type RegistryOptions struct {
	Logger    *slog.Logger
	Poll      time.Duration // how often other servers' changes are looked for; 0: 1 s
	FileEvery time.Duration // how often WatchFile looks at its file; 0: 2 s
}

// Registry is the clusters of a database, kept in memory as the last change left them, on whatever server that
// was made. All methods are safe for concurrent use; their errors are *ledger.Error where the caller can do something.
type Registry struct {
	pool *pgxpool.Pool
	q    *dbgen.Queries
	o    RegistryOptions
	log  *slog.Logger

	now  atomic.Pointer[snapshot]
	stop context.CancelFunc
	done sync.WaitGroup
	wake chan struct{}

	mu      sync.Mutex // one at a time reads rows into known, so that what is older never replaces what is newer
	known   map[string]known
	trimmed time.Time // when old samples were last removed

	listeners sync.Mutex
	changed   map[chan struct{}]bool

	file fileState
}

// known is a row as it was last read, removed ones included.
type known struct {
	cluster Cluster
	removed bool
	version string
}

// snapshot is what All and Get answer from. Nothing in it is ever changed.
type snapshot struct {
	all    []Cluster
	byName map[string]int
}

// OpenRegistry reads the clusters and follows their changes until Close.
func OpenRegistry(ctx context.Context, pool *pgxpool.Pool, o RegistryOptions) (*Registry, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Poll <= 0 {
		o.Poll = time.Second
	}
	if o.FileEvery <= 0 {
		o.FileEvery = 2 * time.Second
	}
	r := &Registry{
		pool: pool, q: dbgen.New(pool), o: o, log: o.Logger,
		wake: make(chan struct{}, 1), known: map[string]known{}, changed: map[chan struct{}]bool{},
	}
	r.now.Store(&snapshot{})
	if err := r.reload(ctx); err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(context.Background())
	r.stop = stop
	r.done.Go(func() { r.follow(run) })
	r.done.Go(func() { r.listen(run) })
	return r, nil
}

// Close stops following. What is in memory stays readable.
func (r *Registry) Close() {
	r.stop()
	r.done.Wait()
}

// All is every cluster, by name. It is from memory and shared: nobody may change it.
func (r *Registry) All() []Cluster { return r.now.Load().all }

// Get is one cluster, from memory.
func (r *Registry) Get(name string) (Cluster, bool) {
	s := r.now.Load()
	i, ok := s.byName[name]
	if !ok {
		return Cluster{}, false
	}
	return s.all[i], true
}

// Changes is signalled after something changed, its status included, at least once after the last change,
// until ctx ends; then it is closed.
func (r *Registry) Changes(ctx context.Context) <-chan struct{} {
	ch := make(chan struct{}, 1)
	r.listeners.Lock()
	r.changed[ch] = true
	r.listeners.Unlock()
	context.AfterFunc(ctx, func() {
		r.listeners.Lock()
		defer r.listeners.Unlock()
		delete(r.changed, ch)
		close(ch)
	})
	return ch
}

// publish makes the snapshot of what is known. mu is held.
func (r *Registry) publish() {
	s := &snapshot{all: make([]Cluster, 0, len(r.known)), byName: make(map[string]int, len(r.known))}
	for _, k := range r.known {
		if !k.removed {
			s.all = append(s.all, k.cluster)
		}
	}
	slices.SortFunc(s.all, func(a, b Cluster) int { return strings.Compare(a.Name, b.Name) })
	for i := range s.all {
		s.byName[s.all[i].Name] = i
	}
	r.now.Store(s)
	r.listeners.Lock()
	defer r.listeners.Unlock()
	for ch := range r.changed {
		poke(ch)
	}
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Put makes or changes a cluster by hand. With ifRev not 0 it is only changed when it is at that Rev.
func (r *Registry) Put(ctx context.Context, s Spec, actor string, ifRev int64) (Cluster, error) {
	err := r.change(ctx, []Spec{s}, false, func(c *change) error {
		row := c.rows[s.Name]
		switch {
		case ifRev == 0 || row != nil && !row.Removed && row.Rev == ifRev:
		case row == nil || row.Removed:
			return refuse(ledger.ErrConflict, "cluster %q is not there any more; leave If-Match out to make it anew", s.Name)
		default:
			return refuse(ledger.ErrConflict, "cluster %q was changed by somebody else: it is at %d, not at %d; read it again and repeat the change", s.Name, row.Rev, ifRev)
		}
		return c.put(s, actor)
	})
	if err != nil {
		return Cluster{}, err
	}
	return r.get(s.Name)
}

// Import is Put for many clusters, all or none. It removes nothing.
func (r *Registry) Import(ctx context.Context, specs []Spec, actor string) error {
	return r.change(ctx, specs, false, func(c *change) error {
		for _, s := range specs {
			if err := c.put(s, actor); err != nil {
				return err
			}
		}
		return nil
	})
}

// Delete removes a cluster by hand, unless jobs of ours are live there. One that the configuration file names stays
// away until its entry there changes, the deployment's own one until it is put back by hand.
func (r *Registry) Delete(ctx context.Context, name, actor string) error {
	return r.change(ctx, []Spec{{Name: name}}, false, func(c *change) error {
		row := c.rows[name]
		if row == nil || row.Removed {
			return unknownCluster(name)
		}
		live, err := c.live(name)
		if err != nil {
			return err
		}
		if live[name] > 0 {
			return refuse(ErrClusterInUse, "%d jobs are on cluster %q; stop them or let them end, and hold the cluster so that no others come", live[name], name)
		}
		r.log.Info("a cluster was removed", "cluster", name, "actor", actor)
		if row.InFile || row.Source == FromLocal {
			row.Removed, row.forget, row.dirty = true, true, true
			row.hold(Hold{})
			return nil
		}
		c.delete(name)
		return nil
	})
}

// maxHoldReason bounds what is kept of why a cluster is held, in bytes.
const maxHoldReason = 500

// Hold keeps new jobs away from a cluster, or lets them there again.
func (r *Registry) Hold(ctx context.Context, name string, held bool, reason, actor string) (Cluster, error) {
	if len(reason) > maxHoldReason || strings.ContainsFunc(reason, unprintable) {
		return Cluster{}, invalid("reason", "must be one line of at most %d bytes", maxHoldReason)
	}
	err := r.change(ctx, []Spec{{Name: name}}, false, func(c *change) error {
		row := c.rows[name]
		if row == nil || row.Removed {
			return unknownCluster(name)
		}
		if row.Held == held && (!held || row.HoldReason == reason) {
			return nil
		}
		h := Hold{}
		if held {
			now := time.Now()
			h = Hold{Held: true, Reason: reason, Actor: actor, Since: &now}
		}
		row.hold(h)
		r.log.Info("a cluster was held or let go", "cluster", name, "held", held, "reason", reason, "actor", actor)
		return nil
	})
	if err != nil {
		return Cluster{}, err
	}
	return r.get(name)
}

// SetLocal notes the cluster of this deployment's sidecar: its addresses and token. What else was edited by hand
// stays, as does its removal. A cluster of that name that the file or somebody else said is left alone.
func (r *Registry) SetLocal(ctx context.Context, s Spec) error {
	return r.change(ctx, []Spec{s}, false, func(c *change) error {
		row := c.rows[s.Name]
		switch {
		case row == nil:
			return c.add(s, FromLocal, false)
		case row.InFile || row.Source != FromLocal:
			r.log.Warn("the cluster of this server's agents is configured by hand under its name, so its addresses are not updated", "cluster", s.Name)
			return nil
		}
		now := row.spec
		now.HeadAddress, now.Dashboard, now.Token = s.HeadAddress, s.Dashboard, s.Token
		return row.say(now, FromLocal)
	})
}

// get is a cluster after a change of ours.
func (r *Registry) get(name string) (Cluster, error) {
	c, ok := r.Get(name)
	if !ok {
		return Cluster{}, unknownCluster(name) // somebody removed it at once
	}
	return c, nil
}

func unknownCluster(name string) error {
	return refuse(ErrUnknownCluster, "there is no cluster %q", name)
}

func refuse(code *ledger.Error, format string, args ...any) *ledger.Error {
	return &ledger.Error{Code: code.Code, Message: fmt.Sprintf(format, args...)}
}

func invalid(field, format string, args ...any) *ledger.Error {
	why := fmt.Sprintf(format, args...)
	return &ledger.Error{Code: ledger.ErrInvalid.Code, Message: field + " " + why, Fields: map[string]string{field: why}}
}

// follow reads what changed, now and then and whenever somebody says that something did.
func (r *Registry) follow(ctx context.Context) {
	poll := time.NewTicker(r.o.Poll)
	defer poll.Stop()
	failing := false
	for {
		select {
		case <-r.wake:
		case <-poll.C:
		case <-ctx.Done():
			return
		}
		err := r.reload(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			r.log.Warn("changes of clusters cannot be read; those known are used", "error", err)
		}
		failing = err != nil
		// The server that polls tells of every status it saves: a few times a second is soon enough.
		sleep(ctx, min(r.o.Poll/10, 100*time.Millisecond))
	}
}

// listen hears of changes by other servers. The poll finds what it misses.
func (r *Registry) listen(ctx context.Context) {
	for ctx.Err() == nil {
		if err := r.hear(ctx); err != nil && ctx.Err() == nil {
			r.log.Debug("news of clusters are not heard for a moment", "error", err)
		}
		sleep(ctx, r.o.Poll)
	}
}

func (r *Registry) hear(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, r.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "LISTEN schedulemesh_jobs"); err != nil {
		return err
	}
	for {
		poke(r.wake)
		for {
			n, err := conn.WaitForNotification(ctx)
			if err != nil {
				return err
			}
			if n.Payload == "clusters" {
				break
			}
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
