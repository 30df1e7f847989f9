package sched

func (s *search) heapify() {
	for i := len(s.heap)/2 - 1; i >= 0; i-- {
		s.down(i)
	}
}

// push keeps what may hold the next answer: the best in the hand, where it is
// often played at once.
func (s *search) push(o open) {
	if s.hand.e == nil {
		s.hand = o
		return
	}
	if o.before(&s.hand) {
		o, s.hand = s.hand, o
	}
	s.up(o)
}

func (s *search) up(o open) {
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

// pop takes the best of all.
func (s *search) pop() (top open, ok bool) {
	if s.hand.e != nil {
		top, s.hand.e = s.hand, nil
		if len(s.heap) == 0 || top.before(&s.heap[0]) {
			return top, true
		}
		top, s.heap[0] = s.heap[0], top
		s.down(0)
		return top, true
	}
	if len(s.heap) == 0 {
		return open{}, false
	}
	top = s.heap[0]
	last := len(s.heap) - 1
	s.heap[0] = s.heap[last]
	s.heap[last] = open{}
	s.heap = s.heap[:last]
	if last > 0 {
		s.down(0)
	}
	return top, true
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
