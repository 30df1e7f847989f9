package sched

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// MarshalJSON writes the fixed-point amounts, zeros left out, in Each's order:
// {"cpu":1500,"memory":2048}. Postgres columns hold this form.
func (r Resources) MarshalJSON() ([]byte, error) {
	return r.AppendJSON(make([]byte, 0, 64)), nil
}

// AppendJSON appends what MarshalJSON returns.
func (r Resources) AppendJSON(dst []byte) []byte {
	dst = append(dst, '{')
	first := true
	r.Each(func(name string, v int64) {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = appendName(dst, name)
		dst = append(dst, ':')
		dst = strconv.AppendInt(dst, v, 10)
	})
	return append(dst, '}')
}

func appendName(dst []byte, name string) []byte {
	for i := range len(name) {
		if c := name[i]; c < ' ' || c == '"' || c == '\\' || c > '~' {
			quoted, _ := json.Marshal(name) // a string always marshals
			return append(dst, quoted...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, name...)
	return append(dst, '"')
}

// UnmarshalJSON reads what MarshalJSON writes, in any order and spacing, and
// null as nothing. Amounts must be whole: they are fixed-point already.
func (r *Resources) UnmarshalJSON(data []byte) error {
	p := amountsParser{rest: data}
	v, err := p.object()
	if err != nil {
		return fmt.Errorf("resources %.100q: %w", data, err)
	}
	*r = v
	return nil
}

// amountsParser reads one flat object of whole numbers. It exists because
// every row of every batch passes through it; reflection costs ten times more.
type amountsParser struct{ rest []byte }

func (p *amountsParser) object() (r Resources, err error) {
	if p.space(); bytes.Equal(bytes.TrimRight(p.rest, " \t\r\n"), []byte("null")) {
		return Resources{}, nil
	}
	if !p.take('{') {
		return r, fmt.Errorf("want an object of whole numbers")
	}
	for n := 0; !p.take('}'); n++ {
		if n > 0 && !p.take(',') {
			return r, fmt.Errorf("want a comma between amounts")
		}
		name, err := p.name()
		if err != nil {
			return r, err
		}
		if !p.take(':') {
			return r, fmt.Errorf("want a colon after %q", name)
		}
		v, err := p.integer()
		if err != nil {
			return r, fmt.Errorf("amount of %q: %w", name, err)
		}
		r = r.With(name, v)
	}
	if p.space(); len(p.rest) > 0 {
		return r, fmt.Errorf("something follows the object")
	}
	return r, nil
}

func (p *amountsParser) space() {
	for len(p.rest) > 0 && (p.rest[0] == ' ' || p.rest[0] == '\n' || p.rest[0] == '\t' || p.rest[0] == '\r') {
		p.rest = p.rest[1:]
	}
}

func (p *amountsParser) take(c byte) bool {
	p.space()
	if len(p.rest) == 0 || p.rest[0] != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

func (p *amountsParser) name() (string, error) {
	if !p.take('"') {
		return "", fmt.Errorf("want a resource name")
	}
	plain := true
	for i, c := range p.rest {
		switch {
		case c == '\\':
			plain = false
		case c < ' ':
			return "", fmt.Errorf("unprintable character in a resource name")
		case c == '"' && plain:
			name := string(p.rest[:i])
			p.rest = p.rest[i+1:]
			return name, nil
		}
		if !plain {
			break
		}
	}
	return p.escapedName()
}

// escapedName handles the rare name with a backslash in it; the opening quote
// is already gone.
func (p *amountsParser) escapedName() (string, error) {
	for i := 0; i < len(p.rest); i++ {
		switch p.rest[i] {
		case '\\':
			i++
		case '"':
			var name string
			err := json.Unmarshal(slices.Concat([]byte{'"'}, p.rest[:i+1]), &name)
			p.rest = p.rest[i+1:]
			return name, err
		}
	}
	return "", fmt.Errorf("unfinished resource name")
}

func (p *amountsParser) integer() (int64, error) {
	p.space()
	i := 0
	for i < len(p.rest) && (p.rest[i] == '-' || p.rest[i] >= '0' && p.rest[i] <= '9') {
		i++
	}
	v, err := strconv.ParseInt(string(p.rest[:i]), 10, 64)
	if err != nil || i < len(p.rest) && bytes.IndexByte([]byte(".eE"), p.rest[i]) >= 0 {
		return 0, fmt.Errorf("want a whole number that fits 64 bits")
	}
	p.rest = p.rest[i:]
	return v, nil
}
