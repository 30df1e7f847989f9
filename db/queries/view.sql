-- What the dashboard shows beyond what the REST API reads. Of lists that grow for
-- ever only what is recent is looked at: ids grow with time, so a walk back along an
-- index ends at the first row that is too old.

-- name: ViewFrame :one
SELECT (SELECT count(*) FROM pools p WHERE p.namespace_id = n.id AND p.deleted_at IS NULL)::bigint AS pools,
       (SELECT count(*) FROM tasks t WHERE t.namespace_id = n.id AND t.ended_at IS NULL AND t.kind <> 'agent')::bigint AS tasks,
       (SELECT count(DISTINCT t.agent_name) FROM tasks t WHERE t.namespace_id = n.id AND t.ended_at IS NULL AND t.kind <> 'registered' AND t.state <> 'queued')::bigint AS agents
FROM namespaces n WHERE n.name = @namespace;

-- name: ViewCountTasks :one
SELECT count(*) FROM (
    SELECT 1 FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
    WHERE n.name = @namespace AND t.kind <> 'agent'
      AND (cardinality(@states::text[]) = 0 OR t.state = ANY (@states::text[]))
      AND (NOT @live::boolean OR t.ended_at IS NULL)
      AND (@pool::text = '' OR t.pool_name = @pool)
      AND (@txt::text = '' OR position(lower(@txt) IN lower(t.task_id)) > 0)
      AND (@labels::jsonb = '{}' OR t.labels @> @labels)
    LIMIT @most) x;

-- name: ViewPoolTasks :many
-- The columns are those of ListTasks.
SELECT t.uid, t.kind, t.task_id, t.pool_id, t.pool_name, t.state, t.phase, t.attempt, t.priority, t.labels, t.request, t.held, t.agent_name,
       t.node_id, t.actor_name, t.ray_namespace, t.actor_id, t.pid, (t.spec ->> 'actor_class') AS actor_class, (t.spec ->> 'pickled_name') AS pickled_name,
       t.estimate_ms, t.max_runtime_ms, t.on_preempted, t.on_failure, t.max_attempts, t.preemptions, t.code, t.reason, t.submitted_at, t.queued_at, t.started_at, t.ended_at, t.actor,
       t.agent_uid, t.result, (t.saved_state IS NOT NULL)::boolean AS has_saved_state,
       coalesce((SELECT g.tier || ' sm-' || g.uid || '.' || g.attempt FROM placement_groups g
                 WHERE g.pool_id = t.pool_id AND g.ended_at IS NULL AND coalesce(t.agent_uid, t.uid) = ANY (g.occupants) LIMIT 1), '')::text AS seat
FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
WHERE n.name = @namespace AND t.pool_name = @pool AND t.kind <> 'agent' AND t.ended_at IS NULL AND t.state <> 'queued'
ORDER BY t.priority DESC, t.submitted_at, t.uid LIMIT @row_limit;

-- name: ViewSince :many
-- When rows came into the state they are in.
SELECT t.uid, coalesce((SELECT e.at FROM task_events e WHERE e.task_uid = t.uid AND e.type = t.state ORDER BY e.id DESC LIMIT 1), t.submitted_at)::timestamptz AS since
FROM tasks t WHERE t.uid = ANY (@uids::uuid[]);

-- name: ViewAgents :many
SELECT DISTINCT ON (t.agent_name)
       t.uid, t.kind, t.task_id, t.pool_name, t.state, t.request, t.labels, t.agent_name, t.node_id, t.actor_name, t.ray_namespace, t.actor_id, t.pid, t.submitted_at, t.started_at, t.code, t.reason,
       coalesce(t.spec ->> 'actor_class', t.spec ->> 'pickled_name', '')::text AS class
FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
WHERE n.name = @namespace AND t.kind <> 'registered' AND t.ended_at IS NULL AND t.state <> 'queued'
  AND (@after::text = '' OR t.agent_name > @after)
  AND (@pool::text = '' OR t.pool_name = @pool)
  AND (@txt::text = '' OR position(lower(@txt) IN lower(t.agent_name)) > 0)
