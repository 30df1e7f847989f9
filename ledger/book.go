package ledger

import (
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/schedulemesh/schedulemesh/sched"
)

// book is the lane's copy of what Postgres says: live rows, balances, loans and
// the decision cores. Only the lane's goroutine touches it, so it has no locks.
//
// A batch changes the book as it decides, so that a later decision of the batch
// sees the earlier ones, and keeps a journal. When the transaction does not
// commit, the journal is played backwards and the book says again what Postgres
// says. When nobody knows whether it committed, the pools concerned are loaded anew.
type book struct {
	spaces map[string]*space
	byID   map[int64]*space
	pools  map[int64]*pool
	rows   map[sched.ID]*row
	// working are the rows in a state that moves by work of the agents package.
	working map[sched.ID]*row
	// launches finds the row that holds an agent by what the bridge knows it by, where that
	// does not begin with its own uid; see launched.
	launches map[string]*row
	// guests are the tasks registered on an agent.
	guests map[sched.ID][]*row
	// where says in which pool a row is that is part of a handover and not in the book.
	where map[sched.ID]int64
	terms sharing
	nodes *sched.Nodes
	// loading is true until everything was loaded; see start.go.
	loading bool
	// total is each known node as the cluster reports it: capacity less foreign use.
	// A node's Room is that, less what rows charge it.
	total map[sched.NodeID]nodeTotal

	deadlines sched.Agenda                   // of rows: see row.deadline
	rooms     map[sched.NodeID]*sched.Agenda // when what sits on a node is expected to end; nil until somebody waits
	holds     map[nodeKey]hold
	groupIn   map[sched.ID]*pool // placement groups
	following []*space           // whose index is not in step with the policy yet
	calm      int                // how often in a row nobody waited; see lookAway

	gangs      map[sched.ID][]*row // who waits, or waited, together
	unfinished map[int64]bool      // pools whose queue could move on
}

type nodeKey struct {
	cluster string
	id      sched.NodeID
}

type nodeTotal struct {
	cluster string
	usable  sched.Resources
	total   sched.Resources
}

// space is a namespace.
type space struct {
	id            int64
	name          string
	epoch         int64 // counts when it was opened, closed and cleared; policy versions start anew
	state         string
	policyVersion int
	core          *sched.Core
	pools         map[string]*pool
	tasks         map[string]*row // live tasks by task_id
	agents        map[string]*row // live agents by name
	// unmanaged stands for the pool of rows that belong to none, with the namespace's lock.
	unmanaged *pool
}

// pool is a pool's row, its balances and its loans.
type pool struct {
	id      int64
	space   *space
	name    string
	cluster string
	labels  sched.Labels
	targets int
	version int64
	loaded  bool      // else only its name is known
	stalled bool      // its queue could not move while others were not loaded
	busy    time.Time // when the lane last had it locked

	capacity, reserved, used, borrowed, lent sched.Resources
	names                                    []string // resources that have a row; never changed in place

	loans  []loan        // where it borrows, oldest first; never changed in place
	recent []time.Time   // when it lost tasks lately; never changed in place
	rows   []*row        // live ones, in no order
	line   *sched.Line   // who waits, but for those whose time has not come
	ends   *sched.Agenda // when what is held is expected to come free

	maxRuntime time.Duration // of each task; 0 = no bound
	hold       hold

	grouping     GroupConfig
	strategy     string                    // of its groups, unless they say
	groups       []*group                  // placement groups, oldest first; never changed in place
	places       map[sched.NodeID]bool     // those of them the core knows
	groupCharges map[sched.ID][]nodeCharge // what they reserve on machines
}

type loan struct {
	lender int64
	since  time.Time
	amount sched.Resources
}

func (p *pool) add(r *row) {
	r.at = len(p.rows)
	p.rows = append(p.rows, r)
}

func (p *pool) remove(r *row) {
	last := p.rows[len(p.rows)-1]
	p.rows[r.at], last.at = last, r.at
	p.rows[len(p.rows)-1] = nil
	p.rows = p.rows[:len(p.rows)-1]
}

// free is quota nobody holds.
func (p *pool) free() sched.Resources {
	return p.capacity.Add(p.borrowed).Sub(p.lent).Sub(p.reserved).Sub(p.used)
}

