package auth

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
)

const secret = "a-token-of-the-configuration"

type site struct {
	*Auth
	handler http.Handler
	now     time.Time
}

func newSite(t *testing.T, cfg Config) *site {
	t.Helper()
	s := &site{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	cfg.Now = func() time.Time { return s.now }
	if cfg.TokenFile == "" && cfg.Tokens == nil {
		cfg.Tokens = []string{secret}
	}
	if cfg.Addr == "" {
		cfg.Addr = "127.0.0.1:8080"
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.Auth = a
	r := chi.NewRouter()
	r.Use(a.Middleware)
	a.Mount(r)
	r.HandleFunc("/*", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "user="+User(r.Context())) })
	s.handler = r
	return s
}

func (s *site) do(method, target string, change ...func(*http.Request)) *http.Response {
	r := httptest.NewRequest(method, target, nil)
	r.Host = "localhost:8080"
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w.Result()
}

func header(k, v string) func(*http.Request) { return func(r *http.Request) { r.Header.Set(k, v) } }
func host(h string) func(*http.Request)      { return func(r *http.Request) { r.Host = h } }
func remote(a string) func(*http.Request)    { return func(r *http.Request) { r.RemoteAddr = a } }
func bearer(t string) func(*http.Request)    { return header("Authorization", "Bearer "+t) }
func cookie(c *http.Cookie) func(*http.Request) {
	return func(r *http.Request) { r.AddCookie(c) }
}
func form(v url.Values) func(*http.Request) {
	return func(r *http.Request) {
		r.Body = io.NopCloser(strings.NewReader(v.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
}

func text(t *testing.T, res *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (s *site) signedIn(t *testing.T) *http.Cookie {
	t.Helper()
	res := s.do("GET", "/sign-in?token="+s.Token())
	if len(res.Cookies()) != 1 {
		t.Fatalf("the link set %d cookies, want 1", len(res.Cookies()))
	}
	return res.Cookies()[0]
}

func TestWhoIsLetIn(t *testing.T) {
	s := newSite(t, Config{TokenFile: filepath.Join(t.TempDir(), "token"), Tokens: []string{secret}})
	session := s.signedIn(t)
	forged := *session
	forged.Value = "99999999999." + strings.SplitN(session.Value, ".", 2)[1]
	loopback, far := remote("127.0.0.1:5555"), remote("192.0.2.7:5555")
	tests := map[string]struct {
		method, target string
		change         []func(*http.Request)
		status         int
		body           string
	}{
		"bearer token of the file":               {"GET", "/api/v1/pools", []func(*http.Request){bearer(s.Token())}, 200, "user=api"},
		"bearer token of the configuration":      {"GET", "/api/v1/pools", []func(*http.Request){bearer(secret)}, 200, "user=api"},
		"bearer scheme in any case":              {"GET", "/", []func(*http.Request){header("Authorization", "bearer "+secret)}, 200, "user=api"},
		"bearer works on pages":                  {"GET", "/tasks", []func(*http.Request){bearer(secret)}, 200, "user=api"},
		"wrong bearer token":                     {"GET", "/api/v1/pools", []func(*http.Request){bearer(secret + "x")}, 401, `"code":"unauthorized"`},
		"wrong bearer token despite a session":   {"GET", "/api/v1/pools", []func(*http.Request){bearer("nope"), cookie(session)}, 401, `"code":"unauthorized"`},
		"empty bearer token":                     {"GET", "/api/v1/pools", []func(*http.Request){header("Authorization", "Bearer ")}, 401, ""},
		"session":                                {"GET", "/api/v1/pools", []func(*http.Request){cookie(session)}, 200, "user=operator"},
		"forged session":                         {"GET", "/api/v1/pools", []func(*http.Request){cookie(&forged)}, 401, ""},
		"the token itself is not a session":      {"GET", "/api/v1/pools", []func(*http.Request){cookie(&http.Cookie{Name: session.Name, Value: secret})}, 401, ""},
		"API without credentials":                {"GET", "/api/v1/pools", nil, 401, "token is in the file"},
		"page without credentials":               {"GET", "/tasks?pool=a", nil, 303, ""},
		"docs without credentials":               {"GET", "/api/docs", nil, 303, ""},
		"write without credentials":              {"POST", "/tasks/x/cancel", nil, 303, ""},
		"htmx without credentials":               {"GET", "/tasks", []func(*http.Request){header("HX-Request", "true")}, 401, ""},
		"asset":                                  {"GET", "/static/app.css", nil, 200, "user="},
		"something that looks like an asset":     {"GET", "/staticx", nil, 303, ""},
		"healthz on loopback":                    {"GET", "/healthz", []func(*http.Request){loopback}, 200, ""},
		"metrics on IPv6 loopback":               {"GET", "/metrics", []func(*http.Request){remote("[::1]:9")}, 200, ""},
		"metrics from afar":                      {"GET", "/metrics", []func(*http.Request){far}, 401, "unauthorized"},
		"metrics from afar with a token":         {"GET", "/metrics", []func(*http.Request){far, bearer(secret)}, 200, ""},
		"metrics through a proxy on loopback":    {"GET", "/metrics", []func(*http.Request){loopback, header("X-Forwarded-For", "192.0.2.7")}, 401, ""},
		"below metrics":                          {"GET", "/metrics/x", []func(*http.Request){loopback}, 303, ""},
		"session write from the same origin":     {"POST", "/api/v1/tasks", []func(*http.Request){cookie(session), header("Origin", "http://localhost:8080")}, 200, "operator"},
		"session write from another origin":      {"POST", "/api/v1/tasks", []func(*http.Request){cookie(session), header("Origin", "http://evil.example")}, 403, `"code":"cross_origin"`},
		"session write from another port":        {"POST", "/api/v1/tasks", []func(*http.Request){cookie(session), header("Origin", "http://localhost:9999")}, 403, ""},
		"session write, the browser says so":     {"POST", "/tasks/x/cancel", []func(*http.Request){cookie(session), header("Sec-Fetch-Site", "cross-site")}, 403, "another origin"},
		"session read from another site's link":  {"GET", "/tasks", []func(*http.Request){cookie(session), header("Sec-Fetch-Site", "cross-site")}, 200, ""},
		"bearer write from another origin":       {"POST", "/api/v1/tasks", []func(*http.Request){bearer(secret), header("Origin", "http://tool.example")}, 200, "api"},
		"sign-in posted from another origin":     {"POST", "/sign-in", []func(*http.Request){header("Origin", "http://evil.example"), form(url.Values{"token": {secret}})}, 403, ""},
		"Basic credentials of a proxy + session": {"GET", "/", []func(*http.Request){header("Authorization", "Basic eDp5"), cookie(session)}, 200, "operator"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			res := s.do(tt.method, tt.target, tt.change...)
			body := text(t, res)
			if res.StatusCode != tt.status || !strings.Contains(body, tt.body) {
				t.Errorf("got %d %q, want %d with %q", res.StatusCode, body, tt.status, tt.body)
			}
		})
	}
}

func TestRefusalOfTheAPIIsAProblemAndNamesTheScheme(t *testing.T) {
	res := newSite(t, Config{}).do("GET", "/api/v1/tasks")
	if got := res.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("content type %q", got)
	}
	if !strings.HasPrefix(res.Header.Get("WWW-Authenticate"), "Bearer") {
		t.Errorf("WWW-Authenticate %q", res.Header.Get("WWW-Authenticate"))
	}
	var p struct {
		Type, Title, Detail, Code string
		Status                    int
	}
	if err := json.NewDecoder(res.Body).Decode(&p); err != nil {
		t.Fatal(err)
	}
	if p.Code != "unauthorized" || p.Status != 401 || p.Title == "" || p.Type == "" || !strings.Contains(p.Detail, "Authorization: Bearer") {
		t.Errorf("%+v", p)
	}
}

func TestHosts(t *testing.T) {
	tests := map[string]struct {
		addr  string
		hosts []string
		host  string
		ok    bool
	}{
		"localhost":                            {"127.0.0.1:8080", nil, "localhost:8080", true},
		"localhost on a forwarded port":        {"127.0.0.1:8080", nil, "localhost:9000", true},
		"a name below localhost":               {"127.0.0.1:8080", nil, "mesh.localhost:8080", true},
		"upper case and a dot at the end":      {"127.0.0.1:8080", nil, "LocalHost.:8080", true},
		"IPv4 loopback":                        {"127.0.0.1:8080", nil, "127.0.0.1:8080", true},
		"IPv6 loopback":                        {"127.0.0.1:8080", nil, "[::1]:8080", true},
		"IPv6 loopback without a port":         {"127.0.0.1:80", nil, "[::1]", true},
		"a rebound name":                       {"127.0.0.1:8080", nil, "evil.example:8080", false},
		"a name that ends like ours":           {"127.0.0.1:8080", nil, "evil-localhost", false},
		"a name that starts like ours":         {"127.0.0.1:8080", nil, "localhost.evil.example", false},
		"no host":                              {"127.0.0.1:8080", nil, "", false},
		"nonsense":                             {"127.0.0.1:8080", nil, "a:b:c", false},
		"another address":                      {"127.0.0.1:8080", nil, "10.0.0.1:8080", false},
		"the listening address":                {"10.0.0.1:8080", nil, "10.0.0.1:8080", true},
		"the listening name":                   {"mesh:8080", nil, "mesh:8080", true},
		"any address when listening on all":    {"0.0.0.0:8080", nil, "10.0.0.1:8080", true},
		"any name when listening on all":       {"0.0.0.0:8080", nil, "evil.example", false},
		"IPv6 when listening on all":           {":8080", nil, "[fe80::1]:8080", true},
		"configured name on any port":          {"0.0.0.0:8080", []string{"mesh.example.com"}, "mesh.example.com", true},
		"configured name with port":            {"0.0.0.0:8080", []string{"mesh.example.com:443"}, "mesh.example.com:443", true},
		"configured name with port, other one": {"0.0.0.0:8080", []string{"mesh.example.com:443"}, "mesh.example.com:80", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, Config{Addr: tt.addr, Hosts: tt.hosts})
			res := s.do("GET", "/api/v1/pools", host(tt.host), bearer(secret))
			want := http.StatusOK
			if !tt.ok {
				want = http.StatusMisdirectedRequest
			}
			if res.StatusCode != want {
				t.Errorf("Host %q: %d, want %d", tt.host, res.StatusCode, want)
			}
		})
	}
	for _, bad := range []string{"http://mesh", "*.example.com", "mesh/x"} {
		if _, err := New(Config{Tokens: []string{secret}, Hosts: []string{bad}}); err == nil {
			t.Errorf("allowed host %q was accepted", bad)
		}
	}
}

