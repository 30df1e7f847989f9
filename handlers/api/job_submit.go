package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
	"github.com/schedulemesh/schedulemesh/jobs"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// Limits of what a job may carry.
const (
	maxJobBody      = 2 << 20 // bytes
	maxRuntimeEnv   = 1 << 20 // bytes
	maxMetadata     = 64      // keys
	maxMetaBytes    = 64 << 10
	maxTags         = 64
	maxTag          = 128 // characters
	maxRequirements = 64
	maxFileName     = 200 // bytes: Ray names files after a submission_id
)

// marks begin the keys under which jobs of ours are recognised in Ray.
const marks = "schedulemesh_"

// NewJob asks for a command to be run on some cluster.
type NewJob struct {
	Entrypoint       string            `json:"entrypoint" doc:"The command, at most 64 KiB. Its program, and the script of its Python or shell, must be absolute paths; a bare program such as python is looked up on the cluster's PATH." example:"python /home/user/train.py --epochs 100"`
	SubmissionID     string            `json:"submission_id,omitempty" doc:"Unique; made up when left out. At most 200 bytes, no blanks, slashes, ?, # or %." example:"nightly-2026-03-01"`
	JobID            string            `json:"job_id,omitempty" doc:"For people, need not be unique; made up when left out." example:"nightly-train"`
	RuntimeEnv       json.RawMessage   `json:"runtime_env,omitempty" doc:"Ray's runtime_env, an object of at most 1 MiB, laid over the cluster's. working_dir and py_modules must be URIs; the Python client packs and uploads directories."`
	Metadata         map[string]string `json:"metadata,omitempty" doc:"At most 64 keys and 64 KiB."`
	Tags             []string          `json:"tags,omitempty" doc:"At most 64, each at most 128 characters. A cluster that shares some gets a bonus."`
	PreferredCluster string            `json:"preferred_cluster,omitempty" doc:"It goes there when there is room. An unknown one is noted and otherwise left out of account." example:"gpu_cluster"`
	Requirements     JobAmounts        `json:"resource_requirements,omitempty"`
	Reserve          string            `json:"reserve,omitempty" enum:"entrypoint,none" doc:"entrypoint, the default: Ray keeps the requirements for the entrypoint's process, on one machine. none: Ray keeps nothing, the job's own tasks and actors use them; they count where jobs are placed."`
	Priority         *float64          `json:"priority,omitempty" doc:"Higher goes first in line; 5 when left out."`
	QueueTimeout     *float64          `json:"queue_timeout,omitempty" doc:"Seconds after which a job that still waits fails with the code queue_timeout; 0 or left out: it waits for ever."`
	MaxRetries       int               `json:"max_retries,omitempty" minimum:"0" maximum:"100" doc:"Further attempts after what retry_on names."`
	RetryOn          []string          `json:"retry_on,omitempty" enum:"cluster_lost,node_lost" doc:"cluster_lost: its cluster did not answer for long, or its head started anew. node_lost: the machine of its entrypoint is gone. Both when left out. A command that fails by itself is never tried again."`
}

const jobExample = `{"entrypoint": "python /home/user/train.py --epochs 100", "job_id": "nightly-train", "resource_requirements": {"CPU": 4, "GPU": 1, "memory": 16},
 "preferred_cluster": "gpu_cluster", "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "4"}}, "metadata": {"user": "alice"}, "tags": ["training"],
 "max_retries": 2, "retry_on": ["cluster_lost", "node_lost"]}`

// Spec checks everything that can be checked without knowing any state; pages take jobs by it too.
func (n *NewJob) Spec(who string) (jobs.Spec, error) {
	if len(n.RuntimeEnv) > maxRuntimeEnv {
		return jobs.Spec{}, tooLargeEnv(fmt.Sprintf("runtime_env has %d bytes", len(n.RuntimeEnv)))
	}
	var f faults
	if err := jobs.CheckEntrypoint(n.Entrypoint); err != nil {
		f.add("body", "entrypoint", "%v", err)
	}
	f.submissionID(n.SubmissionID)
	f.optionalName("body", "job_id", n.JobID)
	f.optionalName("body", "preferred_cluster", n.PreferredCluster)
	f.metadata(n.Metadata)
	s := jobs.Spec{Entrypoint: n.Entrypoint, SubmissionID: n.SubmissionID, JobID: n.JobID, RuntimeEnv: f.runtimeEnv(n.RuntimeEnv), Metadata: n.Metadata,
		Tags: f.tags(n.Tags), PreferredCluster: n.PreferredCluster, Requirements: f.requirements(n.Requirements, n.Reserve != jobs.ReserveNone), SubmittedBy: who,
		Reserve:      f.oneOf("reserve", n.Reserve, jobs.ReserveEntrypoint, jobs.ReserveNone),
		Priority:     f.priority("priority", orDefault(n.Priority, defaultPriority)),
		QueueTimeout: f.seconds("queue_timeout", orDefault(n.QueueTimeout, 0)),
		MaxRetries:   n.MaxRetries, RetryOn: n.RetryOn,
	}
	return s, f.err()
}

