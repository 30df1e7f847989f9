package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// ClusterSpec is what people say of a cluster, as they write it: package clusters reads it,
// with messages of its own.
type ClusterSpec json.RawMessage

// UnmarshalJSON keeps the text.
func (c *ClusterSpec) UnmarshalJSON(b []byte) error {
	*c = append((*c)[:0], b...)
	return nil
}

const clusterSpecName = "ClusterSpec"

// Schema names every field with its meaning. What it leaves open is checked where it is read.
func (ClusterSpec) Schema(r huma.Registry) *huma.Schema {
	if _, ok := r.Map()[clusterSpecName]; !ok {
		field := func(kind, doc string) *huma.Schema { return &huma.Schema{Type: kind, Description: doc} }
		most := jobAmountsSchema()
		most.Description = "What it can grow to, when it scales by itself: a job that needs no more than this waits instead of being refused. " + most.Description
		most.AdditionalProperties = true
		s := &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true, Required: []string{"head_address"},
			Properties: map[string]*huma.Schema{
				"head_address":  field(huma.TypeString, "Host and port of its head, for Ray Client or GCS."),
				"dashboard":     field(huma.TypeString, "URL of Ray's dashboard, where its Jobs REST is; the head's host with port 8265 when left out."),
				"runtime_env":   field(huma.TypeObject, "The default of its jobs: a job's own is laid over it. env_vars may be an object, or an array of NAME=value."),
				"prefer":        field(huma.TypeBoolean, "A bonus where jobs are placed."),
				"weight":        field(huma.TypeNumber, "Factor where jobs are placed, above 0; 1 when left out."),
				"tags":          {Type: huma.TypeArray, Items: field(huma.TypeString, ""), Description: "A bonus for jobs that share some; never a wall."},
				"token":         field("", "Where the bearer token of its dashboard is: {\"env\": name of a variable of the server} or {\"file\": path on the server}."),
				"max_resources": most,
			},
		}
		s.Properties["runtime_env"].AdditionalProperties = true
		// token has no type: an error of type would show what came in its place, which may be the token itself.
		s.PrecomputeMessages()
		r.Map()[clusterSpecName] = s
	}
	return &huma.Schema{Ref: "#/components/schemas/" + clusterSpecName}
}

// Cluster is a Ray cluster that jobs may go to, as answers have it. Lists leave out its nodes.
type Cluster struct {
	Name         string           `json:"name" example:"gpu_cluster"`
	Source       string           `json:"source" enum:"file,api,local" doc:"Who said what is in force: file: clusters.yaml. api: a call, a page or the Python client. local: the cluster whose agents this deployment runs."`
	HeadAddress  string           `json:"head_address" example:"10.0.0.4:10001"`
	Dashboard    string           `json:"dashboard" doc:"Where Ray's Jobs REST is." example:"http://10.0.0.4:8265"`
	RuntimeEnv   json.RawMessage  `json:"runtime_env" doc:"The default of its jobs; null when there is none."`
	Prefer       bool             `json:"prefer"`
	Weight       float64          `json:"weight" example:"1"`
	Tags         []string         `json:"tags" nullable:"false"`
	Token        *ClusterToken    `json:"token,omitempty" doc:"Where its bearer token is, never the token itself; left out when there is none."`
	MaxResources JobUnits         `json:"max_resources" doc:"What it can grow to, as configured: CPU, GPU, memory in GiB."`
	Rev          int64            `json:"rev" doc:"Counts changes of what is configured and of its hold; the ETag." example:"3"`
	Hold         *Hold            `json:"hold,omitempty" doc:"Who keeps new jobs away, and why; left out when nobody does."`
	State        string           `json:"state" enum:"healthy,unhealthy,unseen" doc:"healthy: jobs may go there. unhealthy: it does not answer, answers nonsense, or is another version than we speak. unseen: it was not asked yet."`
	Since        Stamp            `json:"since" doc:"Of the state."`
	Error        string           `json:"error" doc:"Of the last try to reach it; empty when that went well."`
	CheckedAt    Stamp            `json:"checked_at" doc:"Of the last try to reach it."`
	SeenAt       Stamp            `json:"seen_at" doc:"Of its last usable answer; what follows is of then."`
	RayVersion   string           `json:"ray_version" example:"2.60.0"`
	Session      string           `json:"session" doc:"Of its head: another one means that every job it had is gone."`
	Resources    ClusterResources `json:"resources"`
	Nodes        []ClusterNode    `json:"nodes,omitempty"`
	AliveNodes   int              `json:"alive_nodes"`
	Score        float64          `json:"score" doc:"Health, 0 to 1; a factor where jobs are placed." example:"0.9"`
	Reasons      []string         `json:"reasons" nullable:"false" doc:"Why the score is not 1, the weightiest first."`
	Breaker      string           `json:"breaker" enum:"closed,open,half_open" doc:"closed lets every call through, open none until retry_at, half_open one as a probe."`
	RetryAt      Stamp            `json:"retry_at" doc:"Of the next probe while the breaker is open."`
	LatencyMS    float64          `json:"latency_ms" doc:"Of its last answer."`
	Jobs         map[string]int   `json:"jobs" doc:"Jobs of ours that are there and have not ended, by state."`
	Links        Links            `json:"links"`
}

