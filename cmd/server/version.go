package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/schedulemesh/schedulemesh/app"
)

func versionCommand() *command {
	return &command{
		name:    "version",
		summary: "which server this is",
		help:    "Prints the version or the commit of this binary, and what it was built with and for.",
		run: func(_ context.Context, io stdio, args []string) error {
			if len(args) > 0 {
				return errUsage
			}
			fmt.Fprintf(io.out, "schedulemesh %s (%s, %s/%s)\n", app.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}
