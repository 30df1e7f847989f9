package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// FakeCluster is a Ray cluster without Ray: nodes with room, actors by name, a claim. Sidecars on it
// are made with Bridge. It holds the truth that survives a sidecar.
//
// Nothing in it sleeps. Only what is meant to hang (a constructor, a cancel, a wait for room) waits,
// on timers, so that a testing/synctest bubble makes even that instant.
type FakeCluster struct {
	Dashboard string // what Hello says; set before the first bridge

	mu      sync.Mutex
	nodes   map[string]*fakeNode
	order   []string // node ids
	next    int      // where the search for room goes on
	agents  map[string]*fakeAgent
	names   map[string]string // Ray namespace + "/" + actor name → launch id, "" for an actor that isn't ours
	waiting []*fakeAgent      // for room, in order
	groups  map[string]*fakeGroup
	// waitingGroups wait for room, in order, behind agents.
	waitingGroups []*fakeGroup
	ended         []string // launch ids of gone agents, oldest first
	claim         *Claim
	bridges       []*Fake
	lastPID       int
}

// fakeKeep is how many ended launches a fake cluster remembers.
const fakeKeep = 16384

type fakeNode struct {
	node Node
	used Resources
}

// Fake is a Bridge onto a FakeCluster, with switches to misbehave. NewFake gives one with a cluster of its own.
type Fake struct {
	Cluster    *FakeCluster
	deployment string
	hook       atomic.Pointer[func(ctx context.Context, op, launchID string) error]

	// guarded by Cluster.mu
	session int64
	broken  chan struct{} // closed when connections break
	down    bool
	closed  bool
	lose    map[string]int
	events  []Event
	base    int64         // Seq of events[0]
	wake    chan struct{} // closed at the next event; nil while nobody waits
}

type fakeAgent struct {
	req       LaunchRequest
	owner     string
	status    AgentStatus
	class     fakeClass
	done      chan struct{} // closed once ready or failed
	err       *Error        // why it failed, or how it ended
	launched  Launched
	timer     *time.Timer
	step      int64
	state     json.RawMessage // what restore_state was given
	cancelled bool
	stuck     bool
	entry     Entry
	logs      map[Stream][]byte
	group     *fakeGroup // it sits in, or will
	bundle    int        // of it, once it is placed
	seat      Resources  // that it has in the bundle
}

// NewFakeCluster makes a cluster of these nodes, or of one "node-1" with 8 cpus and 8 GiB.
func NewFakeCluster(nodes ...Node) *FakeCluster {
	if len(nodes) == 0 {
		nodes = []Node{{ID: "node-1", Address: "127.0.0.1", Total: Resources{"cpu": 8000, "memory": 8192}}}
	}
	c := &FakeCluster{
		nodes: map[string]*fakeNode{}, agents: map[string]*fakeAgent{}, names: map[string]string{}, groups: map[string]*fakeGroup{}, lastPID: 1000,
	}
	for _, n := range nodes {
		c.AddNode(n)
	}
	return c
}

// NewFake is a fake sidecar of deployment "test" on a new cluster of these nodes.
func NewFake(nodes ...Node) *Fake { return NewFakeCluster(nodes...).Bridge("test") }

