package local

import (
	"archive/zip"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// nowhere is a repository that has nothing to download.
func nowhere(t *testing.T) {
	t.Helper()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	t.Setenv("SCHEDULEMESH_POSTGRES_REPOSITORY", server.URL)
}

func TestTheArchiveBesideTheProgramIsTakenWithoutDownloading(t *testing.T) {
	archive, err := PostgresArchive(t.Context(), Platform(), func(line string) { t.Log(line) })
	if err != nil {
		t.Fatal(err)
	}
	beside, cache := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(beside, ArchiveName(Platform())), archive, 0o644); err != nil {
		t.Fatal(err)
	}
	nowhere(t)
	found, err := findArchive(t.Context(), beside, cache, nil)
	if err != nil || string(found) != string(archive) {
		t.Fatalf("found %d bytes, %v", len(found), err)
	}
	if err := unpack(found, cache); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"postgres", "initdb"} {
		if info, err := os.Stat(filepath.Join(cache, "bin", name)); err != nil || info.Mode().Perm()&0o111 != 0o111 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if _, err := findArchive(t.Context(), t.TempDir(), t.TempDir(), nil); err == nil || !strings.Contains(err.Error(), "404 Not Found; check the network") {
		t.Errorf("with nothing beside the program: %v", err)
	}
}

func TestAnArchiveThatWasTamperedWithIsRefused(t *testing.T) {
	nowhere(t)
	beside, cache := t.TempDir(), t.TempDir()
	path := filepath.Join(beside, ArchiveName(Platform()))
	if err := os.WriteFile(path, []byte("something else"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := findArchive(t.Context(), beside, cache, nil)
	if err == nil || !strings.Contains(err.Error(), "is not the one we know (SHA-256 ") || !strings.Contains(err.Error(), path) {
		t.Errorf("beside the program: %v", err)
	}

	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		jar := zip.NewWriter(w)
		if file, err := jar.Create("postgres.txz"); err == nil {
			_, _ = file.Write([]byte("something else"))
		}
		_ = jar.Close()
	}))
	t.Cleanup(served.Close)
	t.Setenv("SCHEDULEMESH_POSTGRES_REPOSITORY", served.URL)
	_, err = cachedArchive(context.Background(), cache, Platform(), nil)
	if err == nil || !strings.Contains(err.Error(), "is not the one we know") {
		t.Errorf("downloaded: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "*")); len(left) > 0 {
		t.Errorf("it is kept: %v", left)
	}
	if _, err := cachedArchive(t.Context(), cache, "plan9-mips", nil); err == nil {
		t.Error("there is a Postgres for Plan 9")
	}
}
