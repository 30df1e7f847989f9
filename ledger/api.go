// Package ledger is quota as data: lanes, transactions, the life of a task,
// loans, reconcile and verify.
//
// Every change runs in a transaction that holds SELECT … FOR UPDATE on the pools
// it touches; the decision core in memory is only a cache of what those rows
// say. Concurrent calls are combined by a lane into one transaction with an
// answer for each. Ledger knows Postgres and sched; it must not know HTTP, Ray
// or the bridge.
package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/sched"
)

// Options of a ledger. The zero value works.
type Options struct {
	// Server names this process among those on the database; made up when empty.
	Server string
	// SingleTransactions runs a transaction for each call instead of lanes, to measure them.
	SingleTransactions bool
	// Now is the clock, time.Now when nil.
	Now func() time.Time
	// Jobs receives work for the agents after it is durable. It must not block.
	Jobs    func([]Job)
	Metrics *Metrics
	// ClearWait is how long somebody waits for a namespace to be clean, a minute when 0.
	ClearWait time.Duration
	Logger    *slog.Logger
}

// Ledger is the door to quota and tasks. It is safe for concurrent use.
type Ledger struct {
	pool   *pgxpool.Pool
	q      *dbgen.Queries
	lane   *lane
	start  *starter
	opts   Options
	feed   *feed
	stop   context.CancelFunc
	server string
	log    *slog.Logger
	// servers are those that share the database.
	servers   *membership
	hurry     chan struct{} // a queue could move on
	backtests chan struct{} // holds one for each that is under way
	// news is what servers tell each other.
	news *news
	// clears are the namespaces that this server clears.
	clears *clears

	mu      sync.Mutex
	waiting map[sched.ID]map[chan struct{}]bool
	spaces  map[string]int64 // namespaces known to exist
}

// Open starts the lane; the core is loaded from the database while it works already
// (see Ready). Jobs left over from before are not announced: ask Work for them.
func Open(ctx context.Context, pool *pgxpool.Pool, opts Options) (*Ledger, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.ClearWait == 0 {
		opts.ClearWait = time.Minute
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Server == "" {
		opts.Server = "server-" + uuidString(newID())
	}
	l := &Ledger{pool: pool, q: dbgen.New(pool), opts: opts, server: opts.Server, log: opts.Logger,
		backtests: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), hurry: make(chan struct{}, 1), waiting: map[sched.ID]map[chan struct{}]bool{}, spaces: map[string]int64{}}
	l.feed = newFeed(l)
	l.servers = newMembership(l)
	l.news = newNews(l)
	l.clears = newClears(l)
	laneConns, err := laneConnections(ctx, pool)
	if err != nil {
		return nil, fmt.Errorf("ledger: connecting: %w", err)
	}
	l.lane = &lane{pool: laneConns, book: newBook(), in: make(chan *call, 4*maxBatch), stopped: make(chan struct{}), single: opts.SingleTransactions,
		now: opts.Now, log: opts.Logger, metrics: opts.Metrics, after: l.after, others: l.servers.others, learned: l.learned, leads: l.servers.leads}
	// A member first: what others change from now on is written down for this one.
	conn, err := l.servers.join(ctx)
	if err != nil {
		laneConns.Close()
		return nil, fmt.Errorf("ledger: joining: %w", err)
	}
	l.start, err = l.lane.names(ctx, pool)
	if err != nil {
		closeConn(conn)
		laneConns.Close()
		return nil, fmt.Errorf("ledger: loading: %w", err)
	}
	run, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	go l.lane.run(run)
	go l.start.run(run)
	go l.feed.run(run)
	go l.forgetAnswers(run)
	go l.servers.run(run, conn)
	go l.keepDeadlines(run)
	go l.keepGroups(run)
	go l.news.run(run)
	go l.clears.run(run)
	if err := l.ensureNamespace(ctx, "default"); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close stops the lane after the transaction under way. Agents keep running.
func (l *Ledger) Close() {
	l.stop()
	<-l.lane.stopped
	<-l.servers.done
	<-l.news.done
	<-l.clears.done
	l.lane.pool.Close()
}

// laneConnections are the lane's own. Its statements address rows by key; a plan
// made while a table was small would scan it, and stay when it has grown. So
// scans are out of the question on these connections, and a statement is planned once.
func laneConnections(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Pool, error) {
	cfg := pool.Config().Copy()
	cfg.MaxConns, cfg.MinConns = 2, 1
	for _, name := range []string{"enable_seqscan", "enable_hashjoin", "enable_mergejoin"} {
		cfg.ConnConfig.RuntimeParams[name] = "off"
	}
	cfg.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	return pgxpool.NewWithConfig(ctx, cfg)
}

// after hands a committed batch's news to whoever waits for it.
func (l *Ledger) after(b *batch) {
	l.announce(b.jobs, b.woken)
	for _, more := range b.more {
		if more {
			l.moveOn()
		}
	}
	l.opts.Metrics.events(b.events)
	l.opts.Metrics.groups(b)
	l.feed.wake()
	if b.shared {
		l.news.committed(b)
	}
}

// learned hands on the news of rows that another server changed.
func (l *Ledger) learned(ch *changes, fresh []*row) {
	var jobs []Job
	if ch.basis.leads {
		for _, r := range fresh {
			if !r.works() || !l.leadsNow(r.cluster()) {
				continue
			}
			for _, j := range l.lane.book.jobOf(r) {
				j.Spec = ch.specs[r.uid]
				jobs = append(jobs, j)
			}
		}
	}
	l.announce(jobs, ch.uids)
}

// announce gives jobs to the agents, and wakes who waits for rows.
func (l *Ledger) announce(jobs []Job, woken []sched.ID) {
	if len(jobs) > 0 && l.opts.Jobs != nil {
		l.opts.Jobs(jobs)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return
	}
	for _, uid := range woken {
		for ch := range l.waiting[uid] {
			select {
			case ch <- struct{}{}:
			default:
			}
		}
	}
}

// watch returns a channel that is signalled after transitions of a row, and a func to end that.
func (l *Ledger) watch(uid sched.ID) (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting[uid] == nil {
		l.waiting[uid] = map[chan struct{}]bool{}
	}
	l.waiting[uid][ch] = true
	return ch, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.waiting[uid], ch)
		if len(l.waiting[uid]) == 0 {
			delete(l.waiting, uid)
		}
	}
}

