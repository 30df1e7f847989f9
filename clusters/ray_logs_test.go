package clusters_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/clusters/clustertest"
)

// heap is how much memory is in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Not parallel: it measures memory.
func TestAGigabyteOfLogIsReadInABoundedAmountOfMemory(t *testing.T) {
	size := int64(1 << 30)
	if testing.Short() || raced {
		size = 64 << 20
	}
	line := strings.Repeat("z", 1023) + "\n"
	chunk, escaped := []byte(strings.Repeat(line, 64)), []byte(strings.Repeat(strings.TrimSuffix(line, "\n")+`\n`, 64))
	ray := answering(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/logs"):
			_, _ = io.WriteString(w, `{"logs": "`)
			for range size >> 16 {
				if _, err := w.Write(escaped); err != nil {
					return
				}
			}
			_, _ = io.WriteString(w, `THE END"}`)
		case strings.HasPrefix(r.URL.Path, "/api/v0/logs"):
			for range size >> 16 {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
			_, _ = io.WriteString(w, "THE END")
		}
	})
	j := clusters.JobInfo{SubmissionID: "one", NodeID: "n", Status: clusters.RaySucceeded}
	before := heap()
	for way, read := range ray.WaysOfLogs(t.Context(), j) {
		if way == "agent" {
			continue
		}
		for what, c := range map[string]struct{ offset, limit, from, length int64 }{
			"the end":            {-1000, 1 << 20, size + 7 - 1000, 1000},
			"near the end":       {size - 5, 1 << 20, size - 5, 12},
			"a piece of the end": {-1 << 20, 10, size + 7 - 1<<20, 10},
			"the begin":          {0, 4096, 0, 4096},
		} {
			began := time.Now()
			text, next, err := read(c.offset, c.limit)
			if err != nil || int64(len(text)) != c.length || next != c.from+c.length {
				t.Errorf("%s, %s: %d bytes, next %d, %v", way, what, len(text), next, err)
			}
			t.Logf("%s, %s: %v", way, what, time.Since(began).Round(time.Millisecond))
			if now := heap(); now > before+16<<20 {
				t.Errorf("%s, %s: %d MiB more in use", way, what, (now-before)>>20)
			}
		}
	}
}

func TestALogIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ body, text, fails string }{
		"plain":                  {`{"logs": "a\nb"}`, "a\nb", ""},
		"escapes":                {`{"logs": "\"\\\/\b\f\r\t\u00e9\ud83d\ude00"}`, "\"\\/\b\f\r\té😀", ""},
		"not escaped":            {`{"logs": "é😀"}`, "é😀", ""},
		"half a pair":            {`{"logs": "a\ud83dz\ude00\ud83d\u0041"}`, "a\uFFFDz\uFFFD\uFFFDA", ""},
		"other white space":      {" {\n\"logs\" :\t\"x\" }", "x", ""},
		"empty":                  {`{"logs": ""}`, "", ""},
		"cut":                    {`{"logs": "abc`, "", "cut off"},
		"cut in an escape":       {`{"logs": "abc\u00`, "", "cut off"},
		"an escape of nobody":    {`{"logs": "\q"}`, "", "not JSON"},
		"no code":                {`{"logs": "\uzzzz"}`, "", "not JSON"},
		"null":                   {`{"logs": null}`, "", "not what Ray says"},
		"something else":         {`<html>`, "", "<html>"},
		"another document":       {`{"detail": "x"}`, "", "detail"},
		"nothing":                {``, "", "cut off"},
		"bytes that are no text": {"{\"logs\": \"a\xffb\"}", "a\uFFFDb", ""},
	} {
		ray := answering(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, c.body) })
		read := ray.WaysOfLogs(t.Context(), clusters.JobInfo{SubmissionID: "one", Status: clusters.RaySucceeded})["jobs"]
		text, _, err := read(0, 1000)
		switch {
		case c.fails == "" && (err != nil || text != c.text):
			t.Errorf("%s: %q, %v", name, text, err)
		case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)):
			t.Errorf("%s: %q, %v", name, text, err)
		}
		var got strings.Builder
		for at := int64(0); c.fails == "" && !strings.Contains(c.body, "\xff"); {
			text, next, err := read(at, 4)
			if err != nil {
				t.Fatal(name, err)
			}
			if got.WriteString(text); next == at {
				if got.String() != c.text {
					t.Errorf("%s in pieces: %q", name, got.String())
				}
				break
			}
			at = next
		}
	}
}