ORDER BY t.agent_name, (t.kind = 'agent') DESC LIMIT @row_limit;

-- name: ViewCountAgents :one
SELECT count(DISTINCT t.agent_name) FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
WHERE n.name = @namespace AND t.kind <> 'registered' AND t.ended_at IS NULL AND t.state <> 'queued'
  AND (@pool::text = '' OR t.pool_name = @pool)
  AND (@txt::text = '' OR position(lower(@txt) IN lower(t.agent_name)) > 0);

-- name: ViewPreemptions :many
-- Without the saved states, which may be large: sizes says how large when asked for, else 1 or 0.
SELECT p.id, p.preemptor_uid, p.preemptor_task, p.preemptor_pool, p.preemptor_attempt, p.victim_uid, p.victim_task, p.victim_attempt, p.agent_name, p.pool_name,
       p.priority, p.reason, p.score, p.explanation, p.policy_version, p.phase, p.taken, p.loan, p.cancel_success, p.cancel_error, p.save_error, p.actor,
       p.decided_at, p.cancelled_at, p.saved_at, p.gone_at, p.running_at,
       (CASE WHEN p.saved_state IS NULL THEN 0 WHEN @sizes::boolean THEN octet_length(p.saved_state::text) ELSE 1 END)::bigint AS state_size,
       coalesce((SELECT e.at FROM task_events e WHERE e.task_uid = p.victim_uid AND e.attempt = p.victim_attempt AND e.type = 'phase:cancelling' AND e.at >= p.decided_at
                 ORDER BY e.id LIMIT 1), 'epoch')::timestamptz AS cancelling_at
FROM preemptions p
WHERE p.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace)
  AND (@before::bigint = 0 OR p.id < @before)
  AND (cardinality(@ids::bigint[]) = 0 OR p.id = ANY (@ids))
  AND (@reason::text = '' OR p.reason = @reason)
  AND (@pool::text = '' OR p.pool_name = @pool OR p.preemptor_pool = @pool)
  AND (@task::text = '' OR p.victim_task = @task OR p.preemptor_task = @task)
ORDER BY p.id DESC LIMIT @row_limit;

-- name: ViewCountPreemptions :one
SELECT count(*) FROM (
    SELECT 1 FROM preemptions p
    WHERE p.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace)
      AND (@reason::text = '' OR p.reason = @reason)
      AND (@pool::text = '' OR p.pool_name = @pool OR p.preemptor_pool = @pool)
      AND (@task::text = '' OR p.victim_task = @task OR p.preemptor_task = @task)
    LIMIT @most) x;

-- name: ViewPreemptionsOf :many
-- The ids of those in which a task made way or was made way for.
SELECT p.id FROM preemptions p WHERE p.victim_uid = @uid
UNION
SELECT p.id FROM preemptions p WHERE p.preemptor_uid = @uid
ORDER BY 1 DESC LIMIT 100;

-- name: ViewEvents :many
-- With when the stretch began that each event ends: the launch of a task that runs,
-- the run of one that ended, the handover of one that made way. Only ids above after
-- are looked at.
SELECT e.*, coalesce((SELECT b.at FROM task_events b
        WHERE b.task_uid = e.task_uid AND b.attempt = e.attempt AND b.id < e.id
          AND b.type = CASE WHEN e.type = 'running' THEN 'reserved' WHEN e.type IN ('completed', 'failed', 'cancelled') THEN 'running'
                            WHEN e.type IN ('preempted', 'queued') THEN 'preempting' END
        ORDER BY b.id DESC LIMIT 1), e.at)::timestamptz AS began
FROM task_events e
WHERE e.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace)
  AND e.id < @before::bigint AND e.id > @after::bigint
  AND (@pool::text = '' OR e.pool_name = @pool)
  AND (cardinality(@types::text[]) = 0 OR e.type = ANY (@types::text[]))
  AND (NOT @by_task::boolean OR e.task_uid = ANY (@uids::uuid[]))
ORDER BY e.id DESC LIMIT @row_limit;

