package bridge

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// ProcessConfig says how to start a sidecar.
type ProcessConfig struct {
	Python     string   // interpreter that has the schedulemesh package; default "python3"
	Socket     string   // unix socket it is to listen on
	RayAddress string   // host:port of Ray's head; "auto" when empty
	Deployment string   // whose agents
	Env        []string // besides the server's own environment, "K=V"
	Dir        string   // its working directory
	Logger     *slog.Logger

	MinBackoff time.Duration // before it is started again; default 200 ms
	MaxBackoff time.Duration // default 10 s
	Health     time.Duration // between two questions whether it still answers; default 5 s. One that takes three times that is killed
}

// Status tells a listener of a sidecar that came up or went down.
type Status struct {
	Up    bool
	Hello Hello // with Up
	Err   error // without: why
}

// Process keeps a sidecar running: it starts it, and again whenever it ends, until Stop. The sidecar
// ends with this process, however that ends: its standard input is a pipe from here.
type Process struct {
	cfg    ProcessConfig
	client *Client
	stop   context.CancelFunc
	done   chan struct{}

	mu        sync.Mutex
	status    Status
	cmd       *exec.Cmd
	changed   chan struct{} // closed at the next change
	listeners []func(Status)
}

// StartProcess begins to keep a sidecar running and returns at once; Wait tells when it is up.
func StartProcess(cfg ProcessConfig) (*Process, error) {
	if cfg.Python == "" {
		cfg.Python = "python3"
	}
	if cfg.RayAddress == "" {
		cfg.RayAddress = "auto"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.MinBackoff == 0 {
		cfg.MinBackoff = 200 * time.Millisecond
	}
	if cfg.MaxBackoff == 0 {
		cfg.MaxBackoff = 10 * time.Second
	}
	if cfg.Health == 0 {
		cfg.Health = 5 * time.Second
	}
	if cfg.Deployment == "" || cfg.Socket == "" {
		return nil, errf(CodeBadRequest, "a sidecar needs a deployment and a socket")
	}
	// A unix socket's path has room for 108 bytes, one of them for the end.
	socket, err := filepath.Abs(cfg.Socket)
	if err != nil {
		return nil, &Error{Code: CodeBadRequest, Message: err.Error(), Err: err}
	}
	if len(socket) > 107 {
		return nil, errf(CodeBadRequest, "the socket's path has %d bytes, at most 107 are possible: %s", len(socket), socket)
	}
	cfg.Socket = socket
	client, err := Dial("unix:" + socket)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Process{cfg: cfg, client: client, stop: stop, done: make(chan struct{}), changed: make(chan struct{})}
	p.status.Err = errf(CodeUnavailable, "the sidecar has not started yet")
	go p.keep(ctx)
	return p, nil
}

// Bridge is the client of the sidecar. While that is down, calls fail with ErrUnavailable.
func (p *Process) Bridge() *Client { return p.client }

// Status gives what listeners were told last.
func (p *Process) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// PID is the running sidecar's process id, 0 when there is none.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.cmd.Process == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Listen has f called with the status as it is now and then with every change, in order. It must not block.
func (p *Process) Listen(f func(Status)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listeners = append(p.listeners, f)
	f(p.status)
}

// Wait returns once the sidecar is up, in a session other than `not` ("" for any).
func (p *Process) Wait(ctx context.Context, not string) (Hello, error) {
	for {
		p.mu.Lock()
		status, changed := p.status, p.changed
		p.mu.Unlock()
		if status.Up && status.Hello.Session != not {
			return status.Hello, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Hello{}, &Error{Code: CodeUnavailable, Message: fmt.Sprint("the sidecar did not come up: ", status.Err), Err: ctx.Err()}
		}
	}
}

// Stop ends the sidecar and waits for it. Agents live on.
func (p *Process) Stop() {
	p.stop()
	<-p.done
	_ = p.client.Close()
}

func (p *Process) tell(s Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status = s
	close(p.changed)
	p.changed = make(chan struct{})
	for _, f := range p.listeners {
		f(s)
	}
}

func (p *Process) keep(ctx context.Context) {
	defer close(p.done)
	backoff := p.cfg.MinBackoff
	for ctx.Err() == nil {
		started := time.Now()
		err := p.run(ctx)
		if ctx.Err() != nil {
			p.tell(Status{Err: errf(CodeUnavailable, "the sidecar was stopped")})
			return
		}
		if time.Since(started) > 6*p.cfg.MaxBackoff {
			backoff = p.cfg.MinBackoff // it had run well
		}
		p.cfg.Logger.Warn("sidecar ended, starting it again", "error", err, "in", backoff)
		p.tell(Status{Err: &Error{Code: CodeUnavailable, Message: "the sidecar ended: " + err.Error(), Err: err}})
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
		}
		backoff = min(2*backoff, p.cfg.MaxBackoff)
	}
}

