package ledger

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
)

// ErrKeyReused is an Idempotency-Key seen before with another request.
var ErrKeyReused = &Error{Code: "idempotency_key_reused"}

// abandoned is when a first request that never finished no longer blocks its key.
const abandoned = time.Minute

// Answers are kept for keptFor; every forgetEvery the older ones are deleted, a bounded
// number in one statement.
const (
	keptFor     = 24 * time.Hour
	forgetEvery = 10 * time.Minute
	forgetBatch = 5_000
)

// ForgetAnswers deletes answers older than a day, and says how many.
func (l *Ledger) ForgetAnswers(ctx context.Context) (n int64, err error) {
	for {
		gone, err := l.q.ForgetIdempotent(ctx, dbgen.ForgetIdempotentParams{Before: l.now().Add(-keptFor), RowLimit: forgetBatch})
		n += gone
		if err != nil {
			return n, l.lane.outward(err)
		}
		if gone < forgetBatch {
			return n, nil
		}
	}
}

// forgetAnswers does so for as long as the ledger is open.
func (l *Ledger) forgetAnswers(ctx context.Context) {
	for {
		select {
		case <-time.After(forgetEvery):
		case <-ctx.Done():
			return
		}
		if _, err := l.ForgetAnswers(ctx); err != nil && ctx.Err() == nil {
			l.log.Warn("forgetting old answers failed and is tried again", "error", err)
		}
	}
}

// Idempotent runs do once per key and namespace: a second request with the same
// fingerprint gets the first one's answer (replayed), one with another is refused. After
// a day the key is as new.
func (l *Ledger) Idempotent(ctx context.Context, ns, key string, fingerprint []byte, do func(context.Context) (int, []byte, error)) (status int, body []byte, replayed bool, err error) {
	if err := clean("Idempotency-Key", key, 255); err != nil {
		return 0, nil, false, err
	}
	if err := l.ensureNamespace(ctx, ns); err != nil {
		return 0, nil, false, err
	}
	id := l.spaceID(ns)
	for {
		n, err := l.q.BeginIdempotent(ctx, dbgen.BeginIdempotentParams{NamespaceID: id, Key: key, Fingerprint: fingerprint, Now: l.now()})
		if err != nil {
			return 0, nil, false, l.lane.outward(err)
		}
		if n == 1 {
			break
		}
		old, err := l.q.IdempotentAnswer(ctx, dbgen.IdempotentAnswerParams{NamespaceID: id, Key: key})
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			continue // the first one failed and let go of the key
		case err != nil:
			return 0, nil, false, l.lane.outward(err)
		case !bytes.Equal(old.Fingerprint, fingerprint):
			return 0, nil, false, refuse(ErrKeyReused, "Idempotency-Key %q was used for another request: use a new key for each request", key)
		case old.Status != nil:
			return int(*old.Status), old.Body, true, nil
		case l.now().Sub(old.CreatedAt) > abandoned:
			if err := l.q.DropIdempotent(ctx, dbgen.DropIdempotentParams{NamespaceID: id, Key: key}); err != nil {
				return 0, nil, false, l.lane.outward(err)
			}
			continue
		}
		select { // the first one is under way
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return 0, nil, false, ctx.Err()
		}
	}
	status, body, err = do(ctx)
	after := context.WithoutCancel(ctx)
	if err != nil || status >= 500 {
		_ = l.q.DropIdempotent(after, dbgen.DropIdempotentParams{NamespaceID: id, Key: key})
		return status, body, false, err
	}
	s := int32(status)
	if e := l.q.FinishIdempotent(after, dbgen.FinishIdempotentParams{NamespaceID: id, Key: key, Status: &s, Body: body}); e != nil {
		l.log.Warn("an idempotent answer could not be kept", "error", e)
	}
	return status, body, false, nil
}
