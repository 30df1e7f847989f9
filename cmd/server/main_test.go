package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/testdb"
)

// serverVariable makes this test binary be the server.
const serverVariable = "SCHEDULEMESH_TEST_BE_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(serverVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func call(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), stdio{&out, &errs}, args, func(name string) string { return env[name] })
	return code, out.String(), errs.String()
}

func TestHelpIsOnStandardOutputAndMistakesOnTheOther(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"help"}, {"--help"}, {"up", "--help"}, {"help", "serve"}, {"migrate", "-h"}} {
		if code, out, errs := call(t, nil, args...); code != 0 || !strings.Contains(out, "Usage: server") || errs != "" {
			t.Errorf("%q: code %d, %q, %q", args, code, out, errs)
		}
	}
	for want, args := range map[string][]string{
		"Usage: server COMMAND":     {},
		`no command "sevre"`:        {"sevre"},
		"Usage: server migrate":     {"migrate", "sideways", "--database", "postgres://x/y"},
		"`--help` lists":            {"serve", "--colour"},
		"not a whole number":        {"up", "--ray-cpus", "four"},
		"set DATABASE_URL":          {"serve"},
		"none of debug, info":       {"serve", "--database", "postgres://x/y", "--log-level", "loud"},
		"`server up` running here":  {"verify", "--data", t.TempDir()},
		"inside --data":             {"up", "--data", t.TempDir(), "--ray-session", "../elsewhere"},
		"leave one of them out":     {"serve", "--database", "postgres://x/y", "--no-ray", "--bridge-url", "fake"},
		"serves one Ray cluster":    {"up", "--data", t.TempDir(), "--no-ray", "--ray-session", "s"},
		"is too short":              {"serve", "--database", "postgres://x/y", "--cluster-lost-after", "100ms"},
		"correct --clusters":        {"serve", "--database", "postgres://x/y", "--clusters", "/nowhere/clusters.yaml"},
		"neither json nor text":     {"serve", "--database", "postgres://x/y", "--log-format", "xml"},
		"run this in a checkout of": {"up", "--data", t.TempDir(), "--database", "postgres://x/y", "--python-project", t.TempDir()},
	} {
		if code, _, errs := call(t, nil, args...); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%q: code %d, %q does not say %q", args, code, errs, want)
		}
	}
}

func TestEveryFlagHasAnEnvironmentTwinThatItOverrides(t *testing.T) {
	t.Parallel()
	env := map[string]string{"SCHEDULEMESH_ADDR": "127.0.0.1:1", "SCHEDULEMESH_SHUTDOWN_TIMEOUT": "3s", "SCHEDULEMESH_TOKENS": "a, b"}
	parse := func(args ...string) *serverSettings {
		t.Helper()
		var c serverSettings
		s := newSettings(func(name string) string { return env[name] })
		c.register(s, "json")
		for _, st := range s.all {
			if st.flag != "" && st.variable == "" {
				t.Errorf("--%s has no variable", st.flag)
			}
		}
		if _, err := s.parse(args); err != nil {
			t.Fatal(err)
		}
		return &c
	}
	c := parse().config(nil)
	if c.Addr != "127.0.0.1:1" || !c.AddrExplicit || c.ShutdownTimeout != 3*time.Second || len(c.Tokens) != 2 || c.Tokens[1] != "b" {
		t.Errorf("from the environment: %+v", c)
	}
	if c := parse("--addr", "127.0.0.1:2").config(nil); c.Addr != "127.0.0.1:2" {
		t.Errorf("the flag does not go first: %s", c.Addr)
	}
	delete(env, "SCHEDULEMESH_ADDR")
	if c := parse().config(nil); c.Addr != "127.0.0.1:8080" || c.AddrExplicit {
		t.Errorf("the default counts as asked for: %+v", c)
	}
	env["SCHEDULEMESH_SHUTDOWN_TIMEOUT"] = "soon"
	if code, _, errs := call(t, env, "serve"); code != 1 || !strings.Contains(errs, `SCHEDULEMESH_SHUTDOWN_TIMEOUT="soon"`) {
		t.Errorf("a bad variable is not named: %d, %q", code, errs)
	}
}

func TestMigrateAndVerify(t *testing.T) {
	t.Parallel()
	env := map[string]string{"DATABASE_URL": testdb.New(t)}
	for _, step := range []struct{ command, want string }{
		{"status", "missing"}, {"up", ""}, {"status", "applied"},
	} {
		if code, out, errs := call(t, env, "migrate", step.command); code != 0 || !strings.HasPrefix(out, step.want) {
			t.Fatalf("migrate %s: %d, %q, %q", step.command, code, out, errs)
		}
	}
	if code, out, errs := call(t, env, "verify"); code != 0 || out != "" {
		t.Fatalf("verify: %d, %q, %q", code, out, errs)
	}
	if code, _, errs := call(t, env, "migrate", "down", "--all"); code != 0 {
		t.Fatalf("migrate down: %d, %q", code, errs)
	}
}

// upInMake runs `server up`, this test binary, the way `make run` does.
type upInMake struct {
	cmd    *exec.Cmd
	out    *bufio.Reader
	server int // process id
	url    string
	data   string
	notice string // file, where others of the user find the server
	said   strings.Builder
}

var urlLine = regexp.MustCompile(`^ +(http://\S+)$`)

