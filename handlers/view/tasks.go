package view

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/web"
)

// rows makes the lines of a list.
func (v *View) rows(ctx context.Context, ns string, tasks []ledger.Task) ([]web.TaskRow, error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	standings, err := v.l.Standings(ctx, ns, tasks)
	if err != nil {
		return nil, v.refused(ctx, err)
	}
	out := make([]web.TaskRow, len(tasks))
	for i, t := range tasks {
		out[i] = row(t, standings[t.UID])
	}
	return out, nil
}

func row(t ledger.Task, s ledger.Standing) web.TaskRow {
	r := web.TaskRow{
		ID: t.TaskID, UID: uid(t.UID), State: web.State(t.State), Phase: phaseWords(t.Phase), Pool: t.Pool, Priority: t.Priority.Float(),
		Labels: web.LabelsOf(t.Labels), Request: resources(t.Request), Since: s.Since, Position: s.Position, Node: nodeWords(t.Node),
		Attempt: t.Attempt, Reason: t.Reason, Unmanaged: !t.Managed, ETA: t.ETA, ETANote: t.ETANote,
	}
	if t.State == ledger.Running && t.Estimate > 0 && !t.StartedAt.IsZero() {
		r.EndsAt = t.StartedAt.Add(t.Estimate)
	}
	if t.State == ledger.Queued && s.Position > 1 {
		r.Reason = "" // what it heard when it came is old; who is first in line knows
	}
	if t.State == ledger.Queued && waits(t) {
		r.Reason, _, _ = strings.Cut(r.Reason, ";") // what it needs; its page says the rest
	}
	r.Reason = plain(r.Reason)
	return r
}

// queuedSince is since when a task waits.
func queuedSince(t ledger.Task) time.Time {
	if t.QueuedAt.IsZero() {
		return t.SubmittedAt
	}
	return t.QueuedAt
}

func uid(id sched.ID) string { return uuid.UUID(id).String() }

// nodeWords shortens Ray's node ids, which have 56 digits.
func nodeWords(id string) string {
	if len(id) > 16 {
		return id[:12]
	}
	return id
}

// phaseWords says what a task on its way is doing.
func phaseWords(phase string) string {
	switch phase {
	case "decided":
		return "about to be told"
	case "cancelling":
		return "being told to stop"
	case "saving":
		return "saving its state"
	case "killing":
		return "its agent is stopped"
	}
	return phase
}

// filterOf is a list's filter as the ledger takes it.
func filterOf(f web.TaskFilter) ledger.TaskFilter {
	out := ledger.TaskFilter{Pool: f.Pool, Text: f.Text, Limit: f.Limit, Cursor: f.Cursor}
	switch f.State {
	case "live", "":
		out.Live = true
	case "all":
	default:
		out.States = []ledger.State{ledger.State(f.State)}
	}
	for _, l := range f.Labels {
		if out.Labels == nil {
			out.Labels = sched.Labels{}
		}
		out.Labels[l.Key] = l.Value
	}
	return out
}

// Tasks lists tasks, newest first.
func (v *View) Tasks(ctx context.Context, ns string, f web.TaskFilter) (web.TaskList, error) {
	filter := filterOf(f)
	page, err := v.l.Tasks(ctx, ns, filter)
	if err != nil {
		return web.TaskList{}, v.refused(ctx, err)
	}
	out := web.TaskList{Next: page.Next}
	if out.Items, err = v.rows(ctx, ns, page.Items); err != nil {
		return out, err
	}
	if out.Total, err = v.l.CountTasks(ctx, ns, filter); err == nil {
		out.All, err = v.l.CountTasks(ctx, ns, ledger.TaskFilter{})
	}
	if err != nil {
		return out, v.refused(ctx, err)
	}
	pools, err := v.l.Pools(ctx, ns)
	out.Pools = poolNames(pools)
	return out, v.refused(ctx, err)
}

