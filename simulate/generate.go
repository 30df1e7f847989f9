package simulate

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/sched/replay"
)

// DurationSpec draws how long a task runs: a duration, or one of
// {exponential: mean}, {uniform: [least, most]}, {lognormal: [median, sigma]}, with
// least and most beside it as bounds.
type DurationSpec struct {
	mean        func(*rand.Rand) float64 // draws milliseconds
	least, most sched.Time
}

// UnmarshalYAML reads any of them.
func (d *DurationSpec) UnmarshalYAML(read func(any) error) error {
	var fixed Duration
	if err := read(&fixed); err == nil {
		d.most = maxDuration
		d.mean = func(*rand.Rand) float64 { return float64(fixed) }
		return nil
	}
	var v struct {
		Exponential *Duration  `yaml:"exponential"`
		Uniform     []Duration `yaml:"uniform"`
		Lognormal   []any      `yaml:"lognormal"`
		Least       Duration   `yaml:"least"`
		Most        *Duration  `yaml:"most"`
	}
	const want = "a duration must be like 10m, or one of {exponential: 10m}, {uniform: [1m, 10m]}, {lognormal: [10m, 1.2]}, with least and most beside it if need be"
	if err := read(&v); err != nil {
		return errors.New(want)
	}
	d.least, d.most = sched.Time(v.Least), maxDuration
	if v.Most != nil {
		d.most = sched.Time(*v.Most)
	}
	if d.least > d.most {
		return fmt.Errorf("least %v is more than most %v", v.Least, Duration(d.most))
	}
	given := 0
	if v.Exponential != nil {
		given++
		d.mean = func(r *rand.Rand) float64 { return r.ExpFloat64() * float64(*v.Exponential) }
	}
	if v.Uniform != nil {
		given++
		if len(v.Uniform) != 2 || v.Uniform[0] > v.Uniform[1] {
			return errors.New(want)
		}
		d.mean = func(r *rand.Rand) float64 {
			return float64(v.Uniform[0]) + r.Float64()*float64(v.Uniform[1]-v.Uniform[0])
		}
	}
	if v.Lognormal != nil {
		given++
		if len(v.Lognormal) != 2 {
			return errors.New(want)
		}
		median, err := milliseconds(v.Lognormal[0])
		sigma, err2 := strconv.ParseFloat(fmt.Sprint(v.Lognormal[1]), 64)
		if err != nil || err2 != nil || !(sigma >= 0 && sigma <= 5) {
			return errors.New(want + "; sigma from 0 to 5")
		}
		d.mean = func(r *rand.Rand) float64 { return float64(median) * math.Exp(sigma*r.NormFloat64()) }
	}
	if given != 1 {
		return errors.New(want)
	}
	return nil
}

const maxDuration sched.Time = 1_000_000_000_000

func (d *DurationSpec) draw(r *rand.Rand) sched.Time {
	return min(max(sched.Time(min(d.mean(r), float64(maxDuration))), d.least), d.most)
}

// Estimate is what tasks say of their duration: none, exact, or {error: 0.3}, which
// is off by so much up or down.
type Estimate struct {
	given bool
	off   float64
}

// UnmarshalYAML reads any of them.
func (e *Estimate) UnmarshalYAML(read func(any) error) error {
	var word string
	if err := read(&word); err == nil && (word == "none" || word == "exact") {
		e.given = word == "exact"
		return nil
	}
	var v map[string]float64
	if err := read(&v); err != nil || len(v) != 1 || !(v["error"] > 0 && v["error"] < 1) {
		return errors.New("an estimate must be none, exact, or {error: E} with E between 0 and 1")
	}
	e.given, e.off = true, v["error"]
	return nil
}

// generator makes the tasks of a workload, one after the other.
type generator struct {
	w      *Workload
	r      *rand.Rand
	pools  []string
	upTo   []float64 // of the pools' weights
	kinds  []float64 // of the kinds' shares
	labels map[string]sched.Labels
	asks   [][]sched.Resources
	rate   float64 // a millisecond, outside of bursts
	at     float64
	made   int
}

