package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// DataDir is where a server keeps its data when nobody says where:
// $XDG_DATA_HOME/schedulemesh or ~/.local/share/schedulemesh. For root, whose
// Postgres runs as another user, it is the machine's own place when that user cannot
// get through root's home. It is not made here.
func DataDir() (string, error) {
	if base := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(base) {
		return filepath.Join(base, "schedulemesh"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no place for the data: %w; choose one with --data (SCHEDULEMESH_DATA)", err)
	}
	dir := filepath.Join(home, ".local", "share", "schedulemesh")
	as, err := unprivilegedAccount()
	if err != nil {
		return dir, nil // whoever starts Postgres says so
	}
	if ok, _ := as.reaches(dir); !ok {
		dir = "/var/lib/schedulemesh"
	}
	return dir, nil
}

// StateDir makes and returns the directory for small files about what runs now, for
// this user's eyes only: $XDG_STATE_HOME/schedulemesh, ~/.local/state/schedulemesh,
// or, for an account without a home, one among the temporary files.
func StateDir() (string, error) {
	base := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(base) {
		home, _ := os.UserHomeDir()
		base = filepath.Join(home, ".local", "state")
	}
	dir := filepath.Join(base, "schedulemesh")
	err := errors.New("there is no home")
	if filepath.IsAbs(dir) {
		if err = os.MkdirAll(dir, 0o700); err == nil {
			return dir, nil
		}
	}
	// Not os.TempDir: all who look for it must look at the same place.
	dir = fmt.Sprintf("/tmp/schedulemesh-%d", os.Getuid())
	if other := ownDir(dir); other != nil {
		return "", errors.Join(err, other)
	}
	return dir, nil
}

// TemporaryDir makes a directory for the data of a server that keeps none. The user
// that runs Postgres for root can get there.
func TemporaryDir() (string, error) {
	base := os.TempDir()
	as, err := unprivilegedAccount()
	if err != nil {
		return "", err
	}
	if ok, _ := as.reaches(base); !ok {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, "schedulemesh-")
	if err != nil {
		return "", fmt.Errorf("no place for temporary data: %w", err)
	}
	return dir, os.Chmod(dir, 0o755) // secrets in it are 0600
}
