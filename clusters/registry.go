package clusters

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/ledger"
)

// Errors that callers can do something about; ledger.ErrConflict and ledger.ErrInvalid are the others.
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
	all []Cluster
}

var errNotYet = errors.New("not made yet")

// OpenRegistry reads the clusters and follows their changes until Close.
func OpenRegistry(ctx context.Context, pool *pgxpool.Pool, o RegistryOptions) (*Registry, error) {
	return &Registry{}, nil
}

// Close stops following. What is in memory stays readable.
func (r *Registry) Close() {}

// All is every cluster, by name. It is from memory and shared: nobody may change it.
func (r *Registry) All() []Cluster { return r.all }

// Get is one cluster, from memory.
func (r *Registry) Get(name string) (Cluster, bool) { return Cluster{}, false }

// Put makes or changes a cluster by hand. With ifRev not 0 it is only changed when it is at that Rev.
func (r *Registry) Put(ctx context.Context, s Spec, actor string, ifRev int64) (Cluster, error) {
	return Cluster{}, errNotYet
}

// Delete removes a cluster by hand, unless jobs of ours are live there. One that the configuration file names stays
// away until its entry there changes.
func (r *Registry) Delete(ctx context.Context, name, actor string) error { return errNotYet }

// Hold keeps new jobs away from a cluster, or lets them there again.
func (r *Registry) Hold(ctx context.Context, name string, held bool, reason, actor string) (Cluster, error) {
	return Cluster{}, errNotYet
}

// Import is Put for many clusters, all or none. It removes nothing.
func (r *Registry) Import(ctx context.Context, specs []Spec, actor string) error { return errNotYet }

// SetLocal notes the cluster of this deployment's sidecar: its addresses and token. What was edited by hand stays.
func (r *Registry) SetLocal(ctx context.Context, s Spec) error { return errNotYet }

// ApplyFile makes the clusters be what a configuration file says. An edit by hand stands until the file's entry
// itself changes; a cluster whose entry is gone goes.
func (r *Registry) ApplyFile(ctx context.Context, path string, specs []Spec) error { return errNotYet }

// WatchFile applies a configuration file now and whenever it changes, until ctx ends. Only the server that looks
// after jobs may run it. A file that is broken or gone changes nothing, and FileProblem says so.
func (r *Registry) WatchFile(ctx context.Context, path string) {}

// FileProblem says what is wrong with the watched file ("": nothing), and which file that is ("": none is watched here).
func (r *Registry) FileProblem() (problem, path string) { return "", "" }

// SaveStatus keeps how clusters are. Names that are not there any more are left out.
func (r *Registry) SaveStatus(ctx context.Context, status map[string]Status) error { return errNotYet }

// Sample adds a point to the history of clusters.
func (r *Registry) Sample(ctx context.Context, samples map[string]Sample) error { return errNotYet }

// History is how a cluster was since a moment, at most six hours ago, oldest first. More than points samples are
// drawn together so that no dip and no peak is lost: lowest score, most used, most jobs.
func (r *Registry) History(ctx context.Context, name string, since time.Time, points int) ([]Sample, error) {
	return nil, errNotYet
}

// Changes is signalled after something changed, its status included, at least once after the last change,
// until ctx ends; then it is closed.
func (r *Registry) Changes(ctx context.Context) <-chan struct{} { return make(chan struct{}) }
