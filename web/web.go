// Package web is what a browser sees: templ layouts, components and pages, and
// the view models they are drawn from, with the formatting that turns fixed-point
// amounts, durations and times into words.
//
// It runs no queries, reads no clock (Page.Now is handed in) and imports nothing
// of ours but the names of the static assets. Handlers fill the view models.
package web

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Frame is what the frame around every page shows of a namespace.
type Frame struct {
	Namespaces []string // all there are, "default" included
	Pools      int
	LiveTasks  int
	Agents     int
	LiveJobs   int // of all namespaces, as clusters are
	Clusters   int
}

// Page is everything a page's frame needs, made by the handler for each request.
type Page struct {
	Frame
	Title     string // of the window
	Section   string // the navigation entry that is current: "overview", "tasks", …
	Namespace string
	User      string // shown in the header; "" hides it
	SignOut   string // where the sign-out form posts to; "" hides it
	Flashes   []Flash
	Now       time.Time
	Self      *url.URL // the address of this page, for fragments that fetch themselves again
	Origin    string   // scheme://host, for the examples a reader can paste
	Version   string   // of the server, in the footer
}

// DefaultNamespace is the one meant when none is named.
const DefaultNamespace = "default"

// Flash is one message shown once, at the top of the next page.
type Flash struct {
	Kind string `json:"k"` // ok, warn or bad
	Text string `json:"t"`
}

// To gives the address of a page in the same namespace: path, then key, value pairs. Empty values are left out.
func (p Page) To(path string, pairs ...string) string {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Add(pairs[i], pairs[i+1])
		}
	}
	if p.Namespace != "" && p.Namespace != DefaultNamespace {
		q.Set("namespace", p.Namespace)
	}
	if len(q) == 0 {
		return path
	}
	return path + "?" + q.Encode()
}

// With gives the address of this page with one query parameter changed; "" removes it. Paging starts anew.
func (p Page) With(pairs ...string) string {
	q := p.Self.Query()
	q.Del("cursor")
	for i := 0; i+1 < len(pairs); i += 2 {
		q.Del(pairs[i])
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	if len(q) == 0 {
		return p.Self.EscapedPath()
	}
	return p.Self.EscapedPath() + "?" + q.Encode()
}

// Here is this page's own address.
func (p Page) Here() string { return p.Self.RequestURI() }

// Task is the address of a task's page.
func (p Page) Task(id string, pairs ...string) string {
	return p.To("/tasks/"+url.PathEscape(id), pairs...)
}

// TaskDo is the address of one of a task's actions.
func (p Page) TaskDo(id, action string) string {
	return p.To("/tasks/" + url.PathEscape(id) + "/" + action)
}

// Pool is the address of a pool's page.
func (p Page) Pool(name string) string { return p.To("/pools/" + url.PathEscape(name)) }

// PoolDo is the address of one of a pool's actions.
func (p Page) PoolDo(name, action string) string {
	return p.To("/pools/" + url.PathEscape(name) + "/" + action)
}

// Preemption is the address of one preemption's explanation.
func (p Page) Preemption(id string) string { return p.To("/preemptions/" + url.PathEscape(id)) }

// API is the address of a REST resource in this namespace, absolute, for examples and downloads.
func (p Page) API(path string, pairs ...string) string {
	return p.Origin + p.To("/api/v1"+path, pairs...)
}

type pageKey struct{}

// WithPage hands the page to the components below it, so that a link deep down keeps its namespace.
func WithPage(ctx context.Context, p Page) context.Context {
	return context.WithValue(ctx, pageKey{}, p)
}

func page(ctx context.Context) Page {
	p, _ := ctx.Value(pageKey{}).(Page)
	if p.Self == nil {
		p.Self = &url.URL{Path: "/"}
	}
	return p
}

// Part is a piece of a sentence: plain text, or a name that can be followed.
type Part struct {
	Text       string
	Task       string // the task meant: rendered as a link
	Pool       string
	Preemption string // its id
	Href       string // any other page of ours, without the namespace
	Strong     bool
	Code       bool
}

// Line is a sentence made of parts.
type Line []Part

// Text is a plain part.
func Text(s string) Part { return Part{Text: s} }

// Strong is a part that matters most.
func Strong(s string) Part { return Part{Text: s, Strong: true} }

// Code is a part that stands as typed.
func Code(s string) Part { return Part{Text: s, Code: true} }

// TaskRef is a link to a task.
func TaskRef(id string) Part { return Part{Text: id, Task: id} }

// PoolRef is a link to a pool.
func PoolRef(name string) Part { return Part{Text: name, Pool: name} }

// Link is a link to another page, by its path without the namespace.
func Link(text, href string) Part { return Part{Text: text, Href: href} }

// Say is a line of one plain part, or no line at all for "".
func Say(s string) Line {
	if s == "" {
		return nil
	}
	return Line{Text(s)}
}

// String is the line without its links, for titles and tests.
func (l Line) String() string {
	var b strings.Builder
	for _, p := range l {
		b.WriteString(p.Text)
	}
	return b.String()
}

// Note is a remark that asks for attention. Kind is ok, warn, bad or info.
type Note struct {
	Kind  string
	Title Line
	Text  Line
}

// Escape makes a name a piece of a path.
func Escape(segment string) string { return url.PathEscape(segment) }

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// LogStep is how much of a log a page shows, in bytes.
const LogStep = 64 << 10

// earlier is the offset of the stretch of log before this one.
func earlier(c LogChunk) string { return itoa(max(0, c.Offset-LogStep)) }

// PolicyVersion is the address of one version of the policy.
func (p Page) PolicyVersion(n int) string { return p.To("/policy/versions/" + strconv.Itoa(n)) }
