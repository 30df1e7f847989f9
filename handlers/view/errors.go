package view

import (
	"context"
	"errors"
	"strings"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/ledger"
)

// refusal is a ledger.Error as pages take it. Unwrap leads to its cause, for those who log.
type refusal struct {
	pages.Refusal
	cause error
	plain map[string]string // ByField, before they were made sentences
}

func (r *refusal) Unwrap() error { return r.cause }

// refused makes an error of the ledger one that people can read. What was nobody's
// mistake is logged here with its cause, which pages never see.
func (v *View) refused(ctx context.Context, err error) error {
	var e *ledger.Error
	if err == nil || !errors.As(err, &e) {
		return err
	}
	if cause := errors.Unwrap(error(e)); cause != nil && ctx.Err() == nil {
		v.o.Logger.ErrorContext(ctx, "the ledger could not answer a page", "code", e.Code, "cause", cause)
	}
	r := &refusal{Refusal: pages.Refusal{ErrorCode: e.Code, Message: sentence(e.Message)}, cause: err}
	if len(e.Fields) > 0 {
		r.ByField, r.plain = map[string]string{}, e.Fields
		for field, message := range e.Fields {
			r.ByField[field] = sentence(message)
		}
	}
	return r
}

// onForm is refused for a form: what the ledger says of a field the form does not
// have goes on top of it, and what it says by a code alone goes where it was typed.
func (v *View) onForm(ctx context.Context, err error, byCode map[string]string, fields ...string) error {
	err = v.refused(ctx, err)
	var r *refusal
	if !errors.As(err, &r) {
		return err
	}
	if field := byCode[r.ErrorCode]; field != "" && len(r.ByField) == 0 {
		r.ByField = map[string]string{field: r.Message}
		return r
	}
	known := map[string]bool{}
	for _, f := range fields {
		known[f] = true
	}
	out := map[string]string{}
	for field, message := range r.ByField {
		name, _, _ := strings.Cut(field, ".")
		switch {
		case known[strings.ReplaceAll(field, ".", "_")]: // entry.args is typed into entry_args
			out[strings.ReplaceAll(field, ".", "_")] = message
		case name == "pg_pool_config": // one text has all of it, so the message says where
			_, rest, _ := strings.Cut(field, ".")
			out[name] = sentence(strings.TrimSpace(rest + " " + r.plain[field]))
		case known[name]:
			out[name] = message
		default:
			out = nil
		}
		if out == nil {
			break
		}
	}
	r.ByField = out
	return r
}

func invalid(field, message string) error {
	return &pages.Refusal{ErrorCode: "invalid", Message: message, ByField: map[string]string{field: message}}
}

// sentence begins with a capital and ends with a full stop, as pages write them. What
// begins with a name keeps it as it is.
func sentence(s string) string {
	if s == "" {
		return s
	}
	if c := s[0]; c >= 'a' && c <= 'z' {
		word, _, _ := strings.Cut(s, " ")
		if !strings.ContainsAny(word, "_:.") {
			s = strings.ToUpper(s[:1]) + s[1:]
		}
	}
	if !strings.HasSuffix(s, ".") && !strings.HasSuffix(s, "…") && !strings.HasSuffix(s, "!") {
		s += "."
	}
	return s
}
