package web

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"time"
)

// JobStates are the states of a job in the order of a life, as REST spells them.
var JobStates = []string{"QUEUED", "SUBMITTING", "PENDING", "RUNNING", "UNKNOWN", "SUCCEEDED", "FAILED", "STOPPED"}

// JobLive says that a job in this state is not over.
func JobLive(state string) bool { return slices.Contains(JobStates[:5], state) }

// JobCounts counts jobs by state. A long history is not counted to its end.
type JobCounts map[string]int

// CountedTo is where counting a state stops.
const CountedTo = 10_000

// Of says how many are in a state: "12", or "10,000+" where counting stopped.
func (c JobCounts) Of(state string) string { return Number(c[state]) + c.more(state) }

func (c JobCounts) more(states ...string) string {
	for _, s := range states {
		if c[s] >= CountedTo {
			return "+"
		}
	}
	return ""
}

// Live is how many are not over.
func (c JobCounts) Live() int {
	n := 0
	for _, s := range JobStates[:5] {
		n += c[s]
	}
	return n
}

// Total adds them up.
func (c JobCounts) Total() int {
	n := 0
	for _, x := range c {
		n += x
	}
	return n
}

// Words counts the live ones: "3 running · 1 pending"; "" for none.
func (c JobCounts) Words() string {
	var out []string
	for _, s := range []string{"RUNNING", "PENDING", "SUBMITTING", "UNKNOWN", "QUEUED"} {
		if c[s] > 0 {
			out = append(out, Number(c[s])+" "+strings.ToLower(s))
		}
	}
	return strings.Join(out, " · ")
}

// JobRow is a job in a list.
type JobRow struct {
	ID         string // submission_id
	JobID      string
	State      string
	Reason     string // why, for people
	Cluster    string // where it is, or was last; "": nowhere yet
	Why        string // why there, in a few words
	Entrypoint string
	Request    Resources
	Tags       []string
	Attempt    int
	Position   int // from 1 while it waits
	Stopping   bool
	Created    time.Time
	Started    time.Time
	Ended      time.Time
}

// Live says that it is not over.
func (j JobRow) Live() bool { return JobLive(j.State) }

// JobFilter narrows the list of jobs.
type JobFilter struct {
	State    string // "" or live, all, or a state
	Cluster  string
	Tag      string
	Metadata []Label
	Text     string
	JobID    string
	Age      string // as people write it: created within
	Outside  bool   // those that others started
	Cursor   string
	Limit    int
}

// Narrowed says that something other than the state is asked for.
func (f JobFilter) Narrowed() bool {
	return f.Cluster != "" || f.Tag != "" || len(f.Metadata) > 0 || f.Text != "" || f.JobID != "" || f.Age != ""
}

// JobList is one page of jobs, newest first.
type JobList struct {
	Items    []JobRow
	Next     string
	Total    int       // that match
	Count    JobCounts // by state, of all other filters
	Clusters []string  // to choose from
	Outside  []OutsideJob
	More     bool // of Outside there are more than are shown
}

// OutsideJob is a job that others started on one of our clusters.
type OutsideJob struct {
	Cluster    string
	ID         string
	Kind       string // SUBMISSION, DRIVER
	Entrypoint string
	State      string
	Message    string
	Metadata   []Label
	Started    time.Time
	Ended      time.Time
	Seen       time.Time
}

// Job is one job's page.
type Job struct {
	JobRow
	UID       string
	Owner     string
	RayID     string
	Now       Note // what it is at and what happens next; Kind "" for nothing out of the ordinary
	Priority  float64
	Reserve   string // entrypoint, none
	Timeout   time.Duration
	Retries   int
	RetryOn   []string
	Preferred string
	Metadata  []Label
	Notes     []string
	Why       *JobPlacement
	Tried     []TriedCluster
	Timeline  []Step
	Env       string // as asked, JSON, secrets masked; "" for none
	Merged    string // as sent
	Hidden    int    // values masked in both
	ExitCode  *int
	ErrorType string
	Message   string // Ray's
	Queued    time.Time
	Placed    time.Time
	Accepted  time.Time
	Log       JobLog
	Again     *JobForm // the form that would submit the same once more
}

// JobPlacement is why a job is where it is, or nowhere.
type JobPlacement struct {
	Cluster string // "": nobody had room
	Reason  string
	Score   float64
	Parts   []ScorePart
	Others  []PlacementRow
	Not     []Label // reasons and how many clusters, beyond Others
	Notes   []string
}

// ScorePart is one factor of a score.
type ScorePart struct {
	Name  string
	Value float64
	Note  string
}

