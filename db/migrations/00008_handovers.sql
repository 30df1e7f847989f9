-- +goose Up

-- A handover is written at each of its phases. An index whose condition names the
-- phase would take a new entry every time, and with it all the others; one that only
-- knows whether the handover is under way lets Postgres update in place.
ALTER TABLE preemptions
    ADD COLUMN open boolean GENERATED ALWAYS AS (phase IN ('decided', 'cancelling', 'saving', 'killing')) STORED;
DROP INDEX preemptions_open;
CREATE INDEX preemptions_open ON preemptions (id) WHERE open;
ALTER TABLE preemptions SET (fillfactor = 50);

-- +goose Down
ALTER TABLE preemptions RESET (fillfactor);
DROP INDEX preemptions_open;
ALTER TABLE preemptions DROP COLUMN open;
CREATE INDEX preemptions_open ON preemptions (id) WHERE phase IN ('decided', 'cancelling', 'saving', 'killing');
