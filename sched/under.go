package sched

// Under returns a view of the core in which another policy is in force; it must
// be valid. Ask the view whatever a core can be asked, but put nothing into it:
// it shares all of the live state, sees what is put into the core, and changes
// neither the core nor its index. Like the core it belongs to one goroutine.
//
// Making a view costs next to nothing, and answers through it are exact. They
// come as quickly as the core's own under other thresholds, switches, limits and
// protected pools. With another weight of remaining time, or label rules that
// speak of values the policy in force does not, the index knows less about what
// lies where, and more has to be looked at: at worst each task once.
func (c *Core) Under(p Policy) *Core {
	view := *c
	if view.live == nil {
		view.live = c
	}
	view.policy, view.rules = p, compile(p)
	view.index, view.spots = nil, nil
	return &view
}
