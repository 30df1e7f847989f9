package pages

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/a-h/templ"
	"github.com/go-chi/chi/v5"

	"github.com/schedulemesh/schedulemesh/web"
)

func (s *site) policyRoutes(r chi.Router) {
	r.Get("/", s.policy)
	r.Post("/", s.savePolicy)
	r.Post("/preview", s.previewPolicy)
	r.Post("/review", s.reviewPolicy)
	r.Get("/review", s.toPolicy)
	r.Post("/edit", s.editAgain)
	r.Post("/what-if", s.whatIfDraft)
	r.Get("/what-if", s.toWhatIf)
	r.Get("/backtest", s.newBacktest)
	r.Post("/backtest", s.beginBacktest)
	r.Post("/backtest/draft", s.backtestDraft)
	r.Get("/backtest/draft", s.newBacktest)
	r.Get("/backtest/{id}", s.backtest)
	r.Get("/edit", s.toPolicy)
	r.Get("/versions", s.policyVersions)
	r.Get("/versions/{n}", s.policyVersion)
	r.Get("/versions/{n}/rollback", s.askRollback)
	r.Post("/versions/{n}/rollback", s.rollback)
}

// toPolicy answers a reload of what is only posted.
func (s *site) toPolicy(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, s.frame(r, "", "").To("/policy"), http.StatusSeeOther)
}

func (s *site) policy(w http.ResponseWriter, r *http.Request) {
	s.draw(w, r, "policy", "Policy", func(ctx context.Context, p web.Page) (templ.Component, error) {
		active, err := s.source.Policy(ctx, p.Namespace)
		f := active.Doc.Form()
		f.IsText, f.Pools, f.Warnings = r.URL.Query().Get("format") == "text", active.Pools, active.Warnings
		return web.PolicyEditor(p, active, f, active.Doc), err
	})
}

// draft reads what was posted and says what is wrong or odd with it.
func (s *site) draft(r *http.Request, ns string) (active web.Policy, f web.PolicyForm, d web.PolicyDoc, err error) {
	if err = r.ParseForm(); err != nil {
		return
	}
	if active, err = s.source.Policy(r.Context(), ns); err != nil {
		return
	}
	f = web.ReadPolicyForm(r.PostForm)
	f.Pools = active.Pools
	d, f.Errors = f.Parse(active.Doc)
	if len(f.Errors) == 0 {
		var refused error
		if f.Warnings, refused = s.actions.CheckPolicy(r.Context(), ns, d); refused != nil {
			f.Errors = s.formErrors(r, refused, f.Fields())
		}
	}
	return
}

// previewPolicy is what the draft means, beside the form while one types.
func (s *site) previewPolicy(w http.ResponseWriter, r *http.Request) {
	p := s.frame(r, "policy", "Policy")
	active, f, d, err := s.draft(r, p.Namespace)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if wants(r) == "" { // without script there is nobody to put the preview into the page
		s.editor(w, r, http.StatusOK, active, f, d)
		return
	}
	s.show(w, r, http.StatusOK, p, web.PolicyPreview(p, active, f, d))
}

func (s *site) editor(w http.ResponseWriter, r *http.Request, status int, active web.Policy, f web.PolicyForm, d web.PolicyDoc) {
	p, err := s.page(w, r, "policy", "Policy")
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.show(w, r, status, p, web.PolicyEditor(p, active, f, d))
}

func (s *site) reviewPolicy(w http.ResponseWriter, r *http.Request) {
	ns := namespace(r)
	active, f, d, err := s.draft(r, ns)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if len(f.Errors) > 0 {
		s.editor(w, r, http.StatusUnprocessableEntity, active, f, d)
		return
	}
	conflict, err := s.overtaken(r, active)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.review(w, r, http.StatusOK, active, d, f.Warnings, "", conflict, nil)
}

// base is the version that a form was made from, 0 when it does not say.
func base(r *http.Request) int {
	n, _ := strconv.Atoi(r.PostFormValue("base"))
	return max(n, 0)
}

// overtaken says what changed since the form was made, nil when nothing did.
func (s *site) overtaken(r *http.Request, active web.Policy) (*web.Overtaken, error) {
	n := base(r)
	if n == 0 || n == active.Version {
		return nil, nil
	}
	from, err := s.source.PolicyVersion(r.Context(), namespace(r), n)
	return &web.Overtaken{Base: from, Now: active}, err
}

func (s *site) review(w http.ResponseWriter, r *http.Request, status int, active web.Policy, d web.PolicyDoc, warnings []string, comment string, conflict *web.Overtaken, e web.Errors) {
	p, err := s.page(w, r, "policy", "Save the policy")
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.show(w, r, status, p, web.PolicyReview(p, active, d, warnings, comment, conflict, e))
}

