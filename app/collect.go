package app

import (
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// A collection looks at every running task again, so how much garbage may gather before
// one is what a submission to a busy server costs; but fresh memory is not free either.
// Little that lives gets room for four times as much garbage, and with more of it the
// room stays the same, until it is as large as what lives.
const (
	mostPercent  = 400
	leastPercent = 100
	garbage      = 1 << 30 // bytes that may gather where that is more than leastPercent
)

var collecting struct {
	sync.Mutex
	servers int // of this process
	loading int // of them, that load
	percent int // as it was set last
	stop    chan struct{}
}

// collect tunes garbage collection while a server of this process runs, until the
// returned func is called. While it loads, nearly everything that is allocated stays,
// and collections are rare. A percentage that was set by hand (GOGC) stays as it is.
func collect(loaded <-chan struct{}) (stop func()) {
	c := &collecting
	c.Lock()
	defer c.Unlock()
	if c.servers++; c.servers == 1 {
		if usual := debug.SetGCPercent(mostPercent); usual != leastPercent {
			debug.SetGCPercent(usual)
			c.stop = nil
		} else {
			c.percent, c.stop = mostPercent, make(chan struct{})
			go tune(c.stop)
		}
	}
	c.loading++
	go func() {
		<-loaded
		c.Lock()
		if c.loading--; c.loading == 0 && c.stop != nil {
			set(percentFor(live()))
			debug.FreeOSMemory()
		}
		c.Unlock()
	}()
	var once sync.Once
	return func() {
		once.Do(func() {
			c.Lock()
			defer c.Unlock()
			if c.servers--; c.servers == 0 && c.stop != nil {
				close(c.stop)
				debug.SetGCPercent(leastPercent)
			}
		})
	}
}

func tune(stop <-chan struct{}) {
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-stop:
			return
		}
		collecting.Lock()
		if collecting.loading == 0 && collecting.stop == stop {
			set(percentFor(live()))
		}
		collecting.Unlock()
	}
}

// set changes the percentage, which stops the world for a moment, if it is another one.
func set(percent int) {
	if percent != collecting.percent {
		collecting.percent = percent
		debug.SetGCPercent(percent)
	}
}

// percentFor is the share of what lives that may gather as garbage.
func percentFor(live uint64) int {
	return int(min(max(garbage*100/max(live, 1), leastPercent), mostPercent))
}

// live is what the last collection found alive, in bytes.
func live() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