// Task is one task's page.
func (v *View) Task(ctx context.Context, ns, id string) (web.Task, error) {
	t, err := v.l.TaskReport(ctx, ns, id)
	if err != nil {
		return web.Task{}, v.refused(ctx, err)
	}
	standings, err := v.l.Standings(ctx, ns, []ledger.Task{t.Task})
	if err != nil {
		return web.Task{}, v.refused(ctx, err)
	}
	now := v.now()
	settled := t.State != ledger.Stopping && t.State != ledger.Preempting
	out := web.Task{
		TaskRow: row(t.Task, standings[t.UID]),
		Owner:   t.Actor, Class: t.Spec.ActorClass, Pickled: t.Pickled, AgentName: t.AgentName, ActorName: t.ActorName, PID: t.PID,
		Submitted: t.SubmittedAt, Started: firstStart(t), Ended: t.EndedAt, Estimate: t.Estimate, MaxRuntime: t.MaxRuntime,
		MaxAttempts: t.MaxAttempts, Preemptions: t.Preemptions, OnInsufficient: t.OnInsufficient, OnPreempted: t.OnPreempted, OnFailure: t.OnFailure,
		Ran: ran(t.Events, now), StateSize: int64(len(t.SavedState)), Timeline: timeline(t, now), Handover: handoverPanel(t, now),
		Spec: spec(t), Result: indented(t.Result),
		CanComplete: t.State == ledger.Running || t.State == ledger.Launching || t.State == ledger.Reserved,
		CanPreempt:  t.State == ledger.Running, CanCancel: t.State.Live() && t.State != ledger.Stopping, CanRetune: t.State.Live() && settled,
		Again: again(t),
	}
	if out.Class == "" {
		out.Class = t.Spec.PickledName
	}
	if t.State == ledger.Queued || t.Kind == ledger.KindTask && t.StartedAt.IsZero() && !t.State.Live() {
		out.AgentName = "" // it has none
	}
	if t.Kind == ledger.KindRegistered {
		out.OnInsufficient = "" // it asked for none
	}
	if e := t.Spec.Entry; e != nil {
		out.Entry = e.Method
	}
	if s := t.Seat; s != nil {
		out.GroupTier, out.GroupName = s.Tier, s.Group
	}
	for _, id := range t.Earlier {
		out.Earlier = append(out.Earlier, uid(id))
	}
	if out.Why, err = v.why(ctx, ns, t, out.TaskRow); err != nil {
		return out, err
	}
	return out, nil
}

// firstStart is when it first ran; the row only knows this attempt.
func firstStart(t ledger.TaskReport) time.Time {
	for _, e := range t.Events {
		if e.Type == string(ledger.Running) && e.Code == "" {
			return e.At
		}
	}
	return t.StartedAt
}

// ran adds up how long its attempts ran: from running until anything ended that.
func ran(events []ledger.Event, now time.Time) time.Duration {
	var total time.Duration
	var began time.Time
	for _, e := range events {
		switch ledger.State(e.Type) {
		case ledger.Running, "registered":
			if began.IsZero() {
				began = e.At
			}
		case ledger.Stopping, ledger.Preempted, ledger.Completed, ledger.Failed, ledger.Cancelled, ledger.Queued, "attempt_failed":
			if !began.IsZero() {
				total += e.At.Sub(began)
			}
			began = time.Time{}
		}
	}
	if !began.IsZero() {
		total += max(0, now.Sub(began))
	}
	return total
}