-- name: ViewPreemptionHours :many
-- How many were decided in each of the hours before now, by reason; 0 is the last hour.
SELECT floor(extract(epoch FROM sqlc.arg(now)::timestamptz - p.decided_at) / 3600)::bigint AS hours_ago, p.reason, count(*) AS n
FROM preemptions p
WHERE p.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace) AND p.phase <> 'undone' AND p.decided_at > @since::timestamptz AND p.decided_at <= @now
  AND p.id > coalesce((SELECT o.id FROM preemptions o WHERE o.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace) AND o.decided_at <= @since
                       ORDER BY o.id DESC LIMIT 1), 0)
GROUP BY 1, 2 ORDER BY 1, 2;

-- name: ViewHandoverTimes :one
-- How long preemptors waited until they ran, and the median of each phase, in milliseconds.
WITH h AS (
    SELECT min(p.decided_at) AS decided, max(p.cancelled_at) AS cancelled, max(p.saved_at) AS saved, max(p.gone_at) AS gone, max(p.running_at) AS running
    FROM preemptions p
    WHERE p.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace) AND p.phase = 'gone' AND p.preemptor_uid IS NOT NULL AND p.decided_at > @since::timestamptz
      AND p.id > coalesce((SELECT o.id FROM preemptions o WHERE o.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace) AND o.decided_at <= @since
                           ORDER BY o.id DESC LIMIT 1), 0)
    GROUP BY p.preemptor_uid, p.preemptor_attempt
    HAVING max(p.running_at) IS NOT NULL)
SELECT count(*) AS n,
       coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM h.running - h.decided) * 1000), 0)::double precision AS p50,
       coalesce(percentile_disc(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM h.running - h.decided) * 1000), 0)::double precision AS p99,
       coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM h.cancelled - h.decided) * 1000), 0)::double precision AS cancel,
       coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM h.saved - h.cancelled) * 1000), 0)::double precision AS save,
       coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM h.gone - h.saved) * 1000), 0)::double precision AS kill,
       coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM h.running - h.gone) * 1000), 0)::double precision AS launch
FROM h;

-- name: ViewGPULost :one
-- GPU-seconds that victims had run in the attempt that was taken, without a saved state to go on from.
SELECT coalesce(sum((t.request ->> 'gpu')::double precision / 1000 * extract(epoch FROM p.decided_at - greatest(began.at, @since::timestamptz))), 0)::double precision AS gpu_seconds
FROM preemptions p
JOIN tasks t ON t.uid = p.victim_uid
CROSS JOIN LATERAL (SELECT e.at FROM task_events e WHERE e.task_uid = p.victim_uid AND e.attempt = p.victim_attempt AND e.type = 'running' AND e.at <= p.decided_at
                    ORDER BY e.id DESC LIMIT 1) began
WHERE p.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace) AND p.phase = 'gone' AND p.saved_state IS NULL AND p.decided_at > @since
  AND t.request ? 'gpu'
  AND p.id > coalesce((SELECT o.id FROM preemptions o WHERE o.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace) AND o.decided_at <= @since
                       ORDER BY o.id DESC LIMIT 1), 0);

-- name: ViewGPUUsed :one
-- GPU-seconds run since then: the attempts that tasks are in, or ended in, and those that were taken before.
SELECT (coalesce((SELECT sum((t.request ->> 'gpu')::double precision / 1000
                             * extract(epoch FROM coalesce(t.ended_at, @now::timestamptz) - greatest(t.started_at, @since::timestamptz)))
                  FROM tasks t
                  WHERE t.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace) AND t.kind <> 'registered' AND t.request ? 'gpu'
                    AND t.started_at IS NOT NULL AND t.state <> 'queued' AND (t.ended_at IS NULL OR t.ended_at > @since)), 0)
      + coalesce((SELECT sum((t.request ->> 'gpu')::double precision / 1000
                             * extract(epoch FROM coalesce(p.gone_at, p.decided_at) - greatest(began.at, @since::timestamptz)))
                  FROM preemptions p
                  JOIN tasks t ON t.uid = p.victim_uid
                  CROSS JOIN LATERAL (SELECT e.at FROM task_events e WHERE e.task_uid = p.victim_uid AND e.attempt = p.victim_attempt AND e.type = 'running' AND e.at <= p.decided_at
                                      ORDER BY e.id DESC LIMIT 1) began
                  WHERE p.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace) AND p.phase = 'gone' AND p.decided_at > @since
                    AND t.request ? 'gpu' AND (t.attempt > p.victim_attempt OR t.state = 'queued')
                    AND p.id > coalesce((SELECT o.id FROM preemptions o WHERE o.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace) AND o.decided_at <= @since
                                         ORDER BY o.id DESC LIMIT 1), 0)), 0))::double precision AS gpu_seconds;

