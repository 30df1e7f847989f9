package api

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/jobs"
	"github.com/schedulemesh/schedulemesh/sched"
)

// many is n members or items from a pattern with their number.
func many(n int, pattern string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf(pattern, i)
	}
	return strings.Join(parts, ",")
}

func TestJobsThatCannotBeAreRefused(t *testing.T) {
	const p = `"entrypoint":"python",`
	for name, tt := range map[string]struct {
		body   string
		status int
		code   string
		field  string
		says   string
	}{
		"no entrypoint":               {`{}`, 422, "invalid", "entrypoint", "is missing"},
		"an empty entrypoint":         {`{"entrypoint":" "}`, 422, "invalid", "entrypoint", "is empty"},
		"a relative script":           {`{"entrypoint":"python x.py"}`, 422, "invalid", "entrypoint", "give its absolute path"},
		"a relative program":          {`{"entrypoint":"./run.sh"}`, 422, "invalid", "entrypoint", "give its absolute path"},
		"an absurd entrypoint":        {`{"entrypoint":"` + strings.Repeat("a", 64<<10+1) + `"}`, 422, "invalid", "entrypoint", "65536 is the most"},
		"NUL in the entrypoint":       {`{"entrypoint":"a\u0000"}`, 422, "invalid", "entrypoint", "NUL"},
		"a list as entrypoint":        {`{"entrypoint":["python"]}`, 422, "invalid", "entrypoint", "expected string"},
		"an unknown field":            {`{` + p + `"cluster":"gpu"}`, 422, "invalid", "cluster", "no such field"},
		"a slash in the id":           {`{` + p + `"submission_id":"a/b"}`, 422, "invalid", "submission_id", `'/'`},
		"a blank in the id":           {`{` + p + `"submission_id":"a b"}`, 422, "invalid", "submission_id", `' '`},
		"a line break in the id":      {`{` + p + `"submission_id":"a\nb"}`, 422, "invalid", "submission_id", "U+000A"},
		"an id that is a directory":   {`{` + p + `"submission_id":".."}`, 422, "invalid", "submission_id", "choose another"},
		"a long id":                   {`{` + p + `"submission_id":"` + strings.Repeat("训", 67) + `"}`, 422, "invalid", "submission_id", "201 bytes; at most 200"},
		"a long job_id":               {`{` + p + `"job_id":"` + strings.Repeat("a", 201) + `"}`, 422, "invalid", "job_id", "201 characters"},
		"a job_id that is a number":   {`{` + p + `"job_id":7}`, 422, "invalid", "job_id", "expected string"},
		"metadata of numbers":         {`{` + p + `"metadata":{"epochs":100}}`, 422, "invalid", "metadata.epochs", "expected string"},
		"metadata of objects":         {`{` + p + `"metadata":{"a":{"b":"c"}}}`, 422, "invalid", "metadata.a", "expected string"},
		"metadata that is a list":     {`{` + p + `"metadata":["a"]}`, 422, "invalid", "metadata", "object"},
		"metadata without a name":     {`{` + p + `"metadata":{"":"a"}}`, 422, "invalid", "metadata", "empty key"},
		"metadata under our name":     {`{` + p + `"metadata":{"schedulemesh_job":"a"}}`, 422, "invalid", "metadata.schedulemesh_job", "use another key"},
		"much metadata":               {`{` + p + `"metadata":{` + many(65, `"k%d":""`) + `}}`, 422, "invalid", "metadata", "65 keys"},
		"long metadata":               {`{` + p + `"metadata":{"k":"` + strings.Repeat("a", 64<<10) + `"}}`, 422, "invalid", "metadata", "65537 bytes"},
		"tags that are no list":       {`{` + p + `"tags":"gpu"}`, 422, "invalid", "tags", "expected array"},
		"tags of numbers":             {`{` + p + `"tags":[1]}`, 422, "invalid", "tags[0]", "expected string"},
		"an empty tag":                {`{` + p + `"tags":["a",""]}`, 422, "invalid", "tags.1", "is empty"},
		"a long tag":                  {`{` + p + `"tags":["` + strings.Repeat("a", 129) + `"]}`, 422, "invalid", "tags.0", "129 characters"},
		"many tags":                   {`{` + p + `"tags":[` + many(65, `"t%d"`) + `]}`, 422, "invalid", "tags", "65 tags"},
		"a negative CPU":              {`{` + p + `"resource_requirements":{"CPU":-1}}`, 422, "invalid", "resource_requirements.CPU", "is -1, which is negative"},
		"a negative memory":           {`{` + p + `"resource_requirements":{"memory":-0.5}}`, 422, "invalid", "resource_requirements.memory", "is -0.5, which is negative"},
		"a NaN":                       {`{` + p + `"resource_requirements":{"CPU":NaN}}`, 400, "bad_json", "body", "NaN is not JSON"},
		"a NaN in quotes":             {`{` + p + `"resource_requirements":{"CPU":"NaN"}}`, 422, "invalid", "resource_requirements.CPU", "expected number"},
		"an Infinity":                 {`{` + p + `"resource_requirements":{"CPU":1e999}}`, 422, "invalid", "resource_requirements.CPU", "too large"},
		"as much memory as there is":  {`{` + p + `"resource_requirements":{"memory":1e306}}`, 422, "invalid", "resource_requirements.memory", "not a number"},
		"a petabyte too many":         {`{` + p + `"resource_requirements":{"memory":1e13}}`, 422, "invalid", "resource_requirements.memory", "too large"},
		"more cores than can be":      {`{` + p + `"resource_requirements":{"CPU":1e300}}`, 422, "invalid", "resource_requirements.CPU", "too large"},
		"cores twice":                 {`{` + p + `"resource_requirements":{"CPU":1,"cpu":2}}`, 422, "invalid", "resource_requirements.cpu", "given twice"},
		"one and a half cards":        {`{` + p + `"resource_requirements":{"GPU":1.5}}`, 422, "invalid", "resource_requirements.GPU", "whole cards"},
		"a resource without a name":   {`{` + p + `"resource_requirements":{"":1}}`, 422, "invalid", "resource_requirements", "no resource name"},
		"a resource named by a bell":  {`{` + p + `"resource_requirements":{"\u0007":1}}`, 422, "invalid", "resource_requirements", "unprintable"},
		"many resources":              {`{` + p + `"resource_requirements":{` + many(65, `"r%d":1`) + `}}`, 422, "invalid", "resource_requirements", "65 resources"},
		"requirements in words":       {`{` + p + `"resource_requirements":"all"}`, 422, "invalid", "resource_requirements", "object"},
		"a reserve unheard of":        {`{` + p + `"reserve":"all"}`, 422, "invalid", "reserve", "all"},
		"a priority of words":         {`{` + p + `"priority":"high"}`, 422, "invalid", "priority", "number"},
		"a priority beyond all":       {`{` + p + `"priority":1e300}`, 422, "invalid", "priority", ""},
		"a timeout below nothing":     {`{` + p + `"queue_timeout":-1}`, 422, "invalid", "queue_timeout", "-1 is not a duration"},
		"a timeout of a century":      {`{` + p + `"queue_timeout":4e9}`, 422, "invalid", "queue_timeout", "ten years"},
		"negative retries":            {`{` + p + `"max_retries":-1}`, 422, "invalid", "max_retries", ">= 0"},
		"retries for ever":            {`{` + p + `"max_retries":101}`, 422, "invalid", "max_retries", "<= 100"},
		"half a retry":                {`{` + p + `"max_retries":1.5}`, 422, "invalid", "max_retries", "integer"},
		"retries on anything":         {`{` + p + `"max_retries":1,"retry_on":["failed"]}`, 422, "invalid", "retry_on[0]", "failed"},
		"a runtime_env that is text":  {`{` + p + `"runtime_env":"env.yaml"}`, 422, "invalid", "runtime_env", "object"},
		"a large runtime_env":         {`{` + p + `"runtime_env":{"a":"` + strings.Repeat("x", 1<<20) + `"}}`, 413, "too_large", "", "working_dir"},
		"a huge body":                 {`{` + p + `"runtime_env":{"a":"` + strings.Repeat("x", 3<<20) + `"}}`, 413, "too_large", "", "working_dir"},
		"a local working_dir":         {`{` + p + `"runtime_env":{"working_dir":"/home/user/project"}}`, 422, "invalid", "runtime_env.working_dir", "the Python client"},
		"a working_dir of here":       {`{` + p + `"runtime_env":{"working_dir":"."}}`, 422, "invalid", "runtime_env.working_dir", "the Python client"},
		"a working_dir of nobody":     {`{` + p + `"runtime_env":{"working_dir":"ftp://a/b.zip"}}`, 422, "invalid", "runtime_env.working_dir", "ftp://"},
		"a working_dir that is a map": {`{` + p + `"runtime_env":{"working_dir":{}}}`, 422, "invalid", "runtime_env.working_dir", "text"},
		"a local module":              {`{` + p + `"runtime_env":{"py_modules":["s3://b/a.zip","lib/mine"]}}`, 422, "invalid", "runtime_env.py_modules[1]", "the Python client"},
		"modules that are no list":    {`{` + p + `"runtime_env":{"py_modules":"s3://b/a.zip"}}`, 422, "invalid", "runtime_env.py_modules", "list"},
		"nothing at all":              {``, 400, "bad_request", "", "body is required"},
		"a list":                      {`[]`, 422, "invalid", "body", "object"},
		"broken JSON":                 {`{"entrypoint":`, 400, "bad_json", "body", "line 1"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			res := send(t, newAPI(f), "POST", "/api/v1/jobs", tt.body)
			res.want(t, tt.status, tt.code)
			if says := strings.NewReplacer(`\u003e`, ">", `\u003c`, "<").Replace(res.text); !strings.Contains(says, tt.says) {
				t.Errorf("does not say %q: %.500s", tt.says, says)
			}
			if tt.field != "" && res.field("errors.field") != tt.field {
				t.Errorf("names %v, want %s: %.500s", res.field("errors.field"), tt.field, res.text)
			}
			if f.call != "" {
				t.Errorf("jobs were asked %s", f.call)
			}
		})
	}
}

