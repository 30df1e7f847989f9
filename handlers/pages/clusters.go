package pages

import (
	"context"
	"net/http"
	"strings"

	"github.com/a-h/templ"
	"github.com/go-chi/chi/v5"

	"github.com/schedulemesh/schedulemesh/web"
)

func (s *site) clusterRoutes(r chi.Router) {
	r.Get("/", s.clusters)
	r.Get("/new", s.newCluster)
	r.Post("/new", s.addCluster)
	r.Get("/{name}", s.cluster)
	r.Get("/{name}/edit", s.editCluster)
	r.Post("/{name}/edit", s.saveCluster)
	r.Get("/{name}/remove", s.askRemoveCluster)
	r.Post("/{name}/remove", s.removeCluster)
	for _, verb := range []string{"hold", "resume"} {
		r.Get("/{name}/"+verb, s.holdCluster(verb))
		r.Post("/{name}/"+verb, s.holdCluster(verb))
	}
}

func (s *site) clusters(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f := web.ClusterFilter{Text: strings.TrimSpace(q.Get("q")), State: q.Get("state"), Cursor: q.Get("cursor"), Limit: s.o.PageSize}
	s.draw(w, r, "clusters", "Clusters", func(ctx context.Context, p web.Page) (templ.Component, error) {
		if wants(r) == "clusters" && r.Header.Get("HX-Trigger") != "clusters" { // the filter was used, not the live stream
			w.Header().Set("HX-Push-Url", p.Here())
		}
		l, err := s.source.Clusters(ctx, f)
		return web.ClustersPage(p, f, l), err
	})
}

func (s *site) cluster(w http.ResponseWriter, r *http.Request) {
	name, hours := param(r, "name"), 1
	if r.URL.Query().Get("hours") == "6" {
		hours = 6
	}
	s.draw(w, r, "clusters", name, func(ctx context.Context, p web.Page) (templ.Component, error) {
		c, err := s.source.Cluster(ctx, name, hours)
		return web.ClusterDetail(p, c), err
	})
}

// clusterForm shows the form; name is "" for a new cluster.
func (s *site) clusterForm(w http.ResponseWriter, r *http.Request, status int, name string, f web.ClusterForm) {
	title := "Add a cluster"
	if name != "" {
		title = "Edit " + name
	}
	p, err := s.page(w, r, "clusters", title)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.show(w, r, status, p, web.ClusterFormPage(p, name, f))
}

func (s *site) newCluster(w http.ResponseWriter, r *http.Request) {
	s.clusterForm(w, r, http.StatusOK, "", web.NewClusterForm())
}

func (s *site) addCluster(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, err)
		return
	}
	f := web.ReadClusterForm(r.PostForm)
	c, errs := f.Parse()
	if len(errs) == 0 {
		p := s.frame(r, "clusters", "")
		err := s.actions.AddCluster(r.Context(), c)
		if err == nil {
			s.done(w, r, nil, "The cluster "+web.Cut(c.Name, 120)+" is there; it is asked how it is within seconds.", p.Cluster(c.Name))
			return
		}
		errs = s.formErrors(r, err, web.ClusterFields)
	}
	f.Errors = errs
	s.clusterForm(w, r, http.StatusUnprocessableEntity, "", f)
}

func (s *site) editCluster(w http.ResponseWriter, r *http.Request) {
	name := param(r, "name")
	f, err := s.source.ClusterForm(r.Context(), name)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.clusterForm(w, r, http.StatusOK, name, f)
}

func (s *site) saveCluster(w http.ResponseWriter, r *http.Request) {
	name := param(r, "name")
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, err)
		return
	}
	f := web.ReadClusterForm(r.PostForm)
	f.Name = name
	c, errs := f.Parse()
	if len(errs) == 0 {
		p := s.frame(r, "clusters", "")
		err := s.actions.EditCluster(r.Context(), c)
		if err == nil || status(err) == http.StatusNotFound {
			s.done(w, r, err, "The cluster is changed.", p.Cluster(name))
			return
		}
		errs = s.formErrors(r, err, web.ClusterFields)
	}
	f.Errors = errs
	s.clusterForm(w, r, http.StatusUnprocessableEntity, name, f)
}

func (s *site) askRemoveCluster(w http.ResponseWriter, r *http.Request) {
	name := param(r, "name")
	p := s.frame(r, "clusters", name)
	c, err := s.source.Cluster(r.Context(), name, 1)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	v := web.Confirm{
		Title: "Remove the cluster " + name + "?", Text: web.Say("Jobs go there no more, and it is not asked how it is. Ray itself is not touched; you can add the cluster again."),
		Action: p.ClusterDo(name, "remove"), Button: "Remove it", Danger: true, Cancel: p.Cluster(name),
	}
	if n := c.Jobs.Live(); n > 0 {
		v.Text = web.Line{web.Strong("Live jobs of ours there: " + web.Number(n) + ", so this will be refused. "), web.Text("Hold the cluster, and stop them or let them end.")}
	}
	if c.Source == "file" {
		v.Text = append(v.Text, web.Text(" clusters.yaml still names it: it stays away until the file says something new of it."))
	}
	s.asks(w, r, "clusters", v)
}

func (s *site) removeCluster(w http.ResponseWriter, r *http.Request) {
	name := param(r, "name")
	p := s.frame(r, "clusters", name)
	to := p.To("/clusters")
	err := s.actions.RemoveCluster(r.Context(), name)
	if err != nil {
		to = p.Cluster(name)
	}
	s.done(w, r, err, "The cluster "+web.Cut(name, 120)+" is removed.", to)
}

func (s *site) holdCluster(verb string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		name := param(r, "name")
		p := s.frame(r, "clusters", name)
		c, err := s.source.Cluster(r.Context(), name, 1)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		f := web.HoldForm{Verb: verb, What: "cluster", Name: name, Action: p.ClusterDo(name, verb), Cancel: p.Cluster(name), Now: c.Hold}
		s.hold(w, r, "clusters", f, func(ctx context.Context, h web.HoldRequest) error {
			return s.actions.HoldCluster(ctx, name, h)
		})
	}
}
