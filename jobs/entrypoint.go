package jobs

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxEntrypoint is the most bytes of an entrypoint.
const MaxEntrypoint = 64 << 10

var (
	assignment  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*\+?=`)
	pythonName  = regexp.MustCompile(`^(python|pypy)([0-9]+(\.[0-9]+)*)?t?$`)
	shells      = []string{"bash", "sh", "dash", "zsh", "ksh"}
	whichStream = regexp.MustCompile(`^[0-9]+$`)
)

// wrappers are programs that run the command behind them.
var wrappers = map[string]struct {
	own    int      // words of its own before that command
	values []string // options whose value is the next word
}{
	"command": {}, "nohup": {}, "setsid": {},
	"env":     {0, []string{"-u", "-C", "--unset", "--chdir"}},
	"exec":    {0, []string{"-a"}},
	"nice":    {0, []string{"-n"}},
	"stdbuf":  {0, []string{"-i", "-o", "-e"}},
	"time":    {0, []string{"-f", "-o"}},
	"timeout": {1, []string{"-k", "-s"}},
}

// CheckEntrypoint refuses a command whose program, or the script of its Python or shell, is a relative path.
// Only the first command of several is looked at. A bare name is looked up on the cluster's PATH, and what
// arguments mean is the program's business. The error is a sentence for people.
//
// testdata/entrypoints.json holds it and the Python client's check together.
func CheckEntrypoint(entrypoint string) error {
	switch {
	case len(entrypoint) > MaxEntrypoint:
		return fmt.Errorf("the entrypoint has %d bytes, and %d is the most: put it into a script, and name that", len(entrypoint), MaxEntrypoint)
	case !utf8.ValidString(entrypoint):
		return fmt.Errorf("the entrypoint is not text in UTF-8")
	case strings.ContainsRune(entrypoint, 0):
		return fmt.Errorf("the entrypoint has a NUL character in it, which no command can have")
	case strings.TrimSpace(entrypoint) == "":
		return fmt.Errorf(`the entrypoint is empty: give the command to run, such as "python /home/user/train.py"`)
	}
	words, err := firstCommand(entrypoint)
	if err != nil {
		return err
	}
	for {
		for len(words) > 0 && (words[0] == "!" || words[0] == "{" || assignment.MatchString(words[0])) {
			words = words[1:]
		}
		if len(words) == 0 || words[0] == "" {
			return fmt.Errorf(`the entrypoint names no program to run; one looks like "python /home/user/train.py"`)
		}
		program := words[0]
		words = words[1:]
		name := program[strings.LastIndexByte(program, '/')+1:]
		if name != program && !absolute(program) {
			return relative("program", program, ", or a bare name that is on the PATH there")
		}
		if wrapper, ok := wrappers[name]; ok {
			for len(words) > 0 && strings.HasPrefix(words[0], "-") {
				words = words[min(1+values(wrapper.values, words[0]), len(words)):]
			}
			if len(words) <= wrapper.own {
				return nil
			}
			words = words[wrapper.own:]
			continue
		}
		script := ""
		switch {
		case pythonName.MatchString(name):
			script = scriptOf(words, "cm", "WX", "--check-hash-based-pycs")
		case slices.Contains(shells, name):
			script = scriptOf(words, "cs", "oO", "--rcfile", "--init-file")
		case (name == "." || name == "source") && len(words) > 0:
			script = words[0]
		}
		if script != "" && !absolute(script) {
			return relative("script", script, "")
		}
		return nil
	}
}

// values is how many words behind an option are its value.
func values(with []string, option string) int {
	if slices.Contains(with, option) {
		return 1
	}
	return 0
}

func relative(what, path, more string) error {
	if utf8.RuneCountInString(path) > 200 {
		path = string([]rune(path)[:200]) + "…"
	}
	quoted, _ := jsontext.AppendQuote(nil, path) // it is UTF-8
	return fmt.Errorf("the %s %s of the entrypoint is a relative path, and no cluster knows what it is relative to: give its absolute path%s", what, quoted, more)
}

// absolute is also what the shell there makes absolute: what begins with the home directory or a variable.
func absolute(path string) bool { return strings.IndexByte("/~$`", path[0]) >= 0 }

// scriptOf is the script among what stands behind an interpreter, "" when there is none. With an option of
// ends there is none; those of takes and long have a value, which the former may have in the same word.
func scriptOf(words []string, ends, takes string, long ...string) string {
next:
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		switch {
		case word == "-", word == "--" && len(words) == 0:
			return ""
		case word == "--":
			return words[0]
		case strings.HasPrefix(word, "--"):
			words = words[min(values(long, word), len(words)):]
		case strings.HasPrefix(word, "-"), strings.HasPrefix(word, "+"):
			for i := 1; i < len(word); i++ {
				if strings.IndexByte(ends, word[i]) >= 0 {
					return ""
				}
				if strings.IndexByte(takes, word[i]) >= 0 {
					if i == len(word)-1 {
						words = words[min(1, len(words)):]
					}
					continue next
				}
			}
		default:
			return word
		}
	}
	return ""
}

// splitter cuts a command into words as a POSIX shell does.
type splitter struct {
	words  []string
	word   []byte
	inWord bool // a word may be empty: ''
	skip   bool // the next word is a redirection's
	done   bool // the first command is over; quotes are still looked at
}

func (s *splitter) add(c ...byte) { s.word, s.inWord = append(s.word, c...), true }

func (s *splitter) end() {
	if s.inWord {
		if !s.skip && !s.done {
			s.words = append(s.words, string(s.word))
		}
		s.skip = false
	}
	s.word, s.inWord = s.word[:0], false
}

// firstCommand gives the words of the first command, without redirections. A quote that is never closed is an
// error wherever it is.
func firstCommand(text string) ([]string, error) {
	var s splitter
	at := func(i int) byte { // no command has a NUL
		if i < len(text) {
			return text[i]
		}
		return 0
	}
	hereDocument := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			if i++; i == len(text) {
				s.add(c)
			} else if text[i] != '\n' {
				s.add(text[i])
			}
		case c == '\'' || c == '"':
			s.add()
			for i++; i < len(text) && text[i] != c; i++ {
				if c == '"' && text[i] == '\\' && strings.IndexByte("\\\"$`\n", at(i+1)) >= 0 {
					if i++; text[i] == '\n' {
						continue
					}
				}
				s.add(text[i])
			}
			if i >= len(text) {
				return nil, fmt.Errorf("the entrypoint has a quote (%c) that is never closed", c)
			}
		case c == ' ' || c == '\t' || c == '\r':
			s.end()
		case c == '#' && !s.inWord:
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
		case c == '<' || c == '>' || c == '&' && at(i+1) == '>':
			if s.inWord && !whichStream.Match(s.word) {
				s.end()
			}
			s.word, s.inWord = s.word[:0], false
			begin := i + 1
			for i+1 < len(text) && strings.IndexByte("<>&|", text[i+1]) >= 0 {
				i++
			}
			hereDocument = hereDocument || c == '<' && text[begin:i+1] == "<"
			s.skip = true
		case strings.IndexByte(";&|()\n", c) >= 0:
			s.end()
			if c == '\n' && hereDocument {
				return s.words, nil // what follows is data
			}
			s.done, s.skip = s.done || len(s.words) > 0, false
		default:
			s.add(c)
		}
	}
	s.end()
	return s.words, nil
}