func TestEverythingWrongWithAJobIsSaidAtOnce(t *testing.T) {
	res := send(t, newAPI(&fake{}), "POST", "/api/v1/jobs", `{"entrypoint":"python x.py","submission_id":"a/b","resource_requirements":{"CPU":-1,"GPU":-1},"runtime_env":{"working_dir":"."},"tags":[""]}`)
	res.want(t, 422, "invalid")
	if errs, _ := res.json["errors"].([]any); len(errs) != 5 {
		t.Errorf("%d faults, want 5: %s", len(errs), res.text)
	}
}

func TestRequirementsAreRoundedUp(t *testing.T) {
	for body, want := range map[string]sched.Resources{
		`{"CPU":0.0001,"memory":0.0001}`:          {CPU: 1, Memory: 1},
		`{"CPU":1.1,"GPU":2,"memory":16}`:         {CPU: 1100, GPU: 2000, Memory: 16384},
		`{"cpu":1,"gpu":0.25,"memory":1.5}`:       {CPU: 1000, GPU: 250, Memory: 1536},
		`{"CPU":0,"GPU":0,"memory":0,"tpu":0}`:    {},
		`{"accelerator_type:A100":0.001,"TPU":8}`: {Other: []sched.Amount{{Name: "TPU", Value: 8000}, {Name: "accelerator_type:A100", Value: 1}}},
	} {
		f := &fake{}
		send(t, newAPI(f), "POST", "/api/v1/jobs", `{"entrypoint":"python","resource_requirements":`+body+`}`).want(t, 201, "")
		if got := arg[jobs.Spec](t, f, 0).Requirements; !got.Equal(want) {
			t.Errorf("%s is %v, want %v", body, got, want)
		}
	}
	f := &fake{}
	send(t, newAPI(f), "POST", "/api/v1/jobs", `{"entrypoint":"python","reserve":"none","resource_requirements":{"GPU":1.5}}`).want(t, 201, "")
}

