package bridge

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func dial(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c, err := Dial(server.URL, "s3cret")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestDialRefusesWhatItCannotReach(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "unix:", "127.0.0.1:80", "ftp://host", "http://"} {
		if _, err := Dial(address, "token"); !errors.Is(err, ErrBadRequest) {
			t.Errorf("Dial(%q) = %v", address, err)
		}
	}
	if _, err := Dial("http://127.0.0.1:80"); !errors.Is(err, ErrBadRequest) {
		t.Errorf("without a token: %v", err)
	}
}

func TestASidecarThatIsNotThereDidNothing(t *testing.T) {
	t.Parallel()
	c, err := Dial("unix:" + filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(t.Context(), "x", time.Second); !errors.Is(err, ErrUnavailable) || IsUnknown(err) {
		t.Errorf("kill: %v", err)
	}
	for _, err := range c.Events(t.Context(), 0) {
		if !errors.Is(err, ErrUnavailable) || IsUnknown(err) {
			t.Errorf("events: %v", err)
		}
	}
}

func TestAConnectionThatBreaksAfterSendingLeavesItUnknown(t *testing.T) {
	t.Parallel()
	c := dial(t, func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	})
	_, err := c.Launch(t.Context(), LaunchRequest{LaunchID: "x", ClassPath: "a:B"})
	if !errors.Is(err, ErrUnavailable) || !IsUnknown(err) {
		t.Errorf("launch: %v", err)
	}
	if _, err := c.List(t.Context()); !errors.Is(err, ErrUnavailable) || IsUnknown(err) {
		t.Errorf("reading cannot have done anything: %v", err)
	}
}

func TestGivingUpWhileWaitingLeavesItUnknown(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	c := dial(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = bufio.NewReader(r.Body).ReadByte()
		close(arrived)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if err := c.Kill(ctx, "x", time.Second); !IsUnknown(err) || !errors.Is(err, context.Canceled) {
		t.Errorf("kill: %v", err)
	}
}

func TestErrorsArriveWhole(t *testing.T) {
	t.Parallel()
	c := dial(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer s3cret" {
			t.Errorf("sent %q", r.Header)
		}
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error": {"code": "claimed", "message": "taken", "detail": "d", "unknown": true, "holder": {"deployment": "x", "url": "u"}}}`)
	})
	err := c.Claim(t.Context(), Claim{Deployment: "y"})
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, ErrClaimed) || e.Message != "taken" || e.Detail != "d" || !e.Unknown || e.Holder.Deployment != "x" {
		t.Errorf("claim: %#v", err)
	}
	if errors.Is(err, ErrTimeout) {
		t.Error("it is no timeout")
	}
}

func TestAnswersThatAreNotTheSidecars(t *testing.T) {
	t.Parallel()
	for body, status := range map[string]int{"<html>": 502, "{": 200, `{"error": {}}`: 200, "": 500} {
		c := dial(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		})
		_, err := c.Nodes(t.Context())
		if CodeOf(err) != CodeInternal {
			t.Errorf("%q: %v", body, err)
		}
	}
	c := dial(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{"protocol": 99}`) })
	if _, err := c.Hello(t.Context()); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "99") {
		t.Errorf("another protocol: %v", err)
	}
}

func TestTimeoutsTravelAsSeconds(t *testing.T) {
	t.Parallel()
	got := make(chan map[string]any, 1)
	c := dial(t, func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		_ = json.NewDecoder(r.Body).Decode(&body)
		got <- body
		fmt.Fprint(w, `{}`)
	})
	_, _ = c.Launch(t.Context(), LaunchRequest{LaunchID: "x", ClassPath: "a:B", Timeout: 1500 * time.Millisecond, RoomTimeout: time.Second})
	if body := <-got; body["timeout"] != 1.5 || body["room_timeout"] != 1.0 {
		t.Errorf("sent %v", body)
	}
}

func TestAnEventStreamThatFallsSilentIsBroken(t *testing.T) {
	t.Parallel()
	c := dial(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "\n{\"seq\": 7, \"type\": \"resync\"}\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	c.silent = 50 * time.Millisecond
	var seen []Event
	var last error
	for e, err := range c.Events(t.Context(), 3) {
		if err != nil {
			last = err
			break
		}
		seen = append(seen, e)
	}
	if len(seen) != 1 || seen[0].Seq != 7 || !errors.Is(last, ErrUnavailable) {
		t.Errorf("saw %v, then %v", seen, last)
	}
}

func TestEventsEndQuietlyWithTheContext(t *testing.T) {
	t.Parallel()
	c := dial(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "{\"seq\": 7, \"type\": \"resync\"}\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, err := range c.Events(ctx, 0) {
		if err != nil {
			t.Error(err)
		}
		cancel()
	}
}

func TestProcessSaysWhyItCannotRun(t *testing.T) {
	t.Parallel()
	if _, err := StartProcess(ProcessConfig{Deployment: "d", Socket: "/tmp/" + strings.Repeat("x", 120)}); !errors.Is(err, ErrBadRequest) {
		t.Errorf("an endless path: %v", err)
	}
	p, err := StartProcess(ProcessConfig{
		Python: "/no/such/python", Deployment: "d", Socket: filepath.Join(t.TempDir(), "s"), MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	downs := make(chan Status, 100)
	p.Listen(func(s Status) {
		select {
		case downs <- s:
		default:
		}
	})
	<-downs // as it is at first
	for range 2 {
		if s := <-downs; s.Up || !strings.Contains(s.Err.Error(), "/no/such/python") {
			t.Errorf("told %+v", s)
		}
	}
	p.Stop()
	if s := p.Status(); s.Up || !errors.Is(s.Err, ErrUnavailable) {
		t.Errorf("stopped: %+v", s)
	}
}