// row is a live claim on quota, or a task that waits for one. The embedded part changes.
type row struct {
	uid       sched.ID
	space     *space
	taskID    string
	pool      *pool    // nil when unmanaged
	agentUID  sched.ID // registered: the row of its agent, zero when unmanaged
	bodyHash  string
	submitted time.Time
	at        int // in its pool's rows

	*terms
	life
}

// terms are what was asked for. Rows that asked for the same share them: never changed.
type terms struct {
	kind            Kind
	poolName        string
	request         sched.Resources
	onInsufficient  string
	onPreempted     string
	onFailure       string
	maxAttempts     int
	maxRuntime      time.Duration
	launch          time.Duration // launch timeout
	hasEntry        bool
	wantsGroup      bool // a placement group
	preemptForQuota bool // and, for one, others may be preempted for quota
}

// sharing finds the terms that are there already. It forgets when it gets large: then
// some are there twice.
type sharing map[termsKey]*terms

type termsKey struct {
	kind                                   Kind
	poolName                               string
	cpu, gpu, memory                       int64
	other                                  string
	onInsufficient, onPreempted, onFailure string
	maxAttempts                            int
	maxRuntime, launch                     time.Duration
	hasEntry, wantsGroup, preemptForQuota  bool
}

func (s sharing) of(t terms) *terms {
	k := termsKey{kind: t.kind, poolName: t.poolName, cpu: t.request.CPU, gpu: t.request.GPU, memory: t.request.Memory,
		onInsufficient: t.onInsufficient, onPreempted: t.onPreempted, onFailure: t.onFailure,
		maxAttempts: t.maxAttempts, maxRuntime: t.maxRuntime, launch: t.launch, hasEntry: t.hasEntry,
		wantsGroup: t.wantsGroup, preemptForQuota: t.preemptForQuota}
	if len(t.request.Other) > 0 {
		k.other = sched.Resources{Other: t.request.Other}.Key()
	}
	if known := s[k]; known != nil {
		return known
	}
	if len(s) >= 10_000 {
		clear(s)
	}
	s[k] = &t
	return &t
}

// life is the part of a row that changes; a copy of it is all a rollback needs.
type life struct {
	agentName   string // changes when an attempt finds its name taken; see prepare
	state       State
	phase       string
	attempt     int
	priority    sched.Milli
	labels      sched.Labels
	held        sched.Resources
	heldAs      string // "", reserved, used
	node        sched.NodeID
	launchID    string
	actorName   string
	rayNS       string
	actorID     string
	pid         int
	estimate    time.Duration
	failures    int
	preemptions int
	preemptedBy []sched.ID // never appended to in place
	ending      State      // what a stopping row, or a victim that ended by itself, becomes
	code        string
	reason      string
	queued      time.Time
	notBefore   sched.Time // waits until then before it is tried again; 0 = no
	granted     sched.Time // when it got its quota, as far as this server knows
	started     time.Time
	ended       time.Time

	extras  *extras    // nil for most; never changed in place
	taking  *taking    // this row's agent is being taken; never changed in place
	victims []sched.ID // holders of the agents this row waits for
	took    []sched.ID // tasks this attempt took, all gone by now
	indexed bool
	dated   bool // in an agenda
	charged nodeCharge
}

type nodeCharge struct {
	node   sched.NodeID
	amount sched.Resources
}

// taking is the handover of one agent, seen from the victim. The row that holds
// the agent and the tasks on it share it.
type taking struct {
	holder    sched.ID
	tasks     []sched.ID // the tasks on the agent; the holder itself for a submission
	by        sched.ID   // the preemptor; zero: by hand, the agent stays
	byTask    string
	attempt   int // of the preemptor
	phase     string
	was       State // the holder's state before
	taken     sched.Resources
	loan      bool
	drained   bool                    // nobody's gain: its pool or node is drained
	result    map[sched.ID]takeResult // by task
	cancelled time.Time
	saved     time.Time
}

type takeResult struct {
	cancelSuccess *bool
	cancelError   string
	saveError     string
	savedState    []byte
}

// byHand: nobody takes the agent, it stays.
func (t *taking) byHand() bool { return t.by == (sched.ID{}) && !t.drained }

