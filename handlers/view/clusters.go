package view

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/jobs"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/web"
)

// Registry is the clusters that jobs may go to; *clusters.Registry is one.
type Registry interface {
	All() []clusters.Cluster
	Get(name string) (clusters.Cluster, bool)
	Put(ctx context.Context, s clusters.Spec, actor string, ifRev int64) (clusters.Cluster, error)
	Delete(ctx context.Context, name, actor string) error
	Hold(ctx context.Context, name string, held bool, reason, actor string) (clusters.Cluster, error)
	History(ctx context.Context, name string, since time.Time, points int) ([]clusters.Sample, error)
	FileProblem() (problem, path string)
}

// Jobs is the jobs over those clusters; *jobs.Service is one.
type Jobs interface {
	jobs.API
	// Loads is what live jobs ask for on each cluster.
	Loads(ctx context.Context) (map[string]jobs.Load, error)
}

const (
	overviewClusters = 5
	clusterJobs      = 8   // on a cluster's page
	clusterOutside   = 5   // on a cluster's page
	clusterNodes     = 200 // on a cluster's page
	nodeRooms        = 3   // resources shown of a machine
	chartPoints      = 120
)

// noJobs is the answer of a server that looks after no jobs.
func (v *View) noJobs() error {
	if v.o.Jobs == nil || v.o.Registry == nil {
		return &pages.Refusal{ErrorCode: "jobs_unavailable", Message: "This server knows no jobs and no clusters for them."}
	}
	return nil
}

// carried is what jobs of ours hold, for the bars.
type carried struct {
	live  map[string]map[string]int // jobs by cluster and state
	loads map[string]jobs.Load      // by cluster
}

// carried asks once for all who look at the same time.
func (v *View) carried(ctx context.Context) (carried, error) {
	c, _, err := v.loads.get(ctx, "", func(ctx context.Context) (c carried, err error) {
		if c.live, err = v.o.Jobs.Live(ctx); err != nil {
			return c, err
		}
		c.loads, err = v.o.Jobs.Loads(ctx)
		return c, err
	})
	return c, v.refused(ctx, err)
}

// Clusters lists them by name.
func (v *View) Clusters(ctx context.Context, f web.ClusterFilter) (web.ClusterList, error) {
	out := web.ClusterList{Free: web.Resources{}, Whole: web.Resources{}, Jobs: web.JobCounts{}}
	if err := v.noJobs(); err != nil {
		return out, err
	}
	c, err := v.carried(ctx)
	if err != nil {
		return out, err
	}
	for _, states := range c.live {
		for state, n := range states {
			out.Jobs[state] += n
		}
	}
	out.File.Problem, out.File.Path = v.o.Registry.FileProblem()
	all := v.o.Registry.All()
	out.All = len(all)
	from, _ := strconv.Atoi(f.Cursor)
	for _, x := range all {
		row := clusterRow(x, c)
		if row.Hold.On() {
			out.Held++
		}
		if row.State == clusters.Healthy {
			out.Healthy++
			if !row.Hold.On() {
				for _, r := range row.Room {
					out.Free[r.Resource] += max(0, r.Free())
					out.Whole[r.Resource] += r.Total
				}
			}
		}
		if !matches(row, f) {
			continue
		}
		if out.Total++; out.Total > from && (f.Limit == 0 || len(out.Items) < f.Limit) {
			out.Items = append(out.Items, row)
		}
	}
	if from+len(out.Items) < out.Total {
		out.Next = number(int64(from + len(out.Items)))
	}
	return out, nil
}

func matches(c web.ClusterRow, f web.ClusterFilter) bool {
	switch {
	case f.State == "held" && !c.Hold.On(), f.State != "" && f.State != "held" && c.State != f.State:
		return false
	case f.Text == "":
		return true
	}
	text := strings.ToLower(f.Text)
	return strings.Contains(strings.ToLower(c.Name), text) || slices.ContainsFunc(c.Tags, func(t string) bool { return strings.Contains(strings.ToLower(t), text) })
}

