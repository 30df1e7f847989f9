package clusters

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
)

// Ray before this one answers some of what is asked here otherwise.
const (
	leastMajor = 2
	leastMinor = 9
)

const (
	mostNodes    = 10_000    // that the state API gives
	deadNodeKept = time.Hour // after which a node that is gone is not shown any more
)

// Status asks the cluster how it is: its version, its nodes, what it has and what of it is used. The rest
// of the Status is empty. Any error means that the cluster cannot be used now.
func (r *Ray) Status(ctx context.Context) (Status, error) {
	began := time.Now()
	v, err := r.Version(ctx)
	if err != nil {
		return Status{}, err
	}
	s := Status{Version: v.Ray, Session: v.Session, Latency: time.Since(began)}
	if err := speakable(v.Ray); err != nil {
		return s, &CallError{Op: "version", URL: r.base + "/api/version", Status: http.StatusOK, Sent: true, Err: err}
	}
	var usage usageJSON
	var nodes nodesJSON
	var usageErr, nodesErr error
	var both sync.WaitGroup
	both.Go(func() { usageErr = r.get(ctx, "usage", "/api/cluster_status", &usage) })
	both.Go(func() { nodes, nodesErr = r.nodes(ctx) })
	both.Wait()
	// What a proxy does not let through, or an older Ray does not have, can be done without; silence can not.
	var call *CallError
	if errors.As(usageErr, &call) && call.Status != http.StatusNotFound {
		return s, usageErr
	}
	if errors.As(nodesErr, &call) && call.Status == 0 {
		return s, nodesErr
	}
	measure(&s, usage, nodes, time.Now())
	if s.Total.IsZero() {
		return s, &CallError{Op: "usage", URL: r.base + "/api/cluster_status", Status: http.StatusOK, Sent: true,
			Err: errors.New("the cluster does not say what it has, which is so in its first seconds")}
	}
	s.At = time.Now()
	s.SeenAt = s.At
	return s, nil
}

// nodes asks for the machines: the state API, which writes the names of resources as they are, or else what
// the dashboard's own pages are made of.
func (r *Ray) nodes(ctx context.Context) (nodesJSON, error) {
	var nodes nodesJSON
	err := r.get(ctx, "nodes", "/api/v0/nodes?detail=1&limit="+strconv.Itoa(mostNodes), &nodes)
	var call *CallError
	if !errors.As(err, &call) || call.Status == 0 {
		return nodes, err
	}
	var pages summaryJSON
	if r.get(ctx, "nodes", "/nodes?view=summary", &pages) != nil {
		return nodes, err
	}
	for _, n := range pages.Data.Summary {
		nodes.Data.Result.Result = append(nodes.Data.Result.Result, nodeJSON{ID: n.Raylet.ID, IP: n.IP, Head: n.Raylet.Head, State: n.Raylet.State, Resources: n.Raylet.Resources})
	}
	return nodes, nil
}

// speakable says whether this version of Ray is one that we speak with.
func speakable(version string) error {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	switch {
	case version == "":
		return errors.New("this is no dashboard of Ray: it names no ray_version")
	case err1 != nil || err2 != nil:
		return fmt.Errorf("the version of Ray, %q, cannot be read", shorten(version))
	case a < leastMajor || a == leastMajor && b < leastMinor:
		return fmt.Errorf("version %s of Ray is too old: %d.%d or newer is needed", version, leastMajor, leastMinor)
	}
	return nil
}

// usageJSON is what the autoscaler last wrote; it may be null, as a whole or in part. The dashboard writes keys
// of objects in camel case, resource names too, but does not look into nodeTypes.
type usageJSON struct {
	Data struct {
		ClusterStatus *struct {
			LoadMetricsReport *struct {
				Usage       map[string]usedOf            `json:"usage"`
				UsageByNode map[string]map[string]usedOf `json:"usageByNode"`
				NodeTypes   [][]any                      `json:"nodeTypes"`
			} `json:"loadMetricsReport"`
		} `json:"clusterStatus"`
	} `json:"data"`
}

// usedOf is [used, total].
type usedOf [2]float64

type nodesJSON struct {
	Data struct {
		Result struct {
			Result []nodeJSON `json:"result"`
		} `json:"result"`
	} `json:"data"`
}

type nodeJSON struct {
	ID        string             `json:"node_id"`
	IP        string             `json:"node_ip"`
	Head      bool               `json:"is_head_node"`
	State     string             `json:"state"`
	Resources map[string]float64 `json:"resources_total"`
	EndMillis float64            `json:"end_time_ms"`
	Message   string             `json:"state_message"`
}

type summaryJSON struct {
	Data struct {
		Summary []struct {
			IP     string `json:"ip"`
			Raylet struct {
				ID        string             `json:"nodeId"`
				Head      bool               `json:"isHeadNode"`
				State     string             `json:"state"`
				Resources map[string]float64 `json:"resourcesTotal"`
			} `json:"raylet"`
		} `json:"summary"`
	} `json:"data"`
}

