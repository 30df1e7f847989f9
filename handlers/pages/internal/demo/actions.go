package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/web"
)

// note keeps what was asked for, for tests to look at.
func (w *World) note(format string, args ...any) error {
	w.Done = append(w.Done, fmt.Sprintf(format, args...))
	return w.Refuse
}

func (w *World) SubmitTask(_ context.Context, ns string, t web.NewTask) (string, error) {
	defer w.lock()()
	if err := w.note("submit %s in %s of %s: %s, priority %v, labels %v, entry %s, estimate %s", t.TaskID, t.Pool, ns, t.Request, t.Priority, t.Labels, t.EntryMethod, t.Estimate); err != nil {
		return "", err
	}
	if !slices.Contains(w.poolNames(), t.Pool) {
		return "", &pages.Refusal{ErrorCode: "unknown_pool", Message: "no such pool", ByField: map[string]string{"pool": "There is no pool " + t.Pool + "."}}
	}
	if old := w.find(t.TaskID); old != nil && old.State.Live() {
		return "", &pages.Refusal{ErrorCode: "task_exists", Message: fmt.Sprintf("A live task is called %q already, with other content. Choose another id, or cancel that one.", t.TaskID)}
	}
	n := row(t.TaskID, web.Queued, t.Pool, t.Priority, "", t.Request, w.now)
	n.Labels, n.Class, n.Entry, n.Position = web.LabelsOf(t.Labels), t.ActorClass, t.EntryMethod, 1
	n.Timeline = []web.Step{{At: w.now, Title: web.Line{web.Strong("Queued")}, Took: -1}}
	w.tasks = append([]web.Task{n}, w.tasks...)
	w.tell(pages.Tasks)
	return t.TaskID, nil
}

func (w *World) end(verb, id string, to web.State) error {
	defer w.lock()()
	if err := w.note("%s %s", verb, id); err != nil {
		return err
	}
	t := w.find(id)
	if t == nil {
		return missing("task", id)
	}
	if !t.State.Live() {
		return &pages.Refusal{ErrorCode: "wrong_state", Message: fmt.Sprintf("%s is %s already.", id, t.State)}
	}
	t.State, t.Since = to, w.now
	w.tell(pages.Tasks)
	return nil
}

func (w *World) CompleteTask(_ context.Context, _, id string) error {
	return w.end("complete", id, web.Completed)
}

func (w *World) CancelTask(_ context.Context, _, id string) error {
	return w.end("cancel", id, web.Cancelled)
}

func (w *World) PreemptTask(_ context.Context, _, id string) error {
	return w.end("preempt", id, web.Preempting)
}

func (w *World) SetPriority(_ context.Context, _, id string, priority float64) error {
	defer w.lock()()
	if err := w.note("priority %s %v", id, priority); err != nil {
		return err
	}
	t := w.find(id)
	if t == nil {
		return missing("task", id)
	}
	t.Priority = priority
	w.tell(pages.Tasks)
	return nil
}

func (w *World) CreatePool(_ context.Context, ns string, p web.PoolSpec) error {
	defer w.lock()()
	if err := w.note("create pool %s of %s on %s: %s", p.Name, ns, p.Cluster, p.Capacity); err != nil {
		return err
	}
	if slices.Contains(w.poolNames(), p.Name) {
		return &pages.Refusal{ErrorCode: "pool_exists", Message: "exists", ByField: map[string]string{"name": "A pool is called that already. Edit it, or choose another name."}}
	}
	n := web.PoolPage{Pool: web.Pool{Name: p.Name, Cluster: p.Cluster, Labels: web.LabelsOf(p.Labels)}, Created: w.now, Settings: web.NewPoolForm()}
	n.Settings.Name = p.Name
	n.Settings.SetResources(p.Capacity)
	for _, r := range p.Capacity.Names() {
		n.Quota = append(n.Quota, web.Quota{Resource: r, Capacity: p.Capacity[r]})
	}
	w.pools = append(w.pools, n)
	w.tell(pages.Pools)
	return nil
}

func (w *World) UpdatePool(_ context.Context, _, name string, p web.PoolSpec) error {
	defer w.lock()()
	return w.note("update pool %s: %s", name, p.Capacity)
}

func (w *World) DeletePool(_ context.Context, _, name string) error {
	defer w.lock()()
	if err := w.note("delete pool %s", name); err != nil {
		return err
	}
	for _, t := range w.tasks {
		if t.Pool == name && t.State.Live() {
			return &pages.Refusal{ErrorCode: "pool_in_use", Message: fmt.Sprintf("%s still has live tasks, such as %s. Cancel them first.", name, t.ID)}
		}
	}
	w.pools = slices.DeleteFunc(w.pools, func(p web.PoolPage) bool { return p.Name == name })
	w.tell(pages.Pools)
	return nil
}

func (w *World) CheckPolicy(_ context.Context, _ string, d web.PolicyDoc) ([]string, error) {
	defer w.lock()()
	var odd []string
	for _, name := range d.ProtectedPools {
		if !slices.Contains(w.poolNames(), name) {
			odd = append(odd, fmt.Sprintf("Nobody has a pool called %q; it is protected in vain.", name))
		}
	}
	return odd, nil
}