func TestSignInLinkTradesTheTokenForASession(t *testing.T) {
	s := newSite(t, Config{})
	res := s.do("GET", strings.TrimPrefix(s.SignInURL("http://localhost:8080/"), "http://localhost:8080")+"&next=/tasks?pool=a")
	if res.StatusCode != 303 || res.Header.Get("Location") != "/tasks?pool=a" {
		t.Fatalf("%d to %q", res.StatusCode, res.Header.Get("Location"))
	}
	c := res.Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || strings.Contains(c.Value, secret) || c.Secure {
		t.Errorf("cookie %+v", c)
	}
	if res.Header.Get("Cache-Control") != "no-store" {
		t.Error("the answer to a link with a token may be cached")
	}
	if got := text(t, s.do("GET", "/", cookie(c))); got != "user=operator" {
		t.Errorf("with the cookie: %q", got)
	}
	if res := s.do("GET", "/sign-in?next=/pools", cookie(c)); res.Header.Get("Location") != "/pools" {
		t.Errorf("who is signed in already is not sent on: %d", res.StatusCode)
	}
}

func TestSessionEnds(t *testing.T) {
	s := newSite(t, Config{})
	c := s.signedIn(t)
	s.now = s.now.Add(SessionLife - time.Second)
	if res := s.do("GET", "/api/v1/x", cookie(c)); res.StatusCode != 200 {
		t.Errorf("just before its end: %d", res.StatusCode)
	}
	s.now = s.now.Add(time.Second)
	if res := s.do("GET", "/api/v1/x", cookie(c)); res.StatusCode != 401 {
		t.Errorf("at its end: %d", res.StatusCode)
	}
}