// lost says that a node went a while ago at most, and not because somebody wanted it to.
func (n nodeJSON) lost(now time.Time) bool {
	wanted := strings.HasPrefix(n.Message, "Expected termination") || strings.HasPrefix(n.Message, "Terminated due to idle")
	return n.State != "ALIVE" && !wanted && now.Sub(time.UnixMilli(int64(n.EndMillis))) < deadNodeKept
}

// measure fills in what the answers say.
func measure(s *Status, usage usageJSON, nodes nodesJSON, now time.Time) {
	var used map[string]usedOf
	var byNode map[string]map[string]usedOf
	names := map[string]string{} // by what the dashboard makes of them
	for _, n := range nodes.Data.Result.Result {
		for name := range n.Resources {
			names[camel(name)] = name
		}
	}
	if cs := usage.Data.ClusterStatus; cs != nil && cs.LoadMetricsReport != nil {
		report := cs.LoadMetricsReport
		used, byNode = report.Usage, report.UsageByNode
		for _, kind := range report.NodeTypes {
			if len(kind) > 0 {
				if resources, ok := kind[0].(map[string]any); ok {
					for name := range resources {
						names[camel(name)] = name
					}
				}
			}
		}
	}
	s.UsageKnown = len(used) > 0
	s.Used = resourcesOf(used, names, func(v usedOf) float64 { return v[0] }, math.Ceil)
	for _, n := range nodes.Data.Result.Result {
		node := Node{ID: n.ID, Address: n.IP, Head: n.Head, Alive: n.State == "ALIVE"}
		switch {
		case node.Alive:
			node.Total = resourcesOf(n.Resources, nil, func(v float64) float64 { return v }, math.Floor)
			node.Used = resourcesOf(byNode[n.ID], names, func(v usedOf) float64 { return v[0] }, math.Ceil)
			s.Total = s.Total.Add(node.Total)
		case !n.lost(now):
			continue
		}
		s.Nodes = append(s.Nodes, node)
	}
	slices.SortFunc(s.Nodes, func(a, b Node) int {
		if a.Head != b.Head {
			return map[bool]int{true: -1, false: 1}[a.Head]
		}
		return strings.Compare(a.ID, b.ID)
	})
	if len(nodes.Data.Result.Result) == 0 {
		s.Total = resourcesOf(used, names, func(v usedOf) float64 { return v[1] }, math.Floor)
	}
}

// resourcesOf makes the ledger's units of Ray's. What is Ray's own bookkeeping (one resource for each node,
// its object store, what placement groups hold) is left out.
func resourcesOf[V any](amounts map[string]V, names map[string]string, of func(V) float64, round func(float64) float64) sched.Resources {
	var r sched.Resources
	for name, v := range amounts {
		known, ok := names[name]
		if !ok && len(names) > 0 {
			continue // no node has it: it is made of others, as placement groups do
		}
		if ok {
			name = known
		}
		amount := min(of(v), 1e15)
		if bookkeeping(name) || math.IsNaN(amount) || amount <= 0 {
			continue
		}
		switch name {
		case "cpu", "gpu": // in lower case these would be custom ones, and are ours
		case "CPU":
			r.CPU = thousandths(amount, round)
		case "GPU":
			r.GPU = thousandths(amount, round)
		case "memory":
			r.Memory = int64(round(amount / (1 << 20)))
		default:
			r = r.With(name, thousandths(amount, round))
		}
	}
	return r
}

// thousandths rounds only what is really between two of them: 0.3 is 300 and not 299.
func thousandths(amount float64, round func(float64) float64) int64 {
	scaled := amount * 1000
	if near := math.Round(scaled); math.Abs(scaled-near) < 1e-6*max(1, near) {
		return int64(near)
	}
	return int64(round(scaled))
}

func bookkeeping(name string) bool {
	return strings.HasPrefix(name, "node:") || name == "object_store_memory" || name == "objectStoreMemory" ||
		strings.Contains(name, "_group_") || strings.HasPrefix(name, "bundle_group_")
}

// camel is what the dashboard makes of a key: Python's str.title of all words but the first.
func camel(name string) string {
	words := strings.Split(name, "_")
	var out strings.Builder
	out.WriteString(words[0])
	for _, word := range words[1:] {
		inside := false
		for _, c := range word {
			letter := strings.ToLower(string(c)) != strings.ToUpper(string(c))
			switch {
			case !letter:
				out.WriteRune(c)
			case inside:
				out.WriteString(strings.ToLower(string(c)))
			default:
				out.WriteString(strings.ToUpper(string(c)))
			}
			inside = letter
		}
	}
	return out.String()
}
