package bridge_test

import (
	"context"
	"os"
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
		fake := cluster.Bridge("conformance")
		return &bridgetest.Subject{
			Bridge: fake, Deployment: "conformance",
			Other:     func(_ *testing.T, deployment string) bridge.Bridge { return cluster.Bridge(deployment) },
			Restart:   func(*testing.T) { fake.Restart() },
			EndWorker: func(_ *testing.T, a bridge.AgentStatus) { cluster.Die(a.LaunchID, "the worker process ended") },
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
			Restart: func(t *testing.T) { restart(t, p) },
			EndWorker: func(t *testing.T, a bridge.AgentStatus) {
				if err := syscall.Kill(a.PID, syscall.SIGKILL); err != nil {
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
