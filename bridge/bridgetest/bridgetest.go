// Package bridgetest says, as tests, what every bridge.Bridge promises. The fake and the real sidecar
// pass the same suite, which is what makes the fake worth testing against.
package bridgetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
)

// Subject is a bridge under test and what only its maker can do to it.
type Subject struct {
	bridge.Bridge
	Deployment string
	// Other is a bridge of another deployment on the same cluster.
	Other func(t *testing.T, deployment string) bridge.Bridge
	// Restart kills the sidecar without warning and returns once a new one answers.
	Restart func(t *testing.T)
	// EndWorker ends an agent's process behind the bridge's back.
	EndWorker func(t *testing.T, a bridge.AgentStatus)
	// LoseGroup removes a placement group behind the bridge's back.
	LoseGroup func(t *testing.T, name string)
	// StopWorker has an agent's process stop answering, without ending it.
	StopWorker func(t *testing.T, a bridge.AgentStatus)
}

// patience is how long anything may take before a test fails; nothing waits that long unless it is broken.
const patience = 30 * time.Second

var launches atomic.Int64

// scene is one test's view: launch ids of its own, and nothing left behind.
type scene struct {
	*Subject
	t   *testing.T
	ctx context.Context
}

const (
	agents = "schedulemesh.testing.agents:"
	one    = 1000 // one cpu
)

// Run checks a bridge. made is called once for each case; it may hand out the same bridge each time.
func Run(t *testing.T, made func(t *testing.T) *Subject) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
			t.Cleanup(cancel)
			c.run(&scene{made(t), t, ctx})
		})
	}
}

