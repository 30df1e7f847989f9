package api

import (
	"context"
	"math"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
)

// Namespace is an isolated set of pools, tasks and policy.
type Namespace struct {
	Name         string `json:"name" example:"default"`
	Ephemeral    bool   `json:"ephemeral" doc:"It is held by a session, and cleared when that ends or expires. Otherwise it is kept."`
	SessionOwner string `json:"session_owner" doc:"Who holds it, in words; empty when nobody does." example:"ann@laptop, train.py"`
	ExpiresAt    Stamp  `json:"expires_at" nullable:"true" doc:"When its session expires unless it is renewed; null without one."`
	Closing      bool   `json:"closing" doc:"What was in it is being removed; nothing can be changed in it until that is done."`
}

// NamespaceExtent is a namespace and how much there is in it.
type NamespaceExtent struct {
	Namespace
	Pools     int `json:"pools" doc:"Pools in it." example:"2"`
	LiveTasks int `json:"live_tasks" doc:"Tasks that have not ended." example:"12"`
	Agents    int `json:"agents" doc:"Agents that exist or are being made." example:"9"`
}

// NamespaceHeld is what came of holding a namespace.
type NamespaceHeld struct {
	Namespace
	Created bool `json:"created" doc:"It begins with this request: there is nothing in it."`
	Cleared bool `json:"cleared" doc:"What an earlier session had left was cleared first."`
}

func namespaceDoc(n ledger.Namespace) Namespace {
	return Namespace{Name: n.Name, Ephemeral: n.Ephemeral, SessionOwner: n.Owner, ExpiresAt: Stamp(n.ExpiresAt), Closing: n.Closing}
}

// NamespacePath names a namespace.
type NamespacePath struct {
	Name string `path:"name" doc:"Name of the namespace, percent-encoded." example:"default"`
}

func (p *NamespacePath) check(f *faults) { f.name("path", "name", p.Name) }

// NewSession asks for a namespace.
type NewSession struct {
	Detached bool     `json:"detached,omitempty" doc:"Keep the namespace: it belongs to no session and stays until it is deleted."`
	Session  string   `json:"session,omitempty" doc:"An id that the holder made up, needed unless detached. The same id again renews the session." example:"3f1c7e52"`
	Owner    string   `json:"owner,omitempty" doc:"Who that is, for people." example:"ann@laptop, train.py"`
	TTL      *float64 `json:"ttl,omitempty" doc:"Seconds until the session expires unless it is renewed, 1 to 3600; 15 unless said." example:"15"`
	Replace  string   `json:"replace,omitempty" doc:"A session that is to give way to this one: what it left is cleared. It cannot be renewed any more."`
}

const usualTTL = 15.0

func (s *NewSession) hold(name string) (ledger.NamespaceHold, error) {
	var f faults
	f.optionalName("body", "owner", s.Owner)
	f.optionalName("body", "replace", s.Replace)
	ttl := usualTTL
	if s.TTL != nil {
		ttl = *s.TTL
	}
	if s.Detached {
		f.optionalName("body", "session", s.Session)
	} else {
		f.name("body", "session", s.Session)
		if math.IsNaN(ttl) || ttl < ledger.MinTTL.Seconds() || ttl > ledger.MaxTTL.Seconds() {
			f.add("body", "ttl", "is %v; give %v to %v seconds", ttl, ledger.MinTTL.Seconds(), ledger.MaxTTL.Seconds())
		}
	}
	if err := f.err(); err != nil {
		return ledger.NamespaceHold{}, err
	}
	h := ledger.NamespaceHold{Detached: s.Detached, Session: s.Session, Owner: s.Owner, Replace: s.Replace}
	if !s.Detached {
		h.TTL = time.Duration(ttl * float64(time.Second))
	}
	return h, nil
}

func (a *API) registerNamespaces() {
	register(a, operation{id: "list-namespaces", method: "GET", path: "/namespaces", tag: "Namespaces",
		summary: "List namespaces", about: "Those that are kept, held by a session, or being cleared, on one page. A namespace is kept when it was asked for, or made by being used.",
	}, func(ctx context.Context, _ *struct{}) (*Doc[List[Namespace]], error) {
		all, err := a.ledger.ListNamespaces(ctx)
		return doc(list(mapped(all, namespaceDoc), ""), err)
	})

	register(a, operation{id: "hold-namespace", method: "PUT", path: "/namespaces/{name}", tag: "Namespaces",
		summary: "Hold or keep a namespace",
		about: "With `detached` the namespace is kept. Otherwise it is held by `session` for `ttl` seconds; the same request again renews it. " +
			"When the session is deleted, or expires because nobody renewed it, everything in the namespace is stopped and removed: tasks, agents, pools, policy and history. " +
			"What an earlier session left is cleared before this is answered. That takes at most a minute; else `namespace_closing` says what is still there, and the clearing goes on.",
		codes: []string{"namespace_in_use", "namespace_kept"}, request: `{"session": "3f1c7e52", "owner": "ann@laptop, train.py", "ttl": 15}`,
	}, func(ctx context.Context, in *struct {
		NamespacePath
		Body NewSession
	}) (*Doc[NamespaceHeld], error) {
		h, err := in.Body.hold(in.Name)
		if err != nil {
			return nil, err
		}
		n, err := a.ledger.HoldNamespace(ctx, in.Name, h)
		return doc(NamespaceHeld{namespaceDoc(n.Namespace), n.Created, n.Cleared}, err)
	})

	register(a, operation{id: "get-namespace", method: "GET", path: "/namespaces/{name}", tag: "Namespaces",
		summary: "Read a namespace", about: "Who holds it, and how much there is in it.", codes: []string{"unknown_namespace"},
	}, func(ctx context.Context, in *NamespacePath) (*Doc[NamespaceExtent], error) {
		n, e, err := a.ledger.GetNamespace(ctx, in.Name)
		return doc(NamespaceExtent{namespaceDoc(n), e.Pools, e.LiveTasks, e.Agents}, err)
	})

	register(a, operation{id: "delete-namespace", method: "DELETE", path: "/namespaces/{name}", tag: "Namespaces", status: 204,
		summary: "End a session, or delete a namespace",
		about: "Stops by force everything that lives in the namespace, waits until it was seen gone, and removes pools, policy and history. " +
			"One that a session holds is deleted by that `session`; a kept one only if nothing lives in it, or with `force`. `default` is cleared but stays. " +
			"After a minute `namespace_closing` says what is still there; the clearing goes on.",
		codes: []string{"unknown_namespace", "namespace_in_use", "namespace_kept", "namespace_closing"},
	}, func(ctx context.Context, in *struct {
		NamespacePath
		Session string `query:"session" doc:"The session that holds it."`
		Force   bool   `query:"force" doc:"Whoever holds it, and whatever lives in it."`
	}) (*Nothing, error) {
		var f faults
		f.optionalName("query", "session", in.Session)
		if err := f.err(); err != nil {
			return nil, err
		}
		return nil, a.ledger.EndNamespace(ctx, in.Name, in.Session, in.Force)
	})
}
