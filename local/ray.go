package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// RayOptions say what Ray head to start.
type RayOptions struct {
	// Python is the interpreter of an environment with ray[default]. Required.
	Python string
	// NumCPUs and NumGPUs are logical and may exceed what the machine has; 0 leaves
	// the count to Ray.
	NumCPUs, NumGPUs int
	// ObjectStoreMemory in bytes; 0 means the least Ray accepts (75 MiB).
	ObjectStoreMemory int64
	// TempDir keeps sessions, sockets and logs; "" makes one and removes it at the
	// end. Socket names limit it to some 40 characters.
	TempDir string
	// Token turns Ray's token authentication on: Ray listens on every interface, and
	// whoever reaches it runs code. "" turns it off.
	Token string
	// Progress is told each step in a line.
	Progress Progress
}

// Ray is a running Ray head, with all its processes children of ours.
type Ray struct {
	child     *child
	mark      string
	tempDir   string
	ownTemp   bool
	token     string
	address   string
	dashboard string
}

const (
	minObjectStore  = 75 << 20
	rayPatience     = 90 * time.Second
	rayHeadVariable = "SCHEDULEMESH_RAY_HEAD" // marks the processes of one head
	// session_2006-01-02_15-04-05_999999_9999999/sockets/plasma_store must fit in
	// what Linux allows for a socket's name (107 bytes).
	maxRayTempDir = 42
)

// StartRay starts a Ray head on ports nobody uses and returns once its node is
// alive. Several can run on one host.
func StartRay(ctx context.Context, opts RayOptions) (*Ray, error) {
	guard, err := StartGuard()
	if err != nil {
		return nil, err
	}
	r := &Ray{mark: randomHex(8), tempDir: opts.TempDir, token: opts.Token}
	if r.tempDir == "" {
		// Not os.TempDir: on some systems its name alone is too long.
		if r.tempDir, err = os.MkdirTemp("/tmp", "schedulemesh-ray-"); err != nil {
			return nil, fmt.Errorf("no place for Ray's files: %w", err)
		}
		r.ownTemp = true
		guard.Remove(r.tempDir)
	}
	if len(r.tempDir) > maxRayTempDir {
		return nil, fmt.Errorf("the directory for Ray's files, %s, is too long for the names of its sockets: at most %d characters", r.tempDir, maxRayTempDir)
	}
	for try := 1; ; try++ {
		err := r.start(ctx, guard, opts)
		if err == nil {
			return r, nil
		}
		// Chosen ports can be lost to others before Ray has them.
		if try == 3 || !strings.Contains(err.Error(), "ddress already in use") {
			r.removeFiles()
			return nil, err
		}
	}
}

func (r *Ray) start(ctx context.Context, guard *Guard, opts RayOptions) error {
	ports, err := freePorts(4)
	if err != nil {
		return err
	}
	r.dashboard = fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	store := opts.ObjectStoreMemory
	if store == 0 {
		store = minObjectStore
	}
	args := []string{
		"-m", "ray.scripts.scripts", "start", "--head", "--block",
		"--port", strconv.Itoa(ports[0]),
		"--dashboard-host", "127.0.0.1",
		"--dashboard-port", strconv.Itoa(ports[1]),
		"--dashboard-agent-listen-port", strconv.Itoa(ports[2]),
		"--ray-client-server-port", strconv.Itoa(ports[3]),
		"--metrics-export-port", "0", // 0: Ray chooses
		"--min-worker-port", "0", "--max-worker-port", "0",
		"--temp-dir", r.tempDir,
		"--object-store-memory", strconv.FormatInt(store, 10),
		"--disable-usage-stats",
		"--log-color", "false",
	}
	if opts.NumCPUs > 0 {
		args = append(args, "--num-cpus", strconv.Itoa(opts.NumCPUs))
	}
	if opts.NumGPUs > 0 {
		args = append(args, "--num-gpus", strconv.Itoa(opts.NumGPUs))
	}
	logPath := filepath.Join(r.tempDir, "head.log")
	if err := os.MkdirAll(r.tempDir, 0o700); err != nil {
		return fmt.Errorf("no place for Ray's files: %w", err)
	}
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(opts.Python, args...)
	cmd.Dir = r.tempDir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(withoutVariable(withoutVariable(os.Environ(), "RAY_ADDRESS"), "RAY_AUTH_TOKEN_PATH"), r.Env()[1:]...)
	cmd.Env = append(cmd.Env, rayHeadVariable+"="+r.mark)
	cmd.SysProcAttr = processAttributes(syscall.SIGTERM, nil)
	if r.child, err = startChild(cmd); err != nil {
		return fmt.Errorf("could not start Ray with %s: %w", opts.Python, err)
	}
	guard.tell(order{Group: r.child.cmd.Process.Pid})
	if err := r.awaitNode(ctx, strconv.Itoa(ports[0]), opts.Progress); err != nil {
		r.end(context.WithoutCancel(ctx))
		return fmt.Errorf("%w; the end of Ray's output:\n%s", err, lastLines(logPath, 15))
	}
	return nil
}

