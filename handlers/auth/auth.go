// Package auth decides who may speak to the server: a token in a file of mode
// 0600, sent as a bearer token by programs and traded for a session cookie by
// browsers; and which host names it answers for, so that a page of another site
// cannot reach it through a rebound DNS name.
//
// It knows HTTP only. It must not know what the requests it lets through do.
package auth

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
)

// SessionLife is how long a browser stays signed in.
const SessionLife = 30 * 24 * time.Hour

// minToken is the least length of a configured token: shorter ones can be guessed.
const minToken = 16

// Config says whom to let in. One of TokenFile and Tokens is required.
type Config struct {
	// TokenFile holds the first token; it is created (0600) with a random one when absent.
	TokenFile string
	// Tokens are further tokens, at least 16 characters each.
	Tokens []string
	// Addr is the listening address, host:port; its host is always allowed as Host header.
	Addr string
	// Hosts are further names the server answers for, "name" (any port) or "name:port".
	Hosts []string
	// Public are path prefixes that need no token; default "/static/" and "/favicon.ico".
	Public []string
	// Page renders the sign-in form; nil means a plain one.
	Page   SignInPage
	Logger *slog.Logger
	// Now is the clock, nil means time.Now.
	Now func() time.Time
}

// SignInPage renders the page on which a browser gives its token.
type SignInPage interface {
	// SignIn answers with the form. It must set the status itself, and it must not
	// link to anything that is not public.
	SignIn(w http.ResponseWriter, r *http.Request, f SignInForm)
}

// SignInForm is what the sign-in page shows. The form posts "token" and "next" to /sign-in.
type SignInForm struct {
	Status    int    // HTTP status to answer with
	Next      string // where to go afterwards, a local path
	Error     string // why the last try failed, "" for none
	TokenFile string // where the token can be read on the server's machine, "" when it is not in a file
}

// Auth lets requests in.
type Auth struct {
	cfg     Config
	tokens  []token
	hosts   allowList
	cookie  string
	origins *http.CrossOriginProtection
	log     *slog.Logger
	now     func() time.Time
}

type token struct {
	value string
	hash  [sha256.Size]byte
}

// New reads or makes the token file.
func New(cfg Config) (*Auth, error) {
	a := &Auth{cfg: cfg, origins: http.NewCrossOriginProtection(), log: cfg.Logger, now: cfg.Now}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	if a.now == nil {
		a.now = time.Now
	}
	if a.cfg.Public == nil {
		a.cfg.Public = []string{"/static/", "/favicon.ico"}
	}
	if a.cfg.Page == nil {
		a.cfg.Page = plainPage{}
	}
	if cfg.TokenFile != "" {
		t, err := readOrCreateToken(cfg.TokenFile, a.log)
		if err != nil {
			return nil, err
		}
		a.add(t)
	}
	for i, t := range cfg.Tokens {
		t = strings.TrimSpace(t)
		if err := checkToken(t); err != nil {
			return nil, fmt.Errorf("token %d of the configuration: %w", i+1, err)
		}
		a.add(t)
	}
	if len(a.tokens) == 0 {
		return nil, errors.New("auth: no token: name a token file or give tokens")
	}
	hosts, err := newAllowList(cfg.Addr, cfg.Hosts)
	if err != nil {
		return nil, err
	}
	a.hosts = hosts
	// Browsers share cookies between the ports of a host: the name tells deployments apart.
	sum := sha256.Sum256([]byte("schedulemesh cookie name\n" + a.tokens[0].value))
	a.cookie = "schedulemesh_" + hex.EncodeToString(sum[:4])
	return a, nil
}

func (a *Auth) add(t string) {
	a.tokens = append(a.tokens, token{value: t, hash: sha256.Sum256([]byte(t))})
}

// Token is the first token: the one of the file, if there is one.
func (a *Auth) Token() string { return a.tokens[0].value }

// SignInURL is the link that signs a browser in; base is the server's URL.
func (a *Auth) SignInURL(base string) string {
	return strings.TrimSuffix(base, "/") + "/sign-in?token=" + url.QueryEscape(a.Token())
}

// validToken compares in constant time, with every token.
func (a *Auth) validToken(t string) bool {
	sum := sha256.Sum256([]byte(t))
	found := 0
	for i := range a.tokens {
		found |= subtle.ConstantTimeCompare(sum[:], a.tokens[i].hash[:])
	}
	return found == 1
}

