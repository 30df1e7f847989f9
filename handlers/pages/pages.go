// Package pages answers browsers: every page of the dashboard, the forms on them,
// the live stream that tells pages what changed, and the static assets.
//
// It knows the product only through Source, Actions and Live, and draws with web.
// Every page is a plain link and every change a plain form, answered with a
// redirect; htmx only makes both quicker. Who a visitor is, somebody else decides
// and says with WithUser.
package pages

import (
	"context"
	"log/slog"
	"time"

	"github.com/schedulemesh/schedulemesh/web"
)

// Source is what pages read. A method that names something which does not exist fails with an
// error whose code (see Coded) is "not_found" or begins with "unknown_".
type Source interface {
	// Frame is asked for on every page: it must be cheap.
	Frame(ctx context.Context, ns string) (web.Frame, error)
	Overview(ctx context.Context, ns string) (web.Overview, error)

	Pools(ctx context.Context, ns string) ([]web.Pool, error)
	Pool(ctx context.Context, ns, name string, behind int) (web.PoolPage, error) // with its line, after so many
	Nodes(ctx context.Context) ([]web.Node, error)
	PoolClusters(ctx context.Context) ([]string, error) // names a pool may belong to

	Tasks(ctx context.Context, ns string, f web.TaskFilter) (web.TaskList, error)
	Task(ctx context.Context, ns, id string) (web.Task, error) // by task id, or by uid
	// TaskLog reads at most limit bytes of stream ("stdout", "stderr") from offset; a negative offset
	// means the last limit bytes. A task that never ran has an empty log, which has ended if it has.
	TaskLog(ctx context.Context, ns, id, stream string, offset int64, limit int) (web.LogChunk, error)
	TaskState(ctx context.Context, ns, id string) (web.SavedState, error) // zero when there is none
	Classes(ctx context.Context, ns string) ([]string, error)             // import paths submitted lately

	Policy(ctx context.Context, ns string) (web.Policy, error) // the active one
	PolicyVersion(ctx context.Context, ns string, version int) (web.Policy, error)
	PolicyVersions(ctx context.Context, ns, cursor string, limit int) (web.PolicyVersions, error)

	// WhatIf answers a supposition and changes nothing; what is wrong with it is Coded, under the form's field names.
	WhatIf(ctx context.Context, ns string, s web.Supposition) (web.WhatIf, error)
	// BeginBacktest replays history under a draft, for as long as somebody asks Backtest how far it is.
	BeginBacktest(ctx context.Context, ns string, f web.BacktestForm, r web.BacktestRequest) (id string, err error)
	Backtest(ctx context.Context, ns, id string) (web.Backtest, error)

	Preemptions(ctx context.Context, ns string, f web.PreemptionFilter) (web.PreemptionList, error)
	Preemption(ctx context.Context, ns, id string) (web.Preemption, error)
	Agents(ctx context.Context, ns string, f web.AgentFilter) (web.AgentList, error)
	Events(ctx context.Context, ns string, f web.EventFilter) (web.EventList, error)

	JobSource

	// Find answers the jump box: an exact name first, then what begins with or contains the text.
	Find(ctx context.Context, ns, text string, limit int) ([]web.Hit, error)
}

// Actions is what pages change. Who did it is User(ctx). An error that is Coded tells people what
// was wrong: its fields are shown where they were typed, under the names of the REST API.
type Actions interface {
	SubmitTask(ctx context.Context, ns string, t web.NewTask) (taskID string, err error)
	CompleteTask(ctx context.Context, ns, id string) error
	CancelTask(ctx context.Context, ns, id string) error
	PreemptTask(ctx context.Context, ns, id string) error
	SetPriority(ctx context.Context, ns, id string, priority float64) error

	CreatePool(ctx context.Context, ns string, p web.PoolSpec) error
	UpdatePool(ctx context.Context, ns, name string, p web.PoolSpec) error
	DeletePool(ctx context.Context, ns, name string) error
	// HoldPool and HoldNode hold, drain or resume; code "wrong_state" when there is nothing to resume.
	HoldPool(ctx context.Context, ns, name string, h web.HoldRequest) error
	HoldNode(ctx context.Context, id string, h web.HoldRequest) error

	// CheckPolicy says what is wrong with a draft (a Coded error) and what is merely odd.
	CheckPolicy(ctx context.Context, ns string, d web.PolicyDoc) (warnings []string, err error)
	// SavePolicy makes d the next version after base; code "version_conflict" when base is not active any more.
	SavePolicy(ctx context.Context, ns string, d web.PolicyDoc, base int, author, comment string) (version int, err error)
	// Rollback makes a new version with the content of an old one, after base as SavePolicy does; 0 means any.
	Rollback(ctx context.Context, ns string, to, base int, author, comment string) (version int, err error)

	DeleteAgent(ctx context.Context, ns, name string, force bool) error

	JobActions
}

