package pages

import (
	"context"
	"net/http"
	"strings"

	"github.com/a-h/templ"
	"github.com/go-chi/chi/v5"

	"github.com/schedulemesh/schedulemesh/web"
)

func (s *site) agentRoutes(r chi.Router) {
	r.Get("/", s.agents)
	r.Get("/{name}/delete", s.askDeleteAgent)
	r.Post("/{name}/delete", s.deleteAgent)
}

func (s *site) agents(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f := web.AgentFilter{Pool: q.Get("pool"), Text: strings.TrimSpace(q.Get("q")), Cursor: q.Get("cursor"), Limit: s.o.PageSize}
	s.draw(w, r, "agents", "Agents", func(ctx context.Context, p web.Page) (templ.Component, error) {
		if wants(r) == "agents" && r.Header.Get("HX-Trigger") != "agents" { // the filter was used, not the live stream
			w.Header().Set("HX-Push-Url", p.Here())
		}
		l, err := s.source.Agents(ctx, p.Namespace, f)
		return web.AgentsPage(p, f, l), err
	})
}

func (s *site) askDeleteAgent(w http.ResponseWriter, r *http.Request) {
	name := param(r, "name")
	p := s.frame(r, "agents", name)
	s.asks(w, r, "agents", web.Confirm{
		Title: "Remove the agent " + name + "?", Text: web.Say("Its actor is stopped and its quota returned. What runs on it ends; nothing is saved. To keep the state, preempt its task instead."),
		Action: p.To("/agents/" + web.Escape(name) + "/delete"), Button: "Remove it", Danger: true, Cancel: p.To("/agents"),
		Force: "force", ForceText: "Also when a task still runs on it",
	})
}

func (s *site) deleteAgent(w http.ResponseWriter, r *http.Request) {
	name := param(r, "name")
	p := s.frame(r, "agents", name)
	err := s.actions.DeleteAgent(r.Context(), p.Namespace, name, r.PostFormValue("force") == "yes")
	s.done(w, r, err, "The agent "+web.Cut(name, 120)+" is being removed.", p.To("/agents"))
}