func clusterRow(c clusters.Cluster, on carried) web.ClusterRow {
	s := c.Status
	out := web.ClusterRow{Name: c.Name, Source: c.Source, HeadAddress: c.HeadAddress, Dashboard: c.Dashboard, Version: s.Version, State: either(s.State, clusters.Unseen),
		Since: s.Since, SeenAt: s.SeenAt, Error: sentence(s.Error), Latency: s.Latency, Score: s.Score, Breaker: s.Breaker, RetryAt: s.RetryAt,
		RoomKnown: s.UsageKnown, Prefer: c.Prefer, Weight: c.Weight, Tags: c.Tags, Hold: clusterHold(c.Hold), Jobs: web.JobCounts(on.live[c.Name])}
	for _, r := range s.Reasons {
		out.Reasons = append(out.Reasons, plain(r))
	}
	for _, n := range s.Nodes {
		if n.Alive {
			out.Nodes++
		} else {
			out.DeadNodes++
		}
	}
	out.Room = room(s.Total, s.Used, c.Most, on.loads[c.Name])
	return out
}

func clusterHold(h clusters.Hold) web.Hold {
	if !h.Held {
		return web.Hold{}
	}
	out := web.Hold{State: "held", Reason: h.Reason, Actor: h.Actor}
	if h.Since != nil {
		out.Since = *h.Since
	}
	return out
}

// room is who uses what, counted as where jobs are placed: what our jobs ask for is theirs whether Ray says so yet
// or not, and what Ray says beyond that is used by others.
func room(total, used, most sched.Resources, l jobs.Load) []web.Room {
	others := used.Sub(l.Running).Sub(l.Ended).Positive()
	coming := l.Live.Sub(l.Running).Positive()
	amounts := resources(total)
	var out []web.Room
	for _, name := range amounts.Names() {
		out = append(out, web.Room{Resource: name, Total: amounts[name], Jobs: l.Running.Get(name), Others: others.Get(name), Coming: coming.Get(name), Most: most.Get(name)})
	}
	return out
}

// Cluster is one of them.
func (v *View) Cluster(ctx context.Context, name string, hours int) (web.ClusterPage, error) {
	var out web.ClusterPage
	c, err := v.cluster(name)
	if err != nil {
		return out, err
	}
	on, err := v.carried(ctx)
	if err != nil {
		return out, err
	}
	out = web.ClusterPage{ClusterRow: clusterRow(c, on), Rev: c.Rev, Token: secretWords(c.Token), Hours: hours, Session: c.Status.Session}
	out.RuntimeEnv, _ = web.MaskEnv(c.RuntimeEnv)
	if !c.Most.IsZero() {
		out.Most = resources(c.Most)
	}
	for _, n := range c.Status.Nodes[:min(clusterNodes, len(c.Status.Nodes))] {
		all := room(n.Total, n.Used, sched.Resources{}, jobs.Load{})
		out.NodeList = append(out.NodeList, web.ClusterNode{ID: n.ID, Address: n.Address, Head: n.Head, Alive: n.Alive, Room: all[:min(nodeRooms, len(all))]})
	}
	page, err := v.o.Jobs.Find(ctx, jobs.Filter{Cluster: name, Limit: clusterJobs})
	if err != nil {
		return out, v.refused(ctx, err)
	}
	for _, j := range page.Items {
		out.Recent = append(out.Recent, jobRow(j))
	}
	outside, err := v.o.Jobs.Outside(ctx, name, clusterOutside)
	if err != nil {
		return out, v.refused(ctx, err)
	}
	for _, o := range outside {
		out.Outside = append(out.Outside, outsideJob(o))
	}
	now := v.now()
	samples, err := v.o.Registry.History(ctx, name, now.Add(-time.Duration(hours)*time.Hour), chartPoints)
	if err != nil {
		return out, v.refused(ctx, err)
	}
	out.Charts = charts(samples, now.Add(-time.Duration(hours)*time.Hour), now)
	return out, nil
}

func (v *View) cluster(name string) (clusters.Cluster, error) {
	if err := v.noJobs(); err != nil {
		return clusters.Cluster{}, err
	}
	c, ok := v.o.Registry.Get(name)
	if !ok {
		return c, &pages.Refusal{ErrorCode: "unknown_cluster", Message: fmt.Sprintf("There is no cluster called %q.", web.Cut(name, 120))}
	}
	return c, nil
}

