package web

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Graph is the picture of one label's rules: who goes before whom, left to right.
type Graph struct {
	Key           string
	Width, Height int
	Boxes         []GraphBox
	Arrows        []GraphArrow
	Words         string // the same in a sentence
}

// GraphBox is a label value.
type GraphBox struct {
	Name    string
	X, Y, W int
	Bad     bool // on a circle
}

// GraphArrow says that one value may preempt another. Path and Head are SVG path data.
type GraphArrow struct {
	Path, Head string
	Bad        bool // closes a circle
}

const (
	boxHeight = 32
	rowStep   = 48
	laneGap   = 84
	maxBoxes  = 60 // beyond which a picture says less than its words
)

// node is a box, or a bend of an arrow that passes a column.
type node struct {
	name  string // "" for a bend
	layer int
	row   float64
	w     int
	x, y  int
}

// Graphs draws the rules of every label, by key.
func Graphs(rules map[string]map[string][]string) []Graph {
	var out []Graph
	for _, key := range slices.Sorted(maps.Keys(rules)) {
		out = append(out, draw(key, rules[key]))
	}
	return out
}

// draw lays values out in columns, each to the right of all that may preempt it, lets long arrows
// pass through lanes of their own, and orders the columns so that few arrows cross.
func draw(key string, rules map[string][]string) Graph {
	g := Graph{Key: key, Words: ruleWords(rules)}
	names := map[string]bool{}
	for v, over := range rules {
		names[v] = true
		for _, o := range over {
			names[o] = true
		}
	}
	if len(names) == 0 || len(names) > maxBoxes {
		return g
	}
	order := slices.Sorted(maps.Keys(names))
	back := backEdges(order, rules)
	layer := layers(order, rules, back)

	at := map[string]*node{}
	columns := make([][]*node, 0)
	put := func(n *node) *node {
		for len(columns) <= n.layer {
			columns = append(columns, nil)
		}
		n.row = float64(len(columns[n.layer]))
		columns[n.layer] = append(columns[n.layer], n)
		return n
	}
	for _, v := range order {
		at[v] = put(&node{name: v, layer: layer[v], w: boxWidth(v)})
	}
	type route struct {
		from, to string
		via      []*node // from, bends, to
	}
	var routes []route
	next := map[*node][]*node{}
	prev := map[*node][]*node{}
	for _, v := range order {
		for _, o := range slices.Sorted(slices.Values(rules[v])) {
			r := route{v, o, []*node{at[v]}}
			if !back[[2]string{v, o}] {
				for l := layer[v] + 1; l < layer[o]; l++ {
					r.via = append(r.via, put(&node{layer: l}))
				}
			}
			r.via = append(r.via, at[o])
			routes = append(routes, r)
			if !back[[2]string{v, o}] {
				for i := 1; i < len(r.via); i++ {
					a, b := r.via[i-1], r.via[i]
					next[a], prev[b] = append(next[a], b), append(prev[b], a)
				}
			}
		}
	}
	for range 6 { // each column by the middle of its neighbours, forwards and back
		for i := range columns {
			sortColumn(columns[i], prev)
		}
		for i := len(columns) - 1; i >= 0; i-- {
			sortColumn(columns[i], next)
		}
	}

	tallest := 0
	for _, c := range columns {
		tallest = max(tallest, len(c))
	}
	x := 8
	for _, c := range columns {
		w := 0
		for _, n := range c {
			w = max(w, n.w)
		}
		offset := (tallest - len(c)) * rowStep / 2
		for i, n := range c {
			n.x, n.y = x+(w-n.w)/2, 8+offset+i*rowStep
			if n.name == "" {
				n.x, n.w = x, w
			}
		}
		x += w + laneGap
	}
	g.Width, g.Height = x-laneGap+8, 16+tallest*rowStep-(rowStep-boxHeight)

	onCircle := map[string]bool{}
	for e := range back {
		onCircle[e[0]], onCircle[e[1]] = true, true
	}
	for _, v := range order {
		n := at[v]
		g.Boxes = append(g.Boxes, GraphBox{v, n.x, n.y, n.w, onCircle[v]})
	}
	// arrows that end at the same box arrive side by side
	arriving, leaving := map[*node][]*node{}, map[*node][]*node{}
	for _, r := range routes {
		last, first := r.via[len(r.via)-1], r.via[0]
		arriving[last] = append(arriving[last], r.via[len(r.via)-2])
		leaving[first] = append(leaving[first], r.via[1])
	}
	for _, r := range routes {
		bad := back[[2]string{r.from, r.to}]
		g.Arrows = append(g.Arrows, arrow(r.via, arriving, leaving, bad, &g.Height))
	}
	return g
}

