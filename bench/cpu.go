package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/local"
)

// spent is the processor time of those who share the machine in a measurement.
// Unlike rates it hardly depends on what else runs there.
type spent struct{ client, server, postgres time.Duration }

// cpu reads what has been spent so far. On systems without /proc it is zero.
func (b *bench) cpu(s *served) spent {
	return spent{client: cpuOf(os.Getpid()), server: cpuOf(s.cmd.Process.Pid), postgres: cpuBelow(b.postmaster)}
}

func (s spent) since(before spent, n int64) string {
	if n == 0 || s == (spent{}) {
		return ""
	}
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(n) }
	return fmt.Sprintf("µs of CPU each: client %.1f, server %.1f, Postgres %.1f",
		each(s.client-before.client), each(s.server-before.server), each(s.postgres-before.postgres))
}

// tick is the unit of times in /proc/*/stat: USER_HZ, which is 100 on every Linux.
const tick = 10 * time.Millisecond

// stat is what /proc says of a process: its parent and its processor time.
func stat(pid int) (parent int, cpu time.Duration) {
	doc, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, 0
	}
	_, rest, ok := strings.Cut(string(doc), ") ") // the name may have blanks
	f := strings.Fields(rest)
	if !ok || len(f) < 13 {
		return 0, 0
	}
	parent, _ = strconv.Atoi(f[1])
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return parent, time.Duration(user+system) * tick
}

func cpuOf(pid int) time.Duration {
	_, cpu := stat(pid)
	return cpu
}

// cpuBelow adds up a process and its children.
func cpuBelow(pid int) time.Duration {
	sum := cpuOf(pid)
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		child, _ := strconv.Atoi(filepath.Base(p))
		if parent, cpu := stat(child); parent == pid {
			sum += cpu
		}
	}
	return sum
}

// postmaster is the process id of the Postgres that was started for us.
func postmaster(pg *local.Postgres) int {
	doc, _ := os.ReadFile(filepath.Join(pg.Dir(), "data", "postmaster.pid"))
	first, _, _ := strings.Cut(string(doc), "\n")
	pid, _ := strconv.Atoi(first)
	return pid
}
