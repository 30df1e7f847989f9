package api

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"
	jsonv2 "github.com/go-json-experiment/json"

	"github.com/schedulemesh/schedulemesh/ledger"
)

// registerEvents adds GET /events, by hand: a stream is not a document.
func (a *API) registerEvents(v1 chi.Router) {
	op := operation{id: "stream-events", method: "GET", path: "/events", tag: "Events",
		summary: "Follow events",
		about: "A stream of server-sent events: `id` is the event's id, `data` the event as JSON. A comment is sent every 15 seconds when nothing happens. " +
			"After a break connect again with `Last-Event-ID` (browsers do so by themselves): nothing is left out and nothing comes twice. Without it the stream starts now.\n\n" +
			"With `Accept: application/json` the answer is one page of events after `after` instead.",
		query: "after=1200",
	}
	h := op.huma()
	registry := a.huma.OpenAPI().Components.Schemas
	text, number := &huma.Schema{Type: huma.TypeString}, &huma.Schema{Type: huma.TypeInteger, Format: "int64"}
	h.Parameters = []*huma.Param{
		{Name: "namespace", In: "query", Description: "The namespace to follow.", Schema: text, Example: defaultNamespace},
		{Name: "after", In: "query", Description: "Start after the event with this id; 0 or nothing: now (a page: from the first event).", Schema: number},
		{Name: "limit", In: "query", Description: "The most events of a page, 1 to 500; 50 when left out.", Schema: number},
		{Name: "Last-Event-ID", In: "header", Description: "The same as after, as browsers send it; it wins.", Schema: number},
	}
	h.Responses = map[string]*huma.Response{"200": {Description: "The stream, or one page.", Content: map[string]*huma.MediaType{
		"text/event-stream": {Schema: text, Example: "id: 1201\ndata: {\"id\":1201,\"type\":\"running\",\"task_id\":\"train-1\"}\n\n"},
		"application/json":  {Schema: registry.Schema(reflect.TypeFor[List[Event]](), true, "")},
	}}}
	a.huma.OpenAPI().AddOperation(&h)
	op.describe(a.huma.OpenAPI())
	v1.Get("/events", a.events)
}

func (a *API) events(w http.ResponseWriter, r *http.Request) {
	ns, after, limit, err := eventQuery(r)
	if err != nil {
		refuse(w, r, err)
		return
	}
	if accept := r.Header.Get("Accept"); strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/event-stream") {
		events, err := a.ledger.Events(r.Context(), ns, after, limit)
		if err != nil {
			refuse(w, r, err)
			return
		}
		next := ""
		if len(events) == limit {
			next = strconv.FormatInt(events[len(events)-1].ID, 10)
		}
		page := list(mapped(events, eventDoc), next)
		writeJSON(w, r, http.StatusOK, &page)
		return
	}
	a.stream(w, r, ns, after)
}

func eventQuery(r *http.Request) (ns string, after int64, limit int, err error) {
	q := r.URL.Query()
	ns, limit = namespaceOf(r), 50
	var f faults
	f.name("query", "namespace", ns)
	number := func(location, name, s string, least, most int64) (n int64) {
		if s == "" {
			return 0
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < least || n > most {
			f.add(location, name, "%.100q is not a whole number from %d to %d", s, least, most)
		}
		return n
	}
	const huge = 1<<63 - 1
	for k := range q {
		switch k {
		case "namespace":
		case "after", "cursor": // a page's next_cursor is an event's id
			after = number("query", k, q.Get(k), 0, huge)
		case "limit":
			limit = int(number("query", k, q.Get(k), 1, 500))
		default:
			f.add("query", k, "there is no such parameter here")
		}
	}
	if last := r.Header.Get("Last-Event-Id"); last != "" {
		after = number("header", "Last-Event-ID", last, 0, huge)
	}
	return ns, after, limit, f.err()
}

// stream ends with the request's context (the server ends those when it stops),
// when the ledger closes the channel because this reader is too slow, or when
// the reader takes nothing any more.
func (a *API) stream(w http.ResponseWriter, r *http.Request, ns string, after int64) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	events, err := a.ledger.Subscribe(ctx, ns, after)
	if err != nil {
		refuse(w, r, err)
		return
	}
	s := newSSE(w)
	if !s.send() {
		return
	}
	beat := time.NewTicker(a.heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			s.alive()
		case e, ok := <-events:
			if !ok {
				return
			}
			s.buf = appendEvent(s.buf, e)
			// What else is there already goes out with one write.
			for more := true; more && len(s.buf) < 64<<10; {
				select {
				case e, ok := <-events:
					if !ok {
						s.send()
						return
					}
					s.buf = appendEvent(s.buf, e)
				default:
					more = false
				}
			}
		}
		if !s.send() {
			return
		}
	}
}

func appendEvent(b []byte, e ledger.Event) []byte {
	data, err := jsonv2.Marshal(eventDoc(e))
	if err != nil { // a detail that is not JSON
		e.Detail = nil
		data, _ = jsonv2.Marshal(eventDoc(e))
	}
	return fmt.Appendf(b, "id: %d\ndata: %s\n\n", e.ID, data)
}
