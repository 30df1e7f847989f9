-- The past, for backtests. These read the tasks table from one end to the other: an
-- index by time would cost every admission, and this is asked for now and then.

-- name: HistorySize :one
-- How many rows History would read, counted up to a limit.
SELECT count(*) FROM (
    SELECT 1 FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
    WHERE n.name = @namespace AND t.kind IN ('task', 'agent')
      AND t.submitted_at < @until AND (t.ended_at IS NULL OR t.ended_at >= @since)
    LIMIT @most) x;

-- name: History :many
-- What asked for room in a span of time, or held some from before, in the order of
-- submission. ran_ms is how long it worked, in all attempts that were not in vain: with
-- one attempt the row itself says so, otherwise its events do.
SELECT t.kind, coalesce(t.task_id, t.agent_name)::text AS name, t.pool_name, (p.id IS NOT NULL)::boolean AS has_pool, t.state, t.priority, t.labels, t.request,
       t.estimate_ms, t.queue_timeout_ms, t.on_insufficient, t.on_preempted, t.submitted_at, t.ended_at,
       (t.started_at IS NOT NULL OR coalesce(earlier.ms, 0) > 0)::boolean AS started,
       (CASE WHEN t.attempt > 1 OR t.preemptions > 0 THEN coalesce(earlier.ms, 0)
             WHEN t.started_at IS NULL THEN 0
             ELSE 1000 * extract(epoch FROM coalesce(t.ended_at, @now::timestamptz) - t.started_at) END)::bigint AS ran_ms
FROM tasks t
JOIN namespaces n ON n.id = t.namespace_id
LEFT JOIN pools p ON p.id = t.pool_id AND p.deleted_at IS NULL
LEFT JOIN LATERAL (
    SELECT sum(1000 * extract(epoch FROM coalesce(e.next_at, @now::timestamptz) - e.at)) AS ms FROM (
        SELECT e.type, e.at, lead(e.type) OVER w AS next, lead(e.at) OVER w AS next_at
        FROM task_events e
        WHERE e.task_uid = t.uid AND e.type IN ('running', 'preempting', 'stopping', 'attempt_failed', 'completed', 'failed', 'cancelled', 'preempted')
        WINDOW w AS (ORDER BY e.id)) e
    WHERE e.type = 'running' AND e.next IS DISTINCT FROM 'attempt_failed'
) earlier ON t.attempt > 1 OR t.preemptions > 0
WHERE n.name = @namespace AND t.kind IN ('task', 'agent')
  AND t.submitted_at < @until AND (t.ended_at IS NULL OR t.ended_at >= @since)
ORDER BY t.submitted_at, t.uid;
