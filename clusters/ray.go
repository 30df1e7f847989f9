package clusters

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"
)

// Ray speaks to the dashboard of one cluster. It is safe for concurrent use. Its errors are
// *CallError, or ErrNoJob.
type Ray struct {
	base    string
	token   func() (string, error)
	timeout time.Duration
	calls   *http.Client // bounded connections
	streams *http.Client // of those that stay open: logs and packages
	agents  *agentReach
	gate    gate // nil: everything goes through
}

// RayOptions are the settings of a client; the zero value is good.
type RayOptions struct {
	Timeout time.Duration // of one small call; 10 s when zero, submitting gets three times as long
}

// gate is asked before a call and told what came of it.
type gate interface {
	allow() error
	note(broken bool)
}

const (
	dialTimeout   = 3 * time.Second
	stallTimeout  = 30 * time.Second // of a transfer on which nothing moves
	maxConns      = 16               // to one dashboard, for small calls
	maxAnswer     = 8 << 20          // bytes of a small answer
	maxErrorBody  = 16 << 10         // bytes of an answer that is an error; a traceback of Ray ends with what matters
	shownOfBodies = 200              // bytes in a sentence
)

// ErrNoJob says that Ray does not know a job.
var ErrNoJob = errors.New("the cluster does not know this job")

// CallError says what went wrong with one request to a dashboard.
type CallError struct {
	Op     string // what was asked, such as "submit"
	URL    string
	Status int    // of HTTP; 0: there was no answer
	Sent   bool   // the request was, or may have been, written; false only when certainly nothing was
	Body   string // the beginning of an answer that is an error
	Err    error
}

func (e *CallError) Error() string { return fmt.Sprintf("%s: %s: %v", e.Op, e.URL, e.Err) }

// Unwrap gives the cause.
func (e *CallError) Unwrap() error { return e.Err }

// NewRay makes a client of the dashboard at base, an http or https URL. token is asked before each
// request, so that it may change; nil, or an empty token, sends none.
func NewRay(base string, token func() (string, error), o RayOptions) *Ray {
	if token == nil {
		token = func() (string, error) { return "", nil }
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	return &Ray{
		base: strings.TrimRight(base, "/"), token: token, timeout: o.Timeout,
		calls: httpClient(maxConns), streams: httpClient(0), agents: &agentReach{},
	}
}

func httpClient(conns int) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout:   2 * dialTimeout,
			ResponseHeaderTimeout: 2 * stallTimeout, // of those without a deadline of their own
			MaxConnsPerHost:       conns,
			MaxIdleConnsPerHost:   4,
			IdleConnTimeout:       30 * time.Second, // before the dashboard closes them, which is 75 s
			DisableCompression:    true,             // of ranges, and of what is read while it is made
		},
		// A request is not sent twice, and a token to nobody else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Close ends the connections that nobody uses.
func (r *Ray) Close() {
	r.calls.CloseIdleConnections()
	r.streams.CloseIdleConnections()
}

// Version is what a dashboard says of itself.
type Version struct {
	API     string `json:"version"`
	Ray     string `json:"ray_version"`
	Session string `json:"session_name"` // another one means another life of the head
}

// Version asks for the version of Ray and the session of the head.
func (r *Ray) Version(ctx context.Context) (Version, error) {
	var v Version
	return v, r.get(ctx, "version", "/api/version", &v)
}

// request is one request as send takes it.
type request struct {
	op, method, path string
	url              string // in place of the dashboard's own and path
	body             io.Reader
	size             int64
	header           http.Header
	client           *http.Client // calls when nil
}