// Address is the head's host:port, for ray.init and RAY_ADDRESS.
func (r *Ray) Address() string { return r.address }

// DashboardURL is where Ray's dashboard and Jobs API answer, on this machine only.
func (r *Ray) DashboardURL() string { return r.dashboard }

// Env is what a driver of this head has in its environment, NAME=value, RAY_ADDRESS first.
func (r *Ray) Env() []string {
	env := []string{"RAY_ADDRESS=" + r.address, "RAY_USAGE_STATS_ENABLED=0"}
	if r.token == "" {
		return append(env, "RAY_AUTH_MODE=disabled")
	}
	return append(env, "RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN="+r.token)
}

// Export puts Env into this process's environment: what it starts from now on is a
// driver of this head.
func (r *Ray) Export() error {
	for _, assignment := range r.Env() {
		name, value, _ := strings.Cut(assignment, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}

// LogDir keeps the logs of Ray's processes and of the workers.
func (r *Ray) LogDir() string { return filepath.Join(r.tempDir, "session_latest", "logs") }

// Done is closed when the head has ended, asked or not.
func (r *Ray) Done() <-chan struct{} { return r.child.done }

// Stop ends the head and everything it runs, agents included.
func (r *Ray) Stop(ctx context.Context) error {
	r.end(ctx)
	r.removeFiles()
	return nil
}

// end asks the head to stop, which stops its processes, and then ends what is left.
func (r *Ray) end(ctx context.Context) {
	_ = r.child.stop(ctx, stopStep{syscall.SIGTERM, 5 * time.Second})
	_ = syscall.Kill(-r.child.cmd.Process.Pid, syscall.SIGKILL)
	for range 100 {
		left := marked(rayHeadVariable+"="+r.mark, nil)
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (r *Ray) removeFiles() {
	if r.ownTemp {
		_ = os.RemoveAll(r.tempDir)
	}
}

// awaitNode waits until the dashboard says that the node is alive, and keeps its address.
func (r *Ray) awaitNode(ctx context.Context, port string, progress Progress) error {
	ctx, cancel := context.WithTimeout(ctx, rayPatience)
	defer cancel()
	var last error
	for i := 0; ; i++ {
		var ip string
		if ip, last = r.aliveNode(ctx); last == nil {
			// As Ray itself knows the node: agents and drivers compare by it.
			r.address = net.JoinHostPort(ip, port)
			return nil
		}
		if i == 100 {
			progress.say("Ray is still starting")
		}
		select {
		case <-r.child.done:
			return errors.New("Ray ended while starting")
		case <-ctx.Done():
			return fmt.Errorf("Ray did not come up in %s (%w)", rayPatience, last)
		case <-time.After(150 * time.Millisecond):
		}
	}
}

// aliveNode asks the dashboard for the head's node and returns its IP once it is alive.
func (r *Ray) aliveNode(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.dashboard+"/nodes?view=summary", nil)
	if err != nil {
		return "", err
	}
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("its dashboard answers %s", resp.Status)
	}
	var answer struct {
		Data struct {
			Summary []struct {
				Raylet struct {
					State              string `json:"state"`
					NodeManagerAddress string `json:"nodeManagerAddress"`
				} `json:"raylet"`
			} `json:"summary"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 10<<20)).Decode(&answer); err != nil {
		return "", err
	}
	for _, node := range answer.Data.Summary {
		if node.Raylet.State == "ALIVE" {
			return node.Raylet.NodeManagerAddress, nil
		}
	}
	return "", errors.New("its node is not alive yet")
}

// RayToken returns the token Ray itself keeps for the local clusters of this
// user, made when there is none. Scripts in other terminals find it by themselves.
func RayToken() (string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(home, ".ray", "auth_token")
	if data, err := os.ReadFile(path); err == nil && len(strings.TrimSpace(string(data))) > 0 {
		return strings.TrimSpace(string(data)), nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", fmt.Errorf("no place for Ray's token: %w", err)
	}
	token := randomHex(32)
	if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
		return "", fmt.Errorf("no place for Ray's token: %w", err)
	}
	return token, nil
}
