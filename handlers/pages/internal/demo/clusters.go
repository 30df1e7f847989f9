package demo

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/web"
)

func rooms(gpu, gpuJobs, gpuOthers, gpuComing, cpu, cpuJobs, cpuOthers, cpuComing, mem, memJobs int64) []web.Room {
	var out []web.Room
	if gpu > 0 {
		out = append(out, web.Room{Resource: "gpu", Total: gpu * 1000, Jobs: gpuJobs * 1000, Others: gpuOthers * 1000, Coming: gpuComing * 1000})
	}
	return append(out, web.Room{Resource: "cpu", Total: cpu * 1000, Jobs: cpuJobs * 1000, Others: cpuOthers * 1000, Coming: cpuComing * 1000},
		web.Room{Resource: "memory", Total: mem << 10, Jobs: memJobs << 10})
}

// fleet is several clusters in the middle of a working day.
func (w *World) fleet() {
	at := func(d time.Duration) time.Time { return w.now.Add(-d) }
	w.file = web.ClusterFile{Path: "/etc/schedulemesh/clusters.yaml"}
	w.clusters = []web.ClusterPage{
		{ClusterRow: web.ClusterRow{Name: "cpu_cluster", Source: "file", HeadAddress: "10.0.4.11:10001", Dashboard: "http://10.0.4.11:8265", Version: "2.60.0", State: "healthy", Since: at(9 * time.Hour), SeenAt: at(time.Second),
			Latency: 4 * time.Millisecond, Score: 1, Breaker: "closed", Room: rooms(0, 0, 0, 0, 256, 132, 20, 8, 1024, 410), RoomKnown: true, Nodes: 4, Weight: 1, Prefer: true, Tags: []string{"cpu", "stable"}}},
		{ClusterRow: web.ClusterRow{Name: "gpu_cluster", Source: "file", HeadAddress: "10.0.4.21:10002", Dashboard: "http://10.0.4.21:8265", Version: "2.60.0", State: "healthy", Since: at(2 * time.Hour), SeenAt: at(time.Second),
			Latency: 210 * time.Millisecond, Score: 0.72, Reasons: []string{"it answers slowly: 210 ms", "1 of 7 nodes is dead"}, Breaker: "closed", Room: rooms(48, 30, 9, 4, 384, 220, 60, 32, 3072, 1500), RoomKnown: true, Nodes: 6, DeadNodes: 1, Weight: 0.8, Tags: []string{"gpu", "experimental"}}},
		{ClusterRow: web.ClusterRow{Name: "gpu-east", Source: "api", HeadAddress: "ray-east.example.net:10001", Dashboard: "https://ray-east.example.net", Version: "2.60.0", State: "unhealthy", Since: at(40 * time.Second), SeenAt: at(42 * time.Second),
			Error: "It did not answer within 2 s, three times in a row.", Breaker: "open", RetryAt: w.now.Add(8 * time.Second), Room: rooms(16, 8, 0, 0, 128, 64, 0, 0, 512, 128), RoomKnown: true, Nodes: 2, Weight: 1, Tags: []string{"gpu"}}},
		{ClusterRow: web.ClusterRow{Name: "local", Source: "local", HeadAddress: "127.0.0.1:6379", Dashboard: "http://127.0.0.1:8265", Version: "2.60.0", State: "healthy", Since: at(30 * time.Hour), SeenAt: at(time.Second),
			Latency: 2 * time.Millisecond, Score: 1, Breaker: "closed", Hold: web.Hold{State: "held", Reason: "the agents need it this week", Actor: "mei", Since: at(26 * time.Hour)}, Room: rooms(0, 0, 0, 0, 8, 0, 3, 0, 16, 0), RoomKnown: true, Nodes: 1, Weight: 1}},
	}
	for i := range w.clusters {
		c := &w.clusters[i]
		c.Rev, c.Session = int64(i+1), "session_2026-11-21_04-59-12_118823_4711"
		for n := range c.Nodes {
			room := make([]web.Room, 0, 3)
			for _, r := range c.Room {
				total := r.Total / int64(c.Nodes)
				room = append(room, web.Room{Resource: r.Resource, Total: total, Others: min(total, (r.Jobs+r.Others)/int64(c.Nodes)*int64(n+1)/2)})
			}
			c.NodeList = append(c.NodeList, web.ClusterNode{ID: fmt.Sprintf("4f1c9a27e5b8d306%02d1c9a27e5b8d3064f1c9a27e5b8d3064f1c9a27", n), Address: fmt.Sprintf("10.0.4.%d", 20+n), Head: n == 0, Alive: true, Room: room})
		}
	}
	w.clusters[1].RuntimeEnv = "{\n  \"env_vars\": {\n    \"HF_TOKEN\": \"" + web.Masked + "\",\n    \"PYTHONPATH\": \"/opt/code\"\n  },\n  \"pip\": [\n    \"torch\",\n    \"torchvision\"\n  ]\n}"
	w.clusters[1].Token = "the variable RAY_GPU_TOKEN"
	w.clusters[1].Outside = []web.OutsideJob{
		{Cluster: "gpu_cluster", ID: "raysubmit_9aYk2", Kind: "SUBMISSION", State: "RUNNING", Entrypoint: "python /srv/notebooks/probe.py --seed 7", Started: at(50 * time.Minute), Seen: at(time.Second)},
		{Cluster: "gpu_cluster", ID: "07000000", Kind: "DRIVER", State: "SUCCEEDED", Message: "ipython", Started: at(3 * time.Hour), Ended: at(2 * time.Hour), Seen: at(time.Second)},
	}
	w.backlog()
}

