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
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const benchToken = "bench-token-that-is-long-enough"

// served is a server process with a database of its own.
type served struct {
	cmd  *exec.Cmd
	addr string
	logs bytes.Buffer
}

// database makes a new database and gives its URL.
func (b *bench) database(ctx context.Context) (string, error) {
	b.made++
	name := fmt.Sprintf("bench%d", b.made)
	conn, err := pgx.Connect(ctx, b.postgres)
	if err != nil {
		return "", err
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+name)
	_ = conn.Close(ctx)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(b.postgres)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

// start runs `server serve` on a new database and waits until it is ready.
func (b *bench) start(ctx context.Context, extra ...string) (*served, error) {
	database, err := b.database(ctx)
	if err != nil {
		return nil, err
	}
	s, err := b.listen(ctx, database, extra...)
	if err != nil {
		return nil, err
	}
	return s, s.ready()
}

// listen runs `server serve` on a database and returns once it listens.
func (b *bench) listen(ctx context.Context, database string, extra ...string) (*served, error) {
	s := &served{}
	token := filepath.Join(b.dir, filepath.Base(database)+".token")
	s.cmd = exec.CommandContext(ctx, b.server, append([]string{"serve", "--addr", "127.0.0.1:0", "--log-level", "info", "--token-file", token, "--run-dir", b.dir}, extra...)...)
	s.cmd.Env = append(os.Environ(), "DATABASE_URL="+database, "SCHEDULEMESH_TOKENS="+benchToken)
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(syscall.SIGTERM) }
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	found := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var l struct{ Msg, URL string }
			if json.Unmarshal(lines.Bytes(), &l) == nil && l.Msg == "listening" {
				select {
				case found <- l.URL:
				default:
				}
			}
			s.logs.Write(append(lines.Bytes(), '\n'))
		}
		close(found)
	}()
	select {
	case at, ok := <-found:
		if !ok {
			return nil, fmt.Errorf("the server ended at once: %s", s.logs.String())
		}
		u, err := url.Parse(at)
		if err != nil {
			return nil, err
		}
		s.addr = u.Host
	case <-time.After(60 * time.Second):
		return nil, errors.New("the server did not start within a minute")
	}
	return s, nil
}

// ready waits until the server can do all of its work.
func (s *served) ready() error {
	for range 1200 {
		res, err := http.Get("http://" + s.addr + "/readyz")
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("the server did not become ready: %s", s.logs.String())
}

func (s *served) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
}

// call is one request outside of what is measured, or one whose own time is.
func (s *served) call(ctx context.Context, method, path string, body, into any) error {
	doc, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.addr+path, bytes.NewReader(doc))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+benchToken)
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
