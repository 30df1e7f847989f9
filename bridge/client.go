package bridge

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client is a Bridge to a sidecar over HTTP.
type Client struct {
	base   string
	token  string
	http   *http.Client
	silent time.Duration // of the event stream, until it counts as broken
}

var _ Bridge = (*Client)(nil)

// eventSilence is three of the sidecar's heartbeats.
const eventSilence = 15 * time.Second

// slack is what a call may take beyond the time the sidecar was given for it. A sidecar that does not
// answer then does not answer at all.
const slack = 15 * time.Second

// Dial makes a client for "unix:/path/to/socket" or "http://host:port" with its bearer token. It does
// not connect yet: Hello does.
func Dial(address string, token ...string) (*Client, error) {
	c := &Client{silent: eventSilence}
	if len(token) > 0 {
		c.token = token[0]
	}
	// Many calls wait at once (every launch does), so idle connections are kept generously.
	transport := &http.Transport{
		MaxIdleConns: 256, MaxIdleConnsPerHost: 256, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
	}
	if path, ok := strings.CutPrefix(address, "unix:"); ok && path != "" {
		c.base = "http://sidecar"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
	} else {
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, errf(CodeBadRequest, "%q is neither unix:/path nor http://host:port", address)
		}
		if c.token == "" {
			return nil, errf(CodeBadRequest, "%s needs a token", address)
		}
		c.base = strings.TrimSuffix(address, "/")
		transport.DialContext = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	c.http = &http.Client{Transport: transport}
	return c, nil
}

// Close implements Bridge.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// Hello implements Bridge.
func (c *Client) Hello(ctx context.Context) (Hello, error) {
	h, err := get[Hello](ctx, c, "hello", nil)
	if err == nil && h.Protocol != Protocol {
		return h, errf(CodeUnavailable, "the sidecar speaks protocol %d, this server %d: install the package that belongs to it", h.Protocol, Protocol)
	}
	return h, err
}

// Claim implements Bridge.
func (c *Client) Claim(ctx context.Context, claim Claim) error {
	ctx, cancel := context.WithTimeout(ctx, slack)
	defer cancel()
	_, err := post[struct{}](ctx, c, "claim", claim)
	return err
}

// Launch implements Bridge.
func (c *Client) Launch(ctx context.Context, req LaunchRequest) (Launched, error) {
	if err := req.Validate(); err != nil {
		return Launched{}, err
	}
	limit := cmp.Or(req.Timeout, DefaultLaunchTimeout) + 2*slack
	if req.Group != nil {
		limit += cmp.Or(req.Group.Timeout, DefaultGroupTimeout)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return post[Launched](ctx, c, "launch", struct {
		LaunchRequest
		Timeout     float64 `json:"timeout,omitempty"`
		RoomTimeout float64 `json:"room_timeout,omitempty"`
	}{req, req.Timeout.Seconds(), req.RoomTimeout.Seconds()})
}

// call is the body of every request about one agent.
type call struct {
	LaunchID string  `json:"launch_id"`
	TaskID   string  `json:"task_id,omitempty"`
	Timeout  float64 `json:"timeout"`
}

// Run implements Bridge.
func (c *Client) Run(ctx context.Context, launchID string, entry Entry) error {
	if err := entry.Validate(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*slack)
	defer cancel()
	_, err := post[struct{}](ctx, c, "run", struct {
		LaunchID string `json:"launch_id"`
		Entry
	}{launchID, entry})
	return err
}

// Cancel implements Bridge.
func (c *Client) Cancel(ctx context.Context, launchID, taskID string, timeout time.Duration) (CancelResult, error) {
	ctx, stop := context.WithTimeout(ctx, timeout+slack)
	defer stop()
	return post[CancelResult](ctx, c, "cancel", call{launchID, taskID, timeout.Seconds()})
}

// SaveState implements Bridge.
func (c *Client) SaveState(ctx context.Context, launchID string, timeout time.Duration) (SavedState, error) {
	ctx, stop := context.WithTimeout(ctx, timeout+slack)
	defer stop()
	return post[SavedState](ctx, c, "save_state", call{LaunchID: launchID, Timeout: timeout.Seconds()})
}

// Ping implements Bridge.
func (c *Client) Ping(ctx context.Context, launchID string, timeout time.Duration) error {
	ctx, stop := context.WithTimeout(ctx, timeout+slack)
	defer stop()
	_, err := post[struct{}](ctx, c, "ping", call{LaunchID: launchID, Timeout: timeout.Seconds()})
	return err
}

// Call implements Bridge.
func (c *Client) Call(ctx context.Context, req CallRequest) (CallResult, error) {
	if err := req.Validate(); err != nil {
		return CallResult{}, err
	}
	timeout := cmp.Or(req.Timeout, DefaultCallTimeout)
	ctx, stop := context.WithTimeout(ctx, timeout+slack)
	defer stop()
	return post[CallResult](ctx, c, "call", struct {
		CallRequest
		Timeout float64 `json:"timeout"`
	}{req, timeout.Seconds()})
}

// Kill implements Bridge.
func (c *Client) Kill(ctx context.Context, launchID string, timeout time.Duration) error {
	ctx, stop := context.WithTimeout(ctx, timeout+slack)
	defer stop()
	_, err := post[struct{}](ctx, c, "kill", call{LaunchID: launchID, Timeout: timeout.Seconds()})
	return err
}

// EnsureGroup implements Bridge.
func (c *Client) EnsureGroup(ctx context.Context, req GroupRequest) (Group, error) {
	if err := req.Validate(); err != nil {
		return Group{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(req.Timeout, DefaultGroupTimeout)+2*slack)
	defer cancel()
	return post[Group](ctx, c, "ensure_group", req)
}

// RemoveGroup implements Bridge.
func (c *Client) RemoveGroup(ctx context.Context, name string, timeout time.Duration) error {
	ctx, stop := context.WithTimeout(ctx, timeout+slack)
	defer stop()
	_, err := post[struct{}](ctx, c, "remove_group", struct {
		Name    string  `json:"name"`
		Timeout float64 `json:"timeout"`
	}{name, timeout.Seconds()})
	return err
}

// Groups implements Bridge.
func (c *Client) Groups(ctx context.Context) ([]Group, error) {
	return get[[]Group](ctx, c, "groups", nil)
}

// List implements Bridge.
func (c *Client) List(ctx context.Context) ([]AgentStatus, error) {
	return get[[]AgentStatus](ctx, c, "agents", nil)
}

// Nodes implements Bridge.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	return get[[]Node](ctx, c, "nodes", nil)
}

// Logs implements Bridge.
func (c *Client) Logs(ctx context.Context, launchID string, stream Stream, offset int64, limit int) (LogChunk, error) {
	return get[LogChunk](ctx, c, "logs", url.Values{
		"launch_id": {launchID}, "stream": {string(stream)},
		"offset": {strconv.FormatInt(offset, 10)}, "limit": {strconv.Itoa(limit)},
	})
}

// Events implements Bridge.
func (c *Client) Events(ctx context.Context, after int64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		err := c.follow(ctx, after, func(e Event) bool { return yield(e, nil) })
		if err != nil && ctx.Err() == nil {
			yield(Event{}, err)
		}
	}
}

