// Command bench measures the product as its users meet it: a real server process
// on a durable Postgres, a client on loopback, real Ray where Ray is part of the
// figure. It prints lines `BENCH <name> <value> <unit>`.
//
// What is compared is measured in the same run, in turns, because machines are
// noisy: ratios mean something, absolute figures less.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/schedulemesh/schedulemesh/local"
)

func main() {
	server := flag.String("server", "bin/server", "the server binary to measure")
	python := flag.String("python", os.Getenv("SCHEDULEMESH_PYTHON"), "a Python with Ray and the schedulemesh package; default: the one in .venv")
	seconds := flag.Duration("for", 4*time.Second, "how long each measurement of a rate takes")
	tasks := flag.Int("tasks", 1_000_000, "how many running tasks a start recovers")
	rounds := flag.Int("rounds", 3, "how often each is measured, in turns")
	only := flag.String("only", "", "what to measure, such as admission,preemption; all when left out")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *python == "" {
		*python, _ = filepath.Abs(filepath.Join(".venv", "bin", "python"))
	}
	if err := run(ctx, *server, *python, *seconds, *rounds, *tasks, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, server, python string, each time.Duration, rounds, tasks int, only string) error {
	if _, err := exec.LookPath(server); err != nil {
		return fmt.Errorf("%s is not there: run `make build` first", server)
	}
	dir, err := os.MkdirTemp("", "schedulemesh-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Chmod(dir, 0o755); err != nil { // the user that runs Postgres for root passes through
		return err
	}
	pg, err := local.StartPostgres(ctx, local.PostgresOptions{Dir: filepath.Join(dir, "postgres")})
	if err != nil {
		return err
	}
	defer func() { _ = pg.Stop(context.WithoutCancel(ctx)) }()
	b := &bench{server: server, python: python, postgres: pg.URL(), postmaster: postmaster(pg), dir: dir, each: each, rounds: rounds, tasks: tasks}
	for _, m := range measurements {
		if only == "" || slices.Contains(strings.Split(only, ","), m.name) {
			if err := m.run(b, ctx); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
		}
	}
	return nil
}

// measurements are what -only names, in the order in which they are taken.
var measurements = []struct {
	name string
	run  func(*bench, context.Context) error
}{
	{"evaluate", (*bench).evaluate},
	{"admission", (*bench).admission},
	{"running", (*bench).running},
	{"pools", (*bench).pools},
	{"idle", (*bench).idle},
	{"release", (*bench).release},
	{"queue", (*bench).queueDrain},
	{"replicas", (*bench).replicas},
	{"recover", (*bench).recover},
	{"preemption", (*bench).preemption},
	{"sdk", (*bench).sdk},
	{"groups", (*bench).groups},
	{"jobs", (*bench).jobs},
}

// bench is one run.
type bench struct {
	server, python string
	postgres       string
	postmaster     int // process id
	dir            string
	each           time.Duration
	rounds, tasks  int
	made           int
}

func say(name string, value float64, unit string) {
	fmt.Printf("BENCH %s %.4g %s\n", name, value, unit)
}