// Phases of a handover.
const (
	phaseWaiting    = "waiting for victims" // of the preemptor, which this is the phase of
	phaseDecided    = "decided"
	phaseCancelling = "cancelling"
	phaseSaving     = "saving"
	phaseKilling    = "killing"
	phaseGone       = "gone"
	phaseUndone     = "undone"
)

func newBook() *book {
	return &book{
		spaces: map[string]*space{}, byID: map[int64]*space{}, pools: map[int64]*pool{}, rows: map[sched.ID]*row{}, working: map[sched.ID]*row{}, launches: map[string]*row{}, guests: map[sched.ID][]*row{},
		where: map[sched.ID]int64{}, terms: sharing{},
		nodes: sched.NewNodes(), total: map[sched.NodeID]nodeTotal{}, holds: map[nodeKey]hold{}, groupIn: map[sched.ID]*pool{}, unfinished: map[int64]bool{}, gangs: map[sched.ID][]*row{},
	}
}

func (b *book) addSpace(id int64, name string, epoch int64, state string, version int, policy sched.Policy) *space {
	s := &space{id: id, name: name, epoch: epoch, state: state, policyVersion: version, core: sched.NewCore(policy, b.nodes),
		pools: map[string]*pool{}, tasks: map[string]*row{}, agents: map[string]*row{}}
	s.unmanaged = &pool{id: -id, space: s, version: -1}
	b.spaces[name], b.byID[id] = s, s
	return s
}

// addPool makes a pool of which no more is known yet; version −1 is behind any other.
func (b *book) addPool(s *space, id int64, name string) *pool {
	p := &pool{id: id, space: s, name: name, version: -1, line: &sched.Line{}, ends: &sched.Agenda{}, places: map[sched.NodeID]bool{}, groupCharges: map[sched.ID][]nodeCharge{}}
	b.pools[id], s.pools[name] = p, p
	return p
}

// poolChanged tells the core what a pool has now.
func (b *book) poolChanged(p *pool) {
	p.space.core.PutPool(sched.Pool{Name: p.name, Cluster: p.cluster, Free: p.free(), Ceiling: p.capacity, Labels: p.labels, Preempted: len(p.recent)})
}

// onAgent reports whether the row holds an agent that exists or is being made.
func (r *row) onAgent() bool {
	if r.taking != nil && r.taking.holder != r.uid {
		return false // preempted by hand: its agent has a row of its own by now
	}
	return r.kind != KindRegistered && r.state != Queued && r.state.Live()
}

// cluster is where the row's work is done: that of its pool or, for what is in none, of the
// pool of that name.
func (r *row) cluster() string {
	p := r.pool
	if p == nil {
		p = r.space.pools[r.poolName]
	}
	if p == nil || p.cluster == "" {
		return "local"
	}
	return p.cluster
}

// works reports whether the row may need work of the agents package.
func (r *row) works() bool {
	switch r.state {
	case Reserved, Launching, Preempting, Stopping:
		return true
	}
	return false
}

// settled reports whether the row's agent may be taken.
func (r *row) settled() bool {
	return r.state == Running || ((r.state == Reserved || r.state == Launching) && len(r.victims) == 0)
}

// agentID is the agent a row's task runs on.
func (r *row) agentID() sched.ID {
	if r.kind == KindRegistered && r.agentUID != (sched.ID{}) {
		return r.agentUID
	}
	return r.uid
}

// index makes a live row count: in the maps, in the core, on its node.
func (b *book) index(r *row) {
	if r.indexed || !r.state.Live() {
		return
	}
	r.indexed = true
	b.rows[r.uid] = r
	if len(b.where) > 0 {
		delete(b.where, r.uid)
	}
	if r.works() {
		b.working[r.uid] = r
	}
	if g := r.gang(); g != (sched.ID{}) {
		b.gangs[g] = append(b.gangs[g], r)
	}
	r.home().add(r)
	if r.kind != KindAgent {
		r.space.tasks[r.taskID] = r
	}
	if r.agentUID != (sched.ID{}) {
		b.guests[r.agentUID] = append(b.guests[r.agentUID], r)
	}
	if r.state == Queued {
		if r.pool != nil && r.notBefore == 0 {
			r.pool.line.Put(r.waiting())
		}
		b.date(r)
		return
	}
	if r.onAgent() {
		if r.space.agents[r.agentName] == nil { // else Postgres refuses the name, and it stays the other's
			r.space.agents[r.agentName] = r
		}
		if id, own := launchOf(r.launchID); !own || id != r.uid {
			b.launches[r.launchID] = r
		}
		b.chargeNode(r)
		b.date(r)
		b.tellAgent(r)
	}
	if r.takeable() {
		if r.kind == KindRegistered && r.agentUID == (sched.ID{}) {
			// Unmanaged: evaluated, but its agent frees nothing.
			r.space.core.PutAgent(sched.Agent{ID: r.uid, Name: r.agentName, Pool: r.poolName, Settled: true})
		}
		b.tellTask(r)
	}
}

