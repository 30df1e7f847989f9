package api

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
)

//go:embed docs.html
var docsHTML string

//go:embed docs.css
var docsCSS []byte

// docsPolicy lets the page load its own style sheet and nothing else.
const docsPolicy = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// registerDocs serves what the API says about itself. Each document is made once,
// when it is first asked for; nothing comes from another host.
func (a *API) registerDocs() {
	spec := a.huma.OpenAPI()
	spec.Components.SecuritySchemes["session"] = &huma.SecurityScheme{Type: "apiKey", In: "cookie", Name: "schedulemesh_…",
		Description: "What a browser gets for its token at /sign-in."}
	spec.Security = append(spec.Security, map[string][]string{"session": {}})
	sum := sha256.Sum256(docsCSS)
	style := "/api/docs-" + hex.EncodeToString(sum[:6]) + ".css"
	serve := func(path, contentType, cache string, document func() ([]byte, error)) {
		once := sync.OnceValues(document)
		a.router.Get(path, func(w http.ResponseWriter, r *http.Request) {
			body, err := once()
			if err != nil {
				refuse(w, r, fmt.Errorf("%s: %w", path, err))
				return
			}
			h := w.Header()
			h.Set("Content-Type", contentType)
			h.Set("Cache-Control", cache)
			h.Set("Content-Security-Policy", docsPolicy)
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("Content-Length", strconv.Itoa(len(body)))
			_, _ = w.Write(body)
		})
	}
	serve("/openapi.json", "application/vnd.oai.openapi+json;version=3.1", "no-cache", func() ([]byte, error) { return json.MarshalIndent(spec, "", " ") })
	serve("/openapi.yaml", "application/yaml", "no-cache", spec.YAML)
	serve("/docs", "text/html; charset=utf-8", "no-cache", func() ([]byte, error) { return docsPage(spec, style) })
	serve(strings.TrimPrefix(style, "/api"), "text/css; charset=utf-8", "public, max-age=31536000, immutable", func() ([]byte, error) { return docsCSS, nil })
}

// What the page shows.
type (
	docsView struct {
		Title, Version, Style string
		About                 []string
		Groups                []docsGroup
		Codes                 []problem.Code
	}
	docsGroup struct {
		Name, About, Anchor string
		Operations          []docsOperation
	}
	docsOperation struct {
		ID, Method, Path, Summary string
		About                     [][]span
		Params                    []docsField
		Body, Answer              []docsField
		BodyRequired              bool
		BodyAny                   string
		Curl, Status              string
		Returns                   string
		Errors                    []docsError
	}
	docsField struct {
		Name, Type, In string
		Required       bool
		Doc            []span
		Depth          int
	}
	docsError struct {
		Status int
		Codes  []problem.Code
	}
	// span is a piece of text, set as code or not.
	span struct {
		Text string
		Code bool
	}
)

func docsPage(spec *huma.OpenAPI, style string) ([]byte, error) {
	v := docsView{Title: spec.Info.Title, Version: spec.Info.Version, Style: style, About: strings.Split(spec.Info.Description, "\n\n"), Codes: problem.Codes}
	for _, tag := range spec.Tags {
		g := docsGroup{Name: tag.Name, About: tag.Description, Anchor: strings.ToLower(tag.Name)}
		for _, path := range sortedPaths(spec, tag.Name) {
			item := spec.Paths[path]
			for _, o := range []*huma.Operation{item.Post, item.Head, item.Get, item.Put, item.Patch, item.Delete} {
				if o != nil && o.Tags[0] == tag.Name {
					g.Operations = append(g.Operations, docsOf(spec, o))
				}
			}
		}
		v.Groups = append(v.Groups, g)
	}
	t, err := template.New("docs").Funcs(template.FuncMap{"lower": strings.ToLower, "spans": spans}).Parse(docsHTML)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, v)
	return b.Bytes(), err
}

func sortedPaths(spec *huma.OpenAPI, tag string) []string {
	return slices.SortedFunc(maps.Keys(spec.Paths), func(a, b string) int {
		if n := strings.Count(a, "/") - strings.Count(b, "/"); n != 0 {
			return n
		}
		return strings.Compare(a, b)
	})
}

func docsOf(spec *huma.OpenAPI, o *huma.Operation) docsOperation {
	d := docsOperation{ID: o.OperationID, Method: o.Method, Path: prefix + o.Path, Summary: o.Summary}
	for _, p := range strings.Split(o.Description, "\n\n") {
		d.About = append(d.About, spans(p))
	}
	for _, p := range o.Parameters {
		doc := p.Description
		if p.Schema != nil && p.Schema.Default != nil {
			doc += fmt.Sprintf(" Default: %v.", p.Schema.Default)
		}
		d.Params = append(d.Params, docsField{Name: p.Name, In: p.In, Type: typeName(spec, p.Schema), Required: p.Required, Doc: spans(doc)})
	}
	if o.RequestBody != nil {
		s := &huma.Schema{Type: o.RequestBody.Description}
		if c := o.RequestBody.Content["application/json"]; c != nil {
			s = c.Schema
		}
		d.Body, d.BodyRequired = fieldsOf(spec, s, 0), o.RequestBody.Required
		if len(d.Body) == 0 {
			d.BodyAny = typeName(spec, s)
		}
	}
	for _, code := range slices.Sorted(maps.Keys(o.Responses)) {
		r := o.Responses[code]
		status, _ := strconv.Atoi(code)
		if status < 300 {
			if d.Status != "" {
				d.Status += " or "
			}
			d.Status += code
			if c := r.Content["application/json"]; c != nil && d.Answer == nil {
				d.Returns = typeName(spec, c.Schema)
				d.Answer = fieldsOf(spec, c.Schema, 0)
			}
			continue
		}
		e := docsError{Status: status}
		for _, c := range problem.Codes {
			if strings.Contains(r.Description, "`"+c.Name+"`") {
				e.Codes = append(e.Codes, c)
			}
		}
		d.Errors = append(d.Errors, e)
	}
	d.Curl = curl(o)
	return d
}

