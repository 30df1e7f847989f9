package local

import (
	"os"
	"syscall"
)

// processAttributes makes a child that gets the signal from the kernel when our
// thread that started it ends, and runs as the account when one is given.
func processAttributes(onParentDeath syscall.Signal, as *account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: onParentDeath}
	if as != nil {
		attr.Credential = &syscall.Credential{Uid: as.uid, Gid: as.gid}
	}
	return attr
}

func ownedByUs(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Getuid()
}
