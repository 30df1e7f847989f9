package clusters_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/db"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/testdb"
)

func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testdb.Migrated(t, db.Key(), db.Migrate))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func open(t *testing.T, pool *pgxpool.Pool) *clusters.Registry {
	t.Helper()
	r, err := clusters.OpenRegistry(t.Context(), pool, clusters.RegistryOptions{FileEvery: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func read(t *testing.T, yaml string) []clusters.Spec {
	t.Helper()
	specs, err := clusters.ReadConfig("clusters.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	return specs
}

func spec(t *testing.T, name, doc string) clusters.Spec {
	t.Helper()
	s, err := clusters.ReadSpec(name, []byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// names is what a registry has, with where it was said and the weight.
func names(r *clusters.Registry) string {
	var out []string
	for _, c := range r.All() {
		out = append(out, fmt.Sprintf("%s/%s/%v", c.Name, c.Source, c.Weight))
	}
	return strings.Join(out, " ")
}

// until waits for something that another server, or a file, makes true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("still waiting: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func wantCode(t *testing.T, err error, code *ledger.Error) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Fatalf("got %v, want the code %s", err, code.Code)
	}
}

func TestAClusterPutByHandIsThereForAllServersAndAfterARestart(t *testing.T) {
	t.Parallel()
	pool := database(t)
	a, b := open(t, pool), open(t, pool)
	changes := b.Changes(t.Context())
	s := spec(t, "gpu", `{"head_address": "10.0.0.5:10001", "tags": ["gpu"], "runtime_env": {"pip": ["torch>=2"], "env_vars": {"B": 1, "A": "x"}}, "max_resources": {"GPU": 8, "memory": 64}, "token": {"env": "GPU_TOKEN"}}`)
	c, err := a.Put(t.Context(), s, "alice", 0)
	if err != nil {
		t.Fatal(err)
	}
	if c.Source != clusters.FromAPI || c.Rev != 1 || c.Status.State != clusters.Unseen || c.Dashboard != "http://10.0.0.5:8265" {
		t.Errorf("got %+v", c)
	}
	<-changes
	until(t, "the other server has it", func() bool { _, ok := b.Get("gpu"); return ok })
	other, _ := b.Get("gpu")
	fresh, _ := open(t, pool).Get("gpu")
	for _, got := range []clusters.Cluster{other, fresh} {
		if string(got.RuntimeEnv) != string(c.RuntimeEnv) || got.Most.GPU != 8000 || got.Most.Memory != 64*1024 || *got.Token != *c.Token || got.Tags[0] != "gpu" {
			t.Errorf("got %+v, want %+v", got, c)
		}
	}
	if again, err := a.Put(t.Context(), s, "alice", 0); err != nil || again.Rev != 1 {
		t.Errorf("the same once more: %v, %v", again.Rev, err)
	}
}

func TestAChangeByHandMeetsTheVersionItWasMadeFrom(t *testing.T) {
	t.Parallel()
	r := open(t, database(t))
	s := spec(t, "c", `{"head_address": "h:1"}`)
	_, err := r.Put(t.Context(), s, "", 3)
	wantCode(t, err, ledger.ErrConflict)
	first, err := r.Put(t.Context(), s, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	s.Weight = 2
	second, err := r.Put(t.Context(), s, "", first.Rev)
	if err != nil || second.Rev != first.Rev+1 {
		t.Fatalf("got %v, %v", second.Rev, err)
	}
	s.Weight = 3
	_, err = r.Put(t.Context(), s, "", first.Rev)
	wantCode(t, err, ledger.ErrConflict)
	if c, _ := r.Get("c"); c.Weight != 2 {
		t.Errorf("the weight is %v", c.Weight)
	}
	s.Weight = 0
	_, err = r.Put(t.Context(), s, "", 0)
	wantCode(t, err, ledger.ErrInvalid)
}

func TestOfManyServersThatChangeOneVersionAtOnceOneSucceeds(t *testing.T) {
	t.Parallel()
	pool := database(t)
	a, b := open(t, pool), open(t, pool)
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for i := range 20 {
		wg.Go(func() {
			s := clusters.Spec{Name: "c", HeadAddress: "h:1", Dashboard: "http://h:8265", Weight: float64(i + 1)}
			if _, err := []*clusters.Registry{a, b}[i%2].Put(t.Context(), s, "", 0); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	until(t, "both are at the last version", func() bool {
		x, _ := a.Get("c")
		y, _ := b.Get("c")
		return x.Rev == 20 && y.Rev == 20 && x.Weight == y.Weight
	})
	for i := range 20 {
		wg.Go(func() {
			s := clusters.Spec{Name: "c", HeadAddress: "h:2", Dashboard: "http://h:8265", Weight: float64(i + 1)}
			_, err := []*clusters.Registry{a, b}[i%2].Put(t.Context(), s, "", 20)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
			} else if !errors.Is(err, ledger.ErrConflict) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made != 1 {
		t.Errorf("%d changes of the same version succeeded", made)
	}
}

const twoClusters = `
clusters:
  cpu: {head_address: "cpu:10001", weight: 1}
  gpu: {head_address: "gpu:10001", weight: 0.5, runtime_env: {pip: [torch], config: {setup_timeout_seconds: 1e2}}}
`

func TestAnEditByHandStandsUntilTheFilesEntryChanges(t *testing.T) {
	t.Parallel()
	pool := database(t)
	r := open(t, pool)
	apply := func(yaml, want string) {
		t.Helper()
		if err := r.ApplyFile(t.Context(), "clusters.yaml", read(t, yaml)); err != nil {
			t.Fatal(err)
		}
		if got := names(r); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	apply(twoClusters, "cpu/file/1 gpu/file/0.5")
	edited, _ := r.Get("gpu")
	edited.Weight = 7
	if _, err := r.Put(t.Context(), edited.Spec, "bob", edited.Rev); err != nil {
		t.Fatal(err)
	}
	apply(twoClusters, "cpu/file/1 gpu/api/7")
	r = open(t, pool) // jsonb wrote 1e2 as 100 meanwhile
	apply(twoClusters, "cpu/file/1 gpu/api/7")
	apply(strings.Replace(twoClusters, "weight: 1}", "weight: 3}", 1), "cpu/file/3 gpu/api/7")
	apply(strings.Replace(twoClusters, "[torch]", "[torch, numpy]", 1), "cpu/file/1 gpu/file/0.5")
	apply("clusters: {cpu: {head_address: 'cpu:10001'}}", "cpu/file/1")
	apply("clusters: {}", "")
}

func TestWhatIsRemovedByHandStaysAwayUntilTheFilesEntryChanges(t *testing.T) {
	t.Parallel()
	r := open(t, database(t))
	specs := read(t, twoClusters)
	apply := func() {
		t.Helper()
		if err := r.ApplyFile(t.Context(), "f", specs); err != nil {
			t.Fatal(err)
		}
	}
	apply()
	if err := r.Delete(t.Context(), "gpu", ""); err != nil {
		t.Fatal(err)
	}
	wantCode(t, r.Delete(t.Context(), "gpu", ""), clusters.ErrUnknownCluster)
	_, err := r.Hold(t.Context(), "gpu", true, "", "")
	wantCode(t, err, clusters.ErrUnknownCluster)
	apply()
	if got := names(r); got != "cpu/file/1" {
		t.Fatalf("got %s", got)
	}
	specs[1].Weight = 2
	apply()
	if got := names(r); got != "cpu/file/1 gpu/file/2" {
		t.Fatalf("got %s", got)
	}
	// By hand it comes back at once.
	if err := r.Delete(t.Context(), "gpu", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Put(t.Context(), specs[1], "", 0); err != nil {
		t.Fatal(err)
	}
	apply()
	if got := names(r); got != "cpu/file/1 gpu/api/2" {
		t.Fatalf("got %s", got)
	}
	// One that no file has is gone for good.
	if _, err := r.Put(t.Context(), spec(t, "mine", `{"head_address": "m:1"}`), "", 0); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(t.Context(), "mine", ""); err != nil {
		t.Fatal(err)
	}
	apply()
	if _, ok := r.Get("mine"); ok {
		t.Error("it is still there")
	}
}

// job puts a job onto a cluster.
func job(t *testing.T, pool *pgxpool.Pool, id, cluster, state string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), `INSERT INTO jobs (uid, submission_id, job_id, entrypoint, runtime_env, metadata, tags, preferred_cluster, requirements, reserve,
		priority, queue_timeout_ms, max_retries, retry_on, submitted_by, fingerprint, state, cluster, created_at, queued_at)
		VALUES (gen_random_uuid(), $1, $1, 'x', '{}', '{}', '{}', '', '{}', 'none', 5000, 0, 0, '{}', '', '', $2, $3, now(), now())`, id, state, cluster)
	if err != nil {
		t.Fatal(err)
	}
}

func TestAClusterWithJobsIsNotRemovedAndOneGoneFromTheFileWaitsForThem(t *testing.T) {
	t.Parallel()
	pool := database(t)
	r := open(t, pool)
	if err := r.ApplyFile(t.Context(), "f", read(t, twoClusters)); err != nil {
		t.Fatal(err)
	}
	job(t, pool, "a", "gpu", "RUNNING")
	job(t, pool, "b", "cpu", "QUEUED") // was there once
	wantCode(t, r.Delete(t.Context(), "gpu", ""), clusters.ErrClusterInUse)
	if err := r.Delete(t.Context(), "cpu", ""); err != nil {
		t.Fatal(err)
	}

	file := filepath.Join(t.TempDir(), "clusters.yaml")
	write(t, file, "clusters: {}")
	go r.WatchFile(t.Context(), file)
	until(t, "gpu is held", func() bool { c, _ := r.Get("gpu"); return c.Hold.Held && strings.Contains(c.Hold.Reason, "gone") })
	write(t, file, twoClusters)
	until(t, "gpu is let go", func() bool { c, _ := r.Get("gpu"); return !c.Hold.Held })
	write(t, file, "clusters: {}")
	until(t, "gpu is held again", func() bool { c, _ := r.Get("gpu"); return c.Hold.Held })
	if _, err := pool.Exec(t.Context(), `UPDATE jobs SET state = 'SUCCEEDED', ended_at = now() WHERE submission_id = 'a'`); err != nil {
		t.Fatal(err)
	}
	until(t, "gpu goes", func() bool { return names(r) == "" })
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAWatchedFileThatBreaksOrVanishesChangesNothingAndIsTalkedAbout(t *testing.T) {
	t.Parallel()
	r := open(t, database(t))
	file := filepath.Join(t.TempDir(), "clusters.yaml")
	go r.WatchFile(t.Context(), file)
	problem := func(part string) {
		t.Helper()
		until(t, part, func() bool { p, path := r.FileProblem(); return path == file && strings.Contains(p, part) })
	}
	problem("is not there")
	write(t, file, twoClusters)
	until(t, "the file is read", func() bool { return names(r) == "cpu/file/1 gpu/file/0.5" })
	until(t, "no problem", func() bool { p, _ := r.FileProblem(); return p == "" })
	write(t, file, "clusters:\n  cpu: {head_address: 5}\n")
	problem("clusters.yaml:2:23: head_address must be host:port")
	write(t, file, strings.Replace(twoClusters, "weight: 1}", "weight: 1", 1))
	problem("close the map with }")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	problem("is not there")
	if got := names(r); got != "cpu/file/1 gpu/file/0.5" {
		t.Fatalf("got %s", got)
	}
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	problem("is not a file")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	write(t, file, "clusters: {one: {head_address: 'one:1'}}")
	until(t, "the file is read again", func() bool { p, _ := r.FileProblem(); return names(r) == "one/file/1" && p == "" })
}

func TestAHoldStaysThroughEditsTheFileAndARestart(t *testing.T) {
	t.Parallel()
	pool := database(t)
	r := open(t, pool)
	if err := r.ApplyFile(t.Context(), "f", read(t, twoClusters)); err != nil {
		t.Fatal(err)
	}
	c, err := r.Hold(t.Context(), "gpu", true, "new driver", "carol")
	if err != nil || !c.Hold.Held || c.Hold.Reason != "new driver" || c.Hold.Actor != "carol" || time.Since(*c.Hold.Since) > time.Minute || c.Rev != 2 {
		t.Fatalf("got %+v, %v", c.Hold, err)
	}
	if again, err := r.Hold(t.Context(), "gpu", true, "new driver", "dan"); err != nil || again.Rev != 2 {
		t.Errorf("holding it twice: %v, %v", again.Rev, err)
	}
	c.Weight = 9
	if _, err := r.Put(t.Context(), c.Spec, "", 0); err != nil {
		t.Fatal(err)
	}
	specs := read(t, twoClusters)
	specs[1].Weight = 8
	if err := r.ApplyFile(t.Context(), "f", specs); err != nil {
		t.Fatal(err)
	}
	if c, _ := open(t, pool).Get("gpu"); !c.Hold.Held || c.Weight != 8 {
		t.Errorf("got %+v", c)
	}
	c, err = r.Hold(t.Context(), "gpu", false, "", "carol")
	if err != nil || c.Hold != (clusters.Hold{}) {
		t.Errorf("got %+v, %v", c.Hold, err)
	}
	_, err = r.Hold(t.Context(), "gpu", true, "two\nlines", "")
	wantCode(t, err, ledger.ErrInvalid)
	_, err = r.Hold(t.Context(), "none", true, "", "")
	wantCode(t, err, clusters.ErrUnknownCluster)
}

func TestTheLocalClusterFollowsItsAddressesAndKeepsWhatWasEdited(t *testing.T) {
	t.Parallel()
	r := open(t, database(t))
	local := clusters.Spec{Name: "local", HeadAddress: "127.0.0.1:6379", Dashboard: "http://127.0.0.1:8265", Weight: 1}
	set := func(port string) {
		t.Helper()
		local.Dashboard = "http://127.0.0.1:" + port
		if err := r.SetLocal(t.Context(), local); err != nil {
			t.Fatal(err)
		}
	}
	set("8265")
	if err := r.SaveStatus(t.Context(), map[string]clusters.Status{"local": {State: clusters.Healthy}}); err != nil {
		t.Fatal(err)
	}
	set("8265")
	if c, _ := r.Get("local"); c.Rev != 1 || c.Source != clusters.FromLocal || c.Status.State != clusters.Healthy {
		t.Errorf("saying the same again: %+v", c)
	}
	edited := local
	edited.Weight, edited.Prefer, edited.Tags = 4, true, []string{"here"}
	if c, err := r.Put(t.Context(), edited, "", 0); err != nil || c.Source != clusters.FromLocal {
		t.Fatal(c.Source, err)
	}
	if _, err := r.Hold(t.Context(), "local", true, "mine", ""); err != nil {
		t.Fatal(err)
	}
	set("9999")
	c, _ := r.Get("local")
	if c.Weight != 4 || !c.Prefer || c.Tags[0] != "here" || !c.Hold.Held || c.Dashboard != "http://127.0.0.1:9999" || c.Source != clusters.FromLocal {
		t.Errorf("got %+v", c)
	}
	if c.Status.State != clusters.Unseen {
		t.Errorf("what was seen at another address is still believed: %+v", c.Status)
	}
	if err := r.Delete(t.Context(), "local", ""); err != nil {
		t.Fatal(err)
	}
	set("7777")
	if _, ok := r.Get("local"); ok {
		t.Error("it came back though it was removed by hand")
	}
	if _, err := r.Put(t.Context(), edited, "", 0); err != nil {
		t.Fatal(err)
	}
	set("5555")
	if c, _ := r.Get("local"); c.HeadAddress != edited.HeadAddress || c.Dashboard != edited.Dashboard || c.Source != clusters.FromAPI {
		t.Errorf("an address that was given by hand was overwritten: %+v", c)
	}
	// What the file says counts, whatever it is called.
	if err := r.ApplyFile(t.Context(), "f", read(t, "clusters: {local: {head_address: 'far:1'}}")); err != nil {
		t.Fatal(err)
	}
	set("6666")
	if c, _ := r.Get("local"); c.HeadAddress != "far:1" || c.Dashboard != "http://far:8265" {
		t.Errorf("got %+v", c)
	}
}

func TestImportTakesAllOrNone(t *testing.T) {
	t.Parallel()
	r := open(t, database(t))
	specs := read(t, twoClusters)
	broken := append(slices.Clone(specs), clusters.Spec{Name: "a/b", HeadAddress: "h:1", Dashboard: "http://h", Weight: 1})
	wantCode(t, r.Import(t.Context(), broken, ""), ledger.ErrInvalid)
	if got := names(r); got != "" {
		t.Fatalf("got %s", got)
	}
	for range 2 {
		if err := r.Import(t.Context(), specs, ""); err != nil {
			t.Fatal(err)
		}
		if got := names(r); got != "cpu/api/1 gpu/api/0.5" {
			t.Fatalf("got %s", got)
		}
	}
	if err := r.Import(t.Context(), specs[:1], ""); err != nil || len(r.All()) != 2 {
		t.Errorf("%v, %v: an import removes nothing", err, names(r))
	}
}

func TestStatusesOfManyClustersReachTheOtherServers(t *testing.T) {
	t.Parallel()
	pool := database(t)
	a, b := open(t, pool), open(t, pool)
	var specs []clusters.Spec
	status := map[string]clusters.Status{"gone": {State: clusters.Healthy}}
	for i := range 300 {
		name := fmt.Sprintf("c%03d", i)
		specs = append(specs, clusters.Spec{Name: name, HeadAddress: "h:1", Dashboard: "http://h:8265", Weight: 1})
		status[name] = clusters.Status{
			State: clusters.Healthy, Score: 0.5, Session: name, At: time.Now(), Total: sched.Resources{CPU: int64(i)}, Reasons: []string{"slow"},
			Nodes: []clusters.Node{{ID: "n", Alive: true, Total: sched.Resources{CPU: 1, GPU: 2}}},
		}
	}
	if err := a.Import(t.Context(), specs, ""); err != nil {
		t.Fatal(err)
	}
	before := a.All()
	if err := a.SaveStatus(t.Context(), status); err != nil {
		t.Fatal(err)
	}
	if before[7].Status.State != clusters.Unseen {
		t.Error("a list that was handed out changed")
	}
	for _, r := range []*clusters.Registry{a, b} {
		until(t, "every status is there", func() bool {
			all := r.All()
			return len(all) == 300 && !slices.ContainsFunc(all, func(c clusters.Cluster) bool {
				return c.Status.Session != c.Name || c.Status.Nodes[0].Total.GPU != 2
			})
		})
	}
	if c, _ := b.Get("c007"); c.Status.Total.CPU != 7 || c.Rev != 1 || c.Status.Score != 0.5 {
		t.Errorf("got %+v", c)
	}
	// A status never hides an edit that another server made just before.
	edited := specs[7]
	edited.Weight = 5
	if _, err := b.Put(t.Context(), edited, "", 0); err != nil {
		t.Fatal(err)
	}
	if err := a.SaveStatus(t.Context(), status); err != nil {
		t.Fatal(err)
	}
	until(t, "the edit is seen", func() bool { c, _ := a.Get("c007"); return c.Weight == 5 && c.Status.Session == "c007" })
}

func TestStatusesAndEditsAtOnceNeitherBlockEachOtherForEverNorGetLost(t *testing.T) {
	t.Parallel()
	pool := database(t)
	a, b := open(t, pool), open(t, pool)
	var specs []clusters.Spec
	status := map[string]clusters.Status{}
	for i := range 50 {
		name := fmt.Sprintf("c%02d", i)
		specs = append(specs, clusters.Spec{Name: name, HeadAddress: "h:1", Dashboard: "http://h:8265", Weight: 1})
		status[name] = clusters.Status{State: clusters.Healthy}
	}
	if err := a.ApplyFile(t.Context(), "f", specs); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, r := range []*clusters.Registry{a, b} {
		wg.Go(func() {
			for range 50 {
				if err := r.SaveStatus(t.Context(), status); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			mine := slices.Clone(specs)
			for i := range 20 {
				for j := range mine {
					mine[j].Weight = float64(i + 1)
				}
				slices.Reverse(mine)
				if err := r.ApplyFile(t.Context(), "f", mine); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	until(t, "both agree", func() bool { return names(a) == names(b) && strings.HasPrefix(names(a), "c00/file/20 ") })
}

func TestHistoryIsThinnedWithoutLosingDipsAndPeaks(t *testing.T) {
	t.Parallel()
	pool := database(t)
	r := open(t, pool)
	if _, err := r.Put(t.Context(), spec(t, "c", `{"head_address": "h:1"}`), "", 0); err != nil {
		t.Fatal(err)
	}
	start := time.Now().Add(-time.Hour).Truncate(time.Second)
	for i := range 400 {
		s := clusters.Sample{At: start.Add(time.Duration(i) * 5 * time.Second), Score: 1, Total: sched.Resources{CPU: 8000}, Used: sched.Resources{CPU: 1000}, Jobs: 1}
		if i == 203 {
			s.Score, s.Used.CPU, s.Jobs = 0.25, 7000, 9
		}
		if err := r.Sample(t.Context(), map[string]clusters.Sample{"c": s, "other": s}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := r.History(t.Context(), "c", start, 1000)
	if err != nil || len(all) != 400 || !all[0].At.Equal(start) {
		t.Fatalf("%d samples, %v", len(all), err)
	}
	few, err := r.History(t.Context(), "c", start, 20)
	if err != nil || len(few) < 15 || len(few) > 20 {
		t.Fatalf("%d samples, %v", len(few), err)
	}
	dips := 0
	for _, s := range few {
		if s.Score == 0.25 && s.Used.CPU == 7000 && s.Jobs == 9 && s.Total.CPU == 8000 {
			dips++
		}
	}
	if dips != 1 {
		t.Errorf("the dip is in %d points: %+v", dips, few)
	}
	late, err := r.History(t.Context(), "c", start.Add(300*5*time.Second), 1000)
	if err != nil || len(late) != 100 {
		t.Errorf("%d samples, %v", len(late), err)
	}
	_, err = r.History(t.Context(), "none", start, 10)
	wantCode(t, err, clusters.ErrUnknownCluster)
}

func TestSamplesAreKeptForSixHours(t *testing.T) {
	t.Parallel()
	pool := database(t)
	r := open(t, pool)
	if err := r.Sample(t.Context(), map[string]clusters.Sample{"old": {At: time.Now().Add(-7 * time.Hour)}, "new": {At: time.Now()}}); err != nil {
		t.Fatal(err)
	}
	var left string
	if err := pool.QueryRow(t.Context(), "SELECT string_agg(cluster, ' ') FROM cluster_samples").Scan(&left); err != nil || left != "new" {
		t.Errorf("left are %q, %v", left, err)
	}
}

func TestARegistryFollowsAgainAfterItsConnectionsWereCut(t *testing.T) {
	t.Parallel()
	pool := database(t)
	a, b := open(t, pool), open(t, pool)
	if _, err := pool.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"); err != nil {
		t.Fatal(err)
	}
	until(t, "a change can be made", func() bool {
		_, err := a.Put(t.Context(), spec(t, "c", `{"head_address": "h:1"}`), "", 0)
		return err == nil
	})
	until(t, "it is followed", func() bool { _, ok := b.Get("c"); return ok })
}

func TestWhileTheDatabaseFailsWhatIsKnownStaysAndTheFileIsAppliedAfterwards(t *testing.T) {
	t.Parallel()
	pool := database(t)
	r := open(t, pool)
	file := filepath.Join(t.TempDir(), "clusters.yaml")
	write(t, file, "clusters: {one: {head_address: 'one:1'}}")
	go r.WatchFile(t.Context(), file)
	until(t, "the file is read", func() bool { return names(r) == "one/file/1" })
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("ALTER TABLE clusters RENAME TO elsewhere")
	write(t, file, "clusters: {two: {head_address: 'two:1'}}")
	until(t, "it is said", func() bool { p, _ := r.FileProblem(); return strings.Contains(p, "could not be saved") })
	if got := names(r); got != "one/file/1" {
		t.Errorf("got %s", got)
	}
	exec("ALTER TABLE elsewhere RENAME TO clusters")
	until(t, "the file is applied", func() bool { p, _ := r.FileProblem(); return p == "" && names(r) == "two/file/1" })

	pool.Close()
	_, err := r.Put(t.Context(), spec(t, "c", `{"head_address": "h:1"}`), "", 0)
	wantCode(t, err, ledger.ErrUnavailable)
	wantCode(t, r.SaveStatus(t.Context(), map[string]clusters.Status{"two": {}}), ledger.ErrUnavailable)
	_, err = r.History(t.Context(), "two", time.Now(), 1)
	wantCode(t, err, ledger.ErrUnavailable)
}
