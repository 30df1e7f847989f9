package replay

import (
	"maps"

	"github.com/schedulemesh/schedulemesh/sched"
)

// Counts are what happened, in numbers.
type Counts struct {
	Tasks     int64 `json:"tasks"`     // submitted
	Admitted  int64 `json:"admitted"`  // times a task got its room, again after a preemption too
	Completed int64 `json:"completed"` // tasks that did all their work
	Stopped   int64 `json:"stopped"`   // tasks that were preempted for good
	TimedOut  int64 `json:"timed_out"` // tasks that left the queue, out of patience
	Loans     int64 `json:"loans"`     // times a pool lent to another

	Preemptions Preemptions `json:"preemptions"`
	// HandoverSeconds is task-seconds for which victims held their room without working.
	HandoverSeconds float64 `json:"handover_seconds"`

	PeakLive    int64 `json:"peak_live"` // tasks with room: running, and on their way in
	PeakRunning int64 `json:"peak_running"`
	PeakWaiting int64 `json:"peak_waiting"`
}

// Preemptions are tasks that made way, by the rule that let them.
type Preemptions struct {
	Total     int64 `json:"total"`
	Label     int64 `json:"label"`
	SamePool  int64 `json:"same_pool"`
	CrossPool int64 `json:"cross_pool"`
}

// Summary is what a replay came to.
type Summary struct {
	Counts
	// Refused tasks, by code.
	Refused map[sched.Code]int64 `json:"refused"`
	// Unfinished tasks were still there in the end.
	Unfinished int64 `json:"unfinished"`
	// SimulatedSeconds is from the first arrival to the end.
	SimulatedSeconds float64 `json:"simulated_seconds"`
	Waits            []Waits `json:"waits"`
	// WorkLostSeconds is task-seconds that were run in vain: of a task that goes on later,
	// what it did since its state was saved last; of one that does not, all it did.
	WorkLostSeconds float64 `json:"work_lost_seconds"`
	// Fairness is Jain's index over the pools with any demand: each pool's share is the
	// task-seconds its tasks ran, of those for which they ran or waited to run. A
	// refused task counts as having waited for as long as it would have run.
	Fairness    float64    `json:"fairness"`
	Utilisation []Use      `json:"utilisation"`
	Timeline    Timeline   `json:"timeline"`
	Costs       []SizeCost `json:"decision_costs,omitempty"`
	// UpkeepSeconds is real time for bringing the index up to date before searches.
	UpkeepSeconds float64 `json:"index_upkeep_seconds,omitempty"`
}

// Waits are how long tasks of some priorities waited, in seconds, from their arrival
// until they first ran. Quantiles are exact to 1.6 %.
type Waits struct {
	From  *sched.Milli `json:"from"` // the least priority; null: none
	Below *sched.Milli `json:"below"`
	Tasks int64        `json:"tasks"` // that ran
	Mean  float64      `json:"mean_seconds"`
	P50   float64      `json:"p50_seconds"`
	P95   float64      `json:"p95_seconds"`
	P99   float64      `json:"p99_seconds"`
	Max   float64      `json:"max_seconds"`
	// StillWaiting never ran until the end.
	StillWaiting int64 `json:"still_waiting"`
}

// Use is how much of all pools' capacity was held.
type Use struct {
	Resource string  `json:"resource"`
	Mean     float64 `json:"mean"` // 0 to 1
	Peak     float64 `json:"peak"` // of the timeline's steps
}

// Timeline has means over equal steps of simulated time.
type Timeline struct {
	StepSeconds float64              `json:"step_seconds"`
	Running     []float64            `json:"running"`
	Waiting     []float64            `json:"waiting"`
	Use         map[string][]float64 `json:"use"` // by resource, 0 to 1
}

// SizeCost is what decisions cost while there were so many live tasks, in
// microseconds of real time.
type SizeCost struct {
	From   int  `json:"live_from"`
	Below  int  `json:"live_below"`
	Fits   Cost `json:"fits"`   // there was room
	Search Cost `json:"search"` // victims were looked for
}

// Cost is of one kind of decision.
type Cost struct {
	Decisions int64   `json:"decisions"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	Max       float64 `json:"max_us"`
}

// Summary says what came of it so far.
func (r *Replay) Summary() Summary {
	s := Summary{Counts: r.Counts, Refused: maps.Clone(r.refusal), Unfinished: int64(len(r.live)),
		SimulatedSeconds: seconds(r.now - r.begin), WorkLostSeconds: seconds(r.lost), UpkeepSeconds: float64(r.upkeep) / 1e9}
	still := make([]int64, len(r.classes))
	ran, waited := map[*pool]sched.Time{}, map[*pool]sched.Time{}
	for _, j := range r.live {
		if j.Idle {
			continue
		}
		did := j.ran
		if j.state == running {
			did += r.now - j.started
		}
		ran[j.pool] += did
		waited[j.pool] += max(r.now-j.At-did, 0)
		if !j.everRan {
			for i := range r.classes {
				if &r.classes[i] == r.classOf(j.Priority) {
					still[i]++
				}
			}
		}
	}
	for i := range r.classes {
		h := &r.classes[i].waits
		w := Waits{Tasks: h.n, Mean: h.mean() / 1000, P50: float64(h.quantile(.5)) / 1000, P95: float64(h.quantile(.95)) / 1000,
			P99: float64(h.quantile(.99)) / 1000, Max: float64(h.max) / 1000, StillWaiting: still[i]}
		if i > 0 {
			w.From = &r.classes[i].from
		}
		if i+1 < len(r.classes) {
			w.Below = &r.classes[i+1].from
		}
		s.Waits = append(s.Waits, w)
	}
	var shares []float64
	for _, p := range r.pools {
		did, did2 := p.ran+ran[p], p.waited+waited[p]
		if did+did2 > 0 {
			shares = append(shares, float64(did)/float64(did+did2))
		}
	}
	s.Fairness = jain(shares)
	r.overTime(&s)
	for b := range r.costs {
		c := &r.costs[b]
		if c.fits.n+c.search.n > 0 {
			s.Costs = append(s.Costs, SizeCost{From: 1 << b >> 1, Below: 1 << b, Fits: c.fits.cost(), Search: c.search.cost()})
		}
	}
	return s
}

func (h *histogram) cost() Cost {
	us := func(ns int64) float64 { return float64(ns) / 1000 }
	return Cost{Decisions: h.n, P50: us(h.quantile(.5)), P99: us(h.quantile(.99)), Max: us(h.max)}
}

func (r *Replay) overTime(s *Summary) {
	t := &r.timeline
	passed := r.now - r.begin
	s.Timeline = Timeline{StepSeconds: seconds(t.step), Use: map[string][]float64{}}
	points := t.points[:t.place(passed)]
	for _, name := range r.names {
		s.Utilisation = append(s.Utilisation, Use{Resource: name})
	}
	for i, point := range points {
		length := float64(min(t.step, passed-sched.Time(i)*t.step))
		s.Timeline.Running = append(s.Timeline.Running, point[0]/length)
		s.Timeline.Waiting = append(s.Timeline.Waiting, point[1]/length)
		for k, name := range r.names {
			whole := float64(r.capacity.Get(name))
			use := point[2+k] / (length * whole)
			s.Timeline.Use[name] = append(s.Timeline.Use[name], use)
			u := &s.Utilisation[k]
			u.Mean += point[2+k]
			u.Peak = max(u.Peak, use)
		}
	}
	for k, name := range r.names {
		if passed > 0 {
			s.Utilisation[k].Mean /= float64(passed) * float64(r.capacity.Get(name))
		}
	}
}
