package simulate

// SVG is the report as a plot.
func (r *Report) SVG() []byte { return nil }
