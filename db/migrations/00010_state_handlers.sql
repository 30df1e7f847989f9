-- +goose Up

-- What keeps and restores the state of a pool's tasks, pickled. The pool need not be one
-- that was ever made: tasks of others are registered in it by name.
CREATE TABLE state_handlers (
    namespace_id   bigint      NOT NULL REFERENCES namespaces ON DELETE CASCADE,
    pool_name      text        NOT NULL,
    preserver      bytea,
    preserver_name text        NOT NULL DEFAULT '',
    restorer       bytea,
    restorer_name  text        NOT NULL DEFAULT '',
    updated_at     timestamptz NOT NULL,
    PRIMARY KEY (namespace_id, pool_name),
    CONSTRAINT state_handlers_any CHECK (preserver IS NOT NULL OR restorer IS NOT NULL)
);
-- Compressing what is read whole, and seldom, is not worth it.
ALTER TABLE state_handlers ALTER COLUMN preserver SET STORAGE EXTERNAL, ALTER COLUMN restorer SET STORAGE EXTERNAL;

-- +goose Down
DROP TABLE state_handlers;
