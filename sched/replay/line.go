package replay

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/schedulemesh/schedulemesh/sched"
)

// line is who waits for a pool, best first: higher priority, then who waits longest.
type line []*job

func inLine(a, b *job) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.At, b.At), bytes.Compare(a.id[:], b.id[:]))
}

func (l *line) add(j *job) {
	at, _ := slices.BinarySearchFunc(*l, j, inLine)
	*l = slices.Insert(*l, at, j)
}

func (l *line) remove(j *job) {
	if at, found := slices.BinarySearchFunc(*l, j, inLine); found {
		*l = slices.Delete(*l, at, at+1)
	}
}

// goesFirst reports whether somebody waits already with at least this priority.
func (l line) goesFirst(j *job) bool { return len(l) > 0 && l[0].Priority >= j.Priority }

// admitLine lets the head of a pool's line start while there is room for it.
func (r *Replay) admitLine(p *pool) {
	for len(p.line) > 0 {
		j := p.line[0]
		d := r.decide(j)
		if d.Outcome == sched.Refuse {
			return
		}
		r.leave(j)
		r.grant(j, d)
	}
}