// ClusterToken says where a token is. One of both is set.
type ClusterToken struct {
	Env  string `json:"env,omitempty" doc:"Name of a variable of the server's environment."`
	File string `json:"file,omitempty" doc:"Path on the server's machine."`
}

// ClusterResources is what a cluster has.
type ClusterResources struct {
	Total      Units `json:"total"`
	Used       Units `json:"used" doc:"As Ray says, by whomever."`
	Free       Units `json:"free" doc:"What is left; never negative."`
	UsageKnown bool  `json:"usage_known" doc:"false: Ray has not said yet what is used, which it does some seconds after its start."`
}

func clusterResources(total, used sched.Resources, known bool) ClusterResources {
	return ClusterResources{Units(total), Units(used), Units(total.Sub(used).Positive()), known}
}

// ClusterNode is one machine of a cluster.
type ClusterNode struct {
	ID      string `json:"node_id"`
	Address string `json:"address" example:"10.0.0.5"`
	Head    bool   `json:"head"`
	Alive   bool   `json:"alive"`
	Total   Units  `json:"total"`
	Used    Units  `json:"used"`
}

// ClusterSample is one point of a cluster's history.
type ClusterSample struct {
	At    Stamp   `json:"at"`
	Score float64 `json:"score" doc:"Health, 0 to 1."`
	Total Units   `json:"total"`
	Used  Units   `json:"used"`
	Jobs  int     `json:"jobs" doc:"Jobs of ours that were there."`
}

// clusterRow is the cluster in a list.
func clusterRow(c clusters.Cluster, live map[string]map[string]int) Cluster {
	s := c.Status
	out := Cluster{Name: c.Name, Source: c.Source, HeadAddress: c.HeadAddress, Dashboard: c.Dashboard, RuntimeEnv: orNull(c.RuntimeEnv), Prefer: c.Prefer,
		Weight: c.Weight, Tags: orEmpty(c.Tags), MaxResources: JobUnits(c.Most), Rev: c.Rev, State: s.State, Since: Stamp(s.Since), Error: s.Error,
		CheckedAt: Stamp(s.At), SeenAt: Stamp(s.SeenAt), RayVersion: s.Version, Session: s.Session, Resources: clusterResources(s.Total, s.Used, s.UsageKnown),
		Score: s.Score, Reasons: orEmpty(s.Reasons), Breaker: s.Breaker, RetryAt: Stamp(s.RetryAt), LatencyMS: float64(s.Latency.Microseconds()) / 1000,
		Jobs: live[c.Name], Links: linksTo(defaultNamespace, "clusters", c.Name)}
	if c.Token != nil {
		out.Token = &ClusterToken{c.Token.Env, c.Token.File}
	}
	if c.Hold.Held {
		out.Hold = &Hold{State: ledger.Held, Reason: c.Hold.Reason, By: c.Hold.Actor, Since: stampOf(c.Hold.Since)}
	}
	if out.Jobs == nil {
		out.Jobs = map[string]int{}
	}
	if out.State == "" {
		out.State = clusters.Unseen
	}
	if out.Breaker == "" {
		out.Breaker = clusters.Closed
	}
	for _, n := range s.Nodes {
		if n.Alive {
			out.AliveNodes++
		}
	}
	return out
}

// clusterDoc is the whole cluster.
func clusterDoc(c clusters.Cluster, live map[string]map[string]int) Cluster {
	out := clusterRow(c, live)
	out.Nodes = mapped(c.Status.Nodes, func(n clusters.Node) ClusterNode {
		return ClusterNode{n.ID, n.Address, n.Head, n.Alive, Units(n.Total), Units(n.Used)}
	})
	return out
}