func (w *World) counted(c web.ClusterPage) web.ClusterPage {
	c.Jobs = web.JobCounts{}
	for _, j := range w.jobs {
		if j.Cluster == c.Name {
			if j.Live() {
				c.Jobs[j.State]++
			}
			if len(c.Recent) < 8 {
				c.Recent = append(c.Recent, j.JobRow)
			}
		}
	}
	return c
}

func (w *World) Clusters(_ context.Context, f web.ClusterFilter) (web.ClusterList, error) {
	defer w.lock()()
	return w.clusterList(f), w.Fail
}

func (w *World) clusterList(f web.ClusterFilter) web.ClusterList {
	l := web.ClusterList{All: len(w.clusters), File: w.file, Jobs: web.JobCounts{}, Free: web.Resources{}, Whole: web.Resources{}}
	for _, j := range w.jobs {
		l.Jobs[j.State]++
	}
	for _, c := range w.clusters {
		if c.State == "healthy" {
			l.Healthy++
		}
		if c.Hold.On() {
			l.Held++
		} else if c.State == "healthy" {
			for _, r := range c.Room {
				l.Free[r.Resource] += r.Free()
				l.Whole[r.Resource] += r.Total
			}
		}
		if strings.Contains(c.Name, f.Text) && (f.State == "" || f.State == c.State || f.State == "held" && c.Hold.On()) {
			l.Items = append(l.Items, w.counted(c).ClusterRow)
		}
	}
	l.Total = len(l.Items)
	l.Items, l.Next = part(l.Items, f.Cursor, f.Limit)
	return l
}

func (w *World) clusterAt(name string) int {
	return slices.IndexFunc(w.clusters, func(c web.ClusterPage) bool { return c.Name == name })
}

func (w *World) Cluster(_ context.Context, name string, hours int) (web.ClusterPage, error) {
	defer w.lock()()
	i := w.clusterAt(name)
	if i < 0 {
		return web.ClusterPage{}, missing("cluster", name)
	}
	c := w.counted(w.clusters[i])
	c.Hours = hours
	span := time.Duration(hours) * time.Hour
	wave := func(title, now, top string, most float64, base, swing float64) web.Chart {
		ch := web.Chart{Title: title, Now: now, From: w.now.Add(-span), To: w.now, Top: most, TopWords: top, Gap: span / 30}
		for n := range 120 {
			if n > 70 && n < 78 { // it was away
				continue
			}
			ch.Points = append(ch.Points, web.ChartPoint{At: ch.From.Add(span * time.Duration(n) / 119), Value: base + swing*math.Sin(float64(n)/9), Of: most})
		}
		return ch
	}
	for _, r := range c.Room {
		used, all := float64(r.Jobs+r.Others), float64(r.Total)
		c.Charts = append(c.Charts, wave(web.ResourceName(r.Resource)+" in use", web.Amount(r.Resource, r.Jobs+r.Others)+" of "+web.Amount(r.Resource, r.Total), web.Amount(r.Resource, r.Total), all, used*.8, used*.2))
	}
	c.Charts = append(c.Charts, wave("Health", web.Factor(c.Score), "1.00", 1, c.Score*.9, c.Score*.1), wave("Jobs of ours there", web.Number(c.Jobs.Live()), "12", 12, 6, 4))
	return c, w.Fail
}

func (w *World) ClusterNames(context.Context) ([]string, error) {
	defer w.lock()()
	var out []string
	for _, c := range w.clusters {
		out = append(out, c.Name)
	}
	return out, w.Fail
}

func (w *World) ClusterForm(_ context.Context, name string) (web.ClusterForm, error) {
	defer w.lock()()
	i := w.clusterAt(name)
	if i < 0 {
		return web.ClusterForm{}, missing("cluster", name)
	}
	c := w.clusters[i]
	f := web.ClusterForm{Name: name, HeadAddress: c.HeadAddress, Dashboard: c.Dashboard, Weight: web.Decimal(c.Weight), Tags: strings.Join(c.Tags, ", "), Prefer: c.Prefer, RuntimeEnv: c.RuntimeEnv, Rev: fmt.Sprint(c.Rev), Source: c.Source}
	if kind, ref, ok := strings.Cut(strings.TrimPrefix(c.Token, "the "), " "); ok {
		f.Token, f.TokenRef = map[string]string{"variable": "env", "file": "file"}[kind], ref
	}
	return f, w.Fail
}

