package pages

import (
	"context"
	"net/http"
	"strings"

	"github.com/a-h/templ"

	"github.com/schedulemesh/schedulemesh/web"
)

func (s *site) overview(w http.ResponseWriter, r *http.Request) {
	s.draw(w, r, "overview", "Overview", func(ctx context.Context, p web.Page) (templ.Component, error) {
		o, err := s.source.Overview(ctx, p.Namespace)
		return web.OverviewPage(p, o), err
	})
}

// jump leads to what is called like that: at once when it is one thing, by a list when it is several.
func (s *site) jump(w http.ResponseWriter, r *http.Request) {
	text := strings.TrimSpace(r.URL.Query().Get("q"))
	p, err := s.page(w, r, "", "Find")
	var hits []web.Hit
	if err == nil && text != "" {
		hits, err = s.source.Find(r.Context(), p.Namespace, web.Cut(text, 300), 12)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if wants(r) == "jump-found" {
		s.show(w, r, http.StatusOK, p, web.JumpFound(p, text, hits))
		return
	}
	if text == "" {
		http.Redirect(w, r, p.To("/"), http.StatusSeeOther)
		return
	}
	if len(hits) == 1 || len(hits) > 1 && hits[0].Name == text && hits[1].Name != text {
		http.Redirect(w, r, p.To(hits[0].Href), http.StatusSeeOther)
		return
	}
	s.show(w, r, http.StatusOK, p, web.JumpPage(p, text, hits))
}

func (s *site) events(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f := web.EventFilter{Task: strings.TrimSpace(q.Get("task")), Pool: q.Get("pool"), Type: q.Get("type"), Cursor: q.Get("cursor"), Limit: s.o.PageSize}
	s.draw(w, r, "events", "Events", func(ctx context.Context, p web.Page) (templ.Component, error) {
		l, err := s.source.Events(ctx, p.Namespace, f)
		return web.EventsPage(p, f, l), err
	})
}
