-- What a lane does: lock, catch up, write. Each batch is one transaction.

-- name: LockPools :many
SELECT p.id, p.version, p.namespace_id, n.policy_version, n.epoch, pg_current_xact_id()::text AS xid
FROM pools p JOIN namespaces n ON n.id = p.namespace_id
WHERE p.id = ANY (@ids::bigint[]) AND p.deleted_at IS NULL
ORDER BY p.id
FOR UPDATE OF p;

-- name: LockUnmanaged :many
-- The same for what belongs to no pool, by namespace. Not FOR UPDATE, which new pools would wait for.
SELECT n.id, n.unmanaged_version, n.policy_version, n.epoch, pg_current_xact_id()::text AS xid
FROM namespaces n WHERE n.id = ANY (@ids::bigint[])
ORDER BY n.id
FOR NO KEY UPDATE;

-- name: BumpPools :exec
UPDATE pools SET version = version + 1 WHERE id = ANY (@ids::bigint[]);

-- name: BumpUnmanaged :exec
UPDATE namespaces SET unmanaged_version = unmanaged_version + 1 WHERE id = ANY (@ids::bigint[]);

-- name: WriteChanges :exec
INSERT INTO pool_changes (pool_id, version, uids)
SELECT unnest(@pool_ids::bigint[]), unnest(@versions::bigint[]), unnest(@uidss::bytea[])
ON CONFLICT (pool_id, version) DO UPDATE SET uids = excluded.uids;

-- name: WriteBalances :exec
UPDATE pool_resources p
SET capacity = u.capacity, reserved = u.reserved, used = u.used, borrowed = u.borrowed, lent = u.lent
FROM (SELECT unnest(@pool_ids::bigint[]) AS pool_id, unnest(@resources::text[]) AS resource,
             unnest(@capacities::bigint[]) AS capacity, unnest(@reserveds::bigint[]) AS reserved,
             unnest(@useds::bigint[]) AS used, unnest(@borroweds::bigint[]) AS borrowed,
             unnest(@lents::bigint[]) AS lent) u
WHERE p.pool_id = u.pool_id AND p.resource = u.resource;

-- name: AddResources :exec
INSERT INTO pool_resources (pool_id, resource, capacity)
SELECT @pool_id::bigint, unnest(@resources::text[]), 0
ON CONFLICT DO NOTHING;

-- name: WriteLoans :exec
INSERT INTO loans (lender_id, borrower_id, resource, amount, since)
SELECT unnest(@lender_ids::bigint[]), unnest(@borrower_ids::bigint[]), unnest(@resources::text[]), unnest(@amounts::bigint[]), @since::timestamptz
ON CONFLICT (lender_id, borrower_id, resource) DO UPDATE SET amount = excluded.amount;

-- name: EndLoan :exec
DELETE FROM loans WHERE lender_id = @lender_id AND borrower_id = @borrower_id AND resource = @resource;

-- name: InsertTasks :exec
INSERT INTO tasks (uid, namespace_id, kind, task_id, pool_id, pool_name, state, priority, labels, request, held, held_as,
                   agent_name, agent_uid, node_id, launch_id, actor_name, ray_namespace, spec, pickled, body_hash, estimate_ms, max_runtime_ms, launch_ms,
                   on_insufficient, on_preempted, on_failure, max_attempts, actor,
                   submitted_at, queued_at, started_at, actor_id, pid, attempt)
SELECT u.uid, u.namespace_id, u.kind, nullif(u.task_id, ''), nullif(u.pool_id, 0), u.pool_name, u.state, u.priority, u.labels, u.request, u.held, u.held_as,
       u.agent_name, nullif(u.agent_uid, '00000000-0000-0000-0000-000000000000'::uuid), u.node_id, u.launch_id, u.actor_name, u.ray_namespace, u.spec, u.pickled, u.body_hash, u.estimate_ms, u.max_runtime_ms, u.launch_ms,
       u.on_insufficient, u.on_preempted, u.on_failure, u.max_attempts, u.actor,
       @now::timestamptz, nullif(u.queued_at, '0001-01-01 00:00:00+00'), nullif(u.started_at, '0001-01-01 00:00:00+00'), u.actor_id, u.pid, u.attempt
