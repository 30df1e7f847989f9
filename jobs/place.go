package jobs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/sched"
)

// Where a job goes. Pure: what is known of clusters and of our jobs there goes in, a cluster and the reasons
// come out; the same for the same.
//
// A job with requirements has room where they are free: of what a cluster has, what our live jobs there ask
// for is gone, whether Ray says so yet or not, and what Ray says beyond that is used by others. Among
// clusters with room the one that it names is taken, else the best by free × weight × health × bonuses.

const (
	preferBonus = 1.5 // factor for clusters configured with prefer
	tagsBonus   = 0.5 // added to 1 where a cluster has all of a job's tags
	shownOthers = 8   // clusters not chosen that a placement tells of one by one
	shownNames  = 5   // clusters it names for each reason
)

// Reasons why a cluster was not chosen.
const (
	notBest      = "lower_score"
	notPreferred = "not_preferred" // it would have done, but the one that the job names has room
	notRoom      = "no_room"
	notNode      = "no_node" // enough in sum, but on no single machine
	notKept      = "kept"    // for a job that stands before in line
	notHeld      = "held"
	notHealthy   = "unhealthy"
	notSeen      = "unseen"
	notTried     = "tried" // it did not take this submission
	notLarge     = "too_small"
)

// rejectOrder is how near a reason is to being chosen.
var rejectOrder = []string{notPreferred, notBest, notKept, notRoom, notNode, notHeld, notTried, notHealthy, notSeen, notLarge}

// Ask is what is asked of a placement.
type Ask struct {
	Requirements sched.Resources
	OneNode      bool // all on one machine
	Tags         []string
	Preferred    string
	Tried        []Tried
}

// Load is what our jobs take on one cluster.
type Load struct {
	Live    sched.Resources   // asked for by all that are not over
	Running sched.Resources   // of that, by those that Ray may count as used already
	Ended   sched.Resources   // by those that were over a moment ago, which Ray may still count
	Waiting []sched.Resources // by each that was sent there and does not run yet
	Count   int               // live ones that ask for nothing
}

// Site is a cluster as placing sees it. It changes as jobs are placed on it.
type Site struct {
	c     *clusters.Cluster
	free  sched.Resources
	nodes []sched.Resources // free on each live machine; none: not known
	count int
	kept  *keep
}

// keep says that a cluster is kept for a job that waits.
type keep struct {
	id  string
	ask sched.Resources
}

// NewSite works out what is free on a cluster.
func NewSite(c clusters.Cluster, l Load) *Site {
	s := new(Site)
	s.set(&c, l)
	return s
}

// Sites works out what is free on each cluster, in the sites of an earlier call: with a thousand clusters, making
// them anew for each pass over the line would cost more than placing does.
func Sites(again []*Site, fleet []clusters.Cluster, load func(*clusters.Cluster) Load) []*Site {
	for len(again) < len(fleet) {
		again = append(again, new(Site))
	}
	again = again[:len(fleet)]
	for i := range fleet {
		again[i].set(&fleet[i], load(&fleet[i]))
	}
	return again
}

func (s *Site) set(c *clusters.Cluster, l Load) {
	others := c.Status.Used.Sub(l.Running).Sub(l.Ended).Positive()
	*s = Site{c: c, free: c.Status.Total.Sub(l.Live).Sub(others), nodes: s.nodes[:0], count: l.Count}
	for i := range c.Status.Nodes {
		if n := &c.Status.Nodes[i]; n.Alive {
			s.nodes = append(s.nodes, n.Total.Sub(n.Used))
		}
	}
	for _, r := range l.Waiting {
		s.sit(r)
	}
}

// Free is what new jobs may use, in sum.
func (s *Site) Free() sched.Resources { return s.free.Positive() }

// take notes that a job was placed here.
func (s *Site) take(a Ask) {
	s.free = s.free.Sub(a.Requirements)
	if a.Requirements.IsZero() {
		s.count++
	} else if a.OneNode {
		s.sit(a.Requirements)
	}
}

