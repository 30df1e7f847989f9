-- What people read. Reads go straight to Postgres, not through a lane.

-- name: TaskByID :one
-- The seat is the placement group that its agent sits in, as "tier name".
SELECT sqlc.embed(t), n.name AS namespace,
       coalesce((SELECT g.tier || ' sm-' || g.uid || '.' || g.attempt FROM placement_groups g
                 WHERE g.pool_id = t.pool_id AND g.ended_at IS NULL AND coalesce(t.agent_uid, t.uid) = ANY (g.occupants) LIMIT 1), '')::text AS seat
FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
WHERE n.name = @namespace AND t.task_id = @task_id AND t.kind <> 'agent'
ORDER BY (t.ended_at IS NULL) DESC, t.uid DESC LIMIT 1;

-- name: TaskByUID :one
SELECT sqlc.embed(t), n.name AS namespace,
       coalesce((SELECT g.tier || ' sm-' || g.uid || '.' || g.attempt FROM placement_groups g
                 WHERE g.pool_id = t.pool_id AND g.ended_at IS NULL AND coalesce(t.agent_uid, t.uid) = ANY (g.occupants) LIMIT 1), '')::text AS seat
FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
WHERE t.uid = @uid;

-- name: TaskPickle :one
SELECT spec, pickled, saved_state FROM tasks WHERE uid = @uid;

-- name: ListTasks :many
SELECT t.uid, t.kind, t.task_id, t.pool_id, t.pool_name, t.state, t.phase, t.attempt, t.priority, t.labels, t.request, t.held, t.agent_name,
       t.node_id, t.actor_name, t.ray_namespace, t.actor_id, t.pid, (t.spec ->> 'actor_class') AS actor_class, (t.spec ->> 'pickled_name') AS pickled_name,
       t.estimate_ms, t.max_runtime_ms, t.on_preempted, t.on_failure, t.max_attempts, t.preemptions, t.code, t.reason, t.submitted_at, t.queued_at, t.started_at, t.ended_at, t.actor,
       t.agent_uid, t.result, (t.saved_state IS NOT NULL)::boolean AS has_saved_state,
       coalesce((SELECT g.tier || ' sm-' || g.uid || '.' || g.attempt FROM placement_groups g
                 WHERE g.pool_id = t.pool_id AND g.ended_at IS NULL AND coalesce(t.agent_uid, t.uid) = ANY (g.occupants) LIMIT 1), '')::text AS seat
FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
WHERE n.name = @namespace AND t.kind <> 'agent'
  AND (cardinality(@states::text[]) = 0 OR t.state = ANY (@states::text[]))
  AND (NOT @live::boolean OR t.ended_at IS NULL)
  AND (@pool::text = '' OR t.pool_name = @pool)
  AND (@txt::text = '' OR position(lower(@txt) IN lower(t.task_id)) > 0)
  AND (@labels::jsonb = '{}' OR t.labels @> @labels)
  AND (sqlc.narg(before)::uuid IS NULL OR t.uid < sqlc.narg(before))
ORDER BY t.uid DESC LIMIT @row_limit;

-- name: CountByPool :many
SELECT t.pool_name, t.state, count(*) AS n FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
WHERE n.name = @namespace AND t.kind <> 'agent' AND t.ended_at IS NULL GROUP BY t.pool_name, t.state;

-- name: TaskEvents :many
SELECT * FROM task_events WHERE task_uid = ANY (@uids::uuid[]) ORDER BY id LIMIT 2000;

-- name: TaskUIDs :many
SELECT t.uid FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
WHERE n.name = @namespace AND t.task_id = @task_id AND t.kind <> 'agent' ORDER BY t.uid DESC LIMIT 50;

-- name: EventsAfter :many
SELECT e.*, n.name AS namespace FROM task_events e JOIN namespaces n ON n.id = e.namespace_id
WHERE e.id > @after AND e.id <= @upto AND (@namespace::text = '' OR n.name = @namespace)
ORDER BY e.id LIMIT @row_limit;

-- name: LastEventID :one
SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('task_events', 'id')::regclass), 0)::bigint;

-- name: OldestRunning :one
SELECT pg_snapshot_xmin(pg_current_snapshot())::text;

-- name: NextTransaction :one
-- A transaction id above every one given out so far; it uses one up.
SELECT pg_current_xact_id()::text;

-- name: EventIDs :many
SELECT id FROM task_events WHERE id > @after ORDER BY id LIMIT @row_limit;

-- name: NamespaceNames :many
SELECT name FROM namespaces WHERE state <> 'ended' ORDER BY name;

