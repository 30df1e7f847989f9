package main

import (
	"context"
	"encoding/xml"
	"fmt"
	"os"
)

// junit is what pytest writes for machines.
type junit struct {
	Cases []struct {
		Class   string  `xml:"classname,attr"`
		Name    string  `xml:"name,attr"`
		Failure *report `xml:"failure"`
		Error   *report `xml:"error"`
		Skipped *report `xml:"skipped"`
	} `xml:"testsuite>testcase"`
}

type report struct {
	Message string `xml:"message,attr"`
}

func (r *run) pythonTests(ctx context.Context) {
	r.title("Python tests")
	if _, err := r.command(ctx, "go", "build", "-o", "bin/server", "./cmd/server"); err != nil {
		r.result("the server they talk to", failed, err.Error())
		return
	}
	file, err := os.CreateTemp("", "schedulemesh-pytest-*.xml")
	if err != nil {
		r.result("pytest", failed, err.Error())
		return
	}
	file.Close()
	defer os.Remove(file.Name())
	cmd := r.prepare(ctx, r.python, "-m", "pytest", "-q", "--color=no", "-o", "junit_family=xunit1", "--junit-xml="+file.Name())
	cmd.Dir = "python"
	out, runErr := cmd.CombinedOutput()
	data, err := os.ReadFile(file.Name())
	var results junit
	if err == nil {
		err = xml.Unmarshal(data, &results)
	}
	if err != nil || len(results.Cases) == 0 {
		r.result("pytest", failed, fmt.Sprintf("%v\n%s", runErr, out))
		return
	}
	bad := r.failed
	good := 0
	for _, c := range results.Cases {
		name := c.Class + " " + c.Name
		switch {
		case c.Failure != nil:
			r.result(name, failed, c.Failure.Message)
		case c.Error != nil:
			r.result(name, failed, c.Error.Message)
		case c.Skipped != nil:
			r.result(name, skipped, c.Skipped.Message)
		default:
			r.passed++
			good++
		}
	}
	switch {
	case r.failed > bad:
		fmt.Println(indent(string(out)))
	case runErr != nil:
		r.result("pytest", failed, fmt.Sprintf("%v\n%s", runErr, out))
	default:
		fmt.Printf("%-5s python: %d tests\n", passed, good)
	}
}
