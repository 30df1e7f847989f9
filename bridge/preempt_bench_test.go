package bridge_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
	"github.com/schedulemesh/schedulemesh/bridge/bridgetest"
)

// BenchmarkPreempt takes an agent's whole node for another: cancel, save, kill until seen gone, launch
// with the saved state until ready. Run it with -benchtime=10x; it waits between rounds, off the clock,
// for spare workers to start.
func BenchmarkPreempt(b *testing.B) {
	bridgetest.Need(b)
	for name, env := range map[string]string{"plain": ``, "runtime_env": `{"env_vars": {"BENCH": "1"}}`} {
		b.Run(name, func(b *testing.B) {
			deployment := bridgetest.Deployment("bench")
			sidecar := bridgetest.Real(b, deployment).Bridge()
			launch := func(i int, state json.RawMessage) bridge.Launched {
				l, err := sidecar.Launch(b.Context(), bridge.LaunchRequest{
					LaunchID: fmt.Sprint(deployment, "/", i), AgentName: "a", ClassPath: "schedulemesh.testing.agents:Counter",
					Resources: bridge.Resources{"cpu": 1000}, RuntimeEnv: json.RawMessage(env), SavedState: state,
				})
				if err != nil {
					b.Fatal(err)
				}
				return l
			}
			var spent [4]time.Duration
			warm, i := 0, 0
			last := launch(0, nil)
			for b.Loop() {
				b.StopTimer()
				if err := sidecar.Run(b.Context(), last.LaunchID, bridge.Entry{Method: "run"}); err != nil {
					b.Fatal(err)
				}
				time.Sleep(1500 * time.Millisecond)
				b.StartTimer()
				times := [5]time.Time{time.Now()}
				if r, err := sidecar.Cancel(b.Context(), last.LaunchID, "t", 5*time.Second); err != nil || !r.Success {
					b.Fatal(r, err)
				}
				times[1] = time.Now()
				saved, err := sidecar.SaveState(b.Context(), last.LaunchID, 5*time.Second)
				if err != nil {
					b.Fatal(err)
				}
				times[2] = time.Now()
				if err := sidecar.Kill(b.Context(), last.LaunchID, 5*time.Second); err != nil {
					b.Fatal(err)
				}
				times[3] = time.Now()
				i++
				last = launch(i, saved.State)
				times[4] = time.Now()
				for k := range spent {
					spent[k] += times[k+1].Sub(times[k])
				}
				if last.Warm {
					warm++
				}
			}
			b.StopTimer()
			if err := sidecar.Kill(b.Context(), last.LaunchID, 5*time.Second); err != nil {
				b.Fatal(err)
			}
			for k, what := range []string{"cancel", "save", "kill", "launch"} {
				b.ReportMetric(float64(spent[k].Microseconds())/1000/float64(b.N), what+"-ms")
			}
			b.ReportMetric(float64(warm)/float64(b.N), "warm")
		})
	}
}
