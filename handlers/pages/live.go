package pages

import (
	"net/http"
	"slices"
	"time"
)

// stream tells a page what changed: one server-sent event for a topic, never more often than
// Options.Quiet, and always one after the last change. Pages then fetch their fragments again.
func (s *site) stream(w http.ResponseWriter, r *http.Request) {
	c := http.NewResponseController(w)
	h := w.Header()
	secure(h)
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // of a proxy that would hold events back
	topics := s.live.Subscribe(r.Context(), namespace(r))

	write := func(text string) bool {
		_ = c.SetWriteDeadline(time.Now().Add(30 * time.Second)) // not every writer has one
		_, err := w.Write([]byte(text))
		return err == nil && c.Flush() == nil
	}
	if !write("retry: 1000\n\n") {
		return
	}
	quiet := map[Topic]bool{}   // heard lately
	waiting := map[Topic]bool{} // changed since
	calm := make(chan Topic)
	beat := time.NewTicker(s.o.Heartbeat)
	defer beat.Stop()
	tell := func(t Topic) bool {
		quiet[t] = true
		timer := time.AfterFunc(s.o.Quiet, func() {
			select {
			case calm <- t:
			case <-r.Context().Done():
			}
		})
		_ = timer // ends by itself, or with the request
		return write("event: " + string(t) + "\ndata:\n\n")
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case t, ok := <-topics:
			switch {
			case !ok:
				return
			case !slices.Contains(everyTopic, t):
			case quiet[t]:
				waiting[t] = true
			case !tell(t):
				return
			}
		case t := <-calm:
			delete(quiet, t)
			if waiting[t] {
				delete(waiting, t)
				if !tell(t) {
					return
				}
			}
		case <-beat.C:
			if !write(": still here\n\n") {
				return
			}
		}
	}
}

var everyTopic = []Topic{Tasks, Pools, Policy, Preemptions, Agents, Events, Jobs, Clusters}
