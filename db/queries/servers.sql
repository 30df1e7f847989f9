-- How a server catches up with what others changed.

-- name: PoolChanges :many
SELECT c.pool_id, c.version, c.uids
FROM (SELECT unnest(@pool_ids::bigint[]) AS id, unnest(@known::bigint[]) AS version) k
JOIN pool_changes c ON c.pool_id = k.id AND c.version > k.version
ORDER BY c.pool_id, c.version;

-- name: SpacesOf :many
-- Namespaces by id, and those of pools.
SELECT id, name, policy_version, unmanaged_version, epoch, state FROM namespaces
WHERE id = ANY (@ids::bigint[]) OR id IN (SELECT p.namespace_id FROM pools p WHERE p.id = ANY (@pool_ids::bigint[]))
ORDER BY id;

-- name: UnmanagedTasks :many
SELECT uid, namespace_id, kind, task_id, pool_id, pool_name, state, phase, attempt, priority, labels, request, held, held_as,
       agent_name, agent_uid, node_id, actor_name, ray_namespace, actor_id, pid, body_hash, estimate_ms, max_runtime_ms, launch_ms, on_insufficient,
       on_preempted, on_failure, max_attempts, failures, preemptions, preempted_by, ending, code, reason,
       submitted_at, queued_at, started_at, launch_id, (spec ? 'entry')::boolean AS has_entry, (spec ? 'use_placement_group')::boolean AS wants_group, (spec ? 'keep_quota')::boolean AS keep_quota,
       queue_timeout_ms, retry_backoff_ms, not_before, gang
FROM tasks
WHERE ended_at IS NULL AND pool_id IS NULL AND namespace_id = ANY (@namespace_ids::bigint[]);

-- name: PreemptionsOf :many
-- The open preemptions that rows are part of, on either side, and those their attempt has behind it.
SELECT sqlc.embed(p), coalesce(h.pool_id, 0)::bigint AS holder_pool, coalesce(b.pool_id, 0)::bigint AS by_pool
FROM preemptions p LEFT JOIN tasks h ON h.uid = p.agent_uid LEFT JOIN tasks b ON b.uid = p.preemptor_uid
WHERE p.id IN (
    SELECT o.id FROM preemptions o
    WHERE o.open
      AND o.agent_uid IN (SELECT a.agent_uid FROM preemptions a
                          WHERE a.open
                            AND (a.victim_uid = ANY (@uids::uuid[]) OR a.agent_uid = ANY (@uids::uuid[]) OR a.preemptor_uid = ANY (@uids::uuid[])))
    UNION ALL
    SELECT g.id FROM preemptions g WHERE g.preemptor_uid = ANY (@uids::uuid[]) AND g.phase = 'gone' AND g.running_at IS NULL)
ORDER BY p.id;

-- name: PoolVersions :many
SELECT id, version FROM pools WHERE deleted_at IS NULL
UNION ALL SELECT -id, unmanaged_version FROM namespaces WHERE state <> 'ended';

-- name: PolicyVersionsNow :many
SELECT id, policy_version, epoch FROM namespaces WHERE state <> 'ended';

-- name: LivePool :one
-- Where a live task is: its pool, or −namespace when it belongs to none.
SELECT coalesce(t.pool_id, -t.namespace_id)::bigint FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
WHERE n.name = @namespace AND t.task_id = @task_id AND t.ended_uid IS NULL AND t.kind <> 'agent';

-- name: LiveRowPool :one
SELECT coalesce(t.pool_id, -t.namespace_id)::bigint FROM tasks t WHERE t.uid = @uid AND t.ended_at IS NULL;

-- name: LiveAgentPool :one
SELECT t.pool_id::bigint FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
WHERE n.name = @namespace AND t.agent_name = @agent_name AND t.ended_at IS NULL AND t.kind <> 'registered' AND t.pool_id IS NOT NULL
LIMIT 1;

-- name: TrimChanges :exec
DELETE FROM pool_changes WHERE at < now() - interval '30 seconds';

-- name: ShareNodes :execrows
-- What the server that leads a cluster knows of its nodes.
UPDATE cluster_leases SET nodes = @nodes, nodes_seen = clock_timestamp()
WHERE cluster = @cluster AND server = @server AND nodes <> @nodes;

-- name: SharedNodes :many
SELECT cluster, server, nodes FROM cluster_leases WHERE nodes_seen IS NOT NULL AND server <> @server;

-- name: NewSpecs :many
-- What to launch, of tasks that have never run.
SELECT uid, spec, pickled FROM tasks WHERE uid = ANY (@uids::uuid[]) AND saved_state IS NULL;
