package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	runningTasks = 100_000
	queuedTasks  = 50_000
	manyPools    = 64
)

// running measures admission while 100,000 tasks run, and with every tenth submission
// preempting one of them, beside an empty server.
func (b *bench) running(ctx context.Context) error {
	var plain, among, tenth []float64
	for round := range b.rounds {
		p, err := b.admit(ctx, []string{"--bridge-url", "fake"})
		if err != nil {
			return err
		}
		a, t, err := b.amongMany(ctx)
		if err != nil {
			return err
		}
		plain, among, tenth = append(plain, p.perSecond), append(among, a.perSecond), append(tenth, t.perSecond)
		fmt.Printf("round %d: empty %.0f/s (%s)\n  %d running %.0f/s (%s)\n  every tenth preempts %.0f/s (%s)\n",
			round+1, p.perSecond, p.cpu, runningTasks, a.perSecond, a.cpu, t.perSecond, t.cpu)
	}
	say("admission_100k_running", median(among), "submissions/s")
	say("admission_100k_running_ratio", median(among)/median(plain), "x")
	say("admission_tenth_preempts", median(tenth), "submissions/s")
	say("admission_tenth_preempts_ratio", median(tenth)/median(plain), "x")
	return nil
}

// pools measures admission spread over 64 pools, beside one hot pool.
func (b *bench) pools(ctx context.Context) error {
	var one, many []float64
	for round := range b.rounds {
		p, err := b.admit(ctx, []string{"--bridge-url", "fake"})
		if err != nil {
			return err
		}
		m, err := b.overPools(ctx)
		if err != nil {
			return err
		}
		one, many = append(one, p.perSecond), append(many, m.perSecond)
		fmt.Printf("round %d: one pool %.0f/s (%s)\n  %d pools %.0f/s (%s)\n", round+1, p.perSecond, p.cpu, manyPools, m.perSecond, m.cpu)
	}
	say("admission_64_pools", median(many), "submissions/s")
	say("admission_64_pools_ratio", median(many)/median(one), "x")
	return nil
}

// amongMany submits while 100,000 tasks run; and again with every tenth going to
// their pool, which is full, so that one of them makes way.
func (b *bench) amongMany(ctx context.Context) (some, tenth rate, err error) {
	s, err := b.start(ctx, "--bridge-url", "fake")
	if err != nil {
		return some, tenth, err
	}
	defer s.stop()
	for name, cpu := range map[string]float64{"hot": 1e7, "full": runningTasks} {
		if err := s.call(ctx, "POST", "/api/v1/pools", map[string]any{"name": name, "resources": map[string]any{"cpu": cpu}}, nil); err != nil {
			return some, tenth, err
		}
	}
	if _, err := (load{connections: connections, total: runningTasks, body: submission("full", 1)}).run(b, s); err != nil {
		return some, tenth, err
	}
	if err := s.until(ctx, "full", func(p poolState) bool { return p.Running == runningTasks }); err != nil {
		return some, tenth, err
	}
	if some, err = (load{connections: connections, each: b.each, body: submission("hot", 5)}).run(b, s); err != nil {
		return some, tenth, err
	}
	roomy, urgent := submission("hot", 5), submission("full", 9)
	tenth, err = load{connections: connections, each: b.each, body: func(c, i int) []byte {
		if i%10 == 9 {
			return urgent(c, i+1<<41)
		}
		return roomy(c, i+1<<40)
	}}.run(b, s)
	return some, tenth, err
}

func (b *bench) overPools(ctx context.Context) (rate, error) {
	s, err := b.start(ctx, "--bridge-url", "fake")
	if err != nil {
		return rate{}, err
	}
	defer s.stop()
	var bodies []func(c, i int) []byte
	for p := range manyPools {
		name := fmt.Sprint("pool", p)
		if err := s.call(ctx, "POST", "/api/v1/pools", map[string]any{"name": name, "resources": map[string]any{"cpu": 1e7}}, nil); err != nil {
			return rate{}, err
		}
		bodies = append(bodies, submission(name, 5))
	}
	return load{connections: connections, each: b.each, body: func(c, i int) []byte { return bodies[(c+i)%manyPools](c, i) }}.run(b, s)
}

// queueDrain measures how long 50,000 queued tasks take to be admitted once their
// pool is given the room, and what a submission to so long a queue takes.
func (b *bench) queueDrain(ctx context.Context) error {
	s, err := b.start(ctx, "--bridge-url", "fake")
	if err != nil {
		return err
	}
	defer s.stop()
	if err := s.call(ctx, "POST", "/api/v1/pools", map[string]any{"name": "line", "resources": map[string]any{"cpu": 1}}, nil); err != nil {
		return err
	}
	body := func(c, i int) []byte {
		return fmt.Appendf(nil, `{"task_id": "line-%d-%d", "pool": "line", "resources": {"cpu": 1}, "on_insufficient": "queue", "actor_class": "schedulemesh.core.agent_actor:AgentActor"}`, c, i)
	}
	r, err := load{connections: connections, total: queuedTasks + 1, body: body}.run(b, s)
	if err != nil {
		return err
	}
	fmt.Printf("queueing %.0f/s; %s\n", r.perSecond, r.cpu)
	if err := s.until(ctx, "line", func(p poolState) bool { return p.Queued == queuedTasks }); err != nil {
		return err
	}
	cpu, began := b.cpu(s), time.Now()
	if err := s.call(ctx, "PATCH", "/api/v1/pools/line", map[string]any{"resources": map[string]any{"cpu": queuedTasks + 1}}, nil); err != nil {
		return err
	}
	if err := s.until(ctx, "line", func(p poolState) bool { return p.Queued == 0 }); err != nil {
		return err
	}
	say("queue_drain", time.Since(began).Seconds(), "s")
	fmt.Println(b.cpu(s).since(cpu, queuedTasks))
	if err := s.until(ctx, "line", func(p poolState) bool { return p.Running == queuedTasks+1 }); err != nil {
		return err
	}
	say("queue_drain_running", time.Since(began).Seconds(), "s")
	return nil
}

// poolState is what an answer says of a pool.
type poolState struct{ Running, Queued int }

// until asks for a pool until it is as wanted.
func (s *served) until(ctx context.Context, pool string, wanted func(poolState) bool) error {
	var p poolState
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err := s.call(ctx, "GET", "/api/v1/pools/"+pool, nil, &p); err != nil {
			return err
		}
		if wanted(p) {
			return nil
		}
	}
	return fmt.Errorf("pool %s stays at %+v", pool, p)
}

// idle compares one submission at a time, over HTTP, with a transaction that does
// the same plainly: lock the pool, insert the task, charge the pool, note it.
func (b *bench) idle(ctx context.Context) error {
	var ours, plain []float64
	for range b.rounds {
		database, err := b.database(ctx)
		if err != nil {
			return err
		}
		s, err := b.listen(ctx, database, "--bridge-url", "fake")
		if err != nil {
			return err
		}
		if err := s.ready(); err != nil {
			return err
		}
		if err := s.call(ctx, "POST", "/api/v1/pools", map[string]any{"name": "hot", "resources": map[string]any{"cpu": 1e7}}, nil); err != nil {
			return err
		}
		conn, err := dial(s.addr)
		if err != nil {
			return err
		}
		body := submission("hot", 5)
		took, err := latency(b.each, func(i int) error {
			status, answer, err := conn.post("/api/v1/tasks", body(0, i))
			if err == nil && status != 201 {
				err = fmt.Errorf("%d: %.300s", status, answer)
			}
			return err
		})
		conn.close()
		s.stop()
		if err != nil {
			return err
		}
		ours = append(ours, took)
		if took, err = plainTransactions(ctx, database, b.each); err != nil {
			return err
		}
		plain = append(plain, took)
	}
	say("admission_idle_latency", median(ours), "ms")
	say("plain_transaction_latency", median(plain), "ms")
	say("admission_idle_ratio", median(ours)/median(plain), "x")
	return nil
}

// pause is between two calls of which only the latency counts: what the one before
// set off, such as its launch, is over then, and nobody else is there.
const pause = 10 * time.Millisecond

// latency is the median time of f in milliseconds, called for a while, with pauses.
func latency(during time.Duration, f func(i int) error) (float64, error) {
	var took []float64
	for i, began := 0, time.Now(); time.Since(began) < during; i++ {
		time.Sleep(pause)
		at := time.Now()
		if err := f(i); err != nil {
			return 0, err
		}
		took = append(took, time.Since(at).Seconds()*1000)
	}
	return median(took[len(took)/10:]), nil
}

func plainTransactions(ctx context.Context, database string, during time.Duration) (float64, error) {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(ctx) }()
	return latency(during, func(i int) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			var pool, version int64
			if err := tx.QueryRow(ctx, "SELECT id, version FROM pools WHERE name = 'hot' FOR UPDATE").Scan(&pool, &version); err != nil {
				return err
			}
			var uid string
			err := tx.QueryRow(ctx, `INSERT INTO tasks (uid, namespace_id, kind, task_id, pool_id, pool_name, state, priority, labels, request, held, held_as, agent_name, spec, submitted_at)
				VALUES (uuidv7(), 1, 'task', $1, $2, 'hot', 'reserved', 5000, '{"stage": "bench"}', '{"cpu": 1000}', '{"cpu": 1000}', 'reserved', $1,
				        '{"actor_class": "schedulemesh.core.agent_actor:AgentActor"}', now()) RETURNING uid`, fmt.Sprint("plain-", i), pool).Scan(&uid)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "UPDATE pool_resources SET reserved = reserved + 1000 WHERE pool_id = $1 AND resource = 'cpu'", pool); err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `INSERT INTO task_events (at, namespace_id, task_uid, task_id, pool_name, type, message) VALUES (now(), 1, $1, $2, 'hot', 'reserved', 'Reserved 1 cpu in hot')`,
				uid, fmt.Sprint("plain-", i))
			return err
		})
	})
}
