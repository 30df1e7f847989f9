package app

import (
	"runtime/debug"
	"sync"
)

// While the core is loaded nearly everything that is allocated stays: collecting as often
// as usual would take longer than loading.
const loadingPercent = 400

var loading struct {
	sync.Mutex
	servers int // of this process, that load
	usual   int
}

// collectLess makes garbage collection rare until the ledger is loaded, or closed. One
// that was set by hand (GOGC) stays as it is.
func collectLess(loaded <-chan struct{}) {
	loading.Lock()
	if loading.servers++; loading.servers == 1 {
		if loading.usual = debug.SetGCPercent(loadingPercent); loading.usual != 100 {
			debug.SetGCPercent(loading.usual)
		}
	}
	loading.Unlock()
	go func() {
		<-loaded
		loading.Lock()
		defer loading.Unlock()
		if loading.servers--; loading.servers == 0 {
			debug.SetGCPercent(loading.usual)
			debug.FreeOSMemory()
		}
	}()
}