// takeable reports whether the row is a task that the core may name as a victim.
func (r *row) takeable() bool {
	return r.kind != KindAgent && r.state != Preempting && r.state != Stopping
}

func (b *book) tellAgent(r *row) {
	r.space.core.PutAgent(sched.Agent{ID: r.uid, Name: r.agentName, Pool: r.poolName, Node: r.place(), Gives: r.held, Settled: r.settled()})
}

func (b *book) tellTask(r *row) {
	r.space.core.PutTask(sched.Task{
		ID: r.uid, Name: r.taskID, Agent: r.agentID(), Pool: r.poolName, Priority: r.priority, Labels: r.labels,
		Start: timeOf(r.started), Estimate: sched.Time(r.estimate.Milliseconds()), PreemptedBy: r.preemptedBy, Preemptions: r.preemptions,
	})
}

// moved brings everything in step with a row that changed. Most changes leave it
// where it is found, with the same agent: then only what is different is told on.
func (b *book) moved(r *row, before *life) {
	after := r.life
	r.life = *before
	agent, task, settled := r.onAgent(), r.takeable(), r.settled()
	stays := r.indexed && r.kind != KindRegistered && agent && task && after.state.Live() && after.state != Queued && after.launchID == before.launchID && after.extras == before.extras
	if stays {
		r.life = after
		stays = r.onAgent() && r.takeable()
	}
	if !stays {
		r.life = *before
		b.unindex(r)
		after.indexed, after.charged, after.dated = r.indexed, r.charged, r.dated
		r.life = after
		b.index(r)
		return
	}
	if r.works() {
		b.working[r.uid] = r
	} else {
		delete(b.working, r.uid)
	}
	moves := r.node != before.node || len(r.victims) != len(before.victims)
	dates := moves || r.state != before.state || !r.held.Equal(before.held) || r.estimate != before.estimate || !r.started.Equal(before.started)
	if dates {
		b.undate(r)
	}
	if moves {
		b.unchargeNode(r)
		b.chargeNode(r)
	}
	if dates {
		b.date(r)
	}
	if r.node != before.node || r.settled() != settled || !r.held.Equal(before.held) {
		b.tellAgent(r)
	}
	if r.priority != before.priority || !r.started.Equal(before.started) || r.estimate != before.estimate || r.preemptions != before.preemptions ||
		len(r.preemptedBy) != len(before.preemptedBy) || !maps.Equal(r.labels, before.labels) {
		b.tellTask(r)
	}
}

// launched finds the row that holds the agent of a launch.
func (b *book) launched(launchID string) *row {
	if r := b.launches[launchID]; r != nil {
		return r
	}
	id, own := launchOf(launchID)
	if r := b.rows[id]; own && r != nil && r.launchID == launchID && r.kind != KindRegistered && r.onAgent() {
		return r
	}
	return nil
}

// launchOf reads the uid that a launch id begins with, as prepare makes them.
func launchOf(launchID string) (uid sched.ID, ok bool) {
	if len(launchID) < 36 {
		return uid, false
	}
	id, err := uuid.Parse(launchID[:36])
	return sched.ID(id), err == nil
}