// PlacementRow is a cluster that was not chosen.
type PlacementRow struct {
	Cluster string
	Score   float64 // 0: it was not compared
	Parts   string
	Reason  string
}

// TriedCluster is one that did not take the submission.
type TriedCluster struct {
	Cluster, Why string
	At           time.Time
}

// JobLog is a piece of what a job printed, or why it cannot be read.
type JobLog struct {
	LogChunk
	Kept    bool   // only the end is left, which we kept
	Problem string // why it cannot be read now
}

// JobForm is the form for a new job as typed.
type JobForm struct {
	Entrypoint, SubmissionID, JobID  string
	Preferred                        string
	CPU, GPU, Memory, OtherResources string
	Reserve, Priority, QueueTimeout  string
	MaxRetries, RetryOn              string
	RuntimeEnv, Metadata, Tags       string
	Like                             string // the job whose values stand where RuntimeEnv has Masked ones

	Errors   Errors
	Clusters []string // to choose from
}

// NewJob is a submission with its units converted: what JobForm says once it parses.
type NewJob struct {
	Entrypoint, SubmissionID, JobID string
	Preferred                       string
	Request                         Resources
	Reserve                         string
	Priority                        float64
	QueueTimeout                    time.Duration
	MaxRetries                      int
	RetryOn                         []string
	RuntimeEnv                      json.RawMessage // may hold Masked values, which stand for those of Like
	Like                            string
	Metadata                        map[string]string
	Tags                            []string
}

// JobFields are the names of JobForm's fields.
var JobFields = []string{
	"entrypoint", "submission_id", "job_id", "preferred_cluster", "cpu", "gpu", "memory", "resources", "reserve", "priority", "queue_timeout",
	"max_retries", "retry_on", "runtime_env", "metadata", "tags",
}

// NewJobForm is the form before anything was typed.
func NewJobForm() JobForm { return JobForm{Priority: "5.0", Reserve: "entrypoint"} }

// ReadJobForm takes what was posted.
func ReadJobForm(v url.Values) JobForm {
	g := func(k string) string { return strings.TrimSpace(v.Get(k)) }
	return JobForm{
		Entrypoint: g("entrypoint"), SubmissionID: g("submission_id"), JobID: g("job_id"), Preferred: g("preferred_cluster"),
		CPU: g("cpu"), GPU: g("gpu"), Memory: g("memory"), OtherResources: g("resources"), Reserve: g("reserve"), Priority: g("priority"), QueueTimeout: g("queue_timeout"),
		MaxRetries: g("max_retries"), RetryOn: g("retry_on"), RuntimeEnv: g("runtime_env"), Metadata: g("metadata"), Tags: g("tags"), Like: g("like"),
	}
}

// Parse checks and converts the form. What an entrypoint must look like the product knows.
func (f JobForm) Parse() (NewJob, Errors) {
	e := Errors{}
	required(e, "entrypoint", f.Entrypoint, "Say what to run, for example python /home/me/train.py --epochs 3.")
	j := NewJob{Entrypoint: f.Entrypoint, SubmissionID: f.SubmissionID, JobID: f.JobID, Preferred: f.Preferred, Priority: 5, Tags: TagsOf(f.Tags), Like: f.Like}
	j.Request = resources(e, f.CPU, f.GPU, f.Memory, f.OtherResources)
	j.Reserve = oneOf(e, "reserve", f.Reserve, "entrypoint", "none")
	if f.Priority != "" {
		j.Priority = decimal(e, "priority", f.Priority)
	}
	j.QueueTimeout = length(e, "queue_timeout", f.QueueTimeout)
	j.MaxRetries = whole(e, "max_retries", f.MaxRetries)
	if r := oneOf(e, "retry_on", f.RetryOn, "", "cluster_lost", "node_lost"); r != "" {
		j.RetryOn = []string{r}
	}
	j.RuntimeEnv = jsonOf(e, "runtime_env", f.RuntimeEnv, '{')
	j.Metadata = labels(e, "metadata", f.Metadata)
	return j, e
}

// SetRequest fills the form's fields from a vector.
func (f *JobForm) SetRequest(r Resources) { f.CPU, f.GPU, f.Memory, f.OtherResources = typed(r) }

// Job is the address of a job's page.
func (p Page) Job(id string, pairs ...string) string {
	return p.To("/jobs/"+url.PathEscape(id), pairs...)
}

// JobDo is the address of one of a job's actions.
func (p Page) JobDo(id, action string) string {
	return p.To("/jobs/" + url.PathEscape(id) + "/" + action)
}

