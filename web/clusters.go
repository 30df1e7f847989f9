package web

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// ClusterRow is a Ray cluster that jobs may go to, in a list.
type ClusterRow struct {
	Name        string
	Source      string // file, api, local
	HeadAddress string
	Dashboard   string
	Version     string // of Ray, "" while it is not known
	State       string // healthy, unhealthy, unseen
	Since       time.Time
	SeenAt      time.Time // of the last answer that could be used
	Error       string    // of the last try
	Latency     time.Duration
	Score       float64  // of its health, 0 to 1
	Reasons     []string // why that is not 1
	Breaker     string   // closed, open, half_open
	RetryAt     time.Time
	Hold        Hold
	Room        []Room
	RoomKnown   bool // Ray says what is used only some seconds after its start
	Nodes       int  // alive
	DeadNodes   int
	Prefer      bool
	Weight      float64
	Tags        []string
	Jobs        JobCounts // that are on it
}

// Room is one resource of a cluster, in the resource's unit (see Resources).
type Room struct {
	Resource string
	Total    int64
	Jobs     int64 // used by our jobs
	Others   int64 // used by everything else
	Coming   int64 // asked for by jobs that were sent there and do not run yet
	Most     int64 // what it may grow to, when that is more than Total
}

// Free is what a job could still get; negative when more was sent there than it has.
func (r Room) Free() int64 { return r.Total - r.Jobs - r.Others - r.Coming }

// Sum is the figure beside the bar.
func (r Room) Sum() string {
	write, unit := func(n int64) string { return Amount(r.Resource, n) }, ""
	if r.Resource == "memory" {
		write, unit = memoryIn(r.Total)
	}
	return write(max(0, r.Free())) + " of " + write(r.Total) + unit + " free"
}

// Words says the bar in a sentence.
func (r Room) Words() string {
	a := func(n int64) string { return Amount(r.Resource, n) }
	s := fmt.Sprintf("%s: %s used by jobs, %s by others", ResourceName(r.Resource), a(r.Jobs), a(r.Others))
	if r.Coming > 0 {
		s += fmt.Sprintf(", %s on the way", a(r.Coming))
	}
	if f := r.Free(); f < 0 {
		s += fmt.Sprintf("; of %s, %s more than it has", a(r.Total), a(-f))
	} else {
		s += fmt.Sprintf("; %s of %s free", a(f), a(r.Total))
	}
	if r.Most > r.Total {
		s += fmt.Sprintf("; it can grow to %s", a(r.Most))
	}
	return s
}

// parts are the figures of the bar's stretches.
func (r Room) parts() string {
	a := func(n int64) string { return Amount(r.Resource, n) }
	return join(" · ", true, a(r.Jobs)+" our jobs", true, a(r.Others)+" others", r.Coming > 0, a(r.Coming)+" on the way", r.Most > r.Total, "can grow to "+a(r.Most))
}

// Segments lays the bar out from left to right.
func (r Room) Segments() []Segment {
	total := max(r.Total, r.Jobs+r.Others+r.Coming, 1)
	var out []Segment
	x := 0.0
	for _, s := range []struct {
		kind string
		n    int64
	}{{"used", r.Jobs}, {"others", r.Others}, {"reserved", r.Coming}} {
		if s.n > 0 {
			w := float64(s.n) * 100 / float64(total)
			out = append(out, Segment{s.kind, x, w})
			x += w
		}
	}
	return out
}

// ClusterFilter narrows the list of clusters.
type ClusterFilter struct {
	Text   string // part of the name, or of a tag
	State  string // "", healthy, unhealthy, unseen, held
	Cursor string
	Limit  int
}

// Narrowed says that something is asked for.
func (f ClusterFilter) Narrowed() bool { return f.Text != "" || f.State != "" }

// ClusterList is one page of clusters, by name.
type ClusterList struct {
	Items       []ClusterRow
	Next        string
	Total       int // that match
	All         int
	Healthy     int
	Held        int
	Free, Whole Resources // of all healthy ones that are not held
	Jobs        JobCounts // of all, also of those that wait for a cluster
	File        ClusterFile
}

// ClusterFile is clusters.yaml as this server sees it.
type ClusterFile struct {
	Path    string // "" when there is none
	Problem string // why what it says is not in force
}

// ClusterPage is one cluster.
type ClusterPage struct {
	ClusterRow
	Rev        int64
	RuntimeEnv string // JSON, secrets masked; "" for none
	Token      string // where it is: "the variable RAY_TOKEN", "the file /run/token"; "" for none
	Most       Resources
	NodeList   []ClusterNode
	Hours      int // that the charts go back
	Charts     []Chart
	Recent     []JobRow // newest first
	Outside    []OutsideJob
	Session    string
}

