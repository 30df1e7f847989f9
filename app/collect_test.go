package app

import "testing"

func TestGarbageMayGatherByWhatLives(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int{0: 400, 64 << 20: 400, 256 << 20: 400, 512 << 20: 200, 1 << 30: 100, 8 << 30: 100} {
		if got := percentFor(live); got != want {
			t.Errorf("%d MiB live: %d %%, want %d", live>>20, got, want)
		}
	}
}
