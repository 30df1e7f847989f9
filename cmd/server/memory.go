package main

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// ballast keeps the garbage collector from running all the time: it counts as heap and
// is never touched, so it takes no memory itself, but lets as much garbage gather as
// itself before the next collection. Under load a collection each few thousand
// submissions would look at every running task again, and cost more than the
// submissions do.
var ballast = make([]byte, ballastSize(memory()))

// ballastSize is a sixteenth of the memory there is, from 64 MiB to 1 GiB.
func ballastSize(memory int64) int64 {
	return min(max(memory/16, 64<<20), 1<<30)
}

// memory is what this process may use, in bytes: the machine's, or its container's
// limit; 0 when that cannot be told.
func memory() int64 {
	most := int64(0)
	if doc, err := os.ReadFile("/proc/meminfo"); err == nil {
		for line := range bytes.Lines(doc) {
			if f := strings.Fields(string(line)); len(f) > 1 && f[0] == "MemTotal:" {
				kib, _ := strconv.ParseInt(f[1], 10, 64)
				most = kib << 10
			}
		}
	}
	if doc, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(doc)), 10, 64); err == nil && (most == 0 || limit < most) {
			most = limit
		}
	}
	return most
}