var cases = []struct {
	name string
	run  func(*scene)
}{
	{"hello says who is there", (*scene).hello},
	{"a launched agent is ready, listed and on a node", (*scene).launched},
	{"the same launch twice at once starts one agent", (*scene).launchedTwice},
	{"a class that cannot be imported", (*scene).importError},
	{"a class that is missing from its module", (*scene).missingClass},
	{"a constructor that raises", (*scene).constructorRaises},
	{"a constructor that hangs times out and leaves nothing", (*scene).constructorHangs},
	{"a class that takes no name and labels", (*scene).badSignature},
	{"something that is not a class", (*scene).notAClass},
	{"a restore that raises", (*scene).restoreRaises},
	{"a broken runtime_env", (*scene).runtimeEnv},
	{"a launch bigger than any node is refused at once", (*scene).tooBig},
	{"a launch without room gives up and leaves nothing", (*scene).noRoom},
	{"a launch without room goes on when room comes", (*scene).roomComes},
	{"a bad request says what is wrong", (*scene).badRequests},
	{"an entry's result comes as an event and stays in the list", (*scene).entryResult},
	{"an entry gets its arguments", (*scene).entryArguments},
	{"an entry that raises", (*scene).entryRaises},
	{"an entry runs once", (*scene).entryOnce},
	{"an agent that exits in its entry has died", (*scene).entryExits},
	{"cancel reaches a busy agent at once", (*scene).cancelBusy},
	{"cancel ends an entry that listens", (*scene).cancelStops},
	{"a cancel that hangs times out, and the state can still be saved", (*scene).cancelHangs},
	{"a cancel that raises", (*scene).cancelRaises},
	{"a class without cancel and save_state", (*scene).cancelMissing},
	{"a class that overrides cancel", (*scene).cancelOverridden},
	{"a state that is not JSON is refused, the default kept", (*scene).saveNaN},
	{"a save that raises", (*scene).saveRaises},
	{"a save that hangs times out", (*scene).saveHangs},
	{"saved, killed and launched again, an agent goes on where it was", (*scene).resumes},
	{"a class under ray.remote", (*scene).decorated},
	{"a class of coroutines", (*scene).asynchronous},
	{"the base class cancels what it processes", (*scene).baseClass},
	{"a class pickled with other versions is refused in one sentence", (*scene).pickledElsewhere},
	{"a preserver is told of the task, a restorer of its state", (*scene).calls},
	{"a call that fails says why", (*scene).callFails},
	{"a call that hangs is ended", (*scene).callHangs},
	{"a call that cannot be read", (*scene).badCalls},
	{"twenty megabytes of state", (*scene).callLarge},
	{"kill stops a launch under way", (*scene).killLaunching},
	{"kill of what never was is fine, and keeps it from being", (*scene).killUnknown},
	{"kill twice at once", (*scene).killTwice},
	{"what is killed is gone, its room free", (*scene).killFreesRoom},
	{"calls on an agent that is not there", (*scene).notThere},
	{"an agent that dies by itself is told of", (*scene).diesByItself},
	{"a ping answers while the agent is busy", (*scene).ping},
	{"an agent that does not answer its ping can be killed", (*scene).stuck},
	{"a restarted sidecar finds its agents", (*scene).restart},
	{"an entry that ended while no sidecar was there is known", (*scene).restartOutcome},
	{"a launch under way survives a restart", (*scene).restartLaunching},
	{"an actor with a name of its own in another Ray namespace is found again", (*scene).restartNamed},
	{"a name that is taken", (*scene).nameTaken},
	{"a placement group is made once, and listed", (*scene).groupMade},
	{"a placement group without room times out and leaves nothing", (*scene).groupNoRoom},
	{"a placement group that could never be is refused at once", (*scene).groupTooBig},
	{"a placement group finds room when it comes", (*scene).groupRoomComes},
	{"a group is reused when its agent was killed, and takes no room besides", (*scene).groupReused},
	{"an agent for all bundles sits in the largest", (*scene).groupCut},
	{"agents share a group", (*scene).groupShared},
	{"a launch makes its group, or fails with it", (*scene).groupLaunch},
	{"removing a group ends what sits in it, and its name is used", (*scene).groupRemoved},
	{"a group that is removed while it is made", (*scene).groupRemovedEarly},
	{"a group that is lost is told of, once", (*scene).groupLost},
	{"a restarted sidecar finds its groups", (*scene).groupRestart},
	{"deployments do not see each other's groups", (*scene).groupsApart},
	{"a group that is none", (*scene).badGroups},
	{"events from another session resync", (*scene).eventsResync},
	{"events go on from where one was", (*scene).eventsContinue},
	{"one cluster, one claim", (*scene).claims},
	{"deployments do not see each other's agents", (*scene).apart},
	{"output is readable, live and after death", (*scene).logs},
	{"what others use is foreign, what we use is not", (*scene).foreign},
	{"metrics an agent reports come as events", (*scene).metrics},
	{"ten megabytes of arguments", (*scene).large},
	{"a body beyond the limit is refused", (*scene).tooLarge},
}

// id makes a launch id and sees to it that nothing of it is left.
func (s *scene) id() string {
	id := fmt.Sprintf("t%d-%d.1", time.Now().UnixNano(), launches.Add(1))
	s.t.Cleanup(func() { s.clean(s.Bridge, id) })
	return id
}

func (s *scene) clean(b bridge.Bridge, id string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := b.Kill(ctx, id, patience); err != nil {
		s.t.Errorf("cleaning up %s: %v", id, err)
	}
}

func (s *scene) request(class string) bridge.LaunchRequest {
	id := s.id()
	return bridge.LaunchRequest{
		LaunchID: id, AgentName: "agent-" + id, TaskID: "task-" + id, Pool: "pool", Attempt: 1,
		ClassPath: agents + class, Resources: bridge.Resources{"cpu": one}, Labels: map[string]string{"tier": "test"},
		Timeout: patience,
	}
}

func (s *scene) launch(req bridge.LaunchRequest) string {
	s.t.Helper()
	if _, err := s.Launch(s.ctx, req); err != nil {
		s.t.Fatalf("launch of %s: %v", req.ClassPath, err)
	}
	return req.LaunchID
}

