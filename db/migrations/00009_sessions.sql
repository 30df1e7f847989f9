-- +goose Up

-- A namespace is open, is being cleared, or was cleared away (ended): then nothing is left
-- of it but this row. epoch counts these changes: policy versions start anew after each.
-- An ephemeral one is held by a session until expires_at. A kept one is held by nobody; since
-- says when somebody asked for it, and is null for one that came to be by being used.
ALTER TABLE namespaces
    ADD COLUMN state         text        NOT NULL DEFAULT 'open',
    ADD COLUMN epoch         bigint      NOT NULL DEFAULT 1,
    ADD COLUMN session       text        NOT NULL DEFAULT '',
    ADD COLUMN session_owner text        NOT NULL DEFAULT '',
    ADD COLUMN since         timestamptz,
    ADD COLUMN ttl_ms        bigint      NOT NULL DEFAULT 0,
    ADD COLUMN expires_at    timestamptz,
    ADD COLUMN ended_session text        NOT NULL DEFAULT '', -- the last one that was ended on purpose: it does not come back
    ADD COLUMN clearer       text        NOT NULL DEFAULT '', -- the server that clears it
    ADD COLUMN closing_since timestamptz,
    ADD COLUMN first_event   bigint      NOT NULL DEFAULT 0,  -- its history has greater event ids
    ADD CONSTRAINT namespaces_state_known CHECK (state IN ('open', 'closing', 'ended')),
    ADD CONSTRAINT namespaces_closing_since CHECK ((state = 'closing') = (closing_since IS NOT NULL)),
    ADD CONSTRAINT namespaces_sessions_expire CHECK ((expires_at IS NOT NULL) = (ephemeral AND state = 'open')),
    ADD CONSTRAINT namespaces_default_stays CHECK (name <> 'default' OR (NOT ephemeral AND state <> 'ended'));
CREATE INDEX namespaces_expiry ON namespaces (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX namespaces_closing ON namespaces (id) WHERE state = 'closing';

-- +goose Down
DROP INDEX namespaces_expiry, namespaces_closing;
ALTER TABLE namespaces
    DROP COLUMN state, DROP COLUMN epoch, DROP COLUMN session, DROP COLUMN session_owner, DROP COLUMN since, DROP COLUMN ttl_ms, DROP COLUMN expires_at,
    DROP COLUMN ended_session, DROP COLUMN clearer, DROP COLUMN closing_since, DROP COLUMN first_event;