// why says why a task waits, or how it ended, when that needs saying.
func (v *View) why(ctx context.Context, ns string, t ledger.TaskReport, r web.TaskRow) (*web.Note, error) {
	n := &web.Note{Kind: "warn"}
	by, how := lastPreemption(t)
	switch t.State {
	case ledger.Queued:
		return v.whyQueued(ctx, ns, t, r)
	case ledger.Reserved:
		if t.Phase == "" {
			return nil, nil
		}
		n.Kind, n.Title = "info", web.Say("Its quota is reserved; it starts when others have made way.")
		for i, p := range openVictims(t) {
			if i > 0 {
				n.Text = append(n.Text, web.Text(", "))
			}
			n.Text = append(n.Text, web.TaskRef(p.VictimTask), web.Text(" is "+takingWords(p.Phase)))
		}
		if n.Text != nil {
			n.Text = append(n.Text, web.Text("."))
		}
	case ledger.Preempting:
		n.Title = web.Line{web.Text("It is making way")}
		if how != nil && how.PreemptorTask != "" {
			n.Title = append(n.Title, web.Text(" for "), web.TaskRef(how.PreemptorTask))
		}
		n.Title = append(n.Title, web.Text("."))
		n.Text = web.Say(map[bool]string{true: "It is queued again afterwards, with its saved state.", false: "It ends as preempted; its saved state stays readable."}[t.OnPreempted == ledger.Requeue])
	case ledger.Preempted:
		n.Title = web.Say("It was preempted by hand.")
		if by != "" {
			n.Title = web.Line{web.Text("It made way for "), web.TaskRef(by), web.Text(".")}
		}
		n.Text = web.Say(afterwards(t))
	case ledger.Failed:
		n.Kind, n.Title, n.Text = "bad", web.Say(failure(t.Code)), web.Line{web.Code(t.Reason)}
		if t.Reason == "" {
			n.Text = nil
		}
		if t.Kind == ledger.KindTask && t.Code != "bridge_unavailable" {
			n.Text = append(n.Text, web.Text(" Its log, stderr, may say more."))
		}
	case ledger.Cancelled:
		if t.Reason == "" {
			return nil, nil
		}
		n.Kind, n.Title = "info", web.Say("Cancelled "+strings.TrimSuffix(t.Reason, ".")+".")
		if !strings.HasPrefix(t.Reason, "by ") {
			n.Title = web.Say(sentence("cancelled: " + t.Reason))
		}
	case ledger.Running:
		if !t.Managed {
			n.Kind, n.Title = "info", web.Say("Its pool or its agent is not ours.")
			n.Text = web.Say("It was registered by name only: it is compared when others ask for room, but holds no quota here. Ending it here ends the record; what runs is not told.")
			return n, nil
		}
		return nil, nil
	default:
		return nil, nil
	}
	return n, nil
}

// whyQueued says what a queued task waits for, when it may start, and where it comes from.
func (v *View) whyQueued(ctx context.Context, ns string, t ledger.TaskReport, r web.TaskRow) (*web.Note, error) {
	n := &web.Note{Kind: "warn"}
	say := func(parts ...web.Part) { n.Text = append(n.Text, parts...) }
	switch {
	case t.QueuePosition == 0:
		n.Kind, n.Title = "info", web.Say("It failed and is tried again"+soon(t.ETA, v.now())+".")
		say(web.Code(t.Reason), web.Text(" "))
	case t.QueuePosition > 1:
		n.Kind = "info"
		n.Title = web.Line{web.Text(fmt.Sprintf("It is number %s in the queue of ", web.Number(t.QueuePosition))), web.PoolRef(t.Pool), web.Text(".")}
		heads, err := v.l.QueueHeads(ctx, ns)
		if err != nil {
			return nil, v.refused(ctx, err)
		}
		if h, ok := heads[t.Pool]; ok && h.UID != t.UID {
			say(web.Text("First in line is "), web.TaskRef(h.TaskID), web.Text(". "))
		}
	case t.Code == "pool_held":
		n.Title = web.Line{web.Text("It is first in line, but "), web.PoolRef(t.Pool), web.Text(" is held.")}
		say(web.Text(sentence(plain(t.Reason)) + " "))
	default:
		n.Title = web.Line{web.Text("It is first in line in "), web.PoolRef(t.Pool), web.Text(" and waits for room.")}
		if t.Reason != "" {
			say(web.Text("It " + strings.TrimSuffix(plain(t.Reason), ".") + ". "))
		}
	}
	if t.QueuePosition > 0 {
		switch {
		case !t.ETA.IsZero():
			say(web.Text("It may start" + soon(t.ETA, v.now()) + onCondition(t.ETANote) + ". "))
		case t.ETANote != "":
			say(web.Text("When it starts is not known: " + strings.TrimSuffix(t.ETANote, ".") + ". "))
		}
	}
	if n := len(t.Gang); n > 0 {
		say(web.Text("It waits with "))
		for i, id := range t.Gang[:min(5, n)] {
			if i > 0 {
				say(web.Text(", "))
			}
			say(web.TaskRef(id))
		}
		if n > 5 {
			say(web.Text(" and " + web.Number(n-5) + " more"))
		}
		say(web.Text(": all of them start together, or none does. "))
	}
	if t.QueueTimeout > 0 {
		say(web.Text("It gives up" + soon(queuedSince(t.Task).Add(t.QueueTimeout), v.now()) + ". "))
	}
	if by, p := lastPreemption(t); p != nil {
		n.Text = append(n.Text, web.Text("It was preempted "+web.Ago(p.DecidedAt, v.now())))
		if by != "" {
			n.Text = append(n.Text, web.Text(" by "), web.TaskRef(by), web.Text(", which it may not preempt in turn"))
		}
		n.Text = append(n.Text, web.Text(". "))
		if len(t.SavedState) > 0 {
			n.Text = append(n.Text, web.Text("It goes on from its saved state when there is room"+stateSummary(t.SavedState)+"."))
		}
	}
	return n, nil
}

