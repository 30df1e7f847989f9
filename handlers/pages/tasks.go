package pages

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/a-h/templ"
	"github.com/go-chi/chi/v5"

	"github.com/schedulemesh/schedulemesh/web"
)

func (s *site) taskRoutes(r chi.Router) {
	r.Get("/", s.tasks)
	r.Post("/bulk", s.bulk)
	r.Get("/new", s.newTask)
	r.Post("/new", s.submitTask)
	r.Get("/{id}", s.task)
	r.Get("/{id}/log", s.taskLog)
	r.Get("/{id}/priority", s.askPriority)
	r.Post("/{id}/priority", s.setPriority)
	for verb := range verbs {
		r.Get("/{id}/"+verb, s.askTask(verb))
		r.Post("/{id}/"+verb, s.doTask(verb))
	}
}

// verb is something done to a task that ends or moves it.
type verb struct {
	button, past, what string
	danger             bool
	do                 func(Actions, context.Context, string, string) error
}

var verbs = map[string]verb{
	"complete": {"Complete it", "completed", "It ends as completed: its agent is stopped and its quota returned. A registered task ends and leaves its agent.", false, Actions.CompleteTask},
	"cancel":   {"Cancel it", "cancelled", "It is told to stop and its agent is removed. Nothing is saved, and it is not queued again.", true, Actions.CancelTask},
	"preempt":  {"Preempt it", "preempted", "It is told to stop and its state is saved, as if another task needed the room. Whether it is queued again is up to what was submitted.", false, Actions.PreemptTask},
}

func (s *site) filter(r *http.Request) web.TaskFilter {
	q := r.URL.Query()
	f := web.TaskFilter{State: q.Get("state"), Pool: q.Get("pool"), Text: strings.TrimSpace(q.Get("q")), Cursor: q.Get("cursor"), Limit: s.o.PageSize}
	if f.State != "all" && !slices.Contains(web.States, web.State(f.State)) {
		f.State = "live"
	}
	for _, l := range q["label"] {
		f.Labels = append(f.Labels, web.ParseLabels(l)...)
	}
	return f
}

func (s *site) tasks(w http.ResponseWriter, r *http.Request) {
	f := s.filter(r)
	s.draw(w, r, "tasks", "Tasks", func(ctx context.Context, p web.Page) (templ.Component, error) {
		if r.URL.Query().Get("state") == "live" {
			q := p.Self.Query()
			q.Del("state")
			p.Self.RawQuery = q.Encode()
		}
		if wants(r) == "tasks" && r.Header.Get("HX-Trigger") != "tasks" { // the filter was used, not the live stream
			w.Header().Set("HX-Push-Url", p.Here())
		}
		l, err := s.source.Tasks(ctx, p.Namespace, f)
		return web.TasksPage(p, f, l), err
	})
}

func (s *site) task(w http.ResponseWriter, r *http.Request) {
	id := param(r, "id")
	q := r.URL.Query()
	s.draw(w, r, "tasks", id, func(ctx context.Context, p web.Page) (templ.Component, error) {
		t, err := s.source.Task(ctx, p.Namespace, id)
		if err != nil {
			return nil, err
		}
		p.Title = t.ID
		tab := web.TaskTab{Name: q.Get("tab"), Stream: streamName(q.Get("stream"))}
		switch tab.Name {
		case "log":
			offset := int64(-1)
			if n, err := strconv.ParseInt(q.Get("offset"), 10, 64); err == nil && n >= 0 {
				offset = n
			}
			tab.Log, err = s.source.TaskLog(ctx, p.Namespace, id, tab.Stream, offset, web.LogStep)
		case "state":
			tab.State, err = s.source.TaskState(ctx, p.Namespace, id)
		case "spec":
		default:
			tab.Name = "timeline"
		}
		return web.TaskPage(p, t, tab), err
	})
}

func streamName(s string) string {
	if s == "stderr" {
		return s
	}
	return "stdout"
}

