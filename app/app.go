// Package app is the whole server as one value: New wires ledger, agents,
// handlers and bridge together, Start opens the port, Stop closes everything in
// order. Tests run it in-process on port 0; cmd/server runs it for real.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/schedulemesh/schedulemesh/agents"
	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/db"
	"github.com/schedulemesh/schedulemesh/handlers/api"
	"github.com/schedulemesh/schedulemesh/handlers/auth"
	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/handlers/view"
	"github.com/schedulemesh/schedulemesh/jobs"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/web"
)

// Config says what a server is made of. The zero value of a field means its default.
type Config struct {
	// DatabaseURL is the Postgres to use (required), as a libpq URL.
	DatabaseURL string
	// Addr is host:port to listen on, default 127.0.0.1:8080. When the port of the
	// default address is taken another free one is chosen and logged.
	Addr string
	// AddrExplicit says the address was asked for: a taken port is then an error.
	AddrExplicit bool
	// AllowedHosts are extra Host header values to accept beside the address itself and localhost names.
	AllowedHosts []string
	// TokenFile is where the first token is written (0600) and read from at the next start.
	TokenFile string
	// Tokens are extra bearer tokens (from the environment), required when Addr is not loopback.
	Tokens []string
	// BridgeURL connects to a sidecar that runs elsewhere: unix:/path, or http://host:port with BridgeToken.
	BridgeURL   string
	BridgeToken string
	// Bridge, when not nil, is asked for the way to Ray instead: several servers in
	// one test share a cluster.
	Bridge func(deployment string) bridge.Bridge
	// Python and RayAddress start a sidecar of our own when BridgeURL is empty.
	// BridgeURL == "fake" runs the in-process fake (benchmarks and demos without Ray).
	Python     string
	RayAddress string
	// NoRay runs no agents: for jobs alone, or beside other servers that do.
	NoRay bool
	// Clusters is the file with the clusters for jobs (clusters.yaml), "" for none. It is
	// read again when it changes.
	Clusters string
	// ClusterLostAfter is how long a cluster may be silent before its jobs are lost, default 1 min.
	ClusterLostAfter time.Duration
	// RunDir holds sockets and other small run-time files.
	RunDir string
	// Lanes off: a transaction for each call (benchmarks only).
	SingleTransactions bool
	Logger             *slog.Logger
	// ShutdownTimeout bounds Stop, default 10 s.
	ShutdownTimeout time.Duration
}

// App is a running server.
type App struct {
	cfg       Config
	log       *slog.Logger
	registry  *prometheus.Registry
	pool      *pgxpool.Pool
	ledger    *ledger.Ledger
	clusters  *clusters.Registry
	watcher   *clusters.Watcher
	packages  *jobs.PackageStore
	jobs      *jobs.Service
	agents    atomic.Pointer[agents.Seat]
	figures   *api.MemoryMetrics
	auth      *auth.Auth
	listener  net.Listener
	http      *http.Server
	collected func() // lets go of garbage collection
	stop      context.CancelFunc
	alive     sync.WaitGroup
}

