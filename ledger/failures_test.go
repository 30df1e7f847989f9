package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/schedulemesh/schedulemesh/db"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/local"
	"github.com/schedulemesh/schedulemesh/testdb"
)

// counted is a world whose metrics can be read.
func counted(t *testing.T, url string) (*world, func(name string) float64) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	w := &world{t: t, db: pool, more: make(chan struct{}, 1)}
	reg := prometheus.NewRegistry()
	if w.Ledger, err = ledger.Open(t.Context(), pool, ledger.Options{Jobs: w.announce, Metrics: ledger.NewMetrics(reg)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	w.must(waitReady(w.Ledger))
	return w, func(name string) (sum float64) {
		t.Helper()
		families, err := reg.Gather()
		w.must(err)
		for _, f := range families {
			if f.GetName() == "schedulemesh_ledger_"+name+"_total" {
				for _, m := range f.GetMetric() {
					sum += m.GetCounter().GetValue()
				}
			}
		}
		return sum
	}
}

func session(t *testing.T, w *world) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), w.db.Config().ConnConfig)
	w.must(err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func exec(t *testing.T, conn interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// flood submits from many sides until stop is closed, and says what was answered.
func (w *world) flood(stop <-chan struct{}) (admitted, failed map[string]bool) {
	admitted, failed = map[string]bool{}, map[string]bool{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for c := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("t%d-%d", c, i)
				_, err := w.Submit(context.Background(), "default", sub(id, fmt.Sprint("p", i%2), 0.001, 5))
				mu.Lock()
				if err == nil {
					admitted[id] = true
				} else {
					failed[id] = true
					if !errors.Is(err, ledger.ErrUnavailable) {
						w.t.Errorf("%s: %v", id, err)
					} else if strings.Contains(err.Error(), "nobody can tell") {
						delete(failed, id)
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return admitted, failed
}

// answered fails the test when an answer was not the truth.
func (w *world) answered(admitted, failed map[string]bool) {
	w.t.Helper()
	rows, err := w.db.Query(context.Background(), "SELECT task_id, count(*) FROM tasks WHERE kind = 'task' GROUP BY 1")
	w.must(err)
	there := map[string]int{}
	for rows.Next() {
		var id string
		var n int
		w.must(rows.Scan(&id, &n))
		there[id] = n
		if n != 1 {
			w.t.Errorf("%s is there %d times", id, n)
		}
		if failed[id] {
			w.t.Errorf("%s was answered with an error, and is there", id)
		}
	}
	w.must(rows.Err())
	for id := range admitted {
		if there[id] == 0 {
			w.t.Errorf("%s was admitted, and is not there", id)
		}
	}
	w.t.Logf("%d admitted, %d failed", len(admitted), len(failed))
	if len(admitted) == 0 {
		w.t.Error("nothing was admitted")
	}
	w.verified()
	w.asFresh()
}

// Another session locks the pools in the opposite order; Postgres ends the lane's transaction.
func TestADeadlockIsSurvived(t *testing.T) {
	t.Parallel()
	w, count := counted(t, testdb.Migrated(t, db.Key(), db.Migrate))
	w.makePool("borrower", 2)
	w.makePool("lender", 2)
	w.policy(`{"cross_pool_priority_threshold": 2}`)
	w.run(sub("own", "borrower", 2, 9))
	w.run(sub("victim", "lender", 2, 1))
	w.run(sub("vip", "borrower", 2, 8)) // from now on, what frees its pool locks both

	other := session(t, w)
	exec(t, other, "SET deadlock_timeout = '60s'") // so that it is not the one that notices
	exec(t, other, "BEGIN")
	exec(t, other, "SELECT 1 FROM pools WHERE name = 'lender' FOR UPDATE")
	done := make(chan error, 1)
	go func() {
		_, err := w.Cancel(context.Background(), "default", "vip", "test")
		done <- err
	}()
	waiting(t, w)
	exec(t, other, "SELECT 1 FROM pools WHERE name = 'borrower' FOR UPDATE") // returns when the lane was ended
	exec(t, other, "COMMIT")
	w.must(<-done)
	if count("retries") == 0 {
		t.Error("no retry was counted")
	}
	w.settle()
	if b := w.balance("lender"); b.Lent != 0 {
		t.Errorf("%d are still lent", b.Lent)
	}
	w.verified()
	w.asFresh()
}

// waiting waits until somebody in the database waits for a lock.
func waiting(t *testing.T, w *world) {
	t.Helper()
	eventually(t, "somebody waits for a lock", 20*time.Second, func() bool {
		var n int
		w.must(w.db.QueryRow(context.Background(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&n))
		return n > 0
	})
}

// With a stricter isolation by default, a pool that another session changed meanwhile
// cannot be locked, and the transaction has to start again.
func TestASerializationFailureIsRetried(t *testing.T) {
	t.Parallel()
	url := testdb.Migrated(t, db.Key(), db.Migrate)
	w, count := counted(t, url+"&options=-c%20default_transaction_isolation%3Dserializable")
	w.makePool("a", 4)
	other := session(t, w)
	exec(t, other, "BEGIN ISOLATION LEVEL READ COMMITTED")
	exec(t, other, "UPDATE pools SET target_agents = 3 WHERE name = 'a'")
	done := make(chan error, 1)
	go func() {
		_, err := w.Submit(context.Background(), "default", sub("one", "a", 1, 1))
		done <- err
	}()
	waiting(t, w)
	exec(t, other, "COMMIT")
	w.must(<-done)
	if count("retries") == 0 {
		t.Error("no retry was counted")
	}
	w.verified()
}

// inject makes the database refuse writes of tasks: the first so many, or those of one id.
func inject(t *testing.T, w *world, code string, first int, id string) {
	t.Helper()
	exec(t, w.db, "CREATE SEQUENCE refused")
	exec(t, w.db, fmt.Sprintf(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF new.task_id = '%s' OR '%s' = '' AND nextval('refused') <= %d THEN RAISE EXCEPTION 'provoked' USING ERRCODE = '%s'; END IF;
		RETURN new; END $$`, id, id, first, code))
	exec(t, w.db, "CREATE TRIGGER refuse BEFORE INSERT ON tasks FOR EACH ROW EXECUTE FUNCTION refuse()")
}

func TestRepeatedSerializationFailuresAreRetried(t *testing.T) {
	t.Parallel()
	w, count := counted(t, testdb.Migrated(t, db.Key(), db.Migrate))
	w.makePool("a", 4)
	inject(t, w, "40001", 3, "")
	w.submit(sub("one", "a", 1, 1))
	if count("retries") != 3 {
		t.Errorf("%v retries", count("retries"))
	}
	w.verified()
	w.asFresh()
}

// One call of a batch violates a constraint that the ledger did not foresee: the others do not suffer.
func TestAPoisonedBatchHarmsOnlyTheCallThatPoisonedIt(t *testing.T) {
	t.Parallel()
	w, count := counted(t, testdb.Migrated(t, db.Key(), db.Migrate))
	w.makePool("a", 100)
	inject(t, w, "23514", 0, "poison")
	other := session(t, w)
	exec(t, other, "BEGIN")
	exec(t, other, "SELECT 1 FROM pools FOR UPDATE") // calls gather meanwhile
	var wg sync.WaitGroup
	for i := range 40 {
		id := fmt.Sprint("t", i)
		if i == 20 {
			id = "poison"
		}
		wg.Go(func() {
			_, err := w.Submit(context.Background(), "default", sub(id, "a", 1, 5))
			if (err != nil) != (id == "poison") {
				t.Errorf("%s: %v", id, err)
			}
		})
	}
	waiting(t, w)
	time.Sleep(50 * time.Millisecond) // the rest of the calls are on their way to the lane
	exec(t, other, "COMMIT")
	wg.Wait()
	if count("replays") == 0 || count("failures") != 1 {
		t.Errorf("%v replays and %v failures were counted", count("replays"), count("failures"))
	}
	if b := w.balance("a"); b.Reserved != 39_000 {
		t.Errorf("%d are reserved", b.Reserved)
	}
	w.verified()
	w.asFresh()
}

func TestADatabaseWithoutRoomRefusesAndGoesOn(t *testing.T) {
	t.Parallel()
	w, count := counted(t, testdb.Migrated(t, db.Key(), db.Migrate))
	w.makePool("a", 4)
	inject(t, w, "53100", 1, "")
	_, err := w.Submit(t.Context(), "default", sub("one", "a", 1, 1))
	if !errors.Is(err, ledger.ErrUnavailable) || !strings.Contains(err.Error(), "run out") {
		t.Fatal(err)
	}
	if count("failures") != 1 || count("unknown_commits") != 0 {
		t.Errorf("%v failures and %v unknown commits were counted", count("failures"), count("unknown_commits"))
	}
	if _, err := w.Task(t.Context(), "default", "one"); !errors.Is(err, ledger.ErrUnknownTask) {
		t.Errorf("what failed is there: %v", err)
	}
	w.submit(sub("one", "a", 1, 1))
	w.verified()
	w.asFresh()
}

// cutter stands between the lane and Postgres and can cut a connection at its commit.
type cutter struct {
	to     string
	at     net.Listener
	answer atomic.Bool // cut the next COMMIT's answer: it has happened
	demand atomic.Bool // cut the next COMMIT's request: it will not happen
	cuts   atomic.Int64
}

func newCutter(t *testing.T, database string) (*cutter, string) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{to: u.Host}
	if c.at, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.at.Close() })
	go func() {
		for {
			client, err := c.at.Accept()
			if err != nil {
				return
			}
			go c.serve(client)
		}
	}()
	u.Host = c.at.Addr().String()
	q := u.Query()
	q.Set("sslmode", "disable")
	u.RawQuery = q.Encode()
	return c, u.String()
}

func (c *cutter) serve(client net.Conn) {
	server, err := net.Dial("tcp", c.to)
	if err != nil {
		_ = client.Close()
		return
	}
	var inTransaction atomic.Bool
	pass := func(from, to net.Conn, cut func([]byte) bool) {
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			if n > 0 && cut(buf[:n]) {
				c.cuts.Add(1)
				break
			}
			if n > 0 {
				if _, e := to.Write(buf[:n]); e != nil {
					break
				}
			}
			if err != nil {
				break
			}
		}
		_ = client.Close()
		_ = server.Close()
	}
	go pass(client, server, func(b []byte) bool {
		// What comes in a transaction that has its locks is its writes, with the COMMIT.
		return inTransaction.Load() && b[0] != 'X' && c.demand.CompareAndSwap(true, false)
	})
	pass(server, client, func(b []byte) bool {
		if bytes.Contains(b, []byte("C\x00\x00\x00\x0bCOMMIT\x00")) && c.answer.CompareAndSwap(true, false) {
			return true
		}
		if at := bytes.LastIndex(b, []byte("Z\x00\x00\x00\x05")); at >= 0 && at+5 < len(b) {
			inTransaction.Store(b[at+5] == 'T')
		}
		return false
	})
}

// The connection is cut at COMMIT: whether it happened is found out, and the answer is true.
func TestACommitWhoseAnswerIsLostIsAskedAfter(t *testing.T) {
	t.Parallel()
	for _, happened := range []bool{true, false} {
		t.Run(fmt.Sprint("happened ", happened), func(t *testing.T) {
			t.Parallel()
			c, through := newCutter(t, testdb.Migrated(t, db.Key(), db.Migrate))
			w, count := counted(t, through)
			w.makePool("a", 100)
			w.run(sub("before", "a", 1, 1))
			for i := range 5 {
				if happened {
					c.answer.Store(true)
				} else {
					c.demand.Store(true)
				}
				id := fmt.Sprint("t", i)
				w.submit(sub(id, "a", 1, 5))
				w.settle()
				w.state(id, ledger.Running)
				if c.cuts.Load() != int64(i+1) {
					t.Fatalf("%d connections were cut", c.cuts.Load())
				}
			}
			if count("unknown_commits") < 5 || !happened && count("retries") < 5 {
				t.Errorf("%v unknown commits and %v retries were counted", count("unknown_commits"), count("retries"))
			}
			if b := w.balance("a"); b.Used != 6_000 {
				t.Errorf("%d are used", b.Used)
			}
			w.verified()
			w.asFresh()
		})
	}
}

// An operator ends the server's connections under load, again and again.
func TestConnectionsThatAreTerminatedCostNothing(t *testing.T) {
	t.Parallel()
	w, count := counted(t, testdb.Migrated(t, db.Key(), db.Migrate))
	w.makePool("p0", 1e6)
	w.makePool("p1", 1e6)
	other := session(t, w)
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		for range 10 {
			time.Sleep(100 * time.Millisecond)
			if _, err := other.Exec(context.Background(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"); err != nil {
				t.Error(err)
			}
		}
	}()
	admitted, failed := w.flood(stop)
	if count("retries") == 0 {
		t.Error("no retry was counted")
	}
	w.db.Reset() // this test's own connections were terminated too
	w.answered(admitted, failed)
}

// The database is restarted while submissions come in.
func TestARestartOfTheDatabaseIsSurvived(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "schedulemesh-restart-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // the user that runs Postgres for root passes through
		t.Fatal(err)
	}
	start := func(port int) *local.Postgres {
		pg, err := local.StartPostgres(context.Background(), local.PostgresOptions{Dir: dir + "/pg", Port: port})
		if err != nil {
			t.Fatal(err)
		}
		return pg
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	_ = free.Close()
	pg := start(port)
	if err := db.Migrate(t.Context(), pg.URL()); err != nil {
		t.Fatal(err)
	}
	w, count := counted(t, pg.URL())
	w.makePool("p0", 1e6)
	w.makePool("p1", 1e6)
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		defer close(stop)
		time.Sleep(300 * time.Millisecond)
		if err := pg.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		pg = start(port)
		time.Sleep(time.Second)
	}()
	admitted, failed := w.flood(stop)
	<-over
	t.Cleanup(func() { _ = pg.Stop(context.Background()) })
	w.must(waitReady(w.Ledger))
	w.submit(sub("after", "p0", 1, 1))
	if count("retries")+count("unknown_commits") == 0 { // it may have caught the lane at a commit
		t.Error("nothing was counted")
	}
	w.answered(admitted, failed)
}
