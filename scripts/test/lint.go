package main

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
)

// check is one linter. It fails when it ends with an error, or, for those that
// only list, when it prints anything.
type check struct {
	name    string
	command []string
	lists   bool
}

func (r *run) lint(ctx context.Context) {
	r.title("linters")
	bin := filepath.Dir(r.python)
	tool := func(args ...string) []string { return append([]string{"go", "tool", "-modfile=tools/go.mod"}, args...) }
	shell, err := shellScripts()
	if err != nil {
		r.result("shell scripts", failed, err.Error())
		return
	}
	for _, c := range []check{
		{"gofmt", append([]string{"gofmt", "-l"}, goDirectories()...), true},
		{"go vet", []string{"go", "vet", "./..."}, false},
		{"staticcheck", tool("staticcheck", "./..."), false},
		{"templ fmt", tool("templ", "fmt", "-fail", "web"), false},
		{"sqlc vet", tool("sqlc", "vet"), false},
		{"shellcheck", append([]string{filepath.Join(bin, "shellcheck")}, shell...), false},
		{"shfmt", append(tool("shfmt", "-d", "-i", "2", "-ci"), shell...), false},
		{"ruff", []string{filepath.Join(bin, "ruff"), "check", "python", "examples", "bench"}, false},
		{"ruff format", []string{filepath.Join(bin, "ruff"), "format", "--check", "python", "examples", "bench"}, false},
		{"mypy", []string{filepath.Join(bin, "mypy"), "--config-file", "python/pyproject.toml", "python/src"}, false},
	} {
		r.check(ctx, c)
	}
}

func (r *run) check(ctx context.Context, c check) {
	out, err := r.command(ctx, c.command[0], c.command[1:]...)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		r.result(c.name, skipped, c.command[0]+" is not on this machine")
	case err != nil && toolMissing(out):
		r.result(c.name, skipped, "it could not be downloaded or built\n"+out)
	case err != nil:
		r.result(c.name, failed, err.Error())
	case c.lists && strings.TrimSpace(out) != "":
		r.result(c.name, failed, out)
	default:
		r.result(c.name, passed, "")
	}
}

// toolMissing says whether `go tool` could not get its tool, which is no verdict on the code.
func toolMissing(out string) bool {
	return strings.Contains(out, "dial tcp") || strings.Contains(out, "no such host")
}

func shellScripts() ([]string, error) {
	out, err := exec.Command("git", "ls-files", "scripts", ".ci", "deploy").Output()
	if err != nil {
		return nil, err
	}
	var scripts []string
	for path := range strings.Lines(string(out)) {
		path = strings.TrimSpace(path)
		if name := filepath.Base(path); !strings.Contains(name, ".") || strings.HasSuffix(name, ".sh") {
			scripts = append(scripts, path)
		}
	}
	return scripts, nil
}

// goDirectories are the top directories that have Go files of ours.
func goDirectories() []string {
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "./...").Output()
	if err != nil {
		return []string{"."}
	}
	return strings.Fields(string(out))
}

// generated makes everything again that is made from something else and checked in.
func (r *run) generated(ctx context.Context) {
	r.title("generated code")
	r.check(ctx, check{name: "generated code is up to date", command: []string{"bash", "scripts/check-generated"}})
}
