package local

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The guard is a second process of the running program. It holds the reading end
// of a pipe whose writing end only we have: when we end, by a signal nobody can
// catch included, it reads the end of file and clears up after us.

// RunVariable is in the environment of every process we start, directly or not,
// and holds this run's id: it tells ours from anything else on the machine.
const RunVariable = "SCHEDULEMESH_RUN"

// guardVariable makes a start of our own program be the guard.
const guardVariable = "SCHEDULEMESH_GUARD"

// A program that imports this package can be started again as its own guard;
// that must be decided before its main, or its tests, begin.
func init() {
	if run := os.Getenv(guardVariable); run != "" {
		guardMain(run, os.Stdin)
		os.Exit(0)
	}
}

// order is what the guard is told, a JSON object a line.
type order struct {
	Postgres string `json:"postgres,omitempty"` // data directory of a Postgres to stop, cleanly and last
	Group    int    `json:"group,omitempty"`    // process group to end
	Remove   string `json:"remove,omitempty"`   // path to remove at the end
}

// Guard sees to it that nothing we started outlives us.
type Guard struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
	mu   sync.Mutex
}

var theGuard struct {
	sync.Mutex
	guard *Guard
}

// StartGuard starts the guard of this process, once, and marks what we start from
// now on as ours.
func StartGuard() (*Guard, error) {
	theGuard.Lock()
	defer theGuard.Unlock()
	if theGuard.guard != nil {
		return theGuard.guard, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("local: the guard is a second start of this program, which cannot be found: %w", err)
	}
	run := randomHex(8)
	cmd := exec.Command(self)
	cmd.Args = []string{self, "guard"} // for those who read the process list
	cmd.Env = append(withoutVariable(os.Environ(), RunVariable), guardVariable+"="+run)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no Ctrl-C of our terminal
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("local: start the guard: %w", err)
	}
	go func() { _ = cmd.Wait() }()
	if err := os.Setenv(RunVariable, run); err != nil {
		return nil, err
	}
	theGuard.guard = &Guard{cmd: cmd, pipe: pipe}
	return theGuard.guard, nil
}

func (g *Guard) tell(o order) {
	if g == nil {
		return
	}
	line, err := json.Marshal(o)
	if err != nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	_, _ = g.pipe.Write(append(line, '\n'))
}

// Remove has path removed, with all that is in it, when this process has ended.
func (g *Guard) Remove(path string) { g.tell(order{Remove: path}) }

// guardMain is the guard's whole life.
func guardMain(run string, stdin io.Reader) {
	// Only the end of our parent ends us.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	var postgres, remove []string
	var groups []int
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		var o order
		if json.Unmarshal(lines.Bytes(), &o) != nil {
			continue
		}
		if o.Postgres != "" {
			postgres = append(postgres, o.Postgres)
		}
		if o.Group > 1 {
			groups = append(groups, o.Group)
		}
		if o.Remove != "" {
			remove = append(remove, o.Remove)
		}
	}
	endRun(run, groups, postgres)
	for _, path := range remove {
		_ = os.RemoveAll(path)
	}
}

// endRun ends what carries the run's mark or is in one of the groups, except
// Postgres and the server programs' guards, which see to themselves; then Postgres.
func endRun(run string, groups []int, postgres []string) {
	spared := map[int]bool{os.Getpid(): true}
	for _, data := range postgres {
		if pid := postmasterOf(data); pid != 0 {
			spared[pid] = true
		}
	}
	// First asked, then made: what they start meanwhile carries the mark as well.
	deadline := time.Now().Add(3 * time.Second)
	for sig := syscall.SIGTERM; ; {
		left := marked(RunVariable+"="+run, spared)
		for _, pid := range left {
			_ = syscall.Kill(pid, sig)
		}
		for _, group := range groups {
			_ = syscall.Kill(-group, sig)
		}
		if sig == syscall.SIGKILL && len(left) == 0 {
			break
		}
		if len(left) == 0 || time.Now().After(deadline) {
			sig = syscall.SIGKILL // and once more round
		}
		if time.Now().After(deadline.Add(10 * time.Second)) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	for _, data := range postgres {
		stopPostmaster(data)
	}
}

// marked lists the processes that have the mark, NAME=value, in their environment,
// without the spared ones and their children. On systems without /proc there are
// none to see.
func marked(mark string, spared map[int]bool) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || spared[pid] {
			continue
		}
		environment, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if err != nil || !hasVariable(environment, mark) {
			continue
		}
		if spared[parentOf(pid)] && parentOf(pid) != os.Getpid() {
			continue // a Postgres backend
		}
		pids = append(pids, pid)
	}
	return pids
}

func hasVariable(environment []byte, assignment string) bool {
	for _, v := range strings.Split(string(environment), "\x00") {
		if v == assignment {
			return true
		}
	}
	return false
}

// parentOf reads a process's parent from /proc; 0 when it is gone.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may hold anything: the fields follow the last one.
	_, after, found := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
	if !found {
		return 0
	}
	fields := strings.Fields(after)
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}

func withoutVariable(environment []string, name string) []string {
	kept := make([]string, 0, len(environment))
	for _, v := range environment {
		if !strings.HasPrefix(v, name+"=") {
			kept = append(kept, v)
		}
	}
	return kept
}

// WatchParent calls stop when parent, the process that started us, is gone, killed
// perhaps. It may be gone before we could ask who it was: so it is said, not asked.
func WatchParent(ctx context.Context, parent int, stop func()) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if os.Getppid() != parent {
				stop()
				return
			}
		}
	}
}
