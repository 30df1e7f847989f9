-- +goose Up

-- Answers are forgotten by age.
CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);

-- +goose Down
DROP INDEX idempotency_keys_age;
