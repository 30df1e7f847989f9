package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
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

// Submit takes a job: it is on disk when this returns. created is false when the same job was there.
func (s *Service) Submit(ctx context.Context, spec Spec) (Job, bool, error) {
	j, err := s.prepare(spec)
	if err != nil {
		return Job{}, false, err
	}
	said := j.Spec
	said.JobID = spec.JobID // one that was made up is another each time
	print := fingerprint(said)
	if spec.SubmissionID != "" { // a repeated request is answered with the job, whatever has become of the clusters since
		if old, err := s.same(ctx, j.SubmissionID, print); err == nil || !errors.Is(err, ErrUnknownJob) {
			return old, false, err
		}
	}
	if err := s.possible(&j); err != nil {
		return Job{}, false, err
	}
	answer := make(chan error, 1)
	c := change{job: j, print: print, isNew: true, done: func(err error) { answer <- err },
		events: []Event{{At: j.CreatedAt, Type: "queued", Actor: j.SubmittedBy, Attempt: 1, Message: "taken", Detail: nil}}}
	s.inserts.push(c)
	select {
	case err = <-answer:
	case <-ctx.Done(): // it may be taken all the same: the same id asks
		return Job{}, false, ctx.Err()
	}
	switch {
	case errors.Is(err, errTaken):
		old, err := s.same(ctx, j.SubmissionID, print)
		return old, false, err
	case err != nil:
		return Job{}, false, unavailable(err)
	}
	s.o.Metrics.submitted()
	return j, true, nil
}

// prepare fills in what a Spec leaves open.
func (s *Service) prepare(spec Spec) (Job, error) {
	fields := map[string]string{}
	if err := CheckEntrypoint(spec.Entrypoint); err != nil {
		fields["entrypoint"] = err.Error()
	}
	if spec.MaxRetries < 0 {
		fields["max_retries"] = "is negative; 0 means none"
	}
	for _, on := range spec.RetryOn {
		if on != ClusterLost && on != NodeLost {
			fields["retry_on"] = fmt.Sprintf("%q is neither %s nor %s", on, ClusterLost, NodeLost)
		}
	}
	if spec.Reserve == "" {
		spec.Reserve = ReserveEntrypoint
	} else if spec.Reserve != ReserveEntrypoint && spec.Reserve != ReserveNone {
		fields["reserve"] = fmt.Sprintf("%q is neither %s nor %s", spec.Reserve, ReserveEntrypoint, ReserveNone)
	}
	if len(fields) > 0 {
		return Job{}, &ledger.Error{Code: "invalid", Message: "the job cannot be taken as it is", Fields: fields}
	}
	if spec.SubmissionID == "" {
		spec.SubmissionID = "sub_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	}
	if spec.JobID == "" {
		spec.JobID = "job_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	}
	if len(spec.RuntimeEnv) == 0 {
		spec.RuntimeEnv = json.RawMessage("{}")
	}
	if spec.Metadata == nil {
		spec.Metadata = map[string]string{}
	}
	if spec.MaxRetries > 0 && len(spec.RetryOn) == 0 {
		spec.RetryOn = []string{ClusterLost, NodeLost}
	}
	spec.Tags, spec.RetryOn = orEmpty(spec.Tags), orEmpty(spec.RetryOn)
	now := s.now()
	return Job{UID: sched.ID(uuid.Must(uuid.NewV7())), Spec: spec, State: Queued, Attempt: 1, CreatedAt: now, QueuedAt: now, Rev: 1}, nil
}

// ask is what a job asks of a placement.
func (j *Job) ask() Ask {
	return Ask{Requirements: j.Requirements, OneNode: j.Reserve == ReserveEntrypoint, Tags: j.Tags, Preferred: j.PreferredCluster, Tried: j.Tried}
}

// possible refuses a job that no cluster could ever take, and notes what its sender should know.
func (s *Service) possible(j *Job) error {
	sites := s.sites.get(s.o.Fleet)
	if len(sites) == 0 {
		return &ledger.Error{Code: ErrNoClusters.Code, Message: "no cluster is configured: name one in clusters.yaml, or add it on the page or with PUT /api/v1/clusters/{name}"}
	}
	a := j.ask()
	if Impossible(sites, a) {
		p := explain(sites, a)
		return &ledger.Error{Code: ErrImpossible.Code, Message: fmt.Sprintf("no cluster could ever take a job that asks for %s: %s", j.Requirements, tooSmall(p)), Detail: p}
	}
	if j.PreferredCluster != "" && !slices.ContainsFunc(sites, func(s *Site) bool { return s.c.Name == j.PreferredCluster }) {
		j.Notes = preferredNote(sites, a, "")
	}
	return nil
}

// same reads the job that has an id already, when it is the same.
func (s *Service) same(ctx context.Context, id string, print []byte) (Job, error) {
	row, err := s.q.JobBySubmission(ctx, id)
	if err != nil {
		return Job{}, s.readError(err, id)
	}
	if string(row.Fingerprint) != string(print) {
		return Job{}, &ledger.Error{Code: ErrJobExists.Code, Message: fmt.Sprintf("another job has the submission_id %q: give each submission an id of its own, or none", id)}
	}
	j, err := fromRow(row)
	return j, err
}

// Job reads one.
func (s *Service) Job(ctx context.Context, id string) (Job, error) {
	row, err := s.q.JobBySubmission(ctx, id)
	if err != nil {
		return Job{}, s.readError(err, id)
	}
	j, err := fromRow(row)
	if err != nil {
		return j, err
	}
	if Ended(j.State) {
		if j.LogTail, err = s.q.LogTail(ctx, row.Uid); errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		return j, err
	}
	if j.State != Queued {
		return j, nil
	}
	ahead, err := s.q.JobsAhead(ctx, dbgen.JobsAheadParams{Priority: int64(j.Priority), CreatedAt: j.CreatedAt, Uid: pgUUID(j.UID)})
	j.QueuePosition = int(ahead) + 1
	return j, err
}

func (s *Service) readError(err error, id string) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return &ledger.Error{Code: ErrUnknownJob.Code, Message: fmt.Sprintf("there is no job with the submission_id %q", id)}
	}
	return unavailable(err)
}

