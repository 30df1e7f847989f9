package ledger

import (
	"errors"
	"fmt"
)

// Error is a refusal with a stable code. Message is a sentence for people: what
// was wrong, with the value, and what to do. Handlers map codes to HTTP once.
type Error struct {
	Code    string
	Message string
	Fields  map[string]string // per-field messages of an invalid request
	Detail  any               // further facts as JSON, such as the explanation of a refusal
	cause   error
}

func (e *Error) Error() string { return e.Message }

// Unwrap gives the cause, for logs; it is never shown to a caller.
func (e *Error) Unwrap() error { return e.cause }

// Is matches by code: errors.Is(err, ErrUnknownPool).
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Sentinels, for matching only.
var (
	ErrInvalid        = &Error{Code: "invalid"}
	ErrUnknownPool    = &Error{Code: "unknown_pool"}
	ErrUnknownTask    = &Error{Code: "unknown_task"}
	ErrUnknownAgent   = &Error{Code: "unknown_agent"}
	ErrUnknownVersion = &Error{Code: "unknown_policy_version"}
	ErrUnknownSpace   = &Error{Code: "unknown_namespace"}
	ErrSpaceInUse     = &Error{Code: "namespace_in_use"}
	ErrSpaceKept      = &Error{Code: "namespace_kept"}
	ErrSpaceClosing   = &Error{Code: "namespace_closing"}
	ErrUnknown        = &Error{Code: "not_found"}
	ErrTaskExists     = &Error{Code: "task_exists"}
	ErrAgentExists    = &Error{Code: "agent_exists"}
	ErrPoolExists     = &Error{Code: "pool_exists"}
	ErrPoolInUse      = &Error{Code: "pool_in_use"}
	ErrTooLarge       = &Error{Code: "request_too_large"}
	ErrNoNode         = &Error{Code: "no_node_large_enough"}
	ErrPoolHeld       = &Error{Code: "pool_held"}
	ErrUnknownNode    = &Error{Code: "unknown_node"}
	ErrInsufficient   = &Error{Code: "insufficient_resources"}
	ErrWrongState     = &Error{Code: "wrong_state"}
	ErrConflict       = &Error{Code: "version_conflict"}
	ErrBusy           = &Error{Code: "too_many_backtests"}
	ErrUnavailable    = &Error{Code: "database_unavailable"}
	ErrClosed         = &Error{Code: "shutting_down"}
	ErrInternal       = &Error{Code: "internal"}
)

func refuse(code *Error, format string, args ...any) *Error {
	return &Error{Code: code.Code, Message: fmt.Sprintf(format, args...)}
}

func invalid(field, format string, args ...any) *Error {
	m := fmt.Sprintf(format, args...)
	return &Error{Code: "invalid", Message: field + ": " + m, Fields: map[string]string{field: m}}
}

// CodeOf gives the stable code of an error, "internal" for one that has none.
func CodeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ErrInternal.Code
}