FROM (SELECT unnest(@uids::uuid[]) AS uid, unnest(@namespace_ids::bigint[]) AS namespace_id, unnest(@kinds::text[]) AS kind,
             unnest(@task_ids::text[]) AS task_id, unnest(@pool_ids::bigint[]) AS pool_id, unnest(@pool_names::text[]) AS pool_name,
             unnest(@states::text[]) AS state, unnest(@priorities::bigint[]) AS priority, unnest(@labels::jsonb[]) AS labels,
             unnest(@requests::jsonb[]) AS request, unnest(@helds::jsonb[]) AS held, unnest(@held_ass::text[]) AS held_as,
             unnest(@agent_names::text[]) AS agent_name, unnest(@agent_uids::uuid[]) AS agent_uid, unnest(@node_ids::text[]) AS node_id, unnest(@launch_ids::text[]) AS launch_id,
             unnest(@actor_names::text[]) AS actor_name, unnest(@ray_namespaces::text[]) AS ray_namespace,
             unnest(@specs::jsonb[]) AS spec, unnest(@pickleds::bytea[]) AS pickled, unnest(@body_hashes::bytea[]) AS body_hash,
             unnest(@estimates::bigint[]) AS estimate_ms, unnest(@max_runtimes::bigint[]) AS max_runtime_ms, unnest(@launches::bigint[]) AS launch_ms,
             unnest(@on_insufficients::text[]) AS on_insufficient, unnest(@on_preempteds::text[]) AS on_preempted,
             unnest(@on_failures::text[]) AS on_failure, unnest(@max_attemptss::integer[]) AS max_attempts, unnest(@actors::text[]) AS actor,
             unnest(@actor_ids::text[]) AS actor_id, unnest(@pids::integer[]) AS pid, unnest(@attempts::integer[]) AS attempt,
             unnest(@queued_ats::timestamptz[]) AS queued_at, unnest(@started_ats::timestamptz[]) AS started_at) u;

-- name: UpdateTasks :exec
UPDATE tasks t
SET state = u.state, phase = u.phase, attempt = u.attempt, priority = u.priority, labels = u.labels, held = u.held, held_as = u.held_as,
    node_id = u.node_id, launch_id = u.launch_id, actor_name = u.actor_name, ray_namespace = u.ray_namespace, actor_id = u.actor_id, pid = u.pid,
    estimate_ms = u.estimate_ms, failures = u.failures, preemptions = u.preemptions, preempted_by = u.preempted_by::uuid[],
    ending = u.ending, code = u.code, reason = u.reason,
    queued_at = nullif(u.queued_at, '0001-01-01 00:00:00+00'), started_at = nullif(u.started_at, '0001-01-01 00:00:00+00'), ended_at = nullif(u.ended_at, '0001-01-01 00:00:00+00'),
    ended_uid = CASE WHEN u.ended_at > '0001-01-01 00:00:00+00' THEN t.uid END
FROM (SELECT unnest(@uids::uuid[]) AS uid, unnest(@states::text[]) AS state, unnest(@phases::text[]) AS phase, unnest(@attempts::integer[]) AS attempt,
             unnest(@priorities::bigint[]) AS priority, unnest(@labels::jsonb[]) AS labels, unnest(@helds::jsonb[]) AS held, unnest(@held_ass::text[]) AS held_as,
             unnest(@node_ids::text[]) AS node_id, unnest(@launch_ids::text[]) AS launch_id, unnest(@actor_names::text[]) AS actor_name, unnest(@ray_namespaces::text[]) AS ray_namespace,
             unnest(@actor_ids::text[]) AS actor_id, unnest(@pids::integer[]) AS pid, unnest(@estimates::bigint[]) AS estimate_ms,
             unnest(@failuress::integer[]) AS failures, unnest(@preemptionss::integer[]) AS preemptions, unnest(@preempted_bys::text[]) AS preempted_by,
             unnest(@endings::text[]) AS ending, unnest(@codes::text[]) AS code, unnest(@reasons::text[]) AS reason,
             unnest(@queued_ats::timestamptz[]) AS queued_at, unnest(@started_ats::timestamptz[]) AS started_at, unnest(@ended_ats::timestamptz[]) AS ended_at) u
WHERE t.uid = u.uid;

-- What most updates are: a reserved task runs now. UpdateTasks would say the same.
-- name: StartTasks :exec
UPDATE tasks t
SET state = 'running', phase = '', code = '', reason = '', held_as = 'used', started_at = @now::timestamptz,
    node_id = u.node_id, actor_name = u.actor_name, ray_namespace = u.ray_namespace, actor_id = u.actor_id, pid = u.pid
FROM (SELECT unnest(@uids::uuid[]) AS uid, unnest(@node_ids::text[]) AS node_id, unnest(@actor_names::text[]) AS actor_name,
             unnest(@ray_namespaces::text[]) AS ray_namespace, unnest(@actor_ids::text[]) AS actor_id, unnest(@pids::integer[]) AS pid) u
WHERE t.uid = u.uid;

-- name: WriteResult :exec
UPDATE tasks SET result = @result WHERE uid = @uid;

-- name: WriteSavedState :exec
UPDATE tasks SET saved_state = @saved_state WHERE uid = @uid;

