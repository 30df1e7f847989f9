package local

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/xi2/xz"
)

// postgresVersion is the Postgres we bring, as the project that builds its programs
// for every platform, zonkyio/embedded-postgres-binaries, numbers it.
const postgresVersion = "18.3.0"

// postgresArchives are the archives we know, with their SHA-256: what is unpacked and
// run is what was reviewed.
var postgresArchives = map[string]string{
	"linux-amd64":        "e09b13df10e9df257275d498b19b8c214a3e86d7a5d8cd263b0860e308e8b0b6",
	"linux-amd64-alpine": "5e47f96951026dc460b876fa62379f7c7666eb6293d076900e2c71703e5a1de6",
	"linux-arm64":        "f9695b61cff9e5c9b8e02a938158740a711c7a55304dd49ca634c8b947bf6b27",
	"darwin-amd64":       "2c5f22fa675ee78264a2ea8c7543310c32590465a4f72fb4287ca65ec484f7dd",
	"darwin-arm64":       "61f9b7026404f15abd4ec7e5724f672795c08cecc58ece212f85da3bf4de2b91",
}

// Platform is this machine's, as the archives are named.
func Platform() string {
	platform := runtime.GOOS + "-" + runtime.GOARCH
	if runtime.GOOS == "linux" && isFile("/etc/alpine-release") {
		platform += "-alpine" // another C library
	}
	return platform
}

// postgresBinaries returns the directory that has bin/postgres, unpacking it into the
// cache once: from an archive that lies beside this program, as in our Python wheel,
// or else from one that is downloaded. The account that will run it must be able to
// walk there.
func postgresBinaries(ctx context.Context, cache string, as *account, progress Progress) (string, error) {
	if cache == "" {
		dir, err := CacheDir()
		if err != nil {
			return "", err
		}
		if ok, _ := as.reaches(dir); !ok {
			// Root's home is closed to others; this is the machine's cache.
			dir = "/var/cache/schedulemesh"
		}
		cache = dir
	}
	home := filepath.Join(cache, fmt.Sprintf("postgres-%s-%s", postgresVersion, Platform()))
	if isFile(filepath.Join(home, "bin", "postgres")) {
		return home, nil
	}
	lock, err := lockCache(ctx, cache, progress)
	if err != nil {
		return "", err
	}
	defer lock.release()
	if isFile(filepath.Join(home, "bin", "postgres")) {
		return home, nil
	}

	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	archive, err := findArchive(ctx, filepath.Dir(self), cache, progress)
	if err != nil {
		return "", err
	}
	progress.say("unpacking Postgres %s (once)", postgresVersion)
	staging, err := os.MkdirTemp(cache, "postgres-staging-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(staging)
	if err := unpack(archive, staging); err != nil {
		return "", fmt.Errorf("could not unpack the Postgres programs into %s: %w", cache, err)
	}
	if err := os.Chmod(staging, 0o755); err != nil {
		return "", err
	}
	return home, os.Rename(staging, home)
}

// findArchive reads the archive for this machine from a directory, or else from the
// cache. One that is there and is not the one we know is refused, not passed by.
func findArchive(ctx context.Context, beside, cache string, progress Progress) ([]byte, error) {
	archive, err := readArchive(filepath.Join(beside, ArchiveName(Platform())), Platform())
	switch {
	case err == nil:
		return archive, nil
	case !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%w: install this again, or set DATABASE_URL to a Postgres you have", err)
	}
	if archive, err = cachedArchive(ctx, cache, Platform(), progress); err != nil {
		return nil, fmt.Errorf("%w; check the network, or set DATABASE_URL to a Postgres you have", err)
	}
	return archive, nil
}

// PostgresArchive returns the Postgres programs for a platform, such as linux-amd64, as a
// packed archive, and keeps it in the cache. For those who build packages.
func PostgresArchive(ctx context.Context, platform string, progress Progress) ([]byte, error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	lock, err := lockCache(ctx, cache, progress)
	if err != nil {
		return nil, err
	}
	defer lock.release()
	return cachedArchive(ctx, cache, platform, progress)
}

// ArchiveName is the file an archive is looked for in beside this program.
func ArchiveName(platform string) string { return "postgres-" + platform + ".txz" }

func lockCache(ctx context.Context, cache string, progress Progress) (*fileLock, error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, fmt.Errorf("no place for the Postgres programs: %w; set SCHEDULEMESH_CACHE to a directory you can write to", err)
	}
	return waitLock(ctx, filepath.Join(cache, "postgres.lock"), func(pid int) {
		progress.say("waiting for process %d, which is getting Postgres", pid)
	})
}

