// Command test is `make test`: it brings up one Postgres and one Ray head, runs
// every check and every test against them, stops them, and closes with a plain
// total. A missing tool is a skip with a word; with CI=true it is a failure.
package main

import (
	"context"
	"errors"
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
	"github.com/schedulemesh/schedulemesh/testdb"
)

func main() {
	only := flag.String("only", "", "steps to run, with commas between: lint, generated, go, python (default all)")
	race := flag.String("race", "", "directories, with spaces between, whose Go tests run with the race detector")
	packages := flag.String("packages", "./...", "Go packages to test")
	pattern := flag.String("run", "", "Go tests to run, as in `go test -run`")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	go local.WatchParent(ctx, os.Getppid(), stop)
	r := &run{ci: os.Getenv("CI") == "true", started: time.Now(), race: strings.Fields(*race), packages: *packages, pattern: *pattern}
	err := r.everything(ctx, steps(*only))
	if err != nil {
		r.result("setting up", failed, err.Error())
	}
	r.close()
	// The last line of all is the total: whoever reads only that knows.
	fmt.Printf("%d passed, %d failed", r.passed, r.failed)
	if r.skipped > 0 {
		fmt.Printf(", %d skipped", r.skipped)
	}
	fmt.Println()
	if r.failed > 0 || r.passed == 0 {
		os.Exit(1)
	}
}

func steps(only string) []string {
	all := []string{"lint", "generated", "go", "python"}
	if only == "" {
		return all
	}
	asked := strings.Split(only, ",")
	for _, step := range asked {
		if !slices.Contains(all, step) {
			fmt.Fprintf(os.Stderr, "there is no step %q, only %s\n", step, strings.Join(all, ", "))
			os.Exit(2)
		}
	}
	return asked
}

// run is one run of the tests and what came of it.
type run struct {
	ci      bool
	started time.Time
	python  string // interpreter with Ray, our package and the tools for tests
	env     []string
	stops   []func(context.Context) error

	race              []string
	packages, pattern string

	passed, failed, skipped int
	troubles                []string
}

type verdict string

const (
	passed  verdict = "ok"
	failed  verdict = "FAIL"
	skipped verdict = "skip"
)

// result counts one check and says it in a line.
func (r *run) result(what string, v verdict, word string) {
	if v == skipped && r.ci {
		v, word = failed, word+" (nothing may be skipped with CI=true)"
	}
	switch v {
	case passed:
		r.passed++
	case failed:
		r.failed++
		r.troubles = append(r.troubles, what)
	case skipped:
		r.skipped++
	}
	fmt.Printf("%-5s %s", v, what)
	if word = strings.TrimRight(word, "\n"); word != "" {
		if strings.Contains(word, "\n") {
			word = "\n" + indent(word)
		} else {
			word = ": " + word
		}
		fmt.Print(word)
	}
	fmt.Println()
}

func (r *run) title(text string) {
	fmt.Printf("\n== %s (%s)\n", text, time.Since(r.started).Round(time.Second))
}

func indent(text string) string { return "      " + strings.ReplaceAll(text, "\n", "\n      ") }

func (r *run) everything(ctx context.Context, steps []string) error {
	if _, err := local.StartGuard(); err != nil {
		return err
	}
	if r.ci {
		r.title("what this machine lacks")
		if _, err := r.command(ctx, "bash", "scripts/install-missing"); err != nil {
			return err
		}
	}
	if slices.Contains(steps, "lint") || slices.Contains(steps, "generated") {
		// Building the tools takes a minute the first time; downloading Python packages too.
		built := make(chan struct{})
		go func() {
			defer close(built)
			for _, tool := range []string{"sqlc", "staticcheck"} {
				_ = exec.CommandContext(ctx, "go", "tool", "-modfile=tools/go.mod", tool, "-h").Run()
			}
		}()
		defer func() { <-built }()
	}
	r.title("Python environment")
	python, err := local.EnsurePython(ctx, local.PythonOptions{
		Dir:      env("SCHEDULEMESH_VENV", ".venv"),
		Locks:    []string{"python/requirements.lock", "python/requirements-dev.lock"},
		Project:  "python",
		Base:     os.Getenv("PYTHON"),
		Progress: func(line string) { fmt.Println("     ", line) },
	})
	if err != nil {
		return err
	}
	r.python = python

	needsServices := slices.Contains(steps, "go") || slices.Contains(steps, "python")
	if needsServices {
		if err := r.startServices(ctx); err != nil {
			return err
		}
	}
	for _, step := range steps {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		switch step {
		case "lint":
			r.lint(ctx)
		case "generated":
			r.generated(ctx)
		case "go":
			r.goTests(ctx)
		case "python":
			r.pythonTests(ctx)
		}
	}
	return nil
}

func env(name, fallback string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return fallback
}

// startServices brings up what all tests share and tells them through their environment.
func (r *run) startServices(ctx context.Context) error {
	r.title("one Postgres and one Ray for all tests")
	server, err := testdb.Start(ctx, os.Stdout)
	if err != nil {
		return err
	}
	r.stops = append(r.stops, server.Stop)
	fmt.Println("      Postgres:", server.From)
	r.env = append(r.env, testdb.ServerVariable+"="+server.URL, "SCHEDULEMESH_PYTHON="+r.python)

	if address := os.Getenv("SCHEDULEMESH_TEST_RAY"); address != "" {
		fmt.Println("      Ray:", address, "(SCHEDULEMESH_TEST_RAY)")
		return nil
	}
	ray, err := local.StartRay(ctx, local.RayOptions{
		Python:  r.python,
		NumCPUs: 8, // logical: most tests only wait
		// Open, like a cluster without tokens; `server up` is tested with one.
	})
	if err != nil {
		return err
	}
	r.stops = append(r.stops, ray.Stop)
	fmt.Println("      Ray:", ray.Address())
	r.env = append(r.env, "SCHEDULEMESH_TEST_RAY="+ray.Address(), "SCHEDULEMESH_TEST_RAY_DASHBOARD="+ray.DashboardURL())
	// A test that wants Ray takes the one above by name; none finds one by chance.
	r.env = append(r.env, "RAY_AUTH_MODE=disabled", "RAY_USAGE_STATS_ENABLED=0")
	return nil
}

func (r *run) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := len(r.stops) - 1; i >= 0; i-- {
		if err := r.stops[i](ctx); err != nil {
			fmt.Println("     ", err)
		}
	}
	if len(r.troubles) > 0 {
		fmt.Printf("\nFailed:\n%s\n", indent(strings.Join(r.troubles, "\n")))
	}
	fmt.Printf("\n%s in all\n", time.Since(r.started).Round(time.Second))
}

// prepare makes a command that knows the services, and ends with ctx.
func (r *run) prepare(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), r.env...)
	cmd.Env = append(cmd.Env, "PATH="+filepath.Dir(r.python)+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// command runs to its end and returns what it printed.
func (r *run) command(ctx context.Context, name string, args ...string) (string, error) {
	out, err := r.prepare(ctx, name, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(append([]string{name}, args...), " "), err, out)
	}
	return string(out), err
}
