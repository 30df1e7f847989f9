package sched_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	. "github.com/schedulemesh/schedulemesh/sched"
)

var resourceNames = []string{"cpu", "gpu", "memory", "tpu", "a \"quoted\" name", "größe", "z\\"}

// vector draws amounts from a small range, so that zeros and equal amounts are common.
func vector(t *rapid.T, label string, low int64) (r Resources) {
	for _, name := range rapid.SliceOf(rapid.SampledFrom(resourceNames)).Draw(t, label+" names") {
		r = r.With(name, rapid.Int64Range(low, 5).Draw(t, label+" "+name))
	}
	return r
}

// amounts is the plain picture of a vector the algebra is checked against.
func amounts(r Resources) map[string]int64 {
	m := map[string]int64{}
	r.Each(func(name string, v int64) { m[name] = v })
	return m
}

func TestArithmeticIsPerResource(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := vector(t, "a", -5), vector(t, "b", -5)
		before := a.Key() + b.Key()
		operations := map[string]struct {
			got  Resources
			want func(x, y int64) int64
		}{
			"add":      {a.Add(b), func(x, y int64) int64 { return x + y }},
			"sub":      {a.Sub(b), func(x, y int64) int64 { return x - y }},
			"min":      {a.Min(b), func(x, y int64) int64 { return min(x, y) }},
			"max":      {a.Max(b), func(x, y int64) int64 { return max(x, y) }},
			"positive": {a.Positive(), func(x, _ int64) int64 { return max(x, 0) }},
			"neg":      {a.Neg(), func(x, _ int64) int64 { return -x }},
			"lacking": {a.Lacking(b), func(x, y int64) int64 {
				if y > 0 && y > x {
					return y - x
				}
				return 0
			}},
		}
		for name, op := range operations {
			for _, r := range resourceNames {
				if got, want := op.got.Get(r), op.want(a.Get(r), b.Get(r)); got != want {
					t.Fatalf("%s of %v and %v: %s is %d, want %d", name, a, b, r, got, want)
				}
			}
			for i, o := range op.got.Other {
				if o.Value == 0 || i > 0 && op.got.Other[i-1].Name >= o.Name {
					t.Fatalf("%s: not canonical: %v", name, op.got.Other)
				}
			}
			if op.got.Other != nil && len(op.got.Other) == 0 {
				t.Fatalf("%s: Other is empty but not nil", name)
			}
		}
		covers, intersects := true, false
		for _, r := range resourceNames {
			x, y := a.Get(r), b.Get(r)
			covers = covers && (y <= 0 || x >= y)
			intersects = intersects || x > 0 && y > 0
		}
		if a.Covers(b) != covers || a.Intersects(b) != intersects {
			t.Fatalf("%v and %v: covers %v, intersects %v", a, b, a.Covers(b), a.Intersects(b))
		}
		if a.Covers(b) != a.Lacking(b).IsZero() {
			t.Fatalf("%v covers %v: %v, but lacks %v", a, b, a.Covers(b), a.Lacking(b))
		}
		for _, r := range resourceNames {
			if c := a.With(r, 7); c.Get(r) != 7 || !c.With(r, a.Get(r)).Equal(a) {
				t.Fatalf("%v with 7 %s is %v", a, r, c)
			}
		}
		if a.Key()+b.Key() != before {
			t.Fatal("an operand was changed")
		}
	})
}

func TestEqualVectorsHaveEqualKeysAndOnlyThey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := vector(t, "a", -1), vector(t, "b", -1)
		if a.Equal(b) != (a.Key() == b.Key()) {
			t.Fatalf("%v and %v: equal %v, keys %s and %s", a, b, a.Equal(b), a.Key(), b.Key())
		}
		if a.IsZero() != a.Equal(Resources{}) {
			t.Fatalf("%v: IsZero is %v", a, a.IsZero())
		}
	})
}

func TestJSONRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := vector(t, "r", -5)
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var plain map[string]int64
		if err := json.Unmarshal(data, &plain); err != nil || len(plain) != len(amounts(r)) {
			t.Fatalf("%s is not what a reader of JSON expects: %v, %v", data, plain, err)
		}
		// Postgres returns jsonb respaced, escaped otherwise and reordered.
		reordered, _ := json.MarshalIndent(plain, " ", "\t")
		for _, form := range [][]byte{data, reordered} {
			var back Resources
			if err := json.Unmarshal(form, &back); err != nil || !back.Equal(r) {
				t.Fatalf("%s reads as %v, %v", form, back, err)
			}
		}
	})
}

func TestJSONForm(t *testing.T) {
	r := Resources{CPU: 1500, Memory: 2048}.With("tpu", 250)
	if got := r.Key(); got != `{"cpu":1500,"memory":2048,"tpu":250}` {
		t.Error(got)
	}
	for _, empty := range []string{"null", "{}", " { } ", `{"cpu":0}`, `{"cpu":0,"tpu":0}`} {
		var back Resources
		if err := json.Unmarshal([]byte(empty), &back); err != nil || !back.IsZero() {
			t.Errorf("%s reads as %v, %v", empty, back, err)
		}
	}
	for _, bad := range []string{
		``, `nul`, `[]`, `{`, `{"cpu"}`, `{"cpu":}`, `{"cpu":1.5}`, `{"cpu":1e3}`, `{"cpu":"1"}`, `{"cpu":1 "gpu":1}`,
		`{"cpu":1,}`, `{,"cpu":1}`, `{"cpu":1}x`, `{"cpu":99999999999999999999}`, `{"cpu":-}`, `{"cp`, `{"a\"`, `{"cpu":0 "gpu":1}`, "{\"a\nb\":1}",
	} {
		var back Resources
		if err := back.UnmarshalJSON([]byte(bad)); err == nil {
			t.Errorf("%s was read as %v", bad, back)
		}
	}
}