func TestSessionOfAnotherTokenIsWorthNothing(t *testing.T) {
	c := newSite(t, Config{}).signedIn(t)
	other := newSite(t, Config{Tokens: []string{"quite-another-token-here"}})
	c.Name = other.cookie
	if res := other.do("GET", "/api/v1/x", cookie(c)); res.StatusCode != 401 {
		t.Errorf("%d", res.StatusCode)
	}
}

func TestDeploymentsOnOneHostHaveTheirOwnCookies(t *testing.T) {
	if a, b := newSite(t, Config{}), newSite(t, Config{Tokens: []string{"quite-another-token-here"}}); a.cookie == b.cookie {
		t.Errorf("both use %q", a.cookie)
	}
}

func TestSignInForm(t *testing.T) {
	s := newSite(t, Config{})
	if res := s.do("GET", "/sign-in?next=/tasks"); res.StatusCode != 200 || !strings.Contains(text(t, res), `value="/tasks"`) {
		t.Errorf("form: %d", res.StatusCode)
	}
	res := s.do("POST", "/sign-in", form(url.Values{"token": {" " + secret + "\n"}, "next": {"/pools"}}))
	if res.StatusCode != 303 || res.Header.Get("Location") != "/pools" || len(res.Cookies()) != 1 {
		t.Errorf("right token: %d %v", res.StatusCode, res.Header)
	}
	res = s.do("POST", "/sign-in", form(url.Values{"token": {"wrong"}}))
	if body := text(t, res); res.StatusCode != 401 || len(res.Cookies()) != 0 || !strings.Contains(body, "not a token") {
		t.Errorf("wrong token: %d %q", res.StatusCode, body)
	}
	res = s.do("POST", "/sign-in", form(url.Values{"token": {strings.Repeat("x", 1<<20)}}))
	if res.StatusCode != 400 {
		t.Errorf("a megabyte of token: %d", res.StatusCode)
	}
	res = s.do("POST", "/sign-out", cookie(s.signedIn(t)))
	if res.StatusCode != 303 || res.Cookies()[0].MaxAge >= 0 {
		t.Errorf("sign-out: %d %v", res.StatusCode, res.Cookies())
	}
}

