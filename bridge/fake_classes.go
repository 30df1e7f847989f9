package bridge

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// fakeClass is how a class behaves in the fake: as the Python class of the same path does.
type fakeClass struct {
	hangs       bool // its constructor never returns
	cancelHangs bool
	saveHangs   bool
	stops       bool // a successful cancel ends its entry
	run         func(*FakeCluster, *fakeAgent)
	cancel      func(a *fakeAgent, taskID string) CancelResult
	save        func(*fakeAgent) (map[string]any, string) // nil: the class has no save_state
	restore     func(*fakeAgent) *Error
}

// fakeClassOf imports and constructs. Classes that are not this project's own count, keep their
// step as their state, obey cancel and run until the test ends their entry with Finish.
func fakeClassOf(a *fakeAgent) (fakeClass, *Error) {
	c := fakeClass{stops: true, run: runCounter, cancel: cancelOK, save: saveStep, restore: restoreStep}
	module, name, ok := strings.Cut(a.req.ClassPath, ":")
	switch {
	case a.req.Pickled != "":
		if raw, err := base64.StdEncoding.DecodeString(a.req.Pickled); err == nil && string(raw) == PickledElsewhere {
			return c, errf(CodeVersionMismatch, "the class cannot be loaded: %s", fakeMismatch)
		}
		return c, nil
	case !ok || module == "" || name == "":
		return c, errf(CodeInvalidClass, "%q is not of the form module:Class", a.req.ClassPath)
	case strings.HasPrefix(module, "no_such"):
		return c, errf(CodeImportFailed, "ModuleNotFoundError: No module named '%s'", module)
	case module == "schedulemesh.core.agent_actor" && name == "AgentActor":
		c.run = runProcess
		return c, nil
	case module != "schedulemesh.testing.agents" && module != "schedulemesh.testing.decorated":
		c.run = nil
		a.step = 1
		return c, nil
	}
	switch name {
	case "Counter", "AsyncAgent", "Decorated":
	case "Echo":
		c.stops, c.run, c.save, c.restore = false, runEcho, nil, restoreNothing
		c.cancel = func(*fakeAgent, string) CancelResult {
			return CancelResult{Error: "Echo has no cancel method"}
		}
	case "Failing":
		c.run = func(w *FakeCluster, a *fakeAgent) {
			w.finish(a, Outcome{Error: "ValueError: told to fail", Traceback: "Traceback (most recent call last):\nValueError: told to fail\n"})
		}
	case "Reporting":
		c.run = func(w *FakeCluster, a *fakeAgent) {
			w.publish(a.owner, Event{Type: EventAgentMetrics, LaunchID: a.req.LaunchID, Metrics: jsonOf(map[string]any{"step": 1, "loss": 0.5})})
			runCounter(w, a)
		}
	case "Printer":
		c.run = runPrinter
	case "Exiting":
		c.run = func(w *FakeCluster, a *fakeAgent) { w.end(a, "the worker process exited", true) }
	case "Busy":
		c.stops, c.run = false, nil
	case "HangingConstructor":
		c.hangs = true
	case "RaisingConstructor":
		return c, errf(CodeConstructorFailed, "RuntimeError: told to raise")
	case "BadSignature":
		return c, errf(CodeInvalidClass, "BadSignature cannot be built with name and labels")
	case "NotAClass":
		return c, errf(CodeInvalidClass, "NotAClass is not a class")
	case "HangingCancel":
		c.cancelHangs, c.stops = true, false
	case "RaisingCancel":
		c.stops = false
		c.cancel = func(*fakeAgent, string) CancelResult { return CancelResult{Error: "RuntimeError: told to raise"} }
	case "OverriddenCancel":
		c.cancel = func(_ *fakeAgent, taskID string) CancelResult {
			return CancelResult{Success: true, Result: jsonOf(map[string]any{"success": true, "task_id": taskID, "overridden": true})}
		}
	case "HangingSave":
		c.saveHangs = true
	case "RaisingSave":
		c.save = func(*fakeAgent) (map[string]any, string) { return nil, "RuntimeError: told to raise" }
	case "NanSave":
		c.save = func(*fakeAgent) (map[string]any, string) { return nil, "the state is not JSON: loss is nan" }
	case "RaisingRestore":
		c.restore = func(*fakeAgent) *Error { return errf(CodeRestoreFailed, "RuntimeError: told to raise") }
	default:
		return c, errf(CodeImportFailed, "AttributeError: module '%s' has no attribute '%s'", module, name)
	}
	return c, nil
}

