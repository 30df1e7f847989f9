package local

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, path, content string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// fakePython is an interpreter that says it is of a version, makes environments of
// itself, and answers pip with what pip would say.
func fakePython(t *testing.T, version, venv, pip string) string {
	t.Helper()
	return write(t, filepath.Join(t.TempDir(), "python3"), `#!/bin/sh
case "$*" in
*platform*) echo `+version+` ;;
"-m venv"*) `+venv+`; mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
*"pip install"*) echo "$@" >> "$(dirname "$0")/../pip-calls"; `+pip+` ;;
esac
`, 0o755)
}

func TestPythonIsInstalledOnceAndAgainWhenTheLockChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lock := write(t, filepath.Join(dir, "requirements.lock"), "ray==1\n", 0o644)
	write(t, filepath.Join(dir, "pkg", "pyproject.toml"), "[project]\n", 0o644)
	opts := PythonOptions{
		Dir: filepath.Join(dir, "venv"), Locks: []string{lock}, Project: filepath.Join(dir, "pkg"),
		Base: fakePython(t, "3.12.1", ":", ":"),
	}
	calls := func() int {
		data, _ := os.ReadFile(filepath.Join(dir, "venv", "pip-calls"))
		return strings.Count(string(data), "pip install")
	}
	ensure := func() {
		t.Helper()
		if _, err := EnsurePython(t.Context(), opts); err != nil {
			t.Fatal(err)
		}
	}
	ensure()
	if calls() != 2 { // the lock and the package
		t.Fatalf("pip was called %d times at first", calls())
	}
	ensure()
	if calls() != 2 {
		t.Fatalf("pip was called again for nothing")
	}
	write(t, lock, "ray==2\n", 0o644)
	ensure()
	if calls() != 4 {
		t.Fatalf("pip was called %d times after the lock changed", calls())
	}
}

func TestPythonTroubleIsOneClearSentence(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		version, venv, pip string
		want               []string
	}{
		"too old":    {"3.8.2", ":", ":", []string{"needs Python 3.10 to 3.14", "has 3.8.2", "PYTHON"}},
		"too new":    {"3.99.0", ":", ":", []string{"needs Python 3.10 to 3.14", "has 3.99.0"}},
		"no venv":    {"3.12.1", `echo "ensurepip is not available"; exit 1`, ":", []string{"without its venv module", "apt install python3-venv"}},
		"no network": {"3.12.1", ":", `echo "NewConnectionError('Temporary failure in name resolution')"; exit 1`, []string{"cannot be downloaded", "check the network"}},
		"no space":   {"3.12.1", ":", `echo "OSError: [Errno 28] No space left on device"; exit 1`, []string{"too full", "MB"}},
		"tampered":   {"3.12.1", ":", `echo "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."; exit 1`, []string{"not the one that was locked"}},
		"no wheel":   {"3.12.1", ":", `echo "ERROR: No matching distribution found for ray==2.60.0"; exit 1`, []string{"no ready build"}},
		"other":      {"3.12.1", ":", `echo "something nobody foresaw"; exit 1`, []string{"something nobody foresaw", "install.log"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			_, err := EnsurePython(context.Background(), PythonOptions{
				Dir:   filepath.Join(dir, "venv"),
				Locks: []string{write(t, filepath.Join(dir, "requirements.lock"), "", 0o644)},
				Base:  fakePython(t, c.version, c.venv, c.pip),
			})
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
}