// Bridge starts a fake sidecar of a deployment on the cluster.
func (c *FakeCluster) Bridge(deployment string) *Fake {
	f := &Fake{Cluster: c, deployment: deployment, lose: map[string]int{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bridges = append(c.bridges, f)
	f.newSession()
	return f
}

// AddNode adds a node, or brings one back.
func (c *FakeCluster) AddNode(n Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.Alive, n.ForeignKnown = true, true
	n.Total = maps.Clone(n.Total)
	if n.Foreign == nil {
		n.Foreign = Resources{}
	}
	if _, known := c.nodes[n.ID]; !known {
		c.order = append(c.order, n.ID)
	}
	c.nodes[n.ID] = &fakeNode{node: n, used: Resources{}}
	c.publish("", Event{Type: EventNodesChanged})
	c.placeWaiting()
}

// LoseNode takes a node away; the agents on it die.
func (c *FakeCluster) LoseNode(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[id]
	if n == nil {
		return
	}
	n.node.Alive = false
	for _, g := range c.groups {
		if slices.Contains(g.nodes, id) {
			c.loseGroup(g, "a node that it was on is gone")
		}
	}
	for _, a := range c.agents {
		if a.status.NodeID == id && a.status.State != StateGone {
			c.end(a, "its node was lost", true)
		}
	}
	c.publish("", Event{Type: EventNodesChanged})
}

// SetForeign says what others use on a node.
func (c *FakeCluster) SetForeign(id string, used Resources) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.nodes[id]; n != nil {
		n.node.Foreign = maps.Clone(used)
		c.publish("", Event{Type: EventNodesChanged})
		c.placeWaiting()
	}
}

// TakeName has somebody else's live actor under a name.
func (c *FakeCluster) TakeName(rayNamespace, actorName string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names[rayNamespace+"/"+actorName] = ""
}

// Die ends an agent behind the bridge's back.
func (c *FakeCluster) Die(launchID, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.agents[launchID]; a != nil && a.status.State != StateGone {
		c.end(a, reason, true)
	}
}

// Stick has an agent's process stop answering, without ending it.
func (c *FakeCluster) Stick(launchID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.agents[launchID]; a != nil {
		a.stuck = true
	}
}

// Finish ends a running entry: with an error if outcome.Error is set, else with its result.
func (c *FakeCluster) Finish(launchID string, outcome Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.agents[launchID]; a != nil {
		c.finish(a, outcome)
	}
}

// Metrics has an agent report metrics.
func (c *FakeCluster) Metrics(launchID string, metrics json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.agents[launchID]; a != nil && a.status.State == StateReady {
		c.publish(a.owner, Event{Type: EventAgentMetrics, LaunchID: launchID, Metrics: metrics})
	}
}

// Down breaks every connection and refuses new ones, until Up. The sidecar itself lives on.
func (f *Fake) Down() {
	f.Cluster.mu.Lock()
	defer f.Cluster.mu.Unlock()
	f.down = true
	close(f.broken)
	f.broken = make(chan struct{})
}

// Up undoes Down.
func (f *Fake) Up() {
	f.Cluster.mu.Lock()
	defer f.Cluster.mu.Unlock()
	f.down = false
}

// Restart is a sidecar killed and a new one started: a new session, that finds the agents again.
func (f *Fake) Restart() {
	f.Cluster.mu.Lock()
	defer f.Cluster.mu.Unlock()
	f.down = false
	close(f.broken)
	f.newSession()
}

// LoseReply lets the next call of op ("launch", "run", "kill", …) be carried out and its answer be lost.
func (f *Fake) LoseReply(op string) {
	f.Cluster.mu.Lock()
	defer f.Cluster.mu.Unlock()
	f.lose[op]++
}

// Intercept has every call go through hook first; an error it returns is the call's answer. It may block.
func (f *Fake) Intercept(hook func(ctx context.Context, op, launchID string) error) {
	if hook == nil {
		f.hook.Store(nil)
		return
	}
	f.hook.Store(&hook)
}

func (f *Fake) newSession() {
	f.session++
	f.broken = make(chan struct{})
	f.events = nil
	f.base = f.session<<40 + 1
}

// begin is every call's start. On success the cluster is locked.
func (f *Fake) begin(ctx context.Context, op, launchID string) error {
	if hook := f.hook.Load(); hook != nil {
		if err := (*hook)(ctx, op, launchID); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return &Error{Code: CodeUnavailable, Message: "the call was given up before it was sent", Err: err}
	}
	f.Cluster.mu.Lock()
	if f.down || f.closed {
		f.Cluster.mu.Unlock()
		return errf(CodeUnavailable, "the sidecar is down")
	}
	return nil
}

// finished is every call's end; it unlocks.
func (f *Fake) finished(op string) error {
	lost := f.lose[op] > 0
	if lost {
		f.lose[op]--
	}
	f.Cluster.mu.Unlock()
	if lost {
		return &Error{Code: CodeUnavailable, Message: "the connection broke before the answer came", Unknown: true}
	}
	return nil
}

// wait waits for a channel with the cluster unlocked. What ends it early leaves the outcome unknown.
func (f *Fake) wait(ctx context.Context, broken, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-broken:
		return &Error{Code: CodeUnavailable, Message: "the connection broke before the answer came", Unknown: true}
	case <-ctx.Done():
		return &Error{Code: CodeUnavailable, Message: "the call was given up", Unknown: true, Err: ctx.Err()}
	}
}

