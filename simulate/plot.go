package simulate

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"slices"

	"github.com/schedulemesh/schedulemesh/sched/replay"
)

// The plot: four panels on a light ground, with no script and no font of its own.
const (
	plotWidth, plotHeight = 1200, 830
	ink, faint, grid      = "#1f2933", "#66727f", "#e4e7eb"
)

var colours = []string{"#2563eb", "#d97706", "#059669", "#7c3aed", "#dc2626", "#0891b2"}

// SVG is the report as a plot.
func (r *Report) SVG() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="13" fill="%s">`+"\n",
		plotWidth, plotHeight, ink)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", plotWidth, plotHeight)
	text(&b, 40, 38, `font-size="20" font-weight="600"`, fmt.Sprintf("%s tasks through %s pools", count(r.Tasks), count(int64(r.Pools))))
	text(&b, 40, 60, `fill="`+faint+`"`, fmt.Sprintf("%s simulated · at most %s running and %s waiting at once · %s preemptions (%s by label, %s in the pool, %s across pools) · fairness %.3f",
		period(r.SimulatedSeconds), count(r.PeakRunning), count(r.PeakWaiting), count(r.Preemptions.Total), count(r.Preemptions.Label), count(r.Preemptions.SamePool), count(r.Preemptions.CrossPool), r.Fairness))
	r.plotUse(&b, panel{&b, 80, 110, 480, 270})
	r.plotTasks(&b, panel{&b, 680, 110, 480, 270})
	r.plotCosts(&b, panel{&b, 80, 490, 480, 270})
	r.plotWaits(&b, panel{&b, 680, 490, 480, 270})
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func text(b *bytes.Buffer, x, y float64, attributes, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" %s>%s</text>`+"\n", x, y, attributes, html.EscapeString(s))
}

// panel is where one chart goes: its left, top, width and height.
type panel struct {
	b          *bytes.Buffer
	x, y, w, h float64
}

func (p panel) title(s string) { text(p.b, p.x-40, p.y-16, `font-size="15" font-weight="600"`, s) }

