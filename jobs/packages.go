package jobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/ledger"
)

// MaxPackage is the most bytes of a package: what Ray's own store takes.
const MaxPackage = 500 << 20

const (
	pieceSize    = 1 << 20
	packageLife  = 7 * 24 * time.Hour // unused
	abandonAfter = time.Hour          // an upload that nothing came of
	pruneEvery   = 10 * time.Minute
	touchAfter   = time.Hour // how exactly it is known when a package was used last
)

// ErrUnknownPackage is a package that is not here, or not completely.
var ErrUnknownPackage = &ledger.Error{Code: "unknown_package"}

// packageName is what Ray calls packed directories, after their content, and wheels, by their own name.
var packageName = regexp.MustCompile(`^(_ray_pkg_[0-9a-f]{8,128}\.zip|[A-Za-z0-9][A-Za-z0-9_.!+-]{0,250}\.whl)$`)

// PackageName gives the name in a URI of a package that is uploaded to us, gcs://NAME; ok is false for any other URI.
func PackageName(uri string) (name string, ok bool) {
	name, ok = strings.CutPrefix(uri, "gcs://")
	return name, ok && packageName.MatchString(name)
}

// PackageStore keeps packed directories until the cluster that a job goes to has them. A package is named
// after its content and never changes. All methods are safe for concurrent use, on several servers at once.
type PackageStore struct {
	pool *pgxpool.Pool
	q    *dbgen.Queries
	now  func() time.Time
}

// NewPackageStore keeps packages in a database. now may be nil.
func NewPackageStore(pool *pgxpool.Pool, now func() time.Time) *PackageStore {
	if now == nil {
		now = time.Now
	}
	return &PackageStore{pool: pool, q: dbgen.New(pool), now: now}
}

// HasPackage reports whether all of a package is here. Asking counts as using it.
func (s *PackageStore) HasPackage(ctx context.Context, uri string) (bool, error) {
	name, err := nameOf(uri)
	if err != nil {
		return false, err
	}
	_, err = s.use(ctx, name)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, packageError(err)
}

// SavePackage keeps what body has, of size bytes (-1: unknown, up to MaxPackage). It holds no more than a
// piece of it in memory. Until the last byte is there nobody sees anything of it; one that is there already stays.
func (s *PackageStore) SavePackage(ctx context.Context, uri string, size int64, body io.Reader) error {
	name, err := nameOf(uri)
	if err != nil {
		return err
	}
	if size > MaxPackage {
		return tooLarge(name)
	}
	upload := name + " " + uuid.Must(uuid.NewV7()).String() // no URI has a space
	if err := s.q.BeginPackage(ctx, dbgen.BeginPackageParams{Name: upload, Now: s.now()}); err != nil {
		return packageError(err)
	}
	err = s.save(ctx, name, upload, size, body)
	if err != nil {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = s.q.DropPackage(after, upload) // else PrunePackages does
	}
	return err
}

func (s *PackageStore) save(ctx context.Context, name, upload string, size int64, body io.Reader) error {
	piece := bytes.NewBuffer(make([]byte, 0, pieceSize+bytes.MinRead))
	total := int64(0)
	for n, more := int32(0), true; more; n++ {
		piece.Reset()
		got, err := io.CopyN(piece, body, pieceSize)
		if more = err == nil; !more && !errors.Is(err, io.EOF) {
			return err // of the body: it is its reader's to say what happened
		}
		if total += got; total > MaxPackage {
			return tooLarge(name)
		}
		if n == 0 && !bytes.HasPrefix(piece.Bytes(), []byte("PK")) {
			return notPackage("what was sent as %s is not a zip file, which packages are", name)
		}
		if got == 0 {
			break
		}
		rows, err := s.q.AddPiece(ctx, dbgen.AddPieceParams{Name: upload, N: n, Data: piece.Bytes(), Now: s.now()})
		if err != nil {
			return packageError(err)
		}
		if rows == 0 {
			return fmt.Errorf("the upload of %s was cleared away while it was under way", name)
		}
	}
	if size >= 0 && total != size {
		return notPackage("%s should have %d bytes, and %d were sent", name, size, total)
	}
	return packageError(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		q := s.q.WithTx(tx)
		first, err := q.CompletePackage(ctx, dbgen.CompletePackageParams{Name: name, Upload: upload, Now: s.now()})
		if err == nil && first > 0 {
			err = q.MovePieces(ctx, dbgen.MovePiecesParams{Name: name, Upload: upload})
		}
		if err == nil {
			err = q.DropPackage(ctx, upload)
		}
		return err
	}))
}

