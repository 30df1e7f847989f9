package bridgetest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
)

// Need skips a test that needs real Ray where there is none, and fails it under CI=true. It gives what
// SCHEDULEMESH_TEST_RAY (the cluster's address) and SCHEDULEMESH_PYTHON (an interpreter with the
// schedulemesh package) say.
func Need(t testing.TB) (ray, python string) {
	t.Helper()
	ray, python = os.Getenv("SCHEDULEMESH_TEST_RAY"), os.Getenv("SCHEDULEMESH_PYTHON")
	if ray == "" || python == "" {
		const why = "no real Ray: set SCHEDULEMESH_TEST_RAY (host:port) and SCHEDULEMESH_PYTHON"
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	return ray, python
}

// Real starts a sidecar of a deployment on the Ray cluster that Need names, and ends it with the test.
func Real(t testing.TB, deployment string, options ...func(*bridge.ProcessConfig)) *bridge.Process {
	t.Helper()
	ray, python := Need(t)
	// t.TempDir's paths are too long for a socket.
	dir, err := os.MkdirTemp("", "sm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := bridge.ProcessConfig{
		Python: python, RayAddress: ray, Deployment: deployment, Socket: filepath.Join(dir, "s"),
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), MinBackoff: time.Millisecond, MaxBackoff: time.Second,
	}
	for _, option := range options {
		option(&cfg)
	}
	p, err := bridge.StartProcess(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := p.Wait(ctx, ""); err != nil {
		t.Fatal(err)
	}
	return p
}

// Deployment makes up a name that no other test run uses.
func Deployment(name string) string {
	return fmt.Sprintf("%s-%d-%d", name, os.Getpid(), time.Now().UnixMilli())
}

// LoseGroup removes a placement group of a deployment on the Ray cluster that Need names, as another driver.
func LoseGroup(t testing.TB, deployment, name string) {
	t.Helper()
	asDriver(t, deployment, "from ray.util.placement_group import *; remove_placement_group(get_placement_group(sys.argv[3]))", name)
}

// GroupsInRay gives the names of all placement groups that Ray itself has, whoever made them.
func GroupsInRay(t testing.TB) []string {
	t.Helper()
	return strings.Fields(asDriver(t, "nobody", "from ray.util.placement_group import *; print(*(g['name'] for g in placement_group_table().values() if g['state'] != 'REMOVED'))"))
}

func asDriver(t testing.TB, deployment, code string, args ...string) string {
	t.Helper()
	ray, python := Need(t)
	code = "import ray, sys; ray.init(sys.argv[1], namespace='schedulemesh-' + sys.argv[2], log_to_driver=False, configure_logging=False); " + code
	cmd := exec.CommandContext(t.Context(), python, append([]string{"-c", code, ray, deployment}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	return string(out)
}
