package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
	"github.com/schedulemesh/schedulemesh/ledger"
)

// NewTasks asks for several tasks.
type NewTasks struct {
	Tasks        []NewTask `json:"tasks" doc:"At most 1,000."`
	AllOrNothing bool      `json:"all_or_nothing,omitempty" doc:"Admit all of them or none; otherwise each is for itself."`
}

// Outcome is what became of one of several tasks.
type Outcome struct {
	Status int              `json:"status" doc:"What the task by itself would have been answered with: 201, 200, or that of the error." example:"201"`
	Task   *Task            `json:"task,omitempty" doc:"The task, when there is one."`
	Error  *problem.Problem `json:"error,omitempty" doc:"Why there is none."`
}

// isMany reports whether a body has several tasks: an array, or an object with a member "tasks".
func isMany(data []byte) bool {
	data = bytes.TrimLeft(data, " \t\r\n")
	if len(data) == 0 || data[0] == '[' {
		return len(data) > 0
	}
	if !bytes.Contains(data, []byte(`"tasks"`)) {
		return false
	}
	dec := jsontext.NewDecoder(bytes.NewReader(data))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return false
	}
	for {
		name, err := dec.ReadToken()
		if err != nil || name.Kind() != '"' {
			return false
		}
		if name.String() == "tasks" {
			return true
		}
		if dec.SkipValue() != nil {
			return false
		}
	}
}

// submitMany admits several tasks together, or each for itself.
func (a *API) submitMany(w http.ResponseWriter, r *http.Request, ns string, wait time.Duration, data []byte) {
	var in NewTasks
	var err error
	if bytes.TrimLeft(data, " \t\r\n")[0] == '[' {
		err = decode(data, &in.Tasks)
	} else {
		err = decode(data, &in)
	}
	if err != nil {
		refuse(w, r, err)
		return
	}
	if n := len(in.Tasks); n == 0 || n > ledger.MaxTogether {
		var f faults
		f.add("body", "tasks", "has %d tasks; give 1 to %d", n, ledger.MaxTogether)
		refuse(w, r, f.err())
		return
	}
	subs := make([]ledger.Submission, len(in.Tasks))
	out := make([]Outcome, len(in.Tasks))
	var good []ledger.Submission
	var places []int
	var all faults
	for i := range in.Tasks {
		sub, err := in.Tasks[i].submission(actor(r.Context()))
		if sub.TaskID == "" {
			sub.TaskID = "task-" + newID()
		}
		if subs[i] = sub; in.AllOrNothing && sub.Spec.UsePlacementGroup {
			all.add("body", fmt.Sprintf("tasks.%d.use_placement_group", i), "is not possible with all_or_nothing: submit the tasks each for itself, or without placement groups")
		}
		var p *problem.Problem
		if errors.As(err, &p) {
			if out[i] = failedOutcome(r.Context(), err); in.AllOrNothing {
				all.under("tasks", i, p)
			}
			continue
		}
		good, places = append(good, sub), append(places, i)
	}
	if in.AllOrNothing {
		a.submitGang(w, r, ns, wait, subs, all.err())
		return
	}
	if len(good) > 0 {
		done, err := a.ledger.SubmitAll(r.Context(), ns, good, false)
		if err != nil {
			refuse(w, r, err)
			return
		}
		for k, d := range done {
			out[places[k]] = a.outcome(r.Context(), ns, wait, d)
		}
	}
	writeJSON(w, r, http.StatusMultiStatus, list(out, ""))
}

func (a *API) submitGang(w http.ResponseWriter, r *http.Request, ns string, wait time.Duration, subs []ledger.Submission, err error) {
	if err != nil {
		refuse(w, r, err)
		return
	}
	done, err := a.ledger.SubmitAll(r.Context(), ns, subs, true)
	if err != nil {
		refuse(w, r, err)
		return
	}
	status := http.StatusOK
	out := make([]Task, len(done))
	deadline, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	for i, d := range done {
		if d.Task.Created {
			status = http.StatusCreated
		}
		if wait > 0 {
			if d.Task, err = a.waitUntil(deadline, ns, d.Task); err != nil {
				refuse(w, r, err)
				return
			}
		}
		out[i] = taskDoc(d.Task)
	}
	writeJSON(w, r, status, list(out, ""))
}

func (a *API) outcome(ctx context.Context, ns string, wait time.Duration, d ledger.Submitted) Outcome {
	if d.Err != nil {
		return failedOutcome(ctx, d.Err)
	}
	status := http.StatusCreated
	if !d.Task.Created {
		status = http.StatusOK
	}
	if wait > 0 {
		t, err := a.waitTask(ctx, ns, d.Task, wait)
		if err != nil {
			return failedOutcome(ctx, err)
		}
		d.Task = t
	}
	t := taskDoc(d.Task)
	return Outcome{Status: status, Task: &t}
}

func failedOutcome(ctx context.Context, err error) Outcome {
	p := toProblem(ctx, err)
	return Outcome{Status: p.Status, Error: p}
}

// under takes over what is wrong with one of several.
func (f *faults) under(list string, i int, p *problem.Problem) {
	for _, e := range p.Errors {
		location, _, _ := strings.Cut(e.Location, ".")
		f.add(location, fmt.Sprintf("%s.%d.%s", list, i, e.Field), "%s", e.Message)
	}
}
