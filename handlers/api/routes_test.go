package api

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/sched/replay"
)

func ptr[T any](v T) *T { return &v }

// TestRoutes sends one good request to every route: what is the ledger asked, and what is answered?
func TestRoutes(t *testing.T) {
	pool := ledger.Pool{Namespace: "default", Name: "gpu", Cluster: "local", TargetAgents: 2, CreatedAt: noon, Balances: []ledger.Balance{
		{Resource: "cpu", Capacity: 8000, Reserved: 500, Used: 1000, Borrowed: 250, Lent: 1000}, {Resource: "memory", Capacity: 4096, Used: 4096},
	}, Loans: []ledger.Loan{{Lender: "gpu", Borrower: "b", Resource: "cpu", Amount: 1000}}, MaxRuntime: time.Hour,
		Groups: &ledger.GroupTotals{Enabled: true, Total: 3, Available: 1, Allocated: 2, Reserves: sched.Resources{CPU: 5000}, Unused: sched.Resources{CPU: 2000}},
		Hold:   ledger.Hold{State: ledger.Draining, Reason: "disks", Actor: "ann", Since: noon, Deadline: noon}}
	preemption := ledger.Preemption{ID: 7, VictimTask: "low", AgentName: "a1", Pool: "gpu", Priority: 1000, Reason: "manual", Score: 1_250_000, Phase: "gone",
		CancelSuccess: ptr(false), CancelError: "timed out", SavedState: json.RawMessage(`{"step":9}`), DecidedAt: noon}
	candidate := sched.Candidate{TaskName: "low", AgentName: "a1", Pool: "gpu", Priority: 1000, Remaining: 1500, Reason: sched.ByLabel, Delta: -500,
		Base: 500, Score: 650_000, LabelKey: "tier", LabelBy: "premium", LabelOver: "batch"}
	tests := map[string]struct {
		method, target, body string
		headers              []string
		call, ns             string
		args                 []any
		status               int
		has                  map[string]any
	}{
		"create pool": {
			"POST", "/api/v1/pools", `{"name":"gpu","labels":{"tier":"a"},"resources":{"cpu":8,"memory":4096.5},"target_agents":2,"placement_strategy":null,"pg_pool_config":{"enable":true}}`, nil,
			"CreatePool", "default", []any{ledger.PoolSpec{Name: "gpu", Labels: &sched.Labels{"tier": "a"}, Capacity: &sched.Resources{CPU: 8000, Memory: 4097},
				TargetAgents: ptr(2), PGPoolConfig: ptr(json.RawMessage(`{"enable":true}`)), Actor: "api"}}, 201,
			map[string]any{"name": "gpu", "resources.cpu": 8.0, "available.cpu": 5.75, "balances.free": 5.75, "balances.unit": "cores", "loans.amount": 1.0, "links.self": "/api/v1/pools/gpu", "pg_pool_config": nil,
				"placement_groups.allocated_pgs": 2.0, "placement_groups.reserves.cpu": 5.0, "placement_groups.unused.cpu": 2.0},
		},
		"placement groups": {
			"GET", "/api/v1/pools/gp%2Fu/placement-groups?ended=true", "", nil, "PoolGroups", "default", []any{"gp/u", true}, 200,
			map[string]any{"enabled": true, "total_pgs": 3.0, "high_priority_pgs": 2.0, "dynamic_pgs": 1.0, "available_pgs": 1.0, "allocated_pgs": 2.0, "total_reuse_count": 7.0, "created": 4.0,
				"removed": 1.0, "waits": 2.0, "tiers.reserved.high_priority_pgs": 2.0, "tiers.reserved.waits": 0.0, "tiers.dynamic.dynamic_pgs": 1.0, "tiers.dynamic.total_reuse_count": 2.0,
				"reserves.cpu": 5.0, "unused.cpu": 2.0, "config.max_dynamic_pgs": 2.0, "config.high_priority_pg_specs.bundles.cpu": 2.0, "config.creation_timeout": 30.0,
				"items.tier": "reserved", "items.resources.memory": 4096.0, "items.occupants.task_id": "reward-00", "items.occupants.agent_name": "a1", "items.reuse_count": 5.0,
				"items.idle_since": nil, "items.nodes": []any{"n1", "n1"}},
		},
		"placement groups of now": {"GET", "/api/v1/pools/gpu/placement-groups?namespace=n", "", nil, "PoolGroups", "n", []any{"gpu", false}, 200, nil},
		"list pools":              {"GET", "/api/v1/pools?namespace=team%2Fa", "", nil, "Pools", "team/a", nil, 200, map[string]any{"items.name": "gpu", "next_cursor": nil}},
		"read pool":               {"GET", "/api/v1/pools/gp%2Fu", "", nil, "Pool", "default", []any{"gp/u"}, 200, map[string]any{"created_at": "2026-03-01T12:00:00.250Z"}},
		"change pool":             {"PATCH", "/api/v1/pools/gpu", `{"resources":{}}`, nil, "UpdatePool", "default", []any{ledger.PoolSpec{Name: "gpu", Capacity: &sched.Resources{}, Actor: "api"}}, 200, nil},
		"bound pool": {"PATCH", "/api/v1/pools/gpu", `{"max_runtime":90.5}`, nil, "UpdatePool", "default", []any{ledger.PoolSpec{Name: "gpu", MaxRuntime: ptr(90500 * time.Millisecond), Actor: "api"}}, 200,
			map[string]any{"max_runtime": 3600.0, "hold.state": "draining", "hold.by": "ann", "hold.deadline": "2026-03-01T12:00:00.250Z"}},
		"hold pool": {"POST", "/api/v1/pools/gp%2Fu/hold", `{"reason":"disks"}`, nil, "HoldPool", "default", []any{"gp/u", ledger.HoldRequest{State: "held", Reason: "disks", Actor: "api"}}, 200,
			map[string]any{"name": "gpu"}},
		"hold pool without a word": {"POST", "/api/v1/pools/gpu/hold", "", nil, "HoldPool", "default", []any{"gpu", ledger.HoldRequest{State: "held", Actor: "api"}}, 200, nil},
		"drain pool": {"POST", "/api/v1/pools/gpu/drain", `{"reason":"disks","deadline":1.5}`, nil, "HoldPool", "default",
			[]any{"gpu", ledger.HoldRequest{State: "draining", Reason: "disks", Deadline: ptr(1500 * time.Millisecond), Actor: "api"}}, 200, nil},
		"drain pool for ever": {"POST", "/api/v1/pools/gpu/drain", "", nil, "HoldPool", "default", []any{"gpu", ledger.HoldRequest{State: "draining", Actor: "api"}}, 200, nil},
		"resume pool":         {"POST", "/api/v1/pools/gpu/resume", "", nil, "HoldPool", "default", []any{"gpu", ledger.HoldRequest{Actor: "api"}}, 200, nil},
		"list nodes": {"GET", "/api/v1/nodes", "", nil, "Nodes", "", nil, 200,
			map[string]any{"items.node_id": "n1", "items.cluster": "local", "items.total.cpu": 8.0, "items.free.cpu": 2.0, "items.agents": 3.0, "items.known": true, "items.hold.state": "held"}},
		"hold node":   {"POST", "/api/v1/nodes/n1/hold", `{"reason":"fan"}`, nil, "HoldNode", "", []any{sched.NodeID("n1"), ledger.HoldRequest{State: "held", Reason: "fan", Actor: "api"}}, 200, nil},
		"drain node":  {"POST", "/api/v1/nodes/n1/drain", `{"deadline":0}`, nil, "HoldNode", "", []any{sched.NodeID("n1"), ledger.HoldRequest{State: "draining", Deadline: ptr(time.Duration(0)), Actor: "api"}}, 200, nil},
		"resume node": {"POST", "/api/v1/nodes/n1/resume", "", nil, "HoldNode", "", []any{sched.NodeID("n1"), ledger.HoldRequest{Actor: "api"}}, 200, nil},
		"delete pool": {"DELETE", "/api/v1/pools/gpu", "", nil, "DeletePool", "default", []any{"gpu", "api"}, 204, nil},

		"list tasks": {"GET", "/api/v1/tasks?state=running,queued&live=true&pool=gpu&q=tr&label=tier%3Da&label=x=y=z&limit=7&cursor=abc", "", nil, "Tasks", "default",
			[]any{ledger.TaskFilter{States: []ledger.State{"running", "queued"}, Live: true, Pool: "gpu", Text: "tr", Labels: sched.Labels{"tier": "a", "x": "y=z"}, Limit: 7, Cursor: "abc"}}, 200,
			map[string]any{"items.task_id": "train/1 ü", "items.saved_state": nil, "items.payload": nil, "items.priority": 7.5, "next_cursor": "next"}},
		"read task": {"GET", "/api/v1/tasks/train%2F1%20%C3%BC", "", nil, "Task", "default", []any{"train/1 ü"}, 200,
			map[string]any{"uid": "01020304-0506-0708-090a-0b0c0d0e0f10", "task_id": "train/1 ü", "resources.cpu": 1.5, "resources.tpu": 0.25, "agent.pid": 42.0, "agent.node_id": "node-1",
				"estimated_duration": 90.0, "max_runtime": nil, "started_at": "2026-03-01T12:00:01.250Z", "ended_at": nil, "saved_state.step": 3.0, "entry.method": "run", "queue_position": nil,
				"links.self": "/api/v1/tasks/train%2F1%20%C3%BC", "links.page": "/tasks/train%2F1%20%C3%BC", "preempted_by": []any{"09000000-0000-0000-0000-000000000000"}}},
		"change task": {"PATCH", "/api/v1/tasks/t", `{"priority":8.25,"labels":{},"estimated_duration":1.5}`, nil, "Patch", "default",
			[]any{"t", ledger.TaskPatch{Priority: ptr(sched.Milli(8250)), Labels: &sched.Labels{}, Estimate: ptr(1500 * time.Millisecond), Actor: "api"}}, 200, nil},
		"cancel task":   {"DELETE", "/api/v1/tasks/t", "", nil, "Cancel", "default", []any{"t", "api"}, 200, map[string]any{"task_id": "train/1 ü"}},
		"complete task": {"POST", "/api/v1/tasks/t/complete", "", nil, "Complete", "default", []any{"t", "api"}, 200, nil},
		"restore task":  {"POST", "/api/v1/tasks/t/restore", "", nil, "Restore", "default", []any{"t", "api"}, 200, nil},
		"preempt task": {"POST", "/api/v1/tasks/t/preempt", "", nil, "Preempt", "default", []any{ledger.PreemptRequest{TaskID: "t", Actor: "api"}}, 200,
			map[string]any{"success": true, "cancel_success": false, "saved_state.step": 9.0, "error": "timed out", "task_id": "low", "agent_name": "a1", "preemption_id": 7.0}},
		"register task": {"PUT", "/api/v1/tasks/t.1/register", `{"agent_name":"a","pool":"p","labels":{"k":"v"},"estimated_duration":60,"payload":{"n":1}}`, nil, "Register", "default",
			[]any{ledger.Registration{TaskID: "t.1", AgentName: "a", Pool: "p", Priority: 5000, Labels: sched.Labels{"k": "v"}, Estimate: time.Minute, Payload: json.RawMessage(`{"n":1}`), Actor: "api"}}, 200, nil},
		"task named like a route": {"GET", "/api/v1/tasks/events", "", nil, "Task", "default", []any{"events"}, 200, nil},
		"task events":             {"GET", "/api/v1/tasks/t/events", "", nil, "TaskEvents", "default", []any{"t"}, 200, map[string]any{"items.id": 5.0, "items.type": "running", "items.detail.a": 1.0}},
		"task logs": {"GET", "/api/v1/tasks/t/logs?stream=stderr&offset=-10&limit=100", "", nil, "Logs", "default", []any{"t", "stderr", int64(-10), int64(100)}, 200,
			map[string]any{"text": "step 1\n", "next_offset": -3.0, "ended": true, "stream": "stderr"}},

		"evaluate": {"POST", "/api/v1/preemption/evaluate", `{"pool":"p","priority":8,"labels":{"tier":"premium"}}`, nil, "Evaluate", "default",
			[]any{ledger.Evaluation{Pool: "p", Priority: 8000, Labels: sched.Labels{"tier": "premium"}, Limit: 100}}, 200,
			map[string]any{"should_preempt": true, "candidates.task_id": "low", "candidates.agent_name": "a1", "candidates.pool_name": "gpu", "candidates.priority": 1.0, "candidates.preempt_score": 0.65,
				"candidates.reason": "label_based_preemption", "candidates.remaining_time": 1.5, "candidates.label.over": "batch", "policy_version": 3.0}},
		"evaluate with resources": {"POST", "/api/v1/preemption/evaluate", `{"pool":"p","resources":{"gpu":1},"limit":5}`, nil, "Evaluate", "default",
			[]any{ledger.Evaluation{Pool: "p", Priority: 5000, Request: &sched.Resources{GPU: 1000}, Limit: 5}}, 200,
			map[string]any{"decision.outcome": "preempt", "decision.victims.gives.gpu": 2.0, "decision.victims.tasks.task_id": "low", "decision.deficit.gpu": 0.5, "decision.refusal": nil}},
		"execute": {"POST", "/api/v1/preemption/execute", `{"task_id":"low","agent_name":"a1"}`, nil, "Preempt", "default",
			[]any{ledger.PreemptRequest{TaskID: "low", AgentName: "a1", Actor: "api"}}, 200, map[string]any{"success": true, "saved_state.step": 9.0}},
		"execute what was evaluated": {"POST", "/api/v1/preemption/execute", `{"task_id":"low","reason":"label_based_preemption"}`, nil, "Preempt", "default",
			[]any{ledger.PreemptRequest{TaskID: "low", Reason: "label_based_preemption", Actor: "api"}}, 200, map[string]any{"success": true}},
		"list preemptions": {"GET", "/api/v1/preemptions?limit=3&cursor=x", "", nil, "Preemptions", "default", []any{3, "x"}, 200,
			map[string]any{"items.id": 7.0, "items.task_id": "low", "items.preempt_score": 1.25, "items.cancel_success": false, "next_cursor": "p2", "items.gone_at": nil}},
		"read preemption": {"GET", "/api/v1/preemptions/7", "", nil, "Preemption", "default", []any{int64(7)}, 200, map[string]any{"reason": "manual"}},
		"preemption stats": {"GET", "/api/v1/preemptions/stats", "", nil, "Stats", "default", nil, 200,
			map[string]any{"total_preemptions": 10.0, "same_pool_preemptions": 5.0, "cross_pool_preemptions": 2.0, "label_preemptions": 3.0, "failed_cancels": 1.0, "running_tasks": 4.0,
				"recent_preemptions.timestamp": 1772366400.25, "recent_preemptions.task_id": "low", "recent_preemptions.pool_name": "gpu", "recent_preemptions.priority": 1.0}},

		"read policy": {"GET", "/api/v1/policy", "", nil, "Policy", "default", nil, 200, map[string]any{"version": 3.0, "policy.same_pool_priority_threshold": 1.0, "policy.protected_pools": []any{}, "warnings": []any{}}},
		"replace policy": {"PUT", "/api/v1/policy", `{"policy":{"min_preempt_score":2},"comment":"why\nnot","author":"ann"}`, []string{"If-Match", `"3"`}, "PutPolicy", "default",
			[]any{ledger.PolicyChange{Policy: policyWith(func(p *sched.Policy) { p.MinPreemptScore = 2000 }), Base: 3, Author: "ann", Comment: "why\nnot"}}, 200, nil},
		"change policy": {"PATCH", "/api/v1/policy", `{"policy":{"preemption_aggressiveness":"prod"}}`, []string{"If-Match", `W/"12"`}, "PutPolicy", "default",
			[]any{ledger.PolicyChange{Patch: json.RawMessage(`{"preemption_aggressiveness":"prod"}`), Base: 12, Author: "api"}}, 200, nil},
		"unknown aggressiveness is a warning": {"PATCH", "/api/v1/policy", `{"policy":{"preemption_aggressiveness":"fierce"}}`, nil, "PutPolicy", "default", nil, 200,
			map[string]any{"warnings": []any{`preemption_aggressiveness "fierce" is none of high, medium, low or their aliases: no threshold was changed`}}},
		"policy versions": {"GET", "/api/v1/policy/versions?limit=2", "", nil, "PolicyVersions", "default", []any{2}, 200, map[string]any{"items.author": "ann"}},
		"policy version": {"GET", "/api/v1/policy/versions/2", "", nil, "PolicyVersion", "default", []any{1}, 200,
			map[string]any{"against": 1.0, "changes.field": "min_preempt_score", "changes.old": "2.5", "changes.new": "0.5"}},
		"policy version against another": {"GET", "/api/v1/policy/versions/9?against=3", "", nil, "PolicyVersion", "default", []any{3}, 200, map[string]any{"against": 3.0, "changes": []any{}}},
		"first policy version":           {"GET", "/api/v1/policy/versions/1", "", nil, "PolicyVersion", "default", []any{1}, 200, map[string]any{"against": 0.0, "changes": []any{}}},
		"roll back":                      {"POST", "/api/v1/policy/versions/2/rollback", `{"comment":"c"}`, []string{"If-Match", "*"}, "Rollback", "default", []any{2, 0, "api", "c"}, 200, nil},
		"roll back without a body":       {"POST", "/api/v1/policy/versions/2/rollback", "", nil, "Rollback", "default", []any{2, 0, "api", ""}, 200, nil},
		"what if": {"POST", "/api/v1/policy/what-if", `{"task":{"task_id":"t","pool":"gpu","priority":8,"labels":{"a":"b"},"resources":{"gpu":0.5}},"policy":{"min_preempt_score":2},"limit":7}`, nil, "WhatIf", "default",
			[]any{ledger.WhatIf{Limit: 7, Draft: json.RawMessage(`{"min_preempt_score":2}`), Task: &ledger.Supposed{TaskID: "t", Pool: "gpu", Priority: ptr(sched.Milli(8000)),
				Labels: &sched.Labels{"a": "b"}, Request: &sched.Resources{GPU: 500}}}}, 200,
			map[string]any{"policy_version": 3.0, "changes.field": "min_preempt_score", "task.pool": "gpu", "task.labels": map[string]any{}, "active.decision.outcome": "preempt", "active.safe.too_fresh": 2.0,
				"active.tasks.task_id": "low", "active.tasks.taken": true, "active.tasks.message": "it makes way"}},
		"what if the policy": {"POST", "/api/v1/policy/what-if?namespace=empty", `{"policy":{}}`, nil, "WhatIf", "empty",
			[]any{ledger.WhatIf{Draft: json.RawMessage(`{}`)}}, 200,
			map[string]any{"queue.waiting": 2.0, "queue.items.changed": true, "queue.items.draft.outcome": "admit", "running.items.change": "takeable", "running.protected": 1.0}},
		"backtest": {"POST", "/api/v1/policy/backtest?namespace=n", `{"policy":{"min_preempt_score":2},"last":60,"limit":3}`, nil, "Backtest", "n",
			[]any{ledger.BacktestRequest{Draft: json.RawMessage(`{"min_preempt_score":2}`), Last: time.Minute, Limit: 3}}, 200,
			map[string]any{"policy_version": 3.0, "tasks": 7.0, "left_out.never_ran": 2.0, "changes.field": "min_preempt_score", "active.preemptions.total": 5.0, "draft.waits.p99_seconds": 2.5,
				"difference.preemptions.total": -3.0, "difference.waits.p99_seconds": 1.5, "difference.waits.from": nil, "difference.waits.below": 5.0, "difference.refused": 4.0,
				"different": 9.0, "differences.task_id": "v", "differences.active.by": "high", "differences.draft.times": 0.0}},
		"backtest a time": {"POST", "/api/v1/policy/backtest", `{"policy":{},"from":"2026-03-01T12:00:00Z","to":"2026-03-02T12:00:00Z"}`, nil, "Backtest", "default",
			[]any{ledger.BacktestRequest{Draft: json.RawMessage(`{}`), From: noon.Truncate(time.Second), To: noon.Truncate(time.Second).Add(24 * time.Hour)}}, 200, nil},
		"validate a good policy": {"POST", "/api/v1/policy/validate", `{"policy":{"protected_pools":["nowhere"]}}`, nil, "Pools", "default", nil, 200,
			map[string]any{"valid": true, "errors": []any{}, "warnings": []any{`protected_pools: there is no pool "nowhere"`}, "policy.cancel_timeout": 5.0}},
		"validate a bad policy": {"POST", "/api/v1/policy/validate", `{"policy":{"min_preempt_score":-1}}`, nil, "", "", nil, 200,
			map[string]any{"valid": false, "errors.field": "policy.min_preempt_score", "errors.location": "body.policy.min_preempt_score"}},

		"create agent": {"POST", "/api/v1/agents", `{"name":"a1","pool":"gpu","resources":{"gpu":0.5},"pickled":"gASV","pickled_name":"W","methods":[{"name":"run"}],"launch_timeout":9}`, nil, "CreateAgent", "default",
			[]any{ledger.AgentSubmission{Name: "a1", Pool: "gpu", Request: sched.Resources{GPU: 500}, LaunchTimeout: 9 * time.Second, Actor: "api",
				Spec: ledger.Spec{Pickled: []byte{0x80, 4, 0x95}, PickledName: "W", Methods: json.RawMessage(`[{"name":"run"}]`)}}}, 201,
			map[string]any{"name": "a1", "state": "launching", "task_ids": []any{}, "metrics": nil}},
		"create agent and wait":    {"POST", "/api/v1/agents?wait=5", `{"name":"a1","pool":"gpu"}`, nil, "WaitAgent", "default", nil, 201, nil},
		"list agents":              {"GET", "/api/v1/agents?limit=9", "", nil, "Agents", "default", []any{9, ""}, 200, map[string]any{"items": []any{}}},
		"read agent":               {"GET", "/api/v1/agents/a%201", "", nil, "Agent", "default", []any{"a 1"}, 200, map[string]any{"name": "a1"}},
		"agent named like a route": {"GET", "/api/v1/agents/ensure-health", "", nil, "Agent", "default", []any{"ensure-health"}, 200, nil},
		"delete agent":             {"DELETE", "/api/v1/agents/a1?force=true&destroy_pg=true", "", nil, "DeleteAgent", "default", []any{"a1", true, true, "api"}, 204, nil},
		"server": {"GET", "/api/v1/server", "", nil, "", "", nil, 200,
			map[string]any{"version": "1.2.3", "deployment": "d", "ray_address": "10.0.0.4:6379", "ray_version": "2.60.0", "python_version": "3.11.7", "url": "http://127.0.0.1:1"}},
		"put state handlers": {"PUT", "/api/v1/pools/gp%2Fu/state-handlers", `{"preserver":"gASV","preserver_name":"keep","restorer":null}`, nil, "PutStateHandlers", "default",
			[]any{ledger.StateHandlers{Pool: "gp/u", Preserver: &ledger.Handler{Name: "keep", Pickled: []byte{0x80, 4, 0x95}}}, "api"}, 200,
			map[string]any{"pool": "gp/u", "preserver_name": "keep", "restorer_name": "", "updated_at": "2026-03-01T12:00:00.250Z"}},
		"read state handlers":   {"GET", "/api/v1/pools/gpu/state-handlers?namespace=ns", "", nil, "StateHandlers", "ns", []any{"gpu"}, 200, map[string]any{"preserver_name": "keep"}},
		"delete state handlers": {"DELETE", "/api/v1/pools/gpu/state-handlers", "", nil, "DeleteStateHandlers", "default", []any{"gpu", "api"}, 204, nil},
		"restore a state": {"POST", "/api/v1/preemption/restore", `{"saved_state":{"task_id":"t","pool_name":"p","step":9},"timeout":2}`, nil, "RestoreState", "default",
			[]any{json.RawMessage(`{"pool_name":"p","step":9,"task_id":"t"}`), 2 * time.Second}, 200,
			map[string]any{"success": false, "error": "gone", "task_id": "t", "pool_name": "p", "restorer": "load"}},
		"namespaces": {"GET", "/api/v1/namespaces", "", nil, "ListNamespaces", "", nil, 200,
			map[string]any{"items.name": "default", "items.ephemeral": false, "items.expires_at": nil, "items.session_owner": ""}},
		"read namespace": {"GET", "/api/v1/namespaces/team%2Fa", "", nil, "GetNamespace", "", []any{"team/a"}, 200,
			map[string]any{"name": "team/a", "pools": 2.0, "live_tasks": 12.0, "agents": 9.0}},
		"hold namespace": {"PUT", "/api/v1/namespaces/x", `{"session":"s1","owner":"ann","ttl":2.5,"replace":"s0"}`, nil, "HoldNamespace", "",
			[]any{"x", ledger.NamespaceHold{Session: "s1", Owner: "ann", TTL: 2500 * time.Millisecond, Replace: "s0"}}, 200,
			map[string]any{"name": "x", "ephemeral": true, "session_owner": "ann", "expires_at": "2026-03-01T12:00:00.250Z", "created": true, "cleared": true, "closing": false}},
		"hold namespace as usual": {"PUT", "/api/v1/namespaces/x", `{"session":"s1"}`, nil, "HoldNamespace", "", []any{"x", ledger.NamespaceHold{Session: "s1", TTL: 15 * time.Second}}, 200, nil},
		"keep namespace":          {"PUT", "/api/v1/namespaces/x", `{"detached":true}`, nil, "HoldNamespace", "", []any{"x", ledger.NamespaceHold{Detached: true}}, 200, nil},
		"end session":             {"DELETE", "/api/v1/namespaces/x?session=s1", "", nil, "EndNamespace", "", []any{"x", "s1", false}, 204, nil},
		"delete namespace":        {"DELETE", "/api/v1/namespaces/x?force=true", "", nil, "EndNamespace", "", []any{"x", "", true}, 204, nil},
		"page of events": {"GET", "/api/v1/events?after=4&limit=1", "", []string{"Accept", "application/json"}, "Events", "default", []any{int64(4), 1}, 200,
			map[string]any{"items.id": 5.0, "next_cursor": "5"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := &fake{
				node: ledger.Node{ID: "n1", Cluster: "local", Total: sched.Resources{CPU: 8000}, Free: sched.Resources{CPU: 2000}, Agents: 3, Known: true,
					Hold: ledger.Hold{State: ledger.Held, Reason: "fan", Actor: "ann", Since: noon}},
				handlers: ledger.StateHandlers{Pool: "gp/u", Preserver: &ledger.Handler{Name: "keep"}, UpdatedAt: noon},
				restored: ledger.Restored{Error: "gone", TaskID: "t", Pool: "p", Restorer: "load"},
				pool:     pool, preempt: preemption, agent: ledger.Agent{Name: "a1", Namespace: "default", State: ledger.Launching}, tasks: ledger.Page[ledger.Task]{Items: []ledger.Task{sampleTask()}, Next: "next"},
				policy: ledger.PolicyVersion{Version: 3, Policy: sched.DefaultPolicy(), Author: "ann", CreatedAt: noon},
				whatIf: ledger.WhatIfAnswer{PolicyVersion: 3, Changes: []sched.Change{{Field: "min_preempt_score", Old: "0.5", New: "2.0"}}, Task: &sched.Incoming{Pool: "gpu"},
					Active: &ledger.Judgement{Decision: &sched.Decision{Outcome: sched.Preempt}, Safe: map[sched.Safe]int{sched.SafeTooFresh: 2},
						Verdicts: []sched.Verdict{{Candidate: candidate, Eligible: true, Taken: true, Message: "it makes way"}}}},
				earlier: map[int]ledger.PolicyVersion{1: {Version: 1, Policy: *policyWith(func(p *sched.Policy) { p.MinPreemptScore = 2500 })}},
				events:  []ledger.Event{{ID: 5, At: noon, Type: "running", TaskID: "t", Detail: json.RawMessage(`{"a":1}`)}},
				stats:   ledger.Stats{Total: 10, SamePool: 5, CrossPool: 2, Label: 3, FailedCancels: 1, RunningTasks: 4, Recent: []ledger.Preemption{preemption}},
				eval: ledger.EvaluationResult{ShouldPreempt: true, Candidates: []sched.Candidate{candidate}, PolicyVersion: 3, Decision: &sched.Decision{
					Outcome: sched.Preempt, Deficit: sched.Resources{GPU: 500}, Victims: []sched.Victim{{AgentName: "a1", Gives: sched.Resources{GPU: 2000}, Tasks: []sched.Candidate{candidate}}}}},
			}
			two := sched.Resources{CPU: 2000, Memory: 2048}
			f.groups = ledger.Groups{GroupTotals: *pool.Groups, Config: ledger.GroupConfig{Enable: true, Reserved: []ledger.GroupSpec{{Bundles: []sched.Resources{two}}}, Most: 2, Timeout: 30 * time.Second},
				Tiers: map[string]ledger.GroupStats{ledger.TierReserved: {Total: 2, Available: 1, Allocated: 1, Reuses: 5, Created: 3, Removed: 1},
					ledger.TierDynamic: {Total: 1, Allocated: 1, Waiting: 2, Reuses: 2, Created: 1}},
				Items: []ledger.Group{{Tier: ledger.TierReserved, State: "occupied", Bundles: []sched.Resources{two, two}, Nodes: []string{"n1", "n1"}, Reuses: 5,
					Sitting: []ledger.Sitter{{TaskID: "reward-00", AgentName: "a1", State: ledger.Running}}}}}
			below := sched.Milli(5000)
			f.tried = ledger.BacktestResult{PolicyVersion: 3, Tasks: 7, LeftOut: map[string]int{"never_ran": 2}, Changes: []sched.Change{{Field: "min_preempt_score"}}, Different: 9,
				Active:      replay.Summary{Counts: replay.Counts{Preemptions: replay.Preemptions{Total: 5}}, Waits: []replay.Waits{{Below: &below, P99: 1}}},
				Draft:       replay.Summary{Counts: replay.Counts{Preemptions: replay.Preemptions{Total: 2}}, Waits: []replay.Waits{{Below: &below, P99: 2.5}}, Refused: map[sched.Code]int64{"no_victims": 4}},
				Differences: []ledger.PreemptedDifferently{{TaskID: "v", Active: 2, ActiveBy: "high", ActiveReason: sched.SamePool}}}
			if tt.ns == "empty" {
				f.whatIf = ledger.WhatIfAnswer{Queued: 2, Queue: []ledger.QueueEffect{{TaskID: "w", Changed: true, Draft: sched.Decision{Outcome: sched.Admit}}},
					Shift: ledger.Exposure{Protected: 1, Items: []ledger.ExposedTask{{TaskID: "r", Takeable: true}}}}
			}
			res := send(t, newAPI(f), tt.method, tt.target, tt.body, tt.headers...)
			res.want(t, tt.status, "")
			if f.call != tt.call || f.ns != tt.ns {
				t.Errorf("the ledger was asked %s in %q, want %s in %q", f.call, f.ns, tt.call, tt.ns)
			}
			if tt.args != nil && !reflect.DeepEqual(f.args, tt.args) {
				t.Errorf("the ledger was asked\n %+v, want\n %+v", f.args, tt.args)
			}
			res.has(t, tt.has)
			if tt.status == 204 && res.text != "" {
				t.Errorf("a 204 has the body %q", res.text)
			}
			if res.Header.Get("X-Request-Id") == "" {
				t.Error("no X-Request-Id")
			}
		})
	}
}

