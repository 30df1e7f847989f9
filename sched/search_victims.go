package sched

import "slices"

// decide is Decide by the index, for what does not fit as things are; false
// when a scan is as good.
func (x *index) decide(n *newcomer, pool Pool, p *problem) (Decision, bool) {
	c := x.core
	odd := x.oddSeats(n, pool.Cluster)
	best, found, ok := x.one(n, pool.Cluster, p, odd)
	if !ok {
		return Decision{}, false
	}
	if found {
		return c.preempt(n, p, []seat{best}), true
	}
	chosen, short, some, ok := x.several(n, pool.Cluster, p, odd)
	if !ok {
		return Decision{}, false
	}
	if chosen != nil {
		return c.preempt(n, p, p.spare(chosen)), true
	}
	if refusal, never := c.neverFits(n, pool, p); never {
		return refuse(refusal), true
	}
	if !some {
		s := x.begin(n, true, pool.Cluster, want{})
		_, _, some = s.next()
		if s.spent {
			return Decision{}, false
		}
		some = some || len(odd) > 0
	}
	tally := Tally{Considered: len(c.tasks), Uncounted: true}
	if _, live := c.tasks[n.ID]; live {
		tally.Considered--
	}
	return refuse(c.wanting(n, pool, p, short, some, tally)), true
}

// oddSeats are the agents that have to be looked at one by one, best first.
func (x *index) oddSeats(n *newcomer, cluster string) []seat {
	var out []seat
	var tally Tally
	for id := range x.odd {
		if s, ok := x.core.seat(n, id, cluster, &tally); ok {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b seat) int { return a.least.compare(&b.least) })
	return out
}

// walk yields agents best first: those of a search, and odd ones.
type walk struct {
	*search
	odd  []seat
	head seat // of the search; agent nil: not asked for yet
	end  bool
}

func (w *walk) next() (seat, bool) {
	if w.head.agent == nil && !w.end {
		if e, v, ok := w.search.next(); ok {
			w.head = seat{e.agent, v}
		} else {
			w.end = true
		}
	}
	var s seat
	switch {
	case w.spent: // what it did not find may be better than the odd ones
		return seat{}, false
	case len(w.odd) > 0 && (w.end || w.odd[0].least.compare(&w.head.least) < 0):
		s, w.odd = w.odd[0], w.odd[1:]
	case w.end:
		return seat{}, false
	default:
		s, w.head.agent = w.head, nil
	}
	return s, true
}

// one finds the best agent that is enough by itself; see problem.choose.
func (x *index) one(n *newcomer, cluster string, p *problem, odd []seat) (best seat, found, ok bool) {
	need := p.need
	if !p.fitsNow {
		if len(p.spots) == 0 {
			return seat{}, false, true
		}
		lack := p.spots[0].lack // on whatever node, it lacks as much
		for _, s := range p.spots[1:] {
			lack = lack.Min(s.lack)
		}
		need = need.Max(lack)
	}
	w := walk{search: x.begin(n, true, cluster, want{wantAll, need}), odd: odd}
	for {
		s, more := w.next()
		if !more {
			return seat{}, false, !w.spent
		}
		if p.solvedByOne(s) {
			return s, true, true
		}
		w.vain()
	}
}

// several is problem.gather without looking at every agent: what is missing of
// the quota is the same for all nodes at any time, so one walk does for all. It
// returns nil and what is short when there are not enough, and whether there are any.
func (x *index) several(n *newcomer, cluster string, p *problem, odd []seat) (chosen []seat, short Resources, some, ok bool) {
	quota := p.need
	var lacks []Resources // by node, as p.spots; none if there is room anyway
	wanted := quota
	if !p.fitsNow {
		lacks = make([]Resources, len(p.spots))
		for i, s := range p.spots {
			lacks[i] = s.lack
			wanted = wanted.Max(s.lack)
		}
	}
	type step struct {
		seat
		quota bool
		spot  int // where it makes room that is missing; -1: nowhere
	}
	var steps []step
	takenFor := func(spot int) []seat {
		var out []seat
		for i := range steps {
			if steps[i].quota || spot >= 0 && steps[i].spot == spot {
				out = append(out, steps[i].seat)
			}
		}
		return out
	}
	w := walk{search: x.begin(n, true, cluster, want{wantSome, wanted}), odd: odd}
	for {
		s, more := w.next()
		if !more {
			break
		}
		some = true
		gives := s.agent.Gives
		forQuota, spot := gives.Intersects(quota), -1
		if !p.fitsNow {
			if at, here := p.spotOf(s.agent.Node); here && gives.Intersects(lacks[at]) {
				spot = at
			}
		}
		if !forQuota && spot < 0 {
			w.vain()
			continue
		}
		steps = append(steps, step{s, forQuota, spot})
		if forQuota {
			quota = gives.Lacking(quota)
			if p.fitsNow {
				w.want.Resources = quota
			}
		}
		if spot >= 0 {
			lacks[spot] = gives.Lacking(lacks[spot])
		}
		switch {
		case !quota.IsZero():
		case p.fitsNow:
			return takenFor(-1), Resources{}, true, true
		case forQuota: // the last of the quota: the first node that has room by now
			if at := slices.IndexFunc(lacks, Resources.IsZero); at >= 0 {
				return takenFor(at), Resources{}, true, true
			}
		case lacks[spot].IsZero():
			return takenFor(spot), Resources{}, true, true
		}
	}
	if w.spent {
		return nil, Resources{}, some, false
	}
	if !quota.IsZero() || p.fitsNow {
		return nil, quota, some, true
	}
	var nodes nearest
	for _, lack := range lacks {
		nodes.consider(lack, p.request)
	}
	return nil, nodes.lack, some, true
}
