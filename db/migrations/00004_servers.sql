-- +goose Up

-- The servers on this database. One that is alive writes its heartbeat every second
-- and holds an advisory lock in its name, which goes with its connection.
CREATE TABLE servers (
    name      text        PRIMARY KEY,
    url       text        NOT NULL DEFAULT '',
    heartbeat timestamptz NOT NULL
);

-- Which server runs the agents of a Ray cluster, and what it knows of its nodes.
-- All work on a cluster's rows is its holder's: rows need no lease of their own.
CREATE TABLE cluster_leases (
    cluster    text        PRIMARY KEY,
    server     text        NOT NULL,
    since      timestamptz NOT NULL,
    nodes      jsonb       NOT NULL DEFAULT '[]',
    nodes_seen timestamptz
);

-- What each version of a pool changed, for servers that know the one before; written
-- while there is another server. pool_id is −namespace_id for what belongs to no pool.
-- A gap means: load the pool whole. So losing rows, as unlogged tables do when Postgres
-- crashes, costs time only.
CREATE UNLOGGED TABLE pool_changes (
    pool_id bigint      NOT NULL,
    version bigint      NOT NULL,
    uids    bytea       NOT NULL, -- 16 bytes each
    at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pool_id, version)
);

-- Counts changes of registered tasks that belong to no pool of ours, as pools.version does.
ALTER TABLE namespaces ADD unmanaged_version bigint NOT NULL DEFAULT 1;

ALTER TABLE tasks DROP COLUMN lease_owner, DROP COLUMN lease_until;

-- No index may know the state: then an update that moves a task need not touch any.
DROP INDEX IF EXISTS tasks_work;
DROP INDEX tasks_max_runtime; -- deadlines are kept in memory

-- +goose Down
CREATE INDEX tasks_max_runtime ON tasks (started_at) WHERE state = 'running' AND max_runtime_ms > 0;
CREATE INDEX tasks_work ON tasks (state) WHERE state IN ('reserved', 'launching', 'preempting', 'stopping');
ALTER TABLE tasks ADD lease_owner text NOT NULL DEFAULT '', ADD lease_until timestamptz;
ALTER TABLE namespaces DROP unmanaged_version;
DROP TABLE pool_changes, cluster_leases, servers;
