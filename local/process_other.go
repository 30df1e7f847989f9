//go:build unix && !linux

package local

import (
	"os"
	"syscall"
)

// processAttributes makes a child in its own process group, run as the account
// when one is given. There is no death signal here: the guard does that work.
func processAttributes(_ syscall.Signal, as *account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if as != nil {
		attr.Credential = &syscall.Credential{Uid: as.uid, Gid: as.gid}
	}
	return attr
}

func ownedByUs(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Getuid()
}
