// Package schedulemesh holds nothing but this test: the way imports may point.
package schedulemesh

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const modulePath = "github.com/schedulemesh/schedulemesh/"

// mayImport says, for each package of the house, which others it may name. A
// package stands for all below it. What is not listed here fails the test: a new
// room needs a place in the house.
var mayImport = map[string][]string{
	// The decision core is pure: it knows nobody.
	"sched": {},
	// The truth, and what is generated from it.
	"db":     {"db"},
	"ledger": {"sched", "db"},
	// Ray, seen from Go.
	"bridge": {"bridge"},
	"agents": {"ledger", "bridge", "sched"},
	// Several clusters, and jobs over them.
	"clusters": {"ledger", "sched", "db"},
	"jobs":     {"clusters", "ledger", "sched", "db"},
	// The view: pages get view models, never rows.
	"web":      {"static"},
	"static":   {},
	"handlers": {"handlers", "web", "static", "ledger", "sched", "jobs", "clusters"},
	// The whole, and what runs it.
	"app":   {"handlers", "web", "static", "ledger", "db", "agents", "bridge", "sched", "jobs", "clusters"},
	"local": {},
	"cmd":   {"app", "clusters", "local", "db", "ledger", "simulate", "sched"},
	// Workloads put through the core, past what one machine could run.
	"simulate": {"sched"},
	// For tests and building only.
	"testdb":  {"local"},
	"scripts": {"local", "testdb"},
	"bench":   {"local", "app", "bridge", "ledger", "sched", "clusters", "jobs"},
	"deploy":  {},
	"e2e":     {"app", "local", "testdb", "db"},
}

// forTests may be imported by tests of any package.
var forTests = []string{"testdb", "local", "db", "bridge", "ledger", "app"}

type goPackage struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	packages := listPackages(t)
	if len(packages) < 10 {
		t.Fatalf("only %d packages found", len(packages))
	}
	for _, p := range packages {
		room := roomOf(p.ImportPath)
		allowed, known := mayImport[room]
		if !known {
			t.Errorf("%s has no place in the house: say in mayImport what it may import", p.ImportPath)
			continue
		}
		for _, imported := range p.Imports {
			if r := roomOf(imported); r != "" && r != room && !slices.Contains(allowed, r) {
				t.Errorf("%s imports %s, which points the wrong way", room, imported)
			}
		}
		for _, imported := range p.Imports {
			if roomOf(imported) != "" && strings.HasSuffix(imported, "test") && room != "bench" && !strings.HasSuffix(p.ImportPath, "test") {
				t.Errorf("%s imports %s, which is for tests", p.ImportPath, imported)
			}
		}
		if room == "sched" {
			continue // pure in its tests too
		}
		for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
			if r := roomOf(imported); r != "" && r != room && !slices.Contains(allowed, r) && !slices.Contains(forTests, r) {
				t.Errorf("the tests of %s import %s, which points the wrong way", room, imported)
			}
		}
	}
}

func TestTheDecisionCoreHasNoClockAndNoInputOrOutput(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t) {
		if roomOf(p.ImportPath) != "sched" {
			continue
		}
		for _, forbidden := range []string{"os", "net", "net/http", "io/fs", "database/sql", "context", "sync", "sync/atomic", "log", "log/slog", "math/rand", "math/rand/v2", "crypto/rand"} {
			if slices.Contains(p.Imports, forbidden) {
				t.Errorf("%s imports %s: the core is pure", p.ImportPath, forbidden)
			}
		}
	}
}

// roomOf is the top directory of a package of ours, "" for everybody else's and
// for this one.
func roomOf(path string) string {
	inside, ours := strings.CutPrefix(path, modulePath)
	if !ours {
		return ""
	}
	room, _, _ := strings.Cut(inside, "/")
	return room
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	var packages []goPackage
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		if roomOf(p.ImportPath) != "" {
			packages = append(packages, p)
		}
	}
}
