package jobs

import "github.com/schedulemesh/schedulemesh/sched"

// Placement says why a job is where it is, or why it is nowhere yet. Its JSON is what
// the database keeps and what REST shows.
type Placement struct {
	Cluster string      `json:"cluster"`         // "": nobody has room now
	Reason  string      `json:"reason"`          // a sentence
	Score   float64     `json:"score"`           // of the chosen one
	Parts   *Parts      `json:"parts,omitempty"` // how it is made up
	Others  []Candidate `json:"others"`          // the best of the rest, at most shownOthers
	Not     []Reject    `json:"not"`             // why not, by reason, over all others
	Notes   []string    `json:"notes,omitempty"` // such as an unknown preferred cluster
}

// Parts is how the score of a cluster is made up: free × weight × health × the bonuses.
type Parts struct {
	Free      float64 `json:"free"` // share of what the job asks for, or of everything, that would still be free
	Weight    float64 `json:"weight"`
	Health    float64 `json:"health"`
	Prefer    float64 `json:"prefer"`    // factor; 1: no bonus
	Tags      float64 `json:"tags"`      // factor; 1: no bonus
	Preferred bool    `json:"preferred"` // the job named it: it goes there when it has room, whatever the score
}

// Candidate is a cluster that was not chosen.
type Candidate struct {
	Cluster string          `json:"cluster"`
	Code    string          `json:"code"` // see Reject
	Reason  string          `json:"reason"`
	Score   float64         `json:"score,omitempty"`
	Parts   *Parts          `json:"parts,omitempty"`
	Missing sched.Resources `json:"missing,omitzero"`
}

// Reject counts the clusters that were not chosen for one reason.
type Reject struct {
	Code     string   `json:"code"` // lower_score, no_room, too_small, unhealthy, unseen, held, tried
	Count    int      `json:"count"`
	Clusters []string `json:"clusters"` // some of them
}
