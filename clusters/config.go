package clusters

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ConfigError is what is wrong with a configuration file, and where.
type ConfigError struct {
	File         string
	Line, Column int // from 1; the column counts characters
	Message      string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// ReadConfig reads the text of a clusters.yaml (docs/clusters.md says what may be in it) into Specs in the order
// of the file. name is for messages. An error is a *ConfigError, of the first thing that is wrong.
func ReadConfig(name string, text []byte) ([]Spec, error) {
	root, err := readYAML(text)
	if err != nil {
		err.File = name
		return nil, err
	}
	r := &specReader{}
	specs := r.file(root)
	if len(r.problems) > 0 {
		first := slices.MinFunc(r.problems, func(a, b problem) int {
			if a.at.line != b.at.line {
				return a.at.line - b.at.line
			}
			return a.at.column - b.at.column
		})
		return nil, &ConfigError{File: name, Line: max(first.at.line, 1), Column: max(first.at.column, 1), Message: first.sentence()}
	}
	return specs, nil
}

// configVariable names the configuration file when no flag does.
const configVariable = "SCHEDULEMESH_CLUSTERS"

// FindConfig says where the configuration file is: what the flag says, else SCHEDULEMESH_CLUSTERS, both whether or
// not it is there; else ./clusters.yaml or schedulemesh/clusters.yaml in the user's configuration (XDG_CONFIG_HOME,
// ~/.config) if there is one. The path is absolute.
func FindConfig(flag string, getenv func(string) string) (path string, ok bool) {
	for _, said := range []string{flag, getenv(configVariable)} {
		if said != "" {
			return absolute(said), true
		}
	}
	home := getenv("XDG_CONFIG_HOME")
	if home == "" && getenv("HOME") != "" {
		home = filepath.Join(getenv("HOME"), ".config")
	}
	places := []string{"clusters.yaml"}
	if home != "" {
		places = append(places, filepath.Join(home, "schedulemesh", "clusters.yaml"))
	}
	for _, p := range places {
		if info, err := os.Stat(p); err == nil && !info.IsDir() {
			return absolute(p), true
		}
	}
	return "", false
}

func absolute(path string) string {
	if a, err := filepath.Abs(path); err == nil {
		return a
	}
	return path
}

// file reads the whole document: clusters: as a map by name, or as a list of maps with name.
func (r *specReader) file(root *value) []Spec {
	if root.kind != isObject {
		r.bad(root, "", "this is %s; the file must begin with clusters:", root.kind)
		return nil
	}
	var list *value
	for _, p := range root.pairs {
		switch {
		case p.key == "clusters":
			list = p.value
		case strings.HasPrefix(p.key, "x-"): // a place for what aliases refer to
		default:
			r.bad(p.at, "", "unknown field %q%s", p.key, near(p.key, []string{"clusters"}, "the file has clusters:, and fields of your own that begin with x-"))
		}
	}
	if list == nil {
		if len(r.problems) == 0 {
			r.bad(root, "", "there is no clusters: in this file; list the clusters under it")
		}
		return nil
	}
	var specs []Spec
	first := map[string]*value{}
	add := func(name string, at, v *value) {
		if was := first[name]; was != nil {
			r.bad(at, "", "cluster %q is there already, in line %d; names are given once", name, was.line)
			return
		}
		first[name] = at
		specs = append(specs, r.spec(name, at, v))
	}
	switch list.kind {
	case isObject:
		for _, p := range list.pairs {
			add(p.key, p.at, p.value)
		}
	case isList:
		for _, item := range list.items {
			if item.kind != isObject {
				r.bad(item, "", "this is %s; each cluster of a list is a map with name and head_address", item.kind)
				continue
			}
			name := item.get("name")
			if name == nil {
				r.bad(item, "", "this cluster has no name; add name: to it")
				continue
			}
			add(r.text(name, "name"), name, item)
		}
	case isNull:
		r.bad(list, "", "clusters: has nothing under it; indent the clusters by two spaces, or write clusters: {} for none")
	default:
		r.bad(list, "", "clusters: is %s; it must be a map of clusters by name, or a list of them", list.kind)
	}
	return specs
}
