package clusters_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/clusters/clustertest"
)

var echo = clusters.Submission{Entrypoint: "echo", SubmissionID: "one"}

// What came of a submission decides whether it may be sent again.
func TestASubmissionThatFailsSaysWhetherItWasSent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault    clustertest.Fault
		status   int
		sent     bool
		accepted int
		says     string
	}{
		"cut before it was read":   {clustertest.Fault{Kind: clustertest.CutBefore}, 0, true, 0, "no answer"},
		"cut after it was taken":   {clustertest.Fault{Kind: clustertest.AcceptThenCut}, 0, true, 1, "no answer"},
		"500 before":               {clustertest.Fault{Kind: clustertest.Fail, Body: "no agent"}, 500, true, 0, "answered 500: no agent"},
		"500 after it was taken":   {clustertest.Fault{Kind: clustertest.AcceptThen500}, 500, true, 1, "answered 500"},
		"no answer, but taken":     {clustertest.Fault{Kind: clustertest.AcceptThenHang}, 0, true, 1, "no answer within"},
		"no answer":                {clustertest.Fault{Kind: clustertest.Hang}, 0, true, 0, "no answer within"},
		"half an answer":           {clustertest.Fault{Kind: clustertest.CutHalfway}, 200, true, 1, "cut off"},
		"a page of somebody else":  {clustertest.Fault{Kind: clustertest.Garbage}, 200, true, 0, "Welcome to nginx!"},
		"redirected":               {clustertest.Fault{Kind: clustertest.Fail, Status: 307}, 307, true, 0, "redirects"},
		"a body that is too large": {clustertest.Fault{Kind: clustertest.Fail, Status: 413}, 413, true, 0, "larger than the dashboard takes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := clustertest.New(t, clustertest.Options{})
			ray := clusters.NewRay(cluster.URL, nil, clusters.RayOptions{Timeout: 100 * time.Millisecond})
			// A connection that was used before is the one that net/http may want to try again on.
			if _, err := ray.Version(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.fault.Method = "POST"
			cluster.Break(c.fault)
			err := ray.Submit(t.Context(), echo)
			var call *clusters.CallError
			if !errors.As(err, &call) || call.Status != c.status || call.Sent != c.sent || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%+v: %v", call, err)
			}
			if n := len(cluster.Accepted()); n != c.accepted {
				t.Errorf("accepted %d times", n)
			}
			if n := cluster.Calls("POST /api/jobs/"); n != 1 {
				t.Errorf("sent %d times", n)
			}
		})
	}
}

func TestASubmissionToNobodyWasNotSent(t *testing.T) {
	t.Parallel()
	cluster := clustertest.New(t, clustertest.Options{})
	ray := clusters.NewRay(cluster.URL, nil, clusters.RayOptions{Timeout: time.Second})
	for _, when := range []string{"a fresh client", "one with a connection that was closed since"} {
		cluster.Down()
		var call *clusters.CallError
		if err := ray.Submit(t.Context(), echo); !errors.As(err, &call) || call.Status != 0 || call.Sent || !strings.Contains(err.Error(), "refused") {
			// A connection that only just closed may look alive: then it counts as sent.
			if when == "a fresh client" || call == nil || call.Status != 0 {
				t.Errorf("%s: %+v: %v", when, call, err)
			}
		}
		cluster.Up()
		if _, err := ray.Version(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(cluster.Accepted()); n != 0 {
		t.Errorf("accepted %d times", n)
	}
	unread := clusters.NewRay(cluster.URL, func() (string, error) { return "", errors.New("no such file") }, clusters.RayOptions{})
	var call *clusters.CallError
	if err := unread.Submit(t.Context(), echo); !errors.As(err, &call) || call.Sent || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without its token: %v", err)
	}
}

func TestATokenIsAskedForAndMayChange(t *testing.T) {
	t.Parallel()
	cluster := clustertest.New(t, clustertest.Options{Token: "first"})
	token := ""
	ray := clusters.NewRay(cluster.URL, func() (string, error) { return token, nil }, clusters.RayOptions{})
	for given, says := range map[string]string{"": "needs a token (401): set token", "wrong": "refuses the token (403)"} {
		token = given
		if _, err := ray.Version(t.Context()); err == nil || !strings.Contains(err.Error(), says) || given != "" && strings.Contains(err.Error(), given) {
			t.Errorf("%q: %v", given, err)
		}
	}
	for _, next := range []string{"first", "second"} {
		token = next
		cluster.SetToken(next)
		if _, err := ray.Version(t.Context()); err != nil {
			t.Errorf("%s: %v", next, err)
		}
	}
}

func TestATokenGoesToNobodyElse(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer other.Close()
	first := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer first.Close()
	ray := clusters.NewRay(first.URL, func() (string, error) { return "secret", nil }, clusters.RayOptions{})
	if _, err := ray.Version(t.Context()); err == nil || !strings.Contains(err.Error(), "redirects to \""+other.URL) {
		t.Error(err)
	}
	if reached.Load() != 0 {
		t.Error("it followed")
	}
}

// answering is a dashboard that says the same to everything.
func answering(t *testing.T, write func(w http.ResponseWriter, r *http.Request)) *clusters.Ray {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(write))
	t.Cleanup(server.Close)
	return clusters.NewRay(server.URL, nil, clusters.RayOptions{Timeout: 5 * time.Second})
}

