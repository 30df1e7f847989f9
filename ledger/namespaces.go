package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
)

// A namespace is kept, or ephemeral: held by a session that its client renews. When a
// session ends or expires the namespace is cleared: it is closing while what lives in it
// is stopped, and ended once nothing is left. The same name may then be held again.
const (
	spaceOpen    = "open"
	spaceClosing = "closing"
	spaceEnded   = "ended"
)

// Bounds of a session's time to live.
const (
	MinTTL = time.Second
	MaxTTL = time.Hour
)

const defaultSpace = "default"

// Namespace is one as people read it.
type Namespace struct {
	Name      string
	Ephemeral bool
	Owner     string    // of the session that holds it, or held it last
	Since     time.Time // when it was held or kept; zero when it came to be by being used
	ExpiresAt time.Time // when its session does; zero without one
	Closing   bool      // it is being cleared
}

func namespaceOf(n dbgen.Namespace) Namespace {
	return Namespace{Name: n.Name, Ephemeral: n.Ephemeral, Owner: n.SessionOwner, Since: orZero(n.Since), ExpiresAt: orZero(n.ExpiresAt), Closing: n.State == spaceClosing}
}

// NamespaceHold asks for a namespace.
type NamespaceHold struct {
	Detached bool          // kept, by nobody
	Session  string        // who holds it otherwise
	Owner    string        // the same, for people
	TTL      time.Duration // until when without being renewed
	Replace  string        // a session that gives way to this one
}

// NamespaceHeld is what came of it.
type NamespaceHeld struct {
	Namespace
	Created bool // nothing was in it, or all was cleared
	Cleared bool // something was in it that had to be cleared first
}

func (h *NamespaceHold) check(name string) error {
	if name == "" {
		return invalid("name", "is missing")
	}
	for _, f := range [...][2]string{{"name", name}, {"session", h.Session}, {"owner", h.Owner}, {"replace", h.Replace}} {
		if err := clean(f[0], f[1], maxName); err != nil {
			return err
		}
	}
	if h.Detached {
		return nil
	}
	if h.Session == "" {
		return invalid("session", "is missing: say who holds the namespace, or set detached to keep it")
	}
	if h.TTL < MinTTL || h.TTL > MaxTTL {
		return invalid("ttl", "is %s: must be %s to %s", h.TTL, MinTTL, MaxTTL)
	}
	return nil
}

// HoldNamespace makes a namespace kept or holds it for a session; the same session again
// renews. What an earlier session left is cleared first: it waits for that, a minute at most.
func (l *Ledger) HoldNamespace(ctx context.Context, name string, h NamespaceHold) (NamespaceHeld, error) {
	if err := h.check(name); err != nil {
		return NamespaceHeld{}, err
	}
	if !h.Detached {
		n, err := l.q.RenewSession(ctx, dbgen.RenewSessionParams{Name: name, Session: h.Session, Owner: h.Owner, TtlMs: h.TTL.Milliseconds()})
		if err == nil {
			return NamespaceHeld{Namespace: namespaceOf(n)}, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return NamespaceHeld{}, l.lane.outward(err)
		}
	}
	if err := l.ensureNamespace(ctx, name); err != nil {
		return NamespaceHeld{}, err
	}
	var out NamespaceHeld
	waited := false
	err := l.untilClean(ctx, name, func() (done bool, err error) {
		err = pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
			out, done, err = tryHold(ctx, dbgen.New(tx), name, h)
			return err
		})
		waited = waited || !done
		return done, err
	})
	if err != nil {
		return NamespaceHeld{}, err
	}
	if out.Created {
		l.news.changed()
	}
	out.Cleared = waited
	return out, nil
}

