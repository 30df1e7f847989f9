-- What waits, and what must not start.

-- name: WriteWaiting :exec
-- What few tasks have, written after their row.
UPDATE tasks SET queue_timeout_ms = @queue_timeout_ms, retry_backoff_ms = @retry_backoff_ms, gang = @gang WHERE uid = @uid;

-- name: WriteNotBefore :exec
UPDATE tasks SET not_before = @not_before WHERE uid = @uid;

-- name: RenameAgent :exec
UPDATE tasks SET agent_name = @agent_name WHERE uid = @uid;

-- name: HoldPool :exec
UPDATE pools SET hold = @hold, hold_reason = @hold_reason, hold_actor = @hold_actor, held_at = @held_at, drain_until = @drain_until WHERE id = @id;

-- name: HeldNodes :many
SELECT * FROM nodes ORDER BY cluster, node_id;

-- name: HoldNode :exec
INSERT INTO nodes (cluster, node_id, hold, hold_reason, hold_actor, held_at, drain_until)
VALUES (@cluster, @node_id, @hold, @hold_reason, @hold_actor, @held_at, @drain_until)
ON CONFLICT (cluster, node_id) DO UPDATE SET hold = excluded.hold, hold_reason = excluded.hold_reason, hold_actor = excluded.hold_actor,
    held_at = excluded.held_at, drain_until = excluded.drain_until;

-- name: ResumeNode :exec
DELETE FROM nodes WHERE cluster = @cluster AND node_id = @node_id;
