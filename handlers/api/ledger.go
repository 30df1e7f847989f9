package api

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/jobs"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// Ledger is what the API needs of *ledger.Ledger.
type Ledger interface {
	Submit(ctx context.Context, ns string, s ledger.Submission) (ledger.Task, error)
	SubmitAll(ctx context.Context, ns string, subs []ledger.Submission, gang bool) ([]ledger.Submitted, error)
	Task(ctx context.Context, ns, taskID string) (ledger.Task, error)
	Tasks(ctx context.Context, ns string, f ledger.TaskFilter) (ledger.Page[ledger.Task], error)
	WaitTask(ctx context.Context, ns string, uid sched.ID) (ledger.Task, error)
	TaskEvents(ctx context.Context, ns, taskID string) ([]ledger.Event, error)
	Complete(ctx context.Context, ns, taskID, actor string) (ledger.Task, error)
	Cancel(ctx context.Context, ns, taskID, actor string) (ledger.Task, error)
	Restore(ctx context.Context, ns, taskID, actor string) (ledger.Task, error)
	Patch(ctx context.Context, ns, taskID string, p ledger.TaskPatch) (ledger.Task, error)
	Register(ctx context.Context, ns string, r ledger.Registration) (ledger.Task, error)

	Preempt(ctx context.Context, ns string, p ledger.PreemptRequest) (ledger.Preemption, error)
	Evaluate(ctx context.Context, ns string, e ledger.Evaluation) (ledger.EvaluationResult, error)
	Preemptions(ctx context.Context, ns string, limit int, cursor string) (ledger.Page[ledger.Preemption], error)
	Preemption(ctx context.Context, ns string, id int64) (ledger.Preemption, error)
	Stats(ctx context.Context, ns string) (ledger.Stats, error)

	CreatePool(ctx context.Context, ns string, p ledger.PoolSpec) (ledger.Pool, error)
	UpdatePool(ctx context.Context, ns string, p ledger.PoolSpec) (ledger.Pool, error)
	Pool(ctx context.Context, ns, name string) (ledger.Pool, error)
	Pools(ctx context.Context, ns string) ([]ledger.Pool, error)
	PoolGroups(ctx context.Context, ns, name string, ended bool) (ledger.Groups, error)
	HoldPool(ctx context.Context, ns, name string, r ledger.HoldRequest) (ledger.Pool, error)
	Nodes(ctx context.Context) ([]ledger.Node, error)
	HoldNode(ctx context.Context, id sched.NodeID, r ledger.HoldRequest) (ledger.Node, error)
	DeletePool(ctx context.Context, ns, name, actor string) error

	PutStateHandlers(ctx context.Context, ns string, h ledger.StateHandlers, actor string) (ledger.StateHandlers, error)
	StateHandlers(ctx context.Context, ns, pool string) (ledger.StateHandlers, error)
	DeleteStateHandlers(ctx context.Context, ns, pool, actor string) error

	CreateAgent(ctx context.Context, ns string, a ledger.AgentSubmission) (ledger.Agent, error)
	WaitAgent(ctx context.Context, ns string, uid sched.ID) (ledger.Agent, error)
	Agent(ctx context.Context, ns, nameOrTaskID string) (ledger.Agent, error)
	Agents(ctx context.Context, ns string, limit int, cursor string) (ledger.Page[ledger.Agent], error)
	DeleteAgent(ctx context.Context, ns, nameOrTaskID string, force, destroyGroup bool, actor string) error

	Policy(ctx context.Context, ns string) (ledger.PolicyVersion, error)
	PolicyVersions(ctx context.Context, ns string, limit int) ([]ledger.PolicyVersion, error)
	PolicyVersion(ctx context.Context, ns string, n int) (ledger.PolicyVersion, error)
	PutPolicy(ctx context.Context, ns string, c ledger.PolicyChange) (ledger.PolicyVersion, error)
	Rollback(ctx context.Context, ns string, to, base int, author, comment string) (ledger.PolicyVersion, error)
	WhatIf(ctx context.Context, ns string, w ledger.WhatIf) (ledger.WhatIfAnswer, error)
	Backtest(ctx context.Context, ns string, r ledger.BacktestRequest, progress func(ledger.BacktestProgress)) (ledger.BacktestResult, error)

	ListNamespaces(ctx context.Context) ([]ledger.Namespace, error)
	GetNamespace(ctx context.Context, name string) (ledger.Namespace, ledger.Extent, error)
	HoldNamespace(ctx context.Context, name string, h ledger.NamespaceHold) (ledger.NamespaceHeld, error)
	EndNamespace(ctx context.Context, name, session string, force bool) error
	Events(ctx context.Context, ns string, after int64, limit int) ([]ledger.Event, error)
	Subscribe(ctx context.Context, ns string, after int64) (<-chan ledger.Event, error)
	Idempotent(ctx context.Context, ns, key string, fingerprint []byte, do func(ctx context.Context) (status int, body []byte, err error)) (status int, body []byte, replayed bool, err error)
}

// Logs reads what a task's agent printed.
type Logs interface {
	// Logs gives at most limit bytes of a stream ("stdout" or "stderr") from a byte
	// offset, the offset to read on from, and whether nothing can follow. Text is
	// valid UTF-8. A negative offset means the last -offset bytes.
	Logs(ctx context.Context, ns, taskID, stream string, offset, limit int64) (text string, next int64, ended bool, err error)
}

// Agents does what needs the Ray cluster while a caller waits.
type Agents interface {
	// Restore gives a saved state, a JSON object, to the restorer of its pool. A restorer that fails is
	// an answer, not an error. A timeout of 0 is one minute.
	Restore(ctx context.Context, ns string, state json.RawMessage, timeout time.Duration) (ledger.Restored, error)
	// EnsureHealth asks every agent for a sign of life; recreate has those that give none, or have been
	// starting for longer than the timeout, made again.
	EnsureHealth(ctx context.Context, ns string, timeout time.Duration, recreate bool, actor string) (ledger.Health, error)
}

// Jobs is what may be done with jobs: *jobs.Service.
type Jobs = jobs.API

// Clusters is what the API needs of *clusters.Registry.
type Clusters interface {
	All() []clusters.Cluster
	Get(name string) (clusters.Cluster, bool)
	Put(ctx context.Context, s clusters.Spec, actor string, ifRev int64) (clusters.Cluster, error)
	Delete(ctx context.Context, name, actor string) error
	Hold(ctx context.Context, name string, held bool, reason, actor string) (clusters.Cluster, error)
	Import(ctx context.Context, specs []clusters.Spec, actor string) error
	History(ctx context.Context, name string, since time.Time, points int) ([]clusters.Sample, error)
}

// Packages keeps packed directories: *jobs.PackageStore.
type Packages interface {
	HasPackage(ctx context.Context, uri string) (bool, error)
	SavePackage(ctx context.Context, uri string, size int64, body io.Reader) error
}

// Metrics keeps what agents report about themselves.
type Metrics interface {
	// Report takes an agent's figures, a JSON object, in place of its earlier ones.
	Report(ctx context.Context, ns, agent string, figures json.RawMessage) error
	// Latest gives an agent's latest figures and when they came; nil when there are none.
	Latest(ns, agent string) (figures json.RawMessage, at time.Time)
}
