//go:build !linux

package sched_test

import "time"

var started0 = time.Now()

func cpuTime() time.Duration { return time.Since(started0) }