// port is the height at which an arrow meets a box: spread over its side in the order of where they lead.
func port(n *node, others []*node, other *node) int {
	sorted := slices.Clone(others)
	slices.SortStableFunc(sorted, func(a, b *node) int { return cmp.Compare(a.y, b.y) })
	i := slices.Index(sorted, other)
	step := min(9, (boxHeight-10)/max(1, len(sorted)))
	return n.y + boxHeight/2 + i*step - (len(sorted)-1)*step/2
}

func arrow(via []*node, arriving, leaving map[*node][]*node, bad bool, height *int) GraphArrow {
	first, last := via[0], via[len(via)-1]
	var b strings.Builder
	if bad { // back to an earlier column: below everything
		low := max(first.y, last.y) + boxHeight + 22
		*height = max(*height, low+8)
		x1, x2 := first.x+first.w/2, last.x+last.w/2
		if first == last {
			x1, x2 = x1+14, x2-14
		}
		y1, y2 := first.y+boxHeight, last.y+boxHeight
		fmt.Fprintf(&b, "M%d %d C%d %d %d %d %d %d", x1, y1, x1, low, x2, low, x2, y2+7)
		return GraphArrow{b.String(), fmt.Sprintf("M%d %dl-4 8h8z", x2, y2), true}
	}
	x, y := first.x+first.w, port(first, leaving[first], via[1])
	fmt.Fprintf(&b, "M%d %d", x, y)
	to := func(nx, ny int) {
		mid := (x + nx) / 2
		fmt.Fprintf(&b, " C%d %d %d %d %d %d", mid, y, mid, ny, nx, ny)
		x, y = nx, ny
	}
	for _, n := range via[1 : len(via)-1] {
		to(n.x, n.y+boxHeight/2)
		x, y = n.x+n.w, n.y+boxHeight/2
		fmt.Fprintf(&b, " H%d", x)
	}
	endY := port(last, arriving[last], via[len(via)-2])
	to(last.x-6, endY)
	return GraphArrow{b.String(), fmt.Sprintf("M%d %dl-8 -4v8z", last.x, endY), false}
}

func sortColumn(c []*node, neighbours map[*node][]*node) {
	middle := map[*node]float64{}
	for _, n := range c {
		middle[n] = n.row
		if ns := neighbours[n]; len(ns) > 0 {
			sum := 0.0
			for _, m := range ns {
				sum += m.row
			}
			middle[n] = sum / float64(len(ns))
		}
	}
	slices.SortStableFunc(c, func(a, b *node) int { return cmp.Compare(middle[a], middle[b]) })
	for i, n := range c {
		n.row = float64(i) - float64(len(c)-1)/2
	}
}

// backEdges are the rules that close a circle, found in a fixed order.
func backEdges(order []string, rules map[string][]string) map[[2]string]bool {
	back := map[[2]string]bool{}
	mark := map[string]int{} // 1: on the path, 2: done
	var visit func(string)
	visit = func(v string) {
		mark[v] = 1
		for _, o := range slices.Sorted(slices.Values(rules[v])) {
			switch mark[o] {
			case 0:
				visit(o)
			case 1:
				back[[2]string{v, o}] = true
			}
		}
		mark[v] = 2
	}
	// begin where nobody leads, so that a circle is closed at its last rule
	led := map[string]bool{}
	for _, over := range rules {
		for _, o := range over {
			led[o] = true
		}
	}
	for _, v := range order {
		if !led[v] && mark[v] == 0 {
			visit(v)
		}
	}
	for _, v := range order {
		if mark[v] == 0 {
			visit(v)
		}
	}
	return back
}

// layers gives each value the length of the longest way to it.
func layers(order []string, rules map[string][]string, back map[[2]string]bool) map[string]int {
	layer := map[string]int{}
	for changed, rounds := true, 0; changed && rounds <= len(order); rounds++ {
		changed = false
		for _, v := range order {
			for _, o := range rules[v] {
				if !back[[2]string{v, o}] && layer[o] <= layer[v] {
					layer[o], changed = layer[v]+1, true
				}
			}
		}
	}
	return layer
}

func boxWidth(name string) int {
	w := 0
	for _, r := range Cut(name, 22) {
		if r < 0x1100 {
			w += 7
		} else {
			w += 13 // CJK, emoji
		}
	}
	return max(64, w+24)
}

// ruleWords says rules in a sentence: "rlhf may preempt pretraining and sft; sft may preempt pretraining".
func ruleWords(rules map[string][]string) string {
	var out []string
	for _, v := range slices.Sorted(maps.Keys(rules)) {
		over := make([]string, len(rules[v]))
		for i, o := range rules[v] {
			over[i] = Cut(o, 60)
		}
		out = append(out, Cut(v, 60)+" may preempt "+and(over))
	}
	return strings.Join(out, "; ")
}

// and joins words as one says them.
func and(words []string) string {
	switch n := len(words); n {
	case 0:
		return "nobody"
	case 1:
		return words[0]
	default:
		return strings.Join(words[:n-1], ", ") + " and " + words[n-1]
	}
}