-- name: ViewLoans :many
SELECT lender.name AS lender, borrower.name AS borrower, l.resource, l.amount, l.since
FROM loans l JOIN pools lender ON lender.id = l.lender_id JOIN pools borrower ON borrower.id = l.borrower_id JOIN namespaces n ON n.id = lender.namespace_id
WHERE n.name = @namespace AND (lender.name = @pool OR borrower.name = @pool) ORDER BY lender.name, borrower.name, l.resource;

-- name: ViewClasses :many
SELECT DISTINCT c.class::text AS class FROM (
    SELECT coalesce(t.spec ->> 'actor_class', '') AS class FROM tasks t
    WHERE t.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace) AND t.kind = 'task' ORDER BY t.uid DESC LIMIT 500) c
WHERE c.class <> '' ORDER BY 1 LIMIT 50;

-- name: ViewPolicyHistory :many
SELECT p.* FROM namespaces n JOIN policies p ON p.namespace_id = n.id
WHERE n.name = @namespace AND (@before::integer = 0 OR p.version < @before) ORDER BY p.version DESC LIMIT @row_limit;

-- name: ViewFind :many
-- Names that contain a text: of pools, of agents, of live tasks and of the latest tasks that ended.
WITH ns AS (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace),
found AS (
    SELECT 'pool'::text AS kind, p.name, ''::text AS state, p.cluster AS place, 0 AS rank FROM pools p WHERE p.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace) AND p.deleted_at IS NULL
    UNION ALL
    SELECT 'task', t.task_id, t.state, t.pool_name, 1 FROM tasks t WHERE t.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace) AND t.kind <> 'agent' AND t.ended_at IS NULL
    UNION ALL
    SELECT 'task', t.task_id, t.state, t.pool_name, 2 FROM (
        SELECT d.task_id, d.state, d.pool_name FROM tasks d
        WHERE d.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace) AND d.kind <> 'agent' AND d.ended_at IS NOT NULL ORDER BY d.uid DESC LIMIT 20000) t
    UNION ALL
    (SELECT 'task', t.task_id, t.state, t.pool_name, 2 FROM tasks t
     WHERE t.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace) AND t.kind <> 'agent' AND t.task_id = @txt ORDER BY t.uid DESC LIMIT 1)
    UNION ALL
    SELECT 'agent', t.agent_name, t.state, t.pool_name, 3 FROM tasks t
    WHERE t.namespace_id = (SELECT ns.id FROM namespaces ns WHERE ns.name = @namespace) AND t.kind <> 'registered' AND t.ended_at IS NULL AND t.state <> 'queued')
SELECT f.kind, f.name::text AS name, min(f.state)::text AS state, min(f.place)::text AS place FROM (
    SELECT DISTINCT ON (f.kind, f.name) f.kind, f.name, f.state, f.place, f.rank FROM found f
    WHERE position(lower(@txt::text) IN lower(f.name)) > 0 ORDER BY f.kind, f.name, f.rank) f
GROUP BY f.kind, f.name
ORDER BY min(CASE WHEN f.name = @txt THEN 0 WHEN lower(f.name) = lower(@txt) THEN 1 WHEN starts_with(lower(f.name), lower(@txt)) THEN 2 ELSE 3 END),
         min(f.rank), length(f.name), f.name
LIMIT @row_limit;