func TestAnswersThatAreNoneAreSaidInOneSentence(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"empty": "", "html": "<html>\n<body>502 Bad\n Gateway</body></html>", "another type": `[1]`, "cut": `{"status": "RUNNING"`, "binary": "\xff\xfe\x00", "no status": `{}`,
		"long": strings.Repeat("x ", 100_000),
	} {
		ray := answering(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
		_, err := ray.Job(t.Context(), "one")
		if err == nil || len(err.Error()) > 400 || !utf8.ValidString(err.Error()) || strings.ContainsFunc(err.Error(), unicode.IsControl) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := ray.Jobs(t.Context()); err == nil || len(err.Error()) > 400 || !utf8.ValidString(err.Error()) || strings.ContainsFunc(err.Error(), unicode.IsControl) {
			t.Errorf("%s as a list: %v", name, err)
		}
	}
}

func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	var wrote atomic.Int64
	endless := func(begin, again string) *clusters.Ray {
		return answering(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, begin)
			chunk := []byte(strings.Repeat(again, 4096))
			for {
				n, err := w.Write(chunk)
				wrote.Add(int64(n))
				if err != nil {
					return
				}
			}
		})
	}
	if _, err := endless(`{"status":"`, "x").Job(t.Context(), "one"); err == nil || !strings.Contains(err.Error(), "longer than 8 MiB") {
		t.Error(err)
	}
	if _, err := endless(`[{"status":"`, "x").Jobs(t.Context()); err == nil || !strings.Contains(err.Error(), "larger than 16 MiB") {
		t.Error(err)
	}
	failing := answering(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(500)
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, strings.Repeat("x", 4096))
		}
	})
	if _, err := failing.Version(t.Context()); err == nil || len(err.Error()) > 400 {
		t.Error(err)
	}
	if wrote.Load() > 128<<20 {
		t.Errorf("%d MiB were read", wrote.Load()>>20)
	}
}

