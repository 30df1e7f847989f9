package clustertest

import (
	"os"
	"testing"
)

// Dashboard gives the URL of the dashboard of the real Ray cluster that all tests share, as
// SCHEDULEMESH_TEST_RAY_DASHBOARD says. Without one the test is skipped, or fails under CI=true.
func Dashboard(t testing.TB) string {
	t.Helper()
	url := os.Getenv("SCHEDULEMESH_TEST_RAY_DASHBOARD")
	if url == "" {
		const why = "no real Ray: set SCHEDULEMESH_TEST_RAY_DASHBOARD to the URL of its dashboard; `make test` starts one"
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	return url
}