// OpenPackage gives a package and its size in bytes. It is read piece by piece; the caller closes it.
func (s *PackageStore) OpenPackage(ctx context.Context, uri string) (io.ReadCloser, int64, error) {
	name, err := nameOf(uri)
	if err != nil {
		return nil, 0, err
	}
	size, err := s.use(ctx, name)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, 0, &ledger.Error{Code: ErrUnknownPackage.Code, Message: fmt.Sprintf("package %s is not here: upload it again", name)}
	}
	if err != nil {
		return nil, 0, packageError(err)
	}
	return &packageReader{ctx: ctx, store: s, name: name, left: size}, size, nil
}

// use is the size of a package that somebody means to use.
func (s *PackageStore) use(ctx context.Context, name string) (size int64, err error) {
	row, err := s.q.PackageSize(ctx, name)
	if now := s.now(); err == nil && now.Sub(row.UsedAt) > touchAfter {
		err = s.q.UsePackage(ctx, dbgen.UsePackageParams{Name: name, Now: now})
	}
	return row.Size, err
}

// Prune removes what nobody used for a week and no live job or cluster names, and uploads that were given up.
func (s *PackageStore) Prune(ctx context.Context) (removed int64, err error) {
	now := s.now()
	removed, err = s.q.PrunePackages(ctx, dbgen.PrunePackagesParams{Unused: now.Add(-packageLife), Abandoned: now.Add(-abandonAfter)})
	return removed, packageError(err)
}

// tend prunes from time to time, until ctx ends.
func (s *PackageStore) tend(ctx context.Context, log *slog.Logger) {
	every := time.NewTicker(pruneEvery)
	defer every.Stop()
	for {
		switch removed, err := s.Prune(ctx); {
		case err != nil && ctx.Err() == nil:
			log.Warn("old packages could not be removed; it is tried again", "error", err)
		case removed > 0:
			log.Info("removed packages that nobody used", "packages", removed)
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
	}
}

// packageReader reads one piece after another.
type packageReader struct {
	ctx   context.Context
	store *PackageStore
	name  string
	left  int64 // bytes
	next  int32
	piece []byte
	err   error
}

func (r *packageReader) Read(into []byte) (int, error) {
	switch {
	case r.err != nil:
	case r.left == 0:
		r.err = io.EOF
	case len(r.piece) == 0:
		r.piece, r.err = r.store.q.Piece(r.ctx, dbgen.PieceParams{Name: r.name, N: r.next})
		r.next++
		if errors.Is(r.err, pgx.ErrNoRows) {
			r.err = &ledger.Error{Code: ErrUnknownPackage.Code, Message: fmt.Sprintf("package %s was removed while it was read: upload it again", r.name)}
		}
	}
	if r.err != nil {
		return 0, r.err
	}
	n := copy(into, r.piece)
	r.piece, r.left = r.piece[n:], r.left-int64(n)
	return n, nil
}

func (r *packageReader) Close() error {
	r.piece, r.err = nil, io.ErrClosedPipe
	return nil
}

func nameOf(uri string) (string, error) {
	name, ok := PackageName(uri)
	if !ok {
		return "", &ledger.Error{Code: ErrUnknownPackage.Code, Message: fmt.Sprintf("%.300q is not the URI of a package: those are gcs://_ray_pkg_HASH.zip and gcs://NAME.whl", uri)}
	}
	return name, nil
}

func tooLarge(name string) error {
	return &ledger.Error{Code: "too_large", Message: fmt.Sprintf("%s is larger than %d MiB, which is the most: leave out with excludes what the job does not need, or put it where the cluster can fetch it", name, MaxPackage>>20)}
}

func notPackage(format string, args ...any) error {
	return &ledger.Error{Code: ledger.ErrInvalid.Code, Message: fmt.Sprintf(format, args...)}
}

// packageError says of the database's errors what a caller can do.
func packageError(err error) error {
	var pg *pgconn.PgError
	var known *ledger.Error
	if err == nil || errors.As(err, &known) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if errors.As(err, &pg) && !strings.HasPrefix(pg.Code, "53") && !strings.HasPrefix(pg.Code, "57") && !strings.HasPrefix(pg.Code, "08") {
		return fmt.Errorf("packages: %w", err)
	}
	return fmt.Errorf("%w: %w", &ledger.Error{Code: ledger.ErrUnavailable.Code, Message: "the database cannot be reached right now: try again"}, err)
}
