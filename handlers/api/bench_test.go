package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"
	jsonv2 "github.com/go-json-experiment/json"
)

// sink is the cheapest ResponseWriter.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(status int)      { s.status = status }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }

func benchmark(b *testing.B, h http.Handler) {
	b.ReportAllocs()
	body := []byte(taskExample)
	r := httptest.NewRequest("POST", "/api/v1/tasks", nil)
	r.Header.Set("Content-Type", "application/json")
	r.ContentLength = int64(len(body))
	for b.Loop() {
		w := &sink{header: http.Header{}}
		q := *r
		q.Body = io.NopCloser(bytes.NewReader(body))
		h.ServeHTTP(w, &q)
		if w.status != http.StatusCreated && w.status != http.StatusOK {
			b.Fatal(w.status)
		}
	}
}

// BenchmarkSubmit is POST /tasks as it is served, BenchmarkSubmitHuma as huma
// would serve it; the difference is why it is served by hand. BenchmarkSubmitJSON
// is the JSON alone, in and out.
func BenchmarkSubmit(b *testing.B) {
	f := &fake{}
	root := chi.NewRouter()
	root.Use(Access(nil))
	newAPI(f).Mount(root)
	benchmark(b, root)
}

func BenchmarkSubmitHuma(b *testing.B) {
	f := &fake{task: sampleTask()}
	a := newAPI(f)
	type input struct {
		Scope
		WaitParam
		Body NewTask
	}
	type created struct {
		Location string `header:"Location"`
		Body     Task
	}
	r := chi.NewRouter()
	r.Use(Access(nil))
	r.Route("/api/v1", func(r chi.Router) {
		h := humachi.New(r.With(withBody), config("bench"))
		huma.Register(h, huma.Operation{OperationID: "x", Method: "POST", Path: "/tasks", MaxBodyBytes: -1, BodyReadTimeout: -1, DefaultStatus: 201},
			func(ctx context.Context, in *input) (*created, error) {
				s, err := in.Body.submission(actor(ctx))
				if err != nil {
					return nil, err
				}
				t, err := a.ledger.Submit(ctx, in.Namespace, s)
				d := taskDoc(t)
				return &created{d.Links.Self, d}, err
			})
	})
	benchmark(b, r)
}

func BenchmarkSubmitJSON(b *testing.B) {
	b.ReportAllocs()
	body := []byte(taskExample)
	d := taskDoc(sampleTask())
	var buf bytes.Buffer
	for b.Loop() {
		var in NewTask
		if err := decode(body, &in); err != nil {
			b.Fatal(err)
		}
		buf.Reset()
		if err := jsonv2.MarshalWrite(&buf, &d); err != nil {
			b.Fatal(err)
		}
	}
}
