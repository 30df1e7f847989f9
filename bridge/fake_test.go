package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
)

func request(id string) bridge.LaunchRequest {
	return bridge.LaunchRequest{LaunchID: id, AgentName: id, ClassPath: "train:Agent", Resources: bridge.Resources{"cpu": 1000}}
}

func TestFakeDownDidNothing(t *testing.T) {
	t.Parallel()
	f := bridge.NewFake()
	f.Down()
	if _, err := f.Launch(t.Context(), request("a")); !errors.Is(err, bridge.ErrUnavailable) || bridge.IsUnknown(err) {
		t.Errorf("launch: %v", err)
	}
	f.Up()
	if list, err := f.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list: %v, %v", list, err)
	}
}

func TestFakeLosesAReplyButDidIt(t *testing.T) {
	t.Parallel()
	f := bridge.NewFake()
	f.LoseReply("launch")
	if _, err := f.Launch(t.Context(), request("a")); !errors.Is(err, bridge.ErrUnavailable) || !bridge.IsUnknown(err) {
		t.Errorf("launch: %v", err)
	}
	list, err := f.List(t.Context())
	if err != nil || len(list) != 1 || list[0].State != bridge.StateReady {
		t.Fatalf("list: %v, %v", list, err)
	}
	again, err := f.Launch(t.Context(), request("a"))
	if err != nil || again.PID != list[0].PID {
		t.Errorf("again: %v, %v", again, err)
	}
}

func TestFakeLosesANode(t *testing.T) {
	t.Parallel()
	f := bridge.NewFake(
		bridge.Node{ID: "a", Total: bridge.Resources{"cpu": 1000}},
		bridge.Node{ID: "b", Total: bridge.Resources{"cpu": 1000}},
	)
	on := func(id, node string) bridge.Launched {
		r := request(id)
		r.NodeID = node
		l, err := f.Launch(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if l := on("one", "b"); l.NodeID != "b" {
		t.Errorf("affinity: %+v", l)
	}
	if l := on("two", "b"); l.NodeID != "a" {
		t.Errorf("affinity is soft: %+v", l)
	}
	var died []string
	for e, err := range f.Events(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == bridge.EventResync {
			f.Cluster.LoseNode("b")
		}
		if e.Type == bridge.EventAgentDied {
			died = append(died, e.LaunchID)
		}
		if e.Type == bridge.EventNodesChanged {
			break
		}
	}
	if fmt.Sprint(died) != "[one]" {
		t.Errorf("died: %v", died)
	}
}

func TestFakeBreaksStreamsWhenItGoesDown(t *testing.T) {
	t.Parallel()
	f := bridge.NewFake()
	var last error
	for _, err := range f.Events(t.Context(), 0) {
		last = err
		f.Down()
	}
	if !errors.Is(last, bridge.ErrUnavailable) {
		t.Errorf("it ended with %v", last)
	}
}

func TestFakeWaitsOnlyInBubbleTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := bridge.NewFake()
		r := request("a")
		r.ClassPath, r.Timeout = "schedulemesh.testing.agents:HangingConstructor", time.Hour
		began := time.Now()
		if _, err := f.Launch(t.Context(), r); !errors.Is(err, bridge.ErrLaunchTimeout) {
			t.Errorf("launch: %v", err)
		}
		if d := time.Since(began); d != time.Hour {
			t.Errorf("it took %s", d)
		}
	})
}

func TestFakeEntryEndsWhenToldAndHooksIntercept(t *testing.T) {
	t.Parallel()
	f := bridge.NewFake()
	refused := &bridge.Error{Code: bridge.CodeNoRoom, Message: "told to"}
	f.Intercept(func(_ context.Context, op, id string) error {
		if op == "launch" && id == "bad" {
			return refused
		}
		return nil
	})
	if _, err := f.Launch(t.Context(), request("bad")); !errors.Is(err, bridge.ErrNoRoom) {
		t.Errorf("launch: %v", err)
	}
	if _, err := f.Launch(t.Context(), request("a")); err != nil {
		t.Fatal(err)
	}
	if err := f.Run(t.Context(), "a", bridge.Entry{Method: "train"}); err != nil {
		t.Fatal(err)
	}
	f.Cluster.Finish("a", bridge.Outcome{Error: "boom"})
	list, err := f.List(t.Context())
	if err != nil || list[0].Entry != bridge.EntryFailed || list[0].Outcome.Error != "boom" {
		t.Errorf("list: %+v, %v", list, err)
	}
}

func TestFakeRoomIsExactUnderConcurrency(t *testing.T) {
	t.Parallel()
	f := bridge.NewFake(bridge.Node{ID: "a", Total: bridge.Resources{"cpu": 4000}})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 200 {
				id := fmt.Sprintf("%d-%d", i, j)
				if _, err := f.Launch(t.Context(), request(id)); err != nil {
					t.Error(err)
				}
				if err := f.Kill(t.Context(), id, time.Second); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	full := request("full")
	full.Resources = bridge.Resources{"cpu": 4000}
	if _, err := f.Launch(t.Context(), full); err != nil {
		t.Error(err)
	}
}

func BenchmarkFakeLaunchKill(b *testing.B) {
	nodes := make([]bridge.Node, 100)
	for i := range nodes {
		nodes[i] = bridge.Node{ID: fmt.Sprint("node-", i), Total: bridge.Resources{"cpu": 64000, "memory": 1 << 20}}
	}
	f := bridge.NewFake(nodes...)
	b.RunParallel(func(pb *testing.PB) {
		id := fmt.Sprintf("%p", pb)
		for i := 0; pb.Next(); i++ {
			r := request(fmt.Sprint(id, i))
			if _, err := f.Launch(b.Context(), r); err != nil {
				b.Error(err)
			}
			if err := f.Kill(b.Context(), r.LaunchID, time.Second); err != nil {
				b.Error(err)
			}
		}
	})
}