// New checks the configuration, migrates the database and loads the core.
func New(ctx context.Context, cfg Config) (a *App, err error) {
	if cfg.DatabaseURL == "" {
		return nil, errors.New("no database: set DATABASE_URL, or use `server up` for one of our own")
	}
	if cfg.Addr == "" {
		cfg.Addr = "127.0.0.1:8080"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.ShutdownTimeout == 0 {
		cfg.ShutdownTimeout = 10 * time.Second
	}
	if err := mayListen(cfg); err != nil {
		return nil, err
	}
	a = &App{cfg: cfg, log: cfg.Logger, registry: prometheus.NewRegistry()}
	defer func() {
		if err != nil {
			_ = a.Stop(context.WithoutCancel(ctx))
		}
	}()
	a.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	if err := db.Migrate(ctx, cfg.DatabaseURL); err != nil {
		return nil, databaseError(err)
	}
	if a.pool, err = pgxpool.New(ctx, cfg.DatabaseURL); err != nil {
		return nil, databaseError(err)
	}
	a.ledger, err = ledger.Open(ctx, a.pool, ledger.Options{SingleTransactions: cfg.SingleTransactions, Metrics: ledger.NewMetrics(a.registry), Logger: cfg.Logger,
		Jobs: func(jobs []ledger.Job) {
			if s := a.agents.Load(); s != nil {
				s.Enqueue(jobs)
			}
		}})
	if err != nil {
		return nil, err
	}
	a.registry.MustRegister(a.ledger.GroupGauges())
	a.collected = collect(a.ledger.Loaded())
	if err := a.openJobs(ctx); err != nil {
		return nil, err
	}
	return a, nil
}

// mayListen refuses to be open by accident.
func mayListen(cfg Config) error {
	host, _, err := net.SplitHostPort(cfg.Addr)
	if err != nil {
		return fmt.Errorf("address %q is not host:port, such as 127.0.0.1:8080", cfg.Addr)
	}
	if onLoopback(host) || len(cfg.Tokens) > 0 {
		return nil
	}
	return fmt.Errorf("address %s can be reached from other machines: set SCHEDULEMESH_TOKENS to tokens of your own, or listen on 127.0.0.1", cfg.Addr)
}

func databaseError(err error) error {
	return fmt.Errorf("the database cannot be used: %w; check DATABASE_URL and that Postgres runs", err)
}

// Start listens and returns once requests are answered.
func (a *App) Start(ctx context.Context) error {
	if err := a.listen(); err != nil {
		return err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	a.stop = cancel
	a.ledger.SetURL(a.URL())

	open, err := a.bridges(ctx)
	if err != nil {
		return err
	}
	a.figures = api.NewMemoryMetrics(time.Now)
	a.agents.Store(agents.NewSeat(agents.Options{Ledger: a.ledger, URL: a.URL(), Figures: a.figures.Report, Metrics: agents.NewMetrics(a.registry), Logger: a.log}, open))
	a.alive.Go(func() { a.watchBalances(run) })
	a.alive.Go(func() { a.jobs.Run(run) })

	handler, err := a.handler()
	if err != nil {
		return err
	}
	a.http = &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		BaseContext: func(net.Listener) context.Context { return run },
		ErrorLog:    slog.NewLogLogger(a.log.Handler(), slog.LevelDebug)}
	go func() { _ = a.http.Serve(a.listener) }()
	if !a.cfg.NoRay {
		a.agents.Load().Start()
		a.alive.Go(func() { a.followLocal(run) })
	}
	a.log.Info("listening", "url", a.URL())
	return nil
}

// listen takes the address; when the port of the default one is taken, another.
func (a *App) listen() (err error) {
	a.listener, err = net.Listen("tcp", a.cfg.Addr)
	if err == nil {
		return nil
	}
	if !errors.Is(err, syscall.EADDRINUSE) || a.cfg.AddrExplicit {
		return fmt.Errorf("cannot listen on %s: %w; stop what uses it, or choose another with --addr", a.cfg.Addr, err)
	}
	host, port, _ := net.SplitHostPort(a.cfg.Addr)
	if a.listener, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err != nil {
		return fmt.Errorf("no free port on %s: %w", host, err)
	}
	a.log.Warn("port "+port+" is taken, using another", "url", a.URL())
	return nil
}

// bridges gives the way to open the bridge to Ray, which happens whenever this server
// becomes the one that runs the cluster's agents: connecting to the sidecar, or
// starting one.
func (a *App) bridges(ctx context.Context) (func(context.Context) (bridge.Bridge, error), error) {
	deployment, err := a.ledger.Deployment(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case a.cfg.NoRay:
		return nil, nil // the seat never asks
	case a.cfg.Bridge != nil:
		return func(context.Context) (bridge.Bridge, error) { return a.cfg.Bridge(deployment), nil }, nil
	case a.cfg.BridgeURL == "fake":
		node := bridge.Node{ID: "fake-node", Address: "127.0.0.1", Alive: true, Total: bridge.Resources{"cpu": 1 << 40, "gpu": 1 << 40, "memory": 1 << 40}}
		cluster := bridge.NewFakeCluster(node)
		return func(context.Context) (bridge.Bridge, error) { return cluster.Bridge(deployment), nil }, nil
	case a.cfg.BridgeURL != "":
		dial := func(context.Context) (bridge.Bridge, error) {
			b, err := bridge.Dial(a.cfg.BridgeURL, a.cfg.BridgeToken)
			if err != nil {
				return nil, fmt.Errorf("bridge %s: %w", a.cfg.BridgeURL, err)
			}
			return b, nil
		}
		b, err := dial(ctx) // what is wrong with the address is said at once
		if err != nil {
			return nil, err
		}
		return dial, b.Close()
	}
	dir := a.cfg.RunDir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "schedulemesh-"); err != nil {
			return nil, err
		}
	}
	return func(context.Context) (bridge.Bridge, error) {
		p, err := bridge.StartProcess(bridge.ProcessConfig{Python: a.cfg.Python, Socket: filepath.Join(dir, "bridge.sock"),
			RayAddress: a.cfg.RayAddress, Deployment: deployment, Logger: a.log})
		if err != nil {
			return nil, err
		}
		return sidecar{p.Bridge(), p}, nil
	}, nil
}

