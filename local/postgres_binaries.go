package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const postgresVersion = embeddedpostgres.V18

// postgresArchives are the archives we know, by the name the library gives them
// in its cache, with their SHA-256: what is unpacked and run is what was reviewed.
var postgresArchives = map[string]string{
	"linux-amd64":        "e09b13df10e9df257275d498b19b8c214a3e86d7a5d8cd263b0860e308e8b0b6",
	"linux-amd64-alpine": "5e47f96951026dc460b876fa62379f7c7666eb6293d076900e2c71703e5a1de6",
	"linux-arm64v8":      "f9695b61cff9e5c9b8e02a938158740a711c7a55304dd49ca634c8b947bf6b27",
	"darwin-amd64":       "2c5f22fa675ee78264a2ea8c7543310c32590465a4f72fb4287ca65ec484f7dd",
	"darwin-arm64v8":     "61f9b7026404f15abd4ec7e5724f672795c08cecc58ece212f85da3bf4de2b91",
}

// postgresBinaries returns the directory that has bin/postgres, downloading it
// into the cache once. The account that will run it must be able to walk there.
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
	home := filepath.Join(cache, fmt.Sprintf("postgres-%s-%s-%s", postgresVersion, runtime.GOOS, runtime.GOARCH))
	if isFile(filepath.Join(home, "bin", "postgres")) {
		return home, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("no place for the Postgres programs: %w; set SCHEDULEMESH_CACHE to a directory you can write to", err)
	}
	lock, err := waitLock(ctx, filepath.Join(cache, "postgres.lock"), func(pid int) {
		progress.say("waiting for process %d, which is downloading Postgres", pid)
	})
	if err != nil {
		return "", err
	}
	defer lock.release()
	if isFile(filepath.Join(home, "bin", "postgres")) {
		return home, nil
	}

	progress.say("downloading Postgres %s (15 MB, once)", postgresVersion)
	staging, err := os.MkdirTemp(cache, "postgres-staging-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(staging)
	unpacked := filepath.Join(staging, "unpacked")
	fetchErr := fetchPostgres(ctx, staging, unpacked)
	if err := checkArchive(staging); err != nil {
		if fetchErr != nil {
			err = fetchErr
		}
		return "", fmt.Errorf("could not get the Postgres programs: %w; check the network, or set DATABASE_URL to a Postgres you have", err)
	}
	if !isFile(filepath.Join(unpacked, "bin", "postgres")) {
		return "", fmt.Errorf("could not unpack the Postgres programs: %w", fetchErr)
	}
	if err := os.Chmod(unpacked, 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(unpacked, home); err != nil {
		return "", err
	}
	return home, nil
}

// fetchPostgres downloads and unpacks. The library has no call for that alone,
// so it is asked to start a database in a locale that does not exist: it fetches,
// unpacks, and stops there. (Starting is ours to do: the library's way leaves a
// daemon that belongs to nobody, and knows no other user.)
func fetchPostgres(ctx context.Context, cache, unpacked string) error {
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	config := embeddedpostgres.DefaultConfig().
		Version(postgresVersion).
		CachePath(cache).
		BinariesPath(unpacked).
		RuntimePath(filepath.Join(cache, "runtime")).
		DataPath(filepath.Join(cache, "data")).
		Port(uint32(ports[0])).
		Locale("none_fetch_only").
		Logger(io.Discard)
	if mirror := os.Getenv("SCHEDULEMESH_POSTGRES_REPOSITORY"); mirror != "" {
		config = config.BinaryRepositoryURL(strings.TrimRight(mirror, "/"))
	}
	result := make(chan error, 1)
	go func() { result <- embeddedpostgres.NewDatabase(config).Start() }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// checkArchive compares what was downloaded with what we know.
func checkArchive(cache string) error {
	found, err := filepath.Glob(filepath.Join(cache, "embedded-postgres-binaries-*.txz"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("nothing was downloaded for %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	platform := strings.TrimPrefix(filepath.Base(found[0]), "embedded-postgres-binaries-")
	platform = strings.TrimSuffix(platform, fmt.Sprintf("-%s.txz", postgresVersion))
	want, known := postgresArchives[platform]
	if !known {
		return fmt.Errorf("Postgres %s for %s is not among the archives this version knows", postgresVersion, platform)
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != want {
		return fmt.Errorf("the archive for %s is not the one we know (SHA-256 %x)", platform, sum)
	}
	return nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
