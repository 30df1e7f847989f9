-- Every balance recomputed from tasks and loans; only differences come back.

-- name: Differences :many
WITH held AS (
    SELECT t.pool_id, h.resource,
           sum(h.amount::bigint) FILTER (WHERE t.held_as = 'reserved') AS reserved,
           sum(h.amount::bigint) FILTER (WHERE t.held_as = 'used') AS used
    FROM tasks t, jsonb_each_text(t.held) AS h(resource, amount) WHERE t.held_as <> '' GROUP BY 1, 2
), lent AS (
    SELECT lender_id AS pool_id, resource, sum(amount) AS lent FROM loans GROUP BY 1, 2
), borrowed AS (
    SELECT borrower_id AS pool_id, resource, sum(amount) AS borrowed FROM loans GROUP BY 1, 2
), parts AS (
    SELECT pool_id, resource, reserved, used, 0 AS borrowed, 0 AS lent FROM held
    UNION ALL SELECT l.pool_id, l.resource, 0, 0, 0, l.lent FROM lent l
    UNION ALL SELECT b.pool_id, b.resource, 0, 0, b.borrowed, 0 FROM borrowed b
), truth AS (
    SELECT x.pool_id, x.resource, sum(x.reserved) AS reserved, sum(x.used) AS used, sum(x.borrowed) AS borrowed, sum(x.lent) AS lent
    FROM parts x GROUP BY 1, 2
)
SELECT n.name AS namespace, p.name AS pool, coalesce(r.resource, t.resource)::text AS resource,
       coalesce(r.reserved, 0)::bigint AS reserved, coalesce(t.reserved, 0)::bigint AS true_reserved,
       coalesce(r.used, 0)::bigint AS used, coalesce(t.used, 0)::bigint AS true_used,
       coalesce(r.borrowed, 0)::bigint AS borrowed, coalesce(t.borrowed, 0)::bigint AS true_borrowed,
       coalesce(r.lent, 0)::bigint AS lent, coalesce(t.lent, 0)::bigint AS true_lent
FROM pool_resources r
FULL JOIN truth t ON t.pool_id = r.pool_id AND t.resource = r.resource
JOIN pools p ON p.id = coalesce(r.pool_id, t.pool_id)
JOIN namespaces n ON n.id = p.namespace_id
WHERE (coalesce(r.reserved, 0), coalesce(r.used, 0), coalesce(r.borrowed, 0), coalesce(r.lent, 0))
      IS DISTINCT FROM (coalesce(t.reserved, 0), coalesce(t.used, 0), coalesce(t.borrowed, 0), coalesce(t.lent, 0))
ORDER BY 1, 2, 3;

-- name: OrphanHolders :many
-- Live rows that hold quota of a pool that is gone.
SELECT t.uid, t.task_id, t.pool_name FROM tasks t LEFT JOIN pools p ON p.id = t.pool_id
WHERE t.held <> '{}' AND (p.id IS NULL OR p.deleted_at IS NOT NULL);