// JobSource is what pages read of jobs and of the clusters they go to, which belong to no namespace.
type JobSource interface {
	Clusters(ctx context.Context, f web.ClusterFilter) (web.ClusterList, error)
	Cluster(ctx context.Context, name string, hours int) (web.ClusterPage, error) // with so many hours of history
	ClusterForm(ctx context.Context, name string) (web.ClusterForm, error)
	ClusterNames(ctx context.Context) ([]string, error)

	Jobs(ctx context.Context, f web.JobFilter) (web.JobList, error)
	Job(ctx context.Context, id string) (web.Job, error) // without its log
	// JobLog reads at most limit bytes of what a job printed from offset; a negative offset means the last limit
	// bytes. It takes a moment at most: what a cluster does not give by then is a Problem.
	JobLog(ctx context.Context, id string, offset int64, limit int) (web.JobLog, error)
}

// JobActions is what pages change of jobs and clusters.
type JobActions interface {
	AddCluster(ctx context.Context, c web.ClusterSpec) error
	// EditCluster replaces what is configured; code "version_conflict" when c.Rev is not current any more.
	EditCluster(ctx context.Context, c web.ClusterSpec) error
	RemoveCluster(ctx context.Context, name string) error
	HoldCluster(ctx context.Context, name string, h web.HoldRequest) error

	SubmitJob(ctx context.Context, j web.NewJob) (id string, err error)
	StopJob(ctx context.Context, id string) error
}

// Topic names what changed.
type Topic string

// The topics that pages listen to.
const (
	Tasks       Topic = "tasks"
	Pools       Topic = "pools"
	Policy      Topic = "policy"
	Preemptions Topic = "preemptions"
	Agents      Topic = "agents"
	Events      Topic = "events"
	Jobs        Topic = "jobs"
	Clusters    Topic = "clusters"
)

// Live tells what changes. The channel gives a topic each time something of it changed, may drop
// repetitions, and is closed when ctx ends or the server stops; browsers then connect again.
type Live interface {
	Subscribe(ctx context.Context, ns string) <-chan Topic
}

// Options are the rest. The zero value of a field means its default.
type Options struct {
	Logger    *slog.Logger
	Now       func() time.Time // default time.Now
	PageSize  int              // rows of a list, default 50
	Quiet     time.Duration    // least time between two live messages of a topic, default 400 ms
	Heartbeat time.Duration    // of an idle live stream, default 15 s
	SignOut   string           // where the sign-out form posts to; "" hides it
	Version   string           // of the server, in the footer
}

// Coded is an error people can read: a stable code, and messages by field.
type Coded interface {
	error
	Code() string
	Fields() map[string]string
}

// Refusal is a Coded error.
type Refusal struct {
	ErrorCode string
	Message   string
	ByField   map[string]string
}

func (r *Refusal) Error() string { return r.Message }

// Code is the stable code.
func (r *Refusal) Code() string { return r.ErrorCode }

// Fields are messages by field name.
func (r *Refusal) Fields() map[string]string { return r.ByField }

type userKey struct{}

// WithUser says who is signed in: the name in the header and the author of what is done.
func WithUser(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, userKey{}, name)
}

// User is who is signed in, "" when nobody said.
func User(ctx context.Context) string {
	name, _ := ctx.Value(userKey{}).(string)
	return name
}
