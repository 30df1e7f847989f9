-- +goose Up

-- A namespace is an isolated set of pools, tasks and policy.
CREATE TABLE namespaces (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name           text        NOT NULL,
    ephemeral      boolean     NOT NULL DEFAULT false,
    policy_version integer     NOT NULL DEFAULT 1,
    created_at     timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT namespaces_name_unique UNIQUE (name),
    CONSTRAINT namespaces_name_length CHECK (char_length(name) BETWEEN 1 AND 200)
);

-- Every version of a policy is kept and never changes; namespaces.policy_version names the active one.
CREATE TABLE policies (
    namespace_id bigint      NOT NULL REFERENCES namespaces ON DELETE CASCADE,
    version      integer     NOT NULL,
    document     jsonb       NOT NULL,
    author       text        NOT NULL DEFAULT '',
    comment      text        NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (namespace_id, version),
    CONSTRAINT policies_version_positive CHECK (version > 0)
);

-- version counts every change of the pool's quota or tasks: a core that knows an
-- older version must catch up before it decides. Deleted pools stay, for history.
CREATE TABLE pools (
    id                 bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id       bigint      NOT NULL REFERENCES namespaces ON DELETE CASCADE,
    name               text        NOT NULL,
    cluster            text        NOT NULL DEFAULT 'local',
    labels             jsonb       NOT NULL DEFAULT '{}',
    target_agents      integer     NOT NULL DEFAULT 0,
    placement_strategy text        NOT NULL DEFAULT '',
    pg_pool_config     jsonb,
    version            bigint      NOT NULL DEFAULT 1,
    created_at         timestamptz NOT NULL,
    deleted_at         timestamptz,
    CONSTRAINT pools_name_length CHECK (char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT pools_target_agents_not_negative CHECK (target_agents >= 0),
    CONSTRAINT pools_version_positive CHECK (version > 0)
);
CREATE UNIQUE INDEX pools_name_unique ON pools (namespace_id, name) WHERE deleted_at IS NULL;

-- The quota ledger: one row a resource. cpu, gpu and others are thousandths, memory is MiB.
CREATE TABLE pool_resources (
    pool_id  bigint NOT NULL REFERENCES pools ON DELETE CASCADE,
    resource text   NOT NULL,
    capacity bigint NOT NULL,
    reserved bigint NOT NULL DEFAULT 0,
    used     bigint NOT NULL DEFAULT 0,
    borrowed bigint NOT NULL DEFAULT 0,
    lent     bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (pool_id, resource),
    CONSTRAINT pool_resources_capacity_not_negative CHECK (capacity >= 0),
    CONSTRAINT pool_resources_reserved_not_negative CHECK (reserved >= 0),
    CONSTRAINT pool_resources_used_not_negative CHECK (used >= 0),
    CONSTRAINT pool_resources_borrowed_not_negative CHECK (borrowed >= 0),
    CONSTRAINT pool_resources_lent_not_negative CHECK (lent >= 0),
    CONSTRAINT pool_resources_quota_not_exceeded CHECK (reserved + used <= capacity + borrowed - lent)
);

-- Quota of one pool in use by another. The sums are pool_resources.lent and .borrowed.
CREATE TABLE loans (
    lender_id   bigint      NOT NULL REFERENCES pools ON DELETE CASCADE,
    borrower_id bigint      NOT NULL REFERENCES pools ON DELETE CASCADE,
    resource    text        NOT NULL,
    amount      bigint      NOT NULL,
    since       timestamptz NOT NULL,
    PRIMARY KEY (lender_id, borrower_id, resource),
    CONSTRAINT loans_amount_positive CHECK (amount > 0),
    CONSTRAINT loans_two_pools CHECK (lender_id <> borrower_id)
);
CREATE INDEX loans_borrower ON loans (borrower_id);

-- A row is a claim on quota and the life of what uses it:
--   task        a submission: one agent made for one task
--   agent       an agent that waits for work: it holds quota and has no task
--   registered  work said to run on an agent; it holds nothing of its own
-- Writers hold the pool's row lock, which is what keeps pool_id honest: there is
-- no foreign key, because each insert would then queue behind the pool's lock.
CREATE TABLE tasks (
    uid             uuid        PRIMARY KEY,
    namespace_id    bigint      NOT NULL,
    kind            text        NOT NULL,
    task_id         text,
    pool_id         bigint,                  -- null: a registered task in a pool we never made
    pool_name       text        NOT NULL,
    state           text        NOT NULL,
    phase           text        NOT NULL DEFAULT '',
    attempt         integer     NOT NULL DEFAULT 1,
    priority        bigint      NOT NULL,    -- thousandths
    labels          jsonb       NOT NULL DEFAULT '{}',
    request         jsonb       NOT NULL DEFAULT '{}',
    held            jsonb       NOT NULL DEFAULT '{}', -- what it charges its pool now
    held_as         text        NOT NULL DEFAULT '',   -- '', reserved or used: the balance it charges
    agent_name      text        NOT NULL DEFAULT '',
    agent_uid       uuid,                    -- registered: the row of its agent; null when unmanaged
    node_id         text        NOT NULL DEFAULT '',
    launch_id       text        NOT NULL DEFAULT '',   -- what the bridge knows this attempt's agent by
    actor_name      text        NOT NULL DEFAULT '',
    ray_namespace   text        NOT NULL DEFAULT '',
    actor_id        text        NOT NULL DEFAULT '',
    pid             integer     NOT NULL DEFAULT 0,
    spec            jsonb       NOT NULL DEFAULT '{}',
    pickled         bytea,
    body_hash       bytea,
    estimate_ms     bigint      NOT NULL DEFAULT 0,
    max_runtime_ms  bigint      NOT NULL DEFAULT 0,
    launch_ms       bigint      NOT NULL DEFAULT 0,    -- launch timeout
    on_insufficient text        NOT NULL DEFAULT 'fail',
    on_preempted    text        NOT NULL DEFAULT 'stop',
    on_failure      text        NOT NULL DEFAULT 'stop',
    max_attempts    integer     NOT NULL DEFAULT 1,
    failures        integer     NOT NULL DEFAULT 0,
    preemptions     integer     NOT NULL DEFAULT 0,
    preempted_by    uuid[]      NOT NULL DEFAULT '{}',
    ending          text        NOT NULL DEFAULT '',   -- the state a stopping task will end in
    code            text        NOT NULL DEFAULT '',
    reason          text        NOT NULL DEFAULT '',
    result          jsonb,
    saved_state     jsonb,
    actor           text        NOT NULL DEFAULT '',
    submitted_at    timestamptz NOT NULL,
    queued_at       timestamptz,
    started_at      timestamptz,             -- of this attempt
    ended_at        timestamptz,
    ended_uid       uuid,                    -- null while live, then uid: makes task_id unique among live tasks
    lease_owner     text        NOT NULL DEFAULT '',
    lease_until     timestamptz,
    CONSTRAINT tasks_kind_known CHECK (kind IN ('task', 'agent', 'registered')),
    CONSTRAINT tasks_state_known CHECK (state IN ('queued', 'reserved', 'launching', 'running', 'stopping', 'preempting', 'preempted', 'completed', 'failed', 'cancelled')),
    CONSTRAINT tasks_task_id_given CHECK ((kind = 'agent') = (task_id IS NULL)),
    CONSTRAINT tasks_held_as_known CHECK (held_as IN ('', 'reserved', 'used')),
    CONSTRAINT tasks_holds_in_a_balance CHECK ((held = '{}') = (held_as = '')),
    CONSTRAINT tasks_ended_holds_nothing CHECK (ended_at IS NULL OR held = '{}'),
    CONSTRAINT tasks_queued_holds_nothing CHECK (state <> 'queued' OR held = '{}'),
    CONSTRAINT tasks_registered_holds_nothing CHECK (kind <> 'registered' OR held = '{}'),
    CONSTRAINT tasks_ended_is_final CHECK ((state IN ('preempted', 'completed', 'failed', 'cancelled')) = (ended_at IS NOT NULL)),
    CONSTRAINT tasks_ended_uid_follows CHECK ((ended_at IS NULL) = (ended_uid IS NULL)),
    CONSTRAINT tasks_attempt_positive CHECK (attempt > 0),
    CONSTRAINT tasks_task_id_length CHECK (char_length(task_id) BETWEEN 1 AND 200)
);
CREATE UNIQUE INDEX tasks_task_id_unique ON tasks (namespace_id, task_id, ended_uid) NULLS NOT DISTINCT WHERE kind <> 'agent';
CREATE UNIQUE INDEX tasks_agent_name_unique ON tasks (namespace_id, agent_name) WHERE ended_at IS NULL AND kind <> 'registered' AND held <> '{}';
CREATE INDEX tasks_live ON tasks (pool_id) WHERE ended_at IS NULL;
CREATE INDEX tasks_max_runtime ON tasks (started_at) WHERE state = 'running' AND max_runtime_ms > 0;
CREATE INDEX tasks_work ON tasks (state) WHERE state IN ('reserved', 'launching', 'preempting', 'stopping');

-- One row a transition: the timeline of a task and the feed of all. Ids are taken
-- while the rows concerned are locked, so they order what happened to one task.
CREATE TABLE task_events (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             timestamptz NOT NULL,
    namespace_id   bigint      NOT NULL,
    task_uid       uuid,
    task_id        text        NOT NULL DEFAULT '',
    pool_name      text        NOT NULL DEFAULT '',
    attempt        integer     NOT NULL DEFAULT 0,
    type           text        NOT NULL,
    actor          text        NOT NULL DEFAULT '',
    code           text        NOT NULL DEFAULT '',
    message        text        NOT NULL DEFAULT '',
    detail         jsonb,
    policy_version integer     NOT NULL DEFAULT 0
);
CREATE INDEX task_events_task ON task_events (task_uid, id);

-- Who made way for whom, why, and how far the handover is. While an agent is being
-- taken, its row here is the record of the phase, written before the step is done.
CREATE TABLE preemptions (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id   bigint      NOT NULL,
    preemptor_uid  uuid,                     -- null: asked for by hand
    preemptor_task text        NOT NULL DEFAULT '',
    preemptor_pool text        NOT NULL DEFAULT '',
    preemptor_attempt integer  NOT NULL DEFAULT 0,
    victim_uid     uuid        NOT NULL,     -- the task
    victim_task    text        NOT NULL,
    victim_attempt integer     NOT NULL,
    agent_uid      uuid,                     -- the row that holds the agent; several victims may share it
    agent_name     text        NOT NULL,
    pool_name      text        NOT NULL,
    priority       bigint      NOT NULL,
    reason         text        NOT NULL,
    score          bigint      NOT NULL DEFAULT 0, -- millionths
    explanation    jsonb,
    policy_version integer     NOT NULL,
    phase          text        NOT NULL,
    taken          jsonb       NOT NULL DEFAULT '{}', -- quota that went to the preemptor
    loan           boolean     NOT NULL DEFAULT false,
    cancel_success boolean,
    cancel_error   text        NOT NULL DEFAULT '',
    save_error     text        NOT NULL DEFAULT '',
    saved_state    jsonb,
    actor          text        NOT NULL DEFAULT '',
    decided_at     timestamptz NOT NULL,
    cancelled_at   timestamptz,
    saved_at       timestamptz,
    gone_at        timestamptz,
    running_at     timestamptz,
    CONSTRAINT preemptions_phase_known CHECK (phase IN ('decided', 'cancelling', 'saving', 'killing', 'gone', 'undone'))
);
CREATE INDEX preemptions_namespace ON preemptions (namespace_id, id);
CREATE INDEX preemptions_decided ON preemptions (namespace_id, decided_at);
CREATE INDEX preemptions_open ON preemptions (id) WHERE phase IN ('decided', 'cancelling', 'saving', 'killing');
CREATE INDEX preemptions_preemptor ON preemptions (preemptor_uid);
CREATE INDEX preemptions_victim ON preemptions (victim_uid);

-- Answers already given to a request that carried an Idempotency-Key.
CREATE TABLE idempotency_keys (
    namespace_id bigint      NOT NULL,
    key          text        NOT NULL,
    fingerprint  bytea       NOT NULL,
    status       integer,                    -- null while the first request is under way
    body         bytea,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (namespace_id, key)
);

-- One row: which deployment this database is. Ray clusters carry its claim.
CREATE TABLE deployment (
    only_row   boolean     PRIMARY KEY DEFAULT true,
    id         uuid        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT deployment_only_row CHECK (only_row)
);
INSERT INTO deployment (id) VALUES (gen_random_uuid());

-- +goose Down
DROP TABLE deployment, idempotency_keys, preemptions, task_events, tasks, loans, pool_resources, pools, policies, namespaces;