-- name: PoolsOf :many
SELECT p.* FROM pools p JOIN namespaces n ON n.id = p.namespace_id
WHERE n.name = @namespace AND p.deleted_at IS NULL ORDER BY p.name;

-- name: PolicyNow :one
SELECT p.* FROM namespaces n JOIN policies p ON p.namespace_id = n.id AND p.version = n.policy_version WHERE n.name = @namespace;

-- name: PolicyAt :one
SELECT p.* FROM namespaces n JOIN policies p ON p.namespace_id = n.id WHERE n.name = @namespace AND p.version = @version;

-- name: LockNamespace :one
SELECT id, name, policy_version, epoch, state FROM namespaces WHERE name = @name FOR UPDATE;

-- name: InsertPolicy :exec
INSERT INTO policies (namespace_id, version, document, author, comment, created_at)
VALUES (@namespace_id, @version, @document, @author, @comment, @created_at);

-- name: ActivatePolicy :exec
UPDATE namespaces SET policy_version = @version WHERE id = @id;

-- name: CreatePool :one
INSERT INTO pools (namespace_id, name, cluster, labels, target_agents, placement_strategy, pg_pool_config, max_runtime_ms, created_at)
VALUES (@namespace_id, @name, @cluster, @labels, @target_agents, @placement_strategy, @pg_pool_config, @max_runtime_ms, @created_at) RETURNING id;

-- name: InsertBalances :exec
INSERT INTO pool_resources (pool_id, resource, capacity)
SELECT @pool_id::bigint, unnest(@resources::text[]), unnest(@capacities::bigint[]);

-- name: UpdatePool :exec
UPDATE pools SET cluster = @cluster, labels = @labels, target_agents = @target_agents, placement_strategy = coalesce(sqlc.narg(placement_strategy), placement_strategy),
    pg_pool_config = coalesce(sqlc.narg(pg_pool_config), pg_pool_config),
    max_runtime_ms = @max_runtime_ms
WHERE id = @id;

-- name: DeletePool :exec
UPDATE pools SET deleted_at = @now::timestamptz, version = version + 1 WHERE id = @id;

-- name: AgentByName :one
SELECT t.* FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
WHERE n.name = @namespace AND t.kind <> 'registered' AND (t.agent_name = @name OR t.task_id = @name)
ORDER BY (t.ended_at IS NULL) DESC, (t.agent_name = @name) DESC, t.uid DESC LIMIT 1;

-- name: TasksOnAgents :many
SELECT t.agent_name, t.task_id FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
WHERE n.name = @namespace AND t.kind <> 'agent' AND t.ended_at IS NULL AND t.state <> 'queued' AND t.agent_name = ANY (@names::text[]) ORDER BY t.uid;

-- name: ListPreemptions :many
SELECT * FROM preemptions p WHERE p.namespace_id = (SELECT id FROM namespaces WHERE name = @namespace)
  AND (@before::bigint = 0 OR p.id < @before) ORDER BY p.id DESC LIMIT @row_limit;

-- name: PreemptionByID :one
SELECT * FROM preemptions p WHERE p.namespace_id = (SELECT id FROM namespaces WHERE name = @namespace) AND p.id = @id;

-- name: PreemptionOfVictim :one
SELECT * FROM preemptions p WHERE p.victim_uid = @victim_uid AND p.victim_attempt = @victim_attempt ORDER BY p.id DESC LIMIT 1;

-- name: PreemptionCounts :many
SELECT reason, count(*) AS n, count(*) FILTER (WHERE cancel_success = false) AS failed_cancels
FROM preemptions p WHERE p.namespace_id = (SELECT id FROM namespaces WHERE name = @namespace) AND p.phase <> 'undone' GROUP BY reason;

-- name: BeginIdempotent :execrows
INSERT INTO idempotency_keys (namespace_id, key, fingerprint, created_at) VALUES (@namespace_id, @key, @fingerprint, @now) ON CONFLICT DO NOTHING;

-- name: IdempotentAnswer :one
SELECT fingerprint, status, body, created_at FROM idempotency_keys WHERE namespace_id = @namespace_id AND key = @key;

-- name: FinishIdempotent :exec
UPDATE idempotency_keys SET status = @status, body = @body WHERE namespace_id = @namespace_id AND key = @key;

-- name: ForgetIdempotent :execrows
-- Deletes a bounded number of old answers.
DELETE FROM idempotency_keys WHERE ctid = ANY (ARRAY(
    SELECT k.ctid FROM idempotency_keys k WHERE k.created_at < @before::timestamptz LIMIT @row_limit));

-- name: DropIdempotent :exec
DELETE FROM idempotency_keys WHERE namespace_id = @namespace_id AND key = @key;