// find gives a ready agent of this deployment.
func (f *Fake) find(launchID string) (*fakeAgent, error) {
	a := f.Cluster.agents[launchID]
	if a == nil || a.owner != f.deployment {
		return nil, errf(CodeAgentNotFound, "no agent was launched as %q", launchID)
	}
	switch a.status.State {
	case StateGone:
		return nil, errf(CodeAgentDied, "agent %s has ended: %s", launchID, a.status.Reason)
	case StateLaunching:
		return nil, errf(CodeBadRequest, "agent %s is not ready yet", launchID)
	}
	return a, nil
}

// Hello implements Bridge.
func (f *Fake) Hello(ctx context.Context) (Hello, error) {
	if err := f.begin(ctx, "hello", ""); err != nil {
		return Hello{}, err
	}
	h := Hello{
		Protocol: Protocol, Session: fmt.Sprint("session-", f.session), Deployment: f.deployment,
		ClusterID: "fake", NodeID: f.Cluster.order[0], RayAddress: "fake", Dashboard: f.Cluster.Dashboard, RayNamespace: f.namespace(), RayVersion: "fake", PythonVersion: "fake", PID: 1,
	}
	if f.Cluster.claim != nil {
		claim := *f.Cluster.claim
		h.Claim = &claim
	}
	return h, f.finished("hello")
}

func (f *Fake) namespace() string { return "schedulemesh-" + f.deployment }

// Claim implements Bridge.
func (f *Fake) Claim(ctx context.Context, claim Claim) error {
	if claim.Deployment != f.deployment {
		return errf(CodeBadRequest, "the sidecar belongs to deployment %q, not %q", f.deployment, claim.Deployment)
	}
	if err := f.begin(ctx, "claim", ""); err != nil {
		return err
	}
	c := f.Cluster
	if held := c.claim; held != nil && held.Deployment != claim.Deployment && !claim.Force {
		holder := *held
		c.mu.Unlock()
		e := errf(CodeClaimed, "the Ray cluster belongs to deployment %q at %s", holder.Deployment, holder.URL)
		e.Holder = &holder
		return e
	}
	claim.Force = false
	c.claim = &claim
	return f.finished("claim")
}