func newGenerator(w *Workload, pools []replay.Pool, seed uint64) *generator {
	g := &generator{w: w, r: rand.New(rand.NewPCG(seed, 0x5eed)), labels: map[string]sched.Labels{}}
	sum := 0.0
	for i, p := range pools {
		sum += math.Pow(float64(i+1), -w.Pools.Skew)
		g.pools, g.upTo = append(g.pools, p.Name), append(g.upTo, sum)
	}
	sum = 0
	for i := range w.Kinds {
		sum += w.Kinds[i].Share
		g.kinds = append(g.kinds, sum)
		var asks []sched.Resources
		for _, r := range w.Kinds[i].Request {
			asks = append(asks, r.resources())
		}
		g.asks = append(g.asks, asks)
	}
	g.rate = w.Arrivals.Rate / 1000
	if g.rate == 0 {
		g.rate = g.rateOf(w.Arrivals.Load, pools)
	}
	if b := w.Arrivals.Burst; b.Times > 0 {
		inside := float64(b.For) / float64(b.Every)
		g.rate /= inside*b.Times + 1 - inside
	}
	return g
}

// rateOf is how many tasks a millisecond make the load, found by drawing some.
func (g *generator) rateOf(load float64, pools []replay.Pool) float64 {
	var capacity sched.Resources
	for _, p := range pools {
		capacity = capacity.Add(p.Capacity)
	}
	r := rand.New(rand.NewPCG(1, 1))
	const draws = 200_000
	used := map[string]float64{}
	for range draws {
		kind := pick(g.kinds, r.Float64())
		asks := g.asks[kind]
		runs := float64(g.w.Kinds[kind].Duration.draw(r))
		asks[r.IntN(len(asks))].Each(func(name string, v int64) {
			if whole := capacity.Get(name); whole > 0 {
				used[name] += runs * float64(v) / float64(whole) / draws
			}
		})
	}
	most := 0.0
	for _, v := range used {
		most = max(most, v)
	}
	if most == 0 {
		return 1
	}
	return load / most
}

// pick finds where a number from 0 to 1 falls among sums of weights.
func pick(upTo []float64, x float64) int {
	at, _ := slices.BinarySearch(upTo, x*upTo[len(upTo)-1])
	return min(at, len(upTo)-1)
}

// next makes a task; false when all are made.
func (g *generator) next() (replay.Task, bool) {
	if g.made >= g.w.Tasks {
		return replay.Task{}, false
	}
	g.made++
	rate := g.rate
	if b := g.w.Arrivals.Burst; b.Times > 0 && math.Mod(g.at, float64(b.Every)) >= float64(b.Every-b.For) {
		rate *= b.Times
	}
	if g.w.Arrivals.Process == "even" {
		g.at += 1 / rate
	} else {
		g.at += g.r.ExpFloat64() / rate
	}
	kind := pick(g.kinds, g.r.Float64())
	k := &g.w.Kinds[kind]
	asks := g.asks[kind]
	t := replay.Task{
		Name: "t" + strconv.Itoa(g.made), At: sched.Time(min(g.at, 1e14)), Pool: g.pools[pick(g.upTo, g.r.Float64())],
		Request: asks[g.r.IntN(len(asks))], Labels: g.labelsOf(k), Duration: k.Duration.draw(g.r),
		Queue: k.OnInsufficient == "queue", Requeue: k.OnPreempted == "requeue",
		Patience: sched.Time(k.QueueTimeout), Checkpoint: sched.Time(k.Checkpoint),
	}
	priority := k.Priority.least + g.r.Float64()*(k.Priority.most-k.Priority.least)
	t.Priority = sched.Milli(math.Round(priority*10)) * 100
	if k.Estimate.given {
		t.Estimate = max(sched.Time(float64(t.Duration)*(1+k.Estimate.off*(2*g.r.Float64()-1))), 1)
	}
	return t, true
}

// labelsOf draws labels; tasks with the same ones share them.
func (g *generator) labelsOf(k *Kind) sched.Labels {
	if len(k.Labels) == 0 {
		return nil
	}
	drawn := sched.Labels{}
	key := ""
	for _, name := range slices.Sorted(maps.Keys(k.Labels)) {
		c := k.Labels[name]
		drawn[name] = c.values[pick(c.upTo, g.r.Float64())]
		key += name + "\x00" + drawn[name] + "\x00"
	}
	if known, ok := g.labels[key]; ok {
		return known
	}
	g.labels[key] = drawn
	return drawn
}
