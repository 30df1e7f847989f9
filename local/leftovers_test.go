package local

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// These tests start this test binary again as an owner of services, kill it with
// a signal nobody can catch, and look at what the machine has left.

const ownerVariable = "SCHEDULEMESH_TEST_OWNER"

func TestMain(m *testing.M) {
	switch role := os.Getenv(ownerVariable); role {
	case "":
		os.Exit(m.Run())
	default:
		owner(role, os.Args[len(os.Args)-1])
	}
}

// owner starts what its role says in dir, says "ready <run>", and waits to be killed.
func owner(role, dir string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
	}
	ctx := context.Background()
	switch role {
	case "postgres":
		_, err := StartPostgres(ctx, PostgresOptions{Dir: dir, Volatile: true})
		fail(err)
		// A stranger to us: its parent is gone, it ignores what it can.
		fail(exec.Command("sh", "-c", `(trap "" TERM HUP INT; while :; do sleep 1; done) & `).Run())
	case "ray":
		_, err := StartRay(ctx, RayOptions{Python: os.Getenv("SCHEDULEMESH_PYTHON"), NumCPUs: 1})
		fail(err)
	}
	fmt.Println("ready", os.Getenv(RunVariable))
	select {}
}

func startOwner(t *testing.T, role, dir string) (cmd *exec.Cmd, run string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(self, dir)
	cmd.Env = append(os.Environ(), ownerVariable+"="+role)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, _ := bufio.NewReader(out).ReadString('\n')
	run, ready := strings.CutPrefix(strings.TrimSpace(line), "ready ")
	if !ready {
		t.Fatalf("owner said %q", line)
	}
	return cmd, run
}

// eventually waits for what another process does; there is no signal from it to wait for.
func eventually(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in %s: %s", within, what)
		}
	}
}

func needsProc(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("looks at processes through /proc, which this system has not")
	}
}

// openTempDir is a directory that the user Postgres runs as can reach; t.TempDir is not.
func openTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "schedulemesh-local-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestKilledServerLeavesNoProcessAndACleanDatabase(t *testing.T) {
	needsProc(t)
	t.Parallel()
	dir := filepath.Join(openTempDir(t), "postgres")
	owner, run := startOwner(t, "postgres", dir)
	mark := RunVariable + "=" + run
	// The stranger and the postmaster; its backends write their titles over theirs.
	if got := len(marked(mark, nil)); got < 2 {
		t.Fatalf("only %d processes carry the mark: the test sees nothing", got)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "nothing with the mark is left", func() bool { return len(marked(mark, nil)) == 0 })
	log, err := os.ReadFile(filepath.Join(dir, "postgres.log"))
	if err != nil || !strings.Contains(string(log), "database system is shut down") {
		t.Fatalf("Postgres did not shut down cleanly (%v):\n%s", err, log)
	}
}

func TestKilledServerLeavesNoRay(t *testing.T) {
	needsProc(t)
	if os.Getenv("SCHEDULEMESH_PYTHON") == "" {
		t.Skip("needs a Python with Ray: set SCHEDULEMESH_PYTHON, or run `make test`")
	}
	t.Parallel()
	owner, run := startOwner(t, "ray", "")
	mark := RunVariable + "=" + run
	if got := len(marked(mark, nil)); got < 5 {
		t.Fatalf("only %d processes carry the mark: the test sees nothing", got)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "nothing with the mark is left", func() bool { return len(marked(mark, nil)) == 0 })
}

func TestTwoRayHeadsRunSideBySideAndStop(t *testing.T) {
	python := os.Getenv("SCHEDULEMESH_PYTHON")
	if python == "" {
		t.Skip("needs a Python with Ray: set SCHEDULEMESH_PYTHON, or run `make test`")
	}
	t.Parallel()
	token := randomHex(32)
	open, err := StartRay(t.Context(), RayOptions{Python: python, NumCPUs: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = open.Stop(context.Background()) })
	closed, err := StartRay(t.Context(), RayOptions{Python: python, NumCPUs: 5, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = closed.Stop(context.Background()) })
	for _, r := range []struct {
		ray  *Ray
		want string
	}{{open, "3"}, {closed, "5"}} {
		cmd := exec.Command(python, "-c", "import ray; ray.init(log_to_driver=False); print(int(ray.cluster_resources()['CPU']))")
		cmd.Env = append(os.Environ(), r.ray.Env()...)
		out, err := cmd.Output()
		if err != nil || strings.TrimSpace(string(out)) != r.want {
			t.Errorf("a driver of %s sees %q CPUs (%v), want %s", r.ray.Address(), out, err, r.want)
		}
	}
	// Without the token the second one answers nobody.
	if _, err := (&Ray{dashboard: closed.DashboardURL()}).aliveNode(t.Context()); err == nil {
		t.Error("the head with a token answers without it")
	}
	for _, r := range []*Ray{open, closed} {
		if err := r.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if left := marked(rayHeadVariable+"="+r.mark, nil); len(left) != 0 {
			t.Errorf("stopped Ray left %v", left)
		}
		if isFile(filepath.Join(r.tempDir, "head.log")) {
			t.Errorf("stopped Ray left its files in %s", r.tempDir)
		}
	}
}

