package pages

import (
	"context"
	"net/http"

	"github.com/a-h/templ"

	"github.com/schedulemesh/schedulemesh/web"
)

// backtestForm shows the form, with what was begun when there is something.
func (s *site) backtestForm(w http.ResponseWriter, r *http.Request, status int, f web.BacktestForm) {
	p, err := s.page(w, r, "policy", "Backtest")
	if err == nil {
		var active web.Policy
		active, err = s.source.Policy(r.Context(), p.Namespace)
		f.Version = active.Version
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.show(w, r, status, p, web.BacktestPage(p, f, nil))
}

func (s *site) newBacktest(w http.ResponseWriter, r *http.Request) {
	s.backtestForm(w, r, http.StatusOK, web.ReadBacktestForm(r.URL.Query()))
}

// backtestDraft takes the draft out of the policy editor, or out of the what-if form.
func (s *site) backtestDraft(w http.ResponseWriter, r *http.Request) {
	active, f, d, err := s.draft(r, namespace(r))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if r.PostForm.Has("draft") {
		s.backtestForm(w, r, http.StatusOK, web.ReadBacktestForm(r.PostForm))
		return
	}
	if len(f.Errors) > 0 {
		s.editor(w, r, http.StatusUnprocessableEntity, active, f, d)
		return
	}
	s.backtestForm(w, r, http.StatusOK, web.BacktestForm{Draft: active.Doc.ChangesTo(d)})
}

func (s *site) beginBacktest(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, err)
		return
	}
	f := web.ReadBacktestForm(r.PostForm)
	q, errs := f.Parse()
	if len(errs) == 0 {
		p := s.frame(r, "policy", "")
		id, err := s.source.BeginBacktest(r.Context(), p.Namespace, f, q)
		if err == nil {
			http.Redirect(w, r, p.To("/policy/backtest/"+web.Escape(id)), http.StatusSeeOther)
			return
		}
		errs = s.formErrors(r, err, web.BacktestFields)
	}
	f.Errors = errs
	s.backtestForm(w, r, http.StatusUnprocessableEntity, f)
}

func (s *site) backtest(w http.ResponseWriter, r *http.Request) {
	s.draw(w, r, "policy", "Backtest", func(ctx context.Context, p web.Page) (templ.Component, error) {
		b, err := s.source.Backtest(ctx, p.Namespace, param(r, "id"))
		if err != nil {
			return nil, err
		}
		if wants(r) == "backtest" {
			return web.BacktestLive(p, b), nil
		}
		active, err := s.source.Policy(ctx, p.Namespace)
		b.Form.Version = active.Version
		return web.BacktestPage(p, b.Form, &b), err
	})
}