func TestPeopleReadResources(t *testing.T) {
	for want, r := range map[string]Resources{
		"nothing":                           {},
		"2 cpu · 0.5 gpu · 4096 MiB memory": {CPU: 2000, GPU: 500, Memory: 4096},
		"0.001 cpu":                         {CPU: 1},
		"-1.25 gpu · 1.5 tpu":               Resources{GPU: -1250}.With("tpu", 1500),
		"1 apple · 1 pear":                  Resources{}.With("pear", 1000).With("apple", 1000),
		"-9223372036854775.808 cpu":         {CPU: math.MinInt64},
	} {
		if got := r.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestUnitsAreRoundedUpToTheGridAndNoFurther(t *testing.T) {
	for _, c := range []struct {
		name  string
		units float64
		want  int64
	}{
		{"cpu", 1.1, 1100}, {"cpu", 0.1, 100}, {"cpu", 0.0001, 1}, {"cpu", 1.0001, 1001}, {"cpu", 4.35, 4350},
		{"gpu", 0.333, 333}, {"gpu", 1.0 / 3, 334}, {"memory", 4096, 4096}, {"memory", 0.5, 1}, {"memory", 1.0000001, 2}, {"tpu", 1.005, 1005},
	} {
		r, err := FromUnits(map[string]float64{c.name: c.units})
		if err != nil || r.Get(c.name) != c.want {
			t.Errorf("%v %s is %v, %v; want %d", c.units, c.name, r, err, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		units := rapid.Float64Range(0, 1e9).Draw(t, "units")
		r, err := FromUnits(map[string]float64{"cpu": units})
		if err != nil {
			t.Fatal(err)
		}
		if float64(r.CPU)/1000 < units {
			t.Fatalf("%v became less: %d", units, r.CPU)
		}
		if float64(r.CPU-1)/1000 >= units && r.CPU > 0 {
			t.Fatalf("%v became %d: a thousandth less would do", units, r.CPU)
		}
		// The next number above a grid point is the hardest to tell from it.
		grid := rapid.Int64Range(1, 1e14).Draw(t, "grid point")
		for unit, want := range map[float64]int64{float64(grid) / 1000: grid, math.Nextafter(float64(grid)/1000, math.Inf(1)): grid + 1} {
			if r, err := FromUnits(map[string]float64{"cpu": unit}); err != nil || r.CPU != want {
				t.Fatalf("%v is %d, %v; want %d", unit, r.CPU, err, want)
			}
		}
		back, err := FromUnits(r.Units())
		if err != nil || !back.Equal(r) {
			t.Fatalf("%v and back is %v, %v", r, back, err)
		}
	})
}

func TestUnusableUnitsAreRefusedByName(t *testing.T) {
	for _, c := range []struct {
		name  string
		units float64
	}{
		{"cpu", -1}, {"gpu", math.NaN()}, {"gpu", math.Inf(1)}, {"gpu", math.Inf(-1)}, {"cpu", 1e13}, {"memory", 1.1e15},
		{"cpu", math.MaxFloat64}, {"", 1}, {"a\x00b", 1}, {"line\nbreak", 1}, {"\xff", 1}, {strings.Repeat("x", 257), 1}, {"cpu", -1e-9},
	} {
		_, err := FromUnits(map[string]float64{"memory ": 1, c.name: c.units})
		var refused *ResourceError
		if !errors.As(err, &refused) || refused.Name != c.name {
			t.Errorf("%q %v: %v", c.name, c.units, err)
			continue
		}
		if math.Float64bits(refused.Value) != math.Float64bits(c.units) {
			t.Errorf("%q: the error shows %v, not %v", c.name, refused.Value, c.units)
		}
	}
}

func TestMilliComesFromNumbersThatFit(t *testing.T) {
	for f, want := range map[float64]Milli{0: 0, 5: 5000, 0.5: 500, -2.25: -2250, 0.0004: 0, 0.0006: 1, 1e12: 1e15} {
		if got, err := MilliFromFloat(f); err != nil || got != want {
			t.Errorf("%v is %d, %v", f, got, err)
		}
	}
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1.1e12, -1e300} {
		if got, err := MilliFromFloat(f); err == nil {
			t.Errorf("%v was taken as %v", f, got)
		}
	}
	for m, want := range map[Milli]string{5000: "5.0", 500: "0.5", -125: "-0.125", 0: "0.0", 1: "0.001"} {
		if m.String() != want {
			t.Errorf("%d reads %s, want %s", int64(m), m, want)
		}
		var back Milli
		if data, _ := json.Marshal(m); json.Unmarshal(data, &back) != nil || back != m {
			t.Errorf("%s comes back as %s", m, back)
		}
	}
}
