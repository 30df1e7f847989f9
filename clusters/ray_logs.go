package clusters

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// Logs reads at most limit bytes of what a job printed, from an offset on; a negative offset counts from
// the end. next is the offset behind text. Offsets count bytes of the log as Ray has it; text is UTF-8
// with nothing cut in the middle, and bytes that are not UTF-8 are replaced. However long the log is, only
// limit bytes of it are held.
func (r *Ray) Logs(ctx context.Context, j JobInfo, offset, limit int64) (text string, next int64, err error) {
	if j.NodeID == "" {
		if j, err = r.Job(ctx, j.SubmissionID); err != nil {
			return "", 0, err
		}
	}
	if j.NodeID == "" { // its entrypoint was not started yet, or never will be
		return "", max(offset, 0), nil
	}
	limit = max(limit, utf8.UTFMax)
	ctx, moved, cancel := untilStalled(ctx, stallTimeout)
	defer cancel()
	p, err := r.agentLog(ctx, j, offset, limit)
	if err != nil && ctx.Err() == nil {
		p, err = r.streamedLog(ctx, r.stateLog(j), moved, offset, limit)
	}
	var call *CallError
	if errors.As(err, &call) && call.Status != 0 && ctx.Err() == nil {
		p, err = r.streamedLog(ctx, r.jobsLog(j), moved, offset, limit)
	}
	if err != nil {
		return "", 0, missing(err)
	}
	text, next = p.text(rayEnded(j.Status))
	return text, next, nil
}

// piece is a part of a log.
type piece struct {
	data  []byte
	start int64
	atEnd bool // nothing was behind it
}

// text makes UTF-8 of a piece. What it may cut in the middle is left to the pieces beside it, unless
// there will be none.
func (p piece) text(ended bool) (string, int64) {
	data := p.data
	if p.start > 0 { // a negative offset may point anywhere
		for n := 0; n < utf8.UTFMax-1 && len(data) > 0 && !utf8.RuneStart(data[0]); n++ {
			data = data[1:]
			p.start++
		}
	}
	if !p.atEnd || !ended {
		for n := 1; n < utf8.UTFMax && n <= len(data); n++ {
			if last := data[len(data)-n:]; utf8.RuneStart(last[0]) {
				if !utf8.FullRune(last) {
					data = data[:len(data)-n]
				}
				break
			}
		}
	}
	return strings.ToValidUTF8(string(data), "\uFFFD"), p.start + int64(len(data))
}

func logName(j JobInfo) string { return "job-driver-" + j.SubmissionID + ".log" }

// agentReach remembers agents that could not be reached, so that not each call tries.
type agentReach struct {
	mu  sync.Mutex
	not map[string]time.Time // until when
}

const (
	agentPatience = 1500 * time.Millisecond // agents are near, or behind a wall
	agentForget   = time.Minute
)

func (a *agentReach) known(agent string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Now().Before(a.not[agent])
}

func (a *agentReach) lost(agent string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for old, until := range a.not {
		if until.Before(now) {
			delete(a.not, old)
		}
	}
	if a.not == nil {
		a.not = map[string]time.Time{}
	}
	a.not[agent] = now.Add(agentForget)
}

var errNoAgent = errors.New("the node's agent cannot be reached")

// reachesAgent says whether logs may be read from the agent of a job's node. It is never asked where the
// dashboard is behind TLS: the token would travel in the open.
func (r *Ray) reachesAgent(j JobInfo) bool {
	return strings.HasPrefix(r.base, "http://") && strings.HasPrefix(j.AgentURL, "http://") && !r.agents.known(j.AgentURL)
}

