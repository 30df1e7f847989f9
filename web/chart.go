package web

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Chart is a figure over time, drawn as SVG: an area, and a line above it that says how much there is.
type Chart struct {
	Title    string
	Now      string // the figure of now, in words
	From, To time.Time
	Top      float64 // at the upper edge
	TopWords string
	Points   []ChartPoint  // by time
	Gap      time.Duration // between two points that are not joined; 0: all are
}

// ChartPoint is one moment. Of is NaN when there is nothing to compare with.
type ChartPoint struct {
	At    time.Time
	Value float64
	Of    float64
}

const (
	chartWidth  = 320.0
	chartHeight = 64.0
	chartTop    = 14.0 // above it stands what the upper edge is
)

func (c Chart) x(t time.Time) float64 {
	span := c.To.Sub(c.From)
	if span <= 0 {
		return 0
	}
	return min(chartWidth, max(0, chartWidth*float64(t.Sub(c.From))/float64(span)))
}

func (c Chart) y(v float64) float64 {
	if c.Top <= 0 || math.IsNaN(v) {
		return chartTop + chartHeight
	}
	return chartTop + chartHeight*(1-min(1, max(0, v/c.Top)))
}

// runs are the stretches of points without a gap.
func (c Chart) runs() [][]ChartPoint {
	var out [][]ChartPoint
	begin := 0
	for i := range c.Points {
		if i > 0 && c.Gap > 0 && c.Points[i].At.Sub(c.Points[i-1].At) > c.Gap {
			out = append(out, c.Points[begin:i])
			begin = i
		}
	}
	if len(c.Points) > 0 {
		out = append(out, c.Points[begin:])
	}
	return out
}

// areas are the points of a polygon for each stretch, from the axis to the values and back.
func (c Chart) areas() []string {
	var out []string
	for _, run := range c.runs() {
		var b strings.Builder
		fmt.Fprintf(&b, "%.1f,%.1f ", c.x(run[0].At), chartTop+chartHeight)
		for _, p := range run {
			fmt.Fprintf(&b, "%.1f,%.1f ", c.x(p.At), c.y(p.Value))
		}
		last := run[len(run)-1]
		x := c.x(last.At)
		if len(run) == 1 { // one moment alone would be invisible
			x++
			fmt.Fprintf(&b, "%.1f,%.1f ", x, c.y(last.Value))
		}
		fmt.Fprintf(&b, "%.1f,%.1f", x, chartTop+chartHeight)
		out = append(out, b.String())
	}
	return out
}

// limits are the lines of what there is.
func (c Chart) limits() []string {
	var out []string
	for _, run := range c.runs() {
		var b strings.Builder
		for _, p := range run {
			if !math.IsNaN(p.Of) {
				fmt.Fprintf(&b, "%.1f,%.1f ", c.x(p.At), c.y(p.Of))
			}
		}
		if b.Len() > 0 {
			out = append(out, b.String())
		}
	}
	return out
}

// Words says the chart in a sentence.
func (c Chart) Words() string {
	return c.Title + " over " + Brief(c.To.Sub(c.From)) + ": " + c.Now + "; the upper edge is " + c.TopWords
}
