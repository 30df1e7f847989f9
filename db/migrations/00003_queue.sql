-- +goose Up

-- A pool that is held starts nothing; one that is drained, too, and at its deadline
-- what still runs is taken. max_runtime_ms bounds every task of the pool; 0 = no bound.
ALTER TABLE pools
    ADD COLUMN max_runtime_ms bigint NOT NULL DEFAULT 0,
    ADD COLUMN hold           text   NOT NULL DEFAULT '',
    ADD COLUMN hold_reason    text   NOT NULL DEFAULT '',
    ADD COLUMN hold_actor     text   NOT NULL DEFAULT '',
    ADD COLUMN held_at        timestamptz,
    ADD COLUMN drain_until    timestamptz,
    ADD CONSTRAINT pools_hold_known CHECK (hold IN ('', 'held', 'draining')),
    ADD CONSTRAINT pools_hold_since CHECK ((hold = '') = (held_at IS NULL)),
    ADD CONSTRAINT pools_only_drains_have_deadlines CHECK (drain_until IS NULL OR hold = 'draining'),
    ADD CONSTRAINT pools_max_runtime_not_negative CHECK (max_runtime_ms >= 0);

-- The same for machines. A node without a row is open.
CREATE TABLE nodes (
    cluster     text        NOT NULL,
    node_id     text        NOT NULL,
    hold        text        NOT NULL,
    hold_reason text        NOT NULL DEFAULT '',
    hold_actor  text        NOT NULL DEFAULT '',
    held_at     timestamptz NOT NULL,
    drain_until timestamptz,
    PRIMARY KEY (cluster, node_id),
    CONSTRAINT nodes_hold_known CHECK (hold IN ('held', 'draining')),
    CONSTRAINT nodes_only_drains_have_deadlines CHECK (drain_until IS NULL OR hold = 'draining')
);

-- not_before: a failed attempt is not repeated earlier. gang: submitted together, all or none.
ALTER TABLE tasks
    ADD COLUMN queue_timeout_ms bigint NOT NULL DEFAULT 0,
    ADD COLUMN retry_backoff_ms bigint NOT NULL DEFAULT 1000,
    ADD COLUMN not_before       timestamptz,
    ADD COLUMN gang             uuid,
    ADD CONSTRAINT tasks_queue_timeout_not_negative CHECK (queue_timeout_ms >= 0),
    ADD CONSTRAINT tasks_retry_backoff_not_negative CHECK (retry_backoff_ms >= 0);

-- +goose Down
ALTER TABLE tasks DROP COLUMN queue_timeout_ms, DROP COLUMN retry_backoff_ms, DROP COLUMN not_before, DROP COLUMN gang;
DROP TABLE nodes;
ALTER TABLE pools DROP COLUMN max_runtime_ms, DROP COLUMN hold, DROP COLUMN hold_reason, DROP COLUMN hold_actor, DROP COLUMN held_at, DROP COLUMN drain_until;
