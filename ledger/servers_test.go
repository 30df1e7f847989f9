package ledger_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/schedulemesh/schedulemesh/ledger"
)

// eventually waits for what a server does by itself, a heartbeat or two later.
func eventually(t *testing.T, what string, within time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

func leads(l *ledger.Ledger) bool {
	held, _ := l.Leads("local")
	return held
}

func TestOneServerLeadsAClusterAndTheNextWhenItLeaves(t *testing.T) {
	t.Parallel()
	a := open(t)
	b := reopen(t, a.db)
	a.SetURL("http://a")
	a.Contend("local")
	eventually(t, "the first leads", 5*time.Second, func() bool { return leads(a.Ledger) })
	b.Contend("local")
	eventually(t, "the second knows who leads", 5*time.Second, func() bool {
		name, url := b.Leader("local")
		return name == a.Server() && url == "http://a"
	})
	if leads(b.Ledger) || b.MayAct("local") {
		t.Fatal("two servers lead one cluster")
	}
	if !a.MayAct("local") {
		t.Fatal("the one that leads may not act")
	}
	_, changed := b.Leads("local")
	a.Close()
	select {
	case <-changed:
	case <-time.After(5 * time.Second):
		t.Fatal("the lease that was given back was not taken")
	}
	eventually(t, "the second leads", 5*time.Second, func() bool { return leads(b.Ledger) })
}

// Whoever holds the lease is dead when its lock is free or its heartbeat is old.
func TestALeaseIsTakenFromADeadServerOnly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		age    string
		locked bool
		taken  bool
	}{
		"alive":  {"0 s", true, false},
		"killed": {"0 s", false, true},
		"hung":   {"30 s", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := open(t)
			ctx := t.Context()
			conn, err := pgx.ConnectConfig(ctx, w.db.Config().ConnConfig)
			w.must(err)
			t.Cleanup(func() { _ = conn.Close(context.Background()) })
			if c.locked {
				_, err = conn.Exec(ctx, "SELECT pg_advisory_lock(7301, hashtext('other'))")
				w.must(err)
			}
			_, err = conn.Exec(ctx, "INSERT INTO servers (name, heartbeat) VALUES ('other', clock_timestamp() - $1::text::interval)", c.age)
			w.must(err)
			_, err = conn.Exec(ctx, "INSERT INTO cluster_leases (cluster, server, since) VALUES ('local', 'other', now())")
			w.must(err)
			w.Contend("local")
			if !c.taken {
				eventually(t, "it knows who leads", 5*time.Second, func() bool { name, _ := w.Leader("local"); return name == "other" })
				if leads(w.Ledger) {
					t.Fatal("it took the lease from a server that is alive")
				}
				_ = conn.Close(ctx) // the lock goes with it
			}
			eventually(t, "the lease is taken", 5*time.Second, func() bool { return leads(w.Ledger) })
		})
	}
}

func TestAServerWithoutItsDatabaseStopsActingByItself(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.Contend("local")
	eventually(t, "it leads", 5*time.Second, func() bool { return w.MayAct("local") })
	cfg := w.db.Config().ConnConfig.Copy()
	name := cfg.Database
	cfg.Database = "postgres"
	admin, err := pgx.ConnectConfig(t.Context(), cfg)
	w.must(err)
	defer func() { _ = admin.Close(context.Background()) }()
	allow := func(yes string) {
		t.Helper()
		_, err := admin.Exec(context.Background(), "ALTER DATABASE "+name+" ALLOW_CONNECTIONS "+yes)
		w.must(err)
	}
	allow("false")
	defer allow("true")
	_, err = admin.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
	w.must(err)
	eventually(t, "it no longer acts", 9*time.Second, func() bool { return !w.MayAct("local") })
	if !leads(w.Ledger) {
		t.Error("nobody took its lease, but it gave it up")
	}
	allow("true")
	eventually(t, "it acts again", 9*time.Second, func() bool { return w.MayAct("local") })
}
