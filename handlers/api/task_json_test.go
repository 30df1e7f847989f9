package api

import (
	"encoding/json"
	"testing"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

func TestTaskByHandIsTaskByReflection(t *testing.T) {
	full := sampleTask()
	full.Labels = sched.Labels{"b": "\"\n", "a": "é<>&\u2028"}
	full.Request = sched.Resources{CPU: 1, GPU: 2000, Memory: 1 << 40, Other: []sched.Amount{{Name: "a\"b", Value: 1500}, {Name: "z", Value: -1}}}
	full.Held, full.Priority, full.MaxRuntime, full.Estimate = full.Request, -1, time.Millisecond, 1e9*time.Second
	full.State, full.QueuePosition, full.Managed = ledger.Queued, 4, false
	full.ETA, full.ETANote, full.QueueTimeout = noon, "if \"all\" goes well", 90*time.Second
	later := full
	later.QueuePosition, later.ETA = 0, time.Time{}
	full.Spec = ledger.Spec{ActorClass: "m:C", PickledName: "P", Args: json.RawMessage(`[]`), Kwargs: json.RawMessage(`{"a":1}`), RuntimeEnv: json.RawMessage(`{}`),
		RayOptions: json.RawMessage(`{"x":1}`), Payload: json.RawMessage(`""`), UsePlacementGroup: true,
		Entry: &ledger.Entry{Method: "m", Args: json.RawMessage(`[1]`), Kwargs: json.RawMessage(`{"k":[]}`)}}
	full.Result, full.SavedState, full.EndedAt, full.QueuedAt = json.RawMessage(`null`), json.RawMessage(`{"a":"b"}`), noon, noon.Add(time.Microsecond)
	full.Code, full.Reason, full.Phase, full.PreemptedBy = "c", "r", "p", []sched.ID{{1}, {2}}
	full.Namespace, full.Seat = "team a", &ledger.Seat{Group: "sm-\"1", Tier: "dynamic"}
	for name, task := range map[string]ledger.Task{"sample": sampleTask(), "empty": {}, "full": full, "not in line": later} {
		d := taskDoc(task)
		want, err := jsonv2.Marshal(&d, jsonv2.Deterministic(true))
		if err != nil {
			t.Fatal(err)
		}
		if got := appendTask(nil, &d); string(got) != string(want) {
			t.Errorf("%s:\n%s, want\n%s", name, got, want)
		}
	}
}