// Launch implements Bridge.
func (f *Fake) Launch(ctx context.Context, req LaunchRequest) (Launched, error) {
	if err := req.Validate(); err != nil {
		return Launched{}, err
	}
	if n := len(req.Pickled) + len(req.Args) + len(req.Kwargs) + len(req.SavedState) + len(req.RuntimeEnv); n > MaxBody {
		return Launched{}, errf(CodeTooLarge, "the request has over %d bytes, at most %d are allowed", n, MaxBody)
	}
	if err := f.begin(ctx, "launch", req.LaunchID); err != nil {
		return Launched{}, err
	}
	c := f.Cluster
	a := c.agents[req.LaunchID]
	if a != nil && a.owner != f.deployment {
		c.mu.Unlock()
		return Launched{}, errf(CodeBadRequest, "launch id %q belongs to another deployment", req.LaunchID)
	}
	if a == nil {
		a = c.launch(f, req)
	}
	done, broken := a.done, f.broken
	if err := f.finished("launch"); err != nil {
		return Launched{}, err
	}
	if done != nil {
		if err := f.wait(ctx, broken, done); err != nil {
			return Launched{}, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.err != nil {
		return Launched{}, a.err
	}
	return a.launched, nil
}

func (c *FakeCluster) launch(f *Fake, req LaunchRequest) *fakeAgent {
	a := &fakeAgent{req: req, owner: f.deployment}
	a.status = AgentStatus{
		LaunchID: req.LaunchID, AgentName: req.AgentName, TaskID: req.TaskID, Pool: req.Pool, Attempt: req.Attempt,
		State: StateLaunching, ActorName: cmp.Or(req.ActorName, req.LaunchID),
		RayNamespace: cmp.Or(req.RayNamespace, f.namespace()), Resources: req.Resources,
	}
	c.agents[req.LaunchID] = a
	name := a.name()
	if _, taken := c.names[name]; taken {
		c.fail(a, errf(CodeNameTaken, "an actor named %q lives in Ray namespace %q", a.status.ActorName, a.status.RayNamespace))
		return a
	}
	c.names[name] = req.LaunchID
	if strings.Contains(string(req.RuntimeEnv), "/does/not/exist") {
		c.fail(a, errf(CodeRuntimeEnvFailed, "the runtime_env could not be set up"))
		return a
	}
	if req.Group == nil {
		c.find(a)
		return a
	}
	a.group = c.ensure(f, *req.Group)
	seated := func() {
		switch {
		case a.status.State != StateLaunching:
		case a.group.err != nil:
			c.fail(a, a.group.err)
		default:
			c.find(a)
		}
	}
	if a.group.done == nil {
		seated()
		return a
	}
	a.done = make(chan struct{})
	a.group.then = append(a.group.then, seated)
	return a
}

// find has an agent placed and constructed, or waiting for room.
func (c *FakeCluster) find(a *fakeAgent) {
	req := a.req
	if !c.place(a) {
		if a.group == nil && !c.couldFit(req.Resources) {
			c.fail(a, errf(CodeNoRoom, "no node of the cluster could ever hold %v", req.Resources))
			return
		}
		c.waiting = append(c.waiting, a)
		c.expire(a, cmp.Or(req.RoomTimeout, req.Timeout, DefaultLaunchTimeout), func() *Error {
			return errf(CodeNoRoom, "no node had room for %v in time", req.Resources)
		})
		return
	}
	c.construct(a)
}

// expire fails a launch after d unless it got further.
func (c *FakeCluster) expire(a *fakeAgent, d time.Duration, why func() *Error) {
	if a.done == nil {
		a.done = make(chan struct{})
	}
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if a.timer == timer && a.status.State == StateLaunching {
			c.fail(a, why())
		}
	})
	a.timer = timer
}

func (c *FakeCluster) construct(a *fakeAgent) {
	class, err := fakeClassOf(a)
	if err == nil && len(a.req.SavedState) > 0 {
		err = class.restore(a)
	}
	if err != nil {
		c.fail(a, err)
		return
	}
	a.class = class
	if class.hangs {
		c.expire(a, cmp.Or(a.req.Timeout, DefaultLaunchTimeout), func() *Error {
			return errf(CodeLaunchTimeout, "the agent was not ready in time")
		})
		return
	}
	a.status.State = StateReady
	a.launched = Launched{
		LaunchID: a.req.LaunchID, ActorID: a.status.ActorID, ActorName: a.status.ActorName, RayNamespace: a.status.RayNamespace,
		NodeID: a.status.NodeID, PID: a.status.PID, Warm: true,
	}
	if a.group != nil {
		a.launched.GroupNodes = slices.Clone(a.group.nodes)
	}
	c.settle(a)
}

// settle lets the callers of Launch go on.
func (c *FakeCluster) settle(a *fakeAgent) {
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	if a.done != nil {
		close(a.done)
		a.done = nil
	}
}

func (c *FakeCluster) fail(a *fakeAgent, err *Error) {
	a.err = err
	c.end(a, err.Error(), false)
}