// tryHold does so if it can be done now. If something has to be cleared first, it sees to that.
func tryHold(ctx context.Context, q *dbgen.Queries, name string, h NamespaceHold) (out NamespaceHeld, done bool, err error) {
	row, err := q.LockNamespaceByName(ctx, name)
	if err != nil {
		return out, false, err
	}
	n := row.Namespace
	hold := func() (NamespaceHeld, bool, error) {
		p := dbgen.HoldNamespaceParams{ID: n.ID}
		if !h.Detached {
			p.Ephemeral, p.Session, p.Owner, p.TtlMs = true, h.Session, h.Owner, h.TTL.Milliseconds()
		}
		held, err := q.HoldNamespace(ctx, p)
		return NamespaceHeld{Namespace: namespaceOf(held), Created: true}, true, err
	}
	switch {
	case n.State != spaceOpen && !h.Detached && h.Session == n.EndedSession:
		return out, false, refuse(ErrSpaceClosing, "session %q of namespace %q has ended: hold the namespace with another session id", h.Session, name)
	case n.State == spaceEnded:
		return hold()
	case n.State == spaceClosing:
		return out, false, nil
	case !n.Ephemeral && n.Since == nil && name != defaultSpace:
		// It came to be by being looked at, perhaps.
		used, err := q.UsedNamespace(ctx, n.ID)
		if err != nil {
			return out, false, err
		}
		if h.Detached || !used {
			out, done, err = hold()
			out.Created = !used
			return out, done, err
		}
	}
	switch {
	case !n.Ephemeral && h.Detached:
		return NamespaceHeld{Namespace: namespaceOf(n)}, true, nil
	case !n.Ephemeral:
		return out, false, refuse(ErrSpaceKept, "namespace %q is kept, it does not belong to a session: attach to it (or use detached=True), or use another name", name)
	case n.Session == h.Session && !h.Detached: // renewed meanwhile
		return NamespaceHeld{Namespace: namespaceOf(n)}, true, nil
	case !row.Expired && (h.Replace == "" || h.Replace != n.Session):
		return out, false, inUse(row)
	}
	ended := ""
	if !row.Expired {
		ended = n.Session
	}
	return out, false, q.CloseNamespace(ctx, dbgen.CloseNamespaceParams{ID: n.ID, EndedSession: ended})
}

// inUse says who holds a namespace, and what somebody else may do.
func inUse(row dbgen.LockNamespaceByNameRow) *Error {
	n := row.Namespace
	owner := n.SessionOwner
	if owner == "" {
		owner = "session " + n.Session
	}
	return refuse(ErrSpaceInUse, "namespace %q is held by %s since %s (for %s): attach to it, use another name, or end the other first; unless it is renewed it is free in %s",
		n.Name, owner, orZero(n.Since).UTC().Format(time.RFC3339), row.Now.Sub(orZero(n.Since)).Round(time.Second), max(orZero(n.ExpiresAt).Sub(row.Now), 0).Round(time.Second))
}

// EndNamespace ends a session and clears its namespace; it returns when that is clean. A
// kept one is cleared too if nothing lives in it, or with force. "default" stays.
func (l *Ledger) EndNamespace(ctx context.Context, name, session string, force bool) error {
	ended := int64(0) // the epoch in which it was closed
	return l.untilClean(ctx, name, func() (done bool, err error) {
		err = pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
			q := dbgen.New(tx)
			row, err := q.LockNamespaceByName(ctx, name)
			if errors.Is(err, pgx.ErrNoRows) {
				return refuse(ErrUnknownSpace, "there is no namespace %q", name)
			}
			if err != nil {
				return err
			}
			n := row.Namespace
			if done = ended != 0 && n.Epoch > ended; done {
				return nil
			}
			switch {
			case n.State == spaceClosing:
				ended = n.Epoch
				return nil
			case n.State == spaceEnded && session != "" && (session == n.EndedSession || session == n.Session):
				done = true // asked again, or it expired
				return nil
			case n.State == spaceEnded:
				return refuse(ErrUnknownSpace, "there is no namespace %q: it has been cleared", name)
			case n.Ephemeral && !row.Expired && session != n.Session && !force:
				return inUse(row)
			case !n.Ephemeral && session != "":
				return refuse(ErrSpaceKept, "namespace %q is kept, it does not belong to session %q: to remove it leave the session out", name, session)
			case !n.Ephemeral && !force:
				if err := l.nothingLives(ctx, q, n); err != nil {
					return err
				}
			}
			ended = n.Epoch + 1
			return q.CloseNamespace(ctx, dbgen.CloseNamespaceParams{ID: n.ID, EndedSession: n.Session})
		})
		return done, err
	})
}

func (l *Ledger) nothingLives(ctx context.Context, q *dbgen.Queries, n dbgen.Namespace) error {
	live, _, err := l.someOf(ctx, q, n.ID)
	if err != nil || live == "" {
		return err
	}
	return refuse(ErrSpaceInUse, "namespace %q is kept and in use (%s): end that first, or use force to stop everything in it", n.Name, live)
}