// sidecar is the bridge to a sidecar of our own, which ends with it.
type sidecar struct {
	bridge.Bridge
	process *bridge.Process
}

// Hello says why there is no sidecar, when that is known, rather than that there is none.
func (s sidecar) Hello(ctx context.Context) (bridge.Hello, error) {
	hello, err := s.Bridge.Hello(ctx)
	if why := s.process.Status().Err; err != nil && why != nil {
		err = why
	}
	return hello, err
}

func (s sidecar) Close() error {
	s.process.Stop()
	return nil
}

// watchBalances keeps the gauge of what `server verify` would print.
func (a *App) watchBalances(ctx context.Context) {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "schedulemesh_ledger_differences", Help: "Balances that differ from what tasks and loans say; anything but 0 is a defect."})
	a.registry.MustRegister(gauge)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Minute):
			if diffs, err := a.ledger.Verify(ctx); err == nil {
				gauge.Set(float64(len(diffs)))
				for _, d := range diffs {
					a.log.Error("the ledger does not add up", "difference", d)
				}
			}
		}
	}
}

type signInPage struct{}

func (signInPage) SignIn(w http.ResponseWriter, r *http.Request, f auth.SignInForm) {
	pages.SignIn(w, r, f.Status, web.SignIn{Action: "/sign-in", Next: f.Next, Problem: f.Error, Hint: f.TokenFile})
}

// handler puts the routes together.
func (a *App) handler() (http.Handler, error) {
	var err error
	a.auth, err = auth.New(auth.Config{TokenFile: a.cfg.TokenFile, Tokens: a.cfg.Tokens, Addr: a.listener.Addr().String(), Hosts: a.cfg.AllowedHosts,
		Page: signInPage{}, Logger: a.log})
	if err != nil {
		return nil, err
	}
	r := chi.NewRouter()
	r.Use(api.Access(a.log))
	r.Use(a.auth.Middleware)
	a.auth.Mount(r)
	r.Get("/healthz", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok") })
	r.Get("/readyz", a.readyz)
	r.Handle("/metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{Registry: a.registry}))
	api.New(api.Deps{Ledger: a.ledger, Logs: a.agents.Load(), Agents: a.agents.Load(), Jobs: a.jobs, Clusters: a.clusters, Packages: a.packages, Metrics: a.figures, Logger: a.log, Version: Version(), Server: a.about}).Mount(r)
	view := view.New(a.ledger, a.agents.Load(), view.Options{Jobs: a.jobs, Registry: a.clusters, LostAfter: a.cfg.ClusterLostAfter, Logger: a.log})
	site := pages.New(view, view, view, pages.Options{Logger: a.log, SignOut: "/sign-out", Version: Version()})
	r.Mount("/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		site.ServeHTTP(w, r.WithContext(pages.WithUser(r.Context(), auth.User(r.Context()))))
	}))
	return r, nil
}