func policyWith(change func(*sched.Policy)) *sched.Policy {
	p := sched.DefaultPolicy()
	change(&p)
	return &p
}

func TestEveryRouteIsTested(t *testing.T) {
	// TestRoutes and the tests of submit, streams and health cover the table of the design.
	spec := newAPI(&fake{}).huma.OpenAPI()
	n := 0
	for _, item := range spec.Paths {
		for _, o := range []any{item.Head, item.Get, item.Post, item.Put, item.Patch, item.Delete} {
			if !reflect.ValueOf(o).IsNil() {
				n++
			}
		}
	}
	if n != 71 {
		t.Errorf("there are %d operations; add the new one to the tests, then change this number", n)
	}
}

func TestPolicyAnswersCarryTheirVersionAsETag(t *testing.T) {
	f := &fake{policy: ledger.PolicyVersion{Version: 12, Policy: sched.DefaultPolicy()}}
	if got := send(t, newAPI(f), "GET", "/api/v1/policy", "").Header.Get("ETag"); got != `"12"` {
		t.Errorf("ETag %s", got)
	}
}

func TestNamespacesAreKeptInLinks(t *testing.T) {
	f := &fake{task: sampleTask()}
	f.task.Namespace = "team a"
	send(t, newAPI(f), "GET", "/api/v1/tasks/x?namespace=team+a", "").has(t, map[string]any{"links.page": "/tasks/train%2F1%20%C3%BC?namespace=team+a"})
}