// Ready reports whether the database answers, the lane runs and every pool is loaded.
// Before, calls on pools that are loaded are answered, others wait.
func (l *Ledger) Ready(ctx context.Context) error {
	if err := l.pool.Ping(ctx); err != nil {
		return &Error{Code: ErrUnavailable.Code, Message: "the database cannot be reached", cause: err}
	}
	if err := l.lane.glance(ctx, func(*book) {}); err != nil {
		return err
	}
	select {
	case <-l.start.done:
		return nil
	default:
	}
	loaded, of, err := l.start.progress()
	if err != nil {
		return &Error{Code: ErrUnavailable.Code, Message: fmt.Sprintf("%d of %d pools are loaded; the next failed: %v", loaded, of, err), cause: err}
	}
	return &Error{Code: ErrUnavailable.Code, Message: fmt.Sprintf("%d of %d pools are loaded; those are served already", loaded, of)}
}

// ensureNamespace makes a namespace on first use and puts it in the book.
func (l *Ledger) ensureNamespace(ctx context.Context, name string) error {
	l.mu.Lock()
	_, known := l.spaces[name]
	l.mu.Unlock()
	if known {
		return nil
	}
	if name == "" || len(name) > 200 {
		return invalid("namespace", "must have 1 to 200 bytes")
	}
	if err := clean("namespace", name, 200); err != nil {
		return err
	}
	doc, err := json.Marshal(sched.DefaultPolicy())
	if err != nil {
		return err
	}
	if err := l.q.CreateNamespace(ctx, dbgen.CreateNamespaceParams{Name: name, Document: doc, Now: l.now()}); err != nil {
		return l.lane.outward(err)
	}
	row, err := l.q.NamespacePolicy(ctx, name)
	if err != nil {
		return l.lane.outward(err)
	}
	policy, err := policyOf(row.Document)
	if err != nil {
		return err
	}
	err = l.lane.glance(ctx, func(b *book) {
		if b.spaces[name] == nil {
			b.addSpace(row.ID, name, row.Epoch, row.State, int(row.PolicyVersion), policy)
		}
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.spaces[name] = row.ID
	l.mu.Unlock()
	return nil
}

func (l *Ledger) now() time.Time { return l.opts.Now().UTC().Truncate(time.Microsecond) }