// taskLog is what a log grew by: the fragment at its end asks for it.
func (s *site) taskLog(w http.ResponseWriter, r *http.Request) {
	id, q := param(r, "id"), r.URL.Query()
	p := s.frame(r, "tasks", id)
	offset, err := strconv.ParseInt(q.Get("offset"), 10, 64)
	if r.Header.Get("HX-Request") != "true" || err != nil || offset < 0 {
		http.Redirect(w, r, p.Task(id, "tab", "log", "stream", q.Get("stream")), http.StatusSeeOther)
		return
	}
	stream := streamName(q.Get("stream"))
	c, err := s.source.TaskLog(r.Context(), p.Namespace, id, stream, offset, web.LogStep)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.show(w, r, http.StatusOK, p, web.LogMore(p, id, stream, c, true))
}

// asks shows a confirmation: inside the dialog when htmx asks, else as a page.
func (s *site) asks(w http.ResponseWriter, r *http.Request, section string, c web.Confirm) {
	p, err := s.page(w, r, section, c.Title)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if wants(r) == "dialog" {
		s.show(w, r, http.StatusOK, p, web.ConfirmBox(c))
		return
	}
	s.show(w, r, http.StatusOK, p, web.ConfirmPage(p, c))
}

func (s *site) askTask(name string) http.HandlerFunc {
	v := verbs[name]
	return func(w http.ResponseWriter, r *http.Request) {
		id := param(r, "id")
		p := s.frame(r, "tasks", id)
		t, err := s.source.Task(r.Context(), p.Namespace, id)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		c := web.Confirm{
			Title: strings.ToUpper(name[:1]) + name[1:] + " " + t.ID + "?", Text: web.Say(v.what),
			Action: p.TaskDo(id, name), Button: v.button, Danger: v.danger, Cancel: p.Task(id),
		}
		if allowed := map[string]bool{"complete": t.CanComplete, "cancel": t.CanCancel, "preempt": t.CanPreempt}[name]; !allowed {
			c.Text = append(web.Line{web.Strong("It is " + string(t.State) + " now, so this may be refused. ")}, c.Text...)
		}
		s.asks(w, r, "tasks", c)
	}
}

func (s *site) doTask(name string) http.HandlerFunc {
	v := verbs[name]
	return func(w http.ResponseWriter, r *http.Request) {
		id := param(r, "id")
		p := s.frame(r, "tasks", id)
		err := v.do(s.actions, r.Context(), p.Namespace, id)
		s.done(w, r, err, pastSentence(name, web.Cut(id, 120)), p.Task(id))
	}
}

// pastSentence says what was asked for: stopping and saving go on after the answer.
func pastSentence(verb, id string) string {
	if verb == "preempt" {
		return id + " makes way: it is told to stop and its state is saved."
	}
	return id + " is being " + verbs[verb].past + "."
}

func (s *site) askPriority(w http.ResponseWriter, r *http.Request) {
	id := param(r, "id")
	t, err := s.source.Task(r.Context(), namespace(r), id)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.retune(w, r, http.StatusOK, web.Retune{Task: id, State: t.State, Priority: web.Decimal(t.Priority)})
}

func (s *site) retune(w http.ResponseWriter, r *http.Request, status int, f web.Retune) {
	p, err := s.page(w, r, "tasks", "Priority of "+f.Task)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if wants(r) == "dialog" {
		s.show(w, r, status, p, web.RetuneBox(p, f))
		return
	}
	s.show(w, r, status, p, web.RetunePage(p, f))
}

func (s *site) setPriority(w http.ResponseWriter, r *http.Request) {
	f := web.Retune{Task: param(r, "id"), Priority: strings.TrimSpace(r.PostFormValue("priority"))}
	p := s.frame(r, "tasks", f.Task)
	priority, errs := f.Parse()
	if len(errs) == 0 {
		err := s.actions.SetPriority(r.Context(), p.Namespace, f.Task, priority)
		if err == nil || status(err) == http.StatusNotFound {
			s.done(w, r, err, "The priority of "+web.Cut(f.Task, 120)+" is "+web.Decimal(priority)+" now.", p.Task(f.Task))
			return
		}
		errs = s.formErrors(r, err, []string{"priority"})
		errs.Add("priority", "%s", errs[""])
	}
	f.Errors = errs
	s.retune(w, r, http.StatusUnprocessableEntity, f)
}

// maxBulk is how many tasks one form may name.
const maxBulk = 500

