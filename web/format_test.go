package web

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestNumbersHaveThousandsSeparators(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 7: "7", 999: "999", 1000: "1,000", 1284: "1,284", 100412: "100,412", 1234567: "1,234,567", -1284: "−1,284", math.MinInt64: "−9,223,372,036,854,775,808"} {
		if got := Number(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestCountsAgreeWithTheirNoun(t *testing.T) {
	for n, want := range map[int]string{0: "0 tasks", 1: "1 task", 1284: "1,284 tasks"} {
		if got := Count(n, "task"); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	if got := Count(2, "policy"); got != "2 policies" {
		t.Error(got)
	}
}

func TestDecimalsKeepWhatSaysSomething(t *testing.T) {
	for f, want := range map[float64]string{5: "5.0", 0: "0.0", 0.5: "0.5", 0.125: "0.125", -2.5: "−2.5", 1234.5: "1,234.5", 0.0001: "0.0", -0.0001: "0.0", math.Inf(1): "–"} {
		if got := Decimal(f); got != want {
			t.Errorf("%v: %q, want %q", f, got, want)
		}
	}
}

func TestChangesNeedSomethingToCompareWith(t *testing.T) {
	for _, c := range []struct {
		now, before int
		want        string
	}{{73, 83, "−12 %"}, {93, 83, "+12 %"}, {5, 0, ""}, {5, 5, ""}, {0, 4, "−100 %"}, {1001, 1000, "+0.1 %"}} {
		if got := Change(c.now, c.before); got != c.want {
			t.Errorf("%d after %d: %q, want %q", c.now, c.before, got, c.want)
		}
	}
}

func TestDurationsAreInAtMostTwoUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ms", 50 * time.Microsecond: "0.05 ms", 400 * time.Microsecond: "0.4 ms", 9 * time.Millisecond: "9 ms", 84 * time.Millisecond: "84 ms", 999900 * time.Microsecond: "1000 ms",
		1200 * time.Millisecond: "1.2 s", 2 * time.Second: "2 s", 59 * time.Second: "59 s", 59*time.Second + 700*time.Millisecond: "1 min",
		30*time.Minute + 31*time.Second: "30 min 31 s", time.Hour: "1 h", 3*time.Hour + 5*time.Minute: "3 h 5 min", 52 * time.Hour: "2 d 4 h", -84 * time.Millisecond: "−84 ms",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%v: %q, want %q", int64(d), got, want)
		}
	}
}

