package db_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/schedulemesh/schedulemesh/db"
	"github.com/schedulemesh/schedulemesh/testdb"
)

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func tables(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_name <> 'goose_db_version' ORDER BY 1")
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestMigrationsGoUpDownAndUpAgain(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	conn := connect(t, url)
	if err := db.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	up := tables(t, conn)
	if len(up) < 9 {
		t.Fatalf("tables after up: %v", up)
	}
	if err := db.MigrateDown(t.Context(), url, true); err != nil {
		t.Fatal(err)
	}
	if left := tables(t, conn); len(left) != 0 {
		t.Fatalf("tables after down: %v", left)
	}
	if err := db.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	status, err := db.MigrationStatus(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range status {
		if !s.Applied {
			t.Errorf("%s is not applied", s.Name)
		}
	}
}

func TestServersThatStartTogetherMigrateOnce(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { errs[i] = db.Migrate(context.Background(), url) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

// Each invariant of the ledger is a named constraint: whatever a server gets wrong,
// the database refuses it.
func TestTheDatabaseRefusesWhatMustNotBe(t *testing.T) {
	t.Parallel()
	url := testdb.Migrated(t, db.Key(), db.Migrate)
	conn := connect(t, url)
	setup := `
		INSERT INTO namespaces (name) VALUES ('n');
		INSERT INTO pools (namespace_id, name, created_at) VALUES (1, 'a', now()), (1, 'b', now());
		INSERT INTO pool_resources (pool_id, resource, capacity) VALUES (1, 'cpu', 1000), (2, 'cpu', 1000);
		INSERT INTO tasks (uid, namespace_id, kind, task_id, pool_id, pool_name, state, priority, submitted_at) VALUES ('00000000-0000-7000-8000-000000000001', 1, 'task', 't', 1, 'a', 'queued', 0, now());`
	if _, err := conn.Exec(t.Context(), setup); err != nil {
		t.Fatal(err)
	}
	const task = "INSERT INTO tasks (uid, namespace_id, kind, task_id, pool_id, pool_name, state, priority, submitted_at, held, held_as, ended_at, ended_uid, agent_name) VALUES (gen_random_uuid(), 1, "
	for _, c := range []struct{ constraint, sql string }{
		{"pool_resources_quota_not_exceeded", "UPDATE pool_resources SET used = 600, reserved = 401 WHERE pool_id = 1"},
		{"pool_resources_quota_not_exceeded", "UPDATE pool_resources SET lent = 1001 WHERE pool_id = 1"},
		{"pool_resources_capacity_not_negative", "UPDATE pool_resources SET capacity = -1 WHERE pool_id = 1"},
		{"pool_resources_reserved_not_negative", "UPDATE pool_resources SET reserved = -1 WHERE pool_id = 1"},
		{"pool_resources_used_not_negative", "UPDATE pool_resources SET used = -1 WHERE pool_id = 1"},
		{"pool_resources_borrowed_not_negative", "UPDATE pool_resources SET borrowed = -1 WHERE pool_id = 1"},
		{"pool_resources_lent_not_negative", "UPDATE pool_resources SET lent = -1 WHERE pool_id = 1"},
		{"loans_amount_positive", "INSERT INTO loans VALUES (1, 2, 'cpu', 0, now())"},
		{"loans_two_pools", "INSERT INTO loans VALUES (1, 1, 'cpu', 1, now())"},
		{"pools_name_unique", "INSERT INTO pools (namespace_id, name, created_at) VALUES (1, 'a', now())"},
		{"tasks_task_id_unique", task + "'task', 't', 1, 'a', 'queued', 0, now(), '{}', '', NULL, NULL, '')"},
		{"tasks_holds_in_a_balance", task + `'task', 'x', 1, 'a', 'running', 0, now(), '{"cpu": 1}', '', NULL, NULL, '')`},
		{"tasks_queued_holds_nothing", task + `'task', 'x', 1, 'a', 'queued', 0, now(), '{"cpu": 1}', 'used', NULL, NULL, '')`},
		{"tasks_registered_holds_nothing", task + `'registered', 'x', 1, 'a', 'running', 0, now(), '{"cpu": 1}', 'used', NULL, NULL, '')`},
		{"tasks_ended_holds_nothing", task + `'task', 'x', 1, 'a', 'failed', 0, now(), '{"cpu": 1}', 'used', now(), gen_random_uuid(), '')`},
		{"tasks_ended_is_final", task + "'task', 'x', 1, 'a', 'failed', 0, now(), '{}', '', NULL, NULL, '')"},
		{"tasks_ended_uid_follows", task + "'task', 'x', 1, 'a', 'failed', 0, now(), '{}', '', now(), NULL, '')"},
		{"tasks_state_known", task + "'task', 'x', 1, 'a', 'dreaming', 0, now(), '{}', '', NULL, NULL, '')"},
		{"tasks_kind_known", task + "'other', 'x', 1, 'a', 'queued', 0, now(), '{}', '', NULL, NULL, '')"},
		{"tasks_task_id_given", task + "'task', NULL, 1, 'a', 'queued', 0, now(), '{}', '', NULL, NULL, '')"},
		{"policies_version_positive", "INSERT INTO policies VALUES (1, 0, '{}', '', '', now())"},
	} {
		_, err := conn.Exec(t.Context(), c.sql)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.ConstraintName != c.constraint {
			t.Errorf("%s: %v, want %s", c.sql[:min(len(c.sql), 60)], err, c.constraint)
		}
	}
	// An id is free again once its task has ended.
	_, err := conn.Exec(t.Context(), strings.Replace(setup[strings.Index(setup, "INSERT INTO tasks"):], "'t', 1, 'a', 'queued', 0, now()", "'u', 1, 'a', 'queued', 0, now()", 1))
	if err == nil {
		t.Error("the same uid was accepted twice")
	}
}