// Not parallel: it measures memory.
func TestAListOfManyJobsIsReadOneByOne(t *testing.T) {
	n, env := 20_000, 4096
	if raced {
		n = 2000
	}
	ray := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "[")
		filler := strings.Repeat("y", env)
		for i := range n {
			if i > 0 {
				_, _ = io.WriteString(w, ", ")
			}
			_, _ = fmt.Fprintf(w, `{"type":"SUBMISSION","submission_id":"s%d","status":"SUCCEEDED","new_in_ray_3":{"a":[1]},"start_time":1700000000000,"metadata":{"a":"b","n":7},"runtime_env":{"env_vars":{"F":"%s"}}}`, i, filler)
		}
		_, _ = io.WriteString(w, "]")
	})
	count := 0
	before := heap()
	most := before
	err := ray.EachJob(t.Context(), func(j clusters.JobInfo) error {
		if j.SubmissionID != fmt.Sprintf("s%d", count) || j.Metadata["n"] != "7" || j.Metadata["a"] != "b" || j.RuntimeEnv != nil || j.Start == nil || j.End != nil {
			t.Fatalf("%+v", j)
		}
		if count++; count%1000 == 0 {
			most = max(most, heap())
		}
		return nil
	})
	if err != nil || count != n {
		t.Fatal(count, err)
	}
	if grown := most - before; grown > 20<<20 {
		t.Errorf("%d MiB were held of %d MiB", grown>>20, n*env>>20)
	}
	stop := errors.New("enough")
	if err := ray.EachJob(t.Context(), func(clusters.JobInfo) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

func TestASlowDashboardIsLeft(t *testing.T) {
	t.Parallel()
	cluster := clustertest.New(t, clustertest.Options{})
	cluster.Break(clustertest.Fault{Kind: clustertest.Slow, Delay: time.Minute})
	ray := clusters.NewRay(cluster.URL, nil, clusters.RayOptions{Timeout: 50 * time.Millisecond})
	began := time.Now()
	if _, err := ray.Version(t.Context()); err == nil || !strings.Contains(err.Error(), "no answer within 50ms") {
		t.Error(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Error(took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ray.Version(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open, most atomic.Int32
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(5 * time.Millisecond)
			_, _ = io.WriteString(w, `{"ray_version":"2.60.0"}`)
		}),
		ConnState: func(_ net.Conn, s http.ConnState) {
			switch s {
			case http.StateNew:
				now := open.Add(1)
				for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
				}
			case http.StateClosed:
				open.Add(-1)
			}
		},
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	ray := clusters.NewRay("http://"+listener.Addr().String(), nil, clusters.RayOptions{})
	errs := make(chan error)
	for range 200 {
		go func() {
			_, err := ray.Version(t.Context())
			errs <- err
		}()
	}
	for range 200 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if most.Load() > 16 {
		t.Errorf("%d connections at once", most.Load())
	}
}

func TestPackagesAreOnlyThoseOfClusters(t *testing.T) {
	t.Parallel()
	cluster := clustertest.New(t, clustertest.Options{})
	ray := clusters.NewRay(cluster.URL, nil, clusters.RayOptions{})
	for _, uri := range []string{"", "gcs://", "https://x/y.zip", "_ray_pkg_1.zip"} {
		if _, err := ray.HasPackage(t.Context(), uri); err == nil || !strings.Contains(err.Error(), "gcs://") {
			t.Errorf("%q: %v", uri, err)
		}
	}
	const uri = "gcs://_ray_pkg_1.zip"
	broken := io.MultiReader(strings.NewReader("abc"), failing{})
	if err := ray.PutPackage(t.Context(), uri, 10, broken); err == nil || !strings.Contains(err.Error(), "disk") {
		t.Errorf("a body that cannot be read: %v", err)
	}
	if err := ray.PutPackage(t.Context(), uri, 10, strings.NewReader("abc")); err == nil {
		t.Error("a body shorter than said was taken")
	}
	if _, there := cluster.Package("_ray_pkg_1.zip"); there {
		t.Error("half a package is there")
	}
	if err := ray.PutPackage(t.Context(), uri, 3, strings.NewReader("abc")); err != nil {
		t.Error(err)
	}
	if data, _ := cluster.Package("_ray_pkg_1.zip"); string(data) != "abc" {
		t.Errorf("%q", data)
	}
	cluster.Break(clustertest.Fault{Kind: clustertest.Fail, Status: 404, Path: "/api/packages/"})
	if _, err := ray.HasPackage(t.Context(), uri); err == nil {
		t.Error("a proxy's 404 was taken for Ray's")
	}
}

// failing cannot be read.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("disk on fire") }
