package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Several servers may share a database. They know each other by a heartbeat, and by
// an advisory lock that goes with its connection: one that was killed is missed at
// once, one that hangs after deadAfter. For each Ray cluster one of them holds a
// lease, and with it all work on the cluster's agents.
//
// A server whose heartbeat was not written for fenceAfter stops acting by itself,
// before others may take over. Only the database's clock says when a heartbeat was;
// for its own fence a server measures from before it sent the last one that arrived.
const (
	beatEvery  = time.Second
	fenceAfter = 5 * time.Second
	deadAfter  = "10 seconds"
)

// serverLocks is the first half of the advisory lock each live server holds; the
// second is a hash of its name. Its backend lets go when the server dies.
const serverLocks = 7301

// channel is where servers tell each other what moved.
const channel = "schedulemesh"

// These are not among db/queries: sqlc does not know pg_locks.
const (
	lockServer = `SELECT pg_try_advisory_lock($1::int, hashtext($2))`

	beatServer = `INSERT INTO servers AS s (name, url, heartbeat) VALUES ($1, $2, clock_timestamp())
ON CONFLICT (name) DO UPDATE SET url = excluded.url, heartbeat = excluded.heartbeat`

	isAlive = `s.heartbeat > clock_timestamp() - interval '` + deadAfter + `'
  AND EXISTS (SELECT 1 FROM pg_locks k
              WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 2
                AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                AND k.classid::bigint = 7301 AND k.objid::bigint = (hashtext(s.name)::bigint & 4294967295))`

	aliveServers = `SELECT s.name, s.url FROM servers s WHERE ` + isAlive

	leases = `SELECT cluster, server FROM cluster_leases`

	claimCluster = `INSERT INTO cluster_leases AS c (cluster, server, since) VALUES ($1, $2, clock_timestamp())
ON CONFLICT (cluster) DO UPDATE SET server = excluded.server, since = excluded.since
WHERE c.server <> excluded.server AND NOT EXISTS (SELECT 1 FROM servers s WHERE s.name = c.server AND ` + isAlive + `)`

	leaveServers = `WITH gone AS (DELETE FROM servers WHERE name = $1)
UPDATE cluster_leases SET server = '' WHERE server = $1`

	forgetServers = `DELETE FROM servers WHERE heartbeat < clock_timestamp() - interval '1 hour'`
)

// membership is this server among those on the database.
type membership struct {
	l    *Ledger
	poke chan struct{} // beat now
	done chan struct{}

	mu      sync.Mutex
	url     string
	written time.Time         // when the last heartbeat that arrived was sent
	alive   map[string]string // the others that are alive: name → URL
	wanted  map[string]bool   // clusters this server can serve
	holders map[string]string // cluster → server
	changed chan struct{}     // closed when holders change
}

func newMembership(l *Ledger) *membership {
	return &membership{l: l, poke: make(chan struct{}, 1), done: make(chan struct{}),
		alive: map[string]string{}, wanted: map[string]bool{}, holders: map[string]string{}, changed: make(chan struct{})}
}

// SetURL says where this server answers, for others to point to.
func (l *Ledger) SetURL(url string) {
	m := l.servers
	m.mu.Lock()
	m.url = url
	m.mu.Unlock()
	m.beatSoon()
}

// Server is this server's name.
func (l *Ledger) Server() string { return l.server }

// Contend asks for the lease of a cluster, from now on: whenever nobody alive has it,
// this server may get it.
func (l *Ledger) Contend(cluster string) {
	m := l.servers
	m.mu.Lock()
	m.wanted[cluster] = true
	m.mu.Unlock()
	m.beatSoon()
}

// Leads reports whether this server holds the lease of a cluster, and gives a channel
// that is closed when leases change hands. It is true as long as nobody is known to
// have taken the lease: ask MayAct before doing something.
func (l *Ledger) Leads(cluster string) (bool, <-chan struct{}) {
	m := l.servers
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.holders[cluster] == l.server, m.changed
}

// MayAct reports whether this server holds a cluster's lease for certain: nobody else
// can have taken it by now.
func (l *Ledger) MayAct(cluster string) bool {
	m := l.servers
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.holders[cluster] == l.server && time.Since(m.written) < fenceAfter
}

// Leader names the server that holds a cluster's lease, "" when nobody alive does,
// and where it answers.
func (l *Ledger) Leader(cluster string) (name, url string) {
	m := l.servers
	m.mu.Lock()
	defer m.mu.Unlock()
	name = m.holders[cluster]
	if name == l.server {
		return name, m.url
	}
	url, alive := m.alive[name]
	if !alive {
		return "", ""
	}
	return name, url
}

// others reports whether any other server is alive.
func (m *membership) others() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.alive) > 0
}

// leads reports whether this server runs the agents of any cluster.
func (m *membership) leads() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for cluster := range m.wanted {
		if m.holders[cluster] == m.l.server && !strings.HasPrefix(cluster, "/") { // which is a lease on other work
			return true
		}
	}
	return false
}

