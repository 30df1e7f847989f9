// Package db is Postgres' side of the ledger: migrations, queries and what sqlc
// makes of them. It holds no rule of its own; the rules are in package ledger,
// and, as named constraints, in the migrations.
package db

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	_ "github.com/jackc/pgx/v5/stdlib" // the database/sql driver goose uses
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Status is one migration and whether the database has it.
type Status struct {
	Name    string
	Version int64
	Applied bool
}

func provider(url string) (*goose.Provider, *sql.DB, error) {
	conn, err := sql.Open("pgx", url)
	if err != nil {
		return nil, nil, fmt.Errorf("db: %w", err)
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, nil, err
	}
	// Several servers may start at once: one migrates, the others wait for it.
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return nil, nil, err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, conn, files, goose.WithSessionLocker(locker))
	if err != nil {
		_ = conn.Close()
		return nil, nil, fmt.Errorf("db: reading migrations: %w", err)
	}
	return p, conn, nil
}

// Migrate brings the database at url to the newest version, under a lock.
func Migrate(ctx context.Context, url string) error {
	p, conn, err := provider(url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("db: migrating: %w", err)
	}
	return nil
}

// MigrateDown takes back the newest migration, or all of them. It deletes data.
func MigrateDown(ctx context.Context, url string, all bool) error {
	p, conn, err := provider(url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if all {
		_, err = p.DownTo(ctx, 0)
	} else {
		_, err = p.Down(ctx)
	}
	if err != nil {
		return fmt.Errorf("db: migrating down: %w", err)
	}
	return nil
}

// MigrationStatus lists every migration the binary carries.
func MigrationStatus(ctx context.Context, url string) ([]Status, error) {
	p, conn, err := provider(url)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	all, err := p.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("db: migration status: %w", err)
	}
	out := make([]Status, 0, len(all))
	for _, s := range all {
		out = append(out, Status{Name: s.Source.Path, Version: s.Source.Version, Applied: s.State == goose.StateApplied})
	}
	return out, nil
}
