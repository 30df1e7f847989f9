package simulate

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/sched/replay"
)

// WriteTable prints the report for people.
func (r *Report) WriteTable(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	defer w.Flush()
	row := func(cells ...any) {
		for _, c := range cells {
			fmt.Fprintf(w, "%v\t", c)
		}
		fmt.Fprintln(w)
	}
	head := func(format string, args ...any) {
		_ = w.Flush() // columns of one table do not widen another's
		fmt.Fprintf(out, "\n"+format+"\n", args...)
	}
	fmt.Fprintf(out, "%s tasks through %s pools: %s simulated, %.1f s real, %d MiB of memory at most\n", count(r.Tasks), count(int64(r.Pools)),
		period(r.SimulatedSeconds), r.Machine.WallSeconds, r.Machine.PeakHeapBytes>>20)

	head("What became of them")
	row("completed", count(r.Completed))
	row("preempted for good", count(r.Stopped))
	row("left the queue", count(r.TimedOut))
	for _, code := range slices.Sorted(maps.Keys(r.Refused)) {
		row("refused: "+strings.ReplaceAll(string(code), "_", " "), count(r.Refused[code]))
	}
	row("still there", count(r.Unfinished))
	row("most running at once", count(r.PeakRunning))
	row("most waiting at once", count(r.PeakWaiting))

	head("What a decision costs, in µs of real time")
	row("live tasks", "there is room", "p50", "p99", "looks for victims", "p50", "p99")
	for _, c := range r.Costs {
		if c.Fits.Decisions+c.Search.Decisions >= 100 {
			row(sizeLabel(c.From, c.Below), count(c.Fits.Decisions), micros(c.Fits, c.Fits.P50), micros(c.Fits, c.Fits.P99),
				count(c.Search.Decisions), micros(c.Search, c.Search.P50), micros(c.Search, c.Search.P99))
		}
	}

	_ = w.Flush()
	fmt.Fprintf(out, "and %.1f µs a task for keeping the index up to date\n", 1e6*r.UpkeepSeconds/float64(max(r.Tasks, 1)))

	head("Time until a task first ran")
	row("priority", "tasks", "mean", "p50", "p95", "p99", "max", "never ran")
	for _, c := range r.Waits {
		row(classLabel(c), count(c.Tasks), period(c.Mean), period(c.P50), period(c.P95), period(c.P99), period(c.Max), count(c.StillWaiting))
	}

	head("Preemptions")
	p := r.Preemptions
	row("by label", count(p.Label))
	row("in the same pool", count(p.SamePool))
	row("across pools", count(p.CrossPool))
	row("all", count(p.Total))
	row("work lost", fmt.Sprintf("%s task-hours", count(int64(r.WorkLostSeconds/3600))))
	row("room held in handovers", fmt.Sprintf("%s task-hours", count(int64(r.HandoverSeconds/3600))))

	head("Capacity held")
	row("resource", "mean", "peak")
	for _, u := range r.Utilisation {
		row(u.Resource, fmt.Sprintf("%.1f %%", 100*u.Mean), fmt.Sprintf("%.1f %%", 100*u.Peak))
	}
	row("fairness among pools", fmt.Sprintf("%.3f", r.Fairness))
}

func micros(c replay.Cost, us float64) string {
	if c.Decisions == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f", us)
}

// sizeLabel writes 65536 to 131072 as "64 k – 128 k".
func sizeLabel(from, below int) string { return binary(from) + " – " + binary(below) }

// binary writes a power of two: 2¹⁰ is a k, 2²⁰ an M.
func binary(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%d M", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d k", n>>10)
	}
	return fmt.Sprint(n)
}

func classLabel(w replay.Waits) string {
	switch {
	case w.From == nil && w.Below == nil:
		return "all"
	case w.From == nil:
		return "below " + plain(*w.Below)
	case w.Below == nil:
		return plain(*w.From) + " and above"
	}
	return plain(*w.From) + " – " + plain(*w.Below)
}

func plain(m sched.Milli) string { return strings.TrimSuffix(m.String(), ".0") }

// period writes seconds with two or three digits that matter.
func period(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.1f s", s)
	case d < 2*time.Hour:
		return fmt.Sprintf("%.1f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.1f h", d.Hours())
	}
	return fmt.Sprintf("%.1f days", d.Hours()/24)
}
