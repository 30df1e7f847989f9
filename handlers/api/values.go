package api

import (
	"encoding/hex"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
	"github.com/schedulemesh/schedulemesh/sched"
)

// Limits of what people may name things, in characters.
const (
	maxName       = 200 // ids and names
	maxLabels     = 64
	maxLabelKey   = 200
	maxLabelValue = 1000
	maxComment    = 2000
)

// faults collects what is wrong with a request, field by field.
type faults []problem.Item

func (f *faults) add(location, field, format string, args ...any) {
	*f = append(*f, problem.Item{Field: field, Location: location + "." + field, Message: fmt.Sprintf(format, args...)})
}

// err is nil when nothing was wrong.
func (f faults) err() error {
	if len(f) == 0 {
		return nil
	}
	p := problem.New("invalid", f[0].Field+": "+f[0].Message)
	if len(f) > 1 {
		p.Detail += fmt.Sprintf(" (and %d more)", len(f)-1)
	}
	p.Errors = f
	return p
}

// name checks an id or a name that must be there.
func (f *faults) name(location, field, s string) {
	if s == "" {
		f.add(location, field, "is missing; give 1 to %d characters", maxName)
		return
	}
	f.optionalName(location, field, s)
}

// optionalName checks an id or a name.
func (f *faults) optionalName(location, field, s string) {
	if bad := unprintable(s); bad != "" {
		f.add(location, field, "%s; use printable characters only", bad)
	} else if n := tooLong(s, maxName); n > 0 {
		f.add(location, field, "has %d characters; at most %d are allowed", n, maxName)
	} else if s == "." || s == ".." {
		f.add(location, field, "is %q, which cannot be part of a URL; choose another", s)
	}
}

// text checks free text of at most most characters, in which line breaks are fine.
func (f *faults) text(location, field, s string, most int) {
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		f.add(location, field, "has a NUL character or broken UTF-8 in it")
	} else if n := tooLong(s, most); n > 0 {
		f.add(location, field, "has %d characters; at most %d are allowed", n, most)
	}
}

func (f *faults) labels(labels map[string]string) {
	if len(labels) > maxLabels {
		f.add("body", "labels", "has %d labels; at most %d are allowed", len(labels), maxLabels)
		return
	}
	for k, v := range labels {
		switch {
		case k == "":
			f.add("body", "labels", "has an empty key")
		case tooLong(k, maxLabelKey) > 0:
			f.add("body", "labels", "has a key of %d characters; at most %d are allowed", tooLong(k, maxLabelKey), maxLabelKey)
		case unprintable(k) != "":
			f.add("body", "labels", "has the key %q, which %s", k, unprintable(k))
		case unprintable(v) != "":
			f.add("body", "labels."+k, "%s", unprintable(v))
		case tooLong(v, maxLabelValue) > 0:
			f.add("body", "labels."+k, "has %d characters; at most %d are allowed", tooLong(v, maxLabelValue), maxLabelValue)
		}
	}
}

// resources converts amounts in people's units.
func (f *faults) resources(field string, units map[string]float64) sched.Resources {
	r, err := sched.FromUnits(units)
	if err == nil {
		return r
	}
	if e, ok := err.(*sched.ResourceError); ok {
		if e.Name != "" && unprintable(e.Name) == "" {
			field += "." + e.Name
		}
		f.add("body", field, "%v %s", e.Value, e.Reason)
	} else {
		f.add("body", field, "%v", err)
	}
	return sched.Resources{}
}

func (f *faults) priority(field string, v float64) sched.Milli {
	m, err := sched.MilliFromFloat(v)
	if err != nil {
		f.add("body", field, "%v", err)
	}
	return m
}

// maxSeconds bounds durations: ten years.
const maxSeconds = 10 * 365 * 24 * 3600

// seconds converts a duration; what is not 0 stays at least a millisecond.
func (f *faults) seconds(field string, v float64) time.Duration {
	switch {
	case math.IsNaN(v) || v < 0:
		f.add("body", field, "%v is not a duration; give seconds, 0 or more", v)
	case v > maxSeconds:
		f.add("body", field, "%v s is more than ten years; durations are in seconds", v)
	default:
		return time.Duration(math.Ceil(v*1000)) * time.Millisecond
	}
	return 0
}

func (f *faults) oneOf(field, v string, choices ...string) string {
	if v == "" {
		return ""
	}
	for _, c := range choices {
		if v == c {
			return v
		}
	}
	f.add("body", field, "%q is not known; choose %s", v, strings.Join(choices, " or "))
	return ""
}

func unprintable(s string) string {
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c < 0x7f {
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			return "is not valid UTF-8"
		}
		if unicode.IsControl(r) {
			return fmt.Sprintf("has the control character %U in it", r)
		}
		i += n
	}
	return ""
}

// tooLong is the length of s in characters when it exceeds most, 0 otherwise.
func tooLong(s string, most int) int {
	if len(s) <= most {
		return 0
	}
	if n := utf8.RuneCountInString(s); n > most {
		return n
	}
	return 0
}