func cancelOK(_ *fakeAgent, taskID string) CancelResult {
	return CancelResult{Success: true, Result: jsonOf(map[string]any{"success": true, "task_id": taskID})}
}

func saveStep(a *fakeAgent) (map[string]any, string) {
	state := map[string]any{}
	if len(a.state) > 0 {
		_ = json.Unmarshal(a.state, &state) // restoreStep has parsed it
	}
	state["step"] = a.step
	return state, ""
}

func restoreStep(a *fakeAgent) *Error {
	var state struct {
		Step int64 `json:"step"`
	}
	if err := json.Unmarshal(a.req.SavedState, &state); err != nil {
		return errf(CodeRestoreFailed, "the saved state is not a JSON object: %v", err)
	}
	a.step, a.state = state.Step, a.req.SavedState
	return nil
}

func restoreNothing(*fakeAgent) *Error { return nil }

// kwargs reads what the entry was given by name, and the first positional argument as first.
func (a *fakeAgent) kwargs(first string, into any) {
	all := map[string]json.RawMessage{}
	var args []json.RawMessage
	_ = json.Unmarshal(a.entry.Args, &args)
	if len(args) > 0 {
		all[first] = args[0]
	}
	var named map[string]json.RawMessage
	_ = json.Unmarshal(a.entry.Kwargs, &named)
	maps.Copy(all, named)
	_ = json.Unmarshal(jsonOf(all), into)
}

// runCounter ends at once when told how many steps to take, else it counts until cancelled.
func runCounter(w *FakeCluster, a *fakeAgent) {
	var k struct{ Steps int64 }
	a.kwargs("steps", &k)
	if k.Steps == 0 {
		a.step++
		return
	}
	a.step = max(a.step, k.Steps)
	w.finish(a, Outcome{Result: jsonOf(map[string]any{"status": "completed", "step": a.step})})
}

func runEcho(w *FakeCluster, a *fakeAgent) {
	orElse := func(raw json.RawMessage, empty string) json.RawMessage {
		if len(raw) == 0 {
			return json.RawMessage(empty)
		}
		return raw
	}
	w.finish(a, Outcome{Result: jsonOf(map[string]any{
		"name": a.req.AgentName, "labels": a.req.Labels,
		"args": orElse(a.entry.Args, "[]"), "kwargs": orElse(a.entry.Kwargs, "{}"),
	})})
}

func runPrinter(w *FakeCluster, a *fakeAgent) {
	k := struct {
		Lines  []string
		Stream Stream
	}{Stream: Stdout}
	a.kwargs("lines", &k)
	if a.logs == nil {
		a.logs = map[Stream][]byte{}
	}
	for _, line := range k.Lines {
		a.logs[k.Stream] = fmt.Appendln(a.logs[k.Stream], line)
	}
	w.finish(a, Outcome{Result: jsonOf(map[string]any{"printed": len(k.Lines)})})
}

func runProcess(w *FakeCluster, a *fakeAgent) {
	var k struct {
		Payload  json.RawMessage
		TaskID   string  `json:"task_id"`
		Duration float64 `json:"simulated_duration"`
	}
	a.kwargs("payload", &k)
	if k.Duration == 0 {
		w.finish(a, Outcome{Result: jsonOf(map[string]any{
			"status": "completed", "task_id": k.TaskID, "agent": a.req.AgentName, "payload": k.Payload,
		})})
	}
}

var _ Bridge = (*Fake)(nil)
