package bridgetest

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
)

func (s *scene) hello() {
	h, err := s.Hello(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	if h.Protocol != bridge.Protocol || h.Deployment != s.Deployment || h.Session == "" || h.ClusterID == "" ||
		h.RayVersion == "" || h.PythonVersion == "" || h.RayAddress == "" || h.RayNamespace == "" || h.NodeID == "" || h.PID == 0 {
		s.t.Errorf("hello is incomplete: %+v", h)
	}
	resp, err := http.Get(h.Dashboard + "/api/version")
	if err != nil {
		s.t.Fatalf("the dashboard is said to be at %q: %v", h.Dashboard, err)
	}
	defer resp.Body.Close()
	var said struct {
		RayVersion string `json:"ray_version"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil || said.RayVersion != h.RayVersion {
		s.t.Errorf("the dashboard at %s answers %s, %+v, %v", h.Dashboard, resp.Status, said, err)
	}
}

func (s *scene) launched() {
	req := s.request("Counter")
	got, err := s.Launch(s.ctx, req)
	if err != nil {
		s.t.Fatal(err)
	}
	if got.LaunchID != req.LaunchID || got.ActorID == "" || got.NodeID == "" || got.PID == 0 || got.ActorName != req.LaunchID {
		s.t.Errorf("launched is incomplete: %+v", got)
	}
	a := s.status(req.LaunchID)
	if a.State != bridge.StateReady || a.AgentName != req.AgentName || a.TaskID != req.TaskID || a.Pool != req.Pool ||
		a.Attempt != 1 || a.ActorID != got.ActorID || a.NodeID != got.NodeID || a.PID != got.PID || a.Resources["cpu"] != one {
		s.t.Errorf("listed as %+v after %+v", a, got)
	}
	nodes, err := s.Nodes(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, n := range nodes {
		if n.ID == got.NodeID && n.Alive && n.Total["cpu"] >= one && n.Total["memory"] > 0 && n.Address != "" {
			return
		}
	}
	s.t.Errorf("node %s is not among %+v", got.NodeID, nodes)
}

func (s *scene) launchedTwice() {
	req := s.request("Counter")
	got := make([]bridge.Launched, 4)
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() {
			l, err := s.Launch(s.ctx, req)
			if err != nil {
				s.t.Error(err)
			}
			got[i] = l
		})
	}
	all.Wait()
	again, err := s.Launch(s.ctx, req)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, l := range got {
		if l.ActorID != again.ActorID || l.PID != again.PID {
			s.t.Errorf("two agents: %+v and %+v", l, again)
		}
	}
}

func (s *scene) importError() {
	req := s.request("")
	req.ClassPath = "no_such_module_at_all:Agent"
	if e := s.failsWith(bridge.CodeImportFailed, req); !strings.Contains(e.Message, "no_such_module_at_all") {
		s.t.Errorf("the message does not name the module: %s", e.Message)
	}
}

func (s *scene) missingClass() { s.failsWith(bridge.CodeImportFailed, s.request("Missing")) }

func (s *scene) constructorRaises() {
	if e := s.failsWith(bridge.CodeConstructorFailed, s.request("RaisingConstructor")); !strings.Contains(e.Message, "told to raise") {
		s.t.Errorf("the message does not say what was raised: %s", e.Message)
	}
}

func (s *scene) constructorHangs() {
	req := s.request("HangingConstructor")
	req.Timeout = 1500 * time.Millisecond
	s.failsWith(bridge.CodeLaunchTimeout, req)
	s.launch(s.filling()) // the whole node is free again
}

func (s *scene) badSignature() { s.failsWith(bridge.CodeInvalidClass, s.request("BadSignature")) }
func (s *scene) notAClass()    { s.failsWith(bridge.CodeInvalidClass, s.request("NotAClass")) }

func (s *scene) restoreRaises() {
	req := s.request("RaisingRestore")
	req.SavedState = json.RawMessage(`{"step": 3}`)
	s.failsWith(bridge.CodeRestoreFailed, req)
}

func (s *scene) runtimeEnv() {
	req := s.request("Counter")
	req.RuntimeEnv = json.RawMessage(`{"working_dir": "/does/not/exist"}`)
	s.failsWith(bridge.CodeRuntimeEnvFailed, req)
}

// filling asks for all the cpus of the biggest node that others leave.
func (s *scene) filling() bridge.LaunchRequest {
	s.t.Helper()
	req := s.request("Counter")
	s.until("what others use is known", func() bool {
		nodes, err := s.Nodes(s.ctx)
		if err != nil {
			s.t.Fatal(err)
		}
		known := len(nodes) > 0
		for _, n := range nodes {
			known = known && (n.ForeignKnown || !n.Alive)
			if left := n.Total["cpu"] - n.Foreign["cpu"]; n.Alive && left > req.Resources["cpu"] {
				req.Resources, req.NodeID = bridge.Resources{"cpu": left}, n.ID
			}
		}
		return known
	})
	return req
}

func (s *scene) tooBig() {
	req := s.request("Counter")
	req.Resources = bridge.Resources{"cpu": 1_000_000_000}
	began := time.Now()
	s.failsWith(bridge.CodeNoRoom, req)
	s.quick("the refusal", began)
}

func (s *scene) noRoom() {
	s.launch(s.filling())
	req := s.request("Counter")
	req.RoomTimeout = time.Second
	s.failsWith(bridge.CodeNoRoom, req)
}

func (s *scene) roomComes() {
	first := s.launch(s.filling())
	req := s.request("Counter")
	done := make(chan error, 1)
	go func() {
		_, err := s.Launch(s.ctx, req)
		done <- err
	}()
	s.until("the second agent is launching", func() bool { return s.status(req.LaunchID).State == bridge.StateLaunching })
	if err := s.Kill(s.ctx, first, patience); err != nil {
		s.t.Fatal(err)
	}
	if err := <-done; err != nil {
		s.t.Fatal(err)
	}
}

// until waits for what no event tells.
func (s *scene) until(what string, true_ func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !true_(); {
		if time.Now().After(end) {
			s.t.Fatalf("never so: %s", what)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-s.ctx.Done():
			s.t.Fatal(s.ctx.Err())
		}
	}
}

func (s *scene) badRequests() {
	for what, spoil := range map[string]func(*bridge.LaunchRequest){
		"NUL in a name":     func(r *bridge.LaunchRequest) { r.AgentName = "a\x00b" },
		"no class":          func(r *bridge.LaunchRequest) { r.ClassPath = "" },
		"two classes":       func(r *bridge.LaunchRequest) { r.Pickled = "gA==" },
		"negative resource": func(r *bridge.LaunchRequest) { r.Resources = bridge.Resources{"cpu": -1} },
		"no id":             func(r *bridge.LaunchRequest) { r.LaunchID = "" },
		"broken JSON":       func(r *bridge.LaunchRequest) { r.Kwargs = json.RawMessage(`{"a":`) },
		"args no array":     func(r *bridge.LaunchRequest) { r.Args = json.RawMessage(`{}`) },
	} {
		req := s.request("Counter")
		spoil(&req)
		if _, err := s.Launch(s.ctx, req); !errors.Is(err, bridge.ErrBadRequest) || bridge.IsUnknown(err) {
			s.t.Errorf("%s: %v, want bad_request", what, err)
		}
	}
}

func (s *scene) entryResult() {
	id := s.launch(s.request("Counter"))
	f := s.followNow()
	s.run(id, bridge.Entry{Method: "run", Kwargs: json.RawMessage(`{"steps": 3}`)})
	const want = `{"status": "completed", "step": 3}`
	e := f.of(id, bridge.EventEntryCompleted, bridge.EventEntryFailed)
	if e.Type != bridge.EventEntryCompleted || e.Outcome == nil {
		s.t.Fatalf("event %+v", e)
	}
	s.equal("the event's result", e.Outcome.Result, want)
	a := s.status(id)
	if a.State != bridge.StateReady || a.Entry != bridge.EntryCompleted || a.Outcome == nil {
		s.t.Fatalf("listed as %+v", a)
	}
	s.equal("the listed result", a.Outcome.Result, want)
}

func (s *scene) entryArguments() {
	req := s.request("Echo")
	id := s.launch(req)
	f := s.followNow()
	s.run(id, bridge.Entry{Method: "run", Args: json.RawMessage(`[1, "zwei"]`), Kwargs: json.RawMessage(`{"three": [3.5, null]}`)})
	e := f.of(id, bridge.EventEntryCompleted, bridge.EventEntryFailed)
	s.equal("the result", e.Outcome.Result,
		`{"name": "`+req.AgentName+`", "labels": {"tier": "test"}, "args": [1, "zwei"], "kwargs": {"three": [3.5, null]}}`)
}

func (s *scene) entryRaises() {
	id := s.launch(s.request("Failing"))
	f := s.followNow()
	s.run(id, bridge.Entry{Method: "run"})
	e := f.of(id, bridge.EventEntryCompleted, bridge.EventEntryFailed)
	if e.Type != bridge.EventEntryFailed || e.Outcome == nil || e.Outcome.Error != "ValueError: told to fail" ||
		!strings.Contains(e.Outcome.Traceback, "Traceback") {
		s.t.Errorf("event %+v, outcome %+v", e, e.Outcome)
	}
	if a := s.status(id); a.State != bridge.StateReady || a.Entry != bridge.EntryFailed || a.Outcome == nil {
		s.t.Errorf("listed as %+v", a)
	}
}

func (s *scene) entryOnce() {
	id := s.launch(s.request("Counter"))
	f := s.followNow()
	s.run(id, bridge.Entry{Method: "run", Kwargs: json.RawMessage(`{"steps": 2}`)})
	first := f.of(id, bridge.EventEntryCompleted, bridge.EventEntryFailed)
	s.run(id, bridge.Entry{Method: "run", Kwargs: json.RawMessage(`{"steps": 5}`)})
	if saved := s.save(id); s.step(saved.State) != 2 {
		s.t.Errorf("it ran again: %s after %s", saved.State, first.Outcome.Result)
	}
}

func (s *scene) entryExits() {
	id := s.launch(s.request("Exiting"))
	f := s.followNow()
	s.run(id, bridge.Entry{Method: "run"})
	if e := f.of(id, bridge.EventAgentDied); e.Reason == "" {
		s.t.Error("no reason given")
	}
	if a := s.status(id); a.State != bridge.StateGone {
		s.t.Errorf("listed as %+v", a)
	}
}

func (s *scene) cancelBusy() {
	id := s.started("Busy", "run", ``)
	began := time.Now()
	r, err := s.Cancel(s.ctx, id, "task", patience)
	if err != nil || !r.Success || r.TimedOut {
		s.t.Fatalf("cancel: %+v, %v", r, err)
	}
	s.quick("cancel of a busy agent", began)
}

func (s *scene) cancelStops() {
	id := s.launch(s.request("Counter"))
	f := s.followNow()
	s.run(id, bridge.Entry{Method: "run"})
	r, err := s.Cancel(s.ctx, id, "task-7", patience)
	if err != nil || !r.Success {
		s.t.Fatalf("cancel: %+v, %v", r, err)
	}
	s.equal("cancel's answer", r.Result, `{"success": true, "task_id": "task-7"}`)
	e := f.of(id, bridge.EventEntryCompleted)
	if !e.Outcome.Cancelled {
		s.t.Errorf("the outcome does not say that a cancel was asked: %+v", e.Outcome)
	}
}

func (s *scene) cancelHangs() {
	id := s.started("HangingCancel", "run", ``)
	r, err := s.Cancel(s.ctx, id, "task", 300*time.Millisecond)
	if err != nil || r.Success || !r.TimedOut || r.Error == "" {
		s.t.Fatalf("cancel: %+v, %v", r, err)
	}
	began := time.Now()
	saved := s.save(id)
	s.quick("save after a hanging cancel", began)
	if saved.Default || saved.Error != "" || s.step(saved.State) < 1 {
		s.t.Errorf("saved %s, %+v", saved.State, saved)
	}
}

func (s *scene) cancelRaises() {
	id := s.started("RaisingCancel", "run", ``)
	r, err := s.Cancel(s.ctx, id, "task", patience)
	if err != nil || r.Success || r.TimedOut || !strings.Contains(r.Error, "told to raise") {
		s.t.Errorf("cancel: %+v, %v", r, err)
	}
}

func (s *scene) cancelMissing() {
	req := s.request("Echo")
	id := s.launch(req)
	r, err := s.Cancel(s.ctx, id, "task", patience)
	if err != nil || r.Success || !strings.Contains(r.Error, "cancel") {
		s.t.Errorf("cancel: %+v, %v", r, err)
	}
	saved := s.save(id)
	if !saved.Default || saved.Error != "" {
		s.t.Errorf("saved %+v", saved)
	}
	s.equal("the default state", saved.State, `{"task_id": "`+req.TaskID+`", "pool_name": "pool", "labels": {"tier": "test"}}`)
}

func (s *scene) cancelOverridden() {
	id := s.launch(s.request("OverriddenCancel"))
	f := s.followNow()
	s.run(id, bridge.Entry{Method: "run"})
	began := time.Now()
	r, err := s.Cancel(s.ctx, id, "task", patience)
	if err != nil || !r.Success || !strings.Contains(string(r.Result), `"overridden"`) {
		s.t.Fatalf("cancel: %+v, %v", r, err)
	}
	s.quick("cancel", began)
	f.of(id, bridge.EventEntryCompleted)
}

func (s *scene) saveNaN() {
	id := s.launch(s.request("NanSave"))
	saved := s.save(id)
	if !saved.Default || !strings.Contains(saved.Error, "loss") || !strings.Contains(string(saved.State), "pool_name") {
		s.t.Errorf("saved %s, %+v", saved.State, saved)
	}
}

func (s *scene) saveRaises() {
	id := s.launch(s.request("RaisingSave"))
	if saved := s.save(id); !saved.Default || !strings.Contains(saved.Error, "told to raise") || len(saved.State) == 0 {
		s.t.Errorf("saved %s, %+v", saved.State, saved)
	}
}

func (s *scene) saveHangs() {
	id := s.launch(s.request("HangingSave"))
	saved, err := s.SaveState(s.ctx, id, 300*time.Millisecond)
	if err != nil || !saved.TimedOut || !saved.Default || saved.Error == "" || len(saved.State) == 0 {
		s.t.Errorf("saved %+v, %v", saved, err)
	}
}

func (s *scene) resumes() {
	s.resumesAs(agents + "Counter")
}

func (s *scene) resumesAs(class string) {
	s.t.Helper()
	req := s.request("")
	req.ClassPath = class
	id := s.launch(req)
	s.run(id, bridge.Entry{Method: "run"})
	var saved bridge.SavedState
	s.until("it counts", func() bool { saved = s.save(id); return s.step(saved.State) >= 1 })
	if r, err := s.Cancel(s.ctx, id, req.TaskID, patience); err != nil || !r.Success {
		s.t.Fatalf("cancel: %+v, %v", r, err)
	}
	saved = s.save(id)
	if err := s.Kill(s.ctx, id, patience); err != nil {
		s.t.Fatal(err)
	}
	if a := s.status(id); a.State != bridge.StateGone {
		s.t.Errorf("after kill it is listed as %+v", a)
	}
	next := s.request("")
	next.ClassPath, next.SavedState, next.Attempt = class, saved.State, 2
	id = s.launch(next)
	was, is := s.step(saved.State), s.step(s.save(id).State)
	if was < 1 || is != was {
		s.t.Errorf("it was at step %d and is at %d", was, is)
	}
}

func (s *scene) decorated()    { s.resumesAs("schedulemesh.testing.decorated:Decorated") }
func (s *scene) asynchronous() { s.resumesAs(agents + "AsyncAgent") }

func (s *scene) baseClass() {
	req := s.request("")
	req.ClassPath = "schedulemesh.core.agent_actor:AgentActor"
	id := s.launch(req)
	f := s.followNow()
	s.run(id, bridge.Entry{Method: "process", Kwargs: json.RawMessage(`{"payload": {}, "task_id": "job-1", "simulated_duration": 600}`)})
	r, err := s.Cancel(s.ctx, id, "job-1", patience)
	if err != nil || !r.Success {
		s.t.Fatalf("cancel: %+v, %v", r, err)
	}
	e := f.of(id, bridge.EventEntryCompleted)
	if !strings.Contains(string(e.Outcome.Result), `"cancelled"`) {
		s.t.Errorf("process returned %s", e.Outcome.Result)
	}
}

func (s *scene) killLaunching() {
	req := s.request("HangingConstructor")
	done := make(chan error, 1)
	go func() {
		_, err := s.Launch(s.ctx, req)
		done <- err
	}()
	s.until("it is launching", func() bool { return s.status(req.LaunchID).State == bridge.StateLaunching })
	if err := s.Kill(s.ctx, req.LaunchID, patience); err != nil {
		s.t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, bridge.ErrAgentDied) {
		s.t.Errorf("the launch answered %v, want agent_died", err)
	}
	if a := s.status(req.LaunchID); a.State != bridge.StateGone {
		s.t.Errorf("listed as %+v", a)
	}
	s.launch(s.filling())
}

func (s *scene) killUnknown() {
	req := s.request("Counter")
	if err := s.Kill(s.ctx, req.LaunchID, patience); err != nil {
		s.t.Fatal(err)
	}
	if a := s.status(req.LaunchID); a.State != "" {
		s.t.Errorf("what never was is listed as %+v", a)
	}
	if _, err := s.Launch(s.ctx, req); !errors.Is(err, bridge.ErrAgentDied) {
		s.t.Errorf("a launch that was killed before it came answered %v", err)
	}
}

func (s *scene) killTwice() {
	id := s.started("Busy", "run", ``)
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if err := s.Kill(s.ctx, id, patience); err != nil {
				s.t.Error(err)
			}
		})
	}
	both.Wait()
	if err := s.Kill(s.ctx, id, patience); err != nil {
		s.t.Errorf("a third time: %v", err)
	}
}

func (s *scene) killFreesRoom() {
	for range 3 {
		req := s.filling()
		req.RoomTimeout = 5 * time.Second
		id := s.launch(req)
		if err := s.Kill(s.ctx, id, patience); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *scene) notThere() {
	id := s.launch(s.request("Counter"))
	if err := s.Kill(s.ctx, id, patience); err != nil {
		s.t.Fatal(err)
	}
	for who, want := range map[string]error{id: bridge.ErrAgentDied, "never-was": bridge.ErrAgentNotFound} {
		_, cancel := s.Cancel(s.ctx, who, "t", time.Second)
		_, save := s.SaveState(s.ctx, who, time.Second)
		for call, err := range map[string]error{
			"run": s.Run(s.ctx, who, bridge.Entry{Method: "run"}), "cancel": cancel, "save": save, "ping": s.Ping(s.ctx, who, time.Second),
		} {
			if !errors.Is(err, want) || bridge.IsUnknown(err) {
				s.t.Errorf("%s of %s: %v, want %v", call, who, err, want)
			}
		}
	}
}

func (s *scene) diesByItself() {
	id := s.launch(s.request("Counter"))
	f := s.followNow()
	s.EndWorker(s.t, s.status(id))
	if e := f.of(id, bridge.EventAgentDied); e.Reason == "" {
		s.t.Error("no reason given")
	}
	if a := s.status(id); a.State != bridge.StateGone || a.Reason == "" {
		s.t.Errorf("listed as %+v", a)
	}
	s.launch(s.filling())
}

func (s *scene) ping() {
	id := s.started("Busy", "run", ``)
	if err := s.Ping(s.ctx, id, patience); err != nil {
		s.t.Error(err)
	}
}

func (s *scene) stuck() {
	id := s.launch(s.request("Counter"))
	s.StopWorker(s.t, s.status(id))
	began := time.Now()
	if err := s.Ping(s.ctx, id, 500*time.Millisecond); !errors.Is(err, bridge.ErrTimeout) || bridge.IsUnknown(err) {
		s.t.Errorf("ping: %v", err)
	}
	s.quick("the ping", began)
	if err := s.Kill(s.ctx, id, patience); err != nil {
		s.t.Fatal(err)
	}
	if err := s.Ping(s.ctx, id, time.Second); !errors.Is(err, bridge.ErrAgentDied) {
		s.t.Errorf("a ping after the kill: %v", err)
	}
}

func (s *scene) restart() {
	id := s.started("Busy", "run", ``)
	dead := s.launch(s.request("Counter"))
	if err := s.Kill(s.ctx, dead, patience); err != nil {
		s.t.Fatal(err)
	}
	before := s.status(id)
	was, err := s.Hello(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	s.Restart(s.t)
	is, err := s.Hello(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	if was.Session == is.Session || was.ClusterID != is.ClusterID {
		s.t.Errorf("sessions %s and %s, clusters %s and %s", was.Session, is.Session, was.ClusterID, is.ClusterID)
	}
	after := s.status(id)
	if after.PID != before.PID || after.ActorID != before.ActorID || after.State != bridge.StateReady ||
		after.Entry != bridge.EntryRunning || after.TaskID != before.TaskID || after.Resources["cpu"] != one {
		s.t.Errorf("it was %+v and is %+v", before, after)
	}
	if a := s.status(dead); a.State == bridge.StateReady || a.State == bridge.StateLaunching {
		s.t.Errorf("the dead came back: %+v", a)
	}
	if r, err := s.Cancel(s.ctx, id, "t", patience); err != nil || !r.Success {
		s.t.Errorf("cancel: %+v, %v", r, err)
	}
	f := s.followNow()
	s.EndWorker(s.t, after)
	f.of(id, bridge.EventAgentDied)
}

func (s *scene) restartOutcome() {
	id := s.started("Counter", "run", `{"steps": 50, "step_seconds": 0.02}`)
	s.Restart(s.t)
	f := s.followNow()
	a := s.status(id)
	if a.Entry == bridge.EntryRunning { // a quick restart: the new sidecar hears of it
		f.of(id, bridge.EventEntryCompleted)
		a = s.status(id)
	}
	if a.Entry != bridge.EntryCompleted || a.Outcome == nil {
		s.t.Fatalf("listed as %+v", a)
	}
	s.equal("the result", a.Outcome.Result, `{"status": "completed", "step": 50}`)
}

func (s *scene) restartLaunching() {
	req := s.request("HangingConstructor")
	go func() { _, _ = s.Launch(s.ctx, req) }()
	s.until("it is launching", func() bool { return s.status(req.LaunchID).State == bridge.StateLaunching })
	s.Restart(s.t)
	// The sidecar may have died before the actor was made; then, and only then, there is nothing.
	if a := s.status(req.LaunchID); a.State != bridge.StateLaunching && a.State != "" {
		s.t.Errorf("listed as %+v", a)
	}
	if err := s.Kill(s.ctx, req.LaunchID, patience); err != nil {
		s.t.Fatal(err)
	}
	s.launch(s.filling())
}

func (s *scene) restartNamed() {
	req := s.request("Counter")
	req.ActorName, req.RayNamespace = "trainer-"+req.LaunchID, "somebody-elses-namespace"
	got, err := s.Launch(s.ctx, req)
	if err != nil {
		s.t.Fatal(err)
	}
	if got.ActorName != req.ActorName || got.RayNamespace != req.RayNamespace {
		s.t.Errorf("launched as %+v", got)
	}
	s.Restart(s.t)
	if a := s.status(req.LaunchID); a.State != bridge.StateReady || a.ActorName != req.ActorName || a.RayNamespace != req.RayNamespace || a.PID != got.PID {
		s.t.Errorf("listed as %+v", a)
	}
	if again, err := s.Launch(s.ctx, req); err != nil || again.ActorID != got.ActorID {
		s.t.Errorf("launched again: %+v, %v", again, err)
	}
	if err := s.Kill(s.ctx, req.LaunchID, patience); err != nil {
		s.t.Error(err)
	}
}

func (s *scene) nameTaken() {
	req := s.request("Counter")
	req.ActorName, req.RayNamespace = "named-"+req.LaunchID, "users"
	first := s.launch(req)
	next := s.request("Counter")
	next.ActorName, next.RayNamespace = req.ActorName, req.RayNamespace
	s.failsWith(bridge.CodeNameTaken, next)
	if a := s.status(first); a.State != bridge.StateReady {
		s.t.Errorf("the first is %+v", a)
	}
	if err := s.Kill(s.ctx, first, patience); err != nil {
		s.t.Fatal(err)
	}
	last := s.request("Counter")
	last.ActorName, last.RayNamespace = req.ActorName, req.RayNamespace
	s.launch(last)
}

func (s *scene) eventsResync() {
	f := s.followNow()
	if f.first.Session == "" {
		s.t.Errorf("resync names no session: %+v", f.first)
	}
	s.Restart(s.t)
	again := s.follow(f.first.Seq).next(func(bridge.Event) bool { return true })
	if again.Type != bridge.EventResync || again.Seq <= f.first.Seq || again.Session == f.first.Session {
		s.t.Errorf("after a restart the first event is %+v, before it was %+v", again, f.first)
	}
	ahead := s.follow(again.Seq + 1_000_000_000_000).next(func(bridge.Event) bool { return true })
	if ahead.Type != bridge.EventResync {
		s.t.Errorf("from the future the first event is %+v", ahead)
	}
}

func (s *scene) eventsContinue() {
	f := s.followNow()
	a := s.started("Counter", "run", `{"steps": 1}`)
	first := f.of(a, bridge.EventEntryCompleted)
	b := s.started("Counter", "run", `{"steps": 1}`)
	second := f.of(b, bridge.EventEntryCompleted)
	if second.Seq <= first.Seq {
		s.t.Errorf("numbers do not grow: %d, %d", first.Seq, second.Seq)
	}
	later := s.follow(first.Seq)
	e := later.next(func(e bridge.Event) bool { return e.Type != bridge.EventNodesChanged })
	if e.Seq != second.Seq {
		s.t.Errorf("continued with %+v, want %+v", e, second)
	}
}

func (s *scene) claims() {
	mine := bridge.Claim{Deployment: s.Deployment, URL: "http://127.0.0.1:8080"}
	first := mine
	first.Force = true // tests of other packages may be on this cluster
	if err := s.Claim(s.ctx, first); err != nil {
		s.t.Fatal(err)
	}
	if err := s.Claim(s.ctx, mine); err != nil {
		s.t.Errorf("claimed again by the same: %v", err)
	}
	if h, err := s.Hello(s.ctx); err != nil || h.Claim == nil || *h.Claim != mine {
		s.t.Errorf("hello says %+v, %v", h.Claim, err)
	}
	if err := s.Claim(s.ctx, bridge.Claim{Deployment: "somebody-else"}); !errors.Is(err, bridge.ErrBadRequest) {
		s.t.Errorf("a claim for another deployment through this sidecar: %v", err)
	}
	name := s.Deployment + "-other"
	other := s.Other(s.t, name)
	theirs := bridge.Claim{Deployment: name, URL: "http://127.0.0.1:9090"}
	err := other.Claim(s.ctx, theirs)
	var e *bridge.Error
	if !errors.As(err, &e) || !errors.Is(err, bridge.ErrClaimed) || e.Holder == nil || *e.Holder != mine {
		s.t.Fatalf("a second deployment's claim: %v", err)
	}
	theirs.Force = true
	if err := other.Claim(s.ctx, theirs); err != nil {
		s.t.Fatal(err)
	}
	if err := s.Claim(s.ctx, mine); !errors.Is(err, bridge.ErrClaimed) {
		s.t.Errorf("after it was taken over: %v", err)
	}
	mine.Force = true
	if err := s.Claim(s.ctx, mine); err != nil {
		s.t.Error(err)
	}
}

func (s *scene) apart() {
	id := s.launch(s.request("Counter"))
	other := s.Other(s.t, s.Deployment+"-other")
	if list, err := other.List(s.ctx); err != nil || len(list) != 0 {
		s.t.Errorf("the other deployment lists %+v, %v", list, err)
	}
	if _, err := other.SaveState(s.ctx, id, time.Second); !errors.Is(err, bridge.ErrAgentNotFound) {
		s.t.Errorf("the other deployment saves: %v", err)
	}
	if err := other.Kill(s.ctx, id, patience); err != nil {
		s.t.Error(err)
	}
	if err := s.Ping(s.ctx, id, patience); err != nil {
		s.t.Errorf("after the other's kill: %v", err)
	}
}

func (s *scene) logs() {
	id := s.launch(s.request("Printer"))
	f := s.followNow()
	s.run(id, bridge.Entry{Method: "run", Kwargs: json.RawMessage(`{"lines": ["first", "zweite ü", "third"]}`)})
	f.of(id, bridge.EventEntryCompleted)
	read := func(stream bridge.Stream, offset int64, limit int) bridge.LogChunk {
		s.t.Helper()
		c, err := s.Logs(s.ctx, id, stream, offset, limit)
		if err != nil {
			s.t.Fatal(err)
		}
		return c
	}
	all := read(bridge.Stdout, 0, 0)
	if all.Text != "first\nzweite ü\nthird\n" || !all.EOF || all.Ended || all.Next != all.Size {
		s.t.Errorf("read %+v", all)
	}
	if rest := read(bridge.Stdout, all.Next, 0); rest.Text != "" || rest.Next != all.Next || !rest.EOF {
		s.t.Errorf("read on: %+v", rest)
	}
	var text string
	for at := int64(0); ; {
		c := read(bridge.Stdout, at, 64)
		text += c.Text
		if c.EOF {
			break
		}
		if c.Next <= at {
			s.t.Fatalf("stuck at %+v", c)
		}
		at = c.Next
	}
	if text != all.Text {
		s.t.Errorf("in pieces it is %q", text)
	}
	if err := s.Kill(s.ctx, id, patience); err != nil {
		s.t.Fatal(err)
	}
	if c := read(bridge.Stdout, 0, 0); c.Text != all.Text || !c.Ended {
		s.t.Errorf("after death: %+v", c)
	}
	if _, err := s.Logs(s.ctx, "never-was", bridge.Stdout, 0, 0); !errors.Is(err, bridge.ErrAgentNotFound) {
		s.t.Errorf("of an unknown agent: %v", err)
	}
	if _, err := s.Logs(s.ctx, id, "stdin", 0, 0); !errors.Is(err, bridge.ErrBadRequest) {
		s.t.Errorf("of an unknown stream: %v", err)
	}
}

func (s *scene) foreign() {
	// Others come and go on the same Ray meanwhile. None of them asks for single thousandths of a CPU, so the last
	// digit of the sum is ours alone.
	digit := func() (n int64, known bool) {
		s.t.Helper()
		nodes, err := s.Nodes(s.ctx)
		if err != nil {
			s.t.Fatal(err)
		}
		known = true
		for _, node := range nodes {
			n += node.Foreign["cpu"]
			known = known && node.ForeignKnown
		}
		return n % 10, known
	}
	var before int64
	s.until("what others use is known", func() bool { n, known := digit(); before = n; return known })
	counter, hanging := s.request("Counter"), s.request("HangingConstructor")
	counter.Resources, hanging.Resources = bridge.Resources{"cpu": 1}, bridge.Resources{"cpu": 2}
	s.launch(counter)
	go func() { _, _ = s.Launch(s.ctx, hanging) }()
	s.until("it is launching", func() bool { return s.status(hanging.LaunchID).State == bridge.StateLaunching })

	other := s.Other(s.t, s.Deployment+"-other")
	if n, _ := digit(); n != before {
		s.t.Errorf("our own agents count as foreign: it ends in %d, and did in %d", n, before)
	}
	if err := s.Kill(s.ctx, hanging.LaunchID, patience); err != nil {
		s.t.Fatal(err)
	}
	theirs := s.request("Counter")
	theirs.Resources = bridge.Resources{"cpu": 4}
	if _, err := other.Launch(s.ctx, theirs); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.clean(other, theirs.LaunchID) })
	f := s.followNow()
	changed := func(bridge.Event) bool { return true }
	for n, _ := digit(); n != (before+4)%10; n, _ = digit() {
		f.next(changed)
	}
	if err := other.Kill(s.ctx, theirs.LaunchID, patience); err != nil {
		s.t.Fatal(err)
	}
	for n, _ := digit(); n != before; n, _ = digit() {
		f.next(changed)
	}
}

func (s *scene) metrics() {
	id := s.launch(s.request("Reporting"))
	f := s.followNow()
	s.run(id, bridge.Entry{Method: "run"})
	s.equal("the metrics", f.of(id, bridge.EventAgentMetrics).Metrics, `{"step": 1, "loss": 0.5}`)
}

func (s *scene) large() {
	req := s.request("Echo")
	big := strings.Repeat("x", 10<<20)
	req.Kwargs, _ = json.Marshal(map[string]string{"weights": big})
	s.launch(req)
	f := s.followNow()
	s.run(req.LaunchID, bridge.Entry{Method: "run", Kwargs: req.Kwargs})
	if e := f.of(req.LaunchID, bridge.EventEntryCompleted, bridge.EventEntryFailed); e.Type != bridge.EventEntryCompleted {
		s.t.Errorf("outcome %+v", e.Outcome)
	}
}

func (s *scene) tooLarge() {
	req := s.request("Echo")
	req.Kwargs, _ = json.Marshal(map[string]string{"weights": strings.Repeat("x", bridge.MaxBody)})
	if _, err := s.Launch(s.ctx, req); !errors.Is(err, bridge.ErrTooLarge) || bridge.IsUnknown(err) {
		s.t.Errorf("launch: %.200v", err)
	}
	gone, cancel := context.WithCancel(s.ctx)
	cancel()
	if _, err := s.Launch(gone, s.request("Counter")); err == nil || bridge.IsUnknown(err) {
		s.t.Errorf("a call that was given up before it was sent: %v", err)
	}
}