// agentLog reads from the agent of the node that the job ran on, which knows byte ranges: of a log of
// any length it sends what was asked for and no more. It is often behind a wall.
func (r *Ray) agentLog(ctx context.Context, j JobInfo, offset, limit int64) (piece, error) {
	if !r.reachesAgent(j) {
		return piece{}, errNoAgent
	}
	span := fmt.Sprintf("bytes=%d-%d", offset, offset+limit-1)
	if offset < 0 {
		span = fmt.Sprintf("bytes=%d", offset)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	impatience := time.AfterFunc(agentPatience, func() { cancel(errNoAgent) })
	plain := *r
	plain.gate = nil // an agent is not the dashboard
	resp, err := plain.send(ctx, request{
		op: "log", method: http.MethodGet, url: strings.TrimRight(j.AgentURL, "/") + "/logs/" + url.PathEscape(logName(j)),
		client: r.streams, header: http.Header{"Range": {span}},
	})
	impatience.Stop()
	var call *CallError
	if errors.As(err, &call) && call.Status == http.StatusRequestedRangeNotSatisfiable {
		return piece{start: max(offset, 0), atEnd: true}, nil // nothing is there yet
	}
	if err != nil {
		if context.Cause(ctx) == nil || errors.Is(context.Cause(ctx), errNoAgent) {
			r.agents.lost(j.AgentURL)
		}
		return piece{}, err
	}
	defer resp.Body.Close()
	start, total, err := contentRange(resp)
	if err != nil {
		r.agents.lost(j.AgentURL)
		return piece{}, err
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	return piece{data: data, start: start, atEnd: start+int64(len(data)) >= total}, err
}

// contentRange reads where a part begins, and how long the whole is: "bytes 147-156/157".
func contentRange(resp *http.Response) (start, total int64, err error) {
	span, ok := strings.CutPrefix(resp.Header.Get("Content-Range"), "bytes ")
	first, rest, ok1 := strings.Cut(span, "-")
	_, whole, ok2 := strings.Cut(rest, "/")
	start, err1 := strconv.ParseInt(first, 10, 64)
	total, err2 := strconv.ParseInt(whole, 10, 64)
	if resp.StatusCode != http.StatusPartialContent || !ok || !ok1 || !ok2 || err1 != nil || err2 != nil {
		return 0, 0, fmt.Errorf("answered no part of the log: %d, Content-Range %q", resp.StatusCode, resp.Header.Get("Content-Range"))
	}
	return start, total, nil
}

// whole is a way to read a whole log from its begin.
type whole struct {
	path string
	open func(io.Reader) io.Reader
}

// stateLog is the file as it is, streamed.
func (r *Ray) stateLog(j JobInfo) whole {
	q := url.Values{"node_id": {j.NodeID}, "filename": {logName(j)}, "lines": {"-1"}}
	return whole{"/api/v0/logs/file?" + q.Encode(), func(body io.Reader) io.Reader { return body }}
}

// jobsLog is one JSON string, which Ray makes in its memory; it has none for a log that is not UTF-8.
func (r *Ray) jobsLog(j JobInfo) whole {
	return whole{jobPath(j.SubmissionID) + "/logs", func(body io.Reader) io.Reader { return &logString{from: bufio.NewReaderSize(body, 64<<10)} }}
}

func (r *Ray) streamedLog(ctx context.Context, w whole, moved func(), offset, limit int64) (piece, error) {
	resp, err := r.send(ctx, request{op: "log", method: http.MethodGet, path: w.path, client: r.streams})
	if err != nil {
		return piece{}, err
	}
	defer resp.Body.Close()
	p, err := cut(w.open(&stirring{r: resp.Body, moved: moved}), offset, limit)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return piece{}, &CallError{Op: "log", URL: r.base + w.path, Status: resp.StatusCode, Sent: true, Err: err}
	}
	return p, nil
}

// cut reads a piece out of a whole log, and holds no more than that.
func cut(from io.Reader, offset, limit int64) (piece, error) {
	if offset >= 0 {
		skipped, err := io.CopyN(io.Discard, from, offset)
		if errors.Is(err, io.EOF) { // shorter than that
			return piece{start: max(offset, skipped), atEnd: true}, nil
		}
		if err != nil {
			return piece{}, err
		}
		data, err := io.ReadAll(io.LimitReader(from, limit+1))
		return piece{data: data[:min(int64(len(data)), limit)], start: offset, atEnd: int64(len(data)) <= limit}, err
	}
	last := &tail{keep: int(-max(offset, -maxTail))}
	total, err := io.Copy(last, from)
	data := last.bytes()
	p := piece{data: data[:min(int64(len(data)), limit)], start: total - int64(len(data))}
	p.atEnd = len(p.data) == len(data)
	return p, err
}

// maxTail bounds what is held of the end of a log.
const maxTail = 64 << 20

// tail keeps the last bytes written to it.
type tail struct {
	keep int
	buf  []byte // up to twice keep, so that bytes are moved seldom
}

func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	if len(p) > t.keep {
		p = p[len(p)-t.keep:]
	}
	if len(t.buf)+len(p) > 2*t.keep {
		t.buf = append(t.buf[:0], t.bytes()...)
	}
	t.buf = append(t.buf, p...)
	return n, nil
}

