package web

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestAChartStaysInItsBoxAndBreaksWhereNothingIsKnown(t *testing.T) {
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := Chart{Title: "CPU in use", Now: "2 of 4", From: from, To: from.Add(time.Hour), Top: 4, TopWords: "4", Gap: 2 * time.Minute}
	for _, m := range []int{-5, 0, 1, 2, 30, 31, 60} {
		c.Points = append(c.Points, ChartPoint{from.Add(time.Duration(m) * time.Minute), float64(m), 4})
	}
	areas := c.areas()
	if len(areas) != 4 || len(c.limits()) != 4 {
		t.Fatalf("%d areas, %d lines, want 4: before, the start, the middle, the end", len(areas), len(c.limits()))
	}
	for _, a := range areas {
		if strings.Contains(a, "-") || strings.Contains(a, "NaN") {
			t.Errorf("%s leaves the box", a)
		}
	}
	if !strings.HasPrefix(areas[1], "0.0,78.0 0.0,78.0 5.3,62.0 10.7,46.0") {
		t.Errorf("the start is %s", areas[1])
	}
	for i := range c.Points {
		c.Points[i].Of = math.NaN()
	}
	if len(c.limits()) != 0 {
		t.Error("a line is drawn that nobody asked for")
	}
	empty := Chart{}
	if len(empty.areas()) != 0 || empty.y(3) != 78 || empty.x(from) != 0 {
		t.Error("an empty chart draws something")
	}
}

func TestRoomIsToldAsItIsCounted(t *testing.T) {
	r := Room{Resource: "cpu", Total: 4000, Jobs: 1500, Others: 500, Coming: 3000}
	if got := r.Words(); got != "CPU: 1.5 used by jobs, 0.5 by others, 3 on the way; of 4, 1 more than it has" {
		t.Error(got)
	}
	if r.Sum() != "0 of 4 free" {
		t.Error(r.Sum())
	}
	x := 0.0
	for _, s := range r.Segments() {
		if s.X != x {
			t.Errorf("%s begins at %v, want %v", s.Kind, s.X, x)
		}
		x += s.W
	}
	if math.Abs(x-100) > 1e-9 {
		t.Errorf("the bar is %v %% long", x)
	}
}
