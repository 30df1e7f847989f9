package sched

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// The shape of an agenda depends on nothing but what is in it: filled at once it is the
// very tree that entering one by one makes, sums included.
func TestAnAgendaFilledAtOnceIsLikeOneFilledOneByOne(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 5))
	for range 200 {
		var entries []Entry
		var one, all Agenda
		for range rng.IntN(60) {
			e := Entry{At: Time(rng.IntN(20)), Amount: Resources{CPU: rng.Int64N(9)}.With("tpu", rng.Int64N(3))}
			binary.BigEndian.PutUint64(e.ID[:], rng.Uint64())
			entries = append(entries, e)
			one.Put(e.ID, e.At, e.Amount)
		}
		all.Put(ID{1}, 1, Resources{CPU: 1})
		all.Fill(entries)
		if !same(one.tree.root, all.tree.root) || len(one.tree.by) != len(all.tree.by) {
			t.Fatalf("of %d entries", len(entries))
		}
		for _, e := range entries[:len(entries)/2] {
			one.Remove(e.ID)
			all.Remove(e.ID)
		}
		if !same(one.tree.root, all.tree.root) {
			t.Fatalf("of %d entries, after half was removed", len(entries))
		}
	}
}

func same(a, b *mark) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.id == b.id && a.key == b.key && a.size == b.size && a.amount.Equal(b.amount) && a.sum.Equal(b.sum) && same(a.left, b.left) && same(a.right, b.right)
}
