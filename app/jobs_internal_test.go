package app

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/schedulemesh/schedulemesh/clusters"
)

func TestTheTokenOfRayIsWhereRayLooksForIt(t *testing.T) {
	t.Parallel()
	home, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(home, ".ray", "auth_token")
	check := func(env map[string]string, want *clusters.Secret) {
		t.Helper()
		got := rayToken(func(name string) string { return env[name] })
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("with %v: %+v, want %+v", env, got, want)
		}
	}
	check(map[string]string{"HOME": home}, nil)
	check(map[string]string{}, nil)
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	check(map[string]string{"HOME": home}, &clusters.Secret{File: file})
	check(map[string]string{"HOME": home, "RAY_AUTH_TOKEN_PATH": other}, &clusters.Secret{File: other})
	check(map[string]string{"HOME": home, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "secret"}, &clusters.Secret{Env: "RAY_AUTH_TOKEN"})
	check(map[string]string{"HOME": home, "RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "secret"}, nil)
}

func TestADashboardOnLoopbackIsReachedOnlyBesideItsSidecar(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		bridge, dashboard string
		want              bool
	}{
		{"", "http://127.0.0.1:8265", true},
		{"unix:/run/s", "http://127.0.0.1:8265", true},
		{"http://localhost:9010", "http://127.0.0.1:8265", true},
		{"http://ray:9010", "http://127.0.0.1:8265", false},
		{"http://ray:9010", "http://[::1]:8265", false},
		{"http://ray:9010", "http://10.0.0.4:8265", true},
	} {
		if got := (&App{cfg: Config{BridgeURL: c.bridge}}).reaches(c.dashboard); got != c.want {
			t.Errorf("a sidecar at %q, a dashboard at %s: %v", c.bridge, c.dashboard, got)
		}
	}
}
