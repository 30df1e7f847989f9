package simulate

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/sched/replay"
)

// TraceColumns explains the columns of a trace, for help texts.
const TraceColumns = `A trace is a CSV file, sorted by arrival, with a line of column names:
  arrival          when the task comes: seconds, or a time such as 2026-03-01T12:00:00Z
  pool             the pool it is submitted to
  duration         how long it runs, in seconds
and, where they are wanted:
  task_id          its name
  priority         5 when empty
  cpu, gpu         cores, cards
  memory           MiB
  resource:NAME    any other resource
  estimate         what it says its duration will be, in seconds
  labels           key=value;key=value
  on_insufficient  fail or queue (when empty)
  on_preempted     stop or requeue (when empty)
  queue_timeout    seconds it waits at most
  checkpoint       seconds between saves of its state; empty: it saves when it is preempted`

// Trace is a CSV file of tasks.
type Trace struct {
	path  string
	tasks int
	pools []string
}

// OpenTrace reads a trace once, to say at once if a line is bad.
func OpenTrace(path string) (*Trace, error) {
	t := &Trace{path: path}
	next, end, err := t.read()
	if err != nil {
		return nil, err
	}
	defer end()
	known := map[string]bool{}
	for {
		task, ok, err := next()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		t.tasks++
		if !known[task.Pool] {
			known[task.Pool] = true
			t.pools = append(t.pools, task.Pool)
		}
	}
	if t.tasks == 0 {
		return nil, fmt.Errorf("%s has no tasks", path)
	}
	return t, nil
}

func (t *Trace) read() (next func() (replay.Task, bool, error), end func(), err error) {
	file, err := os.Open(t.path)
	if err != nil {
		return nil, nil, err
	}
	r := csv.NewReader(file)
	r.ReuseRecord = true
	r.TrimLeadingSpace = true
	header, err := r.Read()
	if err != nil {
		_ = file.Close()
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("%s is empty", t.path)
		}
		return nil, nil, err
	}
	columns := slices.Clone(header)
	if err := checkColumns(columns); err != nil {
		_ = file.Close()
		return nil, nil, fmt.Errorf("%s: line 1: %w", t.path, err)
	}
	l := &lines{columns: columns, labels: map[string]sched.Labels{}}
	return func() (replay.Task, bool, error) {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			return replay.Task{}, false, nil
		}
		if err != nil { // says the line itself
			return replay.Task{}, false, fmt.Errorf("%s: %w", t.path, err)
		}
		task, err := l.task(record)
		if err != nil {
			line, _ := r.FieldPos(0)
			return replay.Task{}, false, fmt.Errorf("%s: line %d: %w", t.path, line, err)
		}
		return task, true, nil
	}, func() { _ = file.Close() }, nil
}

func checkColumns(columns []string) error {
	for i, c := range columns {
		if slices.Index(columns, c) != i {
			return fmt.Errorf("there are two columns %q", c)
		}
		switch c {
		case "arrival", "pool", "duration", "task_id", "priority", "cpu", "gpu", "memory", "estimate", "labels", "on_insufficient", "on_preempted", "queue_timeout", "checkpoint":
		default:
			if name, ok := strings.CutPrefix(c, "resource:"); !ok || name == "" {
				return fmt.Errorf("there is no column %q; `server help simulate` lists them", c)
			}
		}
	}
	for _, c := range []string{"arrival", "pool", "duration"} {
		if !slices.Contains(columns, c) {
			return fmt.Errorf("the column %q is missing; the first line must name the columns", c)
		}
	}
	return nil
}

// lines makes tasks of records.
type lines struct {
	columns []string
	labels  map[string]sched.Labels
	n       int
	last    sched.Time
}

func (l *lines) task(record []string) (replay.Task, error) {
	l.n++
	t := replay.Task{Name: "t" + strconv.Itoa(l.n), Priority: 5_000, Queue: true, Requeue: true}
	units := map[string]float64{}
	for i, c := range l.columns {
		v := strings.TrimSpace(record[i])
		if v == "" {
			if c == "arrival" || c == "pool" || c == "duration" {
				return t, fmt.Errorf("%s is empty", c)
			}
			continue
		}
		if err := l.field(&t, units, c, v); err != nil {
			return t, fmt.Errorf("%s: %w", c, err)
		}
	}
	var err error
	if t.Request, err = sched.FromUnits(units); err != nil {
		return t, err
	}
	if t.At < l.last {
		return t, fmt.Errorf("arrival: %v ms is before the line above it: sort the file by arrival", t.At)
	}
	l.last = t.At
	return t, nil
}

func (l *lines) field(t *replay.Task, units map[string]float64, column, v string) (err error) {
	switch column {
	case "arrival":
		if at, notTime := time.Parse(time.RFC3339, v); notTime == nil {
			t.At = sched.Time(at.UnixMilli())
			return nil
		}
		if t.At, err = inSeconds(v, 1e10); err != nil {
			err = fmt.Errorf("%q is neither a number of seconds nor a time like 2026-03-01T12:00:00Z", v)
		}
	case "pool":
		t.Pool = strings.Clone(v)
	case "task_id":
		t.Name = strings.Clone(v)
	case "duration":
		t.Duration, err = inSeconds(v, 1e9)
	case "estimate":
		t.Estimate, err = inSeconds(v, 1e9)
	case "queue_timeout":
		t.Patience, err = inSeconds(v, 1e9)
	case "checkpoint":
		t.Checkpoint, err = inSeconds(v, 1e9)
	case "priority":
		var f float64
		if f, err = strconv.ParseFloat(v, 64); err != nil {
			return fmt.Errorf("%q is not a number", v)
		}
		t.Priority, err = sched.MilliFromFloat(f)
	case "on_insufficient":
		t.Queue = v == "queue"
		if v != "queue" && v != "fail" {
			err = fmt.Errorf("%q is neither fail nor queue", v)
		}
	case "on_preempted":
		t.Requeue = v == "requeue"
		if v != "requeue" && v != "stop" {
			err = fmt.Errorf("%q is neither stop nor requeue", v)
		}
	case "labels":
		t.Labels, err = l.labelsOf(v)
	default: // a resource
		name := strings.TrimPrefix(column, "resource:")
		if units[name], err = strconv.ParseFloat(v, 64); err != nil {
			err = fmt.Errorf("%q is not a number", v)
		}
	}
	return err
}

func inSeconds(v string, most float64) (sched.Time, error) {
	f, err := strconv.ParseFloat(v, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of seconds", v)
	}
	if !(f >= 0 && f <= most) {
		return 0, fmt.Errorf("%v is out of range: 0 to %v seconds", v, most)
	}
	return sched.Time(math.Round(f * 1000)), nil
}

// labelsOf reads key=value;key=value. Tasks with the same labels share them.
func (l *lines) labelsOf(v string) (sched.Labels, error) {
	if known, ok := l.labels[v]; ok {
		return known, nil
	}
	v = strings.Clone(v)
	out := sched.Labels{}
	for part := range strings.SplitSeq(v, ";") {
		key, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q is not key=value;key=value", v)
		}
		out[key] = value
	}
	if len(l.labels) < 100_000 {
		l.labels[v] = out
	}
	return out, nil
}
