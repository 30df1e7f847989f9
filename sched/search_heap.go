package sched

func (s *search) heapify() {
	for i := len(s.heap)/2 - 1; i >= 0; i-- {
		s.down(i)
	}
}

func (s *search) push(o open) {
	s.heap = append(s.heap, o)
	h, i := s.heap, len(s.heap)-1
	for i > 0 {
		up := (i - 1) / 2
		if !o.before(&h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = o
}

func (s *search) pop() open {
	top := s.heap[0]
	last := len(s.heap) - 1
	s.heap[0] = s.heap[last]
	s.heap[last] = open{}
	s.heap = s.heap[:last]
	if last > 0 {
		s.down(0)
	}
	return top
}

func (s *search) down(i int) {
	h := s.heap
	o := h[i]
	for {
		kid := 2*i + 1
		if kid >= len(h) {
			break
		}
		if kid+1 < len(h) && h[kid+1].before(&h[kid]) {
			kid++
		}
		if !h[kid].before(&o) {
			break
		}
		h[i] = h[kid]
		i = kid
	}
	h[i] = o
}