// soon says when something in the future is.
func soon(at, now time.Time) string {
	if d := at.Sub(now); d > time.Second {
		return " in " + web.Brief(d)
	}
	return " any moment"
}

func onCondition(note string) string {
	if strings.HasPrefix(note, "if ") {
		return ", " + note
	}
	return ""
}

// waits reports that the reason of a queued task is what the core said last time.
func waits(t ledger.Task) bool {
	return t.Reason != "" && (t.Code == "no_victims" || t.Code == "victims_insufficient" || t.Code == "no_node_large_enough" || t.Code == "request_too_large")
}

// lastPreemption is the last time the task made way.
func lastPreemption(t ledger.TaskReport) (by string, p *ledger.Preemption) {
	for i, h := range t.Handovers {
		if h.VictimUID == t.UID && h.Phase != "undone" {
			return h.PreemptorTask, &t.Handovers[i]
		}
	}
	return "", nil
}

// openVictims are those that the task waits for.
func openVictims(t ledger.TaskReport) []ledger.Preemption {
	var out []ledger.Preemption
	for _, h := range t.Handovers {
		if h.PreemptorUID == t.UID && h.PreemptorAttempt == t.Attempt && h.Phase != "gone" && h.Phase != "undone" {
			out = append(out, h)
		}
	}
	return out
}

func takingWords(phase string) string {
	switch phase {
	case "decided":
		return "about to be told to stop"
	case "cancelling":
		return "told to stop"
	case "saving":
		return "saving its state"
	}
	return "being removed"
}

func afterwards(t ledger.TaskReport) string {
	if len(t.SavedState) == 0 {
		return "No state was saved."
	}
	return "Its state was saved" + stateSummary(t.SavedState) + "; it can be restored over the API or from Python."
}

