-- How the core in memory is rebuilt.

-- name: Deployment :one
SELECT id FROM deployment;

-- name: AllNamespaces :many
SELECT n.id, n.name, n.policy_version, n.epoch, n.state, p.document
FROM namespaces n JOIN policies p ON p.namespace_id = n.id AND p.version = n.policy_version
WHERE n.state <> 'ended'
ORDER BY n.id;

-- name: NamespacePolicy :one
SELECT n.id, n.name, n.policy_version, n.epoch, n.state, p.document
FROM namespaces n JOIN policies p ON p.namespace_id = n.id AND p.version = n.policy_version
WHERE n.name = @name;

-- name: NamespacePolicyByID :one
SELECT n.policy_version, n.epoch, n.state, p.document
FROM namespaces n JOIN policies p ON p.namespace_id = n.id AND p.version = n.policy_version
WHERE n.id = @id;

-- name: CreateNamespace :exec
WITH made AS (
    INSERT INTO namespaces (name, first_event) VALUES (@name, coalesce(pg_sequence_last_value(pg_get_serial_sequence('task_events', 'id')::regclass), 0))
    ON CONFLICT DO NOTHING RETURNING id
)
INSERT INTO policies (namespace_id, version, document, author, comment, created_at)
SELECT id, 1, @document, '', 'defaults', @now FROM made;

-- name: AllPools :many
SELECT * FROM pools WHERE deleted_at IS NULL ORDER BY id;

-- name: PoolsByID :many
SELECT * FROM pools WHERE id = ANY (@ids::bigint[]) AND deleted_at IS NULL ORDER BY id;

-- name: PoolByName :one
SELECT * FROM pools WHERE namespace_id = @namespace_id AND name = @name AND deleted_at IS NULL;

-- name: Balances :many
SELECT * FROM pool_resources WHERE pool_id = ANY (@pool_ids::bigint[]) ORDER BY pool_id, resource;

-- name: LoansOf :many
SELECT * FROM loans WHERE lender_id = ANY (@pool_ids::bigint[]) OR borrower_id = ANY (@pool_ids::bigint[]) ORDER BY since, lender_id, borrower_id, resource;

-- name: LiveTasks :many
SELECT uid, namespace_id, kind, task_id, pool_id, pool_name, state, phase, attempt, priority, labels, request, held, held_as,
       agent_name, agent_uid, node_id, actor_name, ray_namespace, actor_id, pid, body_hash, estimate_ms, max_runtime_ms, launch_ms, on_insufficient,
       on_preempted, on_failure, max_attempts, failures, preemptions, preempted_by, ending, code, reason,
       submitted_at, queued_at, started_at, launch_id, (spec ? 'entry')::boolean AS has_entry, (spec ? 'use_placement_group')::boolean AS wants_group, (spec ? 'keep_quota')::boolean AS keep_quota,
       queue_timeout_ms, retry_backoff_ms, not_before, gang
FROM tasks
WHERE ended_at IS NULL AND (pool_id = ANY (@pool_ids::bigint[]) OR (@unmanaged::boolean AND pool_id IS NULL));

-- name: TasksByUID :many
-- The same of given rows, live or ended.
SELECT uid, namespace_id, kind, task_id, pool_id, pool_name, state, phase, attempt, priority, labels, request, held, held_as,
       agent_name, agent_uid, node_id, actor_name, ray_namespace, actor_id, pid, body_hash, estimate_ms, max_runtime_ms, launch_ms, on_insufficient,
       on_preempted, on_failure, max_attempts, failures, preemptions, preempted_by, ending, code, reason,
       submitted_at, queued_at, started_at, launch_id, (spec ? 'entry')::boolean AS has_entry, (spec ? 'use_placement_group')::boolean AS wants_group, (spec ? 'keep_quota')::boolean AS keep_quota,
       queue_timeout_ms, retry_backoff_ms, not_before, gang
FROM tasks
WHERE uid = ANY (@uids::uuid[]);

-- name: OpenPreemptions :many
-- Handovers under way, and in which pools the agent and the preemptor are.
SELECT sqlc.embed(p), coalesce(h.pool_id, 0)::bigint AS holder_pool, coalesce(b.pool_id, 0)::bigint AS by_pool
FROM preemptions p LEFT JOIN tasks h ON h.uid = p.agent_uid LEFT JOIN tasks b ON b.uid = p.preemptor_uid
WHERE p.open ORDER BY p.id;

-- name: LostLately :many
-- When pools lost agents, for max_preemptions_per_minute.
SELECT DISTINCT namespace_id, pool_name, agent_uid, decided_at FROM preemptions
WHERE namespace_id = ANY (@namespace_ids::bigint[]) AND decided_at > @since::timestamptz AND preemptor_uid IS NOT NULL
ORDER BY decided_at;

-- name: PoolsOfName :many
-- Where the live task of an id, or the live agent of a name, is; 0 for no pool of ours.
SELECT coalesce(t.pool_id, 0)::bigint FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
WHERE n.name = @namespace AND t.task_id = @name::text AND t.ended_uid IS NULL AND t.kind <> 'agent'
UNION SELECT coalesce(t.pool_id, 0)::bigint FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
WHERE n.name = @namespace AND t.agent_name = @name::text AND t.ended_at IS NULL AND t.kind <> 'registered' AND t.held <> '{}';

-- name: HandedOver :many
-- The victims a preemptor's attempt took, to give back when it cannot be launched.
SELECT victim_uid, victim_attempt, agent_uid FROM preemptions
WHERE preemptor_uid = @preemptor_uid AND preemptor_attempt = @attempt AND phase = 'gone' ORDER BY id;