var errUnavailable = &ledger.Error{Code: "database_unavailable"}

// unavailable keeps what ctx or the database said as the cause.
func unavailable(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return errors.Join(&ledger.Error{Code: errUnavailable.Code, Message: "the database did not answer; nothing is known to be done"}, err)
}

// Wait reads a job as soon as until says yes, or when ctx ends. A database that is away for a moment does not end it.
func (s *Service) Wait(ctx context.Context, id string, until func(Job) bool) (Job, error) {
	var news <-chan struct{}
	for {
		j, err := s.Job(context.WithoutCancel(ctx), id)
		away := errors.Is(err, errUnavailable)
		if err != nil && (!away || ctx.Err() != nil) || err == nil && until(j) {
			return j, err
		}
		if err == nil && news == nil { // from now on changes are told, and those of meanwhile are read
			var cancel func()
			news, cancel = s.hub.watch(j.UID)
			defer cancel()
			continue
		}
		var again <-chan time.Time
		if away {
			again = time.After(waitAgain)
		}
		select {
		case <-news:
		case <-again:
		case <-ctx.Done():
			if err == nil {
				return j, nil
			}
		}
	}
}

const waitAgain = 200 * time.Millisecond // before a database that did not answer is asked again

// Bounds of what a list costs, however long the history is.
const (
	MostCounted = 10_000 // jobs of each state that are counted
	lookedAmong = 50_000 // of the newest jobs in which a text is looked for, and what a filter selects is counted
)

