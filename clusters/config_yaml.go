package clusters

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds on a configuration file. The parser takes quadratic time for what is deep or has very many entries.
const (
	maxConfigBytes = 1 << 20
	maxDepth       = 64
	maxEntries     = 10_000
	maxMerged      = 1_000_000 // entries that merge keys bring, in a whole file
)

// kind is what sort of thing a value is, in words for people.
type kind string

const (
	isObject kind = "a map"
	isList   kind = "a list"
	isText   kind = "text"
	isNumber kind = "a number"
	isBool   kind = "true or false"
	isNull   kind = "empty"
)

// value is one value of YAML or JSON, and where it stands. Aliases point to what they mean, so a value may be
// part of several others and is never changed.
type value struct {
	kind         kind
	text         string // of a scalar, as written
	number       json.Number
	finite       bool // number can be written in JSON
	truth        bool
	pairs        []pair
	items        []*value
	line, column int // 0: not of a file
}

type pair struct {
	key   string
	at    *value // where the key stands
	value *value
}

func (v *value) get(key string) *value {
	for _, p := range v.pairs {
		if p.key == key {
			return p.value
		}
	}
	return nil
}

// readYAML reads one document. It never panics, whatever the text.
func readYAML(text []byte) (root *value, problem *ConfigError) {
	fail := func(line, column int, format string, args ...any) (*value, *ConfigError) {
		return nil, &ConfigError{Line: max(line, 1), Column: max(column, 1), Message: fmt.Sprintf(format, args...)}
	}
	if len(text) > maxConfigBytes {
		return fail(1, 1, "the file has %d bytes; at most %d are read", len(text), maxConfigBytes)
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if line, column, ok := plainText(text); !ok {
		return fail(line, column, "there is a byte that is no UTF-8 text here; save the file as UTF-8")
	}
	defer func() { // the parser is not ours
		if p := recover(); p != nil {
			root, problem = fail(1, 1, "the file cannot be read as YAML (%v)", p)
		}
	}()
	tokens := lexer.Tokenize(string(text))
	if t, why := tooMuch(tokens); t != nil {
		return fail(t.Position.Line, t.Position.Column, "%s", why)
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var e yaml.Error
		if errors.As(err, &e) && e.GetToken() != nil && e.GetToken().Position != nil {
			at := e.GetToken().Position
			return fail(at.Line, at.Column, "%s", syntax(e.GetMessage()))
		}
		return fail(1, 1, "%s", syntax(err.Error()))
	}
	var body ast.Node
	for _, d := range file.Docs {
		switch {
		case d.Body == nil:
		case body == nil:
			body = d.Body
		default:
			at := place(d.Body)
			if d.Start != nil && d.Start.Position != nil {
				at.line, at.column = d.Start.Position.Line, d.Start.Position.Column
			}
			return fail(at.line, at.column, "a second document begins here; put all clusters into one and remove the ---")
		}
	}
	if body == nil {
		return fail(1, 1, "the file is empty; it must begin with clusters: and have clusters under it")
	}
	t := &treeBuilder{anchors: map[string]*value{}}
	root = t.build(body, 0)
	if t.problem != nil {
		return nil, t.problem
	}
	return root, nil
}

// plainText finds the first byte that is not UTF-8, or is zero.
func plainText(text []byte) (line, column int, ok bool) {
	line, column = 1, 1
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && size == 1, r == 0:
			return line, column, false
		case r == '\n':
			line, column = line+1, 0
		}
		text, column = text[size:], column+1
	}
	return 0, 0, true
}

// syntax says in words of ours what the parser could not read.
func syntax(message string) string {
	hint := "look at the indentation and the quotes around here"
	switch {
	case strings.Contains(message, "\\t") || strings.Contains(message, "\t"):
		hint = "indent with spaces, not with tabs"
	case strings.Contains(message, "sequence end"), strings.Contains(message, "']' must be specified"):
		hint = "close the list with ] before here"
	case strings.Contains(message, "flow map"), strings.Contains(message, "'}' must be specified"):
		hint = "close the map with } before here"
	case strings.Contains(message, "end character"):
		hint = "close the quotes"
	case strings.Contains(message, "mapping value is not allowed"):
		hint = "put text with a colon in it into quotes"
	case strings.Contains(message, "anchor"):
		hint = "an alias *name needs an anchor &name before it"
	}
	return fmt.Sprintf("this is not YAML: %s; %s", strings.ReplaceAll(message, "\t", "\\t"), hint)
}