// secretWords says where a secret is, never what it is.
func secretWords(s *clusters.Secret) string {
	switch {
	case s == nil:
		return ""
	case s.Env != "":
		return "the variable " + s.Env
	}
	return "the file " + s.File
}

// charts are drawn from a cluster's history: each resource it has, its health, and our jobs there.
func charts(samples []clusters.Sample, from, to time.Time) []web.Chart {
	if len(samples) == 0 {
		return nil
	}
	gap := max(30*time.Second, 3*to.Sub(from)/chartPoints)
	last := samples[len(samples)-1]
	var most sched.Resources
	for _, s := range samples {
		most = most.Max(s.Total).Max(s.Used)
	}
	one := func(title, now, top string, height float64, value, of func(clusters.Sample) float64) web.Chart {
		c := web.Chart{Title: title, Now: now, From: from, To: to, Top: height, TopWords: top, Gap: gap}
		for _, s := range samples {
			c.Points = append(c.Points, web.ChartPoint{At: s.At, Value: value(s), Of: of(s)})
		}
		return c
	}
	var out []web.Chart
	amounts := resources(most)
	for _, name := range amounts.Names() {
		out = append(out, one(web.ResourceName(name)+" in use", web.Amount(name, last.Used.Get(name))+" of "+web.Amount(name, last.Total.Get(name)), web.Amount(name, amounts[name]), float64(amounts[name]),
			func(s clusters.Sample) float64 { return float64(s.Used.Get(name)) }, func(s clusters.Sample) float64 { return float64(s.Total.Get(name)) }))
	}
	none := func(clusters.Sample) float64 { return math.NaN() }
	jobsMost := 1
	for _, s := range samples {
		jobsMost = max(jobsMost, s.Jobs)
	}
	return append(out,
		one("Health", web.Factor(last.Score), "1.00", 1, func(s clusters.Sample) float64 { return s.Score }, none),
		one("Jobs of ours there", web.Number(last.Jobs), web.Number(jobsMost), float64(jobsMost), func(s clusters.Sample) float64 { return float64(s.Jobs) }, none))
}

// ClusterNames are all, for forms.
func (v *View) ClusterNames(context.Context) ([]string, error) {
	if err := v.noJobs(); err != nil {
		return nil, err
	}
	var out []string
	for _, c := range v.o.Registry.All() {
		out = append(out, c.Name)
	}
	return out, nil
}

// ClusterForm is the form of a cluster, filled in.
func (v *View) ClusterForm(_ context.Context, name string) (web.ClusterForm, error) {
	c, err := v.cluster(name)
	if err != nil {
		return web.ClusterForm{}, err
	}
	f := web.ClusterForm{Name: name, HeadAddress: c.HeadAddress, Dashboard: c.Dashboard, Weight: web.Decimal(c.Weight), Prefer: c.Prefer, Tags: strings.Join(c.Tags, ", "), Rev: number(c.Rev), Source: c.Source}
	switch {
	case c.Token == nil:
	case c.Token.Env != "":
		f.Token, f.TokenRef = "env", c.Token.Env
	default:
		f.Token, f.TokenRef = "file", c.Token.File
	}
	f.RuntimeEnv, _ = web.MaskEnv(c.RuntimeEnv)
	f.SetMost(resources(c.Most))
	return f, nil
}

// AddCluster puts a cluster into the registry.
func (v *View) AddCluster(ctx context.Context, c web.ClusterSpec) error {
	if err := v.noJobs(); err != nil {
		return err
	}
	if _, there := v.o.Registry.Get(c.Name); there {
		return invalid("name", "A cluster is called that already. Edit it, or choose another name.")
	}
	return v.putCluster(ctx, c, nil)
}

// EditCluster replaces what is configured of one.
func (v *View) EditCluster(ctx context.Context, c web.ClusterSpec) error {
	was, err := v.cluster(c.Name)
	if err != nil {
		return err
	}
	if c.Rev != 0 && c.Rev != was.Rev {
		return &pages.Refusal{ErrorCode: "version_conflict", Message: "Somebody else changed this cluster meanwhile. Open the form again to see what it says now."}
	}
	return v.putCluster(ctx, c, was.RuntimeEnv)
}