// Find lists jobs, newest first.
func (s *Service) Find(ctx context.Context, f Filter) (Page, error) {
	p := dbgen.FindJobsParams{States: orEmpty(f.States), Cluster: f.Cluster, JobID: f.JobID, Tags: orEmpty(f.Tags), Metadata: []byte("{}"), Txt: f.Text, RowLimit: int32(f.Limit) + 1}
	if f.Metadata != nil {
		p.Metadata = asJSON(f.Metadata)
	}
	var recent time.Time
	if f.Text != "" || f.Cluster != "" || f.JobID != "" || len(f.Tags) > 0 || len(f.Metadata) > 0 {
		var err error
		if recent, err = s.q.JobsSince(ctx, lookedAmong); err != nil {
			return Page{}, unavailable(err)
		}
	}
	if f.Text != "" {
		p.Since = recent
	}
	if !f.After.IsZero() {
		p.After = &f.After
	}
	if !f.Before.IsZero() {
		p.Before = &f.Before
	}
	if f.Cursor != "" {
		at, id, ok := readCursor(f.Cursor)
		if !ok {
			return Page{}, &ledger.Error{Code: "invalid", Message: "the cursor is not one that a list gave", Fields: map[string]string{"cursor": "is not one that a list gave: start without one"}}
		}
		p.CursorAt, p.CursorUid = &at, id
	}
	rows, err := s.q.FindJobs(ctx, p)
	if err != nil {
		return Page{}, unavailable(err)
	}
	counts, err := s.q.CountJobs(ctx, dbgen.CountJobsParams{Cluster: p.Cluster, JobID: p.JobID, Tags: p.Tags, Metadata: p.Metadata, Txt: p.Txt, Since: recent, After: p.After, Before: p.Before, Most: MostCounted})
	if err != nil {
		return Page{}, unavailable(err)
	}
	out := Page{Count: map[string]int{}}
	for _, c := range counts {
		if c.N == 0 {
			continue
		}
		out.Count[c.State] = int(c.N)
		if len(f.States) == 0 || slices.Contains(f.States, c.State) {
			out.Total += int(c.N)
		}
	}
	if len(rows) > f.Limit {
		rows = rows[:f.Limit]
		last := rows[len(rows)-1]
		out.Next = fmt.Sprintf("%d_%x", last.CreatedAt.UnixMicro(), last.Uid.Bytes)
	}
	out.Items, err = fromRows(rows)
	return out, err
}

func readCursor(text string) (at time.Time, id pgtype.UUID, ok bool) {
	var micros int64
	var bytes []byte
	if _, err := fmt.Sscanf(text, "%d_%x", &micros, &bytes); err != nil || len(bytes) != 16 {
		return at, id, false
	}
	return time.UnixMicro(micros), pgtype.UUID{Bytes: [16]byte(bytes), Valid: true}, true
}

// Stop has a job stopped; one that is over already is just answered.
func (s *Service) Stop(ctx context.Context, id, actor string) (Job, error) {
	now := s.now()
	row, err := s.q.RequestStop(ctx, dbgen.RequestStopParams{SubmissionID: id, Actor: actor, At: &now})
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Job{}, unavailable(err)
	}
	if err == nil {
		if e := s.engine.Load(); e != nil {
			e.stop(sched.ID(row.Uid.Bytes), actor, now)
		} else if _, err := s.pool.Exec(ctx, "SELECT pg_notify($1, $2)", Channel, saysStop); err != nil {
			s.log.Warn("the server that moves jobs could not be told of a stop; it looks by itself", "error", err)
		}
	}
	return s.Job(ctx, id)
}

// Events is a job's history, oldest first.
func (s *Service) Events(ctx context.Context, id string) ([]Event, error) {
	row, err := s.q.JobBySubmission(ctx, id)
	if err != nil {
		return nil, s.readError(err, id)
	}
	rows, err := s.q.JobEvents(ctx, row.Uid)
	if err != nil {
		return nil, unavailable(err)
	}
	out := make([]Event, len(rows))
	for i, r := range rows {
		out[i] = Event{ID: r.ID, At: r.At, Type: r.Type, Actor: r.Actor, Attempt: int(r.Attempt), Cluster: r.Cluster, Code: r.Code, Message: r.Message, Detail: r.Detail}
	}
	return out, nil
}

// Outside lists what others started on a cluster, newest first.
func (s *Service) Outside(ctx context.Context, cluster string, limit int) ([]Outside, error) {
	rows, err := s.q.OutsideJobs(ctx, dbgen.OutsideJobsParams{Cluster: cluster, RowLimit: int32(limit)})
	if err != nil {
		return nil, unavailable(err)
	}
	out := make([]Outside, len(rows))
	for i, r := range rows {
		out[i] = Outside{Cluster: r.Cluster, RayID: r.RayID, Kind: r.Kind, Entrypoint: r.Entrypoint, State: r.State, Message: r.Message, StartedAt: r.StartedAt, EndedAt: r.EndedAt, SeenAt: r.SeenAt}
		_ = json.Unmarshal(r.Metadata, &out[i].Metadata)
	}
	return out, nil
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

// Live counts the jobs that have not ended, by cluster ("": nowhere yet) and state.
func (s *Service) Live(ctx context.Context) (map[string]map[string]int, error) {
	rows, err := s.q.CountLiveJobs(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	out := map[string]map[string]int{}
	for _, r := range rows {
		if out[r.Cluster] == nil {
			out[r.Cluster] = map[string]int{}
		}
		out[r.Cluster][r.State] = int(r.N)
	}
	return out, nil
}