// A log that is still written may end in the middle of a character.
func TestACharacterThatIsNotWhollyThereComesLater(t *testing.T) {
	t.Parallel()
	for _, far := range []bool{false, true} {
		cluster := clustertest.New(t, clustertest.Options{FarAgents: far})
		cluster.Start(echo)
		ray := clusters.NewRay(cluster.URL, nil, clusters.RayOptions{})
		all := func(from int64) (string, int64) {
			t.Helper()
			text, next, err := ray.Logs(t.Context(), clusters.JobInfo{SubmissionID: "one"}, from, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			return text, next
		}
		_, begin := all(0)
		cluster.Print("one", "x\xc3")
		text, next := all(begin)
		if text != "x" || next != begin+1 {
			t.Errorf("far %t: %q, %d behind %d", far, text, next, begin)
		}
		cluster.Print("one", "\xb6\xe2\x82")
		if text, next = all(next); text != "ö" || next != begin+3 {
			t.Errorf("far %t: %q, %d behind %d", far, text, next, begin)
		}
		cluster.End("one", clusters.RaySucceeded)
		if text, next = all(next); text != "\uFFFD" || next != begin+5 {
			t.Errorf("far %t: what never became a character: %q, %d behind %d", far, text, next, begin)
		}
	}
}

func TestFollowGivesEverythingOnce(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]clustertest.Options{"near": {}, "far": {FarAgents: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := clustertest.New(t, options)
			ray := clusters.NewRay(cluster.URL, nil, clusters.RayOptions{})
			cluster.Start(echo)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var want bytes.Buffer
			got, last, n := new(strings.Builder), int64(0), 0
			first, _, err := ray.Logs(ctx, clusters.JobInfo{SubmissionID: "one"}, 0, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			want.WriteString(first)
			err = ray.Follow(ctx, clusters.JobInfo{SubmissionID: "one"}, 0, func(text string, next int64) error {
				got.WriteString(text)
				last = next
				if n++; n > 5 {
					if n == 6 {
						cluster.End("one", clusters.RaySucceeded)
					}
					return nil
				}
				line := fmt.Sprintf("line %d größe\n", n)
				want.WriteString(line)
				cluster.Print("one", line)
				return nil
			})
			if err != nil || got.String() != want.String() || last != int64(want.Len()) {
				t.Errorf("%v: %q, not %q, next %d", err, got.String(), want.String(), last)
			}
			full := errors.New("full")
			if err := ray.Follow(ctx, clusters.JobInfo{SubmissionID: "one"}, -5, func(text string, _ int64) error {
				if text != "röße\n" && text != "öße\n" && text != "ße\n" {
					t.Errorf("from the end: %q", text)
				}
				return full
			}); !errors.Is(err, full) {
				t.Error(err)
			}
		})
	}
}

// With the WebSocket out of order, and the connection cut in the middle, following goes on by reading.
func TestFollowGoesOnWithoutTheWebSocket(t *testing.T) {
	t.Parallel()
	cluster := clustertest.New(t, clustertest.Options{FarAgents: true})
	cluster.Break(clustertest.Fault{Kind: clustertest.Fail, Status: 403, Path: "/api/jobs/one/logs/tail"})
	ray := clusters.NewRay(cluster.URL, nil, clusters.RayOptions{})
	cluster.Start(echo)
	cluster.Print("one", "a\n")
	var got strings.Builder
	err := ray.Follow(t.Context(), clusters.JobInfo{SubmissionID: "one"}, 0, func(text string, _ int64) error {
		if got.WriteString(text); strings.HasSuffix(got.String(), "a\n") {
			cluster.Print("one", "b\n")
			cluster.End("one", clusters.RayFailed)
		}
		return nil
	})
	if err != nil || !strings.HasSuffix(got.String(), "\na\nb\n") {
		t.Errorf("%q, %v", got.String(), err)
	}
	if cluster.Calls("GET /api/jobs/one/logs/tail") == 0 {
		t.Error("the WebSocket was not tried")
	}
}

// Where the state API is missing, the Jobs API has the log.
func TestALogIsReadWhateverIsThere(t *testing.T) {
	t.Parallel()
	cluster := clustertest.New(t, clustertest.Options{FarAgents: true})
	cluster.Break(clustertest.Fault{Kind: clustertest.Fail, Status: 404, Path: "/api/v0/"})
	ray := clusters.NewRay(cluster.URL, nil, clusters.RayOptions{})
	cluster.Start(echo)
	cluster.Print("one", "here\n")
	text, _, err := ray.Logs(t.Context(), clusters.JobInfo{SubmissionID: "one"}, 0, 1<<20)
	if err != nil || !strings.HasSuffix(text, "here\n") {
		t.Errorf("%q, %v", text, err)
	}
	cluster.Down()
	if _, _, err := ray.Logs(t.Context(), clusters.JobInfo{SubmissionID: "one", NodeID: "n"}, 0, 1<<20); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
}