func (w *World) SavePolicy(_ context.Context, _ string, d web.PolicyDoc, base int, author, comment string) (int, error) {
	defer w.lock()()
	if err := w.note("save policy on %d by %s: %s", base, author, comment); err != nil {
		return 0, err
	}
	last := w.policies[len(w.policies)-1]
	if base != last.Version {
		return 0, &pages.Refusal{ErrorCode: "version_conflict", Message: "somebody was faster"}
	}
	w.publish(d, author, comment)
	return last.Version + 1, nil
}

func (w *World) publish(d web.PolicyDoc, author, comment string) {
	last := &w.policies[len(w.policies)-1]
	last.Active = false
	w.policies = append(w.policies, web.Policy{Version: last.Version + 1, Author: author, At: w.now, Comment: comment, Doc: d, Active: true})
	w.tell(pages.Policy)
}

func (w *World) Rollback(_ context.Context, _ string, to, base int, author, comment string) (int, error) {
	defer w.lock()()
	if err := w.note("rollback to %d on %d by %s", to, base, author); err != nil {
		return 0, err
	}
	if base != 0 && base != len(w.policies) {
		return 0, &pages.Refusal{ErrorCode: "version_conflict", Message: "somebody was faster"}
	}
	if to > len(w.policies) {
		return 0, missing("policy_version", fmt.Sprint(to))
	}
	w.publish(w.policies[to-1].Doc, author, comment)
	return len(w.policies), nil
}

func (w *World) DeleteAgent(_ context.Context, _, name string, force bool) error {
	defer w.lock()()
	if err := w.note("delete agent %s force %v", name, force); err != nil {
		return err
	}
	w.agents = slices.DeleteFunc(w.agents, func(a web.Agent) bool { return a.Name == name })
	w.tell(pages.Agents)
	return nil
}

// Subscribe hears what Tell says.
func (w *World) Subscribe(ctx context.Context, _ string) <-chan pages.Topic {
	defer w.lock()()
	c := make(chan pages.Topic, 16)
	w.heard = append(w.heard, c)
	context.AfterFunc(ctx, func() {
		defer w.lock()()
		if i := slices.Index(w.heard, c); i >= 0 {
			w.heard = slices.Delete(w.heard, i, i+1)
			close(c)
		}
	})
	return c
}

// Tell says that something of a topic changed.
func (w *World) Tell(t pages.Topic) {
	defer w.lock()()
	w.tell(t)
}

func (w *World) tell(t pages.Topic) {
	for _, c := range w.heard {
		select {
		case c <- t:
		default:
		}
	}
}

// Listeners is how many live streams are open.
func (w *World) Listeners() int {
	defer w.lock()()
	return len(w.heard)
}

// Nasty adds tasks and pools with names that try to break a page.
func (w *World) Nasty() *World {
	defer w.lock()()
	long := strings.Repeat("very-long-name-without-any-break", 8)
	for _, id := range []string{
		long, `<script>alert("x")</script>`, `quote"s'and&amps`, "مهمة-تدريب-النموذج", "训练任务-🚀-第十二号", "slash/and ?query#hash%2F", "\u202eright-to-left-override", strings.Repeat("🦙", 60),
	} {
		t := row(id, web.Running, "train-a100", 5, "", gpu(1, 1, 1), w.now)
		t.Labels = []web.Label{{Key: `key "quoted"`, Value: long}, {Key: "🏷", Value: "значение"}, {Key: "تصنيف", Value: "قيمة"}}
		t.Owner, t.Class, t.Node, t.Reason = long, long+":"+long, long, long
		t.Spec = strings.Repeat("x", 10<<20)
		t.Result = `{"blob": "` + strings.Repeat("y", 1<<20) + `"}`
		t.Why = &web.Note{Kind: "warn", Title: web.Say(long), Text: web.Line{web.TaskRef(long), web.Text(strings.Repeat("z", 1<<20))}}
		t.Timeline = []web.Step{{At: w.now, Title: web.Line{web.Strong(long)}, Detail: web.Say(long), Took: -1}}
		w.tasks = append([]web.Task{t}, w.tasks...)
		w.nastyMesh(id, long)
	}
	p := web.PoolPage{Pool: web.Pool{Name: long, Cluster: long, Labels: []web.Label{{Key: long, Value: long}}, Quota: []web.Quota{
		{Resource: "custom_resource_with_a_long_name", Capacity: 1000, Used: 5000}, {Resource: "cpu", Capacity: 1 << 50, Used: 1 << 49, Lent: 1 << 48},
	}}, Created: w.now}
	for i := range w.pools {
		if w.pools[i].Name == "train-a100" {
			w.pools[i].Groups = web.Groups{Enabled: true, Items: []web.Group{{Name: long, Tier: "dynamic", State: "failed", Reason: long, Strategy: long, Nodes: []string{long, long},
				Bundles: 3, Size: web.Resources{long: 1 << 50}, Sitters: []web.Sitter{{Task: `<script>alert("x")</script>`}, {Agent: long}}}}}
		}
	}
	w.pools = append([]web.PoolPage{p}, w.pools...)
	return w
}
