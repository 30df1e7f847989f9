package web

import (
	"encoding/json"
	"net/url"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
)

// WhatIfForm is the what-if form as typed. Without a pool only the draft is asked about.
type WhatIfForm struct {
	Task                             string // the queued task it began from, "" for none
	Pool, Priority, Labels           string
	CPU, GPU, Memory, OtherResources string
	Draft                            string // fields of the policy that would be different, as YAML or JSON

	Errors  Errors
	Pools   []string // to choose from
	Version int      // the active policy's
}

// WhatIfFields are the names of WhatIfForm's fields.
var WhatIfFields = []string{"pool", "priority", "labels", "cpu", "gpu", "memory", "resources", "draft"}

// ReadWhatIfForm takes what was posted, or what a link says.
func ReadWhatIfForm(v url.Values) WhatIfForm {
	g := func(k string) string { return strings.TrimSpace(v.Get(k)) }
	return WhatIfForm{Task: g("task"), Pool: g("pool"), Priority: g("priority"), Labels: g("labels"), CPU: g("cpu"), GPU: g("gpu"), Memory: g("memory"),
		OtherResources: g("resources"), Draft: strings.TrimRight(v.Get("draft"), " \r\n")}
}

// Like fills the form with what a task asked for.
func (f *WhatIfForm) Like(t TaskRow) {
	f.Pool, f.Priority, f.Labels = t.Pool, plainFloat(t.Priority), TypedLabels(t.Labels)
	f.CPU, f.GPU, f.Memory, f.OtherResources = typed(t.Request)
	if t.State == Queued {
		f.Task = t.ID
	}
}

// Supposition is what a WhatIfForm says once it parses.
type Supposition struct {
	Task     string
	Pool     string // "": only the draft is asked about
	Priority float64
	Labels   map[string]string
	Request  Resources
	Draft    json.RawMessage // nil for none
}

// Parse checks and converts the form.
func (f WhatIfForm) Parse() (Supposition, Errors) {
	e := Errors{}
	s := Supposition{Task: f.Task, Pool: f.Pool, Priority: 5, Request: resources(e, f.CPU, f.GPU, f.Memory, f.OtherResources), Labels: labels(e, "labels", f.Labels)}
	if f.Priority != "" {
		s.Priority = decimal(e, "priority", f.Priority)
	}
	s.Draft = draftFields(e, "draft", f.Draft)
	if f.Pool == "" && s.Draft == nil {
		e.Add("pool", "Choose the pool of the task you suppose, or change something in the policy below, or both.")
	}
	if f.Pool == "" {
		s.Task = ""
	}
	return s, e
}

// draftFields takes some fields of a policy, as YAML, or JSON when it begins with a brace; nothing typed is nil.
func draftFields(e Errors, field, text string) json.RawMessage {
	t := strings.TrimSpace(text)
	if t == "" {
		return nil
	}
	if len(t) > 1<<20 {
		e.Add(field, "It is larger than 1 MiB, which no policy needs.")
		return nil
	}
	raw := []byte(t)
	if t[0] != '{' {
		var err error
		if raw, err = yaml.YAMLToJSON(raw); err != nil {
			e.Add(field, "Not YAML: %s", yaml.FormatError(err, false, true))
			return nil
		}
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(raw, &given); err != nil {
		e.Add(field, "It should be fields of the policy, such as cross_pool_priority_threshold: 10.")
		return nil
	}
	if len(given) == 0 {
		return nil
	}
	return json.RawMessage(raw)
}

// ChangesTo writes the fields in which a draft differs, as YAML; "" when it does not.
func (d PolicyDoc) ChangesTo(draft PolicyDoc) string {
	var before, after yaml.MapSlice
	if yaml.Unmarshal([]byte(d.YAML()), &before) != nil || yaml.Unmarshal([]byte(draft.YAML()), &after) != nil {
		return draft.YAML()
	}
	old := before.ToMap()
	var out yaml.MapSlice
	for _, item := range after {
		if name, ok := item.Key.(string); !ok || !reflect.DeepEqual(old[name], item.Value) {
			out = append(out, item)
		}
	}
	if len(out) == 0 {
		return ""
	}
	b, err := yaml.Marshal(out)
	if err != nil {
		return draft.YAML()
	}
	return strings.TrimRight(string(b), "\n")
}

// WhatIf is the answer to a supposition.
type WhatIf struct {
	Changes  []FieldChange // of the draft
	Warnings []string
	Summary  []Line // what the draft would change, in sentences
	Judged   []Judged
	Queue    *WhatIfQueue
	Running  *WhatIfRunning
}

// Judged is what one policy says of a supposed task.
type Judged struct {
	Title      string // "Under version 12", "Under the draft"
	Note       Note
	Candidates []Candidate
	Safe       []Safe
	SafeMore   Line // "and 1,276 more: …"
}

// WhatIfQueue is what a draft means for the tasks that wait.
type WhatIfQueue struct {
	Waiting int // in all
	Items   []QueueEffect
}

// QueueEffect is one queued task, now and under the draft.
type QueueEffect struct {
	Task, Pool string
	Position   int
	Changed    bool
	Now, Draft Line
}

// WhatIfRunning is what a draft means for the tasks that run.
type WhatIfRunning struct {
	Words Line
	Items []Exposed
}

// Exposed is a running task that a draft exposes or protects.
type Exposed struct {
	Task, Pool string
	Takeable   bool // else protected
	By         Line // "tasks like …"
	Now, Draft string
}
