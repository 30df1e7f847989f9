package pages

import (
	"context"
	"net/http"
	"slices"

	"github.com/a-h/templ"
	"github.com/go-chi/chi/v5"

	"github.com/schedulemesh/schedulemesh/web"
)

func (s *site) nodeRoutes(r chi.Router) {
	r.Get("/", s.nodes)
	for _, verb := range web.HoldVerbs {
		r.Get("/{id}/"+verb, s.holdNode(verb))
		r.Post("/{id}/"+verb, s.holdNode(verb))
	}
}

func (s *site) nodes(w http.ResponseWriter, r *http.Request) {
	s.draw(w, r, "nodes", "Nodes", func(ctx context.Context, p web.Page) (templ.Component, error) {
		nodes, err := s.source.Nodes(ctx)
		return web.NodesPage(p, nodes), err
	})
}

func (s *site) holdPool(verb string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		name := param(r, "name")
		p := s.frame(r, "pools", name)
		v, err := s.source.Pool(r.Context(), p.Namespace, name, 0)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		f := web.HoldForm{Verb: verb, What: "pool", Name: name, Action: p.PoolDo(name, verb), Cancel: p.Pool(name), Now: v.Hold}
		s.hold(w, r, "pools", f, func(ctx context.Context, h web.HoldRequest) error {
			return s.actions.HoldPool(ctx, p.Namespace, name, h)
		})
	}
}

func (s *site) holdNode(verb string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := param(r, "id")
		p := s.frame(r, "nodes", id)
		nodes, err := s.source.Nodes(r.Context())
		at := slices.IndexFunc(nodes, func(n web.Node) bool { return n.ID == id })
		if err == nil && at < 0 {
			err = &Refusal{ErrorCode: "unknown_node", Message: "No cluster has a node " + web.Cut(id, 80) + "."}
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		f := web.HoldForm{Verb: verb, What: "node", Name: nodes[at].Short(), Action: p.To("/nodes/" + web.Escape(id) + "/" + verb), Cancel: p.To("/nodes"), Now: nodes[at].Hold}
		s.hold(w, r, "nodes", f, func(ctx context.Context, h web.HoldRequest) error { return s.actions.HoldNode(ctx, id, h) })
	}
}

// hold asks on GET and does on POST.
func (s *site) hold(w http.ResponseWriter, r *http.Request, section string, f web.HoldForm, do func(context.Context, web.HoldRequest) error) {
	status := http.StatusOK
	if r.Method == http.MethodPost {
		if err := r.ParseForm(); err != nil {
			s.fail(w, r, err)
			return
		}
		f.Read(r.PostForm)
		var h web.HoldRequest
		if h, f.Errors = f.Parse(); len(f.Errors) == 0 {
			err := do(r.Context(), h)
			if err == nil {
				past := map[string]string{"hold": "It is held: nothing starts there.", "drain": "It is being drained.", "resume": "It starts tasks again."}
				if f.What == "cluster" {
					past = map[string]string{"hold": "It is held: no new jobs go there.", "resume": "It takes jobs again."}
				}
				s.done(w, r, nil, past[f.Verb], f.Cancel)
				return
			}
			f.Errors = s.formErrors(r, err, []string{"reason", "deadline"})
		}
		status = http.StatusUnprocessableEntity
	}
	p, err := s.page(w, r, section, f.Verb)
	switch {
	case err != nil:
		s.fail(w, r, err)
	case wants(r) == "dialog":
		s.show(w, r, status, p, web.HoldBox(f))
	default:
		s.show(w, r, status, p, web.HoldPage(p, f))
	}
}