// about says what this server is.
func (a *App) about(ctx context.Context) (api.Server, error) {
	deployment, err := a.ledger.Deployment(ctx)
	ray := a.agents.Load().Hello()
	return api.Server{Version: Version(), Deployment: deployment, URL: a.URL(),
		RayAddress: ray.RayAddress, RayVersion: ray.RayVersion, PythonVersion: ray.PythonVersion}, err
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n")
}

// readyz says whether this server can do its work: the database answers, and Ray too, if it is to run agents.
func (a *App) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	status, lines := http.StatusOK, []string{"ledger: ok", "ray: ok"}
	if err := a.ledger.Ready(ctx); err != nil {
		status, lines[0] = http.StatusServiceUnavailable, "ledger: "+err.Error()
	}
	if a.cfg.NoRay {
		lines[1] = "ray: not used here"
	} else if up, why := a.agents.Load().Up(); !up {
		status, lines[1] = http.StatusServiceUnavailable, "ray: the sidecar does not answer yet"
		if why != nil {
			lines[1] = "ray: " + why.Error()
		}
	}
	plain(w, status, strings.Join(lines, "\n"))
}

// URL is where the server answers, with the real port.
func (a *App) URL() string {
	if a.listener == nil {
		return ""
	}
	addr := a.listener.Addr().(*net.TCPAddr)
	host := addr.IP.String()
	if addr.IP.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, strconv.Itoa(addr.Port))
}

// OnLoopback says whether only this machine reaches the server.
func (a *App) OnLoopback() bool { return a.listener.Addr().(*net.TCPAddr).IP.IsLoopback() }

// SignInURL is a link that signs a browser in.
func (a *App) SignInURL() string { return a.auth.SignInURL(a.URL()) }

// Token is the first access token.
func (a *App) Token() string { return a.auth.Token() }

// Deployment identifies the database to Ray clusters.
func (a *App) Deployment(ctx context.Context) (string, error) { return a.ledger.Deployment(ctx) }

// Ray gives the address and the id of the cluster this server is, or was last, connected
// to, empty before the first time, and whether somebody runs its agents now.
func (a *App) Ray() (address, cluster string, up bool) {
	up, _ = a.agents.Load().Up()
	hello := a.agents.Load().Hello()
	return hello.RayAddress, hello.ClusterID, up
}

// Ledger is the door to quota and tasks, for tests.
func (a *App) Ledger() *ledger.Ledger { return a.ledger }

// WaitReady waits until the sidecar answers, if there is to be one.
func (a *App) WaitReady(ctx context.Context) error {
	for !a.cfg.NoRay {
		up, why := a.agents.Load().Up()
		if up {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("ray did not become ready: %w", errors.Join(why, ctx.Err()))
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// Stop closes everything in order; agents keep running in Ray.
func (a *App) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.ShutdownTimeout)
	defer cancel()
	var err error
	if a.stop != nil {
		a.stop() // ends streams, which would hold Shutdown up
	}
	if a.http != nil {
		if err = a.http.Shutdown(ctx); err != nil {
			err = a.http.Close()
		}
	} else if a.listener != nil {
		_ = a.listener.Close()
	}
	if s := a.agents.Load(); s != nil {
		err = errors.Join(err, s.Stop(ctx))
	}
	a.alive.Wait() // before the leases go
	if a.clusters != nil {
		a.clusters.Close()
	}
	if a.ledger != nil {
		a.ledger.Close()
	}
	if a.collected != nil {
		a.collected()
	}
	if a.pool != nil {
		a.pool.Close()
	}
	return err
}
