package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/jobs"
)

func TestLogsThatCannotBeAskedFor(t *testing.T) {
	for query, want := range map[string]string{
		"offset=x": "offset", "limit=0": "limit", "limit=1048577": "limit", "tail=0": "tail", "tail=-1": "tail", "tail=x": "tail", "tail=1&offset=0": "tail",
		"follow=perhaps": "follow", "lines=3": "lines", "offset=99999999999999999999": "offset",
	} {
		f := &fake{}
		res := send(t, newAPI(f), "GET", "/api/v1/jobs/s/logs?"+query, "")
		res.want(t, 422, "invalid")
		if res.field("errors.field") != want || f.call != "" {
			t.Errorf("%s names %v and asked %q", query, res.field("errors.field"), f.call)
		}
	}
	send(t, newAPI(&fake{}), "GET", "/api/v1/jobs/a%00b/logs", "").want(t, 422, "invalid")
	send(t, newAPI(&fake{}), "GET", "/api/v1/jobs/s/logs?follow=1", "", "Last-Event-ID", "x").want(t, 422, "invalid")
}

func TestLastLines(t *testing.T) {
	for _, tt := range []struct {
		text string
		n    int64
		want string
	}{
		{"", 1, ""}, {"a", 1, "a"}, {"a\n", 1, "a\n"}, {"a\nb", 1, "b"}, {"a\nb\n", 1, "b\n"}, {"a\nb\n", 2, "a\nb\n"}, {"a\nb\nc\n", 2, "b\nc\n"},
		{"\n", 1, "\n"}, {"a\n\n", 1, "\n"}, {"a\n\n", 2, "a\n\n"}, {"a\nb", 9, "a\nb"}, {"é\n训\n", 1, "训\n"},
	} {
		if got := lastLines(tt.text, tt.n); got != tt.want {
			t.Errorf("the last %d of %q are %q, want %q", tt.n, tt.text, got, tt.want)
		}
	}
}

// event is one that came in a stream; comments have no name.
type event struct {
	name, id string
	data     map[string]any
}

// following is a stream that a test reads.
type following struct {
	t     *testing.T
	lines *bufio.Scanner
	stop  context.CancelFunc
}

func followLog(t *testing.T, f *fake, query string, headers ...string) (*following, *http.Response) {
	t.Helper()
	srv := httptest.NewServer(newAPI(f))
	t.Cleanup(srv.Close)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r, _ := http.NewRequestWithContext(ctx, "GET", srv.URL+"/api/v1/jobs/s/logs?follow=true"+query, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 4<<20)
	return &following{t, lines, cancel}, res
}

// next is the next event, or comment; ok is false at the end.
func (s *following) next(comments bool) (e event, ok bool) {
	s.t.Helper()
	for s.lines.Scan() {
		line := s.lines.Text()
		name, value, _ := strings.Cut(line, ": ")
		switch name {
		case "":
			switch {
			case line == "" && e.name != "":
				return e, true
			case line != "" && comments:
				return event{name: "comment", id: value}, true
			}
		case "event":
			e.name = value
		case "id":
			e.id = value
		case "data":
			if err := json.Unmarshal([]byte(value), &e.data); err != nil {
				s.t.Fatalf("%q: %v", value, err)
			}
		}
	}
	return e, false
}

func TestFollowingALog(t *testing.T) {
	more := make(chan jobs.Log)
	f := &fake{mesh: mesh{follow: func(ctx context.Context, offset int64, give func(jobs.Log) error) error {
		for l := range more {
			if err := give(l); err != nil {
				return err
			}
		}
		return nil
	}}}
	s, res := followLog(t, f, "&offset=3")
	if ct := res.Header.Get("Content-Type"); res.StatusCode != 200 || ct != "text/event-stream" || res.Header.Get("X-Accel-Buffering") != "no" {
		t.Fatalf("%d %v", res.StatusCode, res.Header)
	}
	for e, _ := s.next(true); e.id != "alive"; e, _ = s.next(true) {
		if e.name != "comment" {
			t.Fatalf("%+v before a sign of life", e)
		}
	}
	more <- jobs.Log{Text: "", Next: 3}
	if f.call != "Follow" || arg[int64](t, f, 1) != 3 {
		t.Errorf("asked %s %v", f.call, f.args)
	}
	more <- jobs.Log{Text: "step 1\r\n\u2028event: end\n\n", Next: 27}
	e, _ := s.next(false)
	if e.name != "log" || e.id != "27" || e.data["text"] != "step 1\r\n\u2028event: end\n\n" || e.data["next"] != 27.0 {
		t.Errorf("%+v", e)
	}
	close(more)
	if e, _ := s.next(false); e.name != "end" || e.id != "27" || e.data["next"] != 27.0 {
		t.Errorf("%+v", e)
	}
	if e, ok := s.next(false); ok {
		t.Errorf("after the end: %+v", e)
	}
}