// parseWait reads how long a request wants to wait: "30s", "1m30s", or seconds "30".
func parseWait(s string) (time.Duration, string) {
	if s == "" {
		return 0, ""
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		var v float64
		if v, err = strconv.ParseFloat(s, 64); err != nil || math.IsNaN(v) || math.Abs(v) > maxSeconds {
			return 0, fmt.Sprintf("%q is not a duration; give seconds, such as 30 or 30s", s)
		}
		d = time.Duration(v * float64(time.Second))
	}
	if d < 0 {
		return 0, fmt.Sprintf("%q is negative", s)
	}
	return min(d, maxWait), ""
}

const maxWait = 10 * time.Minute

// Stamp is a time as answers have it: RFC 3339 in UTC with milliseconds, null when it is zero.
type Stamp time.Time

const stampLayout = "2006-01-02T15:04:05.000Z07:00"

// MarshalJSONTo writes the time.
func (s Stamp) MarshalJSONTo(enc *jsontext.Encoder) error {
	t := time.Time(s)
	if t.IsZero() {
		return enc.WriteToken(jsontext.Null)
	}
	var buf [40]byte
	b := append(buf[:0], '"')
	b = t.UTC().AppendFormat(b, stampLayout)
	return enc.WriteValue(append(b, '"'))
}

// UnmarshalJSON reads what MarshalJSONTo writes.
func (s *Stamp) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	return (*time.Time)(s).UnmarshalJSON(b)
}

// Schema is for the OpenAPI document.
func (Stamp) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "date-time", Nullable: true, Examples: []any{"2026-03-01T09:30:00.250Z"}}
}

// Units are resources in people's units: cores, cards, MiB of memory.
type Units sched.Resources

// MarshalJSONTo writes the amounts, zeros left out.
func (u Units) MarshalJSONTo(enc *jsontext.Encoder) error {
	var buf [128]byte
	return enc.WriteValue(appendResources(buf[:0], sched.Resources(u)))
}

func appendUnits(b []byte, name string, v int64) []byte {
	if name == "memory" {
		return strconv.AppendInt(b, v, 10)
	}
	return strconv.AppendFloat(b, float64(v)/1000, 'f', -1, 64)
}

// units is one amount in people's unit.
func units(name string, v int64) float64 {
	if name == "memory" {
		return float64(v)
	}
	return float64(v) / 1000
}

// Schema is for the OpenAPI document.
func (Units) Schema(huma.Registry) *huma.Schema { return resourcesSchema() }

func resourcesSchema() *huma.Schema {
	zero := 0.0
	return &huma.Schema{
		Type:                 huma.TypeObject,
		Description:          "Amounts by resource: cpu in cores, gpu in cards, memory in MiB, any other name in its own unit. Rounded up to thousandths (memory: whole MiB).",
		AdditionalProperties: &huma.Schema{Type: huma.TypeNumber, Minimum: &zero},
		Examples:             []any{map[string]any{"cpu": 2.0, "gpu": 0.5, "memory": 4096}},
	}
}

// Amounts are resources of a request, in people's units.
type Amounts map[string]float64

// Schema is for the OpenAPI document. Ranges are checked by sched.FromUnits, whose messages say more.
func (Amounts) Schema(huma.Registry) *huma.Schema {
	s := resourcesSchema()
	s.AdditionalProperties = &huma.Schema{Type: huma.TypeNumber}
	return s
}

// UID is an id as answers have it: a UUID with hyphens; null when it is zero.
type UID sched.ID

func (u UID) String() string {
	var b [36]byte
	hex.Encode(b[0:8], u[0:4])
	hex.Encode(b[9:13], u[4:6])
	hex.Encode(b[14:18], u[6:8])
	hex.Encode(b[19:23], u[8:10])
	hex.Encode(b[24:36], u[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// MarshalJSONTo writes the UUID.
func (u UID) MarshalJSONTo(enc *jsontext.Encoder) error {
	if u == (UID{}) {
		return enc.WriteToken(jsontext.Null)
	}
	return enc.WriteToken(jsontext.String(u.String()))
}

// UnmarshalText reads a UUID.
func (u *UID) UnmarshalText(b []byte) error {
	_, err := hex.Decode(u[:], []byte(strings.ReplaceAll(string(b), "-", "")))
	return err
}

// Schema is for the OpenAPI document.
func (UID) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "uuid", Nullable: true, Examples: []any{"0197a2b4-6d1e-7c3f-9a52-3b1d7e5f0c11"}}
}

// address joins escaped segments to a path, with the namespace unless it is the default one.
func address(ns string, segments ...string) string {
	var b strings.Builder
	for _, s := range segments {
		if strings.HasPrefix(s, "/") {
			b.WriteString(s)
		} else {
			b.WriteByte('/')
			b.WriteString(escapeSegment(s))
		}
	}
	if ns != defaultNamespace {
		b.WriteString("?namespace=")
		b.WriteString(url.QueryEscape(ns))
	}
	return b.String()
}

func escapeSegment(s string) string {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.') {
			return url.PathEscape(s)
		}
	}
	return s
}