// TestAHugeBodyIsCutOffEarly counts what of 100 MB the server takes.
func TestAHugeBodyIsCutOffEarly(t *testing.T) {
	srv := httptest.NewServer(newAPI(&fake{}))
	defer srv.Close()
	const size = 100 << 20
	for name, length := range map[string]int64{"with its length": size, "without": -1} {
		body := &counter{from: io.MultiReader(strings.NewReader(`{"entrypoint":"python","runtime_env":{"a":"`), io.LimitReader(letters{}, size-43))}
		r, _ := http.NewRequestWithContext(t.Context(), "POST", srv.URL+"/api/v1/jobs", body)
		r.Header.Set("Content-Type", "application/json")
		r.ContentLength = length
		begun := time.Now()
		res, err := http.DefaultClient.Do(r)
		if err == nil { // else the server had hung up before all was sent, which is as good
			text, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != 413 || !strings.Contains(string(text), "working_dir") {
				t.Errorf("%s: %d %s", name, res.StatusCode, text)
			}
		}
		if body.n.Load() > 20<<20 || time.Since(begun) > 10*time.Second {
			t.Errorf("%s: %d MiB were sent in %v", name, body.n.Load()>>20, time.Since(begun))
		}
	}
}

type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

type counter struct {
	from io.Reader
	n    atomic.Int64 // the client may read on while its answer is there
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n.Add(int64(n))
	return n, err
}