// send makes a request. Any answer but 2xx is an error, and its body closed.
func (r *Ray) send(ctx context.Context, q request) (*http.Response, error) {
	target := q.url
	if target == "" {
		target = r.base + q.path
	}
	fail := &CallError{Op: q.op, URL: target}
	if r.gate != nil {
		if err := r.gate.allow(); err != nil {
			fail.Err = err
			return nil, fail
		}
	}
	token, err := r.token()
	if err != nil {
		fail.Err = fmt.Errorf("the cluster's token cannot be read: %w", err)
		return nil, fail
	}
	var sent atomic.Bool // from the moment a connection is there on, it may have been written
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	req, err := http.NewRequestWithContext(traced, q.method, target, q.body)
	if err != nil {
		fail.Err = err
		return nil, fail
	}
	// Without GetBody, net/http has nothing to send a second time.
	req.ContentLength, req.GetBody = q.size, nil
	for name, values := range q.header {
		req.Header[name] = values
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := q.client
	if client == nil {
		client = r.calls
	}
	resp, err := client.Do(req)
	fail.Sent = sent.Load()
	if err != nil {
		if ctx.Err() == nil || errors.Is(context.Cause(ctx), errTook) {
			r.note(true)
		}
		fail.Err = noAnswer(ctx, err)
		return nil, fail
	}
	fail.Status = resp.StatusCode
	r.note(resp.StatusCode == http.StatusBadGateway || resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusGatewayTimeout)
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	fail.Body = strings.ToValidUTF8(string(body), "\uFFFD")
	fail.Err = refusal(resp, fail.Body, token != "")
	return nil, fail
}

func (r *Ray) note(broken bool) {
	if r.gate != nil {
		r.gate.note(broken)
	}
}

// errTook ends a call that took too long: a fault of the cluster's, unlike a caller who went away.
var errTook = errors.New("it took too long")

// bounded gives a context that ends after d.
func bounded(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("no answer within %v: %w", d, errTook))
}

// noAnswer says why there was none, without the URL, which CallError has.
func noAnswer(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return fmt.Errorf("no answer: %w", err)
}

// refusal says what an answer other than 2xx means.
func refusal(resp *http.Response, body string, withToken bool) error {
	switch code := resp.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		if withToken {
			return fmt.Errorf("the dashboard refuses the token (%d): check what token of this cluster names", code)
		}
		return fmt.Errorf("the dashboard needs a token (%d): set token of this cluster to {env: NAME} or {file: PATH}", code)
	case code >= 300 && code < 400:
		return fmt.Errorf("the dashboard redirects to %q: give the address it is really at", resp.Header.Get("Location"))
	case code == http.StatusRequestEntityTooLarge:
		return errors.New("larger than the dashboard takes (413)")
	default:
		return fmt.Errorf("answered %d: %s", code, lastLine(body))
	}
}

// lastLine gives what matters of an error that Ray answers: it is a traceback, sometimes one within
// another, and the last line says what is wrong.
func lastLine(body string) string {
	lines := strings.Split(strings.TrimSpace(body), "\n")
	if !strings.HasPrefix(lines[0], "Traceback") {
		return shorten(body)
	}
	for i := len(lines) - 1; i >= 0; i-- {
		if line := strings.TrimSpace(lines[i]); strings.Trim(line, ".") != "" {
			return shorten(line)
		}
	}
	return shorten(body)
}

// shorten makes a piece of an answer fit into a sentence.
func shorten(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Join(strings.FieldsFunc(s, func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) }), " ")
	if s == "" {
		return "nothing"
	}
	if len(s) <= shownOfBodies {
		return s
	}
	cut := shownOfBodies
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// get asks for a small JSON document.
func (r *Ray) get(ctx context.Context, op, path string, into any) error {
	return r.ask(ctx, r.timeout, request{op: op, method: http.MethodGet, path: path}, into)
}

// post sends a small JSON document (nil: none) and reads another.
func (r *Ray) post(ctx context.Context, op, path string, timeout time.Duration, body []byte, into any) error {
	q := request{op: op, method: http.MethodPost, path: path}
	if body != nil {
		q.body, q.size, q.header = bytes.NewReader(body), int64(len(body)), http.Header{"Content-Type": {"application/json"}}
	}
	return r.ask(ctx, timeout, q, into)
}

func (r *Ray) ask(ctx context.Context, timeout time.Duration, q request, into any) error {
	ctx, cancel := bounded(ctx, timeout)
	defer cancel()
	resp, err := r.send(ctx, q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		err = fmt.Errorf("the answer was cut off: %w", err)
		r.note(true)
	case len(body) > maxAnswer:
		err = fmt.Errorf("the answer is longer than %d MiB", maxAnswer>>20)
	default:
		if json.Unmarshal(body, into) != nil {
			err = notJSON(body)
		}
	}
	if err != nil {
		return &CallError{Op: q.op, URL: resp.Request.URL.String(), Status: resp.StatusCode, Sent: true, Err: err}
	}
	return nil
}

func notJSON(body []byte) error {
	return fmt.Errorf("answered something that is not what Ray says here: %s", shorten(string(body[:min(len(body), 4*shownOfBodies)])))
}
