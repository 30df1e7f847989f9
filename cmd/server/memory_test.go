package main

import "testing"

func TestTheBallastFollowsTheMemoryThereIs(t *testing.T) {
	t.Parallel()
	for memory, want := range map[int64]int64{0: 64 << 20, 2 << 30: 128 << 20, 8 << 30: 512 << 20, 64 << 30: 1 << 30} {
		if got := ballastSize(memory); got != want {
			t.Errorf("of %d MiB: %d MiB, want %d", memory>>20, got>>20, want>>20)
		}
	}
}