func TestNextLeadsNowhereElse(t *testing.T) {
	tests := map[string]string{
		"/tasks?a=b": "/tasks?a=b", "": "/", "tasks": "/", "//evil.example": "/", "/\\evil.example": "/", "\\\\evil": "/",
		"https://evil.example/": "/", "/\tx": "/", "/sign-out": "/", "/sign-in?token=x": "/", "javascript:alert(1)": "/", "/a//b": "/a//b", "/%zz": "/",
	}
	for next, want := range tests {
		if got := localPath(next); got != want {
			t.Errorf("next %q leads to %q, want %q", next, got, want)
		}
	}
}

func TestRedirectToSignInRemembersThePage(t *testing.T) {
	res := newSite(t, Config{}).do("GET", "/tasks?pool=a&x=1")
	if got, want := res.Header.Get("Location"), "/sign-in?next=%2Ftasks%3Fpool%3Da%26x%3D1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestTokenFileIsMadeOnceForItsOwnerOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "token")
	tokens := make([]string, 8)
	var wg sync.WaitGroup
	for i := range tokens {
		wg.Go(func() {
			a, err := New(Config{TokenFile: path})
			if err != nil {
				t.Error(err)
				return
			}
			tokens[i] = a.Token()
		})
	}
	wg.Wait()
	for _, got := range tokens {
		if got != tokens[0] || len(got) < 40 {
			t.Errorf("servers that start at once disagree: %q", tokens)
			break
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestUnusableTokensAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]Config{
		"empty file":      {TokenFile: path},
		"short token":     {Tokens: []string{"secret"}},
		"unprintable":     {Tokens: []string{"0123456789\x00abcdefgh"}},
		"none at all":     {},
		"broken address":  {Tokens: []string{secret}, Addr: "nonsense"},
		"unwritable path": {TokenFile: "/proc/nowhere/token"},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func BenchmarkMiddlewareBearer(b *testing.B) {
	a, _ := New(Config{Tokens: []string{secret}, Addr: "127.0.0.1:8080"})
	h := a.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r := httptest.NewRequest("POST", "/api/v1/tasks", nil)
	r.Host = "127.0.0.1:8080"
	r.Header.Set("Authorization", "Bearer "+secret)
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(nil, r)
	}
}
