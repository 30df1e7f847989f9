package clusters

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
)

func TestKeysComeBackFromCamelCase(t *testing.T) {
	t.Parallel()
	// The right side is what Ray's dashboard made of the left.
	for name, want := range map[string]string{
		"CPU": "CPU", "memory": "memory", "object_store_memory": "objectStoreMemory", "my_res": "myRes", "my_RES": "myRes",
		"node:__internal_head__": "node:InternalHead", "accelerator_type:A100": "acceleratorType:A100", "accelerator_type:nvidia-h100-sxm": "acceleratorType:Nvidia-H100-Sxm",
		"tpu_v5e_4x4": "tpuV5E4X4", "größe_über": "größeÜber", "_lead": "Lead", "x__y": "xY",
	} {
		if got := camel(name); got != want {
			t.Errorf("%s becomes %s, not %s", name, got, want)
		}
	}
}

func measured(t *testing.T, usage, nodes string) Status {
	t.Helper()
	var u usageJSON
	var n nodesJSON
	if err := json.Unmarshal([]byte(usage), &u); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(nodes), &n); err != nil {
		t.Fatal(err)
	}
	var s Status
	measure(&s, u, n, time.UnixMilli(10_000_000_000))
	return s
}

const twoNodes = `{"data":{"result":{"result":[
 {"node_id":"b","node_ip":"10.0.0.2","is_head_node":false,"state":"ALIVE","resources_total":{"CPU":2.0,"GPU":1.0,"memory":1048577.0,"my_RES":0.5,"node:10.0.0.2":1.0,"object_store_memory":5}},
 {"node_id":"c","node_ip":"10.0.0.3","state":"DEAD","resources_total":{"CPU":9.0},"end_time_ms":9999990000,"state_message":"Unexpected termination: health check failed"},
 {"node_id":"d","node_ip":"10.0.0.4","state":"DEAD","end_time_ms":9999990000,"state_message":"Expected termination: received SIGTERM"},
 {"node_id":"e","node_ip":"10.0.0.5","state":"DEAD","end_time_ms":1000,"state_message":null},
 {"node_id":"a","node_ip":"10.0.0.1","is_head_node":true,"state":"ALIVE","resources_total":{"CPU":0.3,"memory":3145728.0,"node:__internal_head__":1.0}}]}}}`

const someUsage = `{"data":{"clusterStatus":{"loadMetricsReport":{
 "usage":{"CPU":[0.3001,2.3],"GPU":[0.0,1.0],"memory":[1048577.0,4194305.0],"myRes":[0.25,0.5],"node:InternalHead":[0.0,1.0],"objectStoreMemory":[1.0,5.0],"CPUGroup0Abc":[1.0,2.0]},
 "usageByNode":{"b":{"CPU":[0.3001,2.0],"myRes":[0.25,0.5]}},
 "nodeTypes":[[{"CPU":2.0,"my_RES":0.5,"memory":1048577.0},1],[{"CPU":0.3},1]]}}}}`

func TestTotalsAreRoundedDownAndWhatIsUsedUp(t *testing.T) {
	t.Parallel()
	s := measured(t, someUsage, twoNodes)
	res := func(cpu, gpu, memory, mine int64) sched.Resources {
		return sched.Resources{CPU: cpu, GPU: gpu, Memory: memory}.With("my_RES", mine)
	}
	if !s.UsageKnown || !s.Total.Equal(res(2300, 1000, 4, 500)) || !s.Used.Equal(res(301, 0, 2, 250)) {
		t.Errorf("total %v, used %v", s.Total, s.Used)
	}
	if len(s.Nodes) != 3 || s.Nodes[0].ID != "a" || !s.Nodes[0].Head || s.Nodes[1].ID != "b" || s.Nodes[2].ID != "c" || s.Nodes[2].Alive || !s.Nodes[2].Total.IsZero() ||
		!s.Nodes[1].Used.Equal(res(301, 0, 0, 250)) {
		t.Errorf("%+v", s.Nodes)
	}
}

func TestWhatIsMissingOfAClusterIsMadeUpFor(t *testing.T) {
	t.Parallel()
	for _, usage := range []string{`{}`, `{"data":{"clusterStatus":null}}`, `{"data":{"clusterStatus":{"loadMetricsReport":null}}}`, `{"data":{"clusterStatus":{"loadMetricsReport":{"usage":null}}}}`} {
		if s := measured(t, usage, twoNodes); s.UsageKnown || s.Total.CPU != 2300 || !s.Used.IsZero() {
			t.Errorf("%s: %+v", usage, s)
		}
	}
	s := measured(t, someUsage, `{}`)
	if !s.UsageKnown || s.Total.CPU != 2300 || s.Used.CPU != 301 || s.Total.Get("my_RES") != 500 || s.Total.Get("CPUGroup0Abc") != 0 || len(s.Nodes) != 0 {
		t.Errorf("without nodes: %+v", s)
	}
	s = measured(t, strings.Replace(someUsage, "nodeTypes", "otherTypes", 1), `{}`)
	if s.Total.CPU != 2300 || s.Total.Get("myRes") != 500 || s.Total.Get("node:InternalHead") != 0 {
		t.Errorf("without any names: %+v", s)
	}
}

func TestOnlyVersionsThatWeSpeakWith(t *testing.T) {
	t.Parallel()
	for version, says := range map[string]string{
		"2.60.0": "", "2.9.0": "", "3.0.0rc1": "", "2.100.1": "", "2.8.1": "too old: 2.9", "1.13.0": "too old", "": "no dashboard of Ray", "nightly": "cannot be read", "2": "cannot be read",
	} {
		if err := speakable(version); says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q: %v", version, err)
		}
	}
}