// end makes an agent gone; told says whether an event tells of it.
func (c *FakeCluster) end(a *fakeAgent, reason string, told bool) {
	was := a.status.State
	a.status.State, a.status.Reason = StateGone, reason
	if a.status.Entry == EntryRunning {
		a.status.Entry = EntryNone
	}
	switch n := c.nodes[a.status.NodeID]; {
	case a.status.PID == 0:
	case a.group != nil:
		if a.group.free != nil {
			a.group.free[a.bundle].add(a.seat, 1)
		}
	case n != nil:
		n.used.add(a.req.Resources, -1)
		c.tellOthers(a.owner)
	}
	if a.err == nil {
		a.err = errf(CodeAgentDied, "agent %s has ended: %s", a.req.LaunchID, reason)
	}
	if c.names[a.name()] == a.req.LaunchID {
		delete(c.names, a.name())
	}
	c.waiting = slices.DeleteFunc(c.waiting, func(w *fakeAgent) bool { return w == a })
	c.ended = append(c.ended, a.req.LaunchID)
	if len(c.ended) > fakeKeep {
		for _, id := range c.ended[:fakeKeep/4] {
			delete(c.agents, id)
		}
		c.ended = slices.Clone(c.ended[fakeKeep/4:])
	}
	c.settle(a)
	if told && was == StateReady {
		c.publish(a.owner, Event{Type: EventAgentDied, LaunchID: a.req.LaunchID, Reason: reason})
	}
	c.placeWaiting()
}

func (c *FakeCluster) finish(a *fakeAgent, o Outcome) {
	if a.status.State != StateReady || a.status.Entry != EntryRunning {
		return
	}
	o.Cancelled = a.cancelled
	a.status.Outcome = &o
	event := Event{Type: EventEntryCompleted, LaunchID: a.req.LaunchID, Outcome: &o}
	a.status.Entry = EntryCompleted
	if o.Error != "" {
		a.status.Entry, event.Type = EntryFailed, EventEntryFailed
	}
	c.publish(a.owner, event)
}

func (a *fakeAgent) name() string { return a.status.RayNamespace + "/" + a.status.ActorName }

// place finds a node: the preferred one, else the next that has room, going round.
func (c *FakeCluster) place(a *fakeAgent) bool {
	if a.group != nil {
		return c.sit(a)
	}
	if n := c.nodes[a.req.NodeID]; n != nil && n.fits(a.req.Resources) {
		c.put(a, n)
		return true
	}
	for i := range c.order {
		at := (c.next + i) % len(c.order)
		if n := c.nodes[c.order[at]]; n.fits(a.req.Resources) {
			c.next = at
			c.put(a, n)
			return true
		}
	}
	return false
}

func (c *FakeCluster) put(a *fakeAgent, n *fakeNode) {
	n.used.add(a.req.Resources, 1)
	c.tellOthers(a.owner)
	a.status.NodeID = n.node.ID
	c.start(a)
}

func (c *FakeCluster) start(a *fakeAgent) {
	c.lastPID++
	a.status.PID, a.status.ActorID = c.lastPID, fmt.Sprint("actor-", c.lastPID)
}

func (c *FakeCluster) placeWaiting() {
	for i := 0; i < len(c.waiting); {
		a := c.waiting[i]
		if !c.place(a) {
			i++
			continue
		}
		c.waiting = slices.Delete(c.waiting, i, i+1)
		a.timer.Stop()
		a.timer = nil
		c.construct(a)
		i = 0 // construct may have freed or taken room
	}
	for _, g := range slices.Clone(c.waitingGroups) {
		if at := slices.Index(c.waitingGroups, g); at >= 0 && c.placeGroup(g) {
			c.waitingGroups = slices.DeleteFunc(c.waitingGroups, func(w *fakeGroup) bool { return w == g })
		}
	}
}

func (n *fakeNode) fits(r Resources) bool {
	if !n.node.Alive {
		return false
	}
	for k, v := range r {
		if v > n.node.Total[k]-n.used[k]-n.node.Foreign[k] {
			return false
		}
	}
	return true
}

