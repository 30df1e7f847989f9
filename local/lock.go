package local

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// fileLock is held by one process at a time and ends with it.
type fileLock struct{ f *os.File }

// tryLock takes the lock at path. When another process has it, holder is that
// process's id (0 when unknown) and the lock is nil.
func tryLock(path string) (lock *fileLock, holder int, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, 0, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		data, _ := os.ReadFile(path)
		f.Close()
		if err != syscall.EWOULDBLOCK {
			return nil, 0, fmt.Errorf("lock %s: %w", path, err)
		}
		holder, _ = strconv.Atoi(strings.TrimSpace(string(data)))
		return nil, holder, nil
	}
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return &fileLock{f}, 0, nil
}

// waitLock takes the lock at path, waiting for whoever has it; waiting is called
// once when that takes a while.
func waitLock(ctx context.Context, path string, waiting func(holder int)) (*fileLock, error) {
	for i := 0; ; i++ {
		lock, holder, err := tryLock(path)
		if lock != nil || err != nil {
			return lock, err
		}
		if i == 5 && waiting != nil {
			waiting(holder)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (l *fileLock) release() {
	if l != nil {
		l.f.Close()
	}
}