// sit takes room on the machine that it fits best: the one with the least CPU left over.
func (s *Site) sit(r sched.Resources) {
	best := -1
	for i, n := range s.nodes {
		if n.Covers(r) && (best < 0 || n.CPU < s.nodes[best].CPU) {
			best = i
		}
	}
	if best >= 0 {
		s.nodes[best] = s.nodes[best].Sub(r)
	}
}

// could tells whether the cluster is large enough, all else apart.
func (s *Site) could(a Ask) bool {
	if !s.c.Could().Covers(a.Requirements) {
		return false
	}
	if !a.OneNode || len(s.c.Status.Nodes) == 0 || s.c.Most.Covers(a.Requirements) {
		return true
	}
	return slices.ContainsFunc(s.c.Status.Nodes, func(n clusters.Node) bool { return n.Total.Covers(a.Requirements) })
}

// seen tells whether it was ever heard how large the cluster is.
func (s *Site) seen() bool { return !s.c.Status.SeenAt.IsZero() }

// why is the reason why a job cannot go here now, "" when it can.
func (s *Site) why(a Ask) string {
	switch {
	case !s.seen():
		return notSeen
	case !s.could(a):
		return notLarge
	case slices.ContainsFunc(a.Tried, func(t Tried) bool { return t.Cluster == s.c.Name }):
		return notTried
	case s.c.Hold.Held:
		return notHeld
	case s.c.Status.State != clusters.Healthy:
		return notHealthy
	case !s.free.Covers(a.Requirements):
		return notRoom
	case a.OneNode && len(s.nodes) > 0 && !slices.ContainsFunc(s.nodes, func(n sched.Resources) bool { return n.Covers(a.Requirements) }):
		return notNode
	case s.kept != nil && s.kept.ask.Intersects(a.Requirements):
		return notKept
	}
	return ""
}

// parts is what the score of a cluster that has room is made of.
func (s *Site) parts(a Ask) Parts {
	p := Parts{Weight: s.c.Weight, Health: s.c.Status.Score, Prefer: 1, Tags: 1, Preferred: a.Preferred != "" && a.Preferred == s.c.Name}
	if a.Requirements.IsZero() {
		p.Free = float64(max(s.free.CPU, 10)) / 1000 / float64(1+s.count)
	} else {
		p.Free = times(s.free, a.Requirements)
	}
	if s.c.Prefer {
		p.Prefer = preferBonus
	}
	if len(a.Tags) > 0 && len(s.c.Tags) > 0 {
		shared := 0
		for _, t := range a.Tags {
			if slices.Contains(s.c.Tags, t) {
				shared++
			}
		}
		p.Tags = 1 + tagsBonus*float64(shared)/float64(len(a.Tags))
	}
	return p
}

func (p Parts) score() float64 { return p.Free * p.Weight * p.Health * p.Prefer * p.Tags }

// times is how often an amount is in another.
func times(free, ask sched.Resources) float64 {
	n := -1.0
	ask.Each(func(name string, v int64) {
		if v > 0 {
			if f := float64(max(free.Get(name), 0)) / float64(v); n < 0 || f < n {
				n = f
			}
		}
	})
	return max(n, 0)
}

// option is one cluster in a placement that is being made.
type option struct {
	site  *Site
	why   string // "" until it is known not to be the chosen one
	score float64
	parts Parts
}

// better orders options: those with room by score, the preferred one in front, then the rest by how near they are.
func better(a, b option) int {
	return cmp.Or(
		cmp.Compare(slices.Index(rejectOrder, a.why), slices.Index(rejectOrder, b.why)), // −1 for room
		boolFirst(a.parts.Preferred, b.parts.Preferred),
		cmp.Compare(b.score, a.score),
		strings.Compare(a.site.c.Name, b.site.c.Name))
}

func boolFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// Place chooses a cluster, and takes the room there; at tells which of the sites, −1 for none now.
func Place(sites []*Site, a Ask) (p Placement, at int) {
	at = -1
	best := make([]option, 0, shownOthers+2) // sorted
	counts := map[string]*Reject{}           // "" for those with room
	chosen := option{}
	for i, s := range sites {
		o := option{site: s, why: s.why(a)}
		if o.why == "" {
			o.parts = s.parts(a)
			o.score = o.parts.score()
			if at < 0 || better(o, chosen) < 0 {
				chosen, at = o, i
			}
		} else {
			o.parts.Preferred = a.Preferred == s.c.Name
		}
		best = keepBest(best, o)
		count(counts, o.why, s.c.Name)
	}
	p.Others, p.Not = []Candidate{}, []Reject{}
	if at >= 0 {
		p.Cluster, p.Score, p.Parts = chosen.site.c.Name, chosen.score, &chosen.parts
		second := notBest
		if chosen.parts.Preferred {
			second = notPreferred
		}
		if rest := counts[""]; rest.Count > 1 {
			rest.Code = second
			rest.Count--
			rest.Clusters = slices.DeleteFunc(rest.Clusters, func(name string) bool { return name == p.Cluster })
			counts[second] = rest
		}
		for i := range best {
			if best[i].why == "" {
				best[i].why = second
			}
		}
	}
	for _, o := range best {
		if o.site.c.Name != p.Cluster && len(p.Others) < shownOthers {
			p.Others = append(p.Others, o.tell(a))
		}
	}
	for _, code := range rejectOrder {
		if r := counts[code]; r != nil {
			r.Clusters = r.Clusters[:min(len(r.Clusters), shownNames)]
			p.Not = append(p.Not, *r)
		}
	}
	p.Notes = preferredNote(sites, a, p.Cluster)
	if at < 0 {
		p.Reason = waits(p)
		return p, at
	}
	p.Reason = reasonFor(chosen, len(sites))
	sites[at].take(a)
	return p, at
}

func count(m map[string]*Reject, code, name string) {
	r := m[code]
	if r == nil {
		r = &Reject{Code: code}
		m[code] = r
	}
	if r.Count++; len(r.Clusters) <= shownNames { // one more than is shown: the chosen one may be among them
		r.Clusters = append(r.Clusters, name)
	}
}

// keepBest inserts into a sorted list that does not grow.
func keepBest(list []option, o option) []option {
	if len(list) > shownOthers && better(o, list[len(list)-1]) >= 0 {
		return list
	}
	at, _ := slices.BinarySearchFunc(list, o, better)
	if len(list) > shownOthers {
		list = list[:len(list)-1]
	}
	return slices.Insert(list, at, o)
}

// tell is an option in words.
func (o option) tell(a Ask) Candidate {
	c := Candidate{Cluster: o.site.c.Name, Code: o.why}
	st := o.site.c.Status
	switch o.why {
	case notBest, notPreferred:
		c.Score, c.Parts = o.score, &o.parts
		c.Reason = "it has room too"
		if o.why == notBest {
			c.Reason = "its score is lower"
		}
	case notRoom:
		c.Missing = o.site.free.Positive().Lacking(a.Requirements)
		c.Reason = fmt.Sprintf("%s more would have to be free", c.Missing)
	case notNode:
		c.Reason = "enough is free in sum, but not on one machine"
	case notKept:
		c.Reason = fmt.Sprintf("kept for %s, which stands before it in line", o.site.kept.id)
	case notHeld:
		c.Reason = "it is held: no new jobs"
		if o.site.c.Hold.Reason != "" {
			c.Reason += " (" + o.site.c.Hold.Reason + ")"
		}
	case notTried:
		i := slices.IndexFunc(a.Tried, func(t Tried) bool { return t.Cluster == o.site.c.Name })
		c.Reason = "it did not take this job: " + a.Tried[i].Why
	case notHealthy, notSeen:
		c.Reason = cmp.Or(st.Error, "it was not heard of yet")
	case notLarge:
		if c.Missing = o.site.c.Could().Lacking(a.Requirements); c.Missing.IsZero() {
			c.Reason = "no machine of it has " + a.Requirements.String()
		} else {
			c.Reason = fmt.Sprintf("%s are missing even when it is empty", c.Missing)
		}
	}
	return c
}

