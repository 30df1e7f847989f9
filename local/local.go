// Package local runs what one machine needs for a whole ScheduleMesh: an
// embedded Postgres, a Ray head and the Python environment both sidecar and
// examples use. It starts processes, says in one line what it does, and leaves
// none of them behind, however its own process ends. It knows nothing of the
// scheduler: cmd/server and the tests put the pieces together.
package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Progress is told, in one line each, what is being done. Nil means nobody listens.
type Progress func(line string)

func (p Progress) say(format string, args ...any) {
	if p != nil {
		p(fmt.Sprintf(format, args...))
	}
}

// child is a process of ours. Its thread stays alive as long as it does, so
// that on Linux the kernel tells it when we are gone, whatever ended us.
type child struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // of Wait; read after done
}

// startChild starts cmd in a process group of its own: a terminal's Ctrl-C is
// for us, and we stop our children in the right order.
func startChild(cmd *exec.Cmd) (*child, error) {
	c := &child{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Linux sends the death signal when the thread that forked ends, not the
		// process: this one stays until the child is gone.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		c.err = cmd.Wait()
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

func (c *child) exited() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// stop sends the signals in turn, each after the last had its time, and waits for the end.
func (c *child) stop(ctx context.Context, steps ...stopStep) error {
	for _, step := range steps {
		if c.exited() {
			return nil
		}
		_ = c.cmd.Process.Signal(step.signal)
		timer := time.NewTimer(step.patience)
		select {
		case <-c.done:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
			_ = c.cmd.Process.Kill()
			<-c.done
			return ctx.Err()
		case <-timer.C:
		}
	}
	_ = c.cmd.Process.Kill()
	<-c.done
	return fmt.Errorf("%s (pid %d) did not stop when asked and was killed", filepath.Base(c.cmd.Path), c.cmd.Process.Pid)
}

type stopStep struct {
	signal   os.Signal
	patience time.Duration
}

// freePorts returns n different TCP ports of 127.0.0.1 that were free a moment ago.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		// Held open until all are chosen, so that they differ.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("no free port on 127.0.0.1: %w", err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// randomHex returns n random bytes in hexadecimal.
func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

// CacheDir is where downloads are kept and shared among checkouts: the user's
// cache directory, or SCHEDULEMESH_CACHE.
func CacheDir() (string, error) {
	if dir := os.Getenv("SCHEDULEMESH_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	base, err := os.UserCacheDir()
	if err == nil {
		dir := filepath.Join(base, "schedulemesh")
		if err = os.MkdirAll(dir, 0o755); err == nil {
			return dir, nil
		}
	}
	// No home, as for a service account: a private place among the temporary files.
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("schedulemesh-%d", os.Getuid()))
	if err := ownDir(dir); err != nil {
		return "", fmt.Errorf("no place for downloads: set SCHEDULEMESH_CACHE to a directory you can write to: %w", err)
	}
	return dir, nil
}

// RunDir returns a private directory for a run's sockets: dir, or, when a socket's
// name in it would be too long for the system, one among the temporary files that
// ends with this process.
func RunDir(dir string) (string, error) {
	const room = 107 - len("/bridge-0123456789abcdef.sock")
	if len(dir) <= room {
		return dir, os.MkdirAll(dir, 0o700)
	}
	guard, err := StartGuard()
	if err != nil {
		return "", err
	}
	// Not os.TempDir: on some systems its name alone is too long.
	short, err := os.MkdirTemp("/tmp", "schedulemesh-run-")
	if err != nil {
		return "", fmt.Errorf("no place for sockets: %w", err)
	}
	guard.Remove(short)
	return short, nil
}

// ownDir makes dir, or accepts it when it is a directory of ours that nobody else can write to.
func ownDir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err == nil || !os.IsExist(err) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode().Perm()&0o022 != 0 || !ownedByUs(info) {
		return fmt.Errorf("%s is there already and is not a directory of ours alone", dir)
	}
	return nil
}

// lastLines returns the end of a log, for an error message.
func lastLines(path string, n int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}
