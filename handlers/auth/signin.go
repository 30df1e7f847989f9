package auth

import (
	"html/template"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-chi/chi/v5"
)

// Mount adds GET and POST /sign-in and POST /sign-out. Middleware must be in front of them.
func (a *Auth) Mount(r chi.Router) {
	r.Get("/sign-in", a.signIn)
	r.Post("/sign-in", a.signInPost)
	r.Post("/sign-out", a.signOut)
}

// signIn takes the token of a sign-in link, or shows the form.
func (a *Auth) signIn(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	next := localPath(q.Get("next"))
	switch t := q.Get("token"); {
	case t != "":
		a.trade(w, r, t, next, "This link is not valid any more: the server has another token now.")
	case User(r.Context()) == Operator:
		a.redirect(w, r, next)
	default:
		a.form(w, r, SignInForm{Status: http.StatusOK, Next: next})
	}
}

func (a *Auth) signInPost(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
	if err := r.ParseForm(); err != nil {
		a.form(w, r, SignInForm{Status: http.StatusBadRequest, Next: "/", Error: "The form could not be read."})
		return
	}
	a.trade(w, r, strings.TrimSpace(r.PostForm.Get("token")), localPath(r.PostForm.Get("next")), "This is not a token of this server.")
}

// trade gives a session for a token.
func (a *Auth) trade(w http.ResponseWriter, r *http.Request, t, next, refusal string) {
	if !a.validToken(t) {
		a.log.Warn("sign-in refused", "remote", r.RemoteAddr)
		a.form(w, r, SignInForm{Status: http.StatusUnauthorized, Next: next, Error: refusal})
		return
	}
	a.setSession(w, r, t)
	a.redirect(w, r, next)
}

func (a *Auth) signOut(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, &http.Cookie{Name: a.cookie, Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: r.TLS != nil})
	a.redirect(w, r, "/sign-in")
}

func (a *Auth) redirect(w http.ResponseWriter, r *http.Request, to string) {
	private(w)
	http.Redirect(w, r, to, http.StatusSeeOther)
}

func (a *Auth) form(w http.ResponseWriter, r *http.Request, f SignInForm) {
	private(w)
	f.TokenFile = a.cfg.TokenFile
	a.cfg.Page.SignIn(w, r, f)
}

// private keeps the token of a link out of caches and of other sites' logs. (Not
// no-referrer: browsers then send "Origin: null" with the form.)
func private(w http.ResponseWriter) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "same-origin")
}

// localPath is next when it leads to a page of this server, "/" otherwise.
func localPath(next string) string {
	if !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.Contains(next, "\\") {
		return "/"
	}
	for _, c := range next {
		if c < ' ' || c == 0x7f {
			return "/"
		}
	}
	u, err := url.Parse(next)
	if err != nil || u.IsAbs() || u.Host != "" || u.Path == "/sign-in" || u.Path == "/sign-out" {
		return "/"
	}
	return next
}

// plainPage is the form when nobody gives a better one.
type plainPage struct{}

var plainForm = template.Must(template.New("").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>Sign in · ScheduleMesh</title></head>
<body><main><h1>ScheduleMesh</h1>
{{with .Error}}<p role="alert">{{.}}</p>{{end}}
<form method="post" action="/sign-in"><input type="hidden" name="next" value="{{.Next}}">
<p><label>Token <input type="password" name="token" autocomplete="current-password" required autofocus></label> <button>Sign in</button></p></form>
{{with .TokenFile}}<p>The token is in the file <code>{{.}}</code> on the server's machine.</p>{{end}}
</main></body></html>
`))

func (plainPage) SignIn(w http.ResponseWriter, _ *http.Request, f SignInForm) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; form-action 'self'; frame-ancestors 'none'")
	w.WriteHeader(f.Status)
	_ = plainForm.Execute(w, f)
}
