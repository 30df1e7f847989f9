package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set when a release is built: -ldflags "-X main.version=1.2.3".
var version = ""

func versionCommand() *command {
	return &command{
		name:    "version",
		summary: "which server this is",
		help:    "Prints the version of this binary, what it was built from and with.",
		run: func(_ context.Context, io stdio, args []string) error {
			if len(args) > 0 {
				return errUsage
			}
			fmt.Fprintf(io.out, "schedulemesh %s (%s, %s/%s)\n", versionText(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}

func versionText() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "development"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "development, commit " + s.Value[:12]
		}
	}
	return "development"
}