func (s *scene) started(class, method, kwargs string) string {
	s.t.Helper()
	id := s.launch(s.request(class))
	s.run(id, bridge.Entry{Method: method, Kwargs: json.RawMessage(kwargs)})
	return id
}

func (s *scene) run(id string, e bridge.Entry) {
	s.t.Helper()
	if err := s.Run(s.ctx, id, e); err != nil {
		s.t.Fatalf("run %s: %v", e.Method, err)
	}
}

// status is an agent in the list; its State is "" when it is not there.
func (s *scene) status(id string) bridge.AgentStatus {
	s.t.Helper()
	list, err := s.List(s.ctx)
	if err != nil {
		s.t.Fatalf("list: %v", err)
	}
	for _, a := range list {
		if a.LaunchID == id {
			return a
		}
	}
	return bridge.AgentStatus{}
}

// feed collects events from now on.
type feed struct {
	s      *scene
	events chan bridge.Event
	first  bridge.Event
}

func (s *scene) follow(after int64) *feed {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	f := &feed{s: s, events: make(chan bridge.Event, 1024)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e, err := range s.Events(ctx, after) {
			if err != nil {
				return
			}
			f.events <- e
		}
	}()
	s.t.Cleanup(func() { cancel(); <-ended })
	return f
}

func (s *scene) followNow() *feed {
	f := s.follow(0)
	f.first = f.next(func(e bridge.Event) bool { return e.Type == bridge.EventResync })
	return f
}

func (f *feed) next(match func(bridge.Event) bool) bridge.Event {
	f.s.t.Helper()
	late := time.After(patience)
	for {
		select {
		case e := <-f.events:
			if match(e) {
				return e
			}
		case <-late:
			f.s.t.Fatal("the event did not come")
		}
	}
}

func (f *feed) of(id string, types ...bridge.EventType) bridge.Event {
	f.s.t.Helper()
	return f.next(func(e bridge.Event) bool { return e.LaunchID == id && slices.Contains(types, e.Type) })
}

func (s *scene) failsWith(code bridge.Code, req bridge.LaunchRequest) *bridge.Error {
	s.t.Helper()
	_, err := s.Launch(s.ctx, req)
	var e *bridge.Error
	if !errors.As(err, &e) || e.Code != code {
		s.t.Fatalf("launch answered %v, want %s", err, code)
	}
	if e.Message == "" || e.Unknown {
		s.t.Errorf("error has message %q, unknown %v: want a message, and to know", e.Message, e.Unknown)
	}
	if a := s.status(req.LaunchID); a.State != "" && a.State != bridge.StateGone {
		s.t.Errorf("the agent is %s, nothing should be left", a.State)
	}
	_, again := s.Launch(s.ctx, req)
	if bridge.CodeOf(again) != code {
		s.t.Errorf("launched again it answers %v, want the same error", again)
	}
	return e
}

func (s *scene) equal(what string, got json.RawMessage, want string) {
	s.t.Helper()
	var a, b any
	if err := errors.Join(json.Unmarshal(got, &a), json.Unmarshal([]byte(want), &b)); err != nil {
		s.t.Fatalf("%s is %s: %v", what, got, err)
	}
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	if string(x) != string(y) {
		s.t.Errorf("%s is %s, want %s", what, x, y)
	}
}

func (s *scene) step(state json.RawMessage) int {
	s.t.Helper()
	var v struct{ Step int }
	if err := json.Unmarshal(state, &v); err != nil {
		s.t.Fatalf("state %s: %v", state, err)
	}
	return v.Step
}

func (s *scene) save(id string) bridge.SavedState {
	s.t.Helper()
	saved, err := s.SaveState(s.ctx, id, patience)
	if err != nil {
		s.t.Fatalf("save: %v", err)
	}
	return saved
}

// quick fails when something meant to be immediate took seconds.
func (s *scene) quick(what string, began time.Time) {
	s.t.Helper()
	if d := time.Since(began); d > 3*time.Second {
		s.t.Errorf("%s took %s", what, d)
	}
}