func (c *FakeCluster) couldFit(r Resources) bool {
	for _, n := range c.nodes {
		ok := n.node.Alive
		for k, v := range r {
			ok = ok && v <= n.node.Total[k]
		}
		if ok {
			return true
		}
	}
	return false
}

// Run implements Bridge.
func (f *Fake) Run(ctx context.Context, launchID string, entry Entry) error {
	if err := entry.Validate(); err != nil {
		return err
	}
	if err := f.begin(ctx, "run", launchID); err != nil {
		return err
	}
	a, err := f.find(launchID)
	if err != nil {
		f.Cluster.mu.Unlock()
		return err
	}
	if a.status.Entry == EntryNone {
		a.status.Entry, a.entry = EntryRunning, entry
		if a.class.run != nil {
			a.class.run(f.Cluster, a)
		}
	}
	return f.finished("run")
}

// Cancel implements Bridge.
func (f *Fake) Cancel(ctx context.Context, launchID, taskID string, timeout time.Duration) (CancelResult, error) {
	if err := f.begin(ctx, "cancel", launchID); err != nil {
		return CancelResult{}, err
	}
	a, err := f.find(launchID)
	if err != nil {
		f.Cluster.mu.Unlock()
		return CancelResult{}, err
	}
	a.cancelled = true
	class, broken := a.class, f.broken
	var r CancelResult
	if !class.cancelHangs {
		r = class.cancel(a, taskID)
		if r.Success && class.stops {
			f.Cluster.finish(a, Outcome{Result: jsonOf(map[string]any{"status": "cancelled", "task_id": taskID, "step": a.step})})
		}
	}
	if err := f.finished("cancel"); err != nil {
		return CancelResult{}, err
	}
	if class.cancelHangs {
		if err := f.waitFor(ctx, broken, timeout); err != nil {
			return CancelResult{}, err
		}
		return CancelResult{TimedOut: true, Error: fmt.Sprintf("cancel did not answer within %s", timeout)}, nil
	}
	return r, nil
}

// SaveState implements Bridge.
func (f *Fake) SaveState(ctx context.Context, launchID string, timeout time.Duration) (SavedState, error) {
	if err := f.begin(ctx, "save_state", launchID); err != nil {
		return SavedState{}, err
	}
	a, err := f.find(launchID)
	if err != nil {
		f.Cluster.mu.Unlock()
		return SavedState{}, err
	}
	class, broken := a.class, f.broken
	s := SavedState{}
	state := map[string]any{}
	if class.save != nil {
		own, msg := class.save(a)
		maps.Copy(state, own)
		s.Error, s.Default = msg, msg != ""
	} else {
		s.Default = true
	}
	if class.saveHangs {
		s = SavedState{Default: true, TimedOut: true, Error: fmt.Sprintf("save_state did not answer within %s", timeout)}
	}
	if s.Default {
		state = map[string]any{"labels": a.req.Labels}
	}
	state["task_id"], state["pool_name"] = a.req.TaskID, a.req.Pool
	s.State = jsonOf(state)
	if err := f.finished("save_state"); err != nil {
		return SavedState{}, err
	}
	if class.saveHangs {
		if err := f.waitFor(ctx, broken, timeout); err != nil {
			return SavedState{}, err
		}
	}
	return s, nil
}

func (f *Fake) waitFor(ctx context.Context, broken <-chan struct{}, d time.Duration) error {
	done := make(chan struct{})
	defer time.AfterFunc(d, func() { close(done) }).Stop()
	return f.wait(ctx, broken, done)
}

// Ping implements Bridge.
func (f *Fake) Ping(ctx context.Context, launchID string, timeout time.Duration) error {
	if err := f.begin(ctx, "ping", launchID); err != nil {
		return err
	}
	a, err := f.find(launchID)
	if err != nil {
		f.Cluster.mu.Unlock()
		return err
	}
	stuck, broken := a.stuck, f.broken
	if err := f.finished("ping"); err != nil || !stuck {
		return err
	}
	if err := f.waitFor(ctx, broken, timeout); err != nil {
		return err
	}
	return errf(CodeTimeout, "agent %s did not answer within %s", launchID, timeout)
}