func reasonFor(o option, of int) string {
	switch {
	case o.parts.Preferred:
		return "the job names it, and it has room"
	case of == 1:
		return "it is the only cluster, and it has room"
	}
	return fmt.Sprintf("it has the best score of %d clusters, %.3g", of, o.score)
}

// waits says why nobody takes a job now.
func waits(p Placement) string {
	if len(p.Not) == 0 {
		return "there is no cluster"
	}
	words := map[string]string{notKept: "kept for jobs that stand before it", notRoom: "without room", notNode: "without room on one machine", notHeld: "held",
		notTried: "that did not take it", notHealthy: "unhealthy", notSeen: "not heard of yet", notLarge: "too small"}
	parts := make([]string, len(p.Not))
	for i, r := range p.Not {
		parts[i] = fmt.Sprintf("%d %s", r.Count, words[r.Code])
		if r.Count == 1 {
			parts[i] = r.Clusters[0] + " " + map[string]string{notKept: "is kept for jobs that stand before it", notRoom: "has no room", notNode: "has no room on one machine",
				notHeld: "is held", notTried: "did not take it", notHealthy: "is unhealthy", notSeen: "was not heard of yet", notLarge: "is too small"}[r.Code]
		}
	}
	return "no cluster can take it now: " + strings.Join(parts, ", ")
}

// preferredNote says what became of the wish for a cluster.
func preferredNote(sites []*Site, a Ask, chosen string) []string {
	if a.Preferred == "" || a.Preferred == chosen {
		return nil
	}
	at := slices.IndexFunc(sites, func(s *Site) bool { return s.c.Name == a.Preferred })
	if at < 0 {
		return []string{fmt.Sprintf("there is no cluster %q; the job goes where any other would", a.Preferred)}
	}
	if chosen == "" {
		return nil
	}
	o := option{site: sites[at], why: sites[at].why(a)}
	return []string{fmt.Sprintf("%s was preferred, but %s", a.Preferred, o.tell(a).Reason)}
}

// Impossible tells that no cluster could ever take this, however empty; one that was never heard of might.
func Impossible(sites []*Site, a Ask) bool {
	return !slices.ContainsFunc(sites, func(s *Site) bool { return !s.seen() || s.could(a) })
}

// tooSmall says of some clusters what they lack even when they are empty.
func tooSmall(p Placement) string {
	const said = 3
	parts := []string{}
	for _, c := range p.Others[:min(len(p.Others), said)] {
		parts = append(parts, c.Cluster+": "+c.Reason)
	}
	text := strings.Join(parts, "; ")
	if n := len(p.Others); n > said {
		text += "; and the others are too small as well"
	}
	return text
}

// keepFor keeps the cluster that is nearest to having room for a job that waits, so that smaller ones behind
// it do not take its place for ever. It reports whether any cluster is left for those.
func keepFor(sites []*Site, id string, a Ask) (left bool) {
	var best *Site
	most := -1.0
	for _, s := range sites {
		if s.kept != nil || s.c.Hold.Held || s.c.Status.State != clusters.Healthy || !s.could(a) ||
			slices.ContainsFunc(a.Tried, func(t Tried) bool { return t.Cluster == s.c.Name }) {
			continue
		}
		if n := times(s.free, a.Requirements); n > most {
			best, most = s, n
		}
	}
	if best != nil {
		best.kept = &keep{id, a.Requirements}
	}
	return slices.ContainsFunc(sites, func(s *Site) bool {
		return s.kept == nil && !s.c.Hold.Held && s.c.Status.State == clusters.Healthy
	})
}
