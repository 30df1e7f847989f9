package replay

import "github.com/schedulemesh/schedulemesh/sched"

// dueHeap holds the jobs to which something will happen, the next one first. A
// job waits for one thing at a time, so it is in the heap at most once.
type dueHeap []*job

// schedule sets when something happens to a job, whatever was set before.
func (r *Replay) schedule(j *job, at sched.Time) {
	if j.slot >= 0 {
		r.due.remove(j)
	}
	r.turn++
	j.at, j.turn = at, r.turn
	j.slot = len(r.due)
	r.due = append(r.due, j)
	r.due.up(j.slot)
}

func (h dueHeap) before(i, k int) bool {
	if h[i].at != h[k].at {
		return h[i].at < h[k].at
	}
	return h[i].turn < h[k].turn
}

func (h dueHeap) swap(i, k int) {
	h[i], h[k] = h[k], h[i]
	h[i].slot, h[k].slot = i, k
}

func (h dueHeap) up(i int) {
	for i > 0 && h.before(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h dueHeap) down(i int) {
	for {
		kid := 2*i + 1
		if kid >= len(h) {
			return
		}
		if kid+1 < len(h) && h.before(kid+1, kid) {
			kid++
		}
		if !h.before(kid, i) {
			return
		}
		h.swap(i, kid)
		i = kid
	}
}

// remove takes a job out, wherever it is.
func (h *dueHeap) remove(j *job) {
	i, last := j.slot, len(*h)-1
	if i != last {
		h.swap(i, last)
	}
	(*h)[last] = nil
	*h = (*h)[:last]
	j.slot = -1
	if i != last {
		h.down(i)
		h.up(i)
	}
}
