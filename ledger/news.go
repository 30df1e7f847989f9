package ledger

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// news is what servers tell each other, with NOTIFY: which pools are at which version
// by now, after the commits. A server that hears it brings its book up to that, so
// that what it answers and does without a lock is at most moments old: jobs for the
// cluster it leads, waiting clients, feeds, evaluations. Nothing depends on it: under
// a lock a lane looks at the versions itself, and a slow poll finds what was missed.
type news struct {
	l    *Ledger
	done chan struct{}
	// nodesOf is what was followed last, by cluster; only run touches it.
	nodesOf map[string]string

	mu    sync.Mutex
	said  map[int64]int64 // what this server has to tell: versions by pool
	known map[int64]int64 // what it was told
	all   bool            // ask for every version
	nodes bool            // read what is known of the clusters' nodes
	more  chan struct{}
	tell  chan struct{}
}

// Timings of the news.
const (
	newsEvery  = 10 * time.Millisecond // between two messages
	newsPoll   = 2 * time.Second
	trimEvery  = 10 * time.Second
	newsAtOnce = 200 // pools in one message; beyond, everything is asked for
)

func newNews(l *Ledger) *news {
	return &news{l: l, done: make(chan struct{}), nodesOf: map[string]string{}, said: map[int64]int64{}, known: map[int64]int64{}, more: make(chan struct{}, 1), tell: make(chan struct{}, 1)}
}

// committed notes what to tell the others. It is called by the lane.
func (n *news) committed(b *batch) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id := range b.locked {
		if p := b.home(id); p != nil {
			n.said[id] = p.version
		} else {
			n.said[id] = 0 // deleted
		}
	}
	poke(n.tell)
}

// changed tells the others of a pool, or a policy, that did not change in a batch.
func (n *news) changed() {
	if n.l.servers.others() {
		n.l.notify(context.Background(), "all")
	}
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// heard takes what another server said.
func (n *news) heard(what string) {
	kind, rest, _ := strings.Cut(what, " ")
	switch kind {
	case "pools":
		n.mu.Lock()
		for item := range strings.SplitSeq(rest, ",") {
			id, version, _ := strings.Cut(item, ":")
			i, err1 := strconv.ParseInt(id, 10, 64)
			v, err2 := strconv.ParseInt(version, 10, 64)
			if err1 == nil && err2 == nil {
				n.known[i] = v
			}
		}
		n.mu.Unlock()
		poke(n.more)
	case "nodes":
		n.mu.Lock()
		n.nodes = true
		n.mu.Unlock()
		poke(n.more)
	default:
		n.missed()
	}
	n.l.feed.wake()
}

// missed asks for every version: something may have been said that was not heard.
func (n *news) missed() {
	n.mu.Lock()
	n.all = true
	n.mu.Unlock()
	poke(n.more)
	n.l.feed.wake()
}

// sameNodes reports whether nodes of a cluster are those followed last.
func (n *news) sameNodes(cluster string, doc []byte) bool {
	if n.nodesOf[cluster] == string(doc) {
		return true
	}
	n.nodesOf[cluster] = string(doc)
	return false
}

// run tells and follows the news until ctx ends.
func (n *news) run(ctx context.Context) {
	defer close(n.done)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { n.speak(ctx) })
	poll, trim := time.NewTicker(newsPoll), time.NewTicker(trimEvery)
	defer poll.Stop()
	defer trim.Stop()
	for {
		select {
		case <-n.more:
		case <-poll.C:
			if !n.l.servers.others() {
				continue
			}
			n.missed()
		case <-trim.C:
			if err := n.l.q.TrimChanges(ctx); err != nil && ctx.Err() == nil {
				n.l.log.Warn("old changes could not be removed", "error", err)
			}
			continue
		case <-ctx.Done():
			return
		}
		began := time.Now()
		if err := n.follow(ctx); err != nil && ctx.Err() == nil {
			n.l.log.Warn("catching up with other servers failed", "error", err)
		}
		// Half of the time at most: a lane that is busy catches up by itself.
		sleep(ctx, time.Since(began))
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// speak tells the others, not more often than newsEvery.
func (n *news) speak(ctx context.Context) {
	for {
		select {
		case <-n.tell:
		case <-ctx.Done():
			return
		}
		n.mu.Lock()
		said := n.said
		n.said = map[int64]int64{}
		n.mu.Unlock()
		what := "all"
		if len(said) <= newsAtOnce {
			items := make([]string, 0, len(said))
			for id, version := range said {
				items = append(items, fmt.Sprintf("%d:%d", id, version))
			}
			what = "pools " + strings.Join(items, ",")
		}
		n.l.notify(ctx, what)
		sleep(ctx, newsEvery)
	}
}

// follow brings the book up to what was heard.
func (n *news) follow(ctx context.Context) error {
	n.mu.Lock()
	told, all, nodes := n.known, n.all, n.nodes || n.all
	n.known, n.all, n.nodes = map[int64]int64{}, false, false
	n.mu.Unlock()
	if nodes {
		if err := n.l.followNodes(ctx); err != nil {
			return err
		}
	}
	if all {
		versions, err := n.l.q.PoolVersions(ctx)
		if err != nil {
			return err
		}
		for _, v := range versions {
			told[v.ID] = max(told[v.ID], v.Version)
		}
		if err := n.policies(ctx); err != nil {
			return err
		}
		if err := n.dropped(ctx, told); err != nil {
			return err
		}
	}
	return n.l.refresh(ctx, told)
}

// dropped adds the pools that the book has and Postgres has no more.
func (n *news) dropped(ctx context.Context, told map[int64]int64) error {
	return n.l.lane.look(ctx, func(b *book) {
		for id := range b.pools {
			if _, there := told[id]; !there {
				told[id] = 0
			}
		}
	})
}

// policies makes the cores follow the active policies.
func (n *news) policies(ctx context.Context) error {
	rows, err := n.l.q.PolicyVersionsNow(ctx)
	if err != nil {
		return err
	}
	var behind []int64
	if err := n.l.lane.look(ctx, func(b *book) {
		for _, r := range rows {
			if s := b.byID[r.ID]; s != nil && (edition{r.Epoch, int(r.PolicyVersion)}).after(s.edition()) {
				behind = append(behind, r.ID)
			}
		}
	}); err != nil {
		return err
	}
	for _, id := range behind {
		row, err := n.l.q.NamespacePolicyByID(ctx, id)
		if err != nil {
			return err
		}
		policy, err := policyOf(row.Document)
		if err != nil {
			return err
		}
		if err := n.l.lane.look(ctx, func(b *book) {
			if s := b.byID[id]; s != nil {
				b.follows(s, edition{row.Epoch, int(row.PolicyVersion)}, row.State, policy)
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// laneBusy is how long a pool is left alone that the lane just had: should calls keep
// coming, it catches up itself.
const laneBusy = 10 * time.Millisecond

// later takes back news that nothing was done about.
func (n *news) later(versions map[int64]int64) {
	if len(versions) == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, version := range versions {
		n.known[id] = max(n.known[id], version)
	}
	time.AfterFunc(laneBusy, func() { poke(n.more) })
}

// refreshTries is how often refresh begins anew when the book moved under it: a lane
// that is busy with the pools catches up by itself.
const refreshTries = 3

// refresh brings the book up to at least the given versions of pools, without a lock.
func (l *Ledger) refresh(ctx context.Context, versions map[int64]int64) error {
	later := map[int64]int64{}
	defer func() { l.news.later(later) }()
	for range refreshTries {
		var from basis
		err := l.lane.look(ctx, func(b *book) {
			var behind []int64
			for id, version := range versions {
				if p := b.home(id); p != nil && time.Since(p.busy) < laneBusy {
					later[id] = version
				} else if (p == nil) != (version == 0) || p != nil && p.version < version {
					behind = append(behind, id)
				}
			}
			from = l.lane.basisOf(behind)
		})
		if err != nil || len(from.pools) == 0 {
			return err
		}
		var ch *changes
		err = pgx.BeginTxFunc(ctx, l.lane.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			var err error
			ch, err = readChanges(ctx, tx.Conn(), from, l.now())
			return err
		})
		if err != nil {
			return err
		}
		again := false
		err = l.lane.look(ctx, func(b *book) {
			for id, version := range l.lane.basisOf(keys(from.pools)).pools {
				if version != from.pools[id] {
					again = true
					return
				}
			}
			linked := l.lane.apply(ch, func(int64) bool { return false })
			for _, id := range linked {
				versions[id] = max(versions[id], 1<<62) // read along, whatever its version
				again = true
			}
		})
		if err != nil || !again {
			return err
		}
	}
	return nil
}

func keys(m map[int64]int64) []int64 {
	out := make([]int64, 0, len(m))
	for id := range m {
		out = append(out, id)
	}
	return out
}
