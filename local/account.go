package local

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user Postgres runs as when we are root, which it refuses.
type account struct {
	name     string
	uid, gid uint32
}

// unprivilegedAccount picks an existing account for Postgres; nil when we are
// not root and it can run as ourselves.
func unprivilegedAccount() (*account, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody", "daemon", "www-data"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("account %s: %w", name, err)
		}
		if uid != 0 {
			return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("Postgres does not run as root, and none of the accounts postgres, nobody, daemon, www-data is there to run it: start this as another user, or set DATABASE_URL")
}

// give hands a file or directory to the account; nil leaves it with us.
func (a *account) give(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// reaches says whether the account may walk to dir: every directory on the way
// must let it through. It returns the first that does not.
func (a *account) reaches(dir string) (ok bool, wall string) {
	if a == nil {
		return true, ""
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return false, dir
	}
	// A directory that is not there yet will be made by us, open to walk through.
	for path := dir; ; path = filepath.Dir(path) {
		if info, err := os.Stat(path); err == nil && !a.walksThrough(info) {
			return false, path
		}
		if path == filepath.Dir(path) {
			return true, ""
		}
	}
}

func (a *account) walksThrough(info os.FileInfo) bool {
	mode := info.Mode().Perm()
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return mode&0o001 != 0
	case st.Uid == a.uid:
		return mode&0o100 != 0
	case st.Gid == a.gid:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}
