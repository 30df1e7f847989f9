package bridgetest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
)

const handlers = "schedulemesh.testing.handlers"

// taskState is the argument of a preserver, all fields of it.
const taskState = `{"task_id": "t", "agent_name": "a", "pool_name": "p", "priority": 2.5, "labels": {"tier": "batch"}, "payload": [1, null],
	"estimated_duration": 60.0, "started_at": null, "attempt": 2}`

func (s *scene) call(kind bridge.CallKind, name, argument string, change ...func(*bridge.CallRequest)) bridge.CallResult {
	s.t.Helper()
	req := bridge.CallRequest{Pickled: bridge.PickleOf(handlers, name), Kind: kind, Name: name, Argument: json.RawMessage(argument), Timeout: patience}
	for _, f := range change {
		f(&req)
	}
	r, err := s.Call(s.ctx, req)
	if err != nil {
		s.t.Fatalf("call of %s: %v", name, err)
	}
	return r
}

func (s *scene) pickledElsewhere() {
	req := s.request("")
	req.ClassPath, req.Pickled = "", base64.StdEncoding.EncodeToString([]byte(bridge.PickledElsewhere))
	e := s.failsWith(bridge.CodeVersionMismatch, req)
	if !strings.Contains(e.Message, "Python 2.7 and Ray 0.1.0") || strings.Contains(e.Message, "\n") {
		s.t.Errorf("the message is %q", e.Message)
	}
	r := s.call(bridge.CallPreserver, "", taskState, func(r *bridge.CallRequest) { r.Pickled = []byte(bridge.PickledElsewhere) })
	if !strings.Contains(r.Error, "Python 2.7 and Ray 0.1.0") {
		s.t.Errorf("a call answers %+v", r)
	}
}

func (s *scene) calls() {
	var given map[string]any
	if err := json.Unmarshal([]byte(taskState), &given); err != nil {
		s.t.Fatal(err)
	}
	given["kept_by"], given["type"] = "keep", "TaskState"
	want, _ := json.Marshal(given)
	s.equal("what was kept", s.call(bridge.CallPreserver, "keep", taskState).Result, string(want))
	s.equal("what a coroutine kept", s.call(bridge.CallPreserver, "keep_async", taskState).Result, `{"kept_by": "keep_async", "payload": [1, null]}`)
	s.equal("what was restored", s.call(bridge.CallRestorer, "restore", `{"step": 3}`).Result, `{"restored": {"step": 3}}`)
	s.equal("what a restorer without an answer says", s.call(bridge.CallRestorer, "restore_nothing", `{}`).Result, `null`)
	elsewhere := func(r *bridge.CallRequest) { r.NodeID, r.RuntimeEnv = strings.Repeat("ab", 28), json.RawMessage(`{}`) }
	if r := s.call(bridge.CallPreserver, "keep", taskState, elsewhere); r.Error != "" {
		s.t.Errorf("with a node that is not there: %+v", r)
	}
}

func (s *scene) callFails() {
	for name, said := range map[string]string{
		"raising": "ValueError: told to raise", "listing": "returned a list, it must return a dict", "nan": "state.deep.loss is nan",
		"unordered": "state.seen is a builtins.set", "raw": "state.weights is a builtins.bytes", "exiting": "the worker process ended",
		"NUMBER": "cannot be called", "missing": "cannot be unpickled",
	} {
		if r := s.call(bridge.CallPreserver, name, taskState); !strings.Contains(r.Error, said) || r.Result != nil || r.TimedOut {
			s.t.Errorf("%s answers %+v, it should say %q", name, r, said)
		}
	}
	if r := s.call(bridge.CallRestorer, "refuse", `{}`); !strings.Contains(r.Error, "the checkpoint is gone") {
		s.t.Errorf("a restorer that refuses answers %+v", r)
	}
	broken := func(r *bridge.CallRequest) { r.Pickled = []byte("this is no pickle") }
	if r := s.call(bridge.CallPreserver, "", taskState, broken); !strings.Contains(r.Error, "cannot be unpickled") {
		s.t.Errorf("what is no pickle answers %+v", r)
	}
}

func (s *scene) callHangs() {
	began := time.Now()
	r := s.call(bridge.CallPreserver, "hanging", taskState, func(r *bridge.CallRequest) { r.Timeout = time.Second })
	if !r.TimedOut || r.Error == "" || r.Result != nil {
		s.t.Errorf("it answers %+v", r)
	}
	s.quick("the end of the call", began)
}

func (s *scene) badCalls() {
	for what, spoil := range map[string]func(*bridge.CallRequest){
		"no pickle":            func(r *bridge.CallRequest) { r.Pickled = nil },
		"no kind":              func(r *bridge.CallRequest) { r.Kind = "" },
		"an unknown kind":      func(r *bridge.CallRequest) { r.Kind = "remover" },
		"no argument":          func(r *bridge.CallRequest) { r.Argument = nil },
		"an array":             func(r *bridge.CallRequest) { r.Argument = json.RawMessage(`[]`) },
		"a broken runtime_env": func(r *bridge.CallRequest) { r.RuntimeEnv = json.RawMessage(`7`) },
		"a negative timeout":   func(r *bridge.CallRequest) { r.Timeout = -1 },
	} {
		req := bridge.CallRequest{Pickled: bridge.PickleOf(handlers, "keep"), Kind: bridge.CallPreserver, Argument: json.RawMessage(taskState)}
		spoil(&req)
		if _, err := s.Call(s.ctx, req); !errors.Is(err, bridge.ErrBadRequest) || bridge.IsUnknown(err) {
			s.t.Errorf("%s: %v", what, err)
		}
	}
	gone, cancel := context.WithCancel(s.ctx)
	cancel()
	req := bridge.CallRequest{Pickled: bridge.PickleOf(handlers, "keep"), Kind: bridge.CallPreserver, Argument: json.RawMessage(taskState)}
	if _, err := s.Call(gone, req); err == nil || bridge.IsUnknown(err) {
		s.t.Errorf("a call that was given up before it was sent: %v", err)
	}
}

func (s *scene) callLarge() {
	var kept struct{ Weights string }
	if err := json.Unmarshal(s.call(bridge.CallPreserver, "large", taskState).Result, &kept); err != nil || len(kept.Weights) != 20_000_000 {
		s.t.Errorf("%d bytes came back: %v", len(kept.Weights), err)
	}
	req := bridge.CallRequest{Pickled: make([]byte, bridge.MaxBody), Kind: bridge.CallPreserver, Argument: json.RawMessage(taskState)}
	if _, err := s.Call(s.ctx, req); !errors.Is(err, bridge.ErrTooLarge) || bridge.IsUnknown(err) {
		s.t.Errorf("a body beyond the limit: %.200v", err)
	}
}
