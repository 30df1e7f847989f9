package jobs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/db"
	"github.com/schedulemesh/schedulemesh/jobs"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/testdb"
)

// shelf is a store on a database of its own, with a clock.
type shelf struct {
	*jobs.PackageStore
	t    *testing.T
	pool *pgxpool.Pool
	now  time.Time
}

func openShelf(t *testing.T) *shelf {
	t.Helper()
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), testdb.Migrated(t, db.Key(), db.Migrate))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := &shelf{t: t, pool: pool, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	s.PackageStore = jobs.NewPackageStore(pool, func() time.Time { return s.now })
	return s
}

func uriOf(hash string) string { return "gcs://_ray_pkg_" + hash + ".zip" }

// packed is a file of n bytes that looks like a zip.
func packed(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
	copy(b, "PK\x03\x04")
	return b
}

func (s *shelf) has(uri string) bool {
	s.t.Helper()
	there, err := s.HasPackage(s.t.Context(), uri)
	if err != nil {
		s.t.Fatal(err)
	}
	return there
}

func (s *shelf) read(uri string) []byte {
	s.t.Helper()
	r, size, err := s.OpenPackage(s.t.Context(), uri)
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil || int64(len(b)) != size {
		s.t.Fatalf("%d of %d bytes: %v", len(b), size, err)
	}
	return b
}

func (s *shelf) save(uri string, b []byte) {
	s.t.Helper()
	if err := s.SavePackage(s.t.Context(), uri, int64(len(b)), bytes.NewReader(b)); err != nil {
		s.t.Fatal(err)
	}
}

// rows counts what is on disk, unfinished uploads too.
func (s *shelf) rows() (packages, pieces int) {
	s.t.Helper()
	if err := s.pool.QueryRow(s.t.Context(), "SELECT (SELECT count(*) FROM packages), (SELECT count(*) FROM package_pieces)").Scan(&packages, &pieces); err != nil {
		s.t.Fatal(err)
	}
	return packages, pieces
}

func TestAPackageComesBackAsItWas(t *testing.T) {
	s := openShelf(t)
	for i, n := range []int{4, 1<<20 - 1, 1 << 20, 1<<20 + 1, 5<<20 + 17} {
		uri, b := uriOf(fmt.Sprintf("%08x", i)), packed(n, uint64(i))
		if s.has(uri) {
			t.Fatalf("%s is there already", uri)
		}
		s.save(uri, b)
		if !s.has(uri) || !bytes.Equal(s.read(uri), b) {
			t.Errorf("%d bytes came back otherwise", n)
		}
	}
	wheel := "gcs://my_pkg-1.0.2+local.1-py3-none-any.whl"
	if err := s.SavePackage(t.Context(), wheel, -1, bytes.NewReader(packed(100, 1))); err != nil || !s.has(wheel) {
		t.Errorf("a wheel of unknown size: %v", err)
	}
}

func TestOnlyNamesOfPackagesAreTaken(t *testing.T) {
	s := openShelf(t)
	for _, uri := range []string{"", "gcs://", "_ray_pkg_0123456789.zip", "gcs://_ray_pkg_.zip", "gcs://_ray_pkg_XYZ01234.zip", "gcs://_ray_pkg_01234567.tar", "gcs://a/b.whl", "gcs://.whl",
		"gcs://../x.whl", "s3://bucket/x.zip", "gcs://a b.whl", "gcs://a%2fb.whl", "gcs://a\x00.whl", "gcs://" + strings.Repeat("a", 300) + ".whl", "gcs://_ray_pkg_01234567.zip 0197"} {
		if _, err := s.HasPackage(t.Context(), uri); !errors.Is(err, jobs.ErrUnknownPackage) {
			t.Errorf("HasPackage(%q): %v", uri, err)
		}
		if err := s.SavePackage(t.Context(), uri, 4, strings.NewReader("PK\x03\x04")); !errors.Is(err, jobs.ErrUnknownPackage) {
			t.Errorf("SavePackage(%q): %v", uri, err)
		}
	}
	if n, _ := s.rows(); n != 0 {
		t.Errorf("%d packages are kept", n)
	}
}