// untilClean tries until it is done, or refused. In between the namespace is being cleared.
func (l *Ledger) untilClean(ctx context.Context, name string, try func() (bool, error)) error {
	over := time.NewTimer(l.opts.ClearWait)
	defer over.Stop()
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 250*time.Millisecond) {
		done, err := try()
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return l.lane.outward(err)
		case done:
			return nil
		}
		poke(l.clears.poke)
		select {
		case <-time.After(wait):
		case <-over.C:
			return l.stillClosing(ctx, name)
		case <-ctx.Done():
			return ctx.Err()
		case <-l.lane.stopped:
			return refuse(ErrClosed, "the server is shutting down; the next one goes on clearing namespace %q", name)
		}
	}
}

// stillClosing says what of a namespace is not gone yet.
func (l *Ledger) stillClosing(ctx context.Context, name string) error {
	what, clusters, err := l.someOf(ctx, l.q, l.spaceIDOrLoad(ctx, name))
	if err != nil {
		return l.lane.outward(err)
	}
	if what == "" {
		what = "its history"
	}
	for _, c := range clusters {
		if leader, _ := l.Leader(c); leader == "" {
			what += "; no server is connected to Ray cluster " + c
		}
	}
	return refuse(ErrSpaceClosing, "namespace %q is still being cleared after %s; left: %s. This goes on by itself: try again later", name, l.opts.ClearWait, what)
}

// someOf names a few of what lives in a namespace, "" when nothing does, and the clusters it is on.
func (l *Ledger) someOf(ctx context.Context, q *dbgen.Queries, id int64) (what string, clusters []string, err error) {
	const counted, named = 1000, 3
	rows, err := q.SomeOfNamespace(ctx, dbgen.SomeOfNamespaceParams{NamespaceID: id, RowLimit: counted})
	if err != nil || len(rows) == 0 {
		return "", nil, err
	}
	var parts []string
	for i, r := range rows {
		if i < named {
			parts = append(parts, fmt.Sprintf("%s (%s)", r.Name, r.State))
		}
		if r.Cluster != "" && !slices.Contains(clusters, r.Cluster) {
			clusters = append(clusters, r.Cluster)
		}
	}
	what = strings.Join(parts, ", ")
	switch {
	case len(rows) == counted:
		what += fmt.Sprintf(" and at least %d more", counted-named)
	case len(rows) > named:
		what += fmt.Sprintf(" and %d more", len(rows)-named)
	}
	return what, clusters, nil
}

// GetNamespace gives one namespace and how much there is in it.
func (l *Ledger) GetNamespace(ctx context.Context, name string) (Namespace, Extent, error) {
	row, err := l.q.NamespaceByName(ctx, name)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && row.Namespace.State == spaceEnded {
		return Namespace{}, Extent{}, refuse(ErrUnknownSpace, "there is no namespace %q", name)
	}
	if err != nil {
		return Namespace{}, Extent{}, l.readError(err)
	}
	e, err := l.Extent(ctx, name)
	return namespaceOf(row.Namespace), e, err
}

// ListNamespaces lists those that are kept, held, or being cleared, by name.
func (l *Ledger) ListNamespaces(ctx context.Context) ([]Namespace, error) {
	rows, err := l.q.ListNamespaces(ctx)
	if err != nil {
		return nil, l.readError(err)
	}
	out := make([]Namespace, len(rows))
	for i, n := range rows {
		out[i] = namespaceOf(n)
	}
	return out, nil
}

// closedTo refuses a change in a namespace that is not open.
func closedTo(name, state string) error {
	switch state {
	case spaceClosing:
		return refuse(ErrSpaceClosing, "namespace %q is being cleared, because its session ended or expired: nothing can be changed in it until that is done; then hold it anew (PUT /api/v1/namespaces/%s)", name, name)
	case spaceEnded:
		return refuse(ErrUnknownSpace, "namespace %q was cleared away with its session: hold it anew, or keep it (PUT /api/v1/namespaces/%s)", name, name)
	}
	return nil
}

// stillOpen is closedTo for a namespace that was read.
func stillOpen(row dbgen.NamespaceStateRow, err error) error {
	if err != nil {
		return err
	}
	return closedTo(row.Name, row.State)
}
