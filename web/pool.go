package web

import (
	"fmt"
	"time"
)

// Pool is a pool in a list, or the head of its page.
type Pool struct {
	Name      string
	Cluster   string
	Labels    []Label
	Protected bool // by the active policy: nothing of it is taken from another pool
	Quota     []Quota
	Running   int
	Queued    int
	Stuck     Line // why its queue cannot move; empty when it can, or is empty
	Hold      Hold
}

// Quota is one resource of a pool, in the resource's unit (see Resources).
type Quota struct {
	Resource                                 string
	Capacity, Used, Reserved, Borrowed, Lent int64
}

// Free is what nobody holds; negative after a pool was shrunk below what is held.
func (q Quota) Free() int64 { return q.Capacity + q.Borrowed - q.Lent - q.Used - q.Reserved }

// Sum is the figure beside the bar: held / capacity + borrowed − lent.
func (q Quota) Sum() string {
	write, unit := func(n int64) string { return Amount(q.Resource, n) }, ""
	if q.Resource == "memory" { // all in one unit, written once
		write, unit = memoryIn(max(q.Capacity, q.Used+q.Reserved))
	}
	s := write(q.Used+q.Reserved) + " / " + write(q.Capacity)
	if q.Borrowed > 0 {
		s += " + " + write(q.Borrowed)
	}
	if q.Lent > 0 {
		s += " − " + write(q.Lent)
	}
	return s + unit
}

// Words says the bar in a sentence.
func (q Quota) Words() string {
	a := func(n int64) string { return Amount(q.Resource, n) }
	s := fmt.Sprintf("%s: %s used", ResourceName(q.Resource), a(q.Used))
	if q.Reserved > 0 {
		s += fmt.Sprintf(", %s reserved", a(q.Reserved))
	}
	s += fmt.Sprintf(" of %s", a(q.Capacity))
	if q.Borrowed > 0 {
		s += fmt.Sprintf(" plus %s borrowed", a(q.Borrowed))
	}
	if q.Lent > 0 {
		s += fmt.Sprintf(", %s lent out", a(q.Lent))
	}
	if f := q.Free(); f < 0 {
		return s + fmt.Sprintf("; %s more than it has", a(-f))
	}
	return s + fmt.Sprintf("; %s free", a(q.Free()))
}

// Segment is a stretch of a bar in percent of its width.
type Segment struct {
	Kind string // used, reserved, lent, borrowed: also the class
	X, W float64
}

// Segments lays the bar out from left to right: used, reserved, what is free, then what is lent
// out at the end of the capacity, then what is borrowed beyond it.
func (q Quota) Segments() []Segment {
	held := q.Used + q.Reserved
	total := max(q.Capacity+q.Borrowed, held+q.Lent, 1)
	own := max(q.Capacity-q.Lent, held-q.Borrowed, 0) // room before the lent and borrowed stretches
	pct := func(n int64) float64 { return float64(n) * 100 / float64(total) }
	used := min(q.Used, own)
	reserved := min(q.Reserved, own-used)
	all := []Segment{
		{"used", 0, pct(used)},
		{"reserved", pct(used), pct(reserved)},
		{"lent", pct(own), pct(q.Lent)},
		{"borrowed", pct(own + q.Lent), pct(q.Borrowed)},
	}
	out := all[:0]
	for _, s := range all {
		if s.W > 0 {
			out = append(out, s)
		}
	}
	return out
}

// Loan is quota of one pool in use by another.
type Loan struct {
	From, To string
	Amount   Resources
	Since    time.Time // zero when not known
}

// PoolPage is one pool.
type PoolPage struct {
	Pool
	Loans       []Loan    // both ways
	Queue       []TaskRow // a page of its line, in order
	Behind      int       // how many stand in line before that page
	InLine      int       // how many stand in line in all; others that are queued are tried again later
	Tasks       []TaskRow // those that hold quota, best first; at most a page
	Holding     int       // how many hold quota in all
	Agents      int
	DefaultSize Resources // capacity / target_agents
	Created     time.Time
	Settings    PoolForm // what the edit form starts from
	Notes       []Note
	Groups      Groups
}
