package local

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Notice says something about this process to others of the same user, in a file
// named after its process id. It is locked as long as the process lives: a number
// that belongs to another process by now fools nobody who tries the lock.
type Notice struct {
	path string
	lock *os.File
}

// PostNotice writes content, as JSON, into dir, which is made when it is not there. The
// file is removed when this process has ended, if Remove was not called before.
func PostNotice(dir string, content any) (*Notice, error) {
	guard, err := StartGuard()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	n := &Notice{path: filepath.Join(dir, strconv.Itoa(os.Getpid())+".json")}
	guard.Remove(n.path)
	return n, n.Write(content)
}

// Write replaces what the notice says. Who reads sees the old or the new, whole.
func (n *Notice) Write(content any) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	next, err := os.CreateTemp(filepath.Dir(n.path), ".notice-*") // made with mode 0600
	if err != nil {
		return err
	}
	// Where files cannot be locked, readers cannot try either and go by the process id.
	_ = syscall.Flock(int(next.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if _, err = next.Write(append(text, '\n')); err == nil {
		err = os.Rename(next.Name(), n.path)
	}
	if err != nil {
		next.Close()
		_ = os.Remove(next.Name())
		return err
	}
	if n.lock != nil {
		n.lock.Close()
	}
	n.lock = next
	return nil
}

// Remove takes the notice away.
func (n *Notice) Remove() error {
	err := os.Remove(n.path)
	if n.lock != nil {
		n.lock.Close()
	}
	return err
}