// tooMuch finds what the parser had better not see.
func tooMuch(tokens token.Tokens) (*token.Token, string) {
	type level struct{ column, entries int }
	var block []level
	flow := 0
	// enter notes an entry of a block that begins in a column, and what ends with it.
	enter := func(column int) *level {
		for len(block) > 0 && block[len(block)-1].column > column {
			block = block[:len(block)-1]
		}
		if len(block) == 0 || block[len(block)-1].column < column {
			block = append(block, level{column: column})
		}
		return &block[len(block)-1]
	}
	for _, t := range tokens {
		if t.Position == nil {
			continue
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.MappingKeyType:
			return t, "keys that begin with ? are not read here; write key: value"
		case token.SequenceEntryType:
			if flow <= 0 {
				enter(t.Position.Column)
			}
		case token.MappingValueType:
			if flow <= 0 && t.Prev != nil && t.Prev.Position != nil {
				l := enter(t.Prev.Position.Column)
				if l.entries++; l.entries > maxEntries {
					return t, fmt.Sprintf("this map has more than %d entries", maxEntries)
				}
			}
		}
		if flow > maxDepth || len(block) > maxDepth {
			return t, fmt.Sprintf("this is nested more than %d levels deep", maxDepth)
		}
	}
	return nil, ""
}

// treeBuilder makes values of the parser's nodes. Anchors are known from where they end, so nothing contains itself.
type treeBuilder struct {
	anchors map[string]*value
	merged  int
	problem *ConfigError // the first
}

func (t *treeBuilder) bad(at *value, format string, args ...any) *value {
	if t.problem == nil {
		t.problem = &ConfigError{Line: max(at.line, 1), Column: max(at.column, 1), Message: fmt.Sprintf(format, args...)}
	}
	return at
}

// place is an empty value where a node stands.
func place(n ast.Node) *value {
	v := &value{kind: isNull}
	if t := n.GetToken(); t != nil && t.Position != nil {
		v.line, v.column = t.Position.Line, t.Position.Column
	}
	return v
}

func (t *treeBuilder) build(n ast.Node, depth int) *value {
	if n == nil {
		return &value{kind: isNull}
	}
	v := place(n)
	if depth > maxDepth {
		return t.bad(v, "this is nested more than %d levels deep", maxDepth)
	}
	switch n := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return t.mapping(v, n.(ast.MapNode), depth)
	case *ast.SequenceNode:
		v.kind = isList
		for _, item := range n.Values {
			v.items = append(v.items, t.build(item, depth+1))
		}
	case *ast.AnchorNode:
		made := t.build(n.Value, depth+1)
		if n.Name != nil && n.Name.GetToken() != nil {
			t.anchors[n.Name.GetToken().Value] = made
		}
		return made
	case *ast.AliasNode:
		name := ""
		if n.Value != nil && n.Value.GetToken() != nil {
			name = n.Value.GetToken().Value
		}
		meant := t.anchors[name]
		if meant == nil {
			return t.bad(v, "the alias *%s has no anchor &%s that ends before it", name, name)
		}
		alias := *meant // what is wrong with it is said where it is used
		alias.line, alias.column = v.line, v.column
		return &alias
	case *ast.TagNode:
		scalar := t.build(n.Value, depth+1)
		if v.text = ""; n.Start == nil || n.Start.Value != "!!str" || scalar.kind == isObject || scalar.kind == isList {
			return t.bad(v, "tags that begin with ! are not read here; remove it")
		}
		v.kind, v.text = isText, scalar.text
	case *ast.StringNode:
		v.kind, v.text = isText, n.Value
	case *ast.LiteralNode:
		v.kind = isText
		if n.Value != nil {
			v.text = n.Value.Value
		}
	case *ast.IntegerNode:
		v.kind, v.text, v.finite = isNumber, n.Token.Value, true
		v.number = json.Number(fmt.Sprint(n.Value))
	case *ast.FloatNode:
		v.setFloat(n.Token.Value, n.Value)
	case *ast.InfinityNode:
		v.setFloat(n.Token.Value, n.Value)
	case *ast.NanNode:
		v.setFloat(n.Token.Value, math.NaN())
	case *ast.BoolNode:
		v.kind, v.text, v.truth = isBool, n.Token.Value, n.Value
	case *ast.NullNode:
		v.kind = isNull
	default:
		return t.bad(v, "this cannot be read here; write plain maps, lists and text")
	}
	return v
}

