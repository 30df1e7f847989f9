-- +goose Up

-- Ray clusters that jobs may go to. What is in force is spec; file_spec is what clusters.yaml said when it was
-- last read, so that an edit made elsewhere stands until the file itself says something new.
CREATE TABLE clusters (
    name        text        PRIMARY KEY,
    spec        jsonb       NOT NULL,
    file_spec   jsonb,                              -- null: not from the file
    source      text        NOT NULL,               -- who said what is in force
    removed     boolean     NOT NULL DEFAULT false, -- by hand, although the file still has it
    held        boolean     NOT NULL DEFAULT false, -- no new jobs
    hold_reason text        NOT NULL DEFAULT '',
    hold_actor  text        NOT NULL DEFAULT '',
    held_since  timestamptz,
    rev         bigint      NOT NULL DEFAULT 1,     -- counts changes of what is configured
    status      jsonb,                              -- as the server that looks after jobs saw it last
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT clusters_source_known CHECK (source IN ('file', 'api', 'local'))
);

-- What charts are drawn from; kept for some hours.
CREATE TABLE cluster_samples (
    cluster text        NOT NULL,
    at      timestamptz NOT NULL,
    score   real        NOT NULL, -- health, 0 to 1
    total   jsonb       NOT NULL, -- resources, in the ledger's units
    used    jsonb       NOT NULL,
    jobs    integer     NOT NULL, -- of ours that were there
    PRIMARY KEY (cluster, at)
);
CREATE INDEX cluster_samples_at ON cluster_samples (at);

-- Submitted jobs. One server at a time moves them on; rev tells it when somebody else changed a row meanwhile.
CREATE TABLE jobs (
    uid               uuid        PRIMARY KEY,
    submission_id     text        NOT NULL,
    job_id            text        NOT NULL,
    entrypoint        text        NOT NULL,
    runtime_env       jsonb       NOT NULL,
    metadata          jsonb       NOT NULL,
    tags              text[]      NOT NULL,
    preferred_cluster text        NOT NULL,
    requirements      jsonb       NOT NULL,               -- resources, in the ledger's units
    reserve           text        NOT NULL,
    priority          bigint      NOT NULL,               -- in thousandths
    queue_timeout_ms  bigint      NOT NULL,               -- 0: none
    max_retries       integer     NOT NULL,
    retry_on          text[]      NOT NULL,
    submitted_by      text        NOT NULL,
    fingerprint       bytea       NOT NULL,               -- of what was asked: the same id with the same body is the same job

    state             text        NOT NULL,
    code              text        NOT NULL DEFAULT '',    -- why, for programs
    reason            text        NOT NULL DEFAULT '',    -- why, for people
    attempt           integer     NOT NULL DEFAULT 1,
    cluster           text        NOT NULL DEFAULT '',    -- where it is, or was last
    ray_id            text        NOT NULL DEFAULT '',    -- its submission_id in Ray
    session           text        NOT NULL DEFAULT '',    -- of the Ray head that accepted it
    merged_env        jsonb,                              -- runtime_env as sent
    placement         jsonb,                              -- why this cluster, why not the others
    tried             jsonb       NOT NULL DEFAULT '[]',  -- clusters that failed this attempt, and why
    notes             jsonb       NOT NULL DEFAULT '[]',  -- what a caller should know of how it was taken
    stop_requested_by text        NOT NULL DEFAULT '',
    stop_requested_at timestamptz,
    exit_code         integer,
    error_type        text        NOT NULL DEFAULT '',
    message           text        NOT NULL DEFAULT '',    -- Ray's
    created_at        timestamptz NOT NULL,
    queued_at         timestamptz NOT NULL,
    placed_at         timestamptz,
    accepted_at       timestamptz,
    started_at        timestamptz,
    ended_at          timestamptz,
    rev               bigint      NOT NULL DEFAULT 1,
    CONSTRAINT jobs_submission_id_once UNIQUE (submission_id),
    CONSTRAINT jobs_state_known CHECK (state IN ('QUEUED', 'SUBMITTING', 'PENDING', 'RUNNING', 'UNKNOWN', 'SUCCEEDED', 'FAILED', 'STOPPED')),
    CONSTRAINT jobs_reserve_known CHECK (reserve IN ('entrypoint', 'none')),
    CONSTRAINT jobs_ended_or_not CHECK ((ended_at IS NOT NULL) = (state IN ('SUCCEEDED', 'FAILED', 'STOPPED'))),
    CONSTRAINT jobs_placed_somewhere CHECK (state IN ('QUEUED', 'FAILED', 'STOPPED') OR cluster <> '')
);
CREATE INDEX jobs_live ON jobs (created_at) WHERE ended_at IS NULL;
CREATE INDEX jobs_line ON jobs (priority DESC, created_at, uid) WHERE state = 'QUEUED';
CREATE INDEX jobs_created ON jobs (created_at, uid);
CREATE INDEX jobs_by_state ON jobs (state, created_at);
CREATE INDEX jobs_job_id ON jobs (job_id);
CREATE INDEX jobs_cluster ON jobs (cluster, created_at);
CREATE INDEX jobs_tags ON jobs USING gin (tags);
CREATE INDEX jobs_metadata ON jobs USING gin (metadata jsonb_path_ops);

-- The end of what a job printed, kept when it was over. Beside the job, so that lists do not carry it along.
CREATE TABLE job_logs (
    job_uid uuid PRIMARY KEY,
    tail    text NOT NULL
);

CREATE TABLE job_events (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_uid uuid        NOT NULL,
    at      timestamptz NOT NULL,
    type    text        NOT NULL,
    actor   text        NOT NULL,
    attempt integer     NOT NULL,
    cluster text        NOT NULL DEFAULT '',
    code    text        NOT NULL DEFAULT '',
    message text        NOT NULL DEFAULT '',
    detail  jsonb
);
CREATE INDEX job_events_job ON job_events (job_uid, id);

-- Submissions that were left behind without knowing whether they arrived: stopped when they turn up.
CREATE TABLE job_strays (
    cluster text        NOT NULL,
    ray_id  text        NOT NULL,
    job_uid uuid        NOT NULL,
    attempt integer     NOT NULL,
    since   timestamptz NOT NULL,
    PRIMARY KEY (cluster, ray_id)
);

-- Jobs that others started on our clusters, as last seen.
CREATE TABLE outside_jobs (
    cluster    text        NOT NULL,
    ray_id     text        NOT NULL, -- submission_id, or the job id of a plain driver
    kind       text        NOT NULL, -- SUBMISSION, DRIVER
    entrypoint text        NOT NULL,
    state      text        NOT NULL,
    message    text        NOT NULL,
    metadata   jsonb       NOT NULL,
    started_at timestamptz,
    ended_at   timestamptz,
    seen_at    timestamptz NOT NULL,
    PRIMARY KEY (cluster, ray_id)
);

-- Packed directories of runtime environments, named by their content, in pieces.
CREATE TABLE packages (
    name       text        PRIMARY KEY,
    size       bigint      NOT NULL,
    complete   boolean     NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    used_at    timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE package_pieces (
    name text    NOT NULL REFERENCES packages ON DELETE CASCADE,
    n    integer NOT NULL,
    data bytea   NOT NULL,
    PRIMARY KEY (name, n)
);

-- +goose Down
DROP TABLE package_pieces;
DROP TABLE packages;
DROP TABLE outside_jobs;
DROP TABLE job_strays;
DROP TABLE job_events;
DROP TABLE job_logs;
DROP TABLE jobs;
DROP TABLE cluster_samples;
DROP TABLE clusters;
