-- +goose Up

-- Whoever adds up what ended lately need not read all that ever ended. A block-range
-- index is a few pages, and is not touched by an update that changes no time.
CREATE INDEX tasks_ended ON tasks USING brin (ended_at);

-- +goose Down
DROP INDEX tasks_ended;
