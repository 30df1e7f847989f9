package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/app"
	"github.com/schedulemesh/schedulemesh/clusters"
)

// serverSettings are those of the server itself, the same for `up` and `serve`.
type serverSettings struct {
	settings *settings

	database, addr, allowedHosts, tokenFile, tokens string
	bridgeURL, bridgeToken                          string
	python, rayAddress, runDir, clusters            string
	noRay, singleTransactions                       bool
	shutdownTimeout, clusterLostAfter               time.Duration
	logLevel, logFormat                             string
}

func (c *serverSettings) register(s *settings, logFormat string) {
	c.settings = s
	s.text(&c.addr, "addr", "HOST:PORT", "SCHEDULEMESH_ADDR", "127.0.0.1:8080", "where to listen; when the default is taken, another free port is chosen and said")
	s.text(&c.allowedHosts, "allowed-hosts", "NAMES", "SCHEDULEMESH_ALLOWED_HOSTS", "", "further Host names to answer to, with commas between")
	s.text(&c.tokenFile, "token-file", "FILE", "SCHEDULEMESH_TOKEN_FILE", "", "where the first access token is written at the first start, for your eyes only, and read later")
	s.secret(&c.tokens, "SCHEDULEMESH_TOKENS", "access tokens of your own, with commas between; required to listen on anything but loopback")
	s.text(&c.bridgeURL, "bridge-url", "URL", "SCHEDULEMESH_BRIDGE_URL", "", "a sidecar that runs elsewhere: unix:/path or http://host:port; `fake` for none, without Ray")
	s.secret(&c.bridgeToken, "SCHEDULEMESH_BRIDGE_TOKEN", "the token that sidecar asks for")
	s.text(&c.python, "python", "FILE", "SCHEDULEMESH_PYTHON", "", "a Python with Ray and the schedulemesh package, to start a sidecar with")
	s.text(&c.rayAddress, "ray-address", "HOST:PORT", "RAY_ADDRESS", "", "the Ray cluster that sidecar joins")
	s.toggle(&c.noRay, "no-ray", "SCHEDULEMESH_NO_RAY", "no sidecar and no agents: for jobs on other clusters alone, or beside servers that run agents")
	s.text(&c.clusters, "clusters", "FILE", "SCHEDULEMESH_CLUSTERS", "", "the clusters for jobs, read again when it changes; by default clusters.yaml here, or in schedulemesh in the user's configuration")
	s.duration(&c.clusterLostAfter, "cluster-lost-after", "SCHEDULEMESH_CLUSTER_LOST_AFTER", time.Minute, "how long a cluster may not answer before the jobs on it count as lost")
	s.text(&c.runDir, "run-dir", "DIR", "SCHEDULEMESH_RUN_DIR", "", "for sockets and other small files of a run")
	s.duration(&c.shutdownTimeout, "shutdown-timeout", "SCHEDULEMESH_SHUTDOWN_TIMEOUT", 10*time.Second, "how long requests may take to finish when stopping")
	s.text(&c.logLevel, "log-level", "LEVEL", "SCHEDULEMESH_LOG_LEVEL", "info", "debug, info, warn or error")
	s.text(&c.logFormat, "log-format", "FORMAT", "SCHEDULEMESH_LOG_FORMAT", logFormat, "json or text")
	s.toggle(&c.singleTransactions, "single-transactions", "SCHEDULEMESH_SINGLE_TRANSACTIONS", "a transaction for each call instead of batches; for benchmarks, much slower")
}

func (c *serverSettings) config(logger *slog.Logger) app.Config {
	return app.Config{
		DatabaseURL:        c.database,
		Addr:               c.addr,
		AddrExplicit:       c.settings.isGiven("addr"),
		AllowedHosts:       list(c.allowedHosts),
		TokenFile:          c.tokenFile,
		Tokens:             list(c.tokens),
		BridgeURL:          c.bridgeURL,
		BridgeToken:        c.bridgeToken,
		Python:             c.python,
		RayAddress:         c.rayAddress,
		NoRay:              c.noRay,
		Clusters:           c.clusters,
		ClusterLostAfter:   c.clusterLostAfter,
		RunDir:             c.runDir,
		SingleTransactions: c.singleTransactions,
		Logger:             logger,
		ShutdownTimeout:    c.shutdownTimeout,
	}
}

// check says which settings do not go together, and finds the file of clusters.
func (c *serverSettings) check() error {
	if c.noRay && (c.bridgeURL != "" || c.settings.isGiven("ray-address") && !c.settings.given["RAY_ADDRESS"]) {
		return errors.New("--no-ray goes neither with --bridge-url nor with --ray-address: leave one of them out")
	}
	if c.clusterLostAfter < time.Second {
		return fmt.Errorf("--cluster-lost-after %s is too short: clusters are asked how they are once a second", c.clusterLostAfter)
	}
	file, found := clusters.FindConfig(c.clusters, c.settings.getenv)
	if _, err := os.Stat(file); found && err != nil {
		return fmt.Errorf("the file of clusters cannot be read: %w; correct --clusters", err)
	}
	c.clusters = absolute(file)
	return nil
}

// logHandler writes logs to w in the format and from the level that were asked for.
func (c *serverSettings) logHandler(w io.Writer) (slog.Handler, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.logLevel)); err != nil {
		return nil, fmt.Errorf("log level %q is none of debug, info, warn, error", c.logLevel)
	}
	options := &slog.HandlerOptions{Level: level}
	switch c.logFormat {
	case "json":
		return slog.NewJSONHandler(w, options), nil
	case "text":
		return slog.NewTextHandler(w, options), nil
	default:
		return nil, fmt.Errorf("log format %q is neither json nor text", c.logFormat)
	}
}

func list(text string) []string {
	var items []string
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

func serveCommand() *command {
	var c serverSettings
	return &command{
		name:    "serve",
		summary: "the server alone, on a Postgres and a Ray you have",
		help: `
Runs the server on a Postgres and a Ray cluster that run already: what a
container or a unit file calls. It migrates the database, connects to a sidecar
(--bridge-url) or starts one (--python, --ray-address), and logs to standard error.
With --no-ray it runs no agents, only jobs on the clusters of clusters.yaml.`,
		settings: func(s *settings) {
			s.text(&c.database, "database", "URL", "DATABASE_URL", "", "the Postgres, as postgres://user:password@host:5432/name; required")
			c.register(s, "json")
		},
		run: func(ctx context.Context, io stdio, args []string) error {
			if len(args) > 0 {
				return errUsage
			}
			if err := c.check(); err != nil {
				return err
			}
			handler, err := c.logHandler(io.err)
			if err != nil {
				return err
			}
			if c.database == "" {
				return fmt.Errorf("no database: set DATABASE_URL to a Postgres, or run `server up`, which brings one")
			}
			logger := slog.New(handler)
			a, err := app.New(ctx, c.config(logger))
			if err != nil {
				return err
			}
			if err := a.Start(ctx); err != nil {
				return err
			}
			forget := announce(ctx, a, serverNotice{TokenFile: c.tokenFile}, logger)
			<-ctx.Done()
			_ = forget(ctx)
			stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.shutdownTimeout+5*time.Second)
			defer cancel()
			return a.Stop(stopCtx)
		},
	}
}
