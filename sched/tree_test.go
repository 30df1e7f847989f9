package sched

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

// A tree that grows and shrinks holds what a sorted list would, and each branch
// says the truth about what is below it.
func TestTreeIsASortedList(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var items []item
	var tree tree
	for step := range 60_000 {
		growing := step%20_000 < 11_000
		if len(items) == 0 || (r.IntN(10) < 8) == growing {
			e := &entry{task: &Task{Name: "same"}}
			binary.BigEndian.PutUint32(e.task.ID[:], uint32(step))
			it := item{priority: Milli(r.IntN(50)), start: Time(r.IntN(20)), end: Time(r.IntN(1000)), gives: shape{r.Int32N(5), r.Int32N(9)}, e: e}
			items = append(items, it)
			tree.insert(&it, 100)
		} else {
			i := r.IntN(len(items))
			tree.remove(&items[i], 100)
			items[i] = items[len(items)-1]
			items = items[:len(items)-1]
		}
		if step%1000 == 999 {
			want := slices.Clone(items)
			slices.SortFunc(want, func(a, b item) int { return a.compare(&b) })
			var got []item
			tree.each(func(it *item) { got = append(got, *it) })
			if !slices.Equal(got, want) || tree.n != len(want) {
				t.Fatalf("after %d steps it holds %d, should hold %d", step, len(got), len(want))
			}
			checkBranch(t, &tree.root)
			built := treeOf(want, 100)
			checkBranch(t, &built.root)
		}
	}
}

func checkBranch(t *testing.T, b *branch) {
	if b.sub == nil {
		return
	}
	said := *b
	if got := b.sub.summary(100); got != said {
		t.Fatalf("says %+v, is %+v", said, got)
	}
	if len(b.sub.items) > leafSize || len(b.sub.kids) > innerSize {
		t.Fatal("too large")
	}
	for i := range b.sub.kids {
		checkBranch(t, &b.sub.kids[i])
	}
}
