package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

func TestSubmitAsksForWhatTheBodySays(t *testing.T) {
	f := &fake{}
	res := send(t, newAPI(f), "POST", "/api/v1/tasks?namespace=ml", `{"task_id":"t 1","pool":"gpu","resources":{"cpu":1.1,"memory":2048.2,"gpu":1,"tpu":0.0001},"priority":8,
		"labels":{"tier":"premium"},"actor_class":"m:C","actor_args":[1,"é"],"actor_kwargs":{"a":{"b":null}},"entry":{"method":"run","args":[],"kwargs":{}},
		"runtime_env":{"pip":["x"]},"ray_options":{"name":"n"},"agent_name":"ag","estimated_duration":1.5,"max_runtime":0.0001,"launch_timeout":30,"payload":12345678901234567890,
		"on_insufficient":"queue","on_preempted":"requeue","on_failure":"requeue","max_attempts":4,"use_placement_group":true}`)
	res.want(t, 201, "")
	if got := res.Header.Get("Location"); got != "/api/v1/tasks/train%2F1%20%C3%BC" {
		t.Errorf("Location %q", got)
	}
	want := ledger.Submission{
		TaskID: "t 1", Pool: "gpu", Request: sched.Resources{CPU: 1100, GPU: 1000, Memory: 2049, Other: []sched.Amount{{Name: "tpu", Value: 1}}}, Priority: 8000,
		Labels: sched.Labels{"tier": "premium"}, AgentName: "ag", Estimate: 1500 * time.Millisecond, MaxRuntime: time.Millisecond, LaunchTimeout: 30 * time.Second,
		OnInsufficient: "queue", OnPreempted: "requeue", OnFailure: "requeue", MaxAttempts: 4, Actor: "api",
		Spec: ledger.Spec{ActorClass: "m:C", Args: json.RawMessage(`[1,"é"]`), Kwargs: json.RawMessage(`{"a":{"b":null}}`), RuntimeEnv: json.RawMessage(`{"pip":["x"]}`),
			RayOptions: json.RawMessage(`{"name":"n"}`), Payload: json.RawMessage(`12345678901234567890`), UsePlacementGroup: true,
			Entry: &ledger.Entry{Method: "run", Args: json.RawMessage(`[]`), Kwargs: json.RawMessage(`{}`)}},
	}
	if got := arg[ledger.Submission](t, f, 0); !reflect.DeepEqual(got, want) {
		t.Errorf("asked\n %+v, want\n %+v", got, want)
	}
	if f.ns != "ml" {
		t.Errorf("namespace %q", f.ns)
	}
}

func TestSubmitDefaults(t *testing.T) {
	f := &fake{}
	send(t, newAPI(f), "POST", "/api/v1/tasks", `{"pool":"p","labels":null,"payload":null,"entry":null,"priority":null,"resources":null}`).want(t, 201, "")
	s := arg[ledger.Submission](t, f, 0)
	if !strings.HasPrefix(s.TaskID, "task-01") && !strings.HasPrefix(s.TaskID, "task-0") || len(s.TaskID) != 41 {
		t.Errorf("the id made up is %q", s.TaskID)
	}
	s.TaskID = ""
	if want := (ledger.Submission{Pool: "p", Priority: 5000, Actor: "api"}); !reflect.DeepEqual(s, want) {
		t.Errorf("asked\n %+v, want\n %+v", s, want)
	}
}

func TestSubmitOfTheSameTaskAgainAnswers200(t *testing.T) {
	f := &fake{task: sampleTask()}
	f.task.Created = false
	send(t, newAPI(f), "POST", "/api/v1/tasks", `{"task_id":"a","pool":"p"}`).want(t, 200, "")
}