// broken gives some bytes and then an error.
type broken struct {
	io.Reader
	err error
}

func (b broken) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		err = b.err
	}
	return n, err
}

func TestABrokenUploadLeavesNothing(t *testing.T) {
	s := openShelf(t)
	uri := uriOf("0123456789")
	cut := errors.New("the sender went")
	for name, tt := range map[string]struct {
		size int64
		body io.Reader
		want error
	}{
		"cut off":            {5 << 20, broken{bytes.NewReader(packed(3<<20, 1)), cut}, cut},
		"cut off in HTTP":    {5 << 20, broken{bytes.NewReader(packed(3<<20+5, 1)), io.ErrUnexpectedEOF}, io.ErrUnexpectedEOF},
		"too short":          {5 << 20, bytes.NewReader(packed(3<<20, 1)), ledger.ErrInvalid},
		"too long":           {2 << 20, bytes.NewReader(packed(3<<20, 1)), ledger.ErrInvalid},
		"no zip":             {9, strings.NewReader("not a zip"), ledger.ErrInvalid},
		"nothing":            {0, strings.NewReader(""), ledger.ErrInvalid},
		"said to be huge":    {jobs.MaxPackage + 1, bytes.NewReader(packed(10, 1)), &ledger.Error{Code: "too_large"}},
		"huge without a say": {-1, io.MultiReader(strings.NewReader("PK"), io.LimitReader(zeros{}, jobs.MaxPackage)), &ledger.Error{Code: "too_large"}},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name == "huge without a say" {
				t.Skip("writes half a gigabyte")
			}
			if err := s.SavePackage(t.Context(), uri, tt.size, tt.body); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if s.has(uri) {
				t.Error("it looks complete")
			}
			if packages, pieces := s.rows(); packages != 0 || pieces != 0 {
				t.Errorf("%d rows and %d pieces are left", packages, pieces)
			}
		})
	}
	if _, _, err := s.OpenPackage(t.Context(), uri); !errors.Is(err, jobs.ErrUnknownPackage) {
		t.Errorf("opening it: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// gate lets a reader through piece by piece.
type gate struct {
	from io.Reader
	open chan struct{}
	seen chan struct{}
}

func (g *gate) Read(p []byte) (int, error) {
	g.seen <- struct{}{}
	<-g.open
	return g.from.Read(p)
}

func TestTheSamePackageTwiceAtOnce(t *testing.T) {
	s := openShelf(t)
	uri, b := uriOf("abcdef0123"), packed(3<<20, 7)
	slow := &gate{from: bytes.NewReader(b), open: make(chan struct{}), seen: make(chan struct{}, 1<<16)}
	done := make(chan error, 1)
	go func() { done <- s.SavePackage(context.WithoutCancel(t.Context()), uri, int64(len(b)), slow) }()
	<-slow.seen
	if s.has(uri) {
		t.Error("it is there although nobody finished")
	}
	s.save(uri, b) // the second one overtakes the first
	close(slow.open)
	if err := <-done; err != nil {
		t.Errorf("the first one: %v", err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := s.SavePackage(context.WithoutCancel(t.Context()), uri, int64(len(b)), bytes.NewReader(b)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if packages, pieces := s.rows(); packages != 1 || pieces != 3 {
		t.Errorf("%d rows and %d pieces, want 1 and 3", packages, pieces)
	}
	if !bytes.Equal(s.read(uri), b) {
		t.Error("it came back otherwise")
	}
}

func TestWhatNobodyUsesForAWeekIsRemovedUnlessSomebodyNamesIt(t *testing.T) {
	s := openShelf(t)
	names := map[string]string{"unused": "00000001", "asked for": "00000002", "of a live job": "00000003", "of an ended job": "00000004", "of a cluster": "00000005", "read": "00000006"}
	for _, hash := range names {
		s.save(uriOf(hash), packed(2<<20, 1))
	}
	env := func(hash string) string { return `{"working_dir":"` + uriOf(hash) + `"}` }
	const job = `INSERT INTO jobs (uid, submission_id, job_id, entrypoint, runtime_env, metadata, tags, preferred_cluster, requirements, reserve, priority, queue_timeout_ms, max_retries, retry_on,
		submitted_by, fingerprint, state, created_at, queued_at, ended_at) VALUES (gen_random_uuid(), $1, '', '', $2::text::jsonb, '{}', '{}', '', '{}', 'none', 0, 0, 0, '{}', '', '', $3, now(), now(), $4)`
	for _, err := range []error{
		second(s.pool.Exec(t.Context(), job, "live", env(names["of a live job"]), "QUEUED", nil)),
		second(s.pool.Exec(t.Context(), job, "over", env(names["of an ended job"]), "FAILED", s.now)),
		second(s.pool.Exec(t.Context(), "INSERT INTO clusters (name, spec, source) VALUES ('c', $1::text::jsonb, 'api')", `{"runtime_env":`+env(names["of a cluster"])+`}`)),
		second(s.pool.Exec(t.Context(), "INSERT INTO packages (name, size, used_at) VALUES ('left behind', 0, $1), ('under way', 0, $2)", s.now, s.now.Add(7*24*time.Hour))),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	prune := func(want int64) {
		t.Helper()
		if n, err := s.Prune(t.Context()); err != nil || n != want {
			t.Errorf("%d removed, want %d: %v", n, want, err)
		}
	}
	prune(0)
	s.now = s.now.Add(6 * 24 * time.Hour)
	if !s.has(uriOf(names["asked for"])) {
		t.Fatal("it went too early")
	}
	s.read(uriOf(names["read"]))
	prune(1) // the upload that was left behind
	s.now = s.now.Add(24*time.Hour + time.Minute)
	prune(2) // unused, of an ended job
	for name, gone := range map[string]bool{"unused": true, "of an ended job": true, "asked for": false, "of a live job": false, "of a cluster": false, "read": false} {
		if s.has(uriOf(names[name])) == gone {
			t.Errorf("what was %s: gone should be %v", name, gone)
		}
	}
	if _, pieces := s.rows(); pieces != 8 {
		t.Errorf("%d pieces are left, want 8", pieces)
	}
}

func TestAPackageThatGoesWhileItIsReadIsAnError(t *testing.T) {
	s := openShelf(t)
	s.save(uriOf("00000001"), packed(3<<20, 1))
	r, _, err := s.OpenPackage(t.Context(), uriOf("00000001"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, r, 1<<20); err != nil {
		t.Fatal(err)
	}
	s.now = s.now.Add(8 * 24 * time.Hour)
	if n, err := s.Prune(t.Context()); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := io.Copy(io.Discard, r); err == nil {
		t.Errorf("%d bytes more, and then it ended as if that were all", n)
	}
}

// counting looks at the disk whenever another MiB is read.
type counting struct {
	s    *shelf
	from io.Reader
	read int
}

func (c *counting) Read(p []byte) (int, error) {
	if _, pieces := c.s.rows(); c.read>>20 > pieces+1 {
		c.s.t.Errorf("%d bytes were read, and only %d pieces are on disk", c.read, pieces)
	}
	n, err := c.from.Read(p[:min(len(p), 1<<19)])
	c.read += n
	return n, err
}

func TestOnlyOnePieceIsInMemory(t *testing.T) {
	s := openShelf(t)
	b := packed(8<<20, 3)
	body := &counting{s: s, from: bytes.NewReader(b)}
	if err := s.SavePackage(t.Context(), uriOf("00000001"), int64(len(b)), body); err != nil || body.read != len(b) {
		t.Fatal(body.read, err)
	}
}

func second[A any](_ A, err error) error { return err }
