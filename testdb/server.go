package testdb

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/schedulemesh/schedulemesh/local"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/modules/postgres"
)

// Server is a Postgres server to make test databases on.
type Server struct {
	// URL reaches its maintenance database, as a user who may create databases.
	URL string
	// From says in words where it came from.
	From string
	stop func(context.Context) error
}

// Stop ends the server if we started it.
func (s *Server) Stop(ctx context.Context) error {
	if s.stop == nil {
		return nil
	}
	return s.stop(ctx)
}

// source is one place to get a server from.
type source struct {
	name string
	// usable says whether this is the place; no means the next is asked.
	usable func(ctx context.Context) bool
	start  func(ctx context.Context) (*Server, error)
	// fallible sources that fail to start are passed over with a word.
	fallible bool
}

// sources are the places in order of preference.
func sources(getenv func(string) string) []source {
	return []source{
		given("DATABASE_URL", getenv),
		given(ServerVariable, getenv),
		{
			name:     "a container",
			usable:   func(ctx context.Context) bool { return dockerAnswers(ctx) },
			start:    startContainer,
			fallible: true, // an engine without a way to the image
		},
		{
			name:   "embedded Postgres",
			usable: func(context.Context) bool { return true },
			start:  startEmbedded,
		},
	}
}

func given(variable string, getenv func(string) string) source {
	return source{
		name:   variable,
		usable: func(context.Context) bool { return getenv(variable) != "" },
		start: func(context.Context) (*Server, error) {
			u, err := url.Parse(getenv(variable))
			if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
				return nil, fmt.Errorf("%s must be a URL like postgres://user:password@host:5432/database", variable)
			}
			return &Server{URL: u.String(), From: variable}, nil
		},
	}
}

// Start returns a server from the first place that has one. Words about what it
// does go to out, a line each.
func Start(ctx context.Context, out io.Writer) (*Server, error) {
	return start(ctx, sources(os.Getenv), out)
}

func start(ctx context.Context, sources []source, out io.Writer) (*Server, error) {
	for _, s := range sources {
		if !s.usable(ctx) {
			continue
		}
		server, err := s.start(ctx)
		if err != nil && s.fallible {
			fmt.Fprintf(out, "testdb: no Postgres from %s (%v), trying the next way\n", s.name, err)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		return server, nil
	}
	return nil, fmt.Errorf("no Postgres for the tests: set DATABASE_URL")
}

var shared struct {
	once sync.Once
	url  string
	err  error
}

// sharedServer is this process's server, started at first use. Its end is the
// guard's work: a test binary has no last line of its own.
func sharedServer() (string, error) {
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		server, err := Start(ctx, os.Stderr)
		if err != nil {
			shared.err = err
			return
		}
		shared.url = server.URL
	})
	return shared.url, shared.err
}

// dockerAnswers asks for a Docker engine, quickly.
func dockerAnswers(ctx context.Context) (answers bool) {
	// The library panics where it finds no engine at all.
	defer func() {
		if recover() != nil {
			answers = false
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return false
	}
	defer provider.Close()
	return provider.Health(ctx) == nil
}

// startContainer runs Postgres in a container that testcontainers removes when
// this process has ended.
func startContainer(ctx context.Context) (*Server, error) {
	container, err := postgres.Run(ctx, "postgres:18-alpine",
		postgres.WithDatabase("postgres"),
		postgres.WithUsername("schedulemesh"),
		postgres.WithPassword("schedulemesh"),
		testcontainers.WithCmd("postgres", "-c", "fsync=off", "-c", "max_connections=400"),
		postgres.BasicWaitStrategies(),
	)
	if err != nil {
		return nil, err
	}
	address, err := container.ConnectionString(ctx, "sslmode=disable")
	if err != nil {
		_ = container.Terminate(ctx)
		return nil, err
	}
	return &Server{
		URL:  address,
		From: "a container",
		stop: func(ctx context.Context) error { return container.Terminate(ctx) },
	}, nil
}

// startEmbedded runs the embedded programs on data that ends with this process.
func startEmbedded(ctx context.Context) (*Server, error) {
	guard, err := local.StartGuard()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "schedulemesh-testdb-")
	if err != nil {
		return nil, err
	}
	guard.Remove(dir)
	// MkdirTemp closes the directory to the user that runs Postgres for root.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	pg, err := local.StartPostgres(ctx, local.PostgresOptions{
		Dir:      filepath.Join(dir, "postgres"),
		Volatile: true,
		Progress: func(line string) {
			if strings.HasPrefix(line, "downloading") {
				fmt.Fprintln(os.Stderr, "testdb:", line)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return &Server{
		URL:  databaseURL(pg.URL(), "postgres"),
		From: "embedded Postgres",
		stop: func(ctx context.Context) error {
			defer os.RemoveAll(dir)
			return pg.Stop(ctx)
		},
	}, nil
}