// clusterFields are the fields of the form of a cluster.
var clusterFields = []string{"name", "head_address", "dashboard", "weight", "tags", "prefer", "runtime_env"}

func (v *View) putCluster(ctx context.Context, c web.ClusterSpec, was json.RawMessage) error {
	most, err := amounts(c.Most)
	if err != nil {
		return err
	}
	doc := map[string]any{"head_address": c.HeadAddress, "prefer": c.Prefer, "weight": c.Weight, "tags": c.Tags}
	if c.Dashboard != "" {
		doc["dashboard"] = c.Dashboard
	}
	if c.TokenEnv != "" {
		doc["token"] = map[string]string{"env": c.TokenEnv}
	} else if c.TokenFile != "" {
		doc["token"] = map[string]string{"file": c.TokenFile}
	}
	if len(c.RuntimeEnv) > 0 {
		env := web.Unmask(c.RuntimeEnv, was)
		if bytes.Contains(env, []byte(web.Masked)) {
			return invalid("runtime_env", "It has "+web.Masked+" where there is nothing to put in its place; type the value.")
		}
		doc["runtime_env"] = env
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	spec, err := clusters.ReadSpec(c.Name, text)
	if err == nil {
		spec.Most = most
		_, err = v.o.Registry.Put(ctx, spec, actor(ctx), c.Rev)
	}
	if ledger.CodeOf(err) == ledger.ErrConflict.Code {
		return &pages.Refusal{ErrorCode: "version_conflict", Message: "Somebody else changed this cluster meanwhile. Open the form again to see what it says now."}
	}
	v.loads.forget("")
	return v.onForm(ctx, err, nil, append(clusterFields, "token_ref")...)
}

// RemoveCluster takes a cluster out of the registry.
func (v *View) RemoveCluster(ctx context.Context, name string) error {
	if _, err := v.cluster(name); err != nil {
		return err
	}
	return v.refused(ctx, v.o.Registry.Delete(ctx, name, actor(ctx)))
}

// HoldCluster keeps new jobs away from a cluster, or lets them there again.
func (v *View) HoldCluster(ctx context.Context, name string, h web.HoldRequest) error {
	if _, err := v.cluster(name); err != nil {
		return err
	}
	_, err := v.o.Registry.Hold(ctx, name, h.State != "", h.Reason, actor(ctx))
	return v.refused(ctx, err)
}

// fleet is how the clusters are, for the overview; nothing when there are none.
func (v *View) fleet(ctx context.Context) (web.ClusterList, error) {
	if v.noJobs() != nil {
		return web.ClusterList{}, nil
	}
	l, err := v.Clusters(ctx, web.ClusterFilter{})
	slices.SortStableFunc(l.Items, func(a, b web.ClusterRow) int { return rank(a) - rank(b) }) // what needs a look first
	l.Items = l.Items[:min(overviewClusters, len(l.Items))]
	return l, err
}

func rank(c web.ClusterRow) int {
	switch {
	case c.State == clusters.Unhealthy:
		return 0
	case c.Hold.On():
		return 1
	}
	return 2
}

// fleetNotes say which clusters take no jobs because something is wrong with them.
func fleetNotes(l web.ClusterList) []web.Note {
	var out []web.Note
	bad := 0
	for _, c := range l.Items {
		if c.State != clusters.Unhealthy {
			continue
		}
		if bad++; bad <= 2 {
			out = append(out, web.Note{Kind: "warn", Title: web.Line{web.Text("Cluster "), web.Link(c.Name, "/clusters/"+web.Escape(c.Name)), web.Text(" takes no jobs.")}, Text: web.Say(c.Error)})
		}
	}
	if l.File.Problem != "" {
		out = append(out, web.Note{Kind: "warn", Title: web.Say("What clusters.yaml says now is not in force."), Text: web.Line{web.Code(l.File.Problem)}})
	}
	return out
}