// run runs one sidecar to its end, which is an error unless ctx ended.
func (p *Process) run(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(p.cfg.Socket), 0o700); err != nil {
		return err
	}
	// What a killed sidecar left would only be refused.
	if err := os.Remove(p.cfg.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	cmd := exec.Command(p.cfg.Python, "-m", "schedulemesh.bridge", "--lifeline",
		"--socket", p.cfg.Socket, "--ray-address", p.cfg.RayAddress, "--deployment", p.cfg.Deployment)
	cmd.Dir = p.cfg.Dir
	cmd.Env = append(os.Environ(), p.cfg.Env...)
	// A group of its own: Ctrl-C is for the server, which still needs its sidecar to end in good order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	lifeline, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.mu.Lock()
	p.cmd = cmd
	p.mu.Unlock()

	var last string // its last words, for the error
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		last = p.logLines(stderr)
	}()
	ended := make(chan error, 1)
	go func() {
		<-logged // Wait closes the pipe, so all of it must be read before
		ended <- cmd.Wait()
	}()
	defer func() {
		p.mu.Lock()
		p.cmd = nil
		p.mu.Unlock()
	}()

	up, cancel := context.WithCancel(ctx)
	mute := make(chan error, 1)
	go func() {
		mute <- p.announce(up)
		close(mute)
	}()
	defer func() { // nobody must hear that it is up after it ended
		cancel()
		for range mute {
		}
	}()

	select {
	case err := <-ended:
		_ = lifeline.Close()
		return errors.Join(cmp.Or(err, errExited), lastWords(last))
	case err := <-mute:
		if ctx.Err() == nil {
			_ = cmd.Process.Kill()
			<-ended
			_ = lifeline.Close()
			return err
		}
	case <-ctx.Done():
	}
	_ = lifeline.Close() // it goes in good order…
	select {
	case <-ended:
	case <-time.After(5 * time.Second): // …or it does not
		_ = cmd.Process.Kill()
		<-ended
	}
	return ctx.Err()
}

var errExited = errors.New("it exited")

func lastWords(line string) error {
	if line == "" {
		return nil
	}
	return errors.New("its last words: " + line)
}

// announce tells listeners once the sidecar answers, and returns why when it no longer does: a process
// that is stopped or stuck does not end by itself.
func (p *Process) announce(ctx context.Context) error {
	pause, up := announcePoll, false
	for {
		hello, err := p.hello(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && !up:
			up, pause = true, p.cfg.Health
			p.cfg.Logger.Info("sidecar is up", "session", hello.Session, "ray", hello.RayVersion, "address", hello.RayAddress)
			p.tell(Status{Up: true, Hello: hello})
		case err != nil && up:
			return fmt.Errorf("it does not answer any more: %w", err)
		case err != nil && hello.Protocol != 0: // it runs, but cannot be talked to
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

const announcePoll = 20 * time.Millisecond

func (p *Process) hello(ctx context.Context) (Hello, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*p.cfg.Health)
	defer cancel()
	return p.client.Hello(ctx)
}

// logLines passes the sidecar's log on, line by line, and returns the last one.
func (p *Process) logLines(r io.Reader) string {
	lines := bufio.NewReaderSize(r, 64<<10)
	last := ""
	for {
		line, prefix, err := lines.ReadLine()
		if err != nil {
			return last
		}
		for prefix && err == nil { // the rest of an overlong line is dropped
			_, prefix, err = lines.ReadLine()
		}
		if len(line) == 0 {
			continue
		}
		var entry struct {
			Level     string `json:"level"`
			Msg       string `json:"msg"`
			Logger    string `json:"logger"`
			Traceback string `json:"traceback"`
		}
		if json.Unmarshal(line, &entry) != nil || entry.Msg == "" {
			last = string(line)
			p.cfg.Logger.Info(last, "source", "sidecar")
			continue
		}
		last = entry.Msg
		level := slog.LevelInfo
		switch entry.Level {
		case "DEBUG":
			level = slog.LevelDebug
		case "WARNING":
			level = slog.LevelWarn
		case "ERROR", "CRITICAL":
			level = slog.LevelError
		}
		attrs := []any{"source", "sidecar", "logger", entry.Logger}
		if entry.Traceback != "" {
			attrs = append(attrs, "traceback", entry.Traceback)
		}
		p.cfg.Logger.Log(context.Background(), level, entry.Msg, attrs...)
	}
}
