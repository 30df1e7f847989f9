package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/app"
	"github.com/schedulemesh/schedulemesh/local"
)

// upSettings are what `up` brings besides the server.
type upSettings struct {
	server           serverSettings
	data, venv       string
	project          string
	rayCPUs, rayGPUs int
	rayStore         int
	temporary        bool
	raySession       string
	parent           int
}

func upCommand() *command {
	var c upSettings
	return &command{
		name:    "up",
		summary: "everything on this machine: Postgres, Ray, sidecar, server",
		help: `
Brings up a whole ScheduleMesh on this machine and prints a link to it: an
embedded Postgres, unless DATABASE_URL names one; a Python environment with Ray,
unless SCHEDULEMESH_PYTHON names one; a Ray head, unless RAY_ADDRESS names a
cluster; the sidecar and the server. What it makes is kept in one directory, so
that the next start goes on where this one ended. Ctrl-C stops all of it.
With --no-ray there is neither Ray nor Python: only jobs, on other clusters.

Outside a checkout of ScheduleMesh it needs SCHEDULEMESH_PYTHON; ` + "`schedulemesh up`" + `
of the Python package sets it.`,
		settings: func(s *settings) {
			s.text(&c.data, "data", "DIR", "SCHEDULEMESH_DATA", "", dataUsage("keeps the database, the token and the logs"))
			s.text(&c.server.database, "database", "URL", "DATABASE_URL", "", "a Postgres to use instead of our own")
			s.text(&c.venv, "venv", "DIR", "SCHEDULEMESH_VENV", ".venv", "the Python environment to make or use")
			s.text(&c.project, "python-project", "DIR", "SCHEDULEMESH_PYTHON_PROJECT", pythonProject, "where requirements.lock and the schedulemesh package are")
			s.number(&c.rayCPUs, "ray-cpus", "SCHEDULEMESH_RAY_CPUS", max(8, runtime.NumCPU()), "logical CPUs of our Ray head; may be more than there are")
			s.number(&c.rayGPUs, "ray-gpus", "SCHEDULEMESH_RAY_GPUS", 0, "logical GPUs of our Ray head; 0 counts the real ones")
			s.number(&c.rayStore, "ray-object-store", "SCHEDULEMESH_RAY_OBJECT_STORE", 200, "MiB of shared memory for our Ray head's objects")
			s.toggle(&c.temporary, "temporary", "", "keep the data in a directory of its own that is removed at the end, instead of --data")
			s.text(&c.raySession, "ray-session", "NAME", "", "", "serve one life of a Ray cluster: keep its data under that name inside --data, and stop when the cluster is gone")
			s.number(&c.parent, "parent", "", 0, "stop when the process with this id, which started this one, is gone")
			c.server.register(s, "text")
		},
		run: func(ctx context.Context, io stdio, args []string) error {
			if len(args) > 0 {
				return errUsage
			}
			if err := c.server.check(); err != nil {
				return err
			}
			if c.server.noRay && c.raySession != "" {
				return errors.New("--no-ray does not go with --ray-session, which serves one Ray cluster")
			}
			ctx, stop := context.WithCancel(ctx)
			defer stop()
			if c.parent != 0 {
				go local.WatchParent(ctx, c.parent, stop)
			}
			return c.up(ctx, io)
		},
	}
}

