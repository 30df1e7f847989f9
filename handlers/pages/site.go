package pages

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/a-h/templ"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/schedulemesh/schedulemesh/static"
	"github.com/schedulemesh/schedulemesh/web"
)

// contentPolicy allows nothing but our own files: no inline script or style anywhere.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// maxForm is the largest form that is read, in bytes.
const maxForm = 16 << 20

type site struct {
	source  Source
	actions Actions
	live    Live
	o       Options
}

// New serves the dashboard at the root, its assets under static.Prefix and the live stream at /live.
func New(source Source, actions Actions, live Live, o Options) http.Handler {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.PageSize <= 0 {
		o.PageSize = 50
	}
	if o.Quiet <= 0 {
		o.Quiet = 400 * time.Millisecond
	}
	if o.Heartbeat <= 0 {
		o.Heartbeat = 15 * time.Second
	}
	s := &site{source, actions, live, o}
	guard := http.NewCrossOriginProtection()
	guard.SetDenyHandler(http.HandlerFunc(s.crossOrigin))

	r := chi.NewRouter()
	r.Use(middleware.GetHead, s.rescue, guard.Handler, limitForms)
	r.NotFound(s.noSuchPage)
	r.MethodNotAllowed(s.wrongMethod)
	r.Handle(static.Prefix+"*", static.Handler())
	r.Get("/favicon.ico", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, static.URL("icon.svg"), http.StatusFound)
	})
	r.Get("/live", s.stream)
	r.Get("/", s.overview)
	r.Get("/jump", s.jump)
	r.Get("/events", s.events)
	r.Route("/tasks", s.taskRoutes)
	r.Route("/pools", s.poolRoutes)
	r.Route("/policy", s.policyRoutes)
	r.Get("/what-if", s.whatIf)
	r.Post("/what-if", s.whatIf)
	r.Route("/preemptions", s.preemptionRoutes)
	r.Route("/agents", s.agentRoutes)
	r.Route("/nodes", s.nodeRoutes)
	r.Route("/clusters", s.clusterRoutes)
	r.Route("/jobs", s.jobRoutes)
	return r
}

func limitForms(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		}
		next.ServeHTTP(w, r)
	})
}

// rescue turns a panic into a page and a line in the log.
func (s *site) rescue(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v == http.ErrAbortHandler {
				panic(v)
			}
			ref := reference()
			s.o.Logger.ErrorContext(r.Context(), "a page panicked", "path", r.URL.Path, "panic", v, "reference", ref, "stack", string(debug.Stack()))
			s.problem(w, r, internalProblem(ref))
		}()
		next.ServeHTTP(w, r)
	})
}

// namespace is the one a request is about.
func namespace(r *http.Request) string {
	ns := strings.ToValidUTF8(strings.TrimSpace(r.URL.Query().Get("namespace")), "")
	if ns == "" {
		return web.DefaultNamespace
	}
	return ns
}

// param is a piece of the path, unescaped once.
func param(r *http.Request, name string) string {
	v := chi.URLParam(r, name)
	if r.URL.RawPath != "" { // chi routed on the escaped path
		if u, err := url.PathUnescape(v); err == nil {
			return u
		}
	}
	return v
}

// frame is the page around what a handler shows, without what must be asked for.
func (s *site) frame(r *http.Request, section, title string) web.Page {
	self := *r.URL
	self.Host, self.Scheme = "", ""
	q := self.Query()
	for k, v := range q {
		if strings.Join(v, "") == "" || k == "namespace" && v[0] == web.DefaultNamespace {
			q.Del(k)
		}
	}
	self.RawQuery = q.Encode()
	scheme := "http"
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	return web.Page{
		Title: title, Section: section, Namespace: namespace(r), User: User(r.Context()), SignOut: s.o.SignOut,
		Now: s.o.Now(), Self: &self, Origin: scheme + "://" + r.Host, Version: s.o.Version,
	}
}

// page is frame with the figures of the navigation and the messages that wait.
func (s *site) page(w http.ResponseWriter, r *http.Request, section, title string) (web.Page, error) {
	p := s.frame(r, section, title)
	f, err := s.source.Frame(r.Context(), p.Namespace)
	if err != nil {
		return p, err
	}
	known := false
	for _, ns := range f.Namespaces {
		known = known || ns == p.Namespace
	}
	if !known {
		f.Namespaces = append(f.Namespaces, p.Namespace)
	}
	p.Frame = f
	if wants(r) == "" {
		p.Flashes = takeFlashes(w, r)
	}
	return p, nil
}

