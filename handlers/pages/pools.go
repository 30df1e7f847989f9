package pages

import (
	"context"
	"net/http"
	"strconv"

	"github.com/a-h/templ"
	"github.com/go-chi/chi/v5"

	"github.com/schedulemesh/schedulemesh/web"
)

func (s *site) poolRoutes(r chi.Router) {
	r.Get("/", s.pools)
	r.Get("/new", s.newPool)
	r.Post("/new", s.createPool)
	r.Get("/{name}", s.pool)
	r.Get("/{name}/edit", s.editPool)
	r.Post("/{name}/edit", s.updatePool)
	r.Get("/{name}/delete", s.askDeletePool)
	r.Post("/{name}/delete", s.deletePool)
	for _, verb := range web.HoldVerbs {
		r.Get("/{name}/"+verb, s.holdPool(verb))
		r.Post("/{name}/"+verb, s.holdPool(verb))
	}
}

func (s *site) pools(w http.ResponseWriter, r *http.Request) {
	s.draw(w, r, "pools", "Pools", func(ctx context.Context, p web.Page) (templ.Component, error) {
		pools, err := s.source.Pools(ctx, p.Namespace)
		return web.PoolsPage(p, pools), err
	})
}

func (s *site) pool(w http.ResponseWriter, r *http.Request) {
	name := param(r, "name")
	s.draw(w, r, "pools", name, func(ctx context.Context, p web.Page) (templ.Component, error) {
		from, _ := strconv.Atoi(r.URL.Query().Get("line"))
		v, err := s.source.Pool(ctx, p.Namespace, name, max(0, from-1))
		return web.PoolDetail(p, v), err
	})
}

// poolForm shows the form; name is "" for a new pool.
func (s *site) poolForm(w http.ResponseWriter, r *http.Request, status int, name string, f web.PoolForm) {
	title := "Create a pool"
	if name != "" {
		title = "Edit " + name
	}
	p, err := s.page(w, r, "pools", title)
	if err == nil && name == "" {
		f.Clusters, err = s.source.PoolClusters(r.Context())
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.show(w, r, status, p, web.PoolFormPage(p, name, f))
}

func (s *site) newPool(w http.ResponseWriter, r *http.Request) {
	s.poolForm(w, r, http.StatusOK, "", web.NewPoolForm())
}

func (s *site) createPool(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, err)
		return
	}
	f := web.ReadPoolForm(r.PostForm)
	spec, errs := f.Parse()
	if len(errs) == 0 {
		p := s.frame(r, "pools", "")
		err := s.actions.CreatePool(r.Context(), p.Namespace, spec)
		if err == nil {
			s.done(w, r, nil, "The pool "+web.Cut(spec.Name, 120)+" is there.", p.Pool(spec.Name))
			return
		}
		errs = s.formErrors(r, err, web.PoolFields)
	}
	f.Errors = errs
	s.poolForm(w, r, http.StatusUnprocessableEntity, "", f)
}

func (s *site) editPool(w http.ResponseWriter, r *http.Request) {
	name := param(r, "name")
	v, err := s.source.Pool(r.Context(), namespace(r), name, 0)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.poolForm(w, r, http.StatusOK, name, v.Settings)
}

func (s *site) updatePool(w http.ResponseWriter, r *http.Request) {
	name := param(r, "name")
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, err)
		return
	}
	f := web.ReadPoolForm(r.PostForm)
	f.Name = name
	spec, errs := f.Parse()
	if len(errs) == 0 {
		p := s.frame(r, "pools", "")
		err := s.actions.UpdatePool(r.Context(), p.Namespace, name, spec)
		if err == nil || status(err) == http.StatusNotFound {
			s.done(w, r, err, "The pool is changed.", p.Pool(name))
			return
		}
		errs = s.formErrors(r, err, web.PoolFields)
	}
	f.Errors = errs
	s.poolForm(w, r, http.StatusUnprocessableEntity, name, f)
}

func (s *site) askDeletePool(w http.ResponseWriter, r *http.Request) {
	name := param(r, "name")
	p := s.frame(r, "pools", name)
	v, err := s.source.Pool(r.Context(), p.Namespace, name, 0)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	c := web.Confirm{
		Title: "Delete the pool " + name + "?", Text: web.Say("Nothing can be submitted to it afterwards. Its tasks that ended stay readable."),
		Action: p.PoolDo(name, "delete"), Button: "Delete it", Danger: true, Cancel: p.Pool(name),
	}
	if n := v.Holding + v.Queued; n > 0 {
		c.Text = web.Line{web.Strong(web.Count(n, "task") + " still hold or wait for its quota, so this will be refused. "), web.Text("Cancel them first, or let them end.")}
	} else if len(v.Loans) > 0 {
		c.Text = web.Line{web.Strong("It still has loans with other pools, so this will be refused. "), web.Text("They end with the tasks that need them.")}
	}
	s.asks(w, r, "pools", c)
}

func (s *site) deletePool(w http.ResponseWriter, r *http.Request) {
	name := param(r, "name")
	p := s.frame(r, "pools", name)
	to := p.To("/pools")
	err := s.actions.DeletePool(r.Context(), p.Namespace, name)
	if err != nil {
		to = p.Pool(name)
	}
	s.done(w, r, err, "The pool "+web.Cut(name, 120)+" is deleted.", to)
}
