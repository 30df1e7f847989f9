package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/schedulemesh/schedulemesh/db"
	"github.com/schedulemesh/schedulemesh/ledger"
)

func migrateCommand() *command {
	var database databaseSettings
	var all bool
	return &command{
		name:    "migrate",
		args:    "up|down|status",
		summary: "bring a database's schema up, down, or say where it is",
		help: `
up      brings the schema to this binary's version; the server does it by itself when it starts.
down    takes the newest migration back, or all of them with --all. It deletes data.
status  lists the migrations and which of them the database has.`,
		settings: func(s *settings) {
			database.register(s)
			s.toggle(&all, "all", "", "with down: all migrations")
		},
		run: func(ctx context.Context, io stdio, args []string) error {
			if len(args) != 1 {
				return errUsage
			}
			url, err := database.find()
			if err != nil {
				return err
			}
			switch args[0] {
			case "up":
				return db.Migrate(ctx, url)
			case "down":
				return db.MigrateDown(ctx, url, all)
			case "status":
				migrations, err := db.MigrationStatus(ctx, url)
				for _, m := range migrations {
					state := "missing"
					if m.Applied {
						state = "applied"
					}
					fmt.Fprintf(io.out, "%s  %s\n", state, m.Name)
				}
				return err
			default:
				return errUsage
			}
		},
	}
}

func verifyCommand() *command {
	var database databaseSettings
	return &command{
		name:    "verify",
		summary: "recompute every balance of the ledger and print each difference",
		help: `
Recomputes what each pool has reserved, used, borrowed and lent from its tasks
and loans, and prints every difference from what the ledger says. It changes
nothing, prints nothing when all is well, and ends with 1 when something is not.`,
		settings: func(s *settings) {
			database.register(s)
		},
		run: func(ctx context.Context, io stdio, args []string) error {
			if len(args) > 0 {
				return errUsage
			}
			url, err := database.find()
			if err != nil {
				return err
			}
			conn, err := pgx.Connect(ctx, url)
			if err != nil {
				return err
			}
			defer conn.Close(context.WithoutCancel(ctx))
			differences, err := ledger.Verify(ctx, conn)
			if err != nil {
				return err
			}
			for _, difference := range differences {
				fmt.Fprintln(io.out, difference)
			}
			if len(differences) > 0 {
				return fmt.Errorf("%d differences", len(differences))
			}
			return nil
		},
	}
}

// databaseSettings say which database a command is about.
type databaseSettings struct{ url, data string }

func (d *databaseSettings) register(s *settings) {
	s.text(&d.url, "database", "URL", "DATABASE_URL", "", "the Postgres; without it, the one of a running `server up`")
	s.text(&d.data, "data", "DIR", "SCHEDULEMESH_DATA", "", dataUsage("where that one keeps its data"))
}

func (d *databaseSettings) find() (string, error) {
	if d.url != "" {
		return d.url, nil
	}
	if d.data == "" {
		var err error
		if d.data, err = defaultData(); err != nil {
			return "", err
		}
	}
	note, err := os.ReadFile(databaseNote(d.data))
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("no database: set DATABASE_URL, as postgres://user:password@host:5432/name, or have `server up` running here, or name its directory with --data")
	}
	return strings.TrimSpace(string(note)), err
}

// databaseNote is the file that `up` keeps its database's URL in while it runs.
func databaseNote(data string) string { return filepath.Join(data, "database-url") }
