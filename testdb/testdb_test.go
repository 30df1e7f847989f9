package testdb

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
)

func connect(t *testing.T, databaseURL string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func TestEveryTestHasADatabaseOfItsOwn(t *testing.T) {
	first, second := New(t), New(t)
	if first == second {
		t.Fatalf("both have %s", first)
	}
	if _, err := connect(t, first).Exec(t.Context(), "create table only_in_first ()"); err != nil {
		t.Fatal(err)
	}
	var there bool
	err := connect(t, second).QueryRow(t.Context(), "select to_regclass('only_in_first') is not null").Scan(&there)
	if err != nil || there {
		t.Fatalf("the second database has the first one's table: %v, %v", there, err)
	}
}

func TestADatabaseIsDroppedWhenItsTestEnds(t *testing.T) {
	var name string
	t.Run("the test", func(t *testing.T) {
		conn := connect(t, New(t)) // still connected when the database is dropped
		if err := conn.QueryRow(t.Context(), "select current_database()").Scan(&name); err != nil {
			t.Fatal(err)
		}
	})
	server, err := sharedServer()
	if err != nil {
		t.Fatal(err)
	}
	var there bool
	err = connect(t, server).QueryRow(t.Context(), "select exists (select from pg_database where datname = $1)", name).Scan(&there)
	if err != nil || there {
		t.Fatalf("%s is still there: %v, %v", name, there, err)
	}
}

func TestTheSchemaIsMigratedOnceAndCopied(t *testing.T) {
	var runs atomic.Int32
	migrate := func(ctx context.Context, databaseURL string) error {
		runs.Add(1)
		conn, err := pgx.Connect(ctx, databaseURL)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, "create table copied (id int); insert into copied values (7)")
		return err
	}
	key := newName() // new on this server
	for range 4 {
		t.Run("parallel", func(t *testing.T) {
			t.Parallel()
			var id int
			if err := connect(t, Migrated(t, key, migrate)).QueryRow(t.Context(), "select id from copied").Scan(&id); err != nil || id != 7 {
				t.Errorf("got %d, %v", id, err)
			}
		})
	}
	t.Cleanup(func() {
		if got := runs.Load(); got != 1 {
			t.Errorf("migrated %d times", got)
		}
	})
}

func TestServersAreTakenInTheDocumentedOrder(t *testing.T) {
	env := map[string]string{
		"DATABASE_URL": "postgres://one/db",
		ServerVariable: "postgres://two/db",
	}
	docker, imageThere := true, true
	chosen := func() string {
		places := sources(func(name string) string { return env[name] })
		for i := range places {
			switch places[i].name {
			case "a container":
				places[i].usable = func(context.Context) bool { return docker }
				places[i].start = func(context.Context) (*Server, error) {
					if !imageThere {
						return nil, errors.New("no such image")
					}
					return &Server{From: "a container"}, nil
				}
			case "embedded Postgres":
				places[i].start = func(context.Context) (*Server, error) { return &Server{From: "embedded Postgres"}, nil }
			}
		}
		server, err := start(t.Context(), places, t.Output())
		if err != nil {
			t.Fatal(err)
		}
		return server.From
	}
	for _, step := range []struct {
		want string
		then func()
	}{
		{"DATABASE_URL", func() { delete(env, "DATABASE_URL") }},
		{ServerVariable, func() { delete(env, ServerVariable) }},
		{"a container", func() { imageThere = false }},
		{"embedded Postgres", func() { docker, imageThere = false, true }},
		{"embedded Postgres", func() {}},
	} {
		if got := chosen(); got != step.want {
			t.Fatalf("chose %s, want %s", got, step.want)
		}
		step.then()
	}
}

func TestABadDatabaseURLIsNamedAndNotShown(t *testing.T) {
	_, err := start(t.Context(), sources(func(string) string { return "host=db password=secret" }), t.Output())
	if err == nil || !strings.Contains(err.Error(), "DATABASE_URL must be a URL") || strings.Contains(err.Error(), "secret") {
		t.Fatalf("got %v", err)
	}
}