// follow calls each with every event until it says no (then the error is nil), ctx ends or the stream breaks.
func (c *Client) follow(ctx context.Context, after int64, each func(Event) bool) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	resp, err := c.send(ctx, http.MethodGet, "events?after="+strconv.FormatInt(after, 10), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	quiet := time.AfterFunc(c.silent, stop)
	defer quiet.Stop()
	lines := bufio.NewReaderSize(resp.Body, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return &Error{Code: CodeUnavailable, Message: "the event stream broke", Err: err}
		}
		quiet.Reset(c.silent)
		if line = bytes.TrimSpace(line); len(line) == 0 { // a heartbeat
			continue
		}
		var event Event
		if err := json.Unmarshal(line, &event); err != nil {
			return &Error{Code: CodeInternal, Message: "the event stream is not JSON", Err: err}
		}
		if !each(event) {
			return nil
		}
	}
}

func get[T any](ctx context.Context, c *Client, path string, query url.Values) (T, error) {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	ctx, cancel := context.WithTimeout(ctx, slack)
	defer cancel()
	return answer[T](c.send(ctx, http.MethodGet, path, nil))
}

func post[T any](ctx context.Context, c *Client, path string, body any) (T, error) {
	var none T
	encoded, err := json.Marshal(body)
	if err != nil {
		return none, &Error{Code: CodeBadRequest, Message: "the request is not JSON: " + err.Error(), Err: err}
	}
	if len(encoded) > MaxBody {
		return none, errf(CodeTooLarge, "the request has %d bytes, at most %d are allowed", len(encoded), MaxBody)
	}
	return answer[T](c.send(ctx, http.MethodPost, path, encoded))
}

// send gives an answer with status 200, or an *Error.
func (c *Client) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, &Error{Code: CodeUnavailable, Message: "the call was given up before it was sent", Err: err}
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+"/v1/"+path, bytes.NewReader(body))
	if err != nil {
		return nil, &Error{Code: CodeBadRequest, Message: err.Error(), Err: err}
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
		// Every call is idempotent: net/http may repeat one that died with an idle connection.
		req.Header["X-Idempotency-Key"] = nil
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var op *net.OpError
		dialing := errors.As(err, &op) && op.Op == "dial"
		return nil, &Error{Code: CodeUnavailable, Message: reachError(err), Unknown: !dialing && body != nil, Err: err}
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	var failed struct {
		Error *Error `json:"error"`
	}
	if json.Unmarshal(raw, &failed) != nil || failed.Error == nil {
		return nil, &Error{Code: CodeInternal, Message: fmt.Sprintf("the sidecar answered %s: %.200q", resp.Status, raw), Unknown: true}
	}
	return nil, failed.Error
}

// reachError says why a sidecar was not reached, without net/http's quoting of the URL.
func reachError(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return "the sidecar was not reached: " + err.Error()
}

func answer[T any](resp *http.Response, err error) (T, error) {
	var value T
	if err != nil {
		return value, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, MaxBody+1))
	switch {
	case err != nil:
		return value, &Error{Code: CodeUnavailable, Message: "the answer broke off: " + err.Error(), Unknown: true, Err: err}
	case len(raw) > MaxBody:
		return value, &Error{Code: CodeTooLarge, Message: "the answer has more than " + strconv.Itoa(MaxBody) + " bytes", Unknown: true}
	}
	if err := json.Unmarshal(raw, &value); err != nil {
		return value, &Error{Code: CodeInternal, Message: "the answer is not what was expected: " + err.Error(), Unknown: true, Err: err}
	}
	return value, nil
}