func (w *World) AddCluster(_ context.Context, c web.ClusterSpec) error {
	defer w.lock()()
	if err := w.note("add cluster %s at %s, weight %v, prefer %v, tags %v, token %s%s", c.Name, c.HeadAddress, c.Weight, c.Prefer, c.Tags, c.TokenEnv, c.TokenFile); err != nil {
		return err
	}
	if w.clusterAt(c.Name) >= 0 {
		return &pages.Refusal{ErrorCode: "cluster_exists", Message: "exists", ByField: map[string]string{"name": "A cluster is called that already. Edit it, or choose another name."}}
	}
	w.clusters = append(w.clusters, web.ClusterPage{ClusterRow: web.ClusterRow{Name: c.Name, Source: "api", HeadAddress: c.HeadAddress, Dashboard: c.Dashboard, State: "unseen", Breaker: "closed", Weight: c.Weight, Prefer: c.Prefer, Tags: c.Tags}, Rev: 1})
	w.tell(pages.Clusters)
	return nil
}

func (w *World) EditCluster(_ context.Context, c web.ClusterSpec) error {
	defer w.lock()()
	if err := w.note("edit cluster %s: %s, weight %v, env %s", c.Name, c.HeadAddress, c.Weight, c.RuntimeEnv); err != nil {
		return err
	}
	i := w.clusterAt(c.Name)
	if i < 0 {
		return missing("cluster", c.Name)
	}
	if c.Rev != w.clusters[i].Rev {
		return &pages.Refusal{ErrorCode: "version_conflict", Message: "Somebody else changed this cluster meanwhile. Open the form again to see what it says now."}
	}
	w.clusters[i].Rev++
	w.clusters[i].HeadAddress, w.clusters[i].Weight, w.clusters[i].Tags, w.clusters[i].Prefer = c.HeadAddress, c.Weight, c.Tags, c.Prefer
	return nil
}

func (w *World) RemoveCluster(_ context.Context, name string) error {
	defer w.lock()()
	if err := w.note("remove cluster %s", name); err != nil {
		return err
	}
	i := w.clusterAt(name)
	if i < 0 {
		return missing("cluster", name)
	}
	w.clusters = slices.Delete(w.clusters, i, i+1)
	return nil
}

func (w *World) HoldCluster(_ context.Context, name string, h web.HoldRequest) error {
	defer w.lock()()
	if err := w.note("hold cluster %s: %s %s", name, h.State, h.Reason); err != nil {
		return err
	}
	i := w.clusterAt(name)
	if i < 0 {
		return missing("cluster", name)
	}
	w.clusters[i].Hold = web.Hold{State: h.State, Reason: h.Reason, Actor: "mei", Since: w.now}
	return nil
}

// BreakFile makes clusters.yaml one that cannot be read.
func (w *World) BreakFile(problem string) {
	defer w.lock()()
	w.file.Problem = problem
}

// nastyMesh adds a cluster and a job of that name, with everything in them too long or hostile.
func (w *World) nastyMesh(id, long string) {
	c := web.ClusterPage{ClusterRow: web.ClusterRow{Name: id, Source: "api", HeadAddress: long + ":1", Dashboard: "http://" + long, Version: long, State: "unhealthy", Error: long, Breaker: "half_open", Weight: 1e9,
		Hold: web.Hold{State: "held", Reason: long, Actor: id, Since: w.now}, Tags: []string{long, id, "<blink>", "x", "y", "z"}, Room: []web.Room{{Resource: long, Total: 1000, Jobs: 9e15, Coming: 4000}}}}
	c.Reasons, c.Session, c.RuntimeEnv, c.Token = []string{long, id}, long, strings.Repeat("x", 1<<20), "the file "+long
	c.NodeList = []web.ClusterNode{{ID: id, Address: long, Room: c.Room}}
	c.Outside = []web.OutsideJob{{Cluster: id, ID: long, Kind: "DRIVER", State: "RUNNING", Entrypoint: long}}
	w.clusters = append(w.clusters, c)
	j := job(id, "FAILED", id, strings.Repeat(long, 1000), w.now, long, id, "<blink>")
	j.Reason, j.Message, j.JobID, j.Owner, j.Ended, j.ErrorType = strings.Repeat(long, 100), long, long, id, w.now, long
	j.Now = web.Note{Kind: "bad", Title: web.Say(long), Text: web.Say(strings.Repeat("z", 1<<20))}
	j.Metadata = []web.Label{{Key: long, Value: long}, {Key: id, Value: "<blink>"}}
	j.Env, j.Merged, j.Notes = strings.Repeat("e", 1<<20), strings.Repeat("m", 1<<20), []string{strings.Repeat(long, 100)}
	j.Why = &web.JobPlacement{Cluster: id, Reason: long, Others: []web.PlacementRow{{Cluster: long, Reason: long, Parts: long}}, Not: []web.Label{{Key: long, Value: "1"}}}
	j.Tried = []web.TriedCluster{{Cluster: id, Why: long, At: w.now}}
	w.jobs = append([]web.Job{j}, w.jobs...)
}
