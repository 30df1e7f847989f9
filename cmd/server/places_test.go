package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestDataLiesBesideACheckoutElseInTheUsersPlace(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("XDG_DATA_HOME", filepath.Join(dir, "share"))
	if data, err := defaultData(); err != nil || data != filepath.Join(dir, "share", "schedulemesh") {
		t.Errorf("elsewhere: %s, %v", data, err)
	}
	if err := os.MkdirAll(pythonProject, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(pythonProject, "requirements.lock"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if data, err := defaultData(); err != nil || data != ".data" {
		t.Errorf("in a checkout: %s, %v", data, err)
	}
}

func TestARayClusterIsGoneWhenAnotherIsInItsPlaceOrNobodyReachesIt(t *testing.T) {
	t.Parallel()
	const patience = 300 * time.Millisecond
	for name, c := range map[string]struct {
		looks []string // a cluster a look, "" for out of reach; the last one stays
		gone  bool
	}{
		"never there":           {[]string{""}, true},
		"there":                 {[]string{"", "a"}, false},
		"another in its place":  {[]string{"a", "b"}, true},
		"its sidecar restarted": {[]string{"a", "", "a"}, false},
		"out of reach":          {[]string{"a", ""}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
			defer cancel()
			n, last := 0, ""
			awaitRayGone(ctx, func() (string, string, bool) {
				now := c.looks[min(n, len(c.looks)-1)]
				n++
				if now != "" {
					last = now
				}
				return "", last, now != "" // what it was connected to last stays known
			}, patience)
			if gone := ctx.Err() == nil; gone != c.gone {
				t.Errorf("gone: %v", gone)
			}
		})
	}
}