// Call implements Bridge. It knows the callables of schedulemesh.testing.handlers, pickled by PickleOf.
func (f *Fake) Call(ctx context.Context, req CallRequest) (CallResult, error) {
	if err := req.Validate(); err != nil {
		return CallResult{}, err
	}
	if n := len(req.Pickled)/3*4 + len(req.Argument); n > MaxBody {
		return CallResult{}, errf(CodeTooLarge, "the request has over %d bytes, at most %d are allowed", n, MaxBody)
	}
	if err := f.begin(ctx, "call", req.Name); err != nil {
		return CallResult{}, err
	}
	broken := f.broken
	r, hangs := fakeCall(req)
	if err := f.finished("call"); err != nil {
		return CallResult{}, err
	}
	if hangs {
		timeout := cmp.Or(req.Timeout, DefaultCallTimeout)
		if err := f.waitFor(ctx, broken, timeout); err != nil {
			return CallResult{}, err
		}
		return CallResult{TimedOut: true, Error: fmt.Sprintf("the %s %s did not return within %s", req.Kind, req.Name, timeout)}, nil
	}
	return r, nil
}

// Kill implements Bridge.
func (f *Fake) Kill(ctx context.Context, launchID string, _ time.Duration) error {
	if err := f.begin(ctx, "kill", launchID); err != nil {
		return err
	}
	c := f.Cluster
	switch a := c.agents[launchID]; {
	case a == nil: // leave word, so that a launch still on its way is refused
		a = &fakeAgent{req: LaunchRequest{LaunchID: launchID}, owner: f.deployment}
		a.status = AgentStatus{LaunchID: launchID}
		c.agents[launchID] = a
		c.end(a, "killed before it was launched", false)
	case a.owner != f.deployment:
	case a.status.State != StateGone:
		c.end(a, "killed", false)
	}
	return f.finished("kill")
}

// List implements Bridge.
func (f *Fake) List(ctx context.Context) ([]AgentStatus, error) {
	if err := f.begin(ctx, "list", ""); err != nil {
		return nil, err
	}
	var list []AgentStatus
	for _, a := range f.Cluster.agents {
		if a.owner == f.deployment && a.status.ActorName != "" {
			list = append(list, a.status)
		}
	}
	slices.SortFunc(list, func(a, b AgentStatus) int { return cmp.Compare(a.LaunchID, b.LaunchID) })
	return list, f.finished("list")
}

// Nodes implements Bridge.
func (f *Fake) Nodes(ctx context.Context) ([]Node, error) {
	if err := f.begin(ctx, "nodes", ""); err != nil {
		return nil, err
	}
	list := make([]Node, 0, len(f.Cluster.order))
	for _, id := range f.Cluster.order {
		n := f.Cluster.nodes[id].node
		n.Total, n.Foreign = maps.Clone(n.Total), maps.Clone(n.Foreign)
		list = append(list, n)
	}
	if len(f.Cluster.bridges) > 1 {
		for _, a := range f.Cluster.agents { // other deployments are foreign to us
			if i := slices.Index(f.Cluster.order, a.status.NodeID); i >= 0 && a.owner != f.deployment && a.status.State != StateGone && a.group == nil {
				list[i].Foreign.add(a.req.Resources, 1)
			}
		}
		for _, g := range f.Cluster.groups {
			for k, id := range g.nodes {
				if g.owner != f.deployment {
					list[slices.Index(f.Cluster.order, id)].Foreign.add(g.req.Bundles[k], 1)
				}
			}
		}
	}
	return list, f.finished("nodes")
}

// fakeRing is how many events a fake keeps for those who come back.
const fakeRing = 65536

