package local

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// PythonOptions say which Python environment is wanted.
type PythonOptions struct {
	// Dir is the environment, a venv: made when it is not there. Required.
	Dir string
	// Locks are requirement files with hashes, installed in turn.
	Locks []string
	// Project is the directory of the package to install in editable mode.
	Project string
	// Base is the interpreter to make it with; "" looks for one.
	Base string
	// Progress is told each step in a line.
	Progress Progress
}

// The Python versions Ray has wheels for.
const (
	minPython = 10 // 3.10
	maxPython = 14
)

// roomForPython is what Ray and the rest take, in bytes, with pip's own needs.
const roomForPython = 1300 << 20

// stampFile says, inside the environment, what was installed into it.
const stampFile = ".schedulemesh"

// EnsurePython returns the interpreter of an environment that has the locked
// packages and ours. It installs only when the lock or the package's metadata
// changed since the last time.
func EnsurePython(ctx context.Context, opts PythonOptions) (string, error) {
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("no place for the Python environment: %w", err)
	}
	lock, err := waitLock(ctx, filepath.Join(dir, ".lock"), func(pid int) {
		opts.Progress.say("waiting for process %d, which is installing Python packages", pid)
	})
	if err != nil {
		return "", err
	}
	defer lock.release()

	python := filepath.Join(dir, "bin", "python")
	steps, err := opts.installSteps(dir)
	if err != nil {
		return "", err
	}
	stamp := filepath.Join(dir, stampFile)
	installed, _ := os.ReadFile(stamp)
	if exec.CommandContext(ctx, python, "-c", "").Run() != nil {
		installed = nil
	}
	if !slices.ContainsFunc(steps, func(s installStep) bool { return !s.isIn(installed) }) {
		return python, nil
	}

	if installed == nil {
		base, version, err := findPython(ctx, opts.Base)
		if err != nil {
			return "", err
		}
		opts.Progress.say("making a Python %s environment in %s", version, opts.Dir)
		if err := makeVenv(ctx, base, version, dir); err != nil {
			return "", err
		}
	}
	if err := checkRoom(dir); err != nil {
		return "", err
	}
	for i, step := range steps {
		if step.isIn(installed) {
			continue
		}
		opts.Progress.say("installing %s", step.what)
		if err := pipInstall(ctx, python, dir, step.args, opts.Progress); err != nil {
			return "", err
		}
		if i == 0 {
			installed = nil // what is built on the first lock is checked again after it
		}
		installed = append(installed, step.stamp...)
		if err := os.WriteFile(stamp, installed, 0o644); err != nil {
			return "", err
		}
	}
	return python, nil
}

// installStep is one call of pip, and the line that says it was made.
type installStep struct {
	what  string
	args  []string
	stamp string
}

func (s installStep) isIn(installed []byte) bool { return strings.Contains(string(installed), s.stamp) }

func (o PythonOptions) installSteps(dir string) ([]installStep, error) {
	var steps []installStep
	add := func(file, what string, args ...string) error {
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("what to install is written in %s, which cannot be read: %w", file, err)
		}
		// With its place: a venv that was moved does not work, its scripts name it.
		sum := sha256.Sum256(append(data, dir...))
		steps = append(steps, installStep{what, args, fmt.Sprintf("%s %x\n", filepath.Base(file), sum)})
		return nil
	}
	for i, lock := range o.Locks {
		what := "Ray and what goes with it (about 250 MB to download, once)"
		if i > 0 {
			what = "the tools for tests (once)"
		}
		if err := add(lock, what, "--require-hashes", "--only-binary", ":all:", "-r", lock); err != nil {
			return nil, err
		}
	}
	if o.Project != "" {
		// Its dependencies, and what builds it, are in the lock.
		if err := add(filepath.Join(o.Project, "pyproject.toml"), "the schedulemesh package", "--no-deps", "--no-build-isolation", "-e", o.Project); err != nil {
			return nil, err
		}
	}
	return steps, nil
}

