package local

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// PostgresOptions say where and how an embedded Postgres runs.
type PostgresOptions struct {
	// Dir keeps the data, the password and the log between starts. Required.
	Dir string
	// Port on 127.0.0.1; 0 chooses a free one.
	Port int
	// CacheDir keeps the programs, shared among checkouts; default CacheDir().
	CacheDir string
	// Volatile trades durability for speed: no fsync, nothing survives a power
	// cut. For tests only.
	Volatile bool
	// Settings are added to ours (postgresql.conf names and values).
	Settings map[string]string
	// Progress is told each step in a line.
	Progress Progress
}

// Postgres is a running embedded Postgres, a child process of ours.
type Postgres struct {
	child *child
	lock  *fileLock
	home  string // the programs
	dir   string
	data  string
	url   string
}

const (
	postgresUser     = "schedulemesh"
	postgresDatabase = "schedulemesh"
	startPatience    = 60 * time.Second
)

// StartPostgres starts Postgres on the data in opts.Dir, making it when there is
// none, and returns once it answers. As root it runs as another user. It stops
// by itself, cleanly, when this process ends in any way.
func StartPostgres(ctx context.Context, opts PostgresOptions) (*Postgres, error) {
	if opts.Dir == "" {
		return nil, errors.New("local: PostgresOptions.Dir is required")
	}
	guard, err := StartGuard()
	if err != nil {
		return nil, err
	}
	as, err := unprivilegedAccount()
	if err != nil {
		return nil, err
	}
	dir, err := postgresDir(opts.Dir, as, opts.Progress)
	if err != nil {
		return nil, err
	}
	lock, holder, err := tryLock(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, err
	}
	if lock == nil {
		return nil, fmt.Errorf("the database in %s is in use by process %d: stop that one, or choose another directory", dir, holder)
	}
	p := &Postgres{lock: lock, dir: dir, data: filepath.Join(dir, "data")}
	guard.tell(order{Postgres: p.data})
	if err := p.start(ctx, opts, as); err != nil {
		lock.release()
		return nil, err
	}
	return p, nil
}

func (p *Postgres) start(ctx context.Context, opts PostgresOptions, as *account) error {
	var err error
	if p.home, err = postgresBinaries(ctx, opts.CacheDir, as, opts.Progress); err != nil {
		return err
	}
	if err := endPrevious(ctx, p.data, opts.Progress); err != nil {
		return err
	}
	password, err := p.ensureData(ctx, opts, as)
	if err != nil {
		return err
	}
	// A chosen port can be lost to another process before Postgres has it.
	for try := 1; ; try++ {
		port := opts.Port
		if port == 0 {
			ports, err := freePorts(1)
			if err != nil {
				return err
			}
			port = ports[0]
		}
		err := p.run(ctx, opts, as, port, password)
		if err == nil {
			break
		}
		switch {
		case errors.Is(err, errStillInUse) && try < 5:
			time.Sleep(500 * time.Millisecond)
		case errors.Is(err, errPortTaken) && opts.Port == 0 && try < 5:
		default:
			return err
		}
	}
	return p.ensureDatabase(ctx)
}

// URL is how to connect: the database schedulemesh, as its owner and superuser.
func (p *Postgres) URL() string { return p.url }

// Dir is where data and log really are; it differs from the directory asked for
// when the user Postgres runs as cannot get there.
func (p *Postgres) Dir() string { return p.dir }

// Done is closed when Postgres has ended, asked or not.
func (p *Postgres) Done() <-chan struct{} { return p.child.done }

// Stop ends it cleanly: clients are disconnected, everything is on disk.
func (p *Postgres) Stop(ctx context.Context) error {
	defer p.lock.release()
	err := p.child.stop(ctx,
		stopStep{syscall.SIGINT, 20 * time.Second}, // fast shutdown
		stopStep{syscall.SIGQUIT, 5 * time.Second}, // immediate: recovers at the next start
	)
	if err != nil {
		return fmt.Errorf("Postgres: %w", err)
	}
	return nil
}

// postgresDir makes the directory and returns where it really is.
func postgresDir(dir string, as *account, progress Progress) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	if ok, wall := as.reaches(dir); !ok {
		sum := sha256.Sum256([]byte(dir))
		elsewhere := filepath.Join("/var/lib/schedulemesh", fmt.Sprintf("%s-%x", filepath.Base(dir), sum[:4]))
		if err := os.MkdirAll(elsewhere, 0o755); err != nil {
			return "", fmt.Errorf("user %s, which runs Postgres for root, cannot get through %s, and there is no other place for its data: %w", as.name, wall, err)
		}
		// The link keeps the data findable, and removable, from where it was asked for.
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
			return "", err
		}
		_ = os.Remove(dir)
		if err := os.Symlink(elsewhere, dir); err != nil {
			return "", fmt.Errorf("link %s to the data in %s: %w", dir, elsewhere, err)
		}
		progress.say("user %s, which runs Postgres for root, cannot get through %s: the data is in %s", as.name, wall, elsewhere)
		return elsewhere, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("no place for the database: %w", err)
	}
	return dir, nil
}

