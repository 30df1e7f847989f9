package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	jsonv2 "github.com/go-json-experiment/json"

	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
)

// operation is what an endpoint says about itself.
type operation struct {
	id, method, path string
	tag              string
	summary, about   string
	status           int      // of success, default 200
	codes            []string // errors beyond those of every operation
	request          string   // an example body
	query            string   // an example query, for the docs' curl line
}

// everywhere are the errors any operation may answer with.
var everywhere = []string{"unauthorized", "misdirected_request", "invalid", "internal", "database_unavailable", "shutting_down"}

// checker is an input with rules of its own.
type checker interface{ check(*faults) }

// register adds an operation: huma reads and documents it, do answers it.
func register[I, O any](a *API, op operation, do func(ctx context.Context, in *I) (*O, error)) {
	h := op.huma()
	huma.Register(a.huma, h, func(ctx context.Context, in *I) (*O, error) {
		if c, ok := any(in).(checker); ok {
			var f faults
			c.check(&f)
			if err := f.err(); err != nil {
				return nil, toProblem(ctx, err)
			}
		}
		out, err := do(ctx, in)
		if err != nil {
			return nil, toProblem(ctx, err)
		}
		return out, nil
	})
	op.describe(a.huma.OpenAPI())
}

func (op *operation) huma() huma.Operation {
	if op.status == 0 {
		op.status = http.StatusOK
	}
	op.codes = append(slices.Clone(op.codes), everywhere...)
	switch op.method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		op.codes = append(op.codes, "bad_json", "too_large", "unsupported_media_type", "namespace_closing", "unknown_namespace")
	}
	if op.method == http.MethodPost {
		op.codes = append(op.codes, "idempotency_key_reused")
	}
	return huma.Operation{
		OperationID: op.id, Method: op.method, Path: op.path, Tags: []string{op.tag},
		Summary: op.summary, Description: op.about, DefaultStatus: op.status,
		// withBody has read the body already, with its own cap and deadline.
		MaxBodyBytes: -1, BodyReadTimeout: -1,
		RejectUnknownQueryParameters: true,
	}
}

// describe adds what huma cannot know: which codes come with which status, and an example.
func (op *operation) describe(spec *huma.OpenAPI) {
	o := find(spec, op.method, op.path)
	delete(o.Responses, "default")
	byStatus := map[int][]string{}
	for _, name := range op.codes {
		if s := problem.New(name, "").Status; !slices.Contains(byStatus[s], name) {
			byStatus[s] = append(byStatus[s], name)
		}
	}
	if slices.Contains(op.codes, "version_conflict") {
		// The same conflict, when it was If-Match that said which version was meant.
		byStatus[http.StatusPreconditionFailed] = []string{"version_conflict"}
	}
	schema := &huma.Schema{Ref: "#/components/schemas/Problem"}
	for status, names := range byStatus {
		parts := make([]string, len(names))
		for i, n := range names {
			parts[i] = fmt.Sprintf("`%s`: %s.", n, problem.New(n, "").Title)
		}
		o.Responses[strconv.Itoa(status)] = &huma.Response{
			Description: strings.Join(parts, " "),
			Content:     map[string]*huma.MediaType{problem.ContentType: {Schema: schema}},
		}
	}
	success := o.Responses[strconv.Itoa(op.status)]
	if success != nil && success.Description == http.StatusText(op.status) {
		success.Description = op.summary + "."
	}
	if op.request != "" && o.RequestBody != nil {
		o.RequestBody.Content["application/json"].Example = json.RawMessage(op.request) // keeps the order of its fields
	}
	if op.method == http.MethodPost {
		o.Parameters = append(o.Parameters, idempotencyParam)
	}
	if op.query != "" {
		o.Extensions = map[string]any{"x-example-query": op.query}
	}
}

var idempotencyParam = &huma.Param{
	Name: "Idempotency-Key", In: "header", Example: "3f1c7e52-train",
	Description: "Makes the request happen once: the same request with the same key is answered with the first answer again (`Idempotency-Replayed: true`), another one with `idempotency_key_reused`. Refusals are not remembered.",
	Schema:      &huma.Schema{Type: huma.TypeString},
}

func find(spec *huma.OpenAPI, method, path string) *huma.Operation {
	item := spec.Paths[path]
	switch method {
	case http.MethodGet:
		return item.Get
	case http.MethodPost:
		return item.Post
	case http.MethodPut:
		return item.Put
	case http.MethodPatch:
		return item.Patch
	case http.MethodHead:
		return item.Head
	}
	return item.Delete
}

// config sets huma up: our JSON, our paths, nothing fetched from elsewhere.
func config(version string) huma.Config {
	format := huma.Format{Marshal: marshal, Unmarshal: unmarshal}
	c := huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "ScheduleMesh", Version: version,
				Description: "Priority scheduling with preemption for Ray: pools hold quota, tasks ask for it, agents (Ray actors) run them, and the policy decides who makes way for whom.\n\n" +
					"Jobs and clusters are in no namespace. Resources are cores (`cpu`), cards (`gpu`), MiB (`memory`) and units of any other name. Durations are seconds. Times are RFC 3339 in UTC. " +
					"A field that is null counts as left out. Errors are `application/problem+json` with a stable `code`.",
			},
			Servers: []*huma.Server{{URL: prefix, Description: "This server"}},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"token": {Type: "http", Scheme: "bearer", Description: "The token of the server's token file, or one of its configuration."},
				},
			},
			Security: []map[string][]string{{"token": {}}},
			Tags: []*huma.Tag{
				{Name: "Tasks", Description: "What runs: submitted, waiting, running, preempted, ended."},
				{Name: "Pools", Description: "Quota, in which tasks run."},
				{Name: "Nodes", Description: "Machines of the clusters, which can be held and drained."},
				{Name: "Preemption", Description: "Who would make way, who did, and making somebody do so."},
				{Name: "Policy", Description: "The rules of preemption. Every change is a new version."},
				{Name: "Agents", Description: "Ray actors that hold quota: one made by each submitted task, or made to wait for work."},
				{Name: "Jobs", Description: "Commands that run on one of many Ray clusters: placed, submitted once, followed to their end."},
				{Name: "Clusters", Description: "Ray clusters that jobs may go to."},
				{Name: "Events", Description: "Everything that happens, as it happens."},
				{Name: "Namespaces", Description: "Isolated sets of pools, tasks and policy."},
				{Name: "Server", Description: "The server itself."},
			},
		},
		Formats:       map[string]huma.Format{"application/json": format, "json": format, problem.ContentType: format},
		DefaultFormat: "application/json",
	}
	return c
}

func marshal(w io.Writer, v any) error { return jsonv2.MarshalWrite(w, v, jsonv2.Deterministic(true)) }

// unmarshal is called twice by huma: into an any, to validate, and into the
// input. A member that is null counts as left out.
func unmarshal(data []byte, v any) error {
	if err := jsonv2.Unmarshal(data, v); err != nil {
		return err
	}
	if parsed, ok := v.(*any); ok {
		if m, ok := (*parsed).(map[string]any); ok {
			for k, member := range m {
				if member == nil {
					delete(m, k)
				}
			}
		}
	}
	return nil
}
