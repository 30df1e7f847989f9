package web

import "strings"

// DiffLine is a line of a comparison: Op is ' ', '+', '-', or '…' for lines left out.
type DiffLine struct {
	Op   rune
	Text string
}

// Diff compares two texts line by line and keeps three lines around what changed.
func Diff(before, after string) []DiffLine {
	a, b := lines(before), lines(after)
	var all []DiffLine
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		all, a, b = append(all, DiffLine{' ', a[0]}), a[1:], b[1:]
	}
	var tail []DiffLine
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		tail, a, b = append(tail, DiffLine{' ', a[len(a)-1]}), a[:len(a)-1], b[:len(b)-1]
	}
	all = append(all, middle(a, b)...)
	for i := len(tail) - 1; i >= 0; i-- {
		all = append(all, tail[i])
	}
	return trim(all, 3)
}

func lines(s string) []string {
	if s = strings.TrimRight(s, "\n"); s == "" {
		return nil
	}
	return strings.Split(s, "\n")
}

// middle compares what differs, by longest common subsequence while that is affordable.
func middle(a, b []string) []DiffLine {
	var out []DiffLine
	if len(a)*len(b) > 4_000_000 {
		for _, s := range a {
			out = append(out, DiffLine{'-', s})
		}
		for _, s := range b {
			out = append(out, DiffLine{'+', s})
		}
		return out
	}
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out, i, j = append(out, DiffLine{' ', a[i]}), i+1, j+1
		case i < len(a) && (j == len(b) || common[i+1][j] >= common[i][j+1]):
			out, i = append(out, DiffLine{'-', a[i]}), i+1
		default:
			out, j = append(out, DiffLine{'+', b[j]}), j+1
		}
	}
	return out
}

// trim leaves out unchanged lines further than around from a change; nil when nothing changed.
func trim(all []DiffLine, around int) []DiffLine {
	keep := make([]bool, len(all))
	for i, l := range all {
		if l.Op == ' ' {
			continue
		}
		for j := max(0, i-around); j <= min(len(all)-1, i+around); j++ {
			keep[j] = true
		}
	}
	var out []DiffLine
	gap := false
	for i, l := range all {
		if keep[i] {
			if gap && len(out) > 0 {
				out = append(out, DiffLine{'…', ""})
			}
			out, gap = append(out, l), false
			continue
		}
		gap = true
	}
	return out
}