// ClusterNode is a machine of a cluster.
type ClusterNode struct {
	ID, Address string
	Head, Alive bool
	Room        []Room
}

// Short is the id as it is shown.
func (n ClusterNode) Short() string {
	if len(n.ID) > 16 {
		return n.ID[:12]
	}
	return n.ID
}

// ClusterForm is the form of a cluster as typed.
type ClusterForm struct {
	Name, HeadAddress, Dashboard string
	Weight, Tags                 string
	Prefer                       bool
	Token, TokenRef              string // "", env or file; and which
	RuntimeEnv                   string
	CPU, GPU, Memory             string // what it may grow to
	OtherResources               string
	Rev                          string // the form was made from; "" for a new one

	Source string // of what is in force
	Errors Errors
}

// ClusterSpec is what a ClusterForm says once it parses. Every field is meant, also an empty one.
type ClusterSpec struct {
	Name, HeadAddress, Dashboard string
	Weight                       float64
	Prefer                       bool
	Tags                         []string
	TokenEnv, TokenFile          string
	RuntimeEnv                   json.RawMessage // nil for none; may hold Masked values, which stand for what is there
	Most                         Resources
	Rev                          int64 // 0: a new one
}

// ClusterFields are the names of ClusterForm's fields.
var ClusterFields = []string{"name", "head_address", "dashboard", "weight", "tags", "prefer", "token", "token_ref", "runtime_env", "cpu", "gpu", "memory", "resources"}

// NewClusterForm is the form before anything was typed.
func NewClusterForm() ClusterForm { return ClusterForm{Weight: "1.0"} }

