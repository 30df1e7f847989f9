-- Who holds a namespace, and how one is cleared.

-- name: NamespaceByName :one
SELECT sqlc.embed(n), coalesce(n.expires_at < clock_timestamp(), false)::boolean AS expired, clock_timestamp()::timestamptz AS now
FROM namespaces n WHERE n.name = @name;

-- name: LockNamespaceByName :one
-- FOR UPDATE, which also waits for pools that are being made in it.
SELECT sqlc.embed(n), coalesce(n.expires_at < clock_timestamp(), false)::boolean AS expired, clock_timestamp()::timestamptz AS now
FROM namespaces n WHERE n.name = @name FOR UPDATE;

-- name: ListNamespaces :many
SELECT * FROM namespaces WHERE state <> 'ended' ORDER BY name;

-- name: NamespaceState :one
SELECT name, state FROM namespaces WHERE id = @id;

-- name: RenewSession :one
UPDATE namespaces n SET expires_at = clock_timestamp() + interval '1 millisecond' * @ttl_ms::bigint, ttl_ms = @ttl_ms, session_owner = @owner
WHERE n.name = @name AND n.session = @session AND n.ephemeral AND n.state = 'open'
RETURNING n.*;

-- name: HoldNamespace :one
-- An unmanaged_version that goes on lets the other servers hear of it.
UPDATE namespaces n
SET ephemeral = @ephemeral, state = 'open', epoch = n.epoch + 1, unmanaged_version = n.unmanaged_version + 1, session = @session, session_owner = @owner,
    since = clock_timestamp(), ttl_ms = @ttl_ms, ended_session = '',
    expires_at = CASE WHEN @ephemeral::boolean THEN clock_timestamp() + interval '1 millisecond' * @ttl_ms::bigint END
WHERE n.id = @id
RETURNING n.*;

-- name: CloseNamespace :exec
UPDATE namespaces SET state = 'closing', epoch = epoch + 1, unmanaged_version = unmanaged_version + 1, closing_since = clock_timestamp(), expires_at = NULL, clearer = '',
    ended_session = @ended_session
WHERE id = @id;

-- name: CloseExpired :many
UPDATE namespaces SET state = 'closing', epoch = epoch + 1, unmanaged_version = unmanaged_version + 1, closing_since = clock_timestamp(), expires_at = NULL, clearer = ''
WHERE id IN (SELECT n.id FROM namespaces n WHERE n.expires_at < clock_timestamp() ORDER BY n.id FOR UPDATE SKIP LOCKED)
RETURNING name, session_owner;

-- name: ExtendSessions :exec
-- Their clients had nobody to renew them with.
UPDATE namespaces SET expires_at = greatest(expires_at, clock_timestamp() + interval '1 millisecond' * ttl_ms) WHERE expires_at IS NOT NULL;

-- name: UsedNamespace :one
-- Whether anything was ever made in a namespace.
SELECT (n.policy_version > 1 OR EXISTS (SELECT 1 FROM pools p WHERE p.namespace_id = n.id)
        OR EXISTS (SELECT 1 FROM state_handlers h WHERE h.namespace_id = n.id)
        OR EXISTS (SELECT 1 FROM tasks t WHERE t.namespace_id = n.id AND t.kind <> 'agent'))::boolean
FROM namespaces n WHERE n.id = @id;

-- name: PoolsInNamespace :many
SELECT id FROM pools WHERE namespace_id = @namespace_id AND deleted_at IS NULL ORDER BY id;

-- name: SomeOfNamespace :many
-- A few of what is live, and on which cluster.
SELECT coalesce(t.task_id, t.agent_name)::text AS name, t.state, coalesce(p.cluster, '')::text AS cluster
FROM tasks t LEFT JOIN pools p ON p.id = t.pool_id
WHERE t.ended_at IS NULL AND (t.pool_id IN (SELECT o.id FROM pools o WHERE o.namespace_id = @namespace_id AND o.deleted_at IS NULL) OR t.pool_id IS NULL AND t.namespace_id = @namespace_id)
ORDER BY t.uid LIMIT @row_limit;

-- name: ForgetEvents :one
-- The history among the next so many events, and the tasks it is about; up to which id that was.
WITH upto AS (
    SELECT max(w.id) AS id FROM (SELECT x.id FROM task_events x WHERE x.id > @after AND x.id <= @last ORDER BY x.id LIMIT @row_limit) w
), gone AS (
    DELETE FROM task_events e WHERE e.id > @after AND e.id <= (SELECT u.id FROM upto u) AND e.namespace_id = @namespace_id
      AND EXISTS (SELECT 1 FROM namespaces n WHERE n.id = @namespace_id AND n.epoch = @epoch)
    RETURNING e.task_uid
), tasks_gone AS (
    DELETE FROM tasks t WHERE t.uid IN (SELECT g.task_uid FROM gone g) AND t.namespace_id = @namespace_id AND t.ended_at IS NOT NULL
)
SELECT coalesce(max(id), 0)::bigint FROM upto;

-- name: ForgetPreemptions :execrows
DELETE FROM preemptions p WHERE p.id IN (SELECT o.id FROM preemptions o WHERE o.namespace_id = @namespace_id ORDER BY o.id LIMIT @row_limit)
  AND EXISTS (SELECT 1 FROM namespaces n WHERE n.id = @namespace_id AND n.epoch = @epoch);

-- name: ForgetAnswersOf :execrows
DELETE FROM idempotency_keys k WHERE k.ctid = ANY (ARRAY(SELECT o.ctid FROM idempotency_keys o WHERE o.namespace_id = @namespace_id LIMIT @row_limit))
  AND EXISTS (SELECT 1 FROM namespaces n WHERE n.id = @namespace_id AND n.epoch = @epoch);

-- name: ForgetStateHandlers :exec
DELETE FROM state_handlers h WHERE h.namespace_id = @namespace_id
  AND EXISTS (SELECT 1 FROM namespaces n WHERE n.id = @namespace_id AND n.epoch = @epoch);

-- name: ForgetPools :exec
DELETE FROM pools p WHERE p.namespace_id = @namespace_id AND p.deleted_at IS NOT NULL
  AND EXISTS (SELECT 1 FROM namespaces n WHERE n.id = @namespace_id AND n.epoch = @epoch);

-- name: ForgetPolicies :exec
DELETE FROM policies WHERE namespace_id = @namespace_id AND version > 1;

-- name: ResetPolicy :exec
UPDATE policies SET document = @document, author = '', comment = 'defaults', created_at = @now WHERE namespace_id = @namespace_id AND version = 1;

-- name: Cleared :exec
UPDATE namespaces SET state = @state, epoch = epoch + 1, unmanaged_version = unmanaged_version + 1, policy_version = 1, closing_since = NULL, clearer = '',
    first_event = coalesce(pg_sequence_last_value(pg_get_serial_sequence('task_events', 'id')::regclass), 0)
WHERE id = @id;
