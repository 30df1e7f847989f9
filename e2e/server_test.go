// Package e2e drives the product from outside: the real binary, real Postgres, real
// Ray and a real browser.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/local"
	"github.com/schedulemesh/schedulemesh/testdb"
)

const token = "e2e-token-that-is-long-enough"

// root is the repository: workers import examples/ from it.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "schedulemesh-e2e-")
	if err != nil {
		return "", err
	}
	guard, err := local.StartGuard() // the binary is for all tests: removed when they have ended
	if err != nil {
		return "", err
	}
	guard.Remove(dir)
	binary := filepath.Join(dir, "server")
	out, err := exec.Command("go", "build", "-o", binary, "../cmd/server").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return binary, nil
})

// server is a real server process, its database, and the Ray cluster of the test run.
type server struct {
	t        *testing.T
	database string
	base     string
	runDir   string
	settings []string // where agents run
	cmd      *exec.Cmd
	logs     *bytes.Buffer
}

// needRay skips without a Ray cluster to test on, which CI must have.
func needRay(t *testing.T) {
	t.Helper()
	if os.Getenv("SCHEDULEMESH_TEST_RAY") != "" {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("SCHEDULEMESH_TEST_RAY names no Ray cluster: `make test` starts one")
	}
	t.Skip("no Ray cluster to test on: run `make e2e`")
}

func startServer(t *testing.T) *server {
	t.Helper()
	needRay(t)
	return startOn(t, testdb.New(t), false)
}

// startOn starts a server on a database that others may use too.
func startOn(t *testing.T, database string, fake bool) *server {
	t.Helper()
	if fake {
		return startWith(t, database, []string{"--bridge-url", "fake"})
	}
	return startWith(t, database, []string{"--python", os.Getenv("SCHEDULEMESH_PYTHON"), "--ray-address", os.Getenv("SCHEDULEMESH_TEST_RAY")})
}

// startWith starts a server with settings that say where its agents run.
func startWith(t *testing.T, database string, settings []string) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "sm") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &server{t: t, database: database, runDir: dir, settings: settings, logs: &bytes.Buffer{}}
	s.start("127.0.0.1:0")
	t.Cleanup(func() {
		s.endAll()
		s.stop()
		if t.Failed() {
			t.Log(s.logs.String())
		}
	})
	return s
}

// kill ends the server as a crash would.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func (s *server) start(addr string) {
	s.t.Helper()
	binary, err := build()
	if err != nil {
		s.t.Fatal(err)
	}
	args := append([]string{"serve", "--addr", addr, "--token-file", filepath.Join(s.runDir, "token"), "--run-dir", s.runDir}, s.settings...)
	s.cmd = exec.Command(binary, args...)
	s.cmd.Env = append(os.Environ(), "DATABASE_URL="+s.database, "SCHEDULEMESH_TOKENS="+token)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := s.cmd.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	found := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var l struct{ Msg, URL string }
			if json.Unmarshal(lines.Bytes(), &l) == nil && l.Msg == "listening" {
				found <- l.URL
			}
			s.logs.Write(append(lines.Bytes(), '\n'))
		}
	}()
	select {
	case s.base = <-found:
	case <-time.After(60 * time.Second):
		s.t.Fatal("the server did not start: " + s.logs.String())
	}
	s.eventually("the server is ready", 60*time.Second, func() bool {
		res, err := http.Get(s.base + "/readyz")
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
}

// killAndRestart ends the server as a crash would, and starts it again on the same address.
func (s *server) killAndRestart() {
	s.t.Helper()
	u, err := url.Parse(s.base)
	if err != nil {
		s.t.Fatal(err)
	}
	s.kill()
	s.start(u.Host)
}

// endAll cancels what still lives, so that nothing stays in the shared Ray cluster.
func (s *server) endAll() {
	var list struct {
		Items []struct {
			Name string `json:"name"`
		}
	}
	for _, ns := range []string{"default"} {
		if s.try("GET", "/api/v1/agents?namespace="+ns, nil, &list) != nil {
			return
		}
		for _, a := range list.Items {
			_ = s.try("DELETE", "/api/v1/agents/"+url.PathEscape(a.Name)+"?force=true&namespace="+ns, nil, nil)
		}
	}
	for range 200 {
		if s.try("GET", "/api/v1/agents", nil, &list) != nil || len(list.Items) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *server) try(method, path string, body, into any) error {
	var doc io.Reader = http.NoBody
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		doc = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, s.base+path, doc)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, res.Status, answer)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}

// follow reads a stream of events until one is the last, which look says.
func (s *server) follow(path string, look func(event, data string) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	event := ""
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			event = name
		}
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && !look(event, data) {
			return
		}
	}
	s.t.Errorf("%s ended (%s) before its last event", path, res.Status)
}

func (s *server) call(method, path string, body, into any) {
	s.t.Helper()
	if err := s.try(method, path, body, into); err != nil {
		s.t.Fatal(err)
	}
}

type task struct {
	State       string
	Code        string
	Reason      string
	Attempt     int
	Preemptions int
	Result      map[string]any
	SavedState  map[string]any `json:"saved_state"`
	Agent       struct{ PID int }
}

func (s *server) task(id string) (t task) {
	s.t.Helper()
	s.call("GET", "/api/v1/tasks/"+url.PathEscape(id), nil, &t)
	return t
}

func (s *server) becomes(id, state string) task {
	s.t.Helper()
	var t task
	s.eventually(id+" becomes "+state, 60*time.Second, func() bool {
		t = s.task(id)
		if t.State != state && (t.State == "failed" || t.State == "cancelled") {
			s.t.Fatalf("task %s is %s (%s: %s), want %s", id, t.State, t.Code, t.Reason, state)
		}
		return t.State == state
	})
	return t
}

func (s *server) eventually(what string, limit time.Duration, ok func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// verified fails the test when `server verify` would print something.
func (s *server) verified() {
	s.t.Helper()
	pool, err := pgxpool.New(context.Background(), s.database)
	if err != nil {
		s.t.Fatal(err)
	}
	defer pool.Close()
	diffs, err := ledger.Verify(context.Background(), pool)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, d := range diffs {
		s.t.Error(d)
	}
}

// workerEnv is a runtime_env in which workers find examples/ and the package.
func workerEnv(t *testing.T) string {
	dir := root(t)
	doc, _ := json.Marshal(map[string]any{"env_vars": map[string]string{"PYTHONPATH": strings.Join([]string{dir, filepath.Join(dir, "python", "src")}, ":")}})
	return string(doc)
}
