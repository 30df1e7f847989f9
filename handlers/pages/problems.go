package pages

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/schedulemesh/schedulemesh/web"
)

// status is the HTTP status of an error, by its code.
func status(err error) int {
	var big *http.MaxBytesError
	if errors.As(err, &big) {
		return http.StatusRequestEntityTooLarge
	}
	var c Coded
	if !errors.As(err, &c) {
		return http.StatusInternalServerError
	}
	code := c.Code()
	switch {
	case code == "not_found", strings.HasPrefix(code, "unknown_"), strings.HasSuffix(code, "_not_found"):
		return http.StatusNotFound
	case code == "invalid", strings.HasPrefix(code, "invalid_"):
		return http.StatusUnprocessableEntity
	case code == "internal":
		return http.StatusInternalServerError
	case code == "shutting_down", strings.HasSuffix(code, "_unavailable"):
		return http.StatusServiceUnavailable
	}
	return http.StatusConflict
}

func reference() string {
	b := make([]byte, 5)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// fail answers with the page for an error.
func (s *site) fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		return // nobody is there to read it
	}
	var c Coded
	coded := errors.As(err, &c)
	switch st := status(err); {
	case st == http.StatusNotFound && coded:
		s.problem(w, r, web.Problem{
			Status: st, Title: "Not found", Text: web.Say(c.Error()),
			Advice: []web.Line{
				{web.Text("It may be in another namespace; this one is "), web.Strong(namespace(r)), web.Text(". Choose one at the top.")},
				{web.Text("Its name may be typed differently: press "), web.Code("/"), web.Text(" and begin to type it.")},
				{web.Text("Tasks that ended are listed under "), web.Link("any state", "/tasks?state=all"), web.Text("; deleted pools and agents are in the "), web.Link("events", "/events"), web.Text(".")},
			},
		})
	case st == http.StatusServiceUnavailable && coded:
		s.problem(w, r, web.Problem{
			Status: st, Title: "Not available right now", Text: web.Say(c.Error()),
			Advice: []web.Line{
				web.Say("Tasks that run go on running; only the server cannot answer."),
				web.Say("Reload the page in a moment."),
				{web.Text("An operator finds what is down with "), web.Code("curl " + s.frame(r, "", "").Origin + "/readyz"), web.Text(" and in the server's log.")},
			},
		})
	case st < 500 && coded:
		s.problem(w, r, web.Problem{Status: st, Title: "That cannot be done", Text: web.Say(c.Error())})
	case st == http.StatusRequestEntityTooLarge:
		s.problem(w, r, web.Problem{Status: st, Title: "The form is too large", Text: web.Say("At most " + web.Bytes(maxForm) + " can be posted here; the REST API takes more.")})
	default:
		ref := reference()
		s.o.Logger.ErrorContext(r.Context(), "a page failed", "path", r.URL.Path, "error", err, "reference", ref)
		s.problem(w, r, internalProblem(ref))
	}
}

func internalProblem(ref string) web.Problem {
	return web.Problem{
		Status: http.StatusInternalServerError, Title: "Something went wrong here", Reference: ref,
		Text: web.Say("It is our fault, not yours. The server's log says what it was."),
		Advice: []web.Line{
			web.Say("Reload the page; if it was a form, look first whether it was done."),
			{web.Text("If it stays, give an operator this reference: "), web.Code(ref)},
		},
	}
}

// problem shows an error page. It reads nothing, so that it works when nothing else does.
func (s *site) problem(w http.ResponseWriter, r *http.Request, v web.Problem) {
	p := s.frame(r, "", v.Title)
	p.Namespaces = []string{p.Namespace}
	if p.Namespace != web.DefaultNamespace {
		p.Namespaces = []string{web.DefaultNamespace, p.Namespace}
	}
	s.show(w, r, v.Status, p, web.ProblemPage(p, v))
}

func (s *site) noSuchPage(w http.ResponseWriter, r *http.Request) {
	s.problem(w, r, web.Problem{
		Status: http.StatusNotFound, Title: "There is no such page",
		Text: web.Line{web.Text("Nothing is served at "), web.Code(r.URL.Path), web.Text(".")},
		Advice: []web.Line{
			{web.Text("Start from the "), web.Link("overview", "/"), web.Text(" or press "), web.Code("/"), web.Text(" and type a name.")},
			{web.Text("For the REST API see "), web.Code("/api/docs"), web.Text(".")},
		},
	})
}

func (s *site) wrongMethod(w http.ResponseWriter, r *http.Request) {
	s.problem(w, r, web.Problem{
		Status: http.StatusMethodNotAllowed, Title: "This address is not asked like that",
		Text: web.Line{web.Code(r.Method + " " + r.URL.Path), web.Text(" does nothing; it belongs to a form or a link.")},
	})
}

func (s *site) crossOrigin(w http.ResponseWriter, r *http.Request) {
	s.problem(w, r, web.Problem{
		Status: http.StatusForbidden, Title: "Refused: the form came from another site",
		Text:   web.Say("What changes something must be sent from a page of this server. Nothing was changed."),
		Advice: []web.Line{web.Say("Go back to this dashboard, reload the page and send the form again. Scripts use the REST API with a token.")},
	})
}

// SignIn answers with the sign-in page. It needs no site: whoever signs people in calls it.
func SignIn(w http.ResponseWriter, r *http.Request, status int, v web.SignIn) {
	(&site{o: Options{Logger: slog.Default()}}).show(w, r, status, web.Page{Title: "Sign in"}, web.SignInPage(v))
}
