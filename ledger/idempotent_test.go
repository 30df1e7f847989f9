package ledger_test

import (
	"context"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/ledger"
)

func TestAnswersAreForgottenAfterADay(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.Close()
	now := time.Now()
	l, err := ledger.Open(t.Context(), w.db, ledger.Options{Now: func() time.Time { return now }})
	w.must(err)
	t.Cleanup(l.Close)
	answer := func(key, body string) string {
		t.Helper()
		_, got, _, err := l.Idempotent(t.Context(), "default", key, []byte("same"), func(context.Context) (int, []byte, error) { return 201, []byte(body), nil })
		w.must(err)
		return string(got)
	}
	_, err = w.db.Exec(t.Context(), "INSERT INTO idempotency_keys SELECT id, 'old-' || i, '', 200, '', $1 FROM namespaces, generate_series(1, 12000) i", now.Add(-25*time.Hour))
	w.must(err)
	answer("key", "first")
	now = now.Add(23 * time.Hour)
	if n, err := l.ForgetAnswers(t.Context()); err != nil || n != 12000 {
		t.Fatalf("forgot %d, %v", n, err)
	}
	if got := answer("key", "second"); got != "first" {
		t.Errorf("within the day the answer was %s", got)
	}
	now = now.Add(2 * time.Hour)
	if n, err := l.ForgetAnswers(t.Context()); err != nil || n != 1 {
		t.Fatalf("forgot %d, %v", n, err)
	}
	if got := answer("key", "second"); got != "second" {
		t.Errorf("after a day the answer was %s", got)
	}
}
