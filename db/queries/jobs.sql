-- Jobs over many clusters. They are written in batches by package jobs.

-- name: InsertJob :batchone
INSERT INTO jobs (uid, submission_id, job_id, entrypoint, runtime_env, metadata, tags, preferred_cluster, requirements, reserve, priority,
                  queue_timeout_ms, max_retries, retry_on, submitted_by, fingerprint, state, notes, created_at, queued_at)
VALUES (@uid, @submission_id, @job_id, @entrypoint, @runtime_env, @metadata, @tags, @preferred_cluster, @requirements, @reserve, @priority,
        @queue_timeout_ms, @max_retries, @retry_on, @submitted_by, @fingerprint, 'QUEUED', @notes, @created_at, @created_at)
ON CONFLICT (submission_id) DO NOTHING
RETURNING uid;

-- name: MoveJob :batchone
-- What a client asks for afterwards (stop_requested) is not touched: others write that.
UPDATE jobs SET state = @state, code = @code, reason = @reason, attempt = @attempt, cluster = @cluster, ray_id = @ray_id, session = @session,
       merged_env = @merged_env, placement = @placement, tried = @tried, notes = @notes, exit_code = sqlc.narg(exit_code), error_type = @error_type, message = @message,
       queued_at = @queued_at, placed_at = sqlc.narg(placed_at), accepted_at = sqlc.narg(accepted_at), started_at = sqlc.narg(started_at), ended_at = sqlc.narg(ended_at), rev = rev + 1
WHERE uid = @uid AND rev = @rev
RETURNING rev;

-- name: AddJobEvent :batchexec
INSERT INTO job_events (job_uid, at, type, actor, attempt, cluster, code, message, detail)
VALUES (@job_uid, @at, @type, @actor, @attempt, @cluster, @code, @message, sqlc.narg(detail));

-- name: AddStray :batchexec
INSERT INTO job_strays (cluster, ray_id, job_uid, attempt, since) VALUES (@cluster, @ray_id, @job_uid, @attempt, @since)
ON CONFLICT (cluster, ray_id) DO NOTHING;

-- name: DropStray :exec
DELETE FROM job_strays WHERE cluster = @cluster AND ray_id = @ray_id;

-- name: Strays :many
SELECT * FROM job_strays ORDER BY since;

-- name: RequestStop :one
UPDATE jobs SET stop_requested_by = CASE WHEN stop_requested_at IS NULL THEN @actor ELSE stop_requested_by END,
       stop_requested_at = coalesce(stop_requested_at, @at)
WHERE submission_id = @submission_id AND ended_at IS NULL
RETURNING uid, (stop_requested_at = @at)::boolean AS is_new;

-- name: StopsRequested :many
SELECT uid, stop_requested_by, stop_requested_at FROM jobs WHERE ended_at IS NULL AND stop_requested_at IS NOT NULL;

-- name: KeepLogTail :exec
INSERT INTO job_logs (job_uid, tail) VALUES (@job_uid, @tail) ON CONFLICT (job_uid) DO UPDATE SET tail = excluded.tail;

-- name: LogTail :one
SELECT tail FROM job_logs WHERE job_uid = @job_uid;

-- name: JobBySubmission :one
SELECT * FROM jobs WHERE submission_id = @submission_id;

-- name: JobByUID :one
SELECT * FROM jobs WHERE uid = @uid;

-- name: LiveJobs :many
SELECT * FROM jobs WHERE ended_at IS NULL ORDER BY created_at, uid;

-- name: LiveJobUIDs :many
SELECT uid FROM jobs WHERE ended_at IS NULL;

-- name: JobsByUID :many
SELECT * FROM jobs WHERE uid = ANY (@uids::uuid[]);

-- name: QueuePositions :many
-- Where jobs stand in line, from 1.
SELECT x.uid, x.n FROM (SELECT uid, row_number() OVER (ORDER BY priority DESC, created_at, uid) AS n FROM jobs WHERE state = 'QUEUED') x
WHERE x.uid = ANY (@uids::uuid[]);

