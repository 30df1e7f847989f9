package api

import (
	"strings"
	"testing"

	"github.com/schedulemesh/schedulemesh/ledger"
)

func TestSeveralTasksComeTogetherOrEachForItself(t *testing.T) {
	one, two := sampleTask(), sampleTask()
	two.TaskID, two.Created = "two", false
	f := &fake{many: []ledger.Submitted{{Task: one}, {Task: two}}}
	a := newAPI(f)
	res := send(t, a, "POST", "/api/v1/tasks?namespace=n", ` {"all_or_nothing": true, "tasks": [{"task_id":"train/1 ü","pool":"p","priority":8}, {"task_id":"two","pool":"p","payload":{"tasks":[]}}]}`)
	res.want(t, 201, "")
	if subs := arg[[]ledger.Submission](t, f, 0); f.call != "SubmitAll" || f.ns != "n" || len(subs) != 2 || subs[0].Priority != 8000 || subs[1].TaskID != "two" || !arg[bool](t, f, 1) {
		t.Errorf("the ledger was asked %s%v", f.call, f.args)
	}
	items := res.json["items"].([]any)
	if len(items) != 2 || items[1].(map[string]any)["task_id"] != "two" {
		t.Errorf("%s", res.text)
	}
	f.many[0].Task.Created = false
	send(t, a, "POST", "/api/v1/tasks", `{"all_or_nothing": true, "tasks": [{"pool":"p"}, {"pool":"p"}]}`).want(t, 200, "")

	f.many = []ledger.Submitted{{Task: one}, {Err: &ledger.Error{Code: "pool_held", Message: "it is held"}}}
	for _, body := range []string{`[{"pool":"p"},{"pool":"p"},{"pool":"","priority":1}]`, `{"tasks":[{"pool":"p"},{"pool":"p"},{"pool":""}]}`} {
		res = send(t, a, "POST", "/api/v1/tasks", body)
		if res.StatusCode != 207 || len(arg[[]ledger.Submission](t, f, 0)) != 2 || arg[bool](t, f, 1) {
			t.Fatalf("%d %s", res.StatusCode, res.text)
		}
		items = res.json["items"].([]any)
		for i, want := range []struct {
			status float64
			code   any
		}{{201, nil}, {409, "pool_held"}, {422, "invalid"}} {
			item := items[i].(map[string]any)
			e, _ := item["error"].(map[string]any)
			if item["status"] != want.status || e["code"] != want.code || (item["task"] != nil) != (want.code == nil) {
				t.Errorf("%d: %v", i, item)
			}
		}
	}
	// A task with something called tasks in it is one task.
	send(t, a, "POST", "/api/v1/tasks", `{"pool":"p","payload":{"tasks":[]}}`)
	if f.call != "Submit" {
		t.Errorf("the ledger was asked %s", f.call)
	}
}

func TestSeveralTasksAreRefusedByTheirIndex(t *testing.T) {
	for name, tt := range map[string]struct{ body, code, field string }{
		"none":            {`[]`, "invalid", "tasks"},
		"none at all":     {`{"tasks":null}`, "invalid", "tasks"},
		"too many":        {`[` + strings.Repeat(`{},`, 1000) + `{}]`, "invalid", "tasks"},
		"no pool":         {`{"all_or_nothing":true,"tasks":[{"pool":"p"},{"priority":1}]}`, "invalid", "tasks.1.pool"},
		"minus":           {`{"all_or_nothing":true,"tasks":[{"pool":"p"},{"pool":"p","resources":{"cpu":-1}}]}`, "invalid", "tasks.1.resources.cpu"},
		"a word":          {`{"tasks":[{"pool":"p","priority":"high"}]}`, "invalid", "tasks.0.priority"},
		"an unknown word": {`{"tasks":[{"pool":"p"}],"atomic":true}`, "invalid", "atomic"},
		"not a list":      {`{"tasks":{}}`, "invalid", "tasks"},
		"no task":         {`[1]`, "invalid", "0"},
		"broken":          {`[{"pool":"p"},`, "bad_json", "body"},
	} {
		f := &fake{}
		res := send(t, newAPI(f), "POST", "/api/v1/tasks", tt.body)
		if res.json["code"] != tt.code || res.field("errors.field") != tt.field || f.call != "" {
			t.Errorf("%s: %s (%s)", name, res.text, f.call)
		}
	}
}