// up starts everything, says where it is, waits, and stops everything.
func (c *upSettings) up(ctx context.Context, out stdio) (err error) {
	say := func(format string, args ...any) { fmt.Fprintf(out.out, "  "+format+"\n", args...) }
	progress := local.Progress(func(line string) { say("%s", line) })
	started := time.Now()

	// What is started is stopped in the opposite order, whatever happens.
	var stops []func(context.Context) error
	defer func() {
		if ctx.Err() != nil {
			say("stopping")
			if errors.Is(err, context.Canceled) {
				err = nil
			}
		}
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.server.shutdownTimeout+30*time.Second)
		defer cancel()
		for i := len(stops) - 1; i >= 0; i-- {
			err = errors.Join(err, stops[i](stopCtx))
		}
		if ctx.Err() != nil && !c.temporary {
			say("stopped; the data is kept in %s", c.data)
		}
	}()

	if _, err := local.StartGuard(); err != nil {
		return err
	}
	remove, err := c.prepareData()
	if err != nil {
		return err
	}
	stops = append(stops, remove)
	log, logger, err := c.openLog(out)
	if err != nil {
		return err
	}
	defer log.Close()

	// Closed when a part that must run has ended by itself.
	var postgresDone, rayDone <-chan struct{}
	if c.server.database == "" {
		pg, err := local.StartPostgres(ctx, local.PostgresOptions{Dir: filepath.Join(c.data, "postgres"), Volatile: c.temporary, Progress: progress})
		if err != nil {
			return err
		}
		stops = append(stops, pg.Stop)
		postgresDone = pg.Done()
		c.server.database = pg.URL()
		say("Postgres is up, its data in %s", filepath.Join(c.data, "postgres"))
	} else {
		say("using the Postgres that DATABASE_URL names")
	}
	forget, err := note(databaseNote(c.data), c.server.database)
	if err != nil {
		return err
	}
	stops = append(stops, forget)

	switch {
	case c.server.noRay:
		say("running no agents: for jobs alone")
	case c.server.bridgeURL != "":
		say("using the sidecar at %s", c.server.bridgeURL)
	default:
		if err := c.ensurePython(ctx, progress); err != nil {
			return err
		}
		if c.server.rayAddress == "" {
			ray, err := c.startRay(ctx, progress)
			if err != nil {
				return err
			}
			stops = append(stops, ray.Stop)
			rayDone = ray.Done()
			say("Ray is up at %s with %d CPUs, its dashboard at %s", ray.Address(), c.rayCPUs, ray.DashboardURL())
		} else {
			say("using the Ray cluster at %s", c.server.rayAddress)
		}
	}

	if c.server.clusters != "" {
		say("jobs may go to the clusters in %s", c.server.clusters)
	}
	a, err := app.New(ctx, c.server.config(logger))
	if err != nil {
		return err
	}
	if err := a.Start(ctx); err != nil {
		return err
	}
	stops = append(stops, a.Stop)
	if forget, err = note(filepath.Join(c.data, "url"), a.URL()); err != nil {
		return err
	}
	stops = append(stops, forget, announce(ctx, a, serverNotice{TokenFile: c.server.tokenFile, Data: c.data, Parent: c.parent}, logger))
	withRay, gone := context.WithCancel(ctx)
	defer gone()
	if c.raySession != "" {
		go func() { awaitRayGone(ctx, a.Ray, rayPatience); gone() }()
	}
	why := awaitReady(withRay, a.URL())
	if ctx.Err() != nil {
		return nil
	}
	if why != "" && withRay.Err() != nil {
		return fmt.Errorf("the Ray cluster at %s cannot be used:\n%s", c.server.rayAddress, why)
	}
	if why != "" {
		say("not everything is ready yet:\n%s", why)
	}
	fmt.Fprintf(out.out, "\n  ScheduleMesh is up (%s)\n\n    %s\n    sign in:  %s\n\n  Logs are in %s. Ctrl-C stops everything.\n\n",
		time.Since(started).Round(100*time.Millisecond), a.URL(), a.SignInURL(), log.Name())

	select {
	case <-postgresDone:
		return fmt.Errorf("our Postgres ended by itself: see %s", filepath.Join(c.data, "postgres", "postgres.log"))
	case <-rayDone:
		return errors.New("our Ray head ended by itself: start again, and give it more memory if it was killed for that")
	case <-withRay.Done(): // or ctx
		if ctx.Err() == nil {
			say("the Ray cluster is gone")
		}
		return nil
	}
}