func TestDatabaseSurvivesRestartsAndKills(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(openTempDir(t), "postgres")
	start := func() (*Postgres, *pgx.Conn) {
		t.Helper()
		pg, err := StartPostgres(t.Context(), PostgresOptions{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pg.Stop(context.Background()) })
		conn, err := pgx.Connect(t.Context(), pg.URL())
		if err != nil {
			t.Fatal(err)
		}
		return pg, conn
	}
	count := func(conn *pgx.Conn) (n int) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), "select count(*) from kept").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}

	pg, conn := start()
	for setting, want := range map[string]string{"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"} {
		var got string
		if err := conn.QueryRow(t.Context(), "select current_setting($1)", setting).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q, %v", setting, got, err)
		}
	}
	if _, err := conn.Exec(t.Context(), "create table kept (); insert into kept default values"); err != nil {
		t.Fatal(err)
	}
	if _, err := StartPostgres(t.Context(), PostgresOptions{Dir: dir}); err == nil || !strings.Contains(err.Error(), "is in use by process") {
		t.Fatalf("a second start on the same data: %v", err)
	}
	if err := pg.Stop(t.Context()); err != nil { // with a client connected
		t.Fatal(err)
	}

	pg, conn = start()
	if got := count(conn); got != 1 {
		t.Fatalf("after a restart: %d rows", got)
	}
	if _, err := conn.Exec(t.Context(), "insert into kept default values"); err != nil {
		t.Fatal(err)
	}
	_ = pg.child.cmd.Process.Kill()
	<-pg.Done()
	pg.lock.release()
	// As after a restart of the machine: the number in the file is somebody else's now.
	pidFile := filepath.Join(pg.data, "postmaster.pid")
	content, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(content), "\n")
	if err := os.WriteFile(pidFile, []byte(fmt.Sprintf("%d\n%s", os.Getpid(), rest)), 0o600); err != nil {
		t.Fatal(err)
	}

	pg, conn = start()
	if got := count(conn); got != 2 {
		t.Fatalf("after a kill: %d rows", got)
	}
	_ = pg.Stop(t.Context())
}

func TestPostgresThatLostItsServerIsStoppedFirst(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(openTempDir(t), "postgres")
	first, err := StartPostgres(t.Context(), PostgresOptions{Dir: dir, Volatile: true})
	if err != nil {
		t.Fatal(err)
	}
	first.lock.release() // as the kernel does for a process that is gone
	second, err := StartPostgres(t.Context(), PostgresOptions{Dir: dir, Volatile: true})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Stop(context.Background())
	if !first.child.exited() {
		t.Error("the first one still runs")
	}
}

func TestTakenPortIsNamed(t *testing.T) {
	t.Parallel()
	dir := openTempDir(t)
	first, err := StartPostgres(t.Context(), PostgresOptions{Dir: filepath.Join(dir, "one"), Volatile: true})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Stop(context.Background())
	conn, err := pgx.ParseConfig(first.URL())
	if err != nil {
		t.Fatal(err)
	}
	_, err = StartPostgres(t.Context(), PostgresOptions{Dir: filepath.Join(dir, "two"), Volatile: true, Port: int(conn.Port)})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("cannot listen on 127.0.0.1:%d", conn.Port)) {
		t.Fatalf("got %v", err)
	}
}

func TestRootsDatabaseGoesWhereItsUserCanReachIt(t *testing.T) {
	t.Parallel()
	closed := t.TempDir()
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	asked := filepath.Join(closed, "postgres")
	var said []string
	pg, err := StartPostgres(t.Context(), PostgresOptions{Dir: asked, Volatile: true, Progress: func(line string) { said = append(said, line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(pg.Dir()) })
	defer pg.Stop(context.Background())
	if os.Getuid() != 0 { // Postgres runs as ourselves
		if pg.Dir() != asked {
			t.Errorf("the data is in %s, not in %s", pg.Dir(), asked)
		}
		return
	}
	if pg.Dir() == asked || !strings.Contains(strings.Join(said, "\n"), pg.Dir()) {
		t.Errorf("the data is in %s, and what was said is %q", pg.Dir(), said)
	}
	if target, err := os.Readlink(asked); err != nil || target != pg.Dir() {
		t.Errorf("%s leads to %s, %v", asked, target, err)
	}
}

func TestStoppingAStubbornChildTakesTheNextStep(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sh", "-c", `trap "" TERM; echo ready; while :; do sleep 0.1; done`)
	cmd.SysProcAttr = processAttributes(syscall.SIGKILL, nil)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c, err := startChild(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	err = c.stop(t.Context(), stopStep{syscall.SIGTERM, 50 * time.Millisecond})
	if err == nil || !c.exited() {
		t.Errorf("stop said %v, exited %v", err, c.exited())
	}
}