// endPrevious sees to it that no Postgres of an earlier start works on data. A
// postmaster.pid left by one that was killed is no obstacle; one that still runs
// without its server is on its way out, or is told to stop.
func endPrevious(ctx context.Context, data string, progress Progress) error {
	for i := 0; ; i++ {
		pid := postmasterOf(data)
		if pid == 0 {
			// Postgres would refuse to start when the number in a file that a killed
			// one left now belongs to another process.
			err := os.Remove(filepath.Join(data, "postmaster.pid"))
			if errors.Is(err, os.ErrNotExist) {
				err = nil
			}
			return err
		}
		if i == 0 {
			progress.say("stopping the Postgres (pid %d) an earlier run left", pid)
			if err := syscall.Kill(pid, syscall.SIGINT); err != nil {
				return fmt.Errorf("Postgres (pid %d) still runs on %s and cannot be stopped: %w", pid, data, err)
			}
		}
		if i > 600 {
			return fmt.Errorf("Postgres (pid %d) still runs on %s and does not stop", pid, data)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// postmasterOf is the process id of the Postgres that works on data, or 0.
func postmasterOf(data string) int {
	content, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || !isPostgresOn(pid, data) {
		return 0
	}
	return pid
}

// stopPostmaster stops the Postgres on data and waits for its end.
func stopPostmaster(data string) {
	pid := postmasterOf(data)
	if pid == 0 {
		return
	}
	_ = syscall.Kill(pid, syscall.SIGINT)
	for range 400 { // 20 s
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || postmasterOf(data) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	_ = syscall.Kill(pid, syscall.SIGQUIT)
}

// isPostgresOn says whether the process is a postmaster on this data directory.
func isPostgresOn(pid int, data string) bool {
	out, err := commandLine(pid)
	return err == nil && strings.Contains(out, "postgres") && strings.Contains(out, data)
}

func commandLine(pid int) (string, error) {
	if raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil {
		return strings.ReplaceAll(string(raw), "\x00", " "), nil
	} else if _, statErr := os.Stat("/proc/self"); statErr == nil {
		return "", err
	}
	out, err := exec.Command("ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	return string(out), err
}

// ensureData makes the data directory when there is none, all or nothing, and returns the password.
func (p *Postgres) ensureData(ctx context.Context, opts PostgresOptions, as *account) (string, error) {
	passwordFile := filepath.Join(p.dir, "password")
	if version, err := os.ReadFile(filepath.Join(p.data, "PG_VERSION")); err == nil {
		major, _, _ := strings.Cut(postgresVersion, ".")
		if got := strings.TrimSpace(string(version)); got != major {
			return "", fmt.Errorf("the database in %s was made by Postgres %s and this is %s: move it away, or run it with its own Postgres and set DATABASE_URL", p.data, got, major)
		}
		password, err := os.ReadFile(passwordFile)
		if err != nil {
			return "", fmt.Errorf("the database in %s has lost its password: %w", p.data, err)
		}
		return strings.TrimSpace(string(password)), nil
	}

	opts.Progress.say("making a database in %s", p.dir)
	staging := filepath.Join(p.dir, "data.new")
	if err := os.RemoveAll(staging); err != nil {
		return "", err
	}
	if err := os.Mkdir(staging, 0o700); err != nil {
		return "", err
	}
	password := randomHex(16)
	handed := filepath.Join(p.dir, "password.new")
	if err := os.WriteFile(handed, []byte(password+"\n"), 0o600); err != nil {
		return "", err
	}
	defer os.Remove(handed)
	for _, path := range []string{staging, handed} {
		if err := as.give(path); err != nil {
			return "", fmt.Errorf("give %s to user %s: %w", path, as.name, err)
		}
	}
	args := []string{
		"-D", staging, "-U", postgresUser, "--pwfile", handed, "-A", "scram-sha-256",
		// The same order of text on every machine.
		"--encoding", "UTF8", "--locale", "C", "--locale-provider", "builtin", "--builtin-locale", "C.UTF-8",
	}
	if opts.Volatile {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(p.home, "bin", "initdb"), args...)
	cmd.Dir = p.dir
	cmd.SysProcAttr = processAttributes(syscall.SIGKILL, as)
	runtime.LockOSThread() // see startChild
	defer runtime.UnlockOSThread()
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("could not make a database in %s: %w\n%s", p.dir, err, strings.TrimSpace(string(out)))
	}
	if err := os.WriteFile(passwordFile, []byte(password+"\n"), 0o600); err != nil {
		return "", err
	}
	if err := os.RemoveAll(p.data); err != nil {
		return "", err
	}
	return password, os.Rename(staging, p.data)
}

// errStillInUse: a Postgres that was killed leaves backends, which end by themselves within a moment.
var errStillInUse = errors.New("a Postgres that was killed has not quite ended")

var errPortTaken = errors.New("the port is taken")

// run starts the server program and returns once it answers.
func (p *Postgres) run(ctx context.Context, opts PostgresOptions, as *account, port int, password string) error {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(port),
		"unix_socket_directories": "", // paths of checkouts are too long for sockets
		"max_connections":         "200",
		"shared_buffers":          "128MB",
		"max_wal_size":            "2GB",
		"timezone":                "UTC",
		"log_timezone":            "UTC",
		"fsync":                   "on",
		"synchronous_commit":      "on",
		"full_page_writes":        "on",
	}
	if opts.Volatile {
		settings["fsync"], settings["synchronous_commit"], settings["full_page_writes"] = "off", "off", "off"
		settings["max_connections"] = "400" // many tests, a pool each
	}
	for name, value := range opts.Settings {
		settings[name] = value
	}
	names := make([]string, 0, len(settings))
	for name := range settings {
		names = append(names, name)
	}
	sort.Strings(names)
	args := []string{"-D", p.data}
	for _, name := range names {
		args = append(args, "-c", name+"="+settings[name])
	}

	logPath := filepath.Join(p.dir, "postgres.log")
	log, err := openLog(logPath)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(p.home, "bin", "postgres"), args...)
	cmd.Dir = p.dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = processAttributes(syscall.SIGINT, as) // SIGINT is a fast, clean shutdown
	p.url = (&url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(postgresUser, password),
		Host:     fmt.Sprintf("127.0.0.1:%d", port),
		Path:     postgresDatabase,
		RawQuery: "sslmode=disable",
	}).String()
	if p.child, err = startChild(cmd); err != nil {
		return fmt.Errorf("could not start Postgres: %w", err)
	}
	if err := p.awaitReady(ctx, opts.Progress); err != nil {
		_ = p.child.stop(context.WithoutCancel(ctx), stopStep{syscall.SIGQUIT, 5 * time.Second})
		end := lastLines(logPath, 12)
		if strings.Contains(end, "Address already in use") {
			return fmt.Errorf("Postgres cannot listen on 127.0.0.1:%d: %w", port, errPortTaken)
		}
		if strings.Contains(lastLines(logPath, 3), "pre-existing shared memory block") {
			return fmt.Errorf("Postgres cannot start in %s: %w; try again", p.data, errStillInUse)
		}
		return fmt.Errorf("%w; the end of %s:\n%s", err, logPath, end)
	}
	return nil
}

// awaitReady connects until Postgres lets us in.
func (p *Postgres) awaitReady(ctx context.Context, progress Progress) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for i := 0; ; i++ {
		conn, err := pgx.Connect(ctx, p.maintenanceURL())
		if err == nil {
			return conn.Close(ctx)
		}
		if i == 100 {
			progress.say("Postgres is still starting (recovering after an unclean end takes a while)")
		}
		select {
		case <-p.child.done:
			return errors.New("Postgres ended while starting")
		case <-ctx.Done():
			return fmt.Errorf("Postgres did not answer in %s: %w", startPatience, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (p *Postgres) maintenanceURL() string {
	u, _ := url.Parse(p.url) // built by us
	u.Path = "postgres"
	return u.String()
}

// ensureDatabase makes the database the URL names when the server has none of that name.
func (p *Postgres) ensureDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.maintenanceURL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var there bool
	if err := conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", postgresDatabase).Scan(&there); err != nil || there {
		return err
	}
	_, err = conn.Exec(ctx, "create database "+pgx.Identifier{postgresDatabase}.Sanitize())
	return err
}

const maxLog = 10 << 20

// openLog opens a log to append to, starting it anew when it has become large.
func openLog(path string) (*os.File, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		flags |= os.O_TRUNC
	}
	return os.OpenFile(path, flags, 0o600)
}