func (v *value) setFloat(text string, f float64) {
	v.kind, v.text = isNumber, text
	if v.finite = !math.IsNaN(f) && !math.IsInf(f, 0); v.finite {
		v.number = json.Number(strconv.FormatFloat(f, 'g', -1, 64))
	}
}

// mapping adds what merge keys bring after what is said in the map itself, which counts.
func (t *treeBuilder) mapping(v *value, n ast.MapNode, depth int) *value {
	v.kind = isObject
	at := map[string]*value{}
	var merges []*value
	for pairs := n.MapRange(); pairs.Next(); {
		kv := pairs.KeyValue()
		if kv == nil || kv.Key == nil {
			continue
		}
		key := place(kv.Key)
		if len(at) == 0 && len(merges) == 0 && key.line > 0 && (key.line < v.line || key.line == v.line && key.column < v.column) {
			v.line, v.column = key.line, key.column // not where its colon is
		}
		if kv.Key.IsMergeKey() {
			merges = append(merges, t.build(kv.Value, depth+1))
			continue
		}
		switch k := kv.Key.(type) {
		case *ast.StringNode:
			key.text = k.Value
		case ast.ScalarNode:
			key.text = k.GetToken().Value
		default:
			return t.bad(key, "a key must be plain text")
		}
		if was := at[key.text]; was != nil {
			return t.bad(key, "%q is there already, in line %d; each key is given once", key.text, was.line)
		}
		at[key.text] = key
		v.pairs = append(v.pairs, pair{key.text, key, t.build(kv.Value, depth+1)})
		if last := &v.pairs[len(v.pairs)-1]; last.value.line == 0 || last.value.kind == isNull {
			last.value.line, last.value.column = key.line, key.column // nothing was written
		}
	}
	for _, m := range merges {
		sources := []*value{m}
		if m.kind == isList {
			sources = m.items
		}
		for _, source := range sources {
			if source.kind != isObject {
				return t.bad(m, "<<: wants a map, or a list of maps, and this is %s", source.kind)
			}
			if t.merged += len(source.pairs); t.merged > maxMerged {
				return t.bad(m, "the merge keys << of this file bring more than %d entries", maxMerged)
			}
			for _, p := range source.pairs {
				if at[p.key] == nil {
					at[p.key] = p.at
					v.pairs = append(v.pairs, p)
				}
			}
		}
	}
	return v
}

// jsonValue makes a value of what encoding/json decoded with UseNumber.
func jsonValue(x any) *value {
	v := &value{}
	switch x := x.(type) {
	case map[string]any:
		v.kind = isObject
		for key, item := range x {
			v.pairs = append(v.pairs, pair{key, &value{}, jsonValue(item)})
		}
		slices.SortFunc(v.pairs, func(a, b pair) int { return strings.Compare(a.key, b.key) })
	case []any:
		v.kind = isList
		for _, item := range x {
			v.items = append(v.items, jsonValue(item))
		}
	case string:
		v.kind, v.text = isText, x
	case json.Number:
		v.kind, v.text, v.number = isNumber, x.String(), x
		f, err := x.Float64()
		v.finite = err == nil && !math.IsInf(f, 0)
	case bool:
		v.kind, v.truth, v.text = isBool, x, strconv.FormatBool(x)
	default:
		v.kind = isNull
	}
	return v
}

// plain makes of a value what encoding/json would have decoded. What aliases multiply is bounded by left, in bytes.
func (v *value) plain(left *int) (any, *value, string) {
	if *left -= len(v.text) + 8; *left < 0 {
		return nil, v, fmt.Sprintf("runtime_env would be larger than %d bytes", maxEnvBytes)
	}
	switch v.kind {
	case isObject:
		out := make(map[string]any, len(v.pairs))
		for _, p := range v.pairs {
			*left -= len(p.key)
			item, at, why := p.value.plain(left)
			if why != "" {
				return nil, at, why
			}
			out[p.key] = item
		}
		return out, nil, ""
	case isList:
		out := make([]any, 0, len(v.items))
		for _, i := range v.items {
			item, at, why := i.plain(left)
			if why != "" {
				return nil, at, why
			}
			out = append(out, item)
		}
		return out, nil, ""
	case isText:
		return v.text, nil, ""
	case isNumber:
		if !v.finite {
			return nil, v, fmt.Sprintf("%s is not a number that can be sent", v.text)
		}
		return v.number, nil, ""
	case isBool:
		return v.truth, nil, ""
	}
	return nil, nil, ""
}
