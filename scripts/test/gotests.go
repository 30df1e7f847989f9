package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

const modulePath = "github.com/schedulemesh/schedulemesh"

// goTests runs the Go tests, those of packages full of goroutines with the race
// detector.
func (r *run) goTests(ctx context.Context) {
	out, err := r.command(ctx, "go", "list", r.packages)
	if err != nil {
		r.result("go list", failed, err.Error())
		return
	}
	var plain, raced []string
	for _, pkg := range strings.Fields(out) {
		directory := strings.TrimPrefix(strings.TrimPrefix(pkg, modulePath), "/")
		top, _, _ := strings.Cut(directory, "/")
		if slices.Contains(r.race, top) {
			raced = append(raced, pkg)
		} else {
			plain = append(plain, pkg)
		}
	}
	if len(raced) > 0 && !hasCompiler() {
		r.result("race detector", skipped, "it needs a C compiler: running those tests without it")
		plain, raced = append(plain, raced...), nil
	}
	if len(raced) > 0 {
		r.title("Go tests, with the race detector")
		r.goTest(ctx, append([]string{"-race"}, raced...)...)
	}
	if len(plain) > 0 {
		r.title("Go tests")
		r.goTest(ctx, plain...)
	}
}

func hasCompiler() bool {
	for _, name := range []string{os.Getenv("CC"), "gcc", "clang"} {
		if _, err := exec.LookPath(name); name != "" && err == nil {
			return true
		}
	}
	return false
}

// testEvent is a line of `go test -json`.
type testEvent struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

func (r *run) goTest(ctx context.Context, args ...string) {
	args = append([]string{"test", "-json", "-timeout", "9m", "-run", r.pattern}, args...)
	if r.ci {
		args = append([]string{"test", "-count=1"}, args[1:]...) // no result of an earlier run
	}
	cmd := r.prepare(ctx, "go", args...)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.result("go test", failed, err.Error())
		return
	}
	before := r.failed
	outputs := map[string]*strings.Builder{} // of what has not ended, by package and test
	output := func(key string) *strings.Builder {
		if outputs[key] == nil {
			outputs[key] = &strings.Builder{}
		}
		return outputs[key]
	}
	counts := map[string]int{} // passed tests, by package
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e testEvent
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Println(lines.Text())
			continue
		}
		pkg := strings.TrimPrefix(e.Package, modulePath+"/")
		// A subtest's output belongs to its test; the test is what is counted.
		test, _, isSub := strings.Cut(e.Test, "/")
		key := pkg + " " + test
		switch e.Action {
		case "build-output":
			output(strings.TrimPrefix(e.ImportPath, modulePath+"/")).WriteString(e.Output)
		case "output":
			output(key).WriteString(e.Output)
		case "skip":
			if e.Test != "" {
				r.result(pkg+" "+e.Test, skipped, reason(output(key).String()))
			}
		case "pass":
			if e.Test == "" {
				fmt.Printf("%-5s %s: %d tests, %.1f s\n", passed, pkg, counts[pkg], e.Elapsed)
			} else if !isSub {
				r.passed++
				counts[pkg]++
				delete(outputs, key)
			}
		case "fail":
			switch {
			case e.Test == "" && !r.hasTroubleIn(pkg):
				// Did not build, or died outside a test.
				r.result(pkg, failed, output(pkg).String()+output(pkg+" ").String())
			case e.Test != "" && !isSub:
				r.result(pkg+" "+e.Test, failed, telling(output(key).String()))
				delete(outputs, key)
			}
		}
	}
	if err := cmd.Wait(); err != nil && r.failed == before {
		r.result("go test", failed, err.Error())
	}
}

// telling leaves out what says only that tests ran.
func telling(output string) string {
	var kept strings.Builder
	for line := range strings.Lines(output) {
		text := strings.TrimSpace(line)
		if !strings.HasPrefix(text, "=== ") && !strings.HasPrefix(text, "--- PASS") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

func (r *run) hasTroubleIn(pkg string) bool {
	return slices.ContainsFunc(r.troubles, func(t string) bool { return strings.HasPrefix(t, pkg+" ") })
}

// reason finds what a skipped test said.
func reason(output string) string {
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if _, said, found := strings.Cut(line, "_test.go:"); found {
			_, said, _ = strings.Cut(said, ": ")
			return said
		}
		if file, said, found := strings.Cut(line, ": "); found && strings.Contains(file, ".go:") {
			return said
		}
	}
	return "no word why"
}
