-- +goose Up

-- Placement groups of pools. Writers hold the pool's row lock. A group that was made again keeps its
-- row: its attempt counts up, and with it its name in Ray.
CREATE TABLE placement_groups (
    uid          uuid        PRIMARY KEY,
    namespace_id bigint      NOT NULL,
    pool_id      bigint      NOT NULL,
    pool_name    text        NOT NULL,
    tier         text        NOT NULL,
    bundles      jsonb       NOT NULL,              -- list of resources, in the ledger's units
    strategy     text        NOT NULL,
    state        text        NOT NULL,
    attempt      integer     NOT NULL,
    nodes        text[]      NOT NULL DEFAULT '{}', -- of each bundle, once Ray has placed it
    occupants    uuid[]      NOT NULL DEFAULT '{}', -- rows of tasks whose agents sit in it, or will
    uses         integer     NOT NULL DEFAULT 0,    -- agents that sat in it so far
    reuses       integer     NOT NULL DEFAULT 0,    -- of those, the ones that found it made
    made         integer     NOT NULL DEFAULT 0,    -- times Ray has made it
    removed      integer     NOT NULL DEFAULT 0,    -- times it was seen gone
    leaving      boolean     NOT NULL DEFAULT false, -- to be removed as soon as nobody sits in it
    code         text        NOT NULL DEFAULT '',
    reason       text        NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL,
    ready_at     timestamptz,
    idle_since   timestamptz,
    retry_at     timestamptz,
    ended_at     timestamptz,                       -- null while it is one of its pool's
    CONSTRAINT placement_groups_tier_known CHECK (tier IN ('reserved', 'dynamic')),
    CONSTRAINT placement_groups_state_known CHECK (state IN ('creating', 'idle', 'occupied', 'releasing', 'removed', 'failed')),
    CONSTRAINT placement_groups_occupied_by_somebody CHECK (state <> 'idle' OR occupants = '{}'),
    CONSTRAINT placement_groups_ended_is_empty CHECK (ended_at IS NULL OR occupants = '{}'),
    CONSTRAINT placement_groups_attempt_positive CHECK (attempt > 0)
);
CREATE INDEX placement_groups_live ON placement_groups (pool_id) WHERE ended_at IS NULL;
CREATE INDEX placement_groups_pool ON placement_groups (pool_id, created_at);

-- +goose Down
DROP TABLE placement_groups;
