package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"
)

// settings are flags that can also be given by the environment: the flag wins,
// then the variable, then the default.
type settings struct {
	flags  *flag.FlagSet
	getenv func(string) string
	all    []setting
	err    error // a variable with a value that does not fit
	given  map[string]bool
}

type setting struct {
	flag, value, variable, usage, fallback string
}

func newSettings(getenv func(string) string) *settings {
	flags := flag.NewFlagSet("server", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // we print
	return &settings{flags: flags, getenv: getenv, given: map[string]bool{}}
}

// add registers a setting whose variable, when there is one, replaces the default.
func (s *settings) add(value flag.Value, st setting) {
	if st.flag != "" {
		s.flags.Var(value, st.flag, st.usage)
	}
	if st.variable != "" {
		if text := s.getenv(st.variable); text != "" {
			s.given[st.variable] = true
			if err := value.Set(text); err != nil {
				s.err = errors.Join(s.err, fmt.Errorf("%s=%q: %w", st.variable, text, err))
			}
		}
	}
	s.all = append(s.all, st)
}

func (s *settings) text(p *string, name, value, variable, fallback, usage string) {
	*p = fallback
	s.add((*textValue)(p), setting{name, value, variable, usage, fallback})
}

// secret is a setting that is never on a command line, where everybody can read it.
func (s *settings) secret(p *string, variable, usage string) {
	s.add((*textValue)(p), setting{variable: variable, usage: usage})
}

func (s *settings) number(p *int, name, variable string, fallback int, usage string) {
	*p = fallback
	s.add((*numberValue)(p), setting{name, "N", variable, usage, fmt.Sprint(fallback)})
}

func (s *settings) duration(p *time.Duration, name, variable string, fallback time.Duration, usage string) {
	*p = fallback
	s.add((*durationValue)(p), setting{name, "DURATION", variable, usage, fallback.String()})
}

func (s *settings) toggle(p *bool, name, variable, usage string) {
	s.add((*toggleValue)(p), setting{name, "", variable, usage, ""})
}

// isGiven says whether the flag or its variable was given at all.
func (s *settings) isGiven(name string) bool {
	given := false
	s.flags.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	for _, st := range s.all {
		given = given || st.flag == name && s.given[st.variable]
	}
	return given
}

// parse reads the flags, also after other arguments, and returns those.
func (s *settings) parse(args []string) (rest []string, err error) {
	for {
		if err := s.flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, fmt.Errorf("%w (`--help` lists the settings)", err)
		}
		if s.flags.NArg() == 0 {
			return rest, s.err
		}
		rest = append(rest, s.flags.Arg(0))
		args = s.flags.Args()[1:]
	}
}

func (s *settings) print(w io.Writer) {
	if len(s.all) == 0 {
		return
	}
	fmt.Fprint(w, "\nSettings (a flag goes before its environment variable):\n")
	for _, st := range s.all {
		head := st.variable
		if st.flag != "" {
			head = strings.TrimSpace("--" + st.flag + " " + st.value)
			if st.variable != "" {
				head += "   (" + st.variable + ")"
			}
		}
		usage := st.usage
		if st.fallback != "" && st.fallback != "0" {
			usage += "; default " + st.fallback
		}
		fmt.Fprintf(w, "\n  %s\n      %s\n", head, usage)
	}
}

type textValue string

func (v *textValue) Set(s string) error { *v = textValue(s); return nil }
func (v *textValue) String() string     { return string(*v) }

type numberValue int

func (v *numberValue) String() string { return fmt.Sprint(int(*v)) }
func (v *numberValue) Set(s string) error {
	var n int
	if _, err := fmt.Sscanf(s+"\n", "%d\n", &n); err != nil || n < 0 {
		return errors.New("not a whole number, 0 or more")
	}
	*v = numberValue(n)
	return nil
}

type durationValue time.Duration

func (v *durationValue) String() string { return time.Duration(*v).String() }
func (v *durationValue) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return errors.New("not a duration like 10s or 2m")
	}
	*v = durationValue(d)
	return nil
}

type toggleValue bool

func (v *toggleValue) IsBoolFlag() bool { return true }
func (v *toggleValue) String() string   { return fmt.Sprint(bool(*v)) }
func (v *toggleValue) Set(s string) error {
	switch strings.ToLower(s) {
	case "1", "true", "yes", "on":
		*v = true
	case "0", "false", "no", "off":
		*v = false
	default:
		return errors.New("neither true nor false")
	}
	return nil
}
