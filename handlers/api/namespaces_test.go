package api

import (
	"strings"
	"testing"
)

func TestBadSessionsAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ method, target, body, field, says string }{
		"no session":            {"PUT", "x", `{}`, "session", "missing"},
		"empty session":         {"PUT", "x", `{"detached":false,"session":""}`, "session", "missing"},
		"session of one kind":   {"PUT", "x", `{"session":7}`, "session", "expected string"},
		"huge session":          {"PUT", "x", `{"session":"` + strings.Repeat("s", 201) + `"}`, "session", "201 characters"},
		"huge owner":            {"PUT", "x", `{"session":"s","owner":"` + strings.Repeat("s", 201) + `"}`, "owner", "201 characters"},
		"control character":     {"PUT", "x", `{"session":"a\u0007"}`, "session", "printable"},
		"huge replace":          {"PUT", "x", `{"session":"s","replace":"` + strings.Repeat("s", 201) + `"}`, "replace", "201 characters"},
		"ttl of nothing":        {"PUT", "x", `{"session":"s","ttl":0}`, "ttl", "give 1 to 3600"},
		"ttl below nothing":     {"PUT", "x", `{"session":"s","ttl":-15}`, "ttl", "give 1 to 3600"},
		"ttl too short":         {"PUT", "x", `{"session":"s","ttl":0.999}`, "ttl", "give 1 to 3600"},
		"ttl too long":          {"PUT", "x", `{"session":"s","ttl":3600.5}`, "ttl", "give 1 to 3600"},
		"ttl absurd":            {"PUT", "x", `{"session":"s","ttl":1e300}`, "ttl", "give 1 to 3600"},
		"ttl as text":           {"PUT", "x", `{"session":"s","ttl":"15"}`, "ttl", "expected number"},
		"unknown field":         {"PUT", "x", `{"session":"s","time":1}`, "time", "no such field"},
		"detached as text":      {"PUT", "x", `{"detached":"yes"}`, "detached", "expected boolean"},
		"huge name":             {"PUT", strings.Repeat("n", 201), `{"session":"s"}`, "name", "201 characters"},
		"name of a dot":         {"PUT", "%2E%2E", `{"session":"s"}`, "name", "cannot be part of a URL"},
		"broken name":           {"PUT", "a%00b", `{"session":"s"}`, "name", "printable"},
		"huge name, read":       {"GET", strings.Repeat("n", 201), "", "name", "201 characters"},
		"huge name, deleted":    {"DELETE", strings.Repeat("n", 201), "", "name", "201 characters"},
		"huge session, ended":   {"DELETE", "x?session=" + strings.Repeat("n", 201), "", "session", "201 characters"},
		"force of another sort": {"DELETE", "x?force=perhaps", "", "force", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			res := send(t, newAPI(f), c.method, "/api/v1/namespaces/"+c.target, c.body)
			res.want(t, 422, "invalid")
			res.has(t, map[string]any{"errors.field": c.field})
			if !strings.Contains(res.text, c.says) {
				t.Errorf("it does not say %q: %s", c.says, res.text)
			}
			if f.call != "" {
				t.Errorf("the ledger was asked %s", f.call)
			}
		})
	}
	// What is not JSON at all.
	send(t, newAPI(&fake{}), "PUT", "/api/v1/namespaces/x", `{"session":"s","ttl":NaN}`).want(t, 400, "bad_json")
}