// unindex takes back what index did.
func (b *book) unindex(r *row) {
	if !r.indexed {
		return
	}
	r.indexed = false
	b.undate(r)
	delete(b.rows, r.uid)
	delete(b.working, r.uid)
	if g := r.gang(); g != (sched.ID{}) {
		b.leaves(g, r)
	}
	r.home().remove(r)
	if r.pool != nil && r.state == Queued {
		r.pool.line.Remove(r.uid)
	}
	if r.kind != KindAgent && r.space.tasks[r.taskID] == r {
		delete(r.space.tasks, r.taskID)
	}
	if r.agentUID != (sched.ID{}) {
		left := slices.DeleteFunc(b.guests[r.agentUID], func(o *row) bool { return o == r })
		if b.guests[r.agentUID] = left; len(left) == 0 {
			delete(b.guests, r.agentUID)
		}
	}
	if r.kind != KindRegistered {
		if r.space.agents[r.agentName] == r {
			delete(r.space.agents, r.agentName)
		}
		if b.launches[r.launchID] == r {
			delete(b.launches, r.launchID)
		}
	}
	b.unchargeNode(r)
	r.space.core.RemoveTask(r.uid)
	if r.kind != KindRegistered || r.agentUID == (sched.ID{}) {
		r.space.core.RemoveAgent(r.uid)
	}
}

// chargeNode counts the row's agent on its node. While a preemptor waits for
// victims on the node, their agents still sit there: it charges only what it
// needs beyond them.
func (b *book) chargeNode(r *row) {
	place := r.place()
	if place == "" {
		return
	}
	need := r.request
	if len(r.victims) > 0 {
		coming := sched.Resources{}
		for _, id := range r.victims {
			if v := b.rows[id]; v != nil && v.place() == place {
				coming = coming.Add(v.request)
			}
		}
		for _, m := range b.gangs[r.gang()] { // its own room comes from the same victims
			if m.place() == place && len(m.victims) > 0 && slices.Compare(m.uid[:], r.uid[:]) < 0 {
				coming = coming.Sub(m.request).Positive()
			}
		}
		need = need.Sub(coming).Positive()
	}
	b.nodes.Adjust(place, need.Neg())
	r.charged = nodeCharge{node: place, amount: need}
}

func (b *book) unchargeNode(r *row) {
	if !r.charged.amount.IsZero() {
		b.nodes.Adjust(r.charged.node, r.charged.amount)
		r.charged = nodeCharge{}
	}
}

// setNodes replaces what is known of a cluster's machines.
func (b *book) setNodes(cluster string, nodes []sched.Node) {
	known := map[sched.NodeID]bool{}
	charged := map[sched.NodeID]sched.Resources{} // on nodes that are new
	for _, n := range nodes {
		known[n.ID] = true
		if _, old := b.total[n.ID]; !old {
			charged[n.ID] = sched.Resources{}
		}
	}
	if len(charged) > 0 {
		for _, r := range b.rows {
			if sum, fresh := charged[r.charged.node]; fresh {
				charged[r.charged.node] = sum.Add(r.charged.amount)
			}
		}
		for _, p := range b.pools {
			for _, group := range p.groupCharges {
				for _, c := range group {
					if sum, fresh := charged[c.node]; fresh {
						charged[c.node] = sum.Add(c.amount)
					}
				}
			}
		}
	}
	for _, n := range nodes {
		room := n.Room
		if old, seen := b.nodes.Get(n.ID); seen {
			room = room.Add(old.Room.Sub(b.total[n.ID].usable))
		} else {
			room = room.Sub(charged[n.ID])
		}
		b.total[n.ID] = nodeTotal{cluster: cluster, usable: n.Room, total: n.Total}
		b.nodes.Put(sched.Node{ID: n.ID, Cluster: cluster, Room: room, Total: n.Total, Held: b.holds[nodeKey{cluster, n.ID}].on()})
	}
	for id, t := range b.total {
		if t.cluster == cluster && !known[id] {
			delete(b.total, id)
			b.nodes.Remove(id)
		}
	}
}

// dropPool forgets a pool and its rows.
func (b *book) dropPool(p *pool) {
	for len(p.rows) > 0 {
		b.unindex(p.rows[len(p.rows)-1])
	}
	b.dropGroups(p)
	delete(b.pools, p.id)
	if p.space.pools[p.name] == p {
		delete(p.space.pools, p.name)
		p.space.core.RemovePool(p.name)
	}
}

func timeOf(t time.Time) sched.Time {
	if t.IsZero() {
		return 0
	}
	return sched.Time(t.UnixMilli())
}
