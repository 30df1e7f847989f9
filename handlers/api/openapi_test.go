package api

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
)

func openapi(t *testing.T) map[string]any {
	t.Helper()
	return send(t, newAPI(&fake{}), "GET", "/api/openapi.json", "").json
}

func at(t *testing.T, v any, path ...string) any {
	t.Helper()
	for _, k := range path {
		m, ok := v.(map[string]any)
		if !ok || m[k] == nil {
			t.Fatalf("the document has no %v", path)
		}
		v = m[k]
	}
	return v
}

func TestOpenAPIDescribesEveryOperation(t *testing.T) {
	spec := openapi(t)
	if at(t, spec, "openapi") != "3.1.0" {
		t.Errorf("version %v", spec["openapi"])
	}
	ids := map[string]bool{}
	for path, item := range at(t, spec, "paths").(map[string]any) {
		for method, op := range item.(map[string]any) {
			name := strings.ToUpper(method) + " " + path
			o := op.(map[string]any)
			id, _ := o["operationId"].(string)
			if id == "" || ids[id] {
				t.Errorf("%s has the id %q", name, id)
			}
			ids[id] = true
			for _, field := range []string{"summary", "description"} {
				if s, _ := o[field].(string); s == "" {
					t.Errorf("%s has no %s", name, field)
				}
			}
			responses := o["responses"].(map[string]any)
			for _, status := range []string{"401", "422", "500", "503"} {
				at(t, responses, status, "content", "application/problem+json", "schema")
			}
			good := slices.ContainsFunc(slices.Collect(maps.Keys(responses)), func(s string) bool { return strings.HasPrefix(s, "2") })
			if !good {
				t.Errorf("%s never succeeds", name)
			}
			for status, r := range responses {
				if d, _ := r.(map[string]any)["description"].(string); d == "" {
					t.Errorf("%s has no description of %s", name, status)
				}
			}
			params, _ := o["parameters"].([]any)
			for _, p := range params {
				if d, _ := p.(map[string]any)["description"].(string); d == "" {
					t.Errorf("%s: parameter %v has no description", name, p.(map[string]any)["name"])
				}
			}
			for _, inPath := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(path, -1) {
				if !slices.ContainsFunc(params, func(p any) bool { return p.(map[string]any)["name"] == inPath[1] }) {
					t.Errorf("%s does not declare %s", name, inPath[1])
				}
			}
			if body, ok := o["requestBody"]; ok && id != "put-package" { // whose body is a file
				at(t, body, "content", "application/json", "example")
			}
		}
	}
}

func TestOpenAPIReferencesLeadSomewhere(t *testing.T) {
	res := send(t, newAPI(&fake{}), "GET", "/api/openapi.json", "")
	schemas := at(t, res.json, "components", "schemas").(map[string]any)
	for _, ref := range regexp.MustCompile(`"\$ref":\s*"#/components/schemas/([^"]+)"`).FindAllStringSubmatch(res.text, -1) {
		if schemas[ref[1]] == nil {
			t.Errorf("there is no schema %s", ref[1])
		}
	}
}

func TestOpenAPICodesHaveTheirStatus(t *testing.T) {
	for path, item := range at(t, openapi(t), "paths").(map[string]any) {
		for method, op := range item.(map[string]any) {
			for status, r := range op.(map[string]any)["responses"].(map[string]any) {
				for _, code := range regexp.MustCompile("`([a-z_]+)`:").FindAllStringSubmatch(r.(map[string]any)["description"].(string), -1) {
					want := strconv.Itoa(problem.New(code[1], "").Status)
					if code[1] == "version_conflict" && status == "412" {
						want = status // what a failing If-Match answers
					}
					if want != status || !problem.Known(code[1]) {
						t.Errorf("%s %s: %s under %s", method, path, code[1], status)
					}
				}
			}
		}
	}
}

func TestOpenAPIExamplesAreAccepted(t *testing.T) {
	spec := openapi(t)
	f := &fake{mesh: mesh{clusters: map[string]clusters.Cluster{"gpu": sampleCluster()}}}
	a := newAPI(f)
	fill := strings.NewReplacer("{task_id}", "t", "{name}", "n", "{n}", "1", "{id}", "1", "{submission_id}", "s")
	for path, item := range at(t, spec, "paths").(map[string]any) {
		for method, op := range item.(map[string]any) {
			body, ok := op.(map[string]any)["requestBody"]
			if !ok || op.(map[string]any)["operationId"] == "put-package" {
				continue
			}
			example, _ := json.Marshal(at(t, body, "content", "application/json", "example"))
			if res := send(t, a, strings.ToUpper(method), "/api/v1"+fill.Replace(path), string(example)); res.StatusCode >= 300 {
				t.Errorf("%s %s refuses its own example: %s", method, path, res.text)
			}
		}
	}
}

