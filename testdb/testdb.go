// Package testdb gives every test a real Postgres database of its own.
//
// The server it lives on is, in this order: the one DATABASE_URL names; a
// container, when a Docker engine answers; embedded programs started for the
// run. `make test` starts one server for all packages; a bare `go test ./ledger`
// starts its own and stops it at the end.
package testdb

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// ServerVariable names the environment variable that hands one running server to all
// packages of a test run. It is set by `make test`; DATABASE_URL goes before it.
const ServerVariable = "SCHEDULEMESH_TEST_DATABASE_URL"

// prefix marks the databases we make on a server that may have others.
const (
	prefix         = "schedulemesh_test_"
	templatePrefix = prefix + "template_"
)

// New returns the URL of a new, empty database, dropped when the test ends.
func New(t testing.TB) string {
	t.Helper()
	server, err := sharedServer()
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	return create(t, server, "")
}

// Migrated returns the URL of a new database with the schema that migrate makes,
// dropped when the test ends. migrate runs on a template that the databases are
// copied from, once for each key and server, so the key must stand for what migrate
// does: a hash of the migrations.
func Migrated(t testing.TB, key string, migrate func(ctx context.Context, databaseURL string) error) string {
	t.Helper()
	server, err := sharedServer()
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	sum := sha256.Sum256([]byte(key))
	name := templatePrefix + hex.EncodeToString(sum[:10])
	if err := ensureTemplate(t.Context(), server, name, migrate); err != nil {
		t.Fatalf("testdb: template for %q: %v", key, err)
	}
	return create(t, server, name)
}

var templates = struct {
	sync.Mutex
	made map[string]bool
}{made: map[string]bool{}}

// ensureTemplate makes the template when the server has none of that name.
// Other packages' tests, in other processes, wait meanwhile.
func ensureTemplate(ctx context.Context, server, name string, migrate func(context.Context, string) error) error {
	templates.Lock()
	defer templates.Unlock()
	if templates.made[name] {
		return nil
	}
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) // and with it the lock ends
	if _, err := conn.Exec(ctx, "select pg_advisory_lock(hashtext($1))", templatePrefix); err != nil {
		return err
	}
	var there bool
	if err := conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", name).Scan(&there); err != nil {
		return err
	}
	if !there {
		sweep(ctx, conn)
		unfinished := newName()
		if _, err := conn.Exec(ctx, "create database "+quote(unfinished)); err != nil {
			return err
		}
		if err := migrate(ctx, databaseURL(server, unfinished)); err != nil {
			_ = drop(context.WithoutCancel(ctx), server, unfinished)
			return err
		}
		if err := execute(ctx, server, "alter database "+quote(unfinished)+" rename to "+quote(name)); err != nil {
			return err
		}
	}
	templates.made[name] = true
	return nil
}

// sweep drops what earlier runs left on a server that outlives them: templates of
// other schemas that nobody is using, and databases of tests that were killed.
func sweep(ctx context.Context, conn *pgx.Conn) {
	rows, err := conn.Query(ctx, "select datname from pg_database where starts_with(datname, $1)", prefix)
	if err != nil {
		return
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return
	}
	for _, name := range names {
		var made int64
		_, err := fmt.Sscanf(name, prefix+"%d_", &made)
		old := err == nil && time.Since(time.Unix(made, 0)) > 2*time.Hour
		if old || strings.HasPrefix(name, templatePrefix) {
			_, _ = conn.Exec(ctx, "drop database if exists "+quote(name))
		}
	}
}

func create(t testing.TB, server, from string) string {
	t.Helper()
	name := newName()
	sql := "create database " + quote(name)
	if from != "" {
		// Copying files is quicker than writing a small schema through the log.
		sql += " template " + quote(from) + " strategy file_copy"
	}
	if err := execute(t.Context(), server, sql); err != nil {
		t.Fatalf("testdb: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := drop(ctx, server, name); err != nil {
			t.Errorf("testdb: %v", err)
		}
	})
	return databaseURL(server, name)
}

func drop(ctx context.Context, server, name string) error {
	return execute(ctx, server, "drop database if exists "+quote(name)+" with (force)")
}

// execute runs one statement on the server's maintenance database. Copying a
// template fails while somebody is connected to it, so that is tried again.
func execute(ctx context.Context, server, sql string) error {
	for try := 0; ; try++ {
		conn, err := pgx.Connect(ctx, server)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		_, err = conn.Exec(ctx, sql)
		_ = conn.Close(ctx)
		if err == nil || try == 50 || !isObjectInUse(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func isObjectInUse(err error) bool {
	var pg interface{ SQLState() string }
	return errors.As(err, &pg) && pg.SQLState() == "55006"
}

func newName() string {
	b := make([]byte, 6)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return fmt.Sprintf("%s%d_%s", prefix, time.Now().Unix(), hex.EncodeToString(b))
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// databaseURL is the server's URL with another database.
func databaseURL(server, name string) string {
	u, err := url.Parse(server)
	if err != nil {
		panic(fmt.Sprintf("testdb: %v", err)) // parsed when the server was chosen
	}
	u.Path = name
	return u.String()
}
