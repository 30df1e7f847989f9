package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
)

// request is what the access log and error answers know of a request. Access puts it into the context.
type request struct {
	id    string
	log   *slog.Logger
	cause error // why it failed, for the log only
}

type requestKey struct{}

func requestOf(ctx context.Context) *request {
	q, _ := ctx.Value(requestKey{}).(*request)
	return q
}

// RequestID is the id of the request a context belongs to; log lines and answers carry it.
func RequestID(ctx context.Context) string {
	if q := requestOf(ctx); q != nil {
		return q.id
	}
	return ""
}

// Access is the outermost middleware, for the API and for pages: it gives each
// request an id, logs it (failures as errors, refusals as info, the rest as
// debug), and turns a panic into an answer.
func Access(log *slog.Logger) func(http.Handler) http.Handler {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	var start [6]byte
	_, _ = rand.Read(start[:])
	prefix := hex.EncodeToString(start[:]) + "-" // of this run of the server
	var count atomic.Uint64
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			began := time.Now()
			q := &request{log: log, id: givenID(r)}
			if q.id == "" {
				q.id = prefix + strconv.FormatUint(count.Add(1), 36)
			}
			w.Header()["X-Request-Id"] = []string{q.id}
			sw := &statusWriter{ResponseWriter: w}
			r = r.WithContext(context.WithValue(r.Context(), requestKey{}, q))
			defer func() {
				if v := recover(); v != nil {
					if v == http.ErrAbortHandler {
						panic(v)
					}
					q.cause = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
					if sw.status == 0 {
						failed(sw, r)
					}
				}
				q.write(r, sw, time.Since(began))
			}()
			next.ServeHTTP(sw, r)
		})
	}
}

// failed answers for a handler that panicked.
func failed(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/api/") {
		problem.Write(w, problem.New("internal", ""))
		return
	}
	http.Error(w, "Something went wrong on our side; the log has the cause under "+w.Header().Get("X-Request-Id")+".", http.StatusInternalServerError)
}

// givenID takes a caller's own id when it is harmless to log and echo.
func givenID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	if len(id) > 100 {
		return ""
	}
	for _, c := range []byte(id) {
		if c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return ""
		}
	}
	return id
}

func (q *request) write(r *http.Request, w *statusWriter, took time.Duration) {
	level := slog.LevelDebug
	switch {
	case r.URL.Path == "/healthz", r.URL.Path == "/readyz", r.URL.Path == "/metrics":
		// Asked every few seconds: what they say is in what they say.
	case q.cause != nil, w.status >= 500 && w.status != http.StatusServiceUnavailable:
		level = slog.LevelError
	case w.status == http.StatusServiceUnavailable:
		level = slog.LevelWarn
	case w.status >= 400:
		level = slog.LevelInfo
	}
	if !q.log.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("request_id", q.id), slog.String("method", r.Method), slog.String("path", r.URL.Path),
		slog.Int("status", w.status), slog.Int64("bytes", w.bytes), slog.Float64("ms", float64(took.Microseconds())/1000),
		slog.String("remote", r.RemoteAddr),
	}
	if r.URL.RawQuery != "" && r.URL.Path != "/sign-in" { // there the query is a token
		attrs = append(attrs, slog.String("query", r.URL.RawQuery))
	}
	if q.cause != nil {
		attrs = append(attrs, slog.String("error", q.cause.Error()))
	}
	q.log.LogAttrs(r.Context(), level, "request", attrs...)
}

// statusWriter remembers what was answered.
type statusWriter struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController flush and set deadlines.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush is for those who ask for http.Flusher directly.
func (w *statusWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }
