package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const recoverPools = 8

// running fills the pools with running tasks, as many servers over a long time would
// have: three label classes, priorities of a hundred levels, four shapes, hundreds of nodes.
const running = `
INSERT INTO tasks (uid, namespace_id, kind, task_id, pool_id, pool_name, state, priority, labels, request, held, held_as, agent_name,
                   node_id, launch_id, actor_name, ray_namespace, actor_id, pid, spec, body_hash, estimate_ms, launch_ms, actor, submitted_at, started_at)
SELECT uid, namespace_id, 'task', 'train-' || i, pool_id, pool_name, 'running', (random() * 100)::int * 100,
       jsonb_build_object('stage', (ARRAY['prod', 'dev', 'batch'])[1 + i % 3], 'team', 'team-' || i % 50), request, request, 'used', pool_name || '-agent-' || i,
       'node-' || i % 500, uid || '.1', uid || '.1', 'schedulemesh', md5(i::text), 1000 + i % 30000,
       '{"actor_class": "schedulemesh.core.agent_actor:AgentActor", "entry": {"method": "run"}}', decode(md5(i::text), 'hex'),
       CASE WHEN i % 4 > 0 THEN (random() * 7200000)::bigint ELSE 0 END, 60000, 'bench', now() - interval '1 hour', now() - random() * interval '1 hour'
FROM (SELECT i, uuidv7() AS uid, p.id AS pool_id, p.namespace_id, p.name AS pool_name,
             ('{"cpu": ' || (ARRAY[1000, 2000, 4000, 8000])[1 + i % 4] || ', "memory": ' || (ARRAY[1024, 2048, 8192])[1 + i % 3] || '}')::jsonb AS request
      FROM generate_series(1, $1::int) i JOIN pools p ON p.name = 'r' || (hashint4(i) & 7)) t`

const charge = `
UPDATE pool_resources r SET used = x.used FROM (
    SELECT t.pool_id, h.key AS resource, sum(h.value::bigint) AS used FROM tasks t, jsonb_each_text(t.held) h GROUP BY 1, 2) x
WHERE r.pool_id = x.pool_id AND r.resource = x.resource`

// recover measures a server that starts while many tasks run: until it admits into
// its first pool, until every pool is loaded, and what a running task costs it in memory.
func (b *bench) recover(ctx context.Context) error {
	database, err := b.database(ctx)
	if err != nil {
		return err
	}
	// No sidecar answers: one that did would miss the agents of all these tasks.
	nobody := []string{"--bridge-url", "unix:" + filepath.Join(b.dir, "nobody.sock")}
	s, err := b.listen(ctx, database, nobody...)
	if err != nil {
		return err
	}
	if err := s.loaded(); err != nil {
		return err
	}
	for i := range recoverPools {
		if err := s.call(ctx, "POST", "/api/v1/pools", map[string]any{"name": fmt.Sprint("r", i), "resources": map[string]any{"cpu": 1e7, "memory": 1e10}}, nil); err != nil {
			return err
		}
	}
	empty, err := s.resident()
	if err != nil {
		return err
	}
	s.stop()
	if err := fill(ctx, database, b.tasks); err != nil {
		return err
	}

	began := time.Now()
	if s, err = b.listen(ctx, database, nobody...); err != nil {
		return err
	}
	defer s.stop()
	task := map[string]any{"task_id": "first", "pool": "r3", "resources": map[string]any{"cpu": 1}, "priority": 5, "actor_class": "schedulemesh.core.agent_actor:AgentActor"}
	if err := s.call(ctx, "POST", "/api/v1/tasks", task, nil); err != nil {
		return err
	}
	first := time.Since(began)
	if err := s.loaded(); err != nil {
		return err
	}
	all := time.Since(began)
	busy, err := s.busy()
	if err != nil {
		return err
	}
	asked := time.Now()
	if err := s.call(ctx, "POST", "/api/v1/preemption/evaluate", map[string]any{"pool": "r3", "priority": 9, "resources": map[string]any{"cpu": 4}}, nil); err != nil {
		return err
	}
	say("recover_first_admission", first.Seconds(), "s")
	say("recover_1m", all.Seconds(), "s")
	say("recover_server_cpu", busy.Seconds(), "s")
	say("recover_first_evaluation", time.Since(asked).Seconds()*1000, "ms")
	time.Sleep(3 * time.Second) // what loading left behind is collected
	full, err := s.resident()
	if err != nil {
		return err
	}
	say("recover_bytes_per_task", float64(full-empty)/float64(b.tasks), "B")
	return nil
}

// loaded waits until every pool is, whether or not a sidecar answers.
func (s *served) loaded() error {
	for range 6000 {
		if res, err := http.Get("http://" + s.addr + "/readyz"); err == nil {
			body, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if err == nil && strings.Contains(string(body), "ledger: ok") {
				return nil
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("the server did not load its pools: %s", s.logs.String())
}

func fill(ctx context.Context, database string, tasks int) error {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range []string{"SET synchronous_commit = off", "SET maintenance_work_mem = '256MB'"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if _, err := conn.Exec(ctx, running, tasks); err != nil {
		return err
	}
	for _, sql := range []string{charge, "VACUUM ANALYZE tasks", "CHECKPOINT"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// resident is the memory the server's process occupies, in bytes.
func (s *served) resident() (int64, error) {
	doc, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(doc)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("the kernel does not say how much memory the server occupies")
}

// busy is the processor time the server's process has taken.
func (s *served) busy() (time.Duration, error) {
	doc, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// Fields 14 and 15, in hundredths of a second; the second is a name in parentheses.
	fields := strings.Fields(string(doc[strings.LastIndexByte(string(doc), ')')+1:]))
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, err
}