// show answers with a page, or with the one fragment of it that htmx asks for.
func (s *site) show(w http.ResponseWriter, r *http.Request, status int, p web.Page, c templ.Component) {
	ctx := web.WithPage(r.Context(), p)
	var b bytes.Buffer
	var err error
	if id := wants(r); id != "" {
		err = templ.RenderFragments(ctx, &b, c, id)
	}
	if err == nil && b.Len() == 0 {
		err = c.Render(ctx, &b)
	}
	if err != nil {
		if ctx.Err() == nil {
			s.o.Logger.ErrorContext(ctx, "a page could not be drawn", "path", r.URL.Path, "error", err)
		}
		http.Error(w, "The page could not be drawn; the server's log says why.", http.StatusInternalServerError)
		return
	}
	send(w, status, b.Bytes())
}

// wants is the id of the fragment that is asked for, "" for the whole page.
func wants(r *http.Request) string {
	h := r.Header
	if h.Get("HX-Request") != "true" || h.Get("HX-Boosted") == "true" || h.Get("HX-History-Restore-Request") == "true" {
		return ""
	}
	return h.Get("HX-Target")
}

func send(w http.ResponseWriter, status int, html []byte) {
	h := w.Header()
	secure(h)
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "HX-Request, HX-Target, HX-Boosted, HX-History-Restore-Request")
	w.WriteHeader(status)
	_, _ = w.Write(html) // the browser may have gone
}

func secure(h http.Header) {
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
}

// draw is what most pages do: read, then show.
func (s *site) draw(w http.ResponseWriter, r *http.Request, section, title string, read func(ctx context.Context, p web.Page) (templ.Component, error)) {
	p, err := s.page(w, r, section, title)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if wants(r) == "nav" { // its figures are in the frame; the rest of the page need not be read for them
		s.show(w, r, http.StatusOK, p, web.Layout(p))
		return
	}
	c, err := read(r.Context(), p)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.show(w, r, http.StatusOK, p, c)
}

// back is where a form says to return to, when that is a page of ours; otherwise the page given.
func back(r *http.Request, otherwise string) string {
	to := r.PostFormValue("back")
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.ContainsAny(to, "\\\r\n\t") {
		return otherwise
	}
	return to
}

// done answers a form: says how it went and leads on. Only problems that a form cannot mend get a page of their own.
func (s *site) done(w http.ResponseWriter, r *http.Request, err error, text, to string) {
	kind := "ok"
	if err != nil {
		if status(err) == http.StatusNotFound {
			s.fail(w, r, err)
			return
		}
		kind, text = "bad", s.explain(r, err)
	}
	addFlash(w, r, web.Flash{Kind: kind, Text: text})
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// explain is an error as a sentence for the person who caused it; one they did not cause is logged.
func (s *site) explain(r *http.Request, err error) string {
	var c Coded
	if errors.As(err, &c) && status(err) < 500 {
		return c.Error()
	}
	ref := reference()
	s.o.Logger.ErrorContext(r.Context(), "an action failed", "path", r.URL.Path, "error", err, "reference", ref)
	if errors.As(err, &c) && status(err) == http.StatusServiceUnavailable {
		return c.Error()
	}
	return "Something went wrong on our side; the log has it under " + ref + ". Look whether it was done before you try again."
}

// formErrors takes what an action refused into a form's errors: by field where the form has it, else on top.
func (s *site) formErrors(r *http.Request, err error, fields []string) web.Errors {
	e := web.Errors{}
	var c Coded
	if errors.As(err, &c) && status(err) < 500 && len(c.Fields()) > 0 {
		var rest []string
		for field, message := range c.Fields() {
			if name := formField(field, fields); name != "" {
				e.Add(name, "%s", message)
			} else {
				rest = append(rest, field+": "+message)
			}
		}
		if len(rest) > 0 {
			slices.Sort(rest)
			e.Add("", "%s", strings.Join(rest, " "))
		}
		return e
	}
	e.Add("", "%s", s.explain(r, err))
	return e
}

// formField is the form's own field for a name of the REST API: resources.cpu is cpu, entry.method is
// entry_method, label_preemption_rules.tier.premium is label_preemption_rules; "" when it has none.
func formField(name string, fields []string) string {
	whole, _, _ := strings.Cut(name, ".")
	_, last, _ := strings.Cut(name, "resources.")
	for _, try := range []string{name, strings.ReplaceAll(name, ".", "_"), last, whole} {
		if try != "" && slices.Contains(fields, try) {
			return try
		}
	}
	return ""
}