// findPython returns an interpreter new enough, and not too new, for Ray.
func findPython(ctx context.Context, base string) (path, version string, err error) {
	candidates := []string{"python3", "python3.12", "python3.13", "python3.11", "python3.14", "python3.10", "python"}
	if base != "" {
		candidates = []string{base}
	}
	var unfit []string
	for _, candidate := range candidates {
		found, err := exec.LookPath(candidate)
		if err != nil {
			continue
		}
		version, err := pythonVersion(ctx, found)
		if err != nil {
			continue
		}
		if !supported(version) {
			if note := version + " (" + found + ")"; !slices.Contains(unfit, note) {
				unfit = append(unfit, note)
			}
			continue
		}
		return found, version, nil
	}
	wanted := fmt.Sprintf("Ray needs Python 3.%d to 3.%d", minPython, maxPython)
	switch {
	case len(unfit) > 0:
		return "", "", fmt.Errorf("%s and this machine has %s: install a newer one, or name it in PYTHON", wanted, strings.Join(unfit, ", "))
	case base != "":
		return "", "", fmt.Errorf("%s is not a Python that works: %s", base, wanted)
	default:
		return "", "", fmt.Errorf("%s and this machine has none: install it (Debian, Ubuntu: apt install python3 python3-venv), or name it in PYTHON", wanted)
	}
}

func supported(version string) bool {
	major, rest, _ := strings.Cut(version, ".")
	minor, err := strconv.Atoi(strings.SplitN(rest, ".", 2)[0])
	return err == nil && major == "3" && minor >= minPython && minor <= maxPython
}

// pythonVersion is "3.12.1"; an error when the interpreter does not run.
func pythonVersion(ctx context.Context, python string) (string, error) {
	out, err := exec.CommandContext(ctx, python, "-c", "import platform; print(platform.python_version())").Output()
	return strings.TrimSpace(string(out)), err
}

func makeVenv(ctx context.Context, base, version, dir string) error {
	// --clear would remove our lock with the rest; what is there is written over.
	out, err := exec.CommandContext(ctx, base, "-m", "venv", dir).CombinedOutput()
	switch text := string(out); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case strings.Contains(text, "ensurepip") || strings.Contains(text, "No module named venv"):
		return fmt.Errorf("this Python, %s (%s), comes without its venv module: install it (Debian, Ubuntu: apt install python3-venv)", version, base)
	case strings.Contains(text, "No space left"):
		return noRoom(dir)
	default:
		return fmt.Errorf("could not make a Python environment in %s: %w\n%s", dir, err, strings.TrimSpace(text))
	}
}

func pipInstall(ctx context.Context, python, dir string, args []string, progress Progress) error {
	logPath := filepath.Join(dir, "install.log")
	log, err := openLog(logPath)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, python, append([]string{
		"-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off",
	}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = processAttributes(syscall.SIGTERM, nil)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	child, err := startChild(cmd)
	if err != nil {
		return fmt.Errorf("could not run pip: %w", err)
	}
	started := time.Now()
	for tick := time.NewTicker(20 * time.Second); ; {
		select {
		case <-child.done:
			tick.Stop()
			if child.err == nil {
				return nil
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return pipError(lastLines(logPath, 25), dir, logPath)
		case <-tick.C:
			progress.say("still installing (%s)", time.Since(started).Round(time.Second))
		}
	}
}

// pipError says in a sentence what pip said in a page.
func pipError(output, dir, logPath string) error {
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(output, part) })
	}
	switch {
	case has("No space left on device"):
		return noRoom(dir)
	case has("THESE PACKAGES DO NOT MATCH THE HASHES"):
		return fmt.Errorf("a Python package is not the one that was locked; if the lock is right, somebody changed the package (see %s)", logPath)
	case has("Temporary failure in name resolution", "Name or service not known", "nodename nor servname", "NewConnectionError",
		"Network is unreachable", "Connection refused", "ConnectTimeoutError", "ReadTimeoutError", "Read timed out", "ProxyError"):
		return fmt.Errorf("the Python packages cannot be downloaded: check the network, or the index pip is set to (see %s)", logPath)
	case has("No matching distribution found"):
		return fmt.Errorf("this Python or platform has no ready build of a package Ray needs: use Python 3.%d to 3.%d on 64-bit Linux or macOS (see %s)", minPython, maxPython, logPath)
	default:
		return fmt.Errorf("pip failed; the end of %s:\n%s", logPath, output)
	}
}

// checkRoom refuses early rather than after minutes of download.
func checkRoom(dir string) error {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return nil // pip will say
	}
	if installedRay(dir) {
		return nil // an update changes little
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < roomForPython { //nolint:unconvert // Bsize differs by system
		return noRoom(dir)
	}
	return nil
}

func noRoom(dir string) error {
	return fmt.Errorf("the disk of %s is too full: the Python packages need about %d MB there", dir, roomForPython>>20)
}

func installedRay(dir string) bool {
	found, err := filepath.Glob(filepath.Join(dir, "lib", "python*", "site-packages", "ray"))
	return err == nil && len(found) > 0
}
