package local

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// writerLives tries the lock, as readers do.
func writerLives(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == syscall.EWOULDBLOCK
}

func TestANoticeIsWholeAndLockedAsLongAsItsWriterLives(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "servers")
	n, err := PostNotice(dir, map[string]int{"a": 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`{"a":1}`, `{"a":2}`} {
		text, err := os.ReadFile(n.path)
		if err != nil || strings.TrimSpace(string(text)) != want || !writerLives(t, n.path) {
			t.Errorf("it says %q (%v), not %s; locked: %v", text, err, want, writerLives(t, n.path))
		}
		if err := n.Write(map[string]int{"a": 2}); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(n.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("others may read it: %v, %v", info, err)
	}
	// As after a power cut, when the number belongs to another process by now.
	if err := os.WriteFile(filepath.Join(dir, "1.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if writerLives(t, filepath.Join(dir, "1.json")) {
		t.Error("the writer of a file that nobody locks seems to live")
	}
	if err := n.Remove(); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

func TestPlacesFollowTheUsersSettings(t *testing.T) {
	base := t.TempDir()
	t.Setenv("XDG_DATA_HOME", filepath.Join(base, "data"))
	t.Setenv("XDG_STATE_HOME", filepath.Join(base, "state"))
	if dir, err := DataDir(); err != nil || dir != filepath.Join(base, "data", "schedulemesh") {
		t.Errorf("data: %s, %v", dir, err)
	}
	if dir, err := StateDir(); err != nil || dir != filepath.Join(base, "state", "schedulemesh") {
		t.Errorf("state: %s, %v", dir, err)
	}

	// A relative path is to be ignored, says the specification.
	t.Setenv("XDG_DATA_HOME", "data")
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("HOME", filepath.Join(base, "home"))
	want := filepath.Join(base, "home", ".local", "share", "schedulemesh")
	if os.Getuid() == 0 { // Postgres runs as somebody who may not enter t.TempDir
		want = "/var/lib/schedulemesh"
	}
	if dir, err := DataDir(); err != nil || dir != want {
		t.Errorf("data: %s, %v, not %s", dir, err, want)
	}
	if dir, err := StateDir(); err != nil || dir != filepath.Join(base, "home", ".local", "state", "schedulemesh") {
		t.Errorf("state: %s, %v", dir, err)
	}

	// An account without a home.
	t.Setenv("HOME", "/dev/null")
	if dir, err := StateDir(); err != nil || !strings.HasPrefix(dir, "/tmp/schedulemesh-") {
		t.Errorf("state: %s, %v", dir, err)
	}
}
