package api

import (
	"fmt"
	"net/http"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
)

// writeTime is how long what is sent may take to reach a reader before the stream ends.
const writeTime = 15 * time.Second

// sse writes a stream of server-sent events, which begins with the first send.
type sse struct {
	w     http.ResponseWriter
	ctl   *http.ResponseController
	buf   []byte // what is sent next
	begun bool
}

func newSSE(w http.ResponseWriter) *sse {
	return &sse{w: w, ctl: http.NewResponseController(w), buf: []byte("retry: 2000\n: following\n\n")}
}

// alive adds a comment, so that nobody on the way takes the stream for dead.
func (s *sse) alive() { s.buf = append(s.buf, ": alive\n\n"...) }

// event adds one.
func (s *sse) event(name string, id int64, data any) {
	text, _ := jsonv2.Marshal(data) // texts and numbers
	s.buf = fmt.Appendf(s.buf, "event: %s\nid: %d\ndata: %s\n\n", name, id, text)
}

// send writes what there is, and reports whether the reader still takes it.
func (s *sse) send() bool {
	_ = s.ctl.SetWriteDeadline(time.Now().Add(writeTime))
	if !s.begun {
		s.begun = true
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no") // nginx would collect events before it passes them on
		s.w.WriteHeader(http.StatusOK)
	}
	_, err := s.w.Write(s.buf)
	s.buf = s.buf[:0]
	return err == nil && s.ctl.Flush() == nil
}
