package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
	"github.com/schedulemesh/schedulemesh/ledger"
)

// Huma builds its own errors through this variable, the only hook it has. Ours
// give them the shape of all other errors.
func init() {
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError { return fromHuma(status, msg, errs) }
	huma.NewErrorWithContext = func(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
		p := fromHuma(status, msg, errs)
		p.RequestID = RequestID(ctx.Context())
		if q := requestOf(ctx.Context()); q != nil && p.Status >= 500 {
			q.cause = errors.Join(append([]error{errors.New(msg)}, errs...)...)
		}
		return p
	}
}

// toProblem is the one place where errors become HTTP. What is not meant for
// callers becomes "internal"; its cause goes to the log.
func toProblem(ctx context.Context, err error) *problem.Problem {
	var p *problem.Problem
	var e *ledger.Error
	switch {
	case errors.As(err, &p):
		clone := *p
		p = &clone
	case errors.As(err, &e) && problem.Known(e.Code) && e.Code != "internal":
		p = problem.New(e.Code, e.Message)
		p.Explanation = explanation(e.Detail)
		for field, message := range e.Fields {
			p.Errors = append(p.Errors, problem.Item{Field: field, Location: "body." + field, Message: message})
		}
		slices.SortFunc(p.Errors, func(a, b problem.Item) int { return strings.Compare(a.Field, b.Field) })
	case ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		p = problem.New("shutting_down", "the request ended before it was answered")
	default:
		p = problem.New("internal", "")
	}
	if q := requestOf(ctx); q != nil {
		p.RequestID = q.id
		if p.Status >= 500 {
			q.cause = err
			for cause := errors.Unwrap(err); cause != nil; cause = errors.Unwrap(cause) {
				q.cause = cause // the innermost says most, and ledger.Error does not print it
			}
		}
	}
	return p
}

// refuse answers with an error, outside of huma.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	problem.Write(w, toProblem(r.Context(), err))
}

// fromHuma translates what huma found wrong with a request.
func fromHuma(status int, msg string, errs []error) *problem.Problem {
	code := map[int]string{400: "bad_request", 404: "not_found", 405: "method_not_allowed", 408: "request_timeout", 413: "too_large", 415: "unsupported_media_type"}[status]
	switch {
	case status == 0: // for the OpenAPI document
		return &problem.Problem{}
	case code == "" && status >= 400 && status < 500, len(errs) > 0 && status == 400:
		code = "invalid"
	case code == "":
		return problem.New("internal", "")
	}
	var f faults
	for _, err := range errs {
		var d huma.ErrorDetailer
		if !errors.As(err, &d) {
			continue
		}
		detail := d.ErrorDetail()
		location, field, ok := strings.Cut(detail.Location, ".")
		if !ok {
			field = location
		}
		item := problem.Item{Field: field, Location: detail.Location, Message: humaMessage(detail)}
		if name, missing := strings.CutPrefix(detail.Message, "expected required property "); missing {
			// Huma says it of the object; people look for the field.
			name = strings.TrimSuffix(name, " to be present")
			item = problem.Item{Field: strings.TrimPrefix(detail.Location+"."+name, "body."), Location: detail.Location + "." + name, Message: "is missing"}
		}
		if !slices.Contains(f, item) {
			f = append(f, item)
		}
	}
	if err := f.err(); err != nil {
		p := err.(*problem.Problem)
		if code != "invalid" {
			q := problem.New(code, p.Detail)
			q.Errors = p.Errors
			return q
		}
		return p
	}
	return problem.New(code, msg)
}

// humaMessage adds the value that was wrong, when it is short, to what should be there.
func humaMessage(d *huma.ErrorDetail) string {
	if d.Message == "unexpected property" {
		return "there is no such field here"
	}
	switch v := d.Value.(type) {
	case string:
		if len(v) <= 100 && v != "" {
			return fmt.Sprintf("%s, got %q", d.Message, v)
		}
	case float64, bool:
		return fmt.Sprintf("%s, got %v", d.Message, v)
	}
	return d.Message
}