func TestSubmitWaitsUntilItRunsOrTheTimeIsUp(t *testing.T) {
	f := &fake{task: sampleTask()}
	f.task.State = ledger.Queued
	f.task.QueuePosition = 3
	f.waited = func(ctx context.Context) (ledger.Task, error) {
		d, ok := ctx.Deadline()
		if left := time.Until(d); !ok || left > maxWait || left < maxWait-time.Minute {
			t.Errorf("waits %v", left)
		}
		done := f.task
		done.State = ledger.Completed
		return done, nil
	}
	a := newAPI(f)
	send(t, a, "POST", "/api/v1/tasks?wait=99h", `{"pool":"p"}`).has(t, map[string]any{"state": "completed"})
	if f.call != "WaitTask" || arg[sched.ID](t, f, 0) != f.task.UID {
		t.Errorf("asked %s %v", f.call, f.args)
	}
	f.waited = func(ctx context.Context) (ledger.Task, error) { <-ctx.Done(); return f.task, nil }
	send(t, a, "POST", "/api/v1/tasks?wait=0.01", `{"pool":"p"}`).has(t, map[string]any{"state": "queued", "queue_position": 3.0})
	send(t, a, "GET", "/api/v1/tasks/x?wait=10ms", "").has(t, map[string]any{"state": "queued"})
	f.task.State, f.call = ledger.Running, ""
	if send(t, a, "GET", "/api/v1/tasks/x?wait=1h", ""); f.call != "Task" {
		t.Error("waits for a task that runs already")
	}
	for _, bad := range []string{"soon", "-1s", "-3", "NaN", "1e99", "5 s"} {
		send(t, a, "POST", "/api/v1/tasks?wait="+strings.ReplaceAll(bad, " ", "+"), `{"pool":"p"}`).want(t, 422, "invalid")
		send(t, a, "GET", "/api/v1/tasks/x?wait="+strings.ReplaceAll(bad, " ", "+"), "").want(t, 422, "invalid")
	}
}

func TestSubmitIntoAPlacementGroup(t *testing.T) {
	f := &fake{task: sampleTask()}
	a := newAPI(f)
	for body, keeps := range map[string]bool{
		`{"pool":"p","use_placement_group":true}`:                           false,
		`{"pool":"p","use_placement_group":true,"preempt_for_quota":null}`:  false,
		`{"pool":"p","use_placement_group":true,"preempt_for_quota":true}`:  false,
		`{"pool":"p","use_placement_group":true,"preempt_for_quota":false}`: true,
	} {
		res := send(t, a, "POST", "/api/v1/tasks", body)
		if s := arg[ledger.Submission](t, f, 0); !s.Spec.UsePlacementGroup || s.Spec.KeepQuota != keeps || res.json["placement_group"] != nil {
			t.Errorf("%s: %+v %s", body, s.Spec, res.text)
		}
	}
	f.task.Seat = &ledger.Seat{Group: "sm-1.2", Tier: "reserved"}
	for _, res := range []reply{send(t, a, "POST", "/api/v1/tasks", `{"pool":"p"}`), send(t, a, "GET", "/api/v1/tasks/t", "")} {
		res.has(t, map[string]any{"placement_group.name": "sm-1.2", "placement_group.tier": "reserved"})
	}
}

func TestOpenAPIExplainsThePlacementGroupsOfAPool(t *testing.T) {
	fields := at(t, openapi(t), "components", "schemas", "PGPoolConfig", "properties").(map[string]any)
	answer := send(t, newAPI(&fake{}), "GET", "/api/v1/pools/p/placement-groups", "").json["config"].(map[string]any)
	if len(fields) != len(answer) || len(fields) == 0 {
		t.Errorf("%d fields are documented, %d answered", len(fields), len(answer))
	}
	// What the document says is the default is what the ledger takes.
	defaults, err := ledger.ParseGroups(nil)
	if err != nil {
		t.Fatal(err)
	}
	var usual map[string]any
	if err := json.Unmarshal(groupConfigDoc(defaults), &usual); err != nil {
		t.Fatal(err)
	}
	for name, f := range fields {
		field := f.(map[string]any)
		if d, _ := field["description"].(string); d == "" || answer[name] == nil {
			t.Errorf("%s: %v, answered %v", name, f, answer[name])
		}
		if want, ok := field["default"]; ok && usual[name] != want {
			t.Errorf("%s is %v when left out, documented is %v", name, usual[name], want)
		}
	}
}

