package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// keptHeaders are the headers of an answer that its replay has too.
var keptHeaders = []string{"Content-Type", "Location", "Etag"}

// errRefused says that nothing came of a request, so that its key stays free.
var errRefused = errors.New("refused")

// idempotent makes a POST with an Idempotency-Key happen once. The same request
// with the same key gets the first answer again (Idempotency-Replayed: true),
// another request with it is refused. A refusal is not remembered: it changed
// nothing, and the next try may well succeed.
func (a *API) idempotent(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.Header["Idempotency-Key"] == nil {
			next.ServeHTTP(w, r)
			return
		}
		key := r.Header.Get("Idempotency-Key")
		ns := namespaceOf(r)
		var f faults
		f.name("header", "Idempotency-Key", key)
		f.name("query", "namespace", ns)
		if err := f.err(); err != nil {
			refuse(w, r, err)
			return
		}
		var buf bytes.Buffer
		data, err := readBody(w, r, maxLaunchBody, &buf)
		if err != nil {
			refuse(w, r, err)
			return
		}
		var refusal *answer
		status, kept, replayed, err := a.ledger.Idempotent(r.Context(), ns, key, fingerprint(r, data), func(ctx context.Context) (int, []byte, error) {
			rec := &answer{header: http.Header{}}
			inner := r.WithContext(ctx)
			b := &body{data: data}
			b.Reset(data)
			inner.Body = b
			next.ServeHTTP(rec, inner)
			if rec.status < 200 || rec.status > 299 {
				refusal = rec
				return 0, nil, errRefused
			}
			return rec.status, rec.encode(), nil
		})
		switch {
		case refusal != nil:
			refusal.writeTo(w)
		case err != nil:
			refuse(w, r, err)
		default:
			rec, err := decodeAnswer(status, kept)
			if err != nil {
				refuse(w, r, fmt.Errorf("answer kept for idempotency key: %w", err))
				return
			}
			if replayed {
				rec.header.Set("Idempotency-Replayed", "true")
			}
			rec.writeTo(w)
		}
	})
}

// fingerprint tells requests apart. How long a request waits is no part of what it asks for.
func fingerprint(r *http.Request, data []byte) []byte {
	h := sha256.New()
	q := r.URL.Query()
	q.Del("wait")
	fmt.Fprintf(h, "%s %s?%s\n", r.Method, r.URL.EscapedPath(), q.Encode())
	h.Write(data)
	return h.Sum(nil)
}

// answer records what a handler answers.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// encode writes the kept headers and the body the way HTTP does.
func (a *answer) encode() []byte {
	var b bytes.Buffer
	for _, k := range keptHeaders {
		if v := a.header.Get(k); v != "" {
			fmt.Fprintf(&b, "%s: %s\n", k, v)
		}
	}
	b.WriteByte('\n')
	b.Write(a.body.Bytes())
	return b.Bytes()
}

func decodeAnswer(status int, kept []byte) (*answer, error) {
	rest, none := bytes.CutPrefix(kept, []byte("\n"))
	var head []byte
	if !none {
		var ok bool
		if head, rest, ok = bytes.Cut(kept, []byte("\n\n")); !ok {
			return nil, errors.New("it has no headers")
		}
	}
	h := textproto.MIMEHeader{}
	if len(head) > 0 {
		var err error
		if h, err = textproto.NewReader(bufio.NewReader(strings.NewReader(string(head) + "\n\n"))).ReadMIMEHeader(); err != nil {
			return nil, err
		}
	}
	a := &answer{header: http.Header(h), status: status}
	a.body.Write(rest)
	return a, nil
}

func (a *answer) writeTo(w http.ResponseWriter) {
	for k, v := range a.header {
		w.Header()[k] = v
	}
	if a.body.Len() > 0 {
		w.Header().Set("Content-Length", strconv.Itoa(a.body.Len()))
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes())
}
