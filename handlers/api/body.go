package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
)

// Caps of a body. Some carry pickled code and its arguments, or saved states.
const (
	maxLaunchBody = 64 << 20
	maxBody       = 1 << 20 // of everything that says nothing else
	maxDepth      = 200     // of arrays and objects in each other; Postgres refuses thousands
	maxNumber     = 400     // digits of a number
)

// bodyTime is how long a body may take to arrive: this, and a second more for each MiB allowed.
const bodyTime = 30 * time.Second

// body is a request's body when it has been read already.
type body struct {
	bytes.Reader
	data []byte
}

func (*body) Close() error { return nil }

// readBody reads the whole body once, in bounds, and refuses what is not JSON:
// everything after it (huma reads a body twice, idempotency hashes it) works on
// memory, and a slow sender holds no handler.
func readBody(w http.ResponseWriter, r *http.Request, limit int64, into *bytes.Buffer) ([]byte, error) {
	if b, ok := r.Body.(*body); ok {
		return b.data, nil
	}
	if err := wantJSON(r); err != nil {
		return nil, err
	}
	if r.ContentLength > limit {
		w.Header().Set("Connection", "close") // the rest is not worth reading
		return nil, tooLargeBody(limit)
	}
	if r.ContentLength == 0 || r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	ctl := http.NewResponseController(w)
	_ = ctl.SetReadDeadline(time.Now().Add(bodyTime + time.Duration(limit>>20)*time.Second))
	if n := r.ContentLength; n > 0 && n <= 1<<20 {
		into.Grow(int(n) + bytes.MinRead) // up to here a lying Content-Length costs nothing worth having
	}
	_, err := into.ReadFrom(http.MaxBytesReader(w, r.Body, limit))
	_ = ctl.SetReadDeadline(time.Time{}) // a deadline left behind would end the request's context later
	if err == nil {
		return into.Bytes(), nil
	}
	var tooLarge *http.MaxBytesError
	var network net.Error
	switch {
	case errors.As(err, &tooLarge):
		return nil, tooLargeBody(limit)
	case errors.As(err, &network) && network.Timeout():
		return nil, problem.New("request_timeout", fmt.Sprintf("the body did not arrive completely; %d bytes did", into.Len()))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, problem.New("bad_request", fmt.Sprintf("the body ended after %d of %d bytes", into.Len(), r.ContentLength))
	}
	return nil, problem.New("bad_request", "the body could not be read")
}

func tooLargeBody(limit int64) error {
	return problem.New("too_large", fmt.Sprintf("the body is larger than %d MiB, which is the most here", limit>>20))
}

func wantJSON(r *http.Request) error {
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return problem.New("unsupported_media_type", fmt.Sprintf("Content-Encoding %q is not supported: send the body as it is", e))
	}
	ct := r.Header.Get("Content-Type")
	if ct == "" || ct == "application/json" || r.ContentLength == 0 {
		return nil
	}
	media, params, err := mime.ParseMediaType(ct)
	if err != nil || media != "application/json" && !(strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json")) {
		return problem.New("unsupported_media_type", fmt.Sprintf("the body is %q; send application/json", ct))
	}
	if c := params["charset"]; c != "" && !strings.EqualFold(c, "utf-8") {
		return problem.New("unsupported_media_type", fmt.Sprintf("the body is in %q; JSON is UTF-8", c))
	}
	return nil
}

// buffers are for bodies; large ones are not kept.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func putBuffer(b *bytes.Buffer) {
	if b.Cap() <= 64<<10 {
		b.Reset()
		buffers.Put(b)
	}
}

// withBody reads and checks the body before anything else looks at the request.
func withBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodDelete {
			next.ServeHTTP(w, r)
			return
		}
		limit := int64(maxBody)
		job := r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/jobs")
		if job {
			limit = maxJobBody
		}
		for _, carries := range [...]string{"/agents", "/state-handlers", "/preemption/restore"} {
			if strings.HasSuffix(r.URL.Path, carries) {
				limit = maxLaunchBody
			}
		}
		buf := buffers.Get().(*bytes.Buffer)
		defer putBuffer(buf)
		data, err := readBody(w, r, limit, buf)
		if p, ok := err.(*problem.Problem); ok && p.Code == "too_large" && job {
			err = tooLargeEnv(p.Detail)
		}
		if err == nil && len(data) > 0 {
			err = checkJSON(data)
		}
		if err != nil {
			refuse(w, r, err)
			return
		}
		b := &body{data: data}
		b.Reset(data)
		r.Body = b
		next.ServeHTTP(w, r)
	})
}

