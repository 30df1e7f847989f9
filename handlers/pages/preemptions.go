package pages

import (
	"context"
	"net/http"
	"strings"

	"github.com/a-h/templ"
	"github.com/go-chi/chi/v5"

	"github.com/schedulemesh/schedulemesh/web"
)

func (s *site) preemptionRoutes(r chi.Router) {
	r.Get("/", s.preemptions)
	r.Get("/{id}", s.preemption)
}

func (s *site) preemptions(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f := web.PreemptionFilter{Reason: q.Get("reason"), Pool: q.Get("pool"), Task: strings.TrimSpace(q.Get("task")), Cursor: q.Get("cursor"), Limit: s.o.PageSize}
	s.draw(w, r, "preemptions", "Preemptions", func(ctx context.Context, p web.Page) (templ.Component, error) {
		l, err := s.source.Preemptions(ctx, p.Namespace, f)
		return web.PreemptionsPage(p, f, l), err
	})
}

func (s *site) preemption(w http.ResponseWriter, r *http.Request) {
	id := param(r, "id")
	s.draw(w, r, "preemptions", "Preemption "+id, func(ctx context.Context, p web.Page) (templ.Component, error) {
		x, err := s.source.Preemption(ctx, p.Namespace, id)
		return web.PreemptionPage(p, x), err
	})
}
