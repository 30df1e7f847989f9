package pages

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/a-h/templ"
	"github.com/go-chi/chi/v5"

	"github.com/schedulemesh/schedulemesh/web"
)

func (s *site) jobRoutes(r chi.Router) {
	r.Get("/", s.jobs)
	r.Get("/new", s.newJob)
	r.Post("/new", s.submitJob)
	r.Post("/stop", s.stopJobs)
	r.Get("/{id}", s.job)
	r.Get("/{id}/log", s.jobLog)
	r.Get("/{id}/stop", s.askStopJob)
	r.Post("/{id}/stop", s.stopJob)
}

func (s *site) jobFilter(r *http.Request) web.JobFilter {
	q := r.URL.Query()
	f := web.JobFilter{State: strings.ToUpper(q.Get("state")), Cluster: q.Get("cluster"), Tag: strings.TrimSpace(q.Get("tag")), Text: strings.TrimSpace(q.Get("q")),
		JobID: strings.TrimSpace(q.Get("job_id")), Age: strings.TrimSpace(q.Get("age")), Outside: q.Get("from") == "outside", Cursor: q.Get("cursor"), Limit: s.o.PageSize}
	switch {
	case f.State == "ALL":
		f.State = "all"
	case !slices.Contains(web.JobStates, f.State):
		f.State = "live"
	}
	if _, ok := web.ParseLength(f.Age); !ok {
		f.Age = ""
	}
	for _, m := range q["metadata"] {
		f.Metadata = append(f.Metadata, web.ParseLabels(m)...)
	}
	return f
}

func (s *site) jobs(w http.ResponseWriter, r *http.Request) {
	f := s.jobFilter(r)
	s.draw(w, r, "jobs", "Jobs", func(ctx context.Context, p web.Page) (templ.Component, error) {
		if r.URL.Query().Get("state") == "live" {
			q := p.Self.Query()
			q.Del("state")
			p.Self.RawQuery = q.Encode()
		}
		if wants(r) == "jobs" && r.Header.Get("HX-Trigger") != "jobs" { // the filter was used, not the live stream
			w.Header().Set("HX-Push-Url", p.Here())
		}
		l, err := s.source.Jobs(ctx, f)
		return web.JobsPage(p, f, l), err
	})
}

func (s *site) job(w http.ResponseWriter, r *http.Request) {
	id := param(r, "id")
	s.draw(w, r, "jobs", id, func(ctx context.Context, p web.Page) (templ.Component, error) {
		j, err := s.source.Job(ctx, id)
		if err == nil && wants(r) == "" { // no fragment holds the log: its script follows it
			j.Log, err = s.source.JobLog(ctx, id, -1, web.LogStep)
		}
		p.Title = j.ID
		return web.JobPage(p, j), err
	})
}

// jobLog is one stretch of a job's log, from ?offset= on; without that its end.
func (s *site) jobLog(w http.ResponseWriter, r *http.Request) {
	id, offset := param(r, "id"), int64(-1)
	if n, err := strconv.ParseInt(r.URL.Query().Get("offset"), 10, 64); err == nil && n >= 0 {
		offset = n
	}
	s.draw(w, r, "jobs", "Log of "+id, func(ctx context.Context, p web.Page) (templ.Component, error) {
		j, err := s.source.Job(ctx, id)
		if err == nil {
			j.Log, err = s.source.JobLog(ctx, id, offset, web.LogStep)
		}
		return web.JobLogPage(p, j), err
	})
}

func (s *site) askStopJob(w http.ResponseWriter, r *http.Request) {
	id := param(r, "id")
	p := s.frame(r, "jobs", id)
	j, err := s.source.Job(r.Context(), id)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	c := web.Confirm{Title: "Stop " + j.ID + "?", Text: web.Say("Ray ends its process and everything it started. It is not tried again."), Action: p.JobDo(id, "stop"), Button: "Stop it", Danger: true, Cancel: p.Job(id)}
	switch {
	case !j.Live():
		c.Text = web.Line{web.Strong("It is " + strings.ToLower(j.State) + " already, so there is nothing to stop.")}
	case j.Cluster == "":
		c.Text = web.Say("It waits for a cluster and leaves the line. It never runs.")
	case j.State == "UNKNOWN":
		c.Text = append(c.Text, web.Text(" Its cluster is silent, so that happens once it answers."))
	}
	s.asks(w, r, "jobs", c)
}

func (s *site) stopJob(w http.ResponseWriter, r *http.Request) {
	id := param(r, "id")
	p := s.frame(r, "jobs", id)
	err := s.actions.StopJob(r.Context(), id)
	s.done(w, r, err, web.Cut(id, 120)+" is being stopped.", p.Job(id))
}

// stopJobs stops several: first it asks, and asked again it does.
func (s *site) stopJobs(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, err)
		return
	}
	p := s.frame(r, "jobs", "Several jobs")
	to := back(r, p.To("/jobs"))
	ids := r.PostForm["id"]
	switch {
	case len(ids) == 0:
		s.done(w, r, &Refusal{ErrorCode: "invalid", Message: "No job is ticked, so there was nothing to stop."}, "", to)
		return
	case len(ids) > maxBulk:
		s.done(w, r, &Refusal{ErrorCode: "invalid", Message: "At most " + web.Number(maxBulk) + " jobs at once."}, "", to)
		return
	}
	if r.PostFormValue("sure") != "yes" {
		c := web.Confirm{
			Title: "Stop " + web.Count(len(ids), "job") + "?", Text: web.Say("Ray ends the process of each and everything it started. None is tried again."),
			Action: p.To("/jobs/stop"), Danger: true, Cancel: to, Items: ids, Button: "Stop " + web.Count(len(ids), "job"),
			Hidden: []web.Label{{Key: "back", Value: to}, {Key: "sure", Value: "yes"}},
		}
		for _, id := range ids {
			c.Hidden = append(c.Hidden, web.Label{Key: "id", Value: id})
		}
		s.asks(w, r, "jobs", c)
		return
	}
	s.forEach(w, r, ids, to, "job", "being stopped", func(ctx context.Context, id string) error { return s.actions.StopJob(ctx, id) })
}

func (s *site) newJob(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f := web.NewJobForm()
	if like := q.Get("like"); like != "" {
		j, err := s.source.Job(r.Context(), like)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if j.Again != nil {
			f = *j.Again
		}
	}
	if c := q.Get("cluster"); c != "" {
		f.Preferred = c
	}
	s.jobForm(w, r, http.StatusOK, f)
}

func (s *site) jobForm(w http.ResponseWriter, r *http.Request, status int, f web.JobForm) {
	p, err := s.page(w, r, "jobs", "Submit a job")
	if err == nil {
		f.Clusters, err = s.source.ClusterNames(r.Context())
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.show(w, r, status, p, web.JobFormPage(p, f))
}

func (s *site) submitJob(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, err)
		return
	}
	f := web.ReadJobForm(r.PostForm)
	j, errs := f.Parse()
	if len(errs) == 0 {
		p := s.frame(r, "jobs", "")
		id, err := s.actions.SubmitJob(r.Context(), j)
		if err == nil {
			s.done(w, r, nil, web.Cut(id, 120)+" is submitted.", p.Job(id))
			return
		}
		errs = s.formErrors(r, err, web.JobFields)
	}
	f.Errors = errs
	s.jobForm(w, r, http.StatusUnprocessableEntity, f)
}
