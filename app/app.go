// Package app is the whole server as one value: New wires ledger, agents,
// handlers and bridge together, Start opens the port, Stop closes everything in
// order. Tests run it in-process on port 0; cmd/server runs it for real.
package app

import (
	"context"
	"errors"
	"log/slog"
	"time"
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
	// Python and RayAddress start a sidecar of our own when BridgeURL is empty.
	// BridgeURL == "fake" runs the in-process fake (benchmarks and demos without Ray).
	Python     string
	RayAddress string
	// RunDir holds sockets and other small run-time files.
	RunDir string
	// Lanes off: a transaction for each call (benchmarks only).
	SingleTransactions bool
	Logger             *slog.Logger
	// ShutdownTimeout bounds Stop, default 10 s.
	ShutdownTimeout time.Duration
}

// App is a running server.
type App struct{ cfg Config }

// New checks the configuration and migrates the database.
func New(ctx context.Context, cfg Config) (*App, error) {
	if cfg.DatabaseURL == "" {
		return nil, errors.New("no database: set DATABASE_URL, or use `server up` for one of our own")
	}
	return &App{cfg: cfg}, nil
}

// Start listens and returns once requests are answered.
func (a *App) Start(ctx context.Context) error { return errors.New("app: under construction") }

// URL is where the server answers, with the real port.
func (a *App) URL() string { return "" }

// SignInURL is a link that signs a browser in.
func (a *App) SignInURL() string { return "" }

// Stop closes everything in order; agents keep running in Ray.
func (a *App) Stop(ctx context.Context) error { return nil }