func startUp(t *testing.T, ray ...string) *upInMake {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// t.TempDir is closed to the user that runs Postgres for root.
	dir, err := os.MkdirTemp("", "schedulemesh-up-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	u := &upInMake{data: filepath.Join(dir, "data")}
	makefile := fmt.Sprintf("run:\n\t@echo $$$$; exec %s up --parent $$PPID %s --data %s\n", self, strings.Join(ray, " "), u.data)
	if err := os.WriteFile(filepath.Join(dir, "Makefile"), []byte(makefile), 0o644); err != nil {
		t.Fatal(err)
	}
	u.cmd = exec.Command("make", "-C", dir, "--no-print-directory", "run")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "DATABASE_URL=") {
			u.cmd.Env = append(u.cmd.Env, v)
		}
	}
	u.cmd.Env = append(u.cmd.Env, serverVariable+"=1", "XDG_STATE_HOME="+dir)
	u.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal of its own, as it were
	pipe, err := u.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	u.cmd.Stderr = u.cmd.Stdout
	if err := u.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-u.cmd.Process.Pid, syscall.SIGKILL); _ = u.cmd.Wait() })
	u.out = bufio.NewReader(pipe)
	for u.url == "" {
		line, err := u.out.ReadString('\n')
		u.said.WriteString(line)
		if err != nil {
			t.Fatalf("server up ended, saying:\n%s", u.said.String())
		}
		if u.server == 0 {
			_, _ = fmt.Sscan(line, &u.server)
		}
		if found := urlLine.FindStringSubmatch(strings.TrimRight(line, "\n")); found != nil {
			u.url = found[1]
		}
	}
	u.notice = filepath.Join(dir, "schedulemesh", "servers", fmt.Sprint(u.server)+".json")
	return u
}

// ended waits for the end of all who hold our pipe, and returns what was said.
func (u *upInMake) ended(t *testing.T) string {
	t.Helper()
	rest := make(chan string, 1)
	go func() { data, _ := io.ReadAll(u.out); rest <- string(data) }()
	select {
	case text := <-rest:
		return u.said.String() + text
	case <-time.After(30 * time.Second):
		t.Fatalf("still running; it said:\n%s", u.said.String())
		return ""
	}
}

func (u *upInMake) postgresRuns() bool {
	_, err := os.Stat(filepath.Join(u.data, "postgres", "data", "postmaster.pid"))
	return err == nil
}

func TestCtrlCStopsEverything(t *testing.T) {
	t.Parallel()
	u := startUp(t, "--bridge-url", "fake")
	resp, err := http.Get(u.url + "/readyz")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", resp, err)
	}
	resp.Body.Close()
	if note, err := os.ReadFile(filepath.Join(u.data, "url")); err != nil || strings.TrimSpace(string(note)) != u.url {
		t.Errorf("the address for scripts is %q, %v, not %s", note, err, u.url)
	}
	var says serverNotice
	text, err := os.ReadFile(u.notice)
	if err := errors.Join(err, json.Unmarshal(text, &says)); err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	if want := (serverNotice{PID: u.server, Host: host, URL: u.url, TokenFile: filepath.Join(u.data, "token"), Data: u.data,
		Deployment: says.Deployment, RayAddress: says.RayAddress, Parent: u.cmd.Process.Pid}); says != want || says.Deployment == "" {
		t.Errorf("the notice says %+v, not %+v", says, want)
	}
	if code, out, errs := call(t, nil, "verify", "--data", u.data); code != 0 || out != "" {
		t.Errorf("verify beside the running server: %d, %q, %q", code, out, errs)
	}
	if err := syscall.Kill(-u.cmd.Process.Pid, syscall.SIGINT); err != nil { // all in the terminal's group
		t.Fatal(err)
	}
	said := u.ended(t)
	for _, want := range []string{"Postgres is up", "sign in:", "stopping", "stopped; the data is kept in"} {
		if !strings.Contains(said, want) {
			t.Errorf("it did not say %q:\n%s", want, said)
		}
	}
	if u.postgresRuns() || exists(u.notice) {
		t.Errorf("Postgres still runs: %v; others still find the server: %v", u.postgresRuns(), exists(u.notice))
	}
	if info, err := os.Stat(filepath.Join(u.data, "token")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token: %v, %v", info, err)
	}
}

func TestUpWithoutRayIsReadyAndFound(t *testing.T) {
	t.Parallel()
	u := startUp(t, "--no-ray", "--temporary", "--python-project", "nowhere")
	resp, err := http.Get(u.url + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK || string(body) != "ledger: ok\nray: not used here\n" {
		t.Errorf("%s, %q, %v", resp.Status, body, err)
	}
	var says serverNotice
	text, err := os.ReadFile(u.notice)
	if err := errors.Join(err, json.Unmarshal(text, &says)); err != nil || says.URL != u.url || says.RayAddress != "" || !exists(says.TokenFile) {
		t.Errorf("the notice says %+v, %v", says, err)
	}
	if err := u.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if said := u.ended(t); !strings.Contains(said, "running no agents") || strings.Contains(said, "Ray is up") || exists(says.Data) {
		t.Errorf("its data is still there: %v; it said:\n%s", exists(says.Data), said)
	}
}

func TestKilledMakeStopsTheServer(t *testing.T) {
	t.Parallel()
	u := startUp(t, "--bridge-url", "fake")
	if err := u.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if said := u.ended(t); !strings.Contains(said, "stopped; the data is kept in") {
		t.Errorf("it did not stop in order:\n%s", said)
	}
	if u.postgresRuns() {
		t.Error("Postgres still runs")
	}
}

func TestKilledServerTakesItsPostgresAlong(t *testing.T) {
	t.Parallel()
	u := startUp(t, "--bridge-url", "fake")
	if err := syscall.Kill(u.server, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = u.ended(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for note := databaseNote(u.data); u.postgresRuns() || exists(note) || exists(u.notice); time.Sleep(50 * time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatalf("after the kill: Postgres runs: %v; there are %s: %v, %s: %v", u.postgresRuns(), note, exists(note), u.notice, exists(u.notice))
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
