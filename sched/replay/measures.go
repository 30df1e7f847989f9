package replay

import (
	"math"
	"math/bits"
	"slices"

	"github.com/schedulemesh/schedulemesh/sched"
)

// measures count what a summary says. What they take does not grow with time.
type measures struct {
	Counts

	classes []class
	refusal map[sched.Code]int64
	lost    sched.Time
	costs   [64]costs // by the bits of the number of live tasks
	upkeep  int64     // nanoseconds of real time for keeping the index up to date

	// Levels now, and over time.
	running, waiting int64
	held             sched.Resources
	capacity         sched.Resources
	names            []string // of resources, as in use
	timeline         timeline
	begin            sched.Time
}

type class struct {
	from  sched.Milli // priority; that of the first does not matter
	waits histogram
}

// costs are nanoseconds of real time that decisions took.
type costs struct {
	fits, search histogram // what fits as things are; what needed victims
}

func (m *measures) init(cfg Config, capacity sched.Resources) {
	m.capacity = capacity
	capacity.Each(func(name string, _ int64) { m.names = append(m.names, name) })
	m.classes = make([]class, len(cfg.Classes)+1)
	for i, from := range cfg.Classes {
		m.classes[i+1].from = from
	}
	m.refusal = map[sched.Code]int64{}
	m.timeline.init(len(m.names))
}

func (m *measures) start(at sched.Time) { m.begin = at }

func (m *measures) classOf(priority sched.Milli) *class {
	at := len(m.classes) - 1
	for at > 0 && priority < m.classes[at].from {
		at--
	}
	return &m.classes[at]
}

func (m *measures) waited(priority sched.Milli, wait sched.Time) {
	m.classOf(priority).waits.add(int64(wait))
}

func (m *measures) preempted(reason sched.Reason, lost sched.Time) {
	m.Preemptions.Total++
	switch reason {
	case sched.ByLabel:
		m.Preemptions.Label++
	case sched.SamePool:
		m.Preemptions.SamePool++
	case sched.CrossPool:
		m.Preemptions.CrossPool++
	}
	m.lost += lost
}

func (m *measures) refused(t *Task, p *pool, code sched.Code) {
	m.refusal[code]++
	if p != nil {
		p.waited += t.Duration
	}
}

// account adds what a job had, once it has ended.
func (r *Replay) account(j *job) {
	if j.Idle {
		return
	}
	j.pool.ran += j.ran
	j.pool.waited += max(r.now-j.At-j.ran, 0)
}

func (m *measures) cost(live int, outcome sched.Outcome, ns int64) {
	c := &m.costs[bits.Len(uint(live))]
	if outcome == sched.Admit {
		c.fits.add(ns)
	} else {
		c.search.add(ns)
	}
}

// pass adds the time from one event to the next to what is kept over time.
func (m *measures) pass(from, to sched.Time) {
	t := &m.timeline
	for t.place(to-m.begin) > len(t.points) {
		t.halve()
	}
	levels := t.levels[:0]
	levels = append(levels, float64(m.running), float64(m.waiting))
	for _, name := range m.names {
		levels = append(levels, float64(m.held.Get(name)))
	}
	t.levels = levels
	for from < to {
		at := (from - m.begin) / t.step
		until := min((at+1)*t.step+m.begin, to)
		point := t.points[at]
		for i, v := range levels {
			point[i] += v * float64(until-from)
		}
		from = until
	}
}

// timeline holds levels, added up over equal steps of time. It never has more
// than so many steps: when the time exceeds them, each two become one.
type timeline struct {
	step   sched.Time
	points [][]float64 // running, waiting, then each resource; times milliseconds
	levels []float64   // reused
}

const timelinePoints = 240

func (t *timeline) init(resources int) {
	t.step = 1_000
	t.points = make([][]float64, timelinePoints)
	for i := range t.points {
		t.points[i] = make([]float64, 2+resources)
	}
}

// place is how many steps so much time takes.
func (t *timeline) place(passed sched.Time) int {
	return int(min((passed+t.step-1)/t.step, math.MaxInt32))
}

func (t *timeline) halve() {
	for i := range t.points {
		if i >= len(t.points)/2 {
			clear(t.points[i])
			continue
		}
		a, b := t.points[2*i], t.points[2*i+1]
		for k := range a {
			t.points[i][k] = a[k] + b[k]
		}
	}
	t.step *= 2
}

// histogram counts amounts in steps of about 1.5 %: each power of two has 64.
type histogram struct {
	counts   []int64
	n        int64
	sum, max int64
}

const fine = 6 // bits

func (h *histogram) add(v int64) {
	v = max(v, 0)
	at := int(v)
	if v >= 1<<fine {
		shift := bits.Len64(uint64(v)) - fine - 1
		at = (shift+1)<<fine + int(v>>shift) - 1<<fine
	}
	if at >= len(h.counts) {
		h.counts = append(h.counts, make([]int64, at+1-len(h.counts))...)
	}
	h.counts[at]++
	h.n++
	h.sum += v
	h.max = max(h.max, v)
}

// quantile is the largest amount of the step in which the q-th lies, but at most the maximum.
func (h *histogram) quantile(q float64) int64 {
	rank := int64(math.Ceil(q * float64(h.n)))
	for at, n := range h.counts {
		if rank -= n; rank <= 0 && h.n > 0 {
			if at < 1<<fine {
				return int64(at)
			}
			shift := at>>fine - 1
			return min((int64(at&(1<<fine-1))+1<<fine+1)<<shift-1, h.max)
		}
	}
	return 0
}

func (h *histogram) mean() float64 {
	if h.n == 0 {
		return 0
	}
	return float64(h.sum) / float64(h.n)
}

func seconds(t sched.Time) float64 { return float64(t) / 1000 }

// jain is Jain's index of fairness: (Σx)² / n·Σx², 1 when all are equal and 1/n when
// one has everything. It sorts, so that the same shares give the same sum.
func jain(shares []float64) float64 {
	if len(shares) == 0 {
		return 1
	}
	slices.Sort(shares)
	var sum, squares float64
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(shares)) * squares)
}
