package jobs_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/jobs"
)

// TestEntrypoints holds the check and the Python client's together: both read the same examples.
func TestEntrypoints(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/entrypoints.json")
	if err != nil {
		t.Fatal(err)
	}
	var examples []struct {
		Entrypoint string
		Times      int
		Error      string
	}
	if err := json.Unmarshal(text, &examples); err != nil || len(examples) < 50 {
		t.Fatalf("%d examples: %v", len(examples), err)
	}
	for _, e := range examples {
		got := ""
		if err := jobs.CheckEntrypoint(strings.Repeat(e.Entrypoint, max(e.Times, 1))); err != nil {
			got = err.Error()
		}
		if got != e.Error {
			t.Errorf("%.100q × %d:\n %s\nwant\n %s", e.Entrypoint, max(e.Times, 1), got, e.Error)
		}
	}
}

func TestEntrypointsOfNonsenseAreLookedAtQuickly(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	for _, piece := range []string{"exec ", "-", "'\"", "a=", "<", "\\", "env -u ", "$(", "é", "\xff"} {
		_ = jobs.CheckEntrypoint(strings.Repeat(piece, jobs.MaxEntrypoint/len(piece)))
	}
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
}

func FuzzEntrypoint(f *testing.F) {
	for _, s := range []string{"python x.py", `a "b\"c" 'd' 2>e <<f`, "timeout -k 5 60 env -u A B=c bash -o x y", "\\"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if err := jobs.CheckEntrypoint(s); err == nil && strings.TrimSpace(s) == "" {
			t.Error("nothing is a command")
		}
	})
}
