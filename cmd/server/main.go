// Command server is ScheduleMesh: the control plane, and what one machine needs
// around it. It turns flags and environment into values, starts things in order
// and stops them in the opposite one. What they do is written elsewhere.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// command is one word after `server`.
type command struct {
	name    string
	args    string // after the name, in the usage line
	summary string // in the list of commands
	help    string // above the settings
	// settings registers flags; run gets what is left of the command line.
	settings func(*settings)
	run      func(ctx context.Context, io stdio, args []string) error
}

type stdio struct{ out, err io.Writer }

func commands() []*command {
	return []*command{upCommand(), serveCommand(), migrateCommand(), verifyCommand(), simulateCommand(), versionCommand()}
}

// errUsage is answered with the command's help on how to call it.
var errUsage = errors.New("")

func main() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go stopOnSignal(stop)
	os.Exit(run(ctx, stdio{os.Stdout, os.Stderr}, os.Args[1:], os.Getenv))
}

// run is main without the process around it; it returns the exit code.
func run(ctx context.Context, io stdio, args []string, getenv func(string) string) int {
	all := commands()
	if len(args) == 0 {
		printCommands(io.err, all)
		return 2
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		if len(args) > 1 {
			args = []string{args[1], "--help"}
			break
		}
		printCommands(io.out, all)
		return 0
	}
	for _, c := range all {
		if c.name != args[0] {
			continue
		}
		s := newSettings(getenv)
		if c.settings != nil {
			c.settings(s)
		}
		rest, err := s.parse(args[1:])
		if errors.Is(err, flag.ErrHelp) {
			printCommand(io.out, c, s)
			return 0
		}
		if err == nil {
			err = c.run(ctx, io, rest)
		}
		switch {
		case err == nil:
			return 0
		case errors.Is(err, errUsage):
			printCommand(io.err, c, s)
			return 2
		case errors.Is(err, context.Canceled) && ctx.Err() != nil:
			return 130
		default:
			fmt.Fprintf(io.err, "server %s: %v\n", c.name, err)
			return 1
		}
	}
	fmt.Fprintf(io.err, "server: there is no command %q.\n\n", args[0])
	printCommands(io.err, all)
	return 2
}

func printCommands(w io.Writer, all []*command) {
	fmt.Fprint(w, "ScheduleMesh: priority scheduling and preemption for Ray.\n\nUsage: server COMMAND [SETTINGS]\n\n")
	for _, c := range all {
		fmt.Fprintf(w, "  %-9s %s\n", c.name, c.summary)
	}
	fmt.Fprint(w, "\n`server help COMMAND` explains a command and its settings. `server up` is the one to try first.\n")
}

func printCommand(w io.Writer, c *command, s *settings) {
	usage := strings.TrimSpace("server " + c.name + " " + c.args)
	if len(s.all) > 0 {
		usage += " [SETTINGS]"
	}
	fmt.Fprintf(w, "Usage: %s\n\n%s\n", usage, strings.TrimSpace(c.help))
	s.print(w)
}

// stopOnSignal stops politely at the first signal and at once at the second; the
// guard then clears up.
func stopOnSignal(stop context.CancelFunc) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	<-signals
	stop()
	<-signals
	fmt.Fprintln(os.Stderr, "stopping at once")
	os.Exit(130)
}