// awaitReady waits until the server says that it can do its work, and returns what
// it says when it cannot for long.
func awaitReady(ctx context.Context, url string) (why string) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
		if err != nil {
			return err.Error()
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return ""
			}
			why = strings.TrimSpace(string(body))
		}
		select {
		case <-ctx.Done():
			return why
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// prepareData makes the directory for what is kept, and fills in what lives there.
func (c *upSettings) prepareData() (remove func(context.Context) error, err error) {
	remove = func(context.Context) error { return nil }
	if c.temporary {
		guard, err := local.StartGuard()
		if err != nil {
			return remove, err
		}
		if c.data, err = local.TemporaryDir(); err != nil {
			return remove, err
		}
		guard.Remove(c.data)
		remove = func(context.Context) error { return os.RemoveAll(c.data) }
	}
	if c.data == "" {
		if c.data, err = defaultData(); err != nil {
			return remove, err
		}
		if c.server.noRay {
			c.data = filepath.Join(c.data, "jobs") // beside what a server with agents keeps there
		}
	}
	if c.raySession != "" && !filepath.IsLocal(c.raySession) {
		return remove, fmt.Errorf("--ray-session %q is not the name of a directory inside --data", c.raySession)
	}
	if c.data, err = filepath.Abs(filepath.Join(c.data, c.raySession)); err != nil {
		return remove, err
	}
	// Not 0700: the user that runs Postgres for root passes through. Secrets in it are 0600.
	if err := os.MkdirAll(c.data, 0o755); err != nil {
		return remove, fmt.Errorf("no place for the data: %w; choose one with --data (SCHEDULEMESH_DATA)", err)
	}
	if c.server.tokenFile == "" {
		c.server.tokenFile = filepath.Join(c.data, "token")
	}
	if c.server.runDir == "" {
		c.server.runDir, err = local.RunDir(filepath.Join(c.data, "run"))
	}
	return remove, err
}

// note leaves a line in a file where others look while this runs: `server verify`
// for the database, scripts for the server. It is for this user alone.
func note(path, line string) (forget func(context.Context) error, err error) {
	guard, err := local.StartGuard()
	if err != nil {
		return nil, err
	}
	guard.Remove(path)
	if err := os.WriteFile(path, []byte(line+"\n"), 0o600); err != nil {
		return nil, err
	}
	return func(context.Context) error { return os.Remove(path) }, nil
}

// openLog logs to a file, and warnings to the terminal too.
func (c *upSettings) openLog(out stdio) (*os.File, *slog.Logger, error) {
	name := filepath.Join(c.data, "server.log")
	log, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, err
	}
	toFile, err := c.server.logHandler(log)
	if err != nil {
		log.Close()
		return nil, nil, err
	}
	toTerminal := slog.NewTextHandler(io.Writer(out.err), &slog.HandlerOptions{Level: slog.LevelWarn})
	return log, slog.New(slog.NewMultiHandler(toFile, toTerminal)), nil
}

func (c *upSettings) ensurePython(ctx context.Context, progress local.Progress) (err error) {
	if c.server.python != "" {
		return nil
	}
	lock := filepath.Join(c.project, "requirements.lock")
	if !inCheckout(c.project) {
		return fmt.Errorf("%s is not here: run this in a checkout of ScheduleMesh, or set SCHEDULEMESH_PYTHON to a Python with Ray and the schedulemesh package (`schedulemesh up` of that package does)", lock)
	}
	c.server.python, err = local.EnsurePython(ctx, local.PythonOptions{
		Dir: c.venv, Locks: []string{lock}, Project: c.project, Base: os.Getenv("PYTHON"), Progress: progress,
	})
	return err
}

// startRay starts a head whose drivers, the sidecar among them, find what they
// need in our environment.
func (c *upSettings) startRay(ctx context.Context, progress local.Progress) (*local.Ray, error) {
	progress("starting Ray")
	var token string
	if os.Getenv("RAY_AUTH_MODE") != "disabled" {
		var err error
		if token, err = local.RayToken(); err != nil {
			return nil, err
		}
	}
	ray, err := local.StartRay(ctx, local.RayOptions{
		Python: c.server.python, NumCPUs: c.rayCPUs, NumGPUs: c.rayGPUs,
		ObjectStoreMemory: int64(c.rayStore) << 20, Token: token, Progress: progress,
	})
	if err != nil {
		return nil, err
	}
	c.server.rayAddress = ray.Address()
	return ray, ray.Export()
}