// cachedArchive reads an archive from the cache, downloading it when it is not there.
func cachedArchive(ctx context.Context, cache, platform string, progress Progress) ([]byte, error) {
	path := filepath.Join(cache, fmt.Sprintf("postgres-%s-%s.txz", postgresVersion, platform))
	if archive, err := readArchive(path, platform); err == nil {
		return archive, nil
	}
	progress.say("downloading Postgres %s for %s (some 15 MB, once)", postgresVersion, platform)
	archive, err := download(ctx, platform)
	if err != nil {
		return nil, fmt.Errorf("could not get the Postgres programs: %w", err)
	}
	if err := checkArchive(archive, platform); err != nil {
		return nil, err
	}
	// Whole or not at all; whoever reads it checks it again.
	if err := os.WriteFile(path+".new", archive, 0o644); err != nil {
		return nil, err
	}
	return archive, os.Rename(path+".new", path)
}

func readArchive(path, platform string) ([]byte, error) {
	archive, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := checkArchive(archive, platform); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return archive, nil
}

// checkArchive compares an archive with what we know.
func checkArchive(archive []byte, platform string) error {
	want, known := postgresArchives[platform]
	if !known {
		return fmt.Errorf("Postgres %s for %s is not among the archives this version knows", postgresVersion, platform)
	}
	if sum := sha256.Sum256(archive); hex.EncodeToString(sum[:]) != want {
		return fmt.Errorf("the archive of Postgres for %s is not the one we know (SHA-256 %x)", platform, sum)
	}
	return nil
}

// download fetches an archive, which is published inside a jar.
func download(ctx context.Context, platform string) ([]byte, error) {
	repository := "https://repo1.maven.org/maven2"
	if mirror := os.Getenv("SCHEDULEMESH_POSTGRES_REPOSITORY"); mirror != "" {
		repository = strings.TrimRight(mirror, "/")
	}
	name := "embedded-postgres-binaries-" + strings.Replace(platform, "arm64", "arm64v8", 1)
	url := fmt.Sprintf("%s/io/zonky/test/postgres/%s/%s/%s-%s.jar", repository, name, postgresVersion, name, postgresVersion)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, resp.Status)
	}
	jar, err := io.ReadAll(io.LimitReader(resp.Body, 256<<20))
	if err != nil {
		return nil, err
	}
	files, err := zip.NewReader(bytes.NewReader(jar), int64(len(jar)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	for _, file := range files.File {
		if strings.HasSuffix(file.Name, ".txz") {
			packed, err := file.Open()
			if err != nil {
				return nil, err
			}
			defer packed.Close()
			return io.ReadAll(packed)
		}
	}
	return nil, fmt.Errorf("%s has no archive in it", url)
}

// unpack writes what is in an archive into dir, and nothing outside of it.
func unpack(archive []byte, dir string) error {
	plain, err := xz.NewReader(bytes.NewReader(archive), 0)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for files := tar.NewReader(plain); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Clean(header.Name)
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		switch header.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeSymlink:
			err = root.Symlink(header.Linkname, name)
		case tar.TypeReg:
			err = writeFile(root, name, files, header.FileInfo().Mode().Perm())
		}
		if err != nil {
			return err
		}
	}
}

func writeFile(root *os.Root, name string, content io.Reader, mode os.FileMode) error {
	file, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