func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

func stampOf(t *time.Time) Stamp {
	if t == nil {
		return Stamp{}
	}
	return Stamp(*t)
}

// ClusterPath names a cluster.
type ClusterPath struct {
	Name string `path:"name" doc:"Name of the cluster, percent-encoded." example:"gpu_cluster"`
}

func (p *ClusterPath) check(f *faults) { f.name("path", "name", p.Name) }

// tagged is an answer with the revision of what it shows.
type tagged[T any] struct {
	ETag string `header:"ETag" doc:"For If-Match."`
	Body T
}

// NewClusters is the text of a configuration file.
type NewClusters struct {
	YAML string `json:"yaml" doc:"The text of a clusters.yaml." example:"clusters: {}"`
	File string `json:"file,omitempty" doc:"What to call it in messages; clusters.yaml when left out." example:"clusters.yaml"`
}

// cluster finds one, or says that there is none.
func (a *API) cluster(name string) (clusters.Cluster, error) {
	c, ok := a.clusters.Get(name)
	if !ok {
		return c, problem.New("unknown_cluster", fmt.Sprintf("there is no cluster %q; GET /clusters lists them", name))
	}
	return c, nil
}

func (a *API) taggedCluster(ctx context.Context, c clusters.Cluster, err error) (*tagged[Cluster], error) {
	if err != nil {
		return nil, err
	}
	live, err := a.jobs.Live(ctx)
	if err != nil {
		return nil, err
	}
	return &tagged[Cluster]{`"` + strconv.FormatInt(c.Rev, 10) + `"`, clusterDoc(c, live)}, nil
}

// configFault puts where a configuration is broken into the shape of all errors.
func configFault(err error) error {
	var e *clusters.ConfigError
	if !errors.As(err, &e) {
		return err
	}
	p := problem.New("invalid", e.Error())
	p.Errors = []problem.Item{{Field: "yaml", Location: fmt.Sprintf("body.yaml:%d:%d", e.Line, e.Column), Message: e.Message}}
	return p
}