// TestAnswersFollowTheirSchema compares the names in a real answer with those in the document.
func TestAnswersFollowTheirSchema(t *testing.T) {
	schemas := at(t, openapi(t), "components", "schemas").(map[string]any)
	a := newAPI(&fake{mesh: mesh{clusters: map[string]clusters.Cluster{"gpu": sampleCluster()}}})
	for name, target := range map[string]string{"Task": "/tasks/x", "Job": "/jobs/x", "Cluster": "/clusters/gpu"} {
		answer := send(t, a, "GET", "/api/v1"+target, "").json
		known := at(t, schemas, name, "properties").(map[string]any)
		for field := range answer {
			if known[field] == nil {
				t.Errorf("%s.%s is not documented", name, field)
			}
		}
		for _, field := range at(t, schemas, name, "required").([]any) {
			if _, ok := answer[field.(string)]; !ok {
				t.Errorf("%s.%v is said to be always there", name, field)
			}
		}
	}
	policy := send(t, newAPI(&fake{}), "GET", "/api/v1/policy", "").json["policy"].(map[string]any)
	documented := at(t, schemas, "PolicyDoc", "properties").(map[string]any)
	if got, want := slices.Sorted(maps.Keys(policy)), slices.Sorted(maps.Keys(documented)); !slices.Equal(got, want) {
		t.Errorf("a policy has %v, documented are %v", got, want)
	}
}

func TestOpenAPIAsYAMLSaysTheSame(t *testing.T) {
	res := send(t, newAPI(&fake{}), "GET", "/api/openapi.yaml", "")
	var spec map[string]any
	if err := yaml.Unmarshal([]byte(res.text), &spec); err != nil {
		t.Fatal(err)
	}
	if got, want := len(spec["paths"].(map[string]any)), len(at(t, openapi(t), "paths").(map[string]any)); got != want || got == 0 {
		t.Errorf("%d paths in YAML, %d in JSON", got, want)
	}
}

func TestDocsPageNeedsNothingFromElsewhere(t *testing.T) {
	a := newAPI(&fake{})
	res := send(t, a, "GET", "/api/docs", "")
	res.want(t, 200, "")
	for _, u := range regexp.MustCompile(`(?:src|href|action|url)\s*[=(]\s*["']?([^"'\s>)]+)`).FindAllStringSubmatch(res.text, -1) {
		if !strings.HasPrefix(u[1], "#") && (!strings.HasPrefix(u[1], "/") || strings.HasPrefix(u[1], "//")) {
			t.Errorf("leads to %s", u[1])
		}
	}
	for _, word := range []string{"<script", "style=", "onclick", "https://", "unpkg"} {
		if strings.Contains(res.text, word) {
			t.Errorf("has %s in it", word)
		}
	}
	csp := res.Header.Get("Content-Security-Policy")
	if !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") {
		t.Errorf("policy %q", csp)
	}
	css := regexp.MustCompile(`rel="stylesheet" href="([^"]+)"`).FindStringSubmatch(res.text)[1]
	style := send(t, a, "GET", css, "")
	if style.StatusCode != 200 || !strings.HasPrefix(style.Header.Get("Content-Type"), "text/css") || strings.Contains(style.text, "url(") || strings.Contains(style.text, "@import") {
		t.Errorf("style sheet %s: %d", css, style.StatusCode)
	}
}

func TestDocsPageHasEveryOperationAndEveryCode(t *testing.T) {
	text := send(t, newAPI(&fake{}), "GET", "/api/docs", "").text
	for _, item := range at(t, openapi(t), "paths").(map[string]any) {
		for _, op := range item.(map[string]any) {
			if id := op.(map[string]any)["operationId"].(string); !strings.Contains(text, `id="`+id+`"`) {
				t.Errorf("%s is missing", id)
			}
		}
	}
	for _, c := range problem.Codes {
		if !strings.Contains(text, `id="error-`+c.Name+`"`) {
			t.Errorf("%s is missing", c.Name)
		}
	}
	for _, id := range regexp.MustCompile(`href="#([^"]+)"`).FindAllStringSubmatch(text, -1) {
		if !strings.Contains(text, `id="`+id[1]+`"`) {
			t.Errorf("#%s leads nowhere", id[1])
		}
	}
}