// TestSubmitRefuses checks what is wrong with a body, and that the answer names the field.
func TestSubmitRefuses(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	manyLabels := func() string {
		var b strings.Builder
		for i := range 65 {
			fmt.Fprintf(&b, `,"k%d":""`, i)
		}
		return `{"pool":"p","labels":{` + b.String()[1:] + `}}`
	}
	tests := map[string]struct {
		body   string
		status int
		code   string
		field  string
		says   string
	}{
		"no body":                       {"", 400, "bad_request", "", "no body"},
		"broken JSON":                   {"{\"pool\":\"p\",\n  \"priority\": }", 400, "bad_json", "body", "line 2, column 15"},
		"half a body":                   {`{"pool":"p"`, 400, "bad_json", "body", "ends in the middle"},
		"two values":                    {`{"pool":"p"} {}`, 400, "bad_json", "body", ""},
		"single quotes":                 {`{'pool':'p'}`, 400, "bad_json", "body", "column 2"},
		"NaN":                           {`{"pool":"p","priority":NaN}`, 400, "bad_json", "body", "NaN is not JSON"},
		"Infinity":                      {`{"pool":"p","resources":{"cpu":Infinity}}`, 400, "bad_json", "body", "Infinity is not JSON"},
		"-Infinity":                     {`{"pool":"p","priority":-Infinity}`, 400, "bad_json", "body", "Infinity is not JSON"},
		"duplicate key":                 {`{"pool":"p","pool":"q"}`, 400, "bad_json", "body", `"pool" appears twice`},
		"duplicate key deep inside":     {`{"pool":"p","payload":{"a":{"b":1,"b":2}}}`, 400, "bad_json", "body", `"payload.a.b" appears twice`},
		"invalid UTF-8":                 {"{\"pool\":\"\xff\"}", 400, "bad_json", "body", "UTF-8"},
		"half a surrogate pair":         {`{"pool":"\ud800"}`, 400, "bad_json", "body", ""},
		"an array":                      {`[1]`, 422, "invalid", "0", "must be an object"},
		"null":                          {`null`, 422, "invalid", "pool", "is missing"},
		"no pool":                       {`{}`, 422, "invalid", "pool", "is missing"},
		"unknown field":                 {`{"pool":"p","prioritty":1}`, 422, "invalid", "prioritty", "no such field"},
		"unknown field in entry":        {`{"pool":"p","entry":{"method":"run","x":1}}`, 422, "invalid", "entry.x", "no such field"},
		"field in another case":         {`{"Pool":"p"}`, 422, "invalid", "Pool", "no such field"},
		"number for a string":           {`{"pool":5}`, 422, "invalid", "pool", "must be a string, not a number"},
		"string for a number":           {`{"pool":"p","priority":"high"}`, 422, "invalid", "priority", "must be a number, not a string"},
		"string for an amount":          {`{"pool":"p","resources":{"cpu":"2"}}`, 422, "invalid", "resources.cpu", "must be a number"},
		"object for a label":            {`{"pool":"p","labels":{"a":{}}}`, 422, "invalid", "labels.a", "must be a string"},
		"number as a flag":              {`{"pool":"p","use_placement_group":1}`, 422, "invalid", "use_placement_group", "true or false"},
		"1e400":                         {`{"pool":"p","priority":1e400}`, 422, "invalid", "priority", "1e400 is too large"},
		"1e400 in resources":            {`{"pool":"p","resources":{"cpu":1e400}}`, 422, "invalid", "resources.cpu", "1e400 is too large"},
		"1e400 in a payload":            {`{"pool":"p","payload":{"a":[0,1e400]}}`, 422, "invalid", "payload.a.1", "1e400 is too large"},
		"-1e400 in arguments":           {`{"pool":"p","actor_args":[-1E+400]}`, 422, "invalid", "actor_args.0", "too large"},
		"a number of 1,000 digits":      {`{"pool":"p","payload":` + strings.Repeat("9", 1000) + `}`, 422, "invalid", "payload", "1000 digits"},
		"priority beyond all bounds":    {`{"pool":"p","priority":1e15}`, 422, "invalid", "priority", "between"},
		"negative resources":            {`{"pool":"p","resources":{"cpu":-1}}`, 422, "invalid", "resources.cpu", "-1 is negative"},
		"enormous resources":            {`{"pool":"p","resources":{"memory":1e300}}`, 422, "invalid", "resources.memory", "too large"},
		"resource without a name":       {`{"pool":"p","resources":{"":1}}`, 422, "invalid", "resources", "no resource name"},
		"negative duration":             {`{"pool":"p","estimated_duration":-1}`, 422, "invalid", "estimated_duration", "seconds, 0 or more"},
		"a duration of centuries":       {`{"pool":"p","max_runtime":1e12}`, 422, "invalid", "max_runtime", "ten years"},
		"negative launch timeout":       {`{"pool":"p","launch_timeout":-0.1}`, 422, "invalid", "launch_timeout", "seconds"},
		"fractional attempts":           {`{"pool":"p","max_attempts":1.5}`, 422, "invalid", "max_attempts", "whole number"},
		"negative attempts":             {`{"pool":"p","max_attempts":-1}`, 422, "invalid", "max_attempts", "1 to 1000"},
		"unknown choice":                {`{"pool":"p","on_insufficient":"wait"}`, 422, "invalid", "on_insufficient", "fail or queue"},
		"NUL in the id":                 {`{"pool":"p","task_id":"a\u0000b"}`, 422, "invalid", "task_id", "NUL"},
		"NUL in a label":                {`{"pool":"p","labels":{"a":"\u0000"}}`, 422, "invalid", "labels.a", "NUL"},
		"NUL in a label key":            {`{"pool":"p","labels":{"\u0000":"a"}}`, 422, "invalid", "", "NUL"},
		"NUL deep in a payload":         {`{"pool":"p","payload":[{"a":"x\u0000"}]}`, 422, "invalid", "payload.0.a", "NUL"},
		"line break in the id":          {`{"pool":"p","task_id":"a\nb"}`, 422, "invalid", "task_id", "U+000A"},
		"escape character in a pool":    {`{"pool":"p\u001b[31m"}`, 422, "invalid", "pool", "U+001B"},
		"control character in a label":  {`{"pool":"p","labels":{"a":"\u0085"}}`, 422, "invalid", "labels.a", "U+0085"},
		"control character in a key":    {`{"pool":"p","labels":{"a\t":"b"}}`, 422, "invalid", "labels", "U+0009"},
		"empty label key":               {`{"pool":"p","labels":{"":"b"}}`, 422, "invalid", "labels", "empty key"},
		"id that no URL can hold":       {`{"pool":"p","task_id":".."}`, 422, "invalid", "task_id", "URL"},
		"id of 201 characters":          {`{"pool":"p","task_id":"` + strings.Repeat("é", 201) + `"}`, 422, "invalid", "task_id", "201 characters; at most 200"},
		"label key of 201 characters":   {`{"pool":"p","labels":{"` + long(201) + `":""}}`, 422, "invalid", "labels", "at most 200"},
		"label of 1,001 characters":     {`{"pool":"p","labels":{"a":"` + long(1001) + `"}}`, 422, "invalid", "labels.a", "at most 1000"},
		"label of 10 MB":                {`{"pool":"p","labels":{"a":"` + long(10<<20) + `"}}`, 422, "invalid", "labels.a", "at most 1000"},
		"65 labels":                     {manyLabels(), 422, "invalid", "labels", "at most 64"},
		"arguments that are no array":   {`{"pool":"p","actor_args":{"a":1}}`, 422, "invalid", "actor_args", "must be an array"},
		"named arguments in an array":   {`{"pool":"p","actor_kwargs":[1]}`, 422, "invalid", "actor_kwargs", "must be an object"},
		"entry without a method":        {`{"pool":"p","entry":{}}`, 422, "invalid", "entry.method", "is missing"},
		"class both ways":               {`{"pool":"p","actor_class":"m:C","pickled":"gASV"}`, 422, "invalid", "pickled", "send one"},
		"pickle that is not base64":     {`{"pool":"p","pickled":"%%%"}`, 422, "invalid", "pickled", "base64"},
		"nesting of 300 arrays":         {`{"pool":"p","payload":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`, 422, "invalid", "body", "200 deep"},
		"nesting of a million arrays":   {`{"pool":"p","payload":` + strings.Repeat("[", 1_000_000), 422, "invalid", "body", "200 deep"},
		"several mistakes, all of them": {`{"pool":"","priority":1e15,"on_failure":"x"}`, 422, "invalid", "pool", "and 2 more"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			res := send(t, newAPI(f), "POST", "/api/v1/tasks", tt.body)
			res.want(t, tt.status, tt.code)
			if detail, _ := res.json["detail"].(string); !strings.Contains(res.text, tt.says) && !strings.Contains(detail, tt.says) {
				t.Errorf("does not say %q: %s", tt.says, res.text)
			}
			if tt.field != "" && res.field("errors.field") != tt.field {
				t.Errorf("names the field %v, want %s", res.field("errors.field"), tt.field)
			}
			if f.call != "" {
				t.Errorf("the ledger was asked %s", f.call)
			}
			if len(res.text) > 4000 {
				t.Errorf("the error is %d bytes long", len(res.text))
			}
		})
	}
}

