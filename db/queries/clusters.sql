-- Ray clusters that jobs may go to: what is configured, how they are, how they were.

-- name: LockClusterChanges :exec
-- Changes of what is configured follow one another: they look at what is there, and at what is not.
SELECT pg_advisory_xact_lock(hashtext('schedulemesh clusters'));

-- name: ClusterVersions :many
-- Every cluster and the version of its row: xmin is the transaction that wrote it.
SELECT name, xmin::text AS version FROM clusters;

-- name: ClustersByName :many
SELECT name, spec, source, removed, held, hold_reason, hold_actor, held_since, rev, status, xmin::text AS version
FROM clusters WHERE name = ANY (@names::text[]);

-- name: ClustersToChange :many
-- The clusters that Specs are of, or all, locked by name; and whether they say the same. As jsonb, 1e2 is 100.
SELECT c.name, c.spec, (c.file_spec IS NOT NULL)::boolean AS in_file, c.source, c.removed, c.held, c.hold_reason, c.hold_actor, c.held_since, c.rev,
       coalesce(c.spec = n.spec, false)::boolean AS same, coalesce(c.file_spec = n.spec, false)::boolean AS same_file
FROM clusters c
LEFT JOIN (SELECT unnest(@names::text[]) AS name, unnest(@specs::text[])::jsonb AS spec) n ON n.name = c.name
WHERE @everything::boolean OR n.name IS NOT NULL
ORDER BY c.name
FOR UPDATE OF c;

-- name: WriteCluster :exec
INSERT INTO clusters (name, spec, file_spec, source, removed, held, hold_reason, hold_actor, held_since, rev)
VALUES (@name, @spec, CASE WHEN @in_file::boolean THEN sqlc.narg(file_spec)::jsonb END, @source, @removed, @held, @hold_reason, @hold_actor, @held_since, @rev)
ON CONFLICT (name) DO UPDATE
SET spec = excluded.spec, source = excluded.source, removed = excluded.removed, held = excluded.held, hold_reason = excluded.hold_reason,
    hold_actor = excluded.hold_actor, held_since = excluded.held_since, rev = excluded.rev, updated_at = now(),
    file_spec = CASE WHEN NOT @in_file::boolean THEN NULL ELSE coalesce(excluded.file_spec, clusters.file_spec) END,
    status = CASE WHEN @forget::boolean THEN NULL ELSE clusters.status END;

-- name: DeleteClusters :exec
WITH gone AS (DELETE FROM clusters WHERE clusters.name = ANY (@names::text[]))
DELETE FROM cluster_samples WHERE cluster_samples.cluster = ANY (@names::text[]);

-- name: LiveJobsOn :many
SELECT cluster, count(*) FROM jobs
WHERE ended_at IS NULL AND state <> 'QUEUED' AND cluster = ANY (@names::text[])
GROUP BY cluster;

-- name: TellOfClusters :exec
SELECT pg_notify('schedulemesh_jobs', 'clusters');

-- name: SaveClusterStatus :many
-- Rows are locked in the order in which changes lock them.
WITH said AS (SELECT unnest(@names::text[]) AS name, unnest(@statuses::text[])::jsonb AS status),
     there AS (SELECT c.name FROM clusters c JOIN said ON said.name = c.name WHERE NOT c.removed ORDER BY c.name FOR UPDATE OF c)
UPDATE clusters SET status = said.status
FROM said JOIN there ON there.name = said.name
WHERE clusters.name = said.name
RETURNING clusters.name, clusters.rev, clusters.xmin::text AS version;

-- name: AddClusterSamples :exec
INSERT INTO cluster_samples (cluster, at, score, total, used, jobs)
SELECT unnest(@clusters::text[]), unnest(@ats::timestamptz[]), unnest(@scores::real[]), unnest(@totals::text[])::jsonb, unnest(@useds::text[])::jsonb, unnest(@jobs::integer[])
ON CONFLICT (cluster, at) DO NOTHING;

-- name: TrimClusterSamples :exec
DELETE FROM cluster_samples WHERE at < now() - interval '6 hours';

-- name: ClusterSamples :many
SELECT at, score, total, used, jobs FROM cluster_samples WHERE cluster = @cluster AND at >= @since ORDER BY at;