// Cluster is the address of a cluster's page.
func (p Page) Cluster(name string, pairs ...string) string {
	return p.To("/clusters/"+url.PathEscape(name), pairs...)
}

// ClusterDo is the address of one of a cluster's actions.
func (p Page) ClusterDo(name, action string) string {
	return p.To("/clusters/" + url.PathEscape(name) + "/" + action)
}

// stateMore is what belongs to a job's state in a word or two.
func (j JobRow) stateMore() string {
	switch {
	case j.Stopping && j.Live():
		return "being stopped"
	case j.Position > 0:
		return "position " + Number(j.Position)
	}
	return ""
}

// words counts the list.
func (l JobList) words(f JobFilter) string {
	s := Count(l.Total, "job")
	if n := l.Count.Total(); n > l.Total {
		s = Number(l.Total) + " of " + Number(n) + l.Count.more(JobStates...) + " jobs"
	}
	switch f.State {
	case "live":
		s += " that wait, start or run"
	case "all":
		s += " in any state"
	default:
		s += " that are " + strings.ToLower(f.State)
	}
	if f.Cluster != "" {
		s += ", on " + Cut(f.Cluster, 60)
	}
	if f.JobID != "" {
		s += ", with the job id " + Cut(f.JobID, 60)
	}
	if f.Text != "" {
		s += ", with “" + Cut(f.Text, 60) + "” in an id or the entrypoint"
	}
	if f.Tag != "" {
		s += ", tagged " + Cut(f.Tag, 60)
	}
	for _, l := range f.Metadata {
		s += ", with " + Cut(l.Key, 40) + " " + Cut(l.Value, 40)
	}
	if f.Age != "" {
		s += ", not older than " + Cut(f.Age, 20)
	}
	return s
}

// retryWords says what happens when its cluster or node is lost.
func (j Job) retryWords() string {
	if j.Retries == 0 {
		return "it fails"
	}
	what := "a cluster or node"
	if len(j.RetryOn) == 1 {
		what = "a " + strings.TrimSuffix(j.RetryOn[0], "_lost")
	}
	times := Number(j.Retries) + " times at most"
	if j.Retries == 1 {
		times = "once"
	}
	return "tried elsewhere when " + what + " is lost, " + times
}

func (j Job) emptyLog() string {
	switch {
	case j.Started.IsZero() && !j.Live():
		return "It never ran, so it printed nothing."
	case j.Log.Offset > 0:
		return "It has not printed that much."
	case j.Live():
		return "It has printed nothing yet."
	}
	return "It printed nothing."
}

func (j Job) logWords() string {
	switch {
	case j.Log.Kept:
		return "its end, which was kept; the cluster does not have it any more"
	case !j.Live():
		return "its end"
	case j.Accepted.IsZero():
		return "begins when it runs"
	}
	return "its end, at " + Bytes(j.Log.Next)
}

// stretch says which part of the log is shown.
func (j Job) stretch() string {
	s := "from " + Bytes(j.Log.Offset) + " to " + Bytes(j.Log.Next)
	if j.Log.Kept {
		return s + " of what was kept of it"
	}
	if j.Log.EOF {
		s += ", the end so far"
		if j.Log.Ended {
			s = strings.TrimSuffix(s, " so far")
		}
	}
	return s
}

func firstTime(a, b time.Time) time.Time {
	if a.IsZero() {
		return b
	}
	return a
}

// line says why the job is where it is.
func (w JobPlacement) line() Line {
	reason := Text(Cut(w.Reason, 600))
	if w.Cluster == "" {
		return Line{reason}
	}
	return Line{Link(w.Cluster, "/clusters/"+Escape(w.Cluster)), Text(": "), reason}
}

// outsideWords says what the list of others' jobs is.
func (l JobList) outsideWords(f JobFilter) string {
	s := Count(len(l.Outside), "job") + " that others started"
	if l.More {
		s = "The newest " + s
	}
	if f.Cluster != "" {
		s += " on " + Cut(f.Cluster, 60)
	}
	return s + ", as last seen. They are shown, what they use counts as used, and they are never touched."
}

// restWords counts the clusters that are not listed one by one.
func (w JobPlacement) restWords() string {
	out := make([]string, len(w.Not))
	for i, n := range w.Not {
		out[i] = n.Value + " " + n.Key
	}
	return "All others: " + strings.Join(out, " · ")
}

func jobEnvHelp(f JobForm) string {
	s := "Goes before the cluster's own. Directories must be URIs here; the Python client uploads local ones."
	if strings.Contains(f.RuntimeEnv, Masked) {
		s += " “" + Masked + "” stands for what " + Cut(f.Like, 60) + " had."
	}
	return s
}
