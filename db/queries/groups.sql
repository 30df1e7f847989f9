-- Placement groups.

-- name: GroupsOf :many
SELECT * FROM placement_groups WHERE pool_id = ANY (@pool_ids::bigint[]) AND ended_at IS NULL ORDER BY created_at, uid;

-- name: WriteGroup :exec
INSERT INTO placement_groups (uid, namespace_id, pool_id, pool_name, tier, bundles, strategy, state, attempt, nodes, occupants, uses, reuses, made, removed,
                              leaving, code, reason, created_at, ready_at, idle_since, retry_at, ended_at)
VALUES (@uid, @namespace_id, @pool_id, @pool_name, @tier, @bundles, @strategy, @state, @attempt, @nodes::text[], @occupants::uuid[], @uses, @reuses, @made, @removed,
        @leaving, @code, @reason, @created_at, @ready_at, @idle_since, @retry_at, @ended_at)
ON CONFLICT (uid) DO UPDATE
SET state = excluded.state, attempt = excluded.attempt, nodes = excluded.nodes, occupants = excluded.occupants, uses = excluded.uses, reuses = excluded.reuses,
    made = excluded.made, removed = excluded.removed, leaving = excluded.leaving, code = excluded.code, reason = excluded.reason, ready_at = excluded.ready_at,
    idle_since = excluded.idle_since, retry_at = excluded.retry_at, ended_at = excluded.ended_at;

-- name: EndedGroups :many
-- The latest that a pool had, for people.
SELECT * FROM placement_groups WHERE pool_id = @pool_id AND ended_at IS NOT NULL ORDER BY created_at DESC, uid DESC LIMIT @row_limit;

-- name: Occupants :many
-- Who sits in placement groups, for people.
SELECT uid, kind, task_id, agent_name, state FROM tasks WHERE uid = ANY (@uids::uuid[]);

-- name: GroupSums :many
-- What became of all groups of a pool so far, by tier.
SELECT tier, sum(uses)::bigint AS uses, sum(reuses)::bigint AS reuses, sum(made)::bigint AS made, sum(removed)::bigint AS removed
FROM placement_groups WHERE pool_id = @pool_id GROUP BY tier;

-- name: DropGroups :exec
-- A pool that is deleted has none any more.
UPDATE placement_groups SET ended_at = @now::timestamptz, state = 'removed', occupants = '{}', code = 'pool_deleted' WHERE pool_id = @pool_id AND ended_at IS NULL;
