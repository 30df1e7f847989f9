package pages

import (
	"errors"
	"net/http"

	"github.com/schedulemesh/schedulemesh/web"
)

// whatIf asks what would happen. It changes nothing, so a link may ask as well as a form.
func (s *site) whatIf(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, err)
		return
	}
	f := web.ReadWhatIfForm(r.Form)
	if r.Method == http.MethodGet && f.Task != "" && f.Pool == "" { // from the task's page
		t, err := s.source.Task(r.Context(), namespace(r), f.Task)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		f.Task = ""
		f.Like(t.TaskRow)
	}
	s.answerWhatIf(w, r, f, r.Method == http.MethodPost || f.Pool != "" || f.Draft != "")
}

// whatIfDraft takes the draft out of the policy editor.
func (s *site) whatIfDraft(w http.ResponseWriter, r *http.Request) {
	active, f, d, err := s.draft(r, namespace(r))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if len(f.Errors) > 0 {
		s.editor(w, r, http.StatusUnprocessableEntity, active, f, d)
		return
	}
	draft := active.Doc.ChangesTo(d)
	s.answerWhatIf(w, r, web.WhatIfForm{Draft: draft}, draft != "")
}

// toWhatIf answers a reload of what is only posted.
func (s *site) toWhatIf(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, s.frame(r, "", "").To("/what-if"), http.StatusSeeOther)
}

func (s *site) answerWhatIf(w http.ResponseWriter, r *http.Request, f web.WhatIfForm, ask bool) {
	p, err := s.page(w, r, "what-if", "What if")
	if err != nil {
		s.fail(w, r, err)
		return
	}
	active, err := s.source.Policy(r.Context(), p.Namespace)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	f.Pools, f.Version = active.Pools, active.Version
	var answer *web.WhatIf
	status := http.StatusOK
	if ask {
		var q web.Supposition
		if q, f.Errors = f.Parse(); len(f.Errors) == 0 {
			a, err := s.source.WhatIf(r.Context(), p.Namespace, q)
			var c Coded
			switch {
			case err == nil:
				answer = &a
			case errors.As(err, &c) && c.Code() == "wrong_state", errors.As(err, &c) && c.Code() == "unknown_task":
				f.Task = "" // it has left the queue since: one like it is asked about
				s.answerWhatIf(w, r, f, ask)
				return
			default:
				f.Errors = s.formErrors(r, err, web.WhatIfFields)
			}
		}
		if len(f.Errors) > 0 {
			status = http.StatusUnprocessableEntity
		}
	}
	if wants(r) == "what-if-answer" {
		s.show(w, r, http.StatusOK, p, web.WhatIfAnswer(f, answer))
		return
	}
	s.show(w, r, status, p, web.WhatIfPage(p, f, answer))
}