func TestSubmitAcceptsTheLimits(t *testing.T) {
	f := &fake{}
	a := newAPI(f)
	for name, body := range map[string]string{
		"id of 200 characters":     `{"pool":"p","task_id":"` + strings.Repeat("é", 200) + `"}`,
		"label of 1,000":           `{"pool":"p","labels":{"a":"` + strings.Repeat("é", 1000) + `"}}`,
		"an escaped backslash":     `{"pool":"p","payload":"\\u0000"}`,
		"a tiny number":            `{"pool":"p","payload":1e-400}`,
		"1 MB of payload":          `{"pool":"p","payload":"` + strings.Repeat("x", 1<<20) + `"}`,
		"nesting of 100":           `{"pool":"p","payload":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`,
		"id with slashes and dots": `{"pool":"p","task_id":"a/../b?c#d"}`,
		"spaces around":            " \n{\"pool\":\"p\"}\r\n ",
	} {
		if res := send(t, a, "POST", "/api/v1/tasks", body); res.StatusCode != 201 {
			t.Errorf("%s: %d %s", name, res.StatusCode, res.text)
		}
	}
}

func TestUnknownQueryParametersAreRefused(t *testing.T) {
	a := newAPI(&fake{})
	for _, target := range []string{"POST /api/v1/tasks?name_space=x", "GET /api/v1/tasks?states=running", "GET /api/v1/events?since=3"} {
		method, path, _ := strings.Cut(target, " ")
		body := ""
		if method == "POST" {
			body = `{"pool":"p"}`
		}
		send(t, a, method, path, body).want(t, 422, "invalid")
	}
}

