// Package api is the REST API: JSON in, JSON out, one file per resource.
//
// It turns requests into calls of the ledger and answers into documents, checks
// what can be checked without knowing the state of anything, and describes
// itself (OpenAPI 3.1, and a docs page made from it). It must not decide
// anything, and it must not know SQL, Ray or how a page looks.
package api

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"

	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
	"github.com/schedulemesh/schedulemesh/handlers/auth"
)

const (
	prefix           = "/api/v1"
	defaultNamespace = "default"
	defaultPriority  = 5.0
)

// Deps are what the API works with. What has no default is required.
type Deps struct {
	Ledger   Ledger
	Logs     Logs
	Agents   Agents
	Jobs     Jobs
	Clusters Clusters
	Packages Packages
	Metrics  Metrics // nil: kept in memory
	Logger   *slog.Logger
	Version  string // of the server, for the OpenAPI document
	// Server says what this server is; nil: only its version.
	Server func(context.Context) (Server, error)
	Now    func() time.Time // nil: time.Now
	// Heartbeat is how often an idle event stream says that it lives; 0: 15 s.
	Heartbeat time.Duration
}

// API serves /api.
type API struct {
	ledger    Ledger
	logs      Logs
	agents    Agents
	jobs      Jobs
	clusters  Clusters
	packages  Packages
	metrics   Metrics
	server    func(context.Context) (Server, error)
	now       func() time.Time
	heartbeat time.Duration
	log       *slog.Logger

	router *chi.Mux // at /api
	root   *chi.Mux // for serving it alone
	huma   huma.API
}

// New registers every operation.
func New(d Deps) *API {
	a := &API{ledger: d.Ledger, logs: d.Logs, agents: d.Agents, jobs: d.Jobs, clusters: d.Clusters, packages: d.Packages, metrics: d.Metrics, server: d.Server, now: d.Now, heartbeat: d.Heartbeat, log: d.Logger}
	if a.now == nil {
		a.now = time.Now
	}
	if a.metrics == nil {
		a.metrics = NewMemoryMetrics(a.now)
	}
	if a.heartbeat == 0 {
		a.heartbeat = 15 * time.Second
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	if d.Version == "" {
		d.Version = "dev"
	}
	if a.server == nil {
		a.server = func(context.Context) (Server, error) { return Server{Version: d.Version}, nil }
	}

	a.router = chi.NewRouter()
	a.router.Use(a.access)
	a.router.NotFound(func(w http.ResponseWriter, r *http.Request) {
		refuse(w, r, problem.New("not_found", "there is nothing at "+r.URL.Path+"; /api/docs lists what there is"))
	})
	a.router.MethodNotAllowed(a.methodNotAllowed)

	v1 := chi.NewRouter()
	a.router.Mount("/v1", v1)
	a.huma = humachi.New(v1.With(withBody, a.idempotent), config(d.Version))
	a.registerPools()
	a.registerGroups()
	a.registerHandlers()
	a.registerHolds()
	a.registerTasks(v1)
	a.registerPreemption()
	a.registerPolicy()
	a.registerWhatIf()
	a.registerBacktest()
	a.registerAgents()
	a.registerClusters()
	a.registerJobs(v1)
	a.registerPackages(v1)
	a.registerEvents(v1)
	a.registerNamespaces()
	a.registerServer()
	a.registerDocs()
	a.root = chi.NewRouter()
	a.Mount(a.root)
	return a
}

// Mount adds /api to a router.
func (a *API) Mount(r chi.Router) { r.Mount("/api", a.router) }

// ServeHTTP serves /api on its own.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.root.ServeHTTP(w, r)
}

// access adds ids and the log unless the whole server has them already.
func (a *API) access(next http.Handler) http.Handler {
	logged := Access(a.log)(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requestOf(r.Context()) != nil {
			next.ServeHTTP(w, r)
			return
		}
		logged.ServeHTTP(w, r)
	})
}

func (a *API) methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	path := r.URL.Path
	if r.URL.RawPath != "" {
		path = r.URL.RawPath
	}
	path = strings.TrimPrefix(path, "/api")
	for _, m := range []string{"HEAD", "GET", "POST", "PUT", "PATCH", "DELETE"} {
		if a.router.Match(chi.NewRouteContext(), m, path) {
			allowed = append(allowed, m)
		}
	}
	list := strings.Join(allowed, ", ")
	w.Header().Set("Allow", list)
	refuse(w, r, problem.New("method_not_allowed", r.Method+" is not possible here; use "+list))
}

// actor is who asks, for events.
func actor(ctx context.Context) string {
	if u := auth.User(ctx); u != "" {
		return u
	}
	return auth.API
}

// namespaceOf reads the namespace outside of huma.
func namespaceOf(r *http.Request) string {
	if r.URL.RawQuery == "" {
		return defaultNamespace
	}
	q, _ := url.ParseQuery(r.URL.RawQuery)
	if ns := q.Get("namespace"); ns != "" {
		return ns
	}
	return defaultNamespace
}

// pathParam is a piece of the path, unescaped once, outside of huma.
func pathParam(r *http.Request, name string) string {
	v := chi.URLParam(r, name)
	if r.URL.RawPath != "" { // chi routed on the escaped path
		if u, err := url.PathUnescape(v); err == nil {
			return u
		}
	}
	return v
}

// Scope is what every request has.
type Scope struct {
	Namespace string `query:"namespace" default:"default" doc:"The isolated set of pools, tasks and policy to work in." example:"default"`
}

func (s *Scope) check(f *faults) { f.name("query", "namespace", s.Namespace) }

// Paging is what every list has.
type Paging struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"50" doc:"The most items to answer with."`
	Cursor string `query:"cursor" doc:"The next_cursor of the page before."`
}

func (p *Paging) checkPaging(f *faults) { f.optionalName("query", "cursor", p.Cursor) }

// List is one page of a list.
type List[T any] struct {
	Items []T     `json:"items" doc:"The items of this page." nullable:"false"`
	Next  *string `json:"next_cursor" nullable:"true" doc:"Send it as ?cursor= for the next page; null on the last."`
}

func list[T any](items []T, next string) List[T] {
	l := List[T]{Items: items}
	if l.Items == nil {
		l.Items = []T{}
	}
	if next != "" {
		l.Next = &next
	}
	return l
}

func mapped[T, U any](items []T, f func(T) U) []U {
	out := make([]U, len(items))
	for i := range items {
		out[i] = f(items[i])
	}
	return out
}

// Doc is an answer with nothing but a body.
type Doc[T any] struct{ Body T }

func doc[T any](body T, err error) (*Doc[T], error) {
	if err != nil {
		return nil, err
	}
	return &Doc[T]{Body: body}, nil
}

// Nothing is an answer without a body.
type Nothing struct{}