func TestReportedMetricsAreTheAgentsLatest(t *testing.T) {
	f := &fake{agent: ledger.Agent{Name: "a/1", Namespace: "ns"}}
	a := newAPI(f)
	send(t, a, "POST", "/api/v1/agents/a%2F1/metrics?namespace=ns", `{"loss":1,"old":true}`).want(t, 204, "")
	send(t, a, "POST", "/api/v1/agents/a%2F1/metrics?namespace=ns", `{"loss":0.5,"none":null}`).want(t, 204, "")
	send(t, a, "GET", "/api/v1/agents/a%2F1?namespace=ns", "").has(t, map[string]any{"metrics": map[string]any{"loss": 0.5, "none": nil}, "metrics_at": "2026-03-01T12:00:00.250Z"})
}

func TestMemoryMetricsForgetWhoWasHeardOfLongestAgo(t *testing.T) {
	now := noon
	m := NewMemoryMetrics(func() time.Time { now = now.Add(time.Second); return now })
	for i := range maxReporters + 1 {
		if err := m.Report(t.Context(), "ns", string(rune('a'+i%26))+time.Duration(i).String(), json.RawMessage(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.latest) > maxReporters {
		t.Errorf("%d agents are kept", len(m.latest))
	}
	if f, _ := m.Latest("ns", "a0s"); f != nil {
		t.Error("the oldest is still there")
	}
	if f, _ := m.Latest("ns", string(rune('a'+maxReporters%26))+time.Duration(maxReporters).String()); f == nil {
		t.Error("the newest is gone")
	}
}

func TestHealthIsASuccessWhenNobodyStaysUnhealthy(t *testing.T) {
	sick := ledger.SickAgent{Name: "stuck", State: "running", Code: "unhealthy", Reason: "it did not answer"}
	f := &fake{health: ledger.Health{Checked: 3, Healthy: []string{"up"}, Ending: []string{"leaving"}, Unhealthy: []ledger.SickAgent{sick}}}
	res := send(t, newAPI(f), "POST", "/api/v1/agents/ensure-health", `{"timeout":30}`)
	res.want(t, 200, "")
	res.has(t, map[string]any{"success": false, "checked": 3.0, "healthy": []any{"up"}, "starting": []any{}, "ending": []any{"leaving"}, "unhealthy.name": "stuck",
		"unhealthy.code": "unhealthy", "removed": []any{}, "recreated": []any{}})
	if arg[time.Duration](t, f, 0) != 30*time.Second || arg[bool](t, f, 1) || f.ns != "default" {
		t.Errorf("asked %v", f.args)
	}
	f.health.Removed, f.health.Recreated = []string{"stuck"}, []string{"stuck"}
	res = send(t, newAPI(f), "POST", "/api/v1/agents/ensure-health?namespace=ns", `{"recreate":true}`)
	res.has(t, map[string]any{"success": true, "removed": []any{"stuck"}, "recreated": []any{"stuck"}})
	if arg[time.Duration](t, f, 0) != 120*time.Second || !arg[bool](t, f, 1) || arg[string](t, f, 2) != "api" || f.ns != "ns" {
		t.Errorf("asked %v", f.args)
	}
	f.health = ledger.Health{}
	send(t, newAPI(f), "POST", "/api/v1/agents/ensure-health", "").has(t, map[string]any{"success": true, "checked": 0.0})
	send(t, newAPI(f), "POST", "/api/v1/agents/ensure-health", `{"timeout":-1}`).want(t, 422, "invalid")
	send(t, newAPI(f), "POST", "/api/v1/agents/ensure-health", `{"recreate":"yes"}`).want(t, 422, "invalid")
	f.err = &ledger.Error{Code: "bridge_unavailable", Message: "away"}
	send(t, newAPI(f), "POST", "/api/v1/agents/ensure-health", "").want(t, 503, "bridge_unavailable")
}
