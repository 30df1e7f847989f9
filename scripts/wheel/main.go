// Command wheel is `make wheel`: for each platform a Python wheel that carries the
// server and the Postgres it brings, so that `pip install` is a full installation.
// setuptools makes the wheel, in a copy of the package; this only puts what is not
// Python beside it.
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
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/schedulemesh/schedulemesh/local"
)

// platforms are those we build for, with what pip calls them.
var platforms = map[string]string{
	"linux-amd64":  "manylinux_2_27_x86_64",
	"linux-arm64":  "manylinux_2_27_aarch64",
	"darwin-amd64": "macosx_12_0_x86_64",
	"darwin-arm64": "macosx_12_0_arm64",
}

func main() {
	out := flag.String("out", "dist", "directory for the wheels")
	python := flag.String("python", "", "an interpreter with setuptools; the one of .venv, which is made when it is not there, when left out")
	server := flag.String("server", "", "a server program for this machine to take instead of building one, for tests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *out, *python, *server, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "wheel:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, python, server string, wanted []string) error {
	if len(wanted) == 0 {
		wanted = []string{"linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"}
	}
	for _, platform := range wanted {
		if platforms[platform] == "" {
			return fmt.Errorf("there is no wheel for %q, only for linux-amd64, linux-arm64, darwin-amd64, darwin-arm64", platform)
		}
	}
	if server != "" && !slices.Equal(wanted, []string{local.Platform()}) {
		return fmt.Errorf("-server names a program for this machine: build for %s alone", local.Platform())
	}
	// Both are used from another directory; a link, as .venv's python is, must not be followed.
	out, err1 := filepath.Abs(out)
	if python == "" {
		var err error
		python, err = local.EnsurePython(ctx, local.PythonOptions{Dir: ".venv", Locks: []string{"python/requirements.lock"}, Project: "python",
			Base: os.Getenv("PYTHON"), Progress: func(line string) { fmt.Println(line) }})
		if err != nil {
			return err
		}
	}
	if found, err := exec.LookPath(python); err != nil {
		return err
	} else if python, err = filepath.Abs(found); err != nil {
		return err
	}
	if err := errors.Join(err1, os.MkdirAll(out, 0o755)); err != nil {
		return err
	}
	for _, platform := range wanted {
		if err := build(ctx, platform, out, python, server); err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
	}
	return nil
}

// build makes the wheel for one platform.
func build(ctx context.Context, platform, out, python, server string) error {
	work, err := os.MkdirTemp("", "schedulemesh-wheel-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := copyPackage(ctx, work); err != nil {
		return err
	}
	programs := filepath.Join(work, "src", "schedulemesh", "_bin")
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return err
	}
	archive, err := local.PostgresArchive(ctx, platform, func(line string) { fmt.Println(line) })
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(programs, local.ArchiveName(platform)), archive, 0o644); err != nil {
		return err
	}
	program := filepath.Join(programs, "schedulemesh-server")
	if server != "" {
		err = copyFile(server, program, 0o755)
	} else {
		err = compile(ctx, platform, work, program)
	}
	if err != nil {
		return err
	}
	// The tag says that any Python 3 will do, on this platform.
	make := exec.CommandContext(ctx, python, "-c", `
import sys
from setuptools import build_meta
print(build_meta.build_wheel(sys.argv[1], {"--build-option": ["--plat-name=" + sys.argv[2]]}))`, out, platforms[platform])
	make.Dir = work
	said, err := make.CombinedOutput()
	if err != nil {
		return fmt.Errorf("setuptools: %w\n%s", err, said)
	}
	lines := strings.Fields(string(said))
	fmt.Println(filepath.Join(out, lines[len(lines)-1]))
	return nil
}

// copyPackage copies what git knows of the package, as it is on disk, and the licence:
// what lies around in a checkout stays out.
func copyPackage(ctx context.Context, work string) error {
	listed, err := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard",
		"python/src", "python/pyproject.toml", "python/README.md").Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	for path := range strings.SplitSeq(strings.Trim(string(listed), "\x00"), "\x00") {
		if err := copyFile(path, filepath.Join(work, strings.TrimPrefix(path, "python/")), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return copyFile("LICENSE", filepath.Join(work, "LICENSE"), 0o644)
}

func copyFile(from, to string, mode os.FileMode) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, content, mode)
}

var version = regexp.MustCompile(`(?m)^version = "(.+)"$`)

// compile builds a program that needs nothing of the machine it will run on, and
// knows which release it is.
func compile(ctx context.Context, platform, work, program string) error {
	project, err := os.ReadFile(filepath.Join(work, "pyproject.toml"))
	if err != nil {
		return err
	}
	release := version.FindSubmatch(project)
	if release == nil {
		return errors.New("pyproject.toml says no version")
	}
	system, machine, _ := strings.Cut(platform, "-")
	fmt.Println("building the server for", platform)
	build := exec.CommandContext(ctx, "go", "build", "-trimpath",
		"-ldflags", "-s -w -X github.com/schedulemesh/schedulemesh/app.release="+string(release[1]), "-o", program, "./cmd/server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+machine)
	if said, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, said)
	}
	return nil
}