// endless is a body that never ends, and counts what was read of it.
type endless struct{ read int64 }

func (e *endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	e.read += int64(len(b))
	return len(b), nil
}

func TestBodiesBeyondTheCapAreNotReadToTheEnd(t *testing.T) {
	a := newAPI(&fake{})
	for target, limit := range map[string]int64{"/api/v1/tasks": maxLaunchBody, "/api/v1/agents": maxLaunchBody, "/api/v1/pools": maxBody} {
		body := &endless{}
		r := httptest.NewRequest("POST", target, body)
		r.ContentLength = -1
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		if w.Code != 413 || !strings.Contains(w.Body.String(), `"code":"too_large"`) || !strings.Contains(w.Body.String(), fmt.Sprintf("%d MiB", limit>>20)) {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
		if body.read > limit+limit/2+1<<20 {
			t.Errorf("%s: read %d bytes of a body that may have %d", target, body.read, limit)
		}
		r = httptest.NewRequest("POST", target, io.NopCloser(body))
		r.ContentLength, body.read = limit+1, 0
		w = httptest.NewRecorder()
		if a.ServeHTTP(w, r); w.Code != 413 || body.read != 0 {
			t.Errorf("%s: said to be too long: %d after %d bytes", target, w.Code, body.read)
		}
	}
}

func TestBodyThatEndsEarly(t *testing.T) {
	srv := httptest.NewServer(newAPI(&fake{}))
	defer srv.Close()
	for _, target := range []string{"/api/v1/tasks", "/api/v1/pools"} {
		r, _ := http.NewRequest("POST", srv.URL+target, io.MultiReader(strings.NewReader(`{"pool"`), failing{}))
		r.ContentLength = 100
		if res, err := http.DefaultClient.Do(r); err == nil {
			res.Body.Close()
			t.Errorf("%s: answered %d", target, res.StatusCode)
		}
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestARequestOutlivesTheDeadlineOfItsBody(t *testing.T) {
	// A read deadline left behind ends the request's context while it waits.
	f := &fake{task: sampleTask()}
	f.task.State = ledger.Queued
	ended := make(chan error, 1)
	f.waited = func(ctx context.Context) (ledger.Task, error) {
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return f.task, nil
	}
	srv := httptest.NewServer(newAPI(f))
	defer srv.Close()
	res, err := http.Post(srv.URL+"/api/v1/tasks?wait=50ms", "application/json", strings.NewReader(`{"pool":"p"}`))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if cause := <-ended; cause != context.DeadlineExceeded {
		t.Errorf("the wait ended with %v", cause)
	}
}
