package api

import (
	"context"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"

	"github.com/schedulemesh/schedulemesh/jobs"
)

const (
	logLimit    = 64 << 10 // bytes, unless said
	maxLogLimit = 1 << 20
)

// JobLog is a piece of what a job printed.
type JobLog struct {
	Text  string `json:"text" doc:"What was printed; bytes that are not UTF-8 are replaced."`
	Next  int64  `json:"next" doc:"Offset to read on from, in bytes."`
	Ended bool   `json:"ended" doc:"The job is over and nothing will follow."`
	Kept  bool   `json:"kept" doc:"true: this is of the end that we kept, since the cluster does not have the rest any more."`
}

func jobLog(l jobs.Log) JobLog { return JobLog{l.Text, l.Next, l.Ended, l.Kept} }

// registerJobLogs adds GET /jobs/{submission_id}/logs, by hand: it may be a stream.
func (a *API) registerJobLogs(v1 chi.Router) {
	op := operation{id: "read-job-logs", method: "GET", path: "/jobs/{submission_id}/logs", tag: "Jobs",
		summary: "Read what a job printed",
		about: "Read on from `next` until `ended`. With `tail` it is the last lines, as far as they fit into `limit`.\n\n" +
			"With `follow=true` it is a stream of server-sent events: `log` with `{\"text\", \"next\"}` as JSON and `next` as its id, and `end` when the job is over and all was told. " +
			"A comment is sent every 15 seconds when nothing happens. After a break connect again with `Last-Event-ID` (browsers do so by themselves): it goes on where it was.",
		codes: []string{"unknown_job", "cluster_unreachable"}, query: "tail=100",
	}
	h := op.huma()
	registry := a.huma.OpenAPI().Components.Schemas
	text, number := &huma.Schema{Type: huma.TypeString}, &huma.Schema{Type: huma.TypeInteger, Format: "int64"}
	h.Parameters = []*huma.Param{
		{Name: "submission_id", In: "path", Required: true, Description: "Its submission_id, percent-encoded.", Schema: text, Example: "sub_0197a2b46d1e7c3f"},
		{Name: "offset", In: "query", Description: "First byte; negative: that many bytes from the end.", Schema: number},
		{Name: "limit", In: "query", Description: "The most bytes, 1 to 1048576; 65536 when left out, with tail and of the first piece of a stream 1048576.", Schema: number},
		{Name: "tail", In: "query", Description: "The last this many lines, instead of offset.", Schema: number},
		{Name: "follow", In: "query", Description: "true: a stream that goes on until the job is over, from offset or tail on.", Schema: &huma.Schema{Type: huma.TypeBoolean}},
		{Name: "Last-Event-ID", In: "header", Description: "Of a stream: the offset to go on from; it wins.", Schema: number},
	}
	h.Responses = map[string]*huma.Response{"200": {Description: "A piece, or the stream.", Content: map[string]*huma.MediaType{
		"application/json":  {Schema: registry.Schema(reflect.TypeFor[JobLog](), true, "")},
		"text/event-stream": {Schema: text, Example: "event: log\nid: 7\ndata: {\"text\":\"step 1\\n\",\"next\":7}\n\n"},
	}}}
	a.huma.OpenAPI().AddOperation(&h)
	op.describe(a.huma.OpenAPI())
	v1.Get(op.path, a.jobLogs)
}

// logQuery is what a request for a job's output asks.
type logQuery struct {
	id            string
	offset, limit int64
	tail          int64 // lines; 0: not asked
	follow        bool
}

func (a *API) jobLogs(w http.ResponseWriter, r *http.Request) {
	q, err := readLogQuery(r)
	if err != nil {
		refuse(w, r, err)
		return
	}
	if q.follow {
		a.followLogs(w, r, q)
		return
	}
	l, err := a.readLog(r.Context(), q)
	if err != nil {
		refuse(w, r, err)
		return
	}
	out := jobLog(l)
	writeJSON(w, r, http.StatusOK, &out)
}

func readLogQuery(r *http.Request) (q logQuery, err error) {
	var f faults
	q = logQuery{id: pathParam(r, "submission_id")}
	f.name("path", "submission_id", q.id)
	number := func(location, name, s string, least, most int64) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < least || n > most {
			f.add(location, name, "%.100q is not a whole number from %d to %d", s, least, most)
		}
		return n
	}
	const huge = 1 << 50
	values := r.URL.Query()
	if values.Has("tail") && values.Has("offset") {
		f.add("query", "tail", "comes together with offset; send one of them")
	}
	for k := range values {
		switch v := values.Get(k); k {
		case "offset":
			q.offset = number("query", k, v, -huge, huge)
		case "limit":
			q.limit = number("query", k, v, 1, maxLogLimit)
		case "tail":
			q.tail = number("query", k, v, 1, huge)
		case "follow":
			if q.follow, err = strconv.ParseBool(v); err != nil {
				f.add("query", k, "%.100q is neither true nor false", v)
			}
		default:
			f.add("query", k, "there is no such parameter here")
		}
	}
	if q.limit == 0 {
		if q.limit = logLimit; q.tail > 0 || q.follow {
			q.limit = maxLogLimit
		}
	}
	if last := r.Header.Get("Last-Event-Id"); last != "" && q.follow {
		q.offset, q.tail = number("header", "Last-Event-ID", last, 0, huge), 0
	}
	return q, f.err()
}

// readLog reads one piece. The last lines are looked for in the last limit bytes, however long the whole is.
func (a *API) readLog(ctx context.Context, q logQuery) (jobs.Log, error) {
	if q.tail == 0 {
		return a.jobs.Logs(ctx, q.id, q.offset, q.limit)
	}
	l, err := a.jobs.Logs(ctx, q.id, -q.limit, q.limit)
	l.Text = lastLines(l.Text, q.tail)
	return l, err
}

// lastLines cuts text down to its last n lines, the last of which may not be ended yet.
func lastLines(text string, n int64) string {
	end := len(strings.TrimSuffix(text, "\n"))
	for ; n > 0; n-- {
		i := strings.LastIndexByte(text[:end], '\n')
		if i < 0 {
			return text
		}
		end = i
	}
	return text[end+1:]
}

// followLogs streams what a job printed and prints. What can be refused is refused before the stream begins. It
// ends with the job, with the request's context (the server ends those when it stops), when the reader takes
// nothing any more, or when the cluster cannot be read: the reader then connects again with Last-Event-ID and, if
// that is still so, is told. One piece at a time is in memory.
func (a *API) followLogs(w http.ResponseWriter, r *http.Request, q logQuery) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	l, err := a.readLog(ctx, q)
	if err != nil {
		refuse(w, r, err)
		return
	}
	s := newSSE(w)
	next := l.Next
	piece := func(l jobs.Log) {
		if next = l.Next; l.Text != "" {
			s.event("log", next, jobLog(l))
		}
	}
	end := func() {
		s.event("end", next, struct {
			Next int64 `json:"next"`
		}{next})
		s.send()
	}
	if piece(l); l.Ended {
		end()
		return
	}
	if !s.send() {
		return
	}

	pieces, over := make(chan jobs.Log), make(chan error, 1)
	go func() {
		over <- a.jobs.Follow(ctx, q.id, l.Next, func(l jobs.Log) error {
			select {
			case pieces <- l:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	beat := time.NewTicker(a.heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			s.alive()
		case l := <-pieces:
			piece(l)
		case err := <-over:
			if err == nil && ctx.Err() == nil {
				end()
			}
			return
		}
		if !s.send() {
			return
		}
	}
}