-- name: FindJobs :many
SELECT * FROM jobs
WHERE (cardinality(@states::text[]) = 0 OR state = ANY (@states::text[]))
  AND (@cluster::text = '' OR cluster = @cluster)
  AND (@job_id::text = '' OR job_id = @job_id)
  AND (cardinality(@tags::text[]) = 0 OR tags @> @tags) AND (@metadata::jsonb = '{}' OR metadata @> @metadata)
  AND (@txt::text = '' OR created_at >= @since AND (position(lower(@txt) IN lower(submission_id)) > 0 OR position(lower(@txt) IN lower(job_id)) > 0 OR position(lower(@txt) IN lower(entrypoint)) > 0))
  AND (sqlc.narg(after)::timestamptz IS NULL OR created_at >= sqlc.narg(after))
  AND (sqlc.narg(before)::timestamptz IS NULL OR created_at < sqlc.narg(before))
  AND (sqlc.narg(cursor_at)::timestamptz IS NULL OR (created_at, uid) < (sqlc.narg(cursor_at), sqlc.narg(cursor_uid)::uuid))
ORDER BY created_at DESC, uid DESC LIMIT @row_limit;

-- name: CountJobs :many
-- Of each state, up to a limit and no further back than since: nobody waits until all of a long history is counted.
-- The order has each state's own index walked.
SELECT s.state::text AS state, (SELECT count(*) FROM (
    SELECT 1 FROM jobs
    WHERE state = s.state AND created_at >= @since
      AND (@cluster::text = '' OR cluster = @cluster)
      AND (@job_id::text = '' OR job_id = @job_id)
      AND (cardinality(@tags::text[]) = 0 OR tags @> @tags) AND (@metadata::jsonb = '{}' OR metadata @> @metadata)
      AND (@txt::text = '' OR position(lower(@txt) IN lower(submission_id)) > 0 OR position(lower(@txt) IN lower(job_id)) > 0 OR position(lower(@txt) IN lower(entrypoint)) > 0)
      AND (sqlc.narg(after)::timestamptz IS NULL OR created_at >= sqlc.narg(after))
      AND (sqlc.narg(before)::timestamptz IS NULL OR created_at < sqlc.narg(before))
    ORDER BY created_at DESC LIMIT @most) x) AS n
FROM unnest(ARRAY['QUEUED', 'SUBMITTING', 'PENDING', 'RUNNING', 'UNKNOWN', 'SUCCEEDED', 'FAILED', 'STOPPED']) AS s (state);

-- name: JobsSince :one
-- When the oldest of the newest so many jobs was taken: what is costly to look for is looked for no further back.
SELECT coalesce((SELECT created_at FROM jobs ORDER BY created_at DESC OFFSET @newest LIMIT 1), '1970-01-01')::timestamptz;

-- name: JobEvents :many
SELECT * FROM job_events WHERE job_uid = @job_uid ORDER BY id LIMIT 1000;

-- name: SeeOutside :batchexec
INSERT INTO outside_jobs (cluster, ray_id, kind, entrypoint, state, message, metadata, started_at, ended_at, seen_at)
VALUES (@cluster, @ray_id, @kind, @entrypoint, @state, @message, @metadata, sqlc.narg(started_at), sqlc.narg(ended_at), @seen_at)
ON CONFLICT (cluster, ray_id) DO UPDATE SET state = excluded.state, message = excluded.message, started_at = excluded.started_at,
       ended_at = excluded.ended_at, seen_at = excluded.seen_at;

-- name: ForgetOutside :exec
DELETE FROM outside_jobs WHERE cluster = @cluster AND seen_at < @before;

-- name: OutsideJobs :many
SELECT * FROM outside_jobs WHERE @cluster::text = '' OR cluster = @cluster
ORDER BY started_at DESC NULLS FIRST, ray_id LIMIT @row_limit;

-- name: CountLiveJobs :many
SELECT CASE WHEN state = 'QUEUED' THEN '' ELSE cluster END::text AS cluster, state, count(*) AS n FROM jobs WHERE ended_at IS NULL GROUP BY 1, 2;

-- name: LiveRequirements :many
-- What live jobs ask for where they are; many ask for the same.
SELECT cluster, state, requirements, count(*) AS n FROM jobs
WHERE ended_at IS NULL AND state <> 'QUEUED' GROUP BY cluster, state, requirements;