func tooLargeEnv(what string) error {
	return problem.New("too_large", what+": a runtime_env may have 1 MiB; put files into working_dir, which is uploaded apart, instead")
}

// submissionID checks what becomes part of addresses and of file names in Ray.
func (f *faults) submissionID(s string) {
	const field = "submission_id"
	switch bad := strings.IndexAny(s, " \t/\\?#%"); {
	case bad >= 0:
		f.add("body", field, "has %q in it; use letters, digits, . _ and -", s[bad])
	case len(s) > maxFileName:
		f.add("body", field, "has %d bytes; at most %d are allowed", len(s), maxFileName)
	default:
		f.optionalName("body", field, s)
	}
}

func (f *faults) metadata(m map[string]string) {
	if len(m) > maxMetadata {
		f.add("body", "metadata", "has %d keys; at most %d are allowed", len(m), maxMetadata)
		return
	}
	size := 0
	for k, v := range m {
		size += len(k) + len(v)
		switch {
		case k == "":
			f.add("body", "metadata", "has an empty key")
		case unprintable(k) != "":
			f.add("body", "metadata", "has the key %q, which %s", k, unprintable(k))
		case strings.HasPrefix(k, marks):
			f.add("body", "metadata."+k, "begins with %s, by which jobs are recognised; use another key", marks)
		}
	}
	if size > maxMetaBytes {
		f.add("body", "metadata", "has %d bytes; at most %d are allowed", size, maxMetaBytes)
	}
}

// tags drops those that are there twice.
func (f *faults) tags(tags []string) []string {
	if len(tags) > maxTags {
		f.add("body", "tags", "has %d tags; at most %d are allowed", len(tags), maxTags)
		return nil
	}
	var out []string
	for i, t := range tags {
		field := "tags." + strconv.Itoa(i)
		switch {
		case t == "":
			f.add("body", field, "is empty")
		case unprintable(t) != "":
			f.add("body", field, "%s; use printable characters only", unprintable(t))
		case tooLong(t, maxTag) > 0:
			f.add("body", field, "has %d characters; at most %d are allowed", tooLong(t, maxTag), maxTag)
		case !slices.Contains(out, t):
			out = append(out, t)
		}
	}
	return out
}

// runtimeEnv brings it into its normal form.
func (f *faults) runtimeEnv(raw json.RawMessage) json.RawMessage {
	if raw = f.kind("runtime_env", raw, '{'); raw == nil {
		return nil
	}
	env, err := clusters.CheckEnv(raw)
	if err != nil {
		f.take(err)
	}
	return env
}

// take adds what another package found wrong.
func (f *faults) take(err error) {
	var e *ledger.Error
	if !errors.As(err, &e) || len(e.Fields) == 0 {
		f.add("body", "runtime_env", "%v", err)
		return
	}
	for _, field := range slices.Sorted(maps.Keys(e.Fields)) {
		f.add("body", field, "%s", e.Fields[field])
	}
}

// JobAmounts are what a job asks for, with Ray's names.
type JobAmounts map[string]float64

// JobUnits are the same as answers have them.
type JobUnits sched.Resources

// Schema is for the OpenAPI document. Ranges are checked by requirements, whose messages say more.
func (JobAmounts) Schema(huma.Registry) *huma.Schema { return jobAmountsSchema() }

// Schema is for the OpenAPI document.
func (JobUnits) Schema(huma.Registry) *huma.Schema { return jobAmountsSchema() }

func jobAmountsSchema() *huma.Schema {
	return &huma.Schema{
		Type:                 huma.TypeObject,
		Description:          "CPU in cores, GPU in cards, memory in GiB, any other name in its own unit. Rounded up to thousandths (memory: whole MiB).",
		AdditionalProperties: &huma.Schema{Type: huma.TypeNumber},
		Examples:             []any{map[string]any{"CPU": 4.0, "GPU": 0.5, "memory": 16.0}},
	}
}

// MarshalJSONTo writes the amounts, zeros left out.
func (u JobUnits) MarshalJSONTo(enc *jsontext.Encoder) error {
	return jsonv2.MarshalEncode(enc, clusters.ToRay(sched.Resources(u)), jsonv2.Deterministic(true))
}

// requirements converts amounts with Ray's names. With whole, more than one card must be whole cards: Ray keeps
// no others for a process.
func (f *faults) requirements(amounts JobAmounts, whole bool) sched.Resources {
	const field = "resource_requirements"
	if len(amounts) > maxRequirements {
		f.add("body", field, "has %d resources; at most %d are possible", len(amounts), maxRequirements)
		return sched.Resources{}
	}
	r, name, why := clusters.FromRay(amounts)
	switch {
	case why != "" && name != "" && unprintable(name) == "":
		f.add("body", field+"."+name, "%s", why)
	case why != "":
		f.add("body", field, "%s", why)
	case whole && r.GPU > 1000 && r.GPU%1000 != 0:
		f.add("body", field+".GPU", "is %v; Ray keeps more than one card only in whole cards: give a whole number, or reserve none", units("gpu", r.GPU))
	}
	return r
}
