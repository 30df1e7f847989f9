package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/simulate"
)

func simulateCommand() *command {
	var c simulateSettings
	return &command{
		name:    "simulate",
		summary: "put a workload through the scheduler in simulated time",
		help: `
Puts tasks through pools in simulated time, decided by the same code that decides
in the server, and prints what came of it: what decisions cost, how much of the
pools was used, how long tasks waited, who was preempted. It needs no database
and no Ray, and the same seed gives the same answer.

The workload is a YAML file; examples/workload.yaml explains its fields and is
what is used when none is given.

` + simulate.TraceColumns,
		settings: c.register,
		run:      c.run,
	}
}

type simulateSettings struct {
	workload, trace, policy, json, svg string
	pools, tasks, seed                 int
	quiet                              bool
}

func (c *simulateSettings) register(s *settings) {
	s.text(&c.workload, "workload", "FILE", "", "", "a YAML file: what arrives, and where")
	s.text(&c.trace, "trace", "FILE", "", "", "a CSV file of tasks, instead of the workload's arrivals; pools it names get the workload's capacity")
	s.text(&c.policy, "policy", "FILE", "", "", "a policy as JSON, or some fields of it, over the workload's")
	s.number(&c.pools, "pools", "", 0, "how many pools, instead of the workload's number")
	s.number(&c.tasks, "tasks", "", 0, "how many tasks, instead of the workload's number")
	s.number(&c.seed, "seed", "", 1, "of the random numbers")
	s.text(&c.json, "json", "FILE", "", "", "write the result there as JSON")
	s.text(&c.svg, "svg", "FILE", "", "", "write a plot of it there")
	s.toggle(&c.quiet, "quiet", "", "say nothing while it runs")
}

func (c *simulateSettings) run(ctx context.Context, io stdio, args []string) error {
	if len(args) > 0 {
		return errUsage
	}
	o, err := c.options()
	if err != nil {
		return err
	}
	if !c.quiet {
		o.Progress = io.err
	}
	// Opened now: a name that cannot be is no news for after the run.
	asJSON, err := create(c.json)
	if err != nil {
		return err
	}
	defer asJSON.Close()
	asSVG, err := create(c.svg)
	if err != nil {
		return err
	}
	defer asSVG.Close()
	report, err := simulate.Run(ctx, o)
	if err != nil {
		return err
	}
	report.WriteTable(io.out)
	if asJSON != nil {
		out := json.NewEncoder(asJSON)
		out.SetIndent("", "  ")
		err = out.Encode(report)
	}
	if asSVG != nil && err == nil {
		_, err = asSVG.Write(report.SVG())
	}
	return err
}

// create makes a file, none when it has no name.
func create(name string) (*os.File, error) {
	if name == "" {
		return nil, nil
	}
	return os.Create(name)
}

func (c *simulateSettings) options() (o simulate.Options, err error) {
	o = simulate.Options{Workload: simulate.DefaultWorkload(), Policy: sched.DefaultPolicy(), Seed: uint64(c.seed)}
	if c.workload != "" {
		file, err := os.Open(c.workload)
		if err != nil {
			return o, err
		}
		defer file.Close()
		if o.Workload, err = simulate.ParseWorkload(file); err != nil {
			return o, fmt.Errorf("%s: %w", c.workload, err)
		}
	}
	if c.pools > 0 {
		if len(o.Workload.Pools.Named) > 0 {
			return o, fmt.Errorf("--pools %d cannot be: %s names its pools one by one", c.pools, c.workload)
		}
		o.Workload.Pools.Count = c.pools
	}
	if c.tasks > 0 {
		o.Workload.Tasks = c.tasks
	}
	if c.trace != "" {
		if c.tasks > 0 {
			return o, fmt.Errorf("--tasks %d cannot be: the trace says which tasks there are", c.tasks)
		}
		if o.Trace, err = simulate.OpenTrace(c.trace); err != nil {
			return o, err
		}
	}
	if c.policy != "" {
		if o.Over, err = os.ReadFile(c.policy); err != nil {
			return o, err
		}
	}
	return o, nil
}