// session is what the cookie holds: when it ends, signed with the token. The
// token itself cannot be had from it, and a new token ends all sessions.
func session(t string, ends int64) string {
	end := strconv.FormatInt(ends, 10)
	mac := hmac.New(sha256.New, []byte(t))
	mac.Write([]byte("schedulemesh session v1\n" + end))
	return end + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func (a *Auth) validSession(value string) bool {
	end, _, ok := strings.Cut(value, ".")
	ends, err := strconv.ParseInt(end, 10, 64)
	if !ok || err != nil || a.now().Unix() >= ends {
		return false
	}
	found := 0
	for i := range a.tokens {
		found |= subtle.ConstantTimeCompare([]byte(value), []byte(session(a.tokens[i].value, ends)))
	}
	return found == 1
}

func (a *Auth) setSession(w http.ResponseWriter, r *http.Request, t string) {
	ends := a.now().Add(SessionLife)
	http.SetCookie(w, &http.Cookie{
		Name: a.cookie, Value: session(t, ends.Unix()), Path: "/", Expires: ends,
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: r.TLS != nil,
	})
}

// Who a request is from, for events.
const (
	Operator = "operator" // a browser with a session
	API      = "api"      // a program with a bearer token
)

type userKey struct{}

// User is who asks: Operator, API, or "" outside of a request that was let in.
func User(ctx context.Context) string {
	u, _ := ctx.Value(userKey{}).(string)
	return u
}

// WithUser returns a context that says who asks.
func WithUser(ctx context.Context, user string) context.Context {
	return context.WithValue(ctx, userKey{}, user)
}

// Middleware lets in who may come in. Requests for a host that is not ours are
// answered 421, without credentials 401 (or a redirect to the sign-in page), and
// writes that a browser sends from another origin 403.
func (a *Auth) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.hosts.allows(r) {
			a.refuse(w, r, problem.New("misdirected_request", fmt.Sprintf(
				"this server does not answer for the host %q; add it to the allowed hosts in the server's configuration, or use %s", r.Host, a.hosts.suggestion())))
			return
		}
		if bearer, ok := bearerToken(r); ok {
			if !a.validToken(bearer) {
				a.unauthorized(w, r, "the bearer token is not valid")
				return
			}
			next.ServeHTTP(w, r.WithContext(WithUser(r.Context(), API)))
			return
		}
		// From here on it may be a browser: its cookie comes along on its own.
		if err := a.origins.Check(r); err != nil {
			a.refuse(w, r, problem.New("cross_origin", "this write was sent by a page of another origin; send a bearer token instead of the cookie"))
			return
		}
		if c, err := r.Cookie(a.cookie); err == nil && a.validSession(c.Value) {
			next.ServeHTTP(w, r.WithContext(WithUser(r.Context(), Operator)))
			return
		}
		if a.public(r) {
			next.ServeHTTP(w, r)
			return
		}
		a.unauthorized(w, r, "no credentials came with the request")
	})
}

func bearerToken(r *http.Request) (string, bool) {
	scheme, t, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return "", false
	}
	return strings.TrimSpace(t), true
}

func (a *Auth) public(r *http.Request) bool {
	switch r.URL.Path {
	case "/sign-in":
		return true
	case "/healthz", "/readyz", "/metrics":
		return fromLoopback(r)
	}
	for _, p := range a.cfg.Public {
		if r.URL.Path == p || strings.HasSuffix(p, "/") && strings.HasPrefix(r.URL.Path, p) {
			return true
		}
	}
	return false
}

// fromLoopback is false behind a proxy, whoever it speaks for.
func fromLoopback(r *http.Request) bool {
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if r.Header.Get(h) != "" {
			return false
		}
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// forPrograms reports whether the caller wants an error as JSON rather than a page.
func forPrograms(r *http.Request) bool {
	switch p := r.URL.Path; {
	case p == "/api/docs":
		return false
	case p == "/healthz", p == "/readyz", p == "/metrics":
		return true
	default:
		return p == "/api" || strings.HasPrefix(p, "/api/")
	}
}

func (a *Auth) unauthorized(w http.ResponseWriter, r *http.Request, why string) {
	if forPrograms(r) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="schedulemesh"`)
		problem.Write(w, problem.New("unauthorized", why+"; send `Authorization: Bearer <token>`"+a.whereTokenIs()))
		return
	}
	target := "/sign-in"
	if r.Method == http.MethodGet && r.URL.Path != "/" {
		target += "?next=" + url.QueryEscape(r.URL.RequestURI())
	}
	w.Header().Set("Cache-Control", "no-store")
	if r.Header.Get("HX-Request") != "" { // htmx would swap the sign-in page into the middle of this one
		w.Header().Set("HX-Redirect", "/sign-in")
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	http.Redirect(w, r, target, http.StatusSeeOther)
}

func (a *Auth) whereTokenIs() string {
	if a.cfg.TokenFile == "" {
		return " with a token from the server's configuration"
	}
	return "; the token is in the file " + a.cfg.TokenFile + " on the server's machine"
}

func (a *Auth) refuse(w http.ResponseWriter, r *http.Request, p *problem.Problem) {
	if forPrograms(r) {
		problem.Write(w, p)
		return
	}
	http.Error(w, p.Title+": "+p.Detail, p.Status)
}
