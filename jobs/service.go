package jobs

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/db/dbgen"
)

// Lease is the name of the lease whose holder moves jobs: no cluster can be called so.
const Lease = "/jobs"

// Ray is what jobs need of a cluster's dashboard; *clusters.Ray is one.
type Ray interface {
	Submit(ctx context.Context, s clusters.Submission) error
	Job(ctx context.Context, id string) (clusters.JobInfo, error)
	Jobs(ctx context.Context) ([]clusters.JobInfo, error)
	Stop(ctx context.Context, id string) (bool, error)
	HasPackage(ctx context.Context, uri string) (bool, error)
	PutPackage(ctx context.Context, uri string, size int64, body io.Reader) error
	Logs(ctx context.Context, j clusters.JobInfo, offset, limit int64) (text string, next int64, err error)
	Follow(ctx context.Context, j clusters.JobInfo, offset int64, give func(text string, next int64) error) error
}

// Fleet is the clusters there are; *clusters.Registry is one.
type Fleet interface {
	All() []clusters.Cluster
	Get(name string) (clusters.Cluster, bool)
	Changes(ctx context.Context) <-chan struct{}
}

// Leases says which server moves jobs; *ledger.Ledger does.
type Leases interface {
	Contend(name string)
	Leads(name string) (bool, <-chan struct{})
	MayAct(name string) bool
}

// Options are the rest. The zero value of a field means its default.
type Options struct {
	Fleet  Fleet
	Client func(cluster string) (Ray, bool) // the way to a cluster's dashboard
	Leases Leases
	// Deployment marks our jobs in Ray; jobs with another mark, or none, are outside jobs.
	Deployment string
	Packages   *PackageStore // nil: one on the same database
	// Leading is run beside while this server moves jobs: what watches the clusters.
	Leading func(ctx context.Context)
	// LostAfter is how long a cluster may be silent before its jobs are lost; 60 s.
	LostAfter time.Duration
	Metrics   *Metrics
	Logger    *slog.Logger
	Now       func() time.Time
}

// Service is API on a database.
type Service struct {
	pool    *pgxpool.Pool
	q       *dbgen.Queries
	o       Options
	log     *slog.Logger
	now     func() time.Time
	inserts *combiner[change]
	hub     *hub
	engine  atomic.Pointer[engine] // while this server leads
	sites   siteCache
}

var _ API = (*Service)(nil)

// Open makes the service; Run makes it work.
func Open(pool *pgxpool.Pool, o Options) *Service {
	if o.LostAfter <= 0 {
		o.LostAfter = time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Packages == nil {
		o.Packages = NewPackageStore(pool, o.Now)
	}
	if o.Leading == nil {
		o.Leading = func(ctx context.Context) { <-ctx.Done() }
	}
	s := &Service{pool: pool, q: dbgen.New(pool), o: o, log: o.Logger, now: func() time.Time { return o.Now().UTC().Truncate(time.Microsecond) }, hub: newHub()}
	s.inserts = newCombiner(s.insertLot)
	return s
}

// Run takes jobs, and moves them while this server has the lease, until ctx ends.
func (s *Service) Run(ctx context.Context) {
	done := make(chan struct{}, 2)
	go func() { s.inserts.loop(ctx); done <- struct{}{} }()
	go func() { s.hub.listen(ctx, s); done <- struct{}{} }()
	s.o.Leases.Contend(Lease)
	for ctx.Err() == nil {
		leads, changed := s.o.Leases.Leads(Lease)
		if !leads {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		s.lead(ctx)
	}
	<-done
	<-done
}

// lead moves jobs until the lease is lost or ctx ends.
func (s *Service) lead(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for {
			leads, changed := s.o.Leases.Leads(Lease)
			if !leads {
				cancel()
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	beside := make(chan struct{})
	go func() { s.o.Leading(ctx); close(beside) }()
	go s.o.Packages.tend(ctx, s.log)
	e := newEngine(s)
	if err := e.run(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("moving jobs failed and is begun anew", "error", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	cancel()
	<-beside
}

// insertLot puts new jobs on disk.
func (s *Service) insertLot(lot []change) {
	answers, err := writeEach(context.Background(), s.pool, lot)
	if e := s.engine.Load(); e != nil && err == nil {
		var fresh []Job
		for i, c := range lot {
			if answers[i] == nil {
				fresh = append(fresh, c.job)
			}
		}
		e.add(fresh)
	}
	for i, c := range lot {
		if err != nil {
			c.done(err)
		} else {
			c.done(answers[i])
		}
	}
}

// LiveOn counts the jobs on a cluster that are not over, from memory; only the server that moves jobs knows.
func (s *Service) LiveOn(cluster string) int {
	if e := s.engine.Load(); e != nil {
		return e.liveOn(cluster)
	}
	return 0
}

// Changes is signalled whenever a job or the state of a cluster changed.
func (s *Service) Changes(ctx context.Context) <-chan Change { return s.hub.changes(ctx) }