// stateSummary names a few plain values of a saved state: ", step 1,840, accuracy 0.913".
func stateSummary(state json.RawMessage) string {
	dec := json.NewDecoder(bytes.NewReader(state))
	dec.UseNumber()
	var doc map[string]any
	if dec.Decode(&doc) != nil {
		return ""
	}
	var out []string
	for _, k := range []string{"step", "global_step", "epoch", "iteration", "progress", "loss", "accuracy"} {
		if n, ok := doc[k].(json.Number); ok && len(n) < 20 {
			s := n.String()
			if i, err := n.Int64(); err == nil {
				s = web.Number(i)
			}
			out = append(out, k+" "+s)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return ", at " + strings.Join(out[:min(3, len(out))], ", ")
}

// failure says a code as people do.
func failure(code string) string {
	switch code {
	case "constructor_failed":
		return "Its class could not be built."
	case "entry_failed":
		return "Its entry raised an exception."
	case "agent_died":
		return "Its agent died."
	case "agent_gone":
		return "Its agent is gone."
	case "unhealthy":
		return "Its agent did not answer, or did not come up."
	case "launch_timeout", "launch_timed_out":
		return "Its agent was not ready in time."
	case "max_runtime":
		return "It ran longer than it may."
	case "bridge_unavailable":
		return "Ray could not be reached."
	}
	return "It failed."
}

// spec is what was submitted, as the REST API takes it.
func spec(t ledger.TaskReport) string {
	type entry struct {
		Method string          `json:"method"`
		Args   json.RawMessage `json:"args,omitempty"`
		Kwargs json.RawMessage `json:"kwargs,omitempty"`
	}
	doc := struct {
		TaskID            string             `json:"task_id"`
		Pool              string             `json:"pool"`
		ActorClass        string             `json:"actor_class,omitempty"`
		PickledName       string             `json:"pickled_name,omitempty"`
		Args              json.RawMessage    `json:"actor_args,omitempty"`
		Kwargs            json.RawMessage    `json:"actor_kwargs,omitempty"`
		Entry             *entry             `json:"entry,omitempty"`
		Resources         map[string]float64 `json:"resources,omitempty"`
		Priority          sched.Milli        `json:"priority"`
		Labels            sched.Labels       `json:"labels,omitempty"`
		AgentName         string             `json:"agent_name,omitempty"`
		EstimatedDuration float64            `json:"estimated_duration,omitempty"`
		MaxRuntime        float64            `json:"max_runtime,omitempty"`
		OnInsufficient    string             `json:"on_insufficient,omitempty"`
		OnPreempted       string             `json:"on_preempted,omitempty"`
		OnFailure         string             `json:"on_failure,omitempty"`
		MaxAttempts       int                `json:"max_attempts,omitempty"`
		QueueTimeout      float64            `json:"queue_timeout,omitempty"`
		RetryBackoff      float64            `json:"retry_backoff,omitempty"`
		UsePlacementGroup bool               `json:"use_placement_group,omitempty"`
		PreemptForQuota   *bool              `json:"preempt_for_quota,omitempty"`
		RuntimeEnv        json.RawMessage    `json:"runtime_env,omitempty"`
		RayOptions        json.RawMessage    `json:"ray_options,omitempty"`
		Payload           json.RawMessage    `json:"payload,omitempty"`
	}{
		TaskID: t.TaskID, Pool: t.Pool, ActorClass: t.Spec.ActorClass, PickledName: t.Spec.PickledName, Args: t.Spec.Args, Kwargs: t.Spec.Kwargs,
		Resources: t.Request.Units(), Priority: t.Priority, Labels: t.Labels, AgentName: t.AgentName,
		EstimatedDuration: t.Estimate.Seconds(), MaxRuntime: t.MaxRuntime.Seconds(), RuntimeEnv: t.Spec.RuntimeEnv, RayOptions: t.Spec.RayOptions,
		Payload: t.Spec.Payload, UsePlacementGroup: t.Spec.UsePlacementGroup,
	}
	if t.Spec.UsePlacementGroup && t.Spec.KeepQuota {
		doc.PreemptForQuota = new(bool)
	}
	if t.Kind == ledger.KindTask {
		doc.OnInsufficient, doc.OnPreempted, doc.OnFailure, doc.MaxAttempts = t.OnInsufficient, t.OnPreempted, t.OnFailure, t.MaxAttempts
	}
	if t.Kind == ledger.KindTask {
		doc.QueueTimeout = t.QueueTimeout.Seconds()
		if t.OnFailure == ledger.Requeue {
			doc.RetryBackoff = t.RetryBackoff.Seconds()
		}
	}
	if e := t.Spec.Entry; e != nil {
		doc.Entry = &entry{e.Method, e.Args, e.Kwargs}
	}
	b, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return "it cannot be written as JSON: " + err.Error()
	}
	return string(b)
}

// indented writes a JSON document for reading.
func indented(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	var b bytes.Buffer
	if json.Indent(&b, raw, "", "  ") != nil {
		return string(raw)
	}
	return b.String()
}

// again is the form that submits the same once more; nil for what no form can say.
func again(t ledger.TaskReport) *web.SubmitForm {
	if t.Kind != ledger.KindTask || t.Pickled || t.Spec.ActorClass == "" {
		return nil
	}
	f := web.NewSubmitForm()
	var p web.PoolForm
	p.SetResources(resources(t.Request))
	f.TaskID, f.Pool, f.ActorClass = t.TaskID, t.Pool, t.Spec.ActorClass
	f.Args, f.Kwargs = string(t.Spec.Args), string(t.Spec.Kwargs)
	if e := t.Spec.Entry; e != nil {
		f.EntryMethod, f.EntryArgs, f.EntryKwargs = e.Method, string(e.Args), string(e.Kwargs)
	}
	f.CPU, f.GPU, f.Memory, f.OtherResources = p.CPU, p.GPU, p.Memory, p.OtherResources
	f.Priority, f.Labels = t.Priority.String(), web.TypedLabels(web.LabelsOf(t.Labels))
	f.Estimate, f.MaxRuntime = web.TypedLength(t.Estimate), web.TypedLength(t.MaxRuntime)
	f.OnInsufficient, f.OnPreempted, f.OnFailure = t.OnInsufficient, t.OnPreempted, t.OnFailure
	if t.MaxAttempts > 1 {
		f.MaxAttempts = fmt.Sprint(t.MaxAttempts)
	}
	f.RuntimeEnv, f.QueueTimeout = string(t.Spec.RuntimeEnv), web.TypedLength(t.QueueTimeout)
	if t.Spec.UsePlacementGroup {
		if f.PlacementGroup = "yes"; t.Spec.KeepQuota {
			f.PlacementGroup = "quota"
		}
	}
	if t.RetryBackoff != time.Second {
		f.RetryBackoff = web.TypedLength(t.RetryBackoff)
	}
	return &f
}

// TaskLog reads a piece of what a task printed. Earlier tasks of the same id have none
// here: logs are found by id.
func (v *View) TaskLog(ctx context.Context, ns, id, stream string, offset int64, limit int) (web.LogChunk, error) {
	t, err := v.l.TaskReport(ctx, ns, id)
	if err != nil {
		return web.LogChunk{}, v.refused(ctx, err)
	}
	if v.logs == nil || !t.Latest || t.Kind == ledger.KindRegistered && !t.Managed {
		return web.LogChunk{EOF: true, Ended: true}, nil
	}
	from := offset
	if offset < 0 {
		from = -int64(limit)
	}
	text, next, ended, err := v.logs.Logs(ctx, ns, t.TaskID, stream, from, int64(limit))
	if errors.Is(err, ledger.ErrUnknownTask) {
		err = nil
	}
	if err != nil {
		return web.LogChunk{}, v.refused(ctx, err)
	}
	c := web.LogChunk{Text: text, Offset: max(offset, 0), Next: next, Ended: ended || !t.State.Live()}
	if offset < 0 {
		c.Offset = max(0, next-int64(len(text)))
	}
	// A piece may be cut a few bytes short of the limit, at a character's edge.
	c.EOF = ended || next-c.Offset < int64(limit)-3
	if c.EOF {
		c.Size = next
	}
	return c, nil
}

// TaskState is what a task last saved.
func (v *View) TaskState(ctx context.Context, ns, id string) (web.SavedState, error) {
	t, err := v.l.TaskReport(ctx, ns, id)
	if err != nil || len(t.SavedState) == 0 {
		return web.SavedState{}, v.refused(ctx, err)
	}
	out := web.SavedState{JSON: indented(t.SavedState)}
	for _, h := range t.Handovers { // latest first
		if h.VictimUID == t.UID && h.StateSize > 0 {
			out.At, out.Attempt, out.Problem = h.SavedAt, h.VictimAttempt, h.SaveError
			out.Default = h.SaveError != ""
			break
		}
	}
	return out, nil
}

// Classes are import paths to suggest.
func (v *View) Classes(ctx context.Context, ns string) ([]string, error) {
	out, err := v.l.Classes(ctx, ns)
	return out, v.refused(ctx, err)
}
