package bridgetest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
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