// across draws a line of the grid at height v (0 to 1) with its label.
func (p panel) across(v float64, label string) {
	y := p.y + p.h*(1-v)
	fmt.Fprintf(p.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", p.x, y, p.x+p.w, y, grid)
	text(p.b, p.x-8, y+4, `text-anchor="end" fill="`+faint+`"`, label)
}

// below labels a place (0 to 1) under the chart.
func (p panel) below(v float64, label string) {
	text(p.b, p.x+p.w*v, p.y+p.h+20, `text-anchor="middle" fill="`+faint+`"`, label)
}

// line draws values (0 to 1) at places (0 to 1).
func (p panel) line(colour string, xs, ys []float64, dash string, dots bool) {
	if len(xs) == 0 {
		return
	}
	fmt.Fprintf(p.b, `<polyline fill="none" stroke="%s" stroke-width="2" stroke-linejoin="round"%s points="`, colour, dash)
	for i := range xs {
		fmt.Fprintf(p.b, "%.1f,%.1f ", p.x+p.w*xs[i], p.y+p.h*(1-ys[i]))
	}
	p.b.WriteString(`"/>` + "\n")
	for i := range xs {
		if dots {
			fmt.Fprintf(p.b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", p.x+p.w*xs[i], p.y+p.h*(1-ys[i]), colour)
		}
	}
}

type key struct{ colour, dash, name string }

// keys explains the lines, under the chart.
func (p panel) keys(keys ...key) {
	x := p.x
	for _, k := range keys {
		y := p.y + p.h + 46
		fmt.Fprintf(p.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="3"%s/>`+"\n", x, y-4, x+22, y-4, k.colour, k.dash)
		text(p.b, x+28, y, "", k.name)
		x += 28 + 7.2*float64(len([]rune(k.name))) + 24
	}
}

const dashed = ` stroke-dasharray="5 4"`

// times labels the axis of simulated time, and says where each step lies.
func (r *Report) times(p panel) (xs []float64) {
	n := len(r.Timeline.Running)
	for i := range n {
		xs = append(xs, (float64(i)+.5)/float64(max(n, 1)))
	}
	for i := range 5 {
		at := float64(i) / 4
		p.below(at, hours(at*r.SimulatedSeconds))
	}
	return xs
}

func hours(s float64) string {
	switch {
	case s == 0:
		return "0"
	case s < 7200:
		return fmt.Sprintf("%.0f min", s/60)
	case s < 72*3600:
		return fmt.Sprintf("%.3g h", s/3600)
	}
	return fmt.Sprintf("%.3g days", s/86400)
}

func (r *Report) plotUse(b *bytes.Buffer, p panel) {
	p.title("Capacity held, over simulated time")
	for i := range 5 {
		p.across(float64(i)/4, fmt.Sprintf("%d %%", 25*i))
	}
	xs := r.times(p)
	var keys []key
	for i, u := range r.Utilisation[:min(len(r.Utilisation), len(colours))] {
		ys := make([]float64, len(xs))
		for k, v := range r.Timeline.Use[u.Resource] {
			ys[k] = min(v, 1)
		}
		p.line(colours[i], xs, ys, "", false)
		keys = append(keys, key{colours[i], "", u.Resource})
	}
	p.keys(keys...)
}

func (r *Report) plotTasks(b *bytes.Buffer, p panel) {
	p.title("Tasks, over simulated time")
	most := 1.0
	for i := range r.Timeline.Running {
		most = max(most, r.Timeline.Running[i], r.Timeline.Waiting[i])
	}
	most = round(most)
	for i := range 5 {
		p.across(float64(i)/4, short(most*float64(i)/4))
	}
	xs := r.times(p)
	for i, values := range [][]float64{r.Timeline.Running, r.Timeline.Waiting} {
		ys := make([]float64, len(xs))
		for k, v := range values {
			ys[k] = v / most
		}
		p.line(colours[[]int{2, 4}[i]], xs, ys, "", false)
	}
	p.keys(key{colours[2], "", "running"}, key{colours[4], "", "waiting"})
}

// round is the next number of the kind 1, 2, 2.5, 4, 5 or 8 × 10ⁿ.
func round(v float64) float64 {
	scale := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8} {
		if m*scale >= v {
			return m * scale
		}
	}
	return 10 * scale
}

func short(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.3g M", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%.3g k", v/1e3)
	}
	return fmt.Sprintf("%.3g", v)
}

// decades is the least and the most power of ten around values, at least one apart.
func decades(values []float64) (least, most float64) {
	least, most = math.Floor(math.Log10(slices.Min(values))), math.Ceil(math.Log10(slices.Max(values)))
	return least, max(most, least+1)
}

func (r *Report) plotCosts(b *bytes.Buffer, p panel) {
	p.title("What a decision costs, by the number of live tasks")
	kinds := []struct {
		key
		of    func(*replay.SizeCost) replay.Cost
		cut   func(replay.Cost) float64
		least int64 // decisions, for the figure to say anything
	}{
		{key{colours[2], "", "room, p50"}, func(c *replay.SizeCost) replay.Cost { return c.Fits }, func(c replay.Cost) float64 { return c.P50 }, 20},
		{key{colours[2], dashed, "p99"}, func(c *replay.SizeCost) replay.Cost { return c.Fits }, func(c replay.Cost) float64 { return c.P99 }, 500},
		{key{colours[0], "", "victims sought, p50"}, func(c *replay.SizeCost) replay.Cost { return c.Search }, func(c replay.Cost) float64 { return c.P50 }, 20},
		{key{colours[0], dashed, "p99"}, func(c *replay.SizeCost) replay.Cost { return c.Search }, func(c replay.Cost) float64 { return c.P99 }, 500},
	}
	var sizes []replay.SizeCost
	var all []float64
	for _, c := range r.Costs {
		if c.From < 64 {
			continue
		}
		sizes = append(sizes, c)
		for _, k := range kinds {
			if d := k.of(&c); d.Decisions >= k.least {
				all = append(all, max(k.cut(d), 0.01))
			}
		}
	}
	if len(all) == 0 {
		text(b, p.x, p.y+40, `fill="`+faint+`"`, "too few decisions to tell")
		return
	}
	least, most := decades(all)
	for d := least; d <= most; d++ {
		label := short(math.Pow(10, d)) + " µs"
		if d >= 3 {
			label = short(math.Pow(10, d-3)) + " ms"
		}
		p.across((d-least)/(most-least), label)
	}
	place := func(c *replay.SizeCost) float64 {
		first, last := math.Log2(float64(sizes[0].From)), math.Log2(float64(sizes[len(sizes)-1].Below))
		return (math.Log2(float64(c.From)) + .5 - first) / max(last-first, 1)
	}
	step := max(1, len(sizes)/6)
	for i := range sizes {
		if i%step == 0 {
			p.below(place(&sizes[i]), binary(sizes[i].From))
		}
	}
	var keys []key
	for _, k := range kinds {
		var xs, ys []float64
		for i := range sizes {
			if d := k.of(&sizes[i]); d.Decisions >= k.least {
				xs, ys = append(xs, place(&sizes[i])), append(ys, (math.Log10(max(k.cut(d), 0.01))-least)/(most-least))
			}
		}
		p.line(k.colour, xs, ys, k.dash, true)
		keys = append(keys, k.key)
	}
	p.keys(keys...)
}

func (r *Report) plotWaits(b *bytes.Buffer, p panel) {
	p.title("Time until a task first ran, by priority")
	cuts := []struct {
		name string
		of   func(replay.Waits) float64
	}{
		{"p50", func(w replay.Waits) float64 { return w.P50 }},
		{"p95", func(w replay.Waits) float64 { return w.P95 }},
		{"p99", func(w replay.Waits) float64 { return w.P99 }},
		{"longest", func(w replay.Waits) float64 { return w.Max }},
	}
	var all []float64
	for _, w := range r.Waits {
		for _, c := range cuts {
			if w.Tasks > 0 {
				all = append(all, max(c.of(w), 0.001))
			}
		}
	}
	if len(all) == 0 {
		text(b, p.x, p.y+40, `fill="`+faint+`"`, "no task ran")
		return
	}
	least, most := decades(all)
	for d := least; d <= most; d++ {
		p.across((d-least)/(most-least), period(math.Pow(10, d)))
	}
	group := 1 / float64(len(r.Waits))
	for i, w := range r.Waits {
		p.below((float64(i)+.5)*group, classLabel(w))
		for k, c := range cuts {
			if w.Tasks == 0 {
				continue
			}
			tall := max((math.Log10(max(c.of(w), 0.001))-least)/(most-least), 0.004) * p.h
			width := group * p.w * .8 / float64(len(cuts))
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="1.5" fill="%s"/>`+"\n",
				p.x+p.w*group*(float64(i)+.1)+width*float64(k), p.y+p.h-tall, width-2, tall, []string{"#bfdbfe", "#60a5fa", "#2563eb", "#1e3a8a"}[k])
		}
	}
	p.keys(key{"#bfdbfe", "", "p50"}, key{"#60a5fa", "", "p95"}, key{"#2563eb", "", "p99"}, key{"#1e3a8a", "", "longest"})
}