func (t *tail) bytes() []byte { return t.buf[max(len(t.buf)-t.keep, 0):] }

// logString reads the text of {"logs": "…"} while it arrives: it may be a gigabyte.
type logString struct {
	from *bufio.Reader
	in   bool   // behind the opening quote
	left []byte // of an escape that was read
	err  error
}

func (s *logString) Read(p []byte) (int, error) {
	if s.err == nil && !s.in {
		s.err = s.begin()
	}
	n := copy(p, s.left)
	s.left = s.left[n:]
	for n < len(p) && s.err == nil {
		if _, err := s.from.Peek(1); err != nil {
			s.err = cutOff(err)
			break
		}
		run, _ := s.from.Peek(min(s.from.Buffered(), len(p)-n))
		for _, special := range []byte(`\"`) {
			if end := bytes.IndexByte(run, special); end >= 0 {
				run = run[:end]
			}
		}
		if len(run) > 0 {
			n += copy(p[n:], run)
			_, _ = s.from.Discard(len(run))
			continue
		}
		s.err = s.special()
		done := copy(p[n:], s.left)
		s.left = s.left[done:]
		n += done
	}
	if n > 0 {
		return n, nil
	}
	return 0, s.err
}

func cutOff(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("the answer was cut off: %w", err)
}

// begin reads up to the opening quote.
func (s *logString) begin() error {
	s.in = true
	for _, want := range []string{"{", `"logs"`, ":", `"`} {
		for {
			next, err := s.from.Peek(1)
			if err != nil {
				return cutOff(err)
			}
			if !strings.ContainsAny(string(next), " \t\r\n") {
				break
			}
			_, _ = s.from.Discard(1)
		}
		got, err := s.from.Peek(len(want))
		if string(got) != want {
			if err != nil && !errors.Is(err, io.EOF) {
				return cutOff(err)
			}
			rest, _ := s.from.Peek(s.from.Buffered())
			return notJSON(rest)
		}
		_, _ = s.from.Discard(len(want))
	}
	return nil
}

// special reads what begins with a quote, which is the end, or a backslash.
func (s *logString) special() error {
	c, _ := s.from.ReadByte()
	if c == '"' {
		return io.EOF
	}
	c, err := s.from.ReadByte()
	if err != nil {
		return cutOff(err)
	}
	if i := strings.IndexByte(`bfnrt"\/`, c); i >= 0 {
		s.left = []byte{"\b\f\n\r\t\"\\/"[i]}
		return nil
	}
	if c != 'u' {
		return fmt.Errorf(`a log with \%c in it, which is not JSON`, c)
	}
	code, err := s.hex()
	if err != nil {
		return err
	}
	if utf16.IsSurrogate(code) {
		code, err = s.pair(code)
	}
	s.left = append(s.left, string(code)...)
	return err
}

// pair reads the second half of a character outside of the basic plane; half of one alone is replaced.
func (s *logString) pair(first rune) (rune, error) {
	if next, err := s.from.Peek(2); err != nil || string(next) != `\u` {
		return utf8.RuneError, nil
	}
	if digits, err := s.from.Peek(6); err == nil {
		second, err := strconv.ParseUint(string(digits[2:]), 16, 32)
		if both := utf16.DecodeRune(first, rune(second)); err == nil && both != utf8.RuneError {
			_, _ = s.from.Discard(6)
			return both, nil
		}
	}
	return utf8.RuneError, nil
}

func (s *logString) hex() (rune, error) {
	digits, err := s.from.Peek(4)
	if err != nil {
		return 0, cutOff(err)
	}
	code, err := strconv.ParseUint(string(digits), 16, 32)
	if err != nil {
		return 0, fmt.Errorf(`a log with \u%s in it, which is not JSON`, digits)
	}
	_, _ = s.from.Discard(4)
	return rune(code), nil
}
