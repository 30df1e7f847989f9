package api

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/schedulemesh/schedulemesh/ledger"
)

func TestStateHandlersThatCannotBeAreRefused(t *testing.T) {
	for name, tt := range map[string]struct{ method, target, body, field, says string }{
		"broken base64":          {"PUT", "/pools/p/state-handlers", `{"preserver":"%%%"}`, "preserver", "base64"},
		"no text":                {"PUT", "/pools/p/state-handlers", `{"restorer":7}`, "restorer", "string"},
		"a name without a code":  {"PUT", "/pools/p/state-handlers", `{"preserver":"gA==","restorer_name":"load"}`, "restorer", "is missing, but restorer_name is given"},
		"NUL in a name":          {"PUT", "/pools/p/state-handlers", `{"preserver":"gA==","preserver_name":"a\u0000"}`, "preserver_name", "NUL"},
		"an unknown field":       {"PUT", "/pools/p/state-handlers", `{"saver":"gA=="}`, "saver", "no such field"},
		"a pool that cannot be":  {"PUT", "/pools/a%0Ab/state-handlers", `{"preserver":"gA=="}`, "name", "U+000A"},
		"no state":               {"POST", "/preemption/restore", `{}`, "saved_state", "is missing"},
		"a state that is a list": {"POST", "/preemption/restore", `{"saved_state":[]}`, "saved_state", "object"},
		"a negative timeout":     {"POST", "/preemption/restore", `{"saved_state":{},"timeout":-1}`, "timeout", "-1"},
		"an endless timeout":     {"POST", "/preemption/restore", `{"saved_state":{},"timeout":1e5}`, "timeout", "at most 600"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			res := send(t, newAPI(f), tt.method, "/api/v1"+tt.target, tt.body)
			res.want(t, 422, "invalid")
			if res.field("errors.field") != tt.field || !strings.Contains(res.text, tt.says) {
				t.Errorf("names %v, want %s and %q: %s", res.field("errors.field"), tt.field, tt.says, res.text)
			}
			if f.call != "" {
				t.Errorf("the ledger was asked %s", f.call)
			}
		})
	}
}

func TestHandlersAndStatesMayBeLarge(t *testing.T) {
	large := strings.Repeat("A", 20<<20)
	f := &fake{}
	a := newAPI(f)
	send(t, a, "PUT", "/api/v1/pools/p/state-handlers", `{"preserver":"`+base64.StdEncoding.EncodeToString([]byte(large))+`"}`).want(t, 200, "")
	if h := arg[ledger.StateHandlers](t, f, 0); len(h.Preserver.Pickled) != len(large) {
		t.Errorf("%d bytes arrived", len(h.Preserver.Pickled))
	}
	send(t, a, "POST", "/api/v1/preemption/restore", `{"saved_state":{"weights":"`+large+`"}}`).want(t, 200, "")
}