-- name: InsertEvents :exec
INSERT INTO task_events (at, namespace_id, task_uid, task_id, pool_name, attempt, type, actor, code, message, detail, policy_version)
SELECT u.at, u.namespace_id, nullif(u.task_uid, '00000000-0000-0000-0000-000000000000'::uuid), u.task_id, u.pool_name, u.attempt, u.type, u.actor, u.code, u.message, u.detail, u.policy_version
FROM (SELECT unnest(@ats::timestamptz[]) AS at, unnest(@namespace_ids::bigint[]) AS namespace_id, unnest(@task_uids::uuid[]) AS task_uid,
             unnest(@task_ids::text[]) AS task_id, unnest(@pool_names::text[]) AS pool_name, unnest(@attempts::integer[]) AS attempt,
             unnest(@types::text[]) AS type, unnest(@actors::text[]) AS actor, unnest(@codes::text[]) AS code, unnest(@messages::text[]) AS message,
             unnest(@details::jsonb[]) AS detail, unnest(@policy_versions::integer[]) AS policy_version) u;

-- name: InsertPreemptions :exec
INSERT INTO preemptions (namespace_id, preemptor_uid, preemptor_task, preemptor_pool, preemptor_attempt, victim_uid, victim_task, victim_attempt,
                         agent_uid, agent_name, pool_name, priority, reason, score, explanation, policy_version, phase, taken, loan, actor, decided_at)
SELECT u.namespace_id, u.preemptor_uid, u.preemptor_task, u.preemptor_pool, u.preemptor_attempt, u.victim_uid, u.victim_task, u.victim_attempt,
       u.agent_uid, u.agent_name, u.pool_name, u.priority, u.reason, u.score, u.explanation, u.policy_version, u.phase, u.taken, u.loan, u.actor, @decided_at::timestamptz
FROM (SELECT unnest(@namespace_ids::bigint[]) AS namespace_id, unnest(@preemptor_uids::uuid[]) AS preemptor_uid, unnest(@preemptor_tasks::text[]) AS preemptor_task,
             unnest(@preemptor_pools::text[]) AS preemptor_pool, unnest(@preemptor_attempts::integer[]) AS preemptor_attempt,
             unnest(@victim_uids::uuid[]) AS victim_uid, unnest(@victim_tasks::text[]) AS victim_task, unnest(@victim_attempts::integer[]) AS victim_attempt,
             unnest(@agent_uids::uuid[]) AS agent_uid, unnest(@agent_names::text[]) AS agent_name, unnest(@pool_names::text[]) AS pool_name,
             unnest(@priorities::bigint[]) AS priority, unnest(@reasons::text[]) AS reason, unnest(@scores::bigint[]) AS score,
             unnest(@explanations::jsonb[]) AS explanation, unnest(@policy_versions::integer[]) AS policy_version, unnest(@phases::text[]) AS phase,
             unnest(@takens::jsonb[]) AS taken, unnest(@loans::boolean[]) AS loan, unnest(@actors::text[]) AS actor) u;

-- name: UpdatePreemptions :exec
UPDATE preemptions p
SET phase = u.phase, cancel_success = nullif(u.cancel_success, '')::boolean, cancel_error = u.cancel_error, save_error = u.save_error, saved_state = u.saved_state,
    cancelled_at = nullif(u.cancelled_at, '0001-01-01 00:00:00+00'), saved_at = nullif(u.saved_at, '0001-01-01 00:00:00+00'), gone_at = nullif(u.gone_at, '0001-01-01 00:00:00+00')
FROM (SELECT unnest(@victim_uids::uuid[]) AS victim_uid, unnest(@victim_attempts::integer[]) AS victim_attempt, unnest(@phases::text[]) AS phase,
             unnest(@cancel_successes::text[]) AS cancel_success, unnest(@cancel_errors::text[]) AS cancel_error, unnest(@save_errors::text[]) AS save_error,
             unnest(@saved_states::jsonb[]) AS saved_state, unnest(@cancelled_ats::timestamptz[]) AS cancelled_at,
             unnest(@saved_ats::timestamptz[]) AS saved_at, unnest(@gone_ats::timestamptz[]) AS gone_at) u
WHERE p.victim_uid = u.victim_uid AND p.victim_attempt = u.victim_attempt AND p.phase <> 'undone';

-- name: PreemptorsRunning :exec
UPDATE preemptions p SET running_at = @now::timestamptz
FROM (SELECT unnest(@preemptor_uids::uuid[]) AS uid, unnest(@attempts::integer[]) AS attempt) u
WHERE p.preemptor_uid = u.uid AND p.preemptor_attempt = u.attempt AND p.phase <> 'undone';
