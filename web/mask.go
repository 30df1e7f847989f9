package web

import (
	"bytes"
	"encoding/json"
	"regexp"
)

// Masked stands for a value that is not shown. Typed into a form it means the value that is there.
const Masked = "•••••• (not shown)"

var (
	secretName = regexp.MustCompile(`(?i)secret|token|passw|passphrase|credential|api_?key|access_?key|private_?key|auth|_key$|^key$|_pat$|cookie|dsn|conn(ection)?_?str`)
	userInfo   = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@]*:)[^\s/@]+@`)
)

// MaskEnv is a runtime environment as pages show it: indented, values of variables whose names look like secrets
// and passwords inside of addresses masked. hidden counts them. What is no JSON object is not shown at all.
func MaskEnv(env json.RawMessage) (text string, hidden int) {
	if len(bytes.TrimSpace(env)) == 0 {
		return "", 0
	}
	var doc map[string]any
	d := json.NewDecoder(bytes.NewReader(env))
	d.UseNumber()
	if d.Decode(&doc) != nil || len(doc) == 0 {
		return "", 0
	}
	if vars, ok := doc["env_vars"].(map[string]any); ok {
		for name := range vars {
			if secretName.MatchString(name) {
				vars[name] = Masked
				hidden++
			}
		}
	}
	return indented(walk(doc, func(s string) string {
		return userInfo.ReplaceAllStringFunc(s, func(m string) string {
			hidden++
			return userInfo.FindStringSubmatch(m)[1] + Masked + "@"
		})
	})), hidden
}

// Unmask puts the values of was where env has Masked ones: a form is saved without its secrets having been shown.
func Unmask(env, was json.RawMessage) json.RawMessage {
	if !bytes.Contains(env, []byte(Masked)) {
		return env
	}
	var now, old any
	if json.Unmarshal(env, &now) != nil || json.Unmarshal(was, &old) != nil {
		return env
	}
	return json.RawMessage(indented(fill(now, old)))
}

func fill(now, old any) any {
	switch n := now.(type) {
	case map[string]any:
		o, _ := old.(map[string]any)
		for k, v := range n {
			n[k] = fill(v, o[k])
		}
	case []any:
		o, _ := old.([]any)
		for i, v := range n {
			was := any(nil)
			for _, x := range o { // lists may have been put into another order
				if s, ok := x.(string); ok && masked(s) == v {
					was = x
				}
			}
			if was == nil && i < len(o) {
				was = o[i]
			}
			n[i] = fill(v, was)
		}
	case string:
		if s, ok := old.(string); ok && (n == Masked || n == masked(s)) {
			return s
		}
	}
	return now
}

func masked(s string) string { return userInfo.ReplaceAllString(s, "${1}"+Masked+"@") }

// walk changes every string of a document.
func walk(v any, change func(string) string) any {
	switch x := v.(type) {
	case map[string]any:
		for k, y := range x {
			x[k] = walk(y, change)
		}
	case []any:
		for i, y := range x {
			x[i] = walk(y, change)
		}
	case string:
		return change(x)
	}
	return v
}

func indented(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if e.Encode(v) != nil {
		return ""
	}
	return string(bytes.TrimSpace(b.Bytes()))
}
