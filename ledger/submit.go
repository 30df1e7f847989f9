package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/schedulemesh/schedulemesh/sched"
)

// Limits of what a submission may carry, in bytes.
const (
	maxName       = 200
	maxLabelKey   = 200
	maxLabelValue = 1000
	maxLabels     = 64
)

func cleanLabels(labels sched.Labels) error {
	if len(labels) > maxLabels {
		return invalid("labels", "has %d labels, at most %d are allowed", len(labels), maxLabels)
	}
	for k, v := range labels {
		if k == "" {
			return invalid("labels", "has an empty key")
		}
		if err := clean("labels", k, maxLabelKey); err != nil {
			return err
		}
		if err := clean("labels."+k, v, maxLabelValue); err != nil {
			return err
		}
	}
	return nil
}

func choice(field, value, fallback string, allowed ...string) (string, error) {
	if value == "" {
		return fallback, nil
	}
	for _, a := range allowed {
		if value == a {
			return value, nil
		}
	}
	return "", invalid(field, "is %q: must be one of %s", value, strings.Join(allowed, ", "))
}

// check makes a submission complete and finds what is wrong with it, before a lane sees it.
func (s *Submission) check() (err error) {
	for _, f := range [...]struct {
		field, value string
		needed       bool
	}{{"task_id", s.TaskID, true}, {"pool", s.Pool, true}, {"agent_name", s.AgentName, false}, {"actor_class", s.Spec.ActorClass, false}} {
		if f.value == "" && f.needed {
			return invalid(f.field, "is missing")
		}
		if err := clean(f.field, f.value, maxName); err != nil {
			return err
		}
	}
	if err := cleanLabels(s.Labels); err != nil {
		return err
	}
	if s.Spec.ActorClass == "" && s.Spec.Pickled == nil {
		return invalid("actor_class", "is missing: give an import path such as package.module:Class")
	}
	if s.Spec.ActorClass != "" && !strings.Contains(s.Spec.ActorClass, ":") {
		return invalid("actor_class", "is %q: must be package.module:Class", s.Spec.ActorClass)
	}
	if s.Request.IsZero() {
		return invalid("resources", "is empty: say what the task needs, such as {\"cpu\": 1}")
	}
	for _, f := range [...]struct {
		field string
		value time.Duration
	}{{"estimated_duration", s.Estimate}, {"max_runtime", s.MaxRuntime}, {"launch_timeout", s.LaunchTimeout}, {"queue_timeout", s.QueueTimeout},
		{"retry_backoff", orUsual(s.RetryBackoff)}} {
		if f.value < 0 {
			return invalid(f.field, "is %s: must not be negative", f.value)
		}
	}
	if s.RetryBackoff != nil && *s.RetryBackoff > maxBackoff {
		return invalid("retry_backoff", "is %s: at most %s is waited between attempts", *s.RetryBackoff, maxBackoff)
	}
	if s.OnInsufficient, err = choice("on_insufficient", s.OnInsufficient, Fail, Fail, Queue); err != nil {
		return err
	}
	if s.OnPreempted, err = choice("on_preempted", s.OnPreempted, Stop, Stop, Requeue); err != nil {
		return err
	}
	if s.OnFailure, err = choice("on_failure", s.OnFailure, Stop, Stop, Requeue); err != nil {
		return err
	}
	if s.MaxAttempts == 0 {
		s.MaxAttempts = 1
		if s.OnFailure == Requeue {
			s.MaxAttempts = 3
		}
	}
	if s.MaxAttempts < 0 || s.MaxAttempts > 1000 {
		return invalid("max_attempts", "is %d: must be 1 to 1000", s.MaxAttempts)
	}
	if s.LaunchTimeout == 0 {
		s.LaunchTimeout = 60 * time.Second
	}
	return nil
}

// fingerprint is the hash that tells the same body from another one. Pickles stay
// out of it: the same class pickles differently from run to run.
func (s *Submission) fingerprint() string {
	h := sha256.New()
	actor := s.Actor
	s.Actor = ""
	_ = json.NewEncoder(h).Encode(s)
	s.Actor = actor
	return string(h.Sum(nil)[:16])
}

// Submit admits a task: it gets its quota, takes it from others under the policy,
// waits in line, or is refused with the reason. The same id with the same body gives
// the same task again.
func (l *Ledger) Submit(ctx context.Context, ns string, s Submission) (Task, error) {
	if err := s.check(); err != nil {
		return Task{}, err
	}
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return Task{}, err
	}
	a := &admission{uid: newID(), ns: ns, kind: KindTask, sub: s, hash: s.fingerprint()}
	err := l.find(ctx, &call{plan: poolOf(ns, s.Pool), do: func(b *batch) error { return b.submit(a) }}, l.wherePool(ctx, ns, s.Pool))
	return a.task, err
}

// Register says that a task runs on an agent. The same registration twice is one.
func (l *Ledger) Register(ctx context.Context, ns string, g Registration) (Task, error) {
	for _, f := range [...][2]string{{"task_id", g.TaskID}, {"agent_name", g.AgentName}, {"pool", g.Pool}} {
		if f[1] == "" {
			return Task{}, invalid(f[0], "is missing")
		}
		if err := clean(f[0], f[1], maxName); err != nil {
			return Task{}, err
		}
	}
	if err := cleanLabels(g.Labels); err != nil {
		return Task{}, err
	}
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return Task{}, err
	}
	sum := sha256.New()
	same := g
	same.Actor = ""
	_ = json.NewEncoder(sum).Encode(same)
	var out Task
	uid := newID()
	// A pool nobody made is no error, so whether another server just did is asked for once.
	asked := !l.servers.others()
	c := &call{whole: true, plan: registering(ns, g), do: func(b *batch) error {
		if !asked && b.spaces[ns].pools[g.Pool] == nil {
			return refuse(ErrUnknownPool, "there is no pool %q", g.Pool)
		}
		return b.register(uid, ns, g, string(sum.Sum(nil)[:16]), &out)
	}}
	err := l.find(ctx, c, func() (int64, error) {
		asked = true
		id, err := l.wherePool(ctx, ns, g.Pool)()
		if errors.Is(err, pgx.ErrNoRows) {
			return -l.spaceID(ns), nil
		}
		return id, err
	})
	return out, err
}

// registering plans for a registration: its pool, or what stands for none.
func registering(ns string, g Registration) func(*book) []*pool {
	return func(b *book) []*pool {
		s := b.spaces[ns]
		if s == nil {
			return nil
		}
		p := s.pools[g.Pool]
		if h := s.agents[g.AgentName]; p == nil || h == nil || h.pool != p {
			return []*pool{p, s.unmanaged}
		}
		return []*pool{p}
	}
}