// editAgain leads from the review back to the form, with the draft in it.
func (s *site) editAgain(w http.ResponseWriter, r *http.Request) {
	active, f, d, err := s.posted(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if len(f.Errors) == 0 {
		warnings := f.Warnings
		f = d.Form()
		f.Pools, f.Warnings = active.Pools, warnings
	}
	s.editor(w, r, http.StatusOK, active, f, d)
}

// posted is the draft as the review carries it: as JSON, whatever it was typed in.
func (s *site) posted(r *http.Request) (web.Policy, web.PolicyForm, web.PolicyDoc, error) {
	if err := r.ParseForm(); err != nil {
		return web.Policy{}, web.PolicyForm{}, web.PolicyDoc{}, err
	}
	r.PostForm.Set("format", "text")
	return s.draft(r, namespace(r))
}

func (s *site) savePolicy(w http.ResponseWriter, r *http.Request) {
	p := s.frame(r, "policy", "Policy")
	active, f, d, err := s.posted(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if len(f.Errors) > 0 {
		s.editor(w, r, http.StatusUnprocessableEntity, active, f, d)
		return
	}
	comment := strings.TrimSpace(r.PostFormValue("comment"))
	if comment == "" {
		e := web.Errors{}
		e.Add("comment", "Say why in one line; those who look for the reason later will thank you.")
		s.review(w, r, http.StatusUnprocessableEntity, active, d, f.Warnings, comment, nil, e)
		return
	}
	version, err := s.actions.SavePolicy(r.Context(), p.Namespace, d, base(r), User(r.Context()), comment)
	switch {
	case err == nil:
		s.done(w, r, nil, fmt.Sprintf("Version %d is active.", version), p.To("/policy"))
	case isConflict(err):
		var conflict *web.Overtaken
		if active, err = s.source.Policy(r.Context(), p.Namespace); err == nil {
			conflict, err = s.overtaken(r, active)
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		s.review(w, r, http.StatusConflict, active, d, f.Warnings, comment, conflict, nil)
	default:
		s.review(w, r, http.StatusUnprocessableEntity, active, d, f.Warnings, comment, nil, s.formErrors(r, err, nil))
	}
}

func isConflict(err error) bool {
	var c Coded
	return errors.As(err, &c) && c.Code() == "version_conflict"
}

func (s *site) policyVersions(w http.ResponseWriter, r *http.Request) {
	s.draw(w, r, "policy", "Versions of the policy", func(ctx context.Context, p web.Page) (templ.Component, error) {
		l, err := s.source.PolicyVersions(ctx, p.Namespace, r.URL.Query().Get("cursor"), s.o.PageSize)
		return web.PolicyVersionsPage(p, l), err
	})
}

// version is the number in the path. What is no number is no version.
func version(r *http.Request) (int, error) {
	n, err := strconv.Atoi(param(r, "n"))
	if err != nil || n < 1 {
		return 0, &Refusal{ErrorCode: "unknown_policy_version", Message: fmt.Sprintf("There is no policy version %q.", web.Cut(param(r, "n"), 40))}
	}
	return n, nil
}

func (s *site) policyVersion(w http.ResponseWriter, r *http.Request) {
	s.draw(w, r, "policy", "Policy version "+param(r, "n"), func(ctx context.Context, p web.Page) (templ.Component, error) {
		n, err := version(r)
		if err != nil {
			return nil, err
		}
		v, err := s.source.PolicyVersion(ctx, p.Namespace, n)
		if err != nil {
			return nil, err
		}
		active, err := s.source.Policy(ctx, p.Namespace)
		if err != nil {
			return nil, err
		}
		before := n - 1
		if m, err := strconv.Atoi(r.URL.Query().Get("against")); err == nil && m > 0 {
			before = m
		}
		if before == 0 {
			return web.PolicyVersionPage(p, v, active, nil), nil
		}
		against, err := s.source.PolicyVersion(ctx, p.Namespace, before)
		return web.PolicyVersionPage(p, v, active, &against), err
	})
}

func (s *site) askRollback(w http.ResponseWriter, r *http.Request) {
	s.confirmRollback(w, r, http.StatusOK, web.Rollback{})
}

// confirmRollback shows what bringing a version back would change, with what was typed already.
func (s *site) confirmRollback(w http.ResponseWriter, r *http.Request, status int, ask web.Rollback) {
	n, err := version(r)
	if err == nil {
		ask.Version, err = s.source.PolicyVersion(r.Context(), namespace(r), n)
	}
	if err == nil {
		ask.Active, err = s.source.Policy(r.Context(), namespace(r))
	}
	if err == nil {
		ask.Conflict, err = s.overtaken(r, ask.Active)
	}
	var p web.Page
	if err == nil {
		p, err = s.page(w, r, "policy", "Bring back")
	}
	switch {
	case err != nil:
		s.fail(w, r, err)
	case wants(r) == "dialog":
		s.show(w, r, status, p, web.RollbackBox(p, ask))
	default:
		s.show(w, r, status, p, web.RollbackPage(p, ask))
	}
}

func (s *site) rollback(w http.ResponseWriter, r *http.Request) {
	p := s.frame(r, "policy", "Bring back")
	n, err := version(r)
	made := 0
	comment := strings.TrimSpace(r.PostFormValue("comment"))
	if comment == "" {
		comment = fmt.Sprintf("Back to version %d", n)
	}
	if err == nil {
		made, err = s.actions.Rollback(r.Context(), p.Namespace, n, base(r), User(r.Context()), comment)
	}
	if isConflict(err) {
		s.confirmRollback(w, r, http.StatusConflict, web.Rollback{Comment: comment})
		return
	}
	s.done(w, r, err, fmt.Sprintf("Version %d is active, with the content of version %d.", made, n), p.To("/policy"))
}