// bulk does one thing to several tasks: first it asks, and asked again it does.
func (s *site) bulk(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, err)
		return
	}
	p := s.frame(r, "tasks", "Several tasks")
	to := back(r, p.To("/tasks"))
	ids, name := r.PostForm["id"], r.PostFormValue("action")
	v, ok := verbs[name]
	switch {
	case !ok:
		s.done(w, r, &Refusal{ErrorCode: "invalid", Message: "Choose what to do with the ticked tasks: preempt, complete or cancel."}, "", to)
		return
	case len(ids) == 0:
		s.done(w, r, &Refusal{ErrorCode: "invalid", Message: "No task is ticked, so there was nothing to do."}, "", to)
		return
	case len(ids) > maxBulk:
		s.done(w, r, &Refusal{ErrorCode: "invalid", Message: "At most " + web.Number(maxBulk) + " tasks at once."}, "", to)
		return
	}
	if r.PostFormValue("sure") != "yes" {
		c := web.Confirm{
			Title: strings.ToUpper(name[:1]) + name[1:] + " " + web.Count(len(ids), "task") + "?", Text: web.Say(strings.NewReplacer("It ends", "Each ends", "It is", "Each is").Replace(v.what)),
			Action: p.To("/tasks/bulk"), Danger: v.danger, Cancel: to, Items: ids,
			Button: strings.ToUpper(name[:1]) + name[1:] + " " + web.Count(len(ids), "task"),
			Hidden: []web.Label{{Key: "action", Value: name}, {Key: "back", Value: to}, {Key: "sure", Value: "yes"}},
		}
		for _, id := range ids {
			c.Hidden = append(c.Hidden, web.Label{Key: "id", Value: id})
		}
		s.asks(w, r, "tasks", c)
		return
	}
	s.forEach(w, r, ids, to, "task", v.past, func(ctx context.Context, id string) error { return v.do(s.actions, ctx, p.Namespace, id) })
}

// forEach does one thing to several, says how it went and leads on.
func (s *site) forEach(w http.ResponseWriter, r *http.Request, ids []string, to, noun, past string, do func(context.Context, string) error) {
	failed := make([]error, len(ids))
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32) // what comes together is combined
	for i, id := range ids {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			failed[i] = do(r.Context(), id)
		})
	}
	wg.Wait()
	bad, why := 0, ""
	for i, err := range failed {
		if err != nil {
			if bad++; why == "" {
				why = web.Cut(ids[i], 80) + ": " + s.explain(r, err)
			}
		}
	}
	f := web.Flash{Kind: "ok", Text: web.Count(len(ids)-bad, noun) + " " + past + "."}
	if bad > 0 {
		f.Kind = "warn"
		f.Text += " " + web.Number(bad) + " could not be. " + why
	}
	addFlash(w, r, f)
	http.Redirect(w, r, to, http.StatusSeeOther)
}

func (s *site) newTask(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f := web.NewSubmitForm()
	if like := q.Get("like"); like != "" {
		t, err := s.source.Task(r.Context(), namespace(r), like)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if t.Again != nil {
			f = *t.Again
		}
	}
	if pool := q.Get("pool"); pool != "" {
		f.Pool = pool
	}
	s.submitForm(w, r, http.StatusOK, f)
}

func (s *site) submitForm(w http.ResponseWriter, r *http.Request, status int, f web.SubmitForm) {
	p, err := s.page(w, r, "tasks", "Submit a task")
	if err != nil {
		s.fail(w, r, err)
		return
	}
	pools, err := s.source.Pools(r.Context(), p.Namespace)
	if err == nil {
		f.Classes, err = s.source.Classes(r.Context(), p.Namespace)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	for _, pool := range pools {
		f.Pools = append(f.Pools, pool.Name)
	}
	if f.Pool == "" && len(f.Pools) == 1 {
		f.Pool = f.Pools[0]
	}
	s.show(w, r, status, p, web.SubmitPage(p, f))
}

func (s *site) submitTask(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, err)
		return
	}
	f := web.ReadSubmitForm(r.PostForm)
	t, errs := f.Parse()
	if len(errs) == 0 {
		p := s.frame(r, "tasks", "")
		id, err := s.actions.SubmitTask(r.Context(), p.Namespace, t)
		if err == nil {
			s.done(w, r, nil, web.Cut(id, 120)+" is submitted.", p.Task(id))
			return
		}
		errs = s.formErrors(r, err, web.SubmitFields)
	}
	f.Errors = errs
	s.submitForm(w, r, http.StatusUnprocessableEntity, f)
}
