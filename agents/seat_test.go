package agents

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
)

// A server that does not know whether it still holds its lease sends nothing that
// changes anything, and goes on when it knows.
func TestAFencedBridgeWaitsBeforeItActs(t *testing.T) {
	t.Parallel()
	fake := bridge.NewFake(bridge.Node{ID: "n", Alive: true, Total: bridge.Resources{"cpu": 8000}})
	sure := make(chan struct{})
	b := fenced{fake, func(ctx context.Context) error {
		select {
		case <-sure:
			return nil
		case <-ctx.Done():
			return errFenced
		}
	}}
	req := bridge.LaunchRequest{LaunchID: "l.1", AgentName: "a", TaskID: "t", Pool: "p", Attempt: 1, ClassPath: "m:C", Resources: bridge.Resources{"cpu": 1000}, Timeout: time.Second}
	for what, act := range map[string]func(context.Context) error{
		"launch": func(ctx context.Context) error { _, err := b.Launch(ctx, req); return err },
		"run":    func(ctx context.Context) error { return b.Run(ctx, "l.1", bridge.Entry{Method: "run"}) },
		"cancel": func(ctx context.Context) error { _, err := b.Cancel(ctx, "l.1", "t", time.Second); return err },
		"save":   func(ctx context.Context) error { _, err := b.SaveState(ctx, "l.1", time.Second); return err },
		"call": func(ctx context.Context) error {
			_, err := b.Call(ctx, bridge.CallRequest{Pickled: []byte("x"), Kind: bridge.CallRestorer, Argument: []byte(`{}`)})
			return err
		},
		"ensure": func(ctx context.Context) error {
			_, err := b.EnsureGroup(ctx, bridge.GroupRequest{Name: "g.1", Bundles: []bridge.Resources{{"cpu": 1000}}})
			return err
		},
		"remove": func(ctx context.Context) error { return b.RemoveGroup(ctx, "g.1", time.Second) },
		"kill":   func(ctx context.Context) error { return b.Kill(ctx, "l.1", time.Second) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := act(ctx); !errors.Is(err, errFenced) {
			t.Errorf("%s: %v", what, err)
		}
		cancel()
	}
	list, err := b.List(t.Context())
	if err != nil || len(list) != 0 {
		t.Fatalf("it acted: %v, %v", list, err)
	}
	done := make(chan error, 1)
	go func() { _, err := b.Launch(t.Context(), req); done <- err }()
	close(sure)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if list, err = b.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("it did not go on: %v, %v", list, err)
	}
}