func (a *API) registerClusters() {
	register(a, operation{id: "list-clusters", method: "GET", path: "/clusters", tag: "Clusters",
		summary: "List clusters", about: "All of them by name, on one page, with how they are and the room they have. Their nodes are left out; read the cluster for them.",
	}, func(ctx context.Context, _ *struct{}) (*Doc[List[Cluster]], error) {
		live, err := a.jobs.Live(ctx)
		return doc(list(mapped(a.clusters.All(), func(c clusters.Cluster) Cluster { return clusterRow(c, live) }), ""), err)
	})

	register(a, operation{id: "get-cluster", method: "GET", path: "/clusters/{name}", tag: "Clusters",
		summary: "Read a cluster", about: "What is configured, how it was when it was asked last, and its machines.", codes: []string{"unknown_cluster"},
	}, func(ctx context.Context, in *ClusterPath) (*tagged[Cluster], error) {
		c, err := a.cluster(in.Name)
		return a.taggedCluster(ctx, c, err)
	})

	register(a, operation{id: "put-cluster", method: "PUT", path: "/clusters/{name}", tag: "Clusters",
		summary: "Make or change a cluster", about: "Says all that is configured of it: what is left out gets its default. What clusters.yaml says of the same cluster counts again when its entry there changes. " +
			"Jobs that are there stay where they are.",
		codes: []string{"version_conflict"}, request: `{"head_address": "10.0.0.4:10001", "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}}, "weight": 0.8, "tags": ["gpu"], "token": {"env": "GPU_CLUSTER_TOKEN"}}`,
	}, func(ctx context.Context, in *struct {
		ClusterPath
		IfMatch
		Body ClusterSpec
	}) (*tagged[Cluster], error) {
		rev, err := in.base()
		if err != nil {
			return nil, err
		}
		spec, err := clusters.ReadSpec(in.Name, in.Body)
		if err != nil {
			return nil, err
		}
		c, err := a.clusters.Put(ctx, spec, actor(ctx), int64(rev))
		return a.taggedCluster(ctx, c, in.conditional(ctx, err))
	})

	register(a, operation{id: "delete-cluster", method: "DELETE", path: "/clusters/{name}", tag: "Clusters", status: 204,
		summary: "Remove a cluster", about: "No job goes there any more. One that clusters.yaml names stays away until its entry there changes. Ray itself is left alone.",
		codes: []string{"unknown_cluster", "cluster_in_use"},
	}, func(ctx context.Context, in *ClusterPath) (*Nothing, error) {
		return nil, a.clusters.Delete(ctx, in.Name, actor(ctx))
	})

	register(a, operation{id: "hold-cluster", method: "POST", path: "/clusters/{name}/hold", tag: "Clusters",
		summary: "Hold a cluster", about: "It gets no new jobs until it is resumed; what is there goes on. Holding it again replaces the reason.",
		codes: []string{"unknown_cluster"}, request: `{"reason": "new drivers"}`,
	}, func(ctx context.Context, in *struct {
		ClusterPath
		Body *NewHold
	}) (*tagged[Cluster], error) {
		c, err := a.clusters.Hold(ctx, in.Name, true, in.Body.request(ctx).Reason, actor(ctx))
		return a.taggedCluster(ctx, c, err)
	})
	register(a, operation{id: "resume-cluster", method: "POST", path: "/clusters/{name}/resume", tag: "Clusters",
		summary: "Resume a cluster", about: "Ends a hold: jobs that wait may go there at once. One that is not held stays as it is.", codes: []string{"unknown_cluster"},
	}, func(ctx context.Context, in *ClusterPath) (*tagged[Cluster], error) {
		c, err := a.clusters.Hold(ctx, in.Name, false, "", actor(ctx))
		return a.taggedCluster(ctx, c, err)
	})

	register(a, operation{id: "read-cluster-history", method: "GET", path: "/clusters/{name}/history", tag: "Clusters",
		summary: "Read how a cluster was", about: "Health, room and jobs over the last hours, oldest first, on one page. Samples that are drawn together keep the lowest score and the most used.",
		codes: []string{"unknown_cluster"}, query: "hours=6&points=60",
	}, func(ctx context.Context, in *struct {
		ClusterPath
		Hours  float64 `query:"hours" minimum:"0.01" maximum:"6" default:"1" doc:"How far back; samples are kept for six hours."`
		Points int     `query:"points" minimum:"1" maximum:"2000" default:"120" doc:"The most samples to answer with."`
	}) (*Doc[List[ClusterSample]], error) {
		if _, err := a.cluster(in.Name); err != nil {
			return nil, err
		}
		samples, err := a.clusters.History(ctx, in.Name, a.now().Add(-time.Duration(in.Hours*float64(time.Hour))), in.Points)
		return doc(list(mapped(samples, func(s clusters.Sample) ClusterSample {
			return ClusterSample{Stamp(s.At), s.Score, Units(s.Total), Units(s.Used), s.Jobs}
		}), ""), err)
	})

	register(a, operation{id: "import-clusters", method: "POST", path: "/clusters/import", tag: "Clusters",
		summary: "Import a configuration file", about: "Makes or changes every cluster that the text of a clusters.yaml names, all or none, and answers with them. It removes nothing. What is broken is told with its line and column.",
		request: `{"yaml": "clusters:\n  gpu_cluster:\n    head_address: \"10.0.0.4:10001\"\n    tags: [gpu]\n", "file": "clusters.yaml"}`,
	}, func(ctx context.Context, in *struct{ Body NewClusters }) (*Doc[List[Cluster]], error) {
		var f faults
		f.optionalName("body", "file", in.Body.File)
		if strings.TrimSpace(in.Body.YAML) == "" {
			f.add("body", "yaml", "is empty; send the text of a clusters.yaml")
		}
		if err := f.err(); err != nil {
			return nil, err
		}
		file := in.Body.File
		if file == "" {
			file = "clusters.yaml"
		}
		specs, err := clusters.ReadConfig(file, []byte(in.Body.YAML))
		if err != nil {
			return nil, configFault(err)
		}
		if err := a.clusters.Import(ctx, specs, actor(ctx)); err != nil {
			return nil, err
		}
		live, err := a.jobs.Live(ctx)
		if err != nil {
			return nil, err
		}
		imported := []Cluster{}
		for _, s := range specs {
			if c, ok := a.clusters.Get(s.Name); ok {
				imported = append(imported, clusterRow(c, live))
			}
		}
		return doc(list(imported, ""), nil)
	})
}
