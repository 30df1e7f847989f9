-- State handlers of pools, and what they are told.

-- name: PutStateHandlers :exec
INSERT INTO state_handlers (namespace_id, pool_name, preserver, preserver_name, restorer, restorer_name, updated_at)
VALUES (@namespace_id, @pool_name, @preserver, @preserver_name, @restorer, @restorer_name, @updated_at)
ON CONFLICT (namespace_id, pool_name) DO UPDATE
SET preserver = excluded.preserver, preserver_name = excluded.preserver_name,
    restorer = excluded.restorer, restorer_name = excluded.restorer_name, updated_at = excluded.updated_at;

-- name: StateHandlerNames :one
SELECT h.preserver_name, h.restorer_name, h.updated_at
FROM state_handlers h JOIN namespaces n ON n.id = h.namespace_id WHERE n.name = @namespace AND h.pool_name = @pool_name;

-- name: DeleteStateHandlers :execrows
DELETE FROM state_handlers WHERE namespace_id = @namespace_id AND pool_name = @pool_name;

-- name: TaskToSave :one
-- A task that makes way, with its pool's preserver. What was given with it is only read where it is asked for.
SELECT coalesce(t.task_id, '')::text AS task_id, t.agent_name, t.pool_name, t.kind, t.priority, t.labels, t.estimate_ms, t.started_at, t.attempt, t.node_id,
       coalesce(CASE WHEN h.preserver IS NOT NULL OR t.kind = 'registered' THEN t.spec -> 'payload' END, 'null')::jsonb AS payload,
       coalesce(CASE WHEN h.preserver IS NOT NULL THEN t.spec -> 'runtime_env' END, 'null')::jsonb AS runtime_env,
       h.preserver, coalesce(h.preserver_name, '')::text AS preserver_name
FROM tasks t LEFT JOIN state_handlers h ON h.namespace_id = t.namespace_id AND h.pool_name = t.pool_name
WHERE t.uid = @uid;

-- name: Restorer :one
-- A pool's restorer, and where and how the latest task of an id ran.
SELECT h.restorer, h.restorer_name, coalesce(t.node_id, '')::text AS node_id, coalesce(t.runtime_env, 'null')::jsonb AS runtime_env
FROM state_handlers h JOIN namespaces n ON n.id = h.namespace_id
     LEFT JOIN LATERAL (SELECT l.node_id, l.spec -> 'runtime_env' AS runtime_env FROM tasks l
                        WHERE l.namespace_id = h.namespace_id AND l.task_id = @task_id::text AND l.kind <> 'agent' AND l.pool_name = h.pool_name
                        ORDER BY (l.ended_at IS NULL) DESC, l.uid DESC LIMIT 1) t ON true
WHERE n.name = @namespace AND h.pool_name = @pool_name AND h.restorer IS NOT NULL;

-- name: DeadAgents :many
-- Agents that ended by themselves since a time, and whose name, or whose task's id, nobody has had since.
SELECT t.uid, t.kind, t.agent_name, t.pool_name, t.code, t.reason
FROM tasks t JOIN namespaces n ON n.id = t.namespace_id
WHERE n.name = @namespace AND t.ended_at > @since::timestamptz AND t.kind <> 'registered' AND t.state = 'failed' AND t.code = ANY (@codes::text[])
  AND (t.spec ? 'actor_class' OR t.pickled IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM tasks o WHERE o.namespace_id = t.namespace_id AND o.agent_name = t.agent_name AND o.uid <> t.uid AND o.kind <> 'registered'
                  AND o.ended_at IS NULL AND o.held <> '{}')
  AND CASE t.kind
      WHEN 'task' THEN NOT EXISTS (SELECT 1 FROM tasks o WHERE o.namespace_id = t.namespace_id AND o.task_id = t.task_id AND o.kind <> 'agent' AND o.uid > t.uid)
      ELSE NOT EXISTS (SELECT 1 FROM tasks o WHERE o.namespace_id = t.namespace_id AND o.agent_name = t.agent_name AND o.kind = 'agent' AND o.ended_at > t.ended_at)
      END
ORDER BY t.uid LIMIT 1000;