func (m *membership) beatSoon() {
	select {
	case m.poke <- struct{}{}:
	default:
	}
}

// run keeps this server a member until ctx ends, and leaves then.
func (m *membership) run(ctx context.Context, conn *pgx.Conn) {
	defer close(m.done)
	for ctx.Err() == nil {
		err := error(nil)
		if conn == nil {
			conn, err = m.join(ctx)
		}
		for err == nil {
			err = m.listen(ctx, conn)
			if err == nil {
				err = m.beat(ctx, conn)
			}
		}
		if conn != nil && ctx.Err() == nil {
			m.l.log.Warn("the connection among servers broke", "error", err)
		}
		if ctx.Err() != nil {
			break
		}
		closeConn(conn)
		conn = nil
		select {
		case <-ctx.Done():
		case <-time.After(beatEvery / 4):
		}
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if _, err := m.l.pool.Exec(after, leaveServers, m.l.server); err == nil {
		m.l.notify(after, "servers")
	}
	closeConn(conn)
}

func closeConn(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// join connects, takes this server's lock and tells the others.
func (m *membership) join(ctx context.Context) (conn *pgx.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, fenceAfter)
	defer cancel()
	conn, err = pgx.ConnectConfig(ctx, m.l.pool.Config().ConnConfig)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			closeConn(conn)
			conn = nil
		}
	}()
	for locked := false; !locked; {
		if err := conn.QueryRow(ctx, lockServer, serverLocks, m.l.server).Scan(&locked); err != nil {
			return conn, err
		}
		if locked {
			break
		}
		select { // an earlier connection of ours that Postgres has not missed yet
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return conn, fmt.Errorf("another server is named %s: %w", m.l.server, ctx.Err())
		}
	}
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return conn, err
	}
	if err := m.beat(ctx, conn); err != nil {
		return conn, err
	}
	m.l.notify(ctx, "servers")
	m.l.news.missed() // what was said while nobody listened
	return conn, nil
}

// listen hears others until the next heartbeat is due.
func (m *membership) listen(ctx context.Context, conn *pgx.Conn) error {
	due, cancel := context.WithTimeout(ctx, beatEvery)
	defer cancel()
	wake := make(chan struct{})
	defer close(wake)
	go func() {
		select {
		case <-m.poke:
			cancel()
		case <-wake:
		}
	}()
	for {
		n, err := conn.WaitForNotification(due)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if due.Err() != nil && !conn.IsClosed() {
				return nil
			}
			return err
		}
		from, what, _ := strings.Cut(n.Payload, " ")
		if from == m.l.server {
			continue
		}
		if what == "servers" {
			return nil
		}
		m.l.news.heard(what)
	}
}

// beat writes the heartbeat, and learns who is alive and who holds what.
func (m *membership) beat(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, fenceAfter/2)
	defer cancel()
	m.mu.Lock()
	url, wanted := m.url, maps.Clone(m.wanted)
	m.mu.Unlock()
	sent := time.Now()
	if _, err := conn.Exec(ctx, beatServer, m.l.server, url); err != nil {
		return err
	}
	alive, err := pairs(ctx, conn, aliveServers)
	if err != nil {
		return err
	}
	holders, err := pairs(ctx, conn, leases)
	if err != nil {
		return err
	}
	for cluster := range wanted {
		before := holders[cluster]
		if _, ok := alive[before]; ok {
			continue
		}
		tag, err := conn.Exec(ctx, claimCluster, cluster, m.l.server)
		if err != nil {
			return err
		}
		if tag.RowsAffected() > 0 {
			holders[cluster] = m.l.server
			if before != "" {
				m.l.opts.Metrics.tookOver()
				m.l.log.Warn("took over from a server that died", "cluster", cluster, "server", before)
			}
		}
	}
	if _, err := conn.Exec(ctx, forgetServers); err != nil {
		return err
	}
	delete(alive, m.l.server)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written, m.alive = sent, alive
	if !maps.Equal(m.holders, holders) {
		m.holders = holders
		close(m.changed)
		m.changed = make(chan struct{})
	}
	return nil
}

func pairs(ctx context.Context, conn *pgx.Conn, sql string) (map[string]string, error) {
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	var key, value string
	_, err = pgx.ForEachRow(rows, []any{&key, &value}, func() error { out[key] = value; return nil })
	return out, err
}

// notify tells the other servers something; nobody depends on its arriving.
func (l *Ledger) notify(ctx context.Context, what string) {
	_, err := l.pool.Exec(ctx, "SELECT pg_notify($1, $2)", channel, l.server+" "+what)
	if err != nil && !errors.Is(err, context.Canceled) {
		l.log.Warn("other servers could not be told", "error", err)
	}
}

func (l *Ledger) leadsNow(cluster string) bool {
	leads, _ := l.Leads(cluster)
	return leads
}