func TestMomentsAreSeenFromNow(t *testing.T) {
	now := time.Date(2026, 11, 21, 14, 2, 23, 0, time.UTC)
	for d, want := range map[time.Duration]string{0: "just now", 12 * time.Second: "12 s ago", 3 * time.Minute: "3 min ago", 47 * time.Hour: "47 h ago", 72 * time.Hour: "3 d ago", 90 * 24 * time.Hour: "23 Aug 2026", -5 * time.Minute: "in 5 min"} {
		if got := Ago(now.Add(-d), now); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
	if got := Ago(time.Time{}, now); got != "–" {
		t.Error(got)
	}
	if got := Clock(now.Add(-26*time.Hour), now); got != "20 Nov 12:02" {
		t.Error(got)
	}
}

func TestResourcesReadAsPeopleSayThem(t *testing.T) {
	for _, c := range []struct {
		r           Resources
		long, short string
	}{
		{Resources{"gpu": 8000, "cpu": 64000, "memory": 512 << 10}, "8 gpu · 64 cpu · 512 GiB", "8 gpu · 64 cpu"},
		{Resources{"cpu": 500}, "0.5 cpu", "0.5 cpu"},
		{Resources{"memory": 1536}, "1.5 GiB", "1.5 GiB"},
		{Resources{"memory": 300, "cpu": 0}, "300 MiB", "300 MiB"},
		{Resources{"memory": 2 << 20}, "2 TiB", "2 TiB"},
		{Resources{"tpu": 4000, "a": 1}, "0.001 a · 4 tpu", "0.001 a · 4 tpu"},
		{nil, "nothing", "nothing"},
	} {
		if got := c.r.String(); got != c.long {
			t.Errorf("%v: %q, want %q", map[string]int64(c.r), got, c.long)
		}
		if got := c.r.Short(); got != c.short {
			t.Errorf("%v, short: %q, want %q", map[string]int64(c.r), got, c.short)
		}
	}
}

func TestSizes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB", 412 << 10: "412 KiB", 1536 << 10: "1.5 MiB", 3 << 40: "3 TiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestCuttingKeepsRunesWhole(t *testing.T) {
	for _, c := range []struct {
		s    string
		n    int
		want string
	}{{"short", 10, "short"}, {"exactly", 7, "exactly"}, {"too long", 5, "too …"}, {"🦙🦙🦙", 2, "🦙…"}, {"🦙🦙", 2, "🦙🦙"}, {"bad\xff", 10, "bad�"}} {
		if got := Cut(c.s, c.n); got != c.want {
			t.Errorf("%q to %d: %q, want %q", c.s, c.n, got, c.want)
		}
	}
	huge := strings.Repeat("é", 5<<20)
	if got := Cut(huge, 80); utf8.RuneCountInString(got) != 80 {
		t.Errorf("%d runes", utf8.RuneCountInString(got))
	}
	kept, left := CutBytes(huge, 101)
	if len(kept) != 100 || left != len(huge)-100 || !utf8.ValidString(kept) {
		t.Errorf("kept %d, left %d", len(kept), left)
	}
}

func TestQuotaBarsFillTheirWidthAndNeverMore(t *testing.T) {
	for _, q := range []Quota{
		{"gpu", 64000, 66000, 6000, 8000, 0}, {"gpu", 48000, 26000, 2000, 0, 8000}, {"gpu", 32000, 31000, 0, 0, 0}, {"gpu", 0, 0, 0, 0, 0},
		{"gpu", 1000, 5000, 0, 0, 0}, {"gpu", 1000, 5000, 3000, 500, 700}, {"gpu", 10000, 2000, 9000, 4000, 0}, {"memory", 1 << 50, 1 << 49, 1 << 48, 1 << 47, 1 << 46},
	} {
		end := 0.0
		for _, s := range q.Segments() {
			if s.X < end-0.001 || s.W <= 0 {
				t.Errorf("%+v: %s from %.2f overlaps what ends at %.2f", q, s.Kind, s.X, end)
			}
			end = s.X + s.W
		}
		if end > 100.001 {
			t.Errorf("%+v ends at %.2f %%", q, end)
		}
	}
	q := Quota{"gpu", 64000, 66000, 6000, 8000, 0}
	if q.Sum() != "72 / 64 + 8" || q.Words() != "GPU: 66 used, 6 reserved of 64 plus 8 borrowed; 0 free" {
		t.Errorf("%q, %q", q.Sum(), q.Words())
	}
	if got := (Quota{"memory", 5 << 20, 4 << 20, 256 << 10, 0, 0}).Sum(); got != "4.2 / 5 TiB" {
		t.Error(got)
	}
	if got := (Quota{"cpu", 1000, 5000, 0, 0, 0}).Words(); !strings.HasSuffix(got, "4 more than it has") {
		t.Error(got)
	}
}

func TestAddressesKeepTheNamespace(t *testing.T) {
	p := Page{Namespace: "a b"}
	if got := p.Task("x/y?z#w", "tab", "log"); got != "/tasks/x%2Fy%3Fz%23w?namespace=a+b&tab=log" {
		t.Error(got)
	}
	if got := (Page{Namespace: DefaultNamespace}).To("/tasks", "pool", ""); got != "/tasks" {
		t.Error(got)
	}
}

func TestADiffShowsWhatChangedAndALittleAround(t *testing.T) {
	before := "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\n"
	after := "a\nb\nc\nd\nE\nf\ng\nh\ni\nj\nk\nl\n"
	var got strings.Builder
	for _, l := range Diff(before, after) {
		got.WriteString(string(l.Op) + l.Text + "\n")
	}
	want := " b\n c\n d\n-e\n+E\n f\n g\n h\n i\n j\n k\n+l\n"
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
	if d := Diff(before, before); d != nil {
		t.Errorf("no change, yet %v", d)
	}
	if d := Diff("", "x"); len(d) != 1 || d[0] != (DiffLine{'+', "x"}) {
		t.Errorf("%v", d)
	}
}