// checkJSON refuses what is not one JSON value, and what Postgres could not hold:
// NUL characters, numbers no float64 can hold, absurd nesting.
func checkJSON(data []byte) error {
	dec := jsontext.NewDecoder(bytes.NewReader(data))
	for {
		tok, err := dec.ReadToken()
		if err == io.EOF && dec.StackDepth() == 0 && dec.InputOffset() > 0 {
			return nil
		}
		if err != nil {
			return badJSON(data, err)
		}
		switch tok.Kind() {
		case '"':
			if strings.IndexByte(tok.String(), 0) >= 0 {
				return invalidAt(dec.StackPointer(), "has a NUL character (\\u0000) in it")
			}
		case '0':
			if text := tok.String(); len(text) > 15 || strings.ContainsAny(text, "eE") {
				if reason := badNumber(text); reason != "" {
					return invalidAt(dec.StackPointer(), reason)
				}
			}
		case '{', '[':
			if dec.StackDepth() > maxDepth {
				return invalidAt("", fmt.Sprintf("arrays and objects are nested more than %d deep", maxDepth))
			}
		}
		if dec.StackDepth() == 0 {
			// Anything after the first value is an error, which the next token shows.
			if rest := bytes.TrimLeft(data[dec.InputOffset():], " \t\r\n"); len(rest) > 0 {
				return badJSONAt(data, int64(len(data)-len(rest)), "something follows the end of the value")
			}
			return nil
		}
	}
}

func badNumber(text string) string {
	if len(text) > maxNumber {
		return fmt.Sprintf("a number of %d digits is too long", len(text))
	}
	if _, err := strconv.ParseFloat(text, 64); err != nil {
		return fmt.Sprintf("%s is too large for a number (a 64-bit float)", text)
	}
	return ""
}

// needsCheck reports whether checkJSON could refuse well-formed JSON. It errs on
// the safe side and is cheap: almost no body needs the check.
func needsCheck(data []byte) bool {
	deep := 0
	for i, c := range data {
		switch c {
		case '[', '{':
			if deep++; deep > maxDepth {
				return true
			}
		case '\\':
			if bytes.HasPrefix(data[i+1:], []byte("u0000")) {
				return true
			}
		case 'e', 'E':
			if i > 0 && (data[i-1] >= '0' && data[i-1] <= '9') {
				return true
			}
		}
	}
	return len(data) > maxNumber && longNumber(data)
}

func longNumber(data []byte) bool {
	run := 0
	for _, c := range data {
		if c >= '0' && c <= '9' || c == '.' {
			if run++; run > maxNumber {
				return true
			}
		} else {
			run = 0
		}
	}
	return false
}

func invalidAt(p jsontext.Pointer, message string) error {
	field := fieldOf(p)
	if field == "" {
		pr := problem.New("invalid", "body: "+message)
		pr.Errors = []problem.Item{{Field: "body", Location: "body", Message: message}}
		return pr
	}
	return problem.Invalid("body", field, message)
}

// fieldOf writes a JSON pointer the way errors name fields: labels.tier, actor_args.0.
func fieldOf(p jsontext.Pointer) string {
	var b strings.Builder
	for tok := range p.Tokens() {
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		if len(tok) > maxName {
			tok = tok[:maxName] + "…"
		}
		b.WriteString(strings.Map(func(r rune) rune {
			if r < ' ' {
				return '�'
			}
			return r
		}, tok))
	}
	return b.String()
}

// badJSON says where a body stops being JSON.
func badJSON(data []byte, err error) error {
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return badJSONAt(data, int64(len(data)), "the body ends in the middle of a value")
		}
		return badJSONAt(data, 0, err.Error())
	}
	reason := ""
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		reason = fmt.Sprintf("the name %q appears twice in one object", fieldOf(syntax.JSONPointer))
	case errors.Is(err, io.ErrUnexpectedEOF):
		reason = "the body ends in the middle of a value"
	case syntax.Err != nil:
		reason = strings.TrimPrefix(syntax.Err.Error(), "jsontext: ")
	}
	return badJSONAt(data, syntax.ByteOffset, reason)
}

func badJSONAt(data []byte, offset int64, reason string) error {
	offset = min(offset, int64(len(data)))
	before := data[:offset]
	line := bytes.Count(before, []byte{'\n'}) + 1
	column := int(offset) - bytes.LastIndexByte(before, '\n')
	detail := fmt.Sprintf("not JSON at line %d, column %d: %s", line, column, reason)
	for _, word := range []string{"NaN", "Infinity", "-Infinity", "nan", "inf", "Inf"} {
		if bytes.HasPrefix(data[offset:], []byte(word)) || offset > 0 && bytes.HasPrefix(data[offset-1:], []byte(word)) {
			detail += fmt.Sprintf("; %s is not JSON, leave the field out instead", word)
			break
		}
	}
	p := problem.New("bad_json", detail)
	p.Errors = []problem.Item{{Field: "body", Location: fmt.Sprintf("body:%d:%d", line, column), Message: reason}}
	return p
}

// given drops a JSON null: it says the same as leaving the field out.
func given(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	return raw
}

// kind checks that a raw field is of one JSON kind: '{' or '['.
func (f *faults) kind(field string, raw json.RawMessage, want byte) json.RawMessage {
	raw = given(raw)
	if raw == nil {
		return nil
	}
	if t := bytes.TrimLeft(raw, " \t\r\n"); len(t) == 0 || t[0] != want {
		f.add("body", field, "must be %s", map[byte]string{'{': "an object", '[': "an array"}[want])
		return nil
	}
	return raw
}
