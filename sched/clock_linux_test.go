package sched_test

import (
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// cpuTime is how long this thread has computed: on a busy machine the clock on the
// wall measures the others. Lock the thread before.
func cpuTime() time.Duration {
	const threadCPU = 3 // CLOCK_THREAD_CPUTIME_ID
	var t syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, threadCPU, uintptr(unsafe.Pointer(&t)), 0)
	runtime.KeepAlive(&t)
	return time.Duration(t.Nano())
}
