package sched

import "math"

// ByIndex makes a core use its index however few tasks there are.
func (c *Core) ByIndex(cell, walk int) {
	c.sizes = sizes{scan: 1, cell: cell, apart: 20, dirty: 5, step: 40, walk: walk}
}

// ByScan makes a core look at everything: the specification.
func (c *Core) ByScan() { c.sizes = sizes{scan: math.MaxInt} }

// Indexed reports whether the core has built its index.
func (c *Core) Indexed() bool { return c.index != nil }