// curl writes the call as a shell line.
func curl(o *huma.Operation) string {
	path := prefix + o.Path
	for _, p := range o.Parameters {
		if p.In == "path" {
			example := p.Example
			if example == nil {
				example = "1"
			}
			path = strings.ReplaceAll(path, "{"+p.Name+"}", fmt.Sprint(example))
		}
	}
	if q, ok := o.Extensions["x-example-query"].(string); ok {
		path += "?" + q
	}
	line := "curl "
	switch {
	case o.OperationID == "stream-events":
		line += "-N "
	case o.Method == http.MethodHead:
		line += "-I "
	case o.Method != http.MethodGet && (o.Method != http.MethodPost || o.RequestBody == nil):
		line += "-X " + o.Method + " "
	}
	line += `-H "Authorization: Bearer $TOKEN" "$SERVER` + path + `"`
	if o.RequestBody != nil {
		c := o.RequestBody.Content["application/json"]
		if c == nil {
			line += " \\\n  --data-binary @package.zip"
		} else if example, ok := c.Example.(json.RawMessage); ok {
			line += " \\\n  --json '" + strings.ReplaceAll(string(example), "\n", "\n  ") + "'"
		}
	}
	return line
}

func resolve(spec *huma.OpenAPI, s *huma.Schema) *huma.Schema {
	for s != nil && s.Ref != "" {
		s = spec.Components.Schemas.SchemaFromRef(s.Ref)
	}
	return s
}

// fieldsOf lists the fields of an object, nested ones below their parents.
func fieldsOf(spec *huma.OpenAPI, s *huma.Schema, depth int) []docsField {
	s = resolve(spec, s)
	if s != nil && s.Type == huma.TypeArray {
		s = resolve(spec, s.Items)
	}
	if s == nil || depth > 3 {
		return nil
	}
	var out []docsField
	for _, name := range order(s) {
		f := s.Properties[name]
		doc := f.Description
		if r := resolve(spec, f); doc == "" && r != nil {
			doc = r.Description
		}
		if f.Default != nil {
			doc += fmt.Sprintf(" Default: %v.", f.Default)
		}
		out = append(out, docsField{Name: name, Type: typeName(spec, f), Required: slices.Contains(s.Required, name), Doc: spans(doc), Depth: depth})
		inner := resolve(spec, f)
		if inner != nil && inner.Type == huma.TypeArray {
			inner = resolve(spec, inner.Items)
		}
		if inner != nil && len(inner.Properties) > 0 {
			out = append(out, fieldsOf(spec, inner, depth+1)...)
		}
	}
	return out
}

// order puts required fields first, then by name; huma's map has no order.
func order(s *huma.Schema) []string {
	names := slices.Sorted(maps.Keys(s.Properties))
	slices.SortStableFunc(names, func(a, b string) int {
		return rank(s, a) - rank(s, b)
	})
	return names
}

func rank(s *huma.Schema, name string) int {
	switch {
	case slices.Contains([]string{"task_id", "name", "id", "success", "should_preempt"}, name):
		return 0
	case slices.Contains(s.Required, name):
		return 1
	}
	return 2
}

func typeName(spec *huma.OpenAPI, s *huma.Schema) string {
	if s == nil {
		return ""
	}
	r := resolve(spec, s)
	if r == nil {
		return ""
	}
	name := r.Type
	switch {
	case len(r.Enum) > 0:
		parts := make([]string, len(r.Enum))
		for i, e := range r.Enum {
			parts[i] = fmt.Sprint(e)
		}
		name = strings.Join(parts, " | ")
	case r.Type == huma.TypeArray:
		name = typeName(spec, r.Items) + "[]"
	case r.Type == huma.TypeObject && r.AdditionalProperties != nil && len(r.Properties) == 0:
		if inner, ok := r.AdditionalProperties.(*huma.Schema); ok {
			name = "{string: " + typeName(spec, inner) + "}"
		}
	case r.Type == "":
		name = "any JSON"
	case r.Format != "" && r.Type == huma.TypeString:
		name = r.Format
	case r.ContentEncoding != "":
		name = r.ContentEncoding
	}
	if r.Nullable {
		name += " | null"
	}
	return name
}

// spans splits text at backquotes.
func spans(text string) []span {
	var out []span
	for i, part := range strings.Split(text, "`") {
		if part != "" {
			out = append(out, span{part, i%2 == 1})
		}
	}
	return out
}