func TestFollowingALogGoesOnWhereItWas(t *testing.T) {
	over := func(context.Context, int64, func(jobs.Log) error) error { return nil }
	for name, tt := range map[string]struct {
		query   string
		headers []string
		log     jobs.Log
		offset  int64
		first   string
	}{
		"from the beginning":     {"", nil, jobs.Log{}, 0, "end"},
		"Last-Event-ID":          {"", []string{"Last-Event-ID", "41"}, jobs.Log{}, 41, "end"},
		"Last-Event-ID wins":     {"&offset=3", []string{"Last-Event-ID", "41"}, jobs.Log{}, 41, "end"},
		"and over the last line": {"&tail=1", []string{"Last-Event-ID", "41"}, jobs.Log{}, 41, "end"},
		"the last line first":    {"&tail=1", nil, jobs.Log{Text: "a\nb\n", Next: 14}, 14, "log"},
		"the last bytes first":   {"&offset=-4", nil, jobs.Log{Text: "a\nb\n", Next: 14}, 14, "log"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{mesh: mesh{follow: over, log: tt.log}}
			s, _ := followLog(t, f, tt.query, tt.headers...)
			if e, _ := s.next(false); e.name != tt.first {
				t.Errorf("%+v, want %s", e, tt.first)
			}
			if tt.first == "log" {
				s.next(false)
			}
			if f.call != "Follow" || arg[int64](t, f, 1) != tt.offset {
				t.Errorf("asked %s %v", f.call, f.args)
			}
		})
	}
	f := &fake{mesh: mesh{follow: over, log: jobs.Log{Text: "a\nb\n", Next: 4, Ended: true}}}
	s, _ := followLog(t, f, "&tail=1")
	if e, _ := s.next(false); e.name != "log" || e.data["text"] != "b\n" {
		t.Errorf("%+v", e)
	}
	if e, _ := s.next(false); e.name != "end" || f.call != "Logs" {
		t.Errorf("%+v, and %s was asked", e, f.call)
	}
}

func TestAStreamThatBreaksOffHasNoEnd(t *testing.T) {
	f := &fake{mesh: mesh{follow: func(_ context.Context, _ int64, give func(jobs.Log) error) error {
		return errors.Join(give(jobs.Log{Text: "a", Next: 1}), errCluster)
	}}}
	s, _ := followLog(t, f, "")
	if e, _ := s.next(false); e.name != "log" {
		t.Errorf("%+v", e)
	}
	if e, ok := s.next(false); ok {
		t.Errorf("then came %+v: whoever reads would think that was all", e)
	}
}

func TestFollowingEndsWithItsReader(t *testing.T) {
	gone := make(chan error, 1)
	f := &fake{mesh: mesh{follow: func(ctx context.Context, _ int64, give func(jobs.Log) error) error {
		for {
			if err := give(jobs.Log{Text: "tick\n", Next: 5}); err != nil {
				gone <- err
				return err
			}
		}
	}}}
	s, _ := followLog(t, f, "")
	s.next(false)
	s.stop()
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Error("it goes on without anybody who reads")
	}
}

// TestALargeLogDoesNotFillMemory follows one with a reader that is slower than the job.
func TestALargeLogDoesNotFillMemory(t *testing.T) {
	const piece, pieces = 1 << 20, 256
	text := strings.Repeat(strings.Repeat("x", 127)+"\n", piece/128)
	f := &fake{mesh: mesh{follow: func(_ context.Context, _ int64, give func(jobs.Log) error) error {
		for n := int64(1); n <= pieces; n++ {
			if err := give(jobs.Log{Text: text, Next: n * piece}); err != nil {
				return err
			}
		}
		return nil
	}}}
	_, res := followLog(t, f, "")
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	most, read := uint64(0), int64(0)
	for {
		n, err := io.CopyN(io.Discard, res.Body, 8<<20)
		read += n
		runtime.ReadMemStats(&now)
		most = max(most, now.HeapInuse)
		if err != nil {
			break
		}
	}
	if read < pieces*piece {
		t.Errorf("only %d bytes came", read)
	}
	if most > before.HeapInuse+64<<20 {
		t.Errorf("%d MiB more in memory", (most-before.HeapInuse)>>20)
	}
}

func BenchmarkFollow(b *testing.B) {
	f := &fake{mesh: mesh{follow: func(_ context.Context, _ int64, give func(jobs.Log) error) error {
		for n := range b.N {
			if err := give(jobs.Log{Text: "step 1 of many, loss 0.25\n", Next: int64(n)}); err != nil {
				return err
			}
		}
		return nil
	}}}
	w := httptest.NewRecorder()
	w.Body = nil
	b.ReportAllocs()
	newAPI(f).ServeHTTP(w, httptest.NewRequest("GET", "/api/v1/jobs/s/logs?follow=true", nil))
	if w.Code != 200 {
		b.Fatal(fmt.Sprint(w.Code))
	}
}