// publish tells the sidecars of a deployment (all of them for "") of an event.
func (c *FakeCluster) publish(owner string, e Event) {
	for _, f := range c.bridges {
		if owner != "" && f.deployment != owner {
			continue
		}
		if len(f.events) >= fakeRing {
			f.events = slices.Clone(f.events[fakeRing/2:])
			f.base += fakeRing / 2
		}
		e.Seq = f.base + int64(len(f.events))
		f.events = append(f.events, e)
		if f.wake != nil {
			close(f.wake)
			f.wake = nil
		}
	}
}

// tellOthers lets other deployments know that what is foreign to them changed.
func (c *FakeCluster) tellOthers(owner string) {
	for _, f := range c.bridges {
		if f.deployment != owner {
			c.publish(f.deployment, Event{Type: EventNodesChanged})
		}
	}
}

// Events implements Bridge.
func (f *Fake) Events(ctx context.Context, after int64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if ctx.Err() != nil {
			return
		}
		if err := f.begin(ctx, "events", ""); err != nil {
			if ctx.Err() == nil {
				yield(Event{}, err)
			}
			return
		}
		broken := f.broken
		for {
			if last := f.base + int64(len(f.events)) - 1; after < f.base-1 || after > last {
				after = last
				e := Event{Seq: last, Type: EventResync, Session: fmt.Sprint("session-", f.session)}
				f.Cluster.mu.Unlock()
				if !yield(e, nil) {
					return
				}
				f.Cluster.mu.Lock()
			}
			batch := slices.Clone(f.events[after+1-f.base:])
			after += int64(len(batch))
			if len(batch) == 0 && f.wake == nil {
				f.wake = make(chan struct{})
			}
			wake := f.wake
			f.Cluster.mu.Unlock()
			for _, e := range batch {
				if ctx.Err() != nil || !yield(e, nil) {
					return
				}
			}
			if len(batch) == 0 {
				if err := f.wait(ctx, broken, wake); err != nil {
					if ctx.Err() == nil {
						yield(Event{}, err)
					}
					return
				}
			}
			select {
			case <-broken:
				yield(Event{}, &Error{Code: CodeUnavailable, Message: "the connection broke", Unknown: true})
				return
			default:
			}
			f.Cluster.mu.Lock()
		}
	}
}

// Logs implements Bridge.
func (f *Fake) Logs(ctx context.Context, launchID string, stream Stream, offset int64, limit int) (LogChunk, error) {
	if stream != Stdout && stream != Stderr || offset < 0 || limit < 0 {
		return LogChunk{}, errf(CodeBadRequest, "no stream %q at offset %d with limit %d", stream, offset, limit)
	}
	if err := f.begin(ctx, "logs", launchID); err != nil {
		return LogChunk{}, err
	}
	a := f.Cluster.agents[launchID]
	if a == nil || a.owner != f.deployment || a.status.ActorName == "" {
		f.Cluster.mu.Unlock()
		return LogChunk{}, errf(CodeAgentNotFound, "no agent was launched as %q", launchID)
	}
	text := a.logs[stream]
	size := int64(len(text))
	from := min(offset, size)
	to := min(from+int64(cmp.Or(limit, defaultLogLimit)), size)
	chunk := LogChunk{
		Text: strings.ToValidUTF8(string(text[from:to]), "\uFFFD"), Next: to, Size: size, EOF: to == size,
		Ended: a.status.State == StateGone,
	}
	return chunk, f.finished("logs")
}

const defaultLogLimit = 64 << 10

// Close implements Bridge.
func (f *Fake) Close() error {
	f.Cluster.mu.Lock()
	defer f.Cluster.mu.Unlock()
	if !f.closed {
		f.closed = true
		close(f.broken)
		if held := f.Cluster.claim; held != nil && held.Deployment == f.deployment {
			f.Cluster.claim = nil
		}
		f.Cluster.bridges = slices.DeleteFunc(f.Cluster.bridges, func(b *Fake) bool { return b == f })
	}
	return nil
}

func jsonOf(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only maps and numbers of our own come here
	}
	return b
}