// ReadClusterForm takes what was posted.
func ReadClusterForm(v url.Values) ClusterForm {
	g := func(k string) string { return strings.TrimSpace(v.Get(k)) }
	return ClusterForm{
		Name: g("name"), HeadAddress: g("head_address"), Dashboard: g("dashboard"), Weight: g("weight"), Tags: g("tags"), Prefer: g("prefer") != "",
		Token: g("token"), TokenRef: g("token_ref"), RuntimeEnv: g("runtime_env"), CPU: g("cpu"), GPU: g("gpu"), Memory: g("memory"), OtherResources: g("resources"), Rev: g("rev"),
	}
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Parse checks and converts the form. What an address must look like the registry knows.
func (f ClusterForm) Parse() (ClusterSpec, Errors) {
	e := Errors{}
	required(e, "name", f.Name, "Give the cluster a name; jobs may prefer it by that.")
	required(e, "head_address", f.HeadAddress, "Say where its head is, as host:port, for example 10.0.0.5:10001.")
	s := ClusterSpec{Name: f.Name, HeadAddress: f.HeadAddress, Dashboard: f.Dashboard, Weight: 1, Prefer: f.Prefer, Tags: TagsOf(f.Tags)}
	if f.Weight != "" {
		if s.Weight = decimal(e, "weight", f.Weight); s.Weight <= 0 {
			e.Add("weight", "It must be more than 0; 1.0 is usual. To keep jobs away hold the cluster.")
		}
	}
	switch oneOf(e, "token", f.Token, "", "env", "file") {
	case "env":
		s.TokenEnv = f.TokenRef
		required(e, "token_ref", f.TokenRef, "Name the variable that holds the token.")
		if f.TokenRef != "" && !variable.MatchString(f.TokenRef) {
			e.Add("token_ref", "That is no name of a variable. Type the name, such as RAY_TOKEN, never the token itself.")
		}
	case "file":
		s.TokenFile = f.TokenRef
		required(e, "token_ref", f.TokenRef, "Name the file that holds the token.")
	default:
		if f.TokenRef != "" {
			e.Add("token", "Choose whether that names a variable or a file.")
		}
	}
	s.RuntimeEnv = jsonOf(e, "runtime_env", f.RuntimeEnv, '{')
	s.Most = resources(e, f.CPU, f.GPU, f.Memory, f.OtherResources)
	if f.Rev != "" {
		s.Rev = int64(whole(e, "", f.Rev))
	}
	return s, e
}

// SetMost fills the form's fields from what the cluster may grow to.
func (f *ClusterForm) SetMost(r Resources) {
	f.CPU, f.GPU, f.Memory, f.OtherResources = typed(r)
}

// TagsOf reads tags as they are typed: separated by commas or spaces, each once.
func TagsOf(s string) []string {
	var out []string
	for _, t := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == '\n' || r == ' ' || r == '\t' || r == '\r' }) {
		if !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

func (c ClusterRow) sourceWords() string {
	switch c.Source {
	case "file":
		return "from clusters.yaml"
	case "local":
		return "of this deployment"
	}
	return "added by hand"
}

// stateWords is the state with what belongs to it.
func (c ClusterRow) stateWords() string {
	switch c.State {
	case "healthy":
		return "healthy, " + Factor(c.Score)
	case "unseen":
		return "not asked yet"
	}
	return c.State
}

// Factor writes a health score or a part of a placement's score: 0.9 → "0.90".
func Factor(f float64) string { return fmt.Sprintf("%.2f", f) }

// breakerWords says what the circuit breaker does, "" when it does nothing special.
func (c ClusterRow) breakerWords(now time.Time) string {
	switch c.Breaker {
	case "open":
		if d := c.RetryAt.Sub(now); d >= time.Second {
			return "breaker open, asked again in " + Brief(d)
		}
		return "breaker open, asked again now"
	case "half_open":
		return "breaker half open, one probe is under way"
	}
	return ""
}

func (c ClusterRow) nodeWords() string {
	s := Count(c.Nodes, "node")
	if c.DeadNodes > 0 {
		s += ", " + Number(c.DeadNodes) + " dead"
	}
	return s
}

// words counts the list.
func (l ClusterList) words(f ClusterFilter) string {
	s := Count(l.All, "cluster")
	if f.Narrowed() {
		s = Number(l.Total) + " of " + s
	}
	return s
}

// Headline says how the clusters are.
func (l ClusterList) Headline() string {
	switch {
	case l.All == 0:
		return "No clusters yet"
	case l.Healthy == l.All && l.Held == 0:
		return "All " + Count(l.All, "cluster") + " are healthy"
	}
	if l.All == 1 && l.Healthy == 1 {
		return "One cluster"
	}
	return Number(l.Healthy) + " of " + Count(l.All, "cluster") + verb(l.Healthy, " is healthy", " are healthy")
}

// freeWords is what is free in one line, or what is wrong.
func (c ClusterRow) freeWords() string {
	if c.State != "healthy" {
		if c.Error != "" {
			return Cut(c.Error, 160)
		}
		return "it was not asked yet"
	}
	var out []string
	for _, r := range c.Room {
		if len(out) < 3 {
			out = append(out, ResourceName(r.Resource)+" "+r.Sum())
		}
	}
	return strings.Join(out, " · ")
}

// notes are what must be known first of a cluster.
func (c ClusterPage) notes(now time.Time) []Note {
	var out []Note
	if c.State == "unhealthy" {
		n := Note{Kind: "bad", Title: Say("No jobs go there."), Text: Line{Text(Cut(c.Error, 600))}}
		switch d := c.RetryAt.Sub(now); {
		case c.Breaker == "open" && d >= time.Second:
			n.Text = append(n.Text, Text(" It is asked again in "+Brief(d)+"."))
		case c.Breaker == "half_open":
			n.Text = append(n.Text, Text(" It is being asked again."))
		}
		if c.Jobs.Live() > 0 {
			n.Text = append(n.Text, Text(" What becomes of its "+Count(c.Jobs.Live(), "job")+" is known once it answers, or is given up."))
		}
		out = append(out, n)
	}
	if c.Hold.On() {
		out = append(out, Note{Kind: "warn", Title: Say("It gets no new jobs."), Text: c.Hold.Line(now)})
	}
	return out
}

func (c ClusterRow) healthWords() string {
	switch {
	case c.State == "unseen":
		return "It was not asked yet."
	case c.State == "unhealthy":
		return "It does not answer as it should, so no jobs go there."
	case c.Score >= 1 || len(c.Reasons) == 0:
		return "Nothing speaks against it."
	}
	return "It takes jobs, with less of a score where they are placed, because:"
}

func (r Room) nodeWords() string {
	return fmt.Sprintf("%s: %s of %s used", ResourceName(r.Resource), Amount(r.Resource, r.Others), Amount(r.Resource, r.Total))
}

func orWords(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func sentences(all []string) string { return strings.Join(all, "; ") }

// jobsHeadline says what the jobs do.
func (l ClusterList) jobsHeadline() string {
	runs, waits, unknown := l.Jobs["RUNNING"]+l.Jobs["PENDING"], l.Jobs["QUEUED"]+l.Jobs["SUBMITTING"], l.Jobs["UNKNOWN"]
	var out []string
	for _, x := range []struct {
		n         int
		one, many string
	}{{runs, "runs", "run"}, {waits, "waits", "wait"}, {unknown, "is unknown", "are unknown"}} {
		switch {
		case x.n > 0 && len(out) == 0:
			out = append(out, Count(x.n, "job")+" "+verb(x.n, x.one, x.many))
		case x.n > 0:
			out = append(out, Number(x.n)+" "+verb(x.n, x.one, x.many))
		}
	}
	if len(out) == 0 {
		return "All quiet"
	}
	return strings.Join(out, ", ")
}
