package bridge_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/bridge/bridgetest"
)

func TestFakeConforms(t *testing.T) {
	t.Parallel()
	bridgetest.Run(t, func(t *testing.T) *bridgetest.Subject {
		t.Parallel()
		cluster := bridge.NewFakeCluster()
		dashboard := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"ray_version": "fake"}`) }))
		t.Cleanup(dashboard.Close)
		cluster.Dashboard = dashboard.URL
		fake := cluster.Bridge("conformance")
		return &bridgetest.Subject{
			Bridge: fake, Deployment: "conformance",
			Other:      func(_ *testing.T, deployment string) bridge.Bridge { return cluster.Bridge(deployment) },
			Restart:    func(*testing.T) { fake.Restart() },
			EndWorker:  func(_ *testing.T, a bridge.AgentStatus) { cluster.Die(a.LaunchID, "the worker process ended") },
			StopWorker: func(_ *testing.T, a bridge.AgentStatus) { cluster.Stick(a.LaunchID) },
			LoseGroup:  func(_ *testing.T, name string) { cluster.LoseGroup(name, "somebody removed it") },
		}
	})
}

func TestSidecarConforms(t *testing.T) {
	deployment := bridgetest.Deployment("conformance")
	p := bridgetest.Real(t, deployment)
	others := map[string]*bridge.Process{}
	bridgetest.Run(t, func(*testing.T) *bridgetest.Subject {
		return &bridgetest.Subject{
			Bridge: p.Bridge(), Deployment: deployment,
			Other: func(_ *testing.T, name string) bridge.Bridge {
				if others[name] == nil {
					others[name] = bridgetest.Real(t, name) // lives as long as the whole suite
				}
				return others[name].Bridge()
			},
			Restart:   func(t *testing.T) { restart(t, p) },
			LoseGroup: func(t *testing.T, name string) { bridgetest.LoseGroup(t, deployment, name) },
			EndWorker: func(t *testing.T, a bridge.AgentStatus) {
				if err := syscall.Kill(a.PID, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			},
			StopWorker: func(t *testing.T, a bridge.AgentStatus) {
				if err := syscall.Kill(a.PID, syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

func restart(t *testing.T, p *bridge.Process) {
	t.Helper()
	was := p.Status().Hello.Session
	proc, err := os.FindProcess(p.PID())
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := p.Wait(ctx, was); err != nil {
		t.Fatal(err)
	}
}

func TestASidecarThatHangsIsReplaced(t *testing.T) {
	p := bridgetest.Real(t, bridgetest.Deployment("hangs"), func(c *bridge.ProcessConfig) { c.Health = time.Second })
	was := p.Status().Hello.Session
	if err := syscall.Kill(p.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := p.Wait(ctx, was); err != nil {
		t.Fatal(err)
	}
}

// The sidecar must not outlive a server that was killed, which can close nothing in good order.
func TestASidecarEndsWithItsServer(t *testing.T) {
	if os.Getenv("BRIDGE_TEST_SERVER") != "" {
		p := bridgetest.Real(t, "orphan")
		fmt.Printf("sidecar %d\n", p.PID())
		select {} // until killed
	}
	bridgetest.Need(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestASidecarEndsWithItsServer$")
	cmd.Env = append(os.Environ(), "BRIDGE_TEST_SERVER=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscanf(out, "sidecar %d\n", &pid); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for end := time.Now().Add(20 * time.Second); syscall.Kill(pid, 0) == nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatal("it lives on")
		}
	}
}
