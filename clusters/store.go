package clusters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/ledger"
)

// reload brings the memory up to the rows. Only rows that were written since are read.
func (r *Registry) reload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	versions, err := r.q.ClusterVersions(ctx)
	if err != nil {
		return err
	}
	there := make(map[string]bool, len(versions))
	var behind []string
	for _, v := range versions {
		there[v.Name] = true
		if k, ok := r.known[v.Name]; !ok || k.version != v.Version {
			behind = append(behind, v.Name)
		}
	}
	changed := len(behind) > 0
	for name := range r.known {
		if !there[name] {
			delete(r.known, name)
			changed = true
		}
	}
	if len(behind) > 0 {
		rows, err := r.q.ClustersByName(ctx, behind)
		if err != nil {
			return err
		}
		for _, row := range rows {
			k, err := readRow(row)
			if err != nil {
				r.log.Error("a cluster in the database cannot be read and is left out", "cluster", row.Name, "error", err)
			}
			r.known[row.Name] = k
		}
	}
	if changed {
		r.publish()
	}
	return nil
}

// readRow makes a cluster of a row. One that cannot be read counts as removed.
func readRow(row dbgen.ClustersByNameRow) (known, error) {
	spec, err := readStoredSpec(row.Spec)
	if err != nil {
		return known{version: row.Version, removed: true}, err
	}
	c := Cluster{
		Spec: spec, Source: row.Source, Rev: row.Rev,
		Hold:   Hold{Held: row.Held, Reason: row.HoldReason, Actor: row.HoldActor, Since: row.HeldSince},
		Status: Status{State: Unseen, Breaker: Closed},
	}
	if row.Status != nil {
		var s Status
		if err := json.Unmarshal(row.Status, &s); err == nil { // else it is asked anew in a moment
			c.Status = s
		}
	}
	return known{c, row.Removed, row.Version}, nil
}

// readStoredSpec reads a Spec; its runtime_env is brought back from jsonb's order of keys into ours.
func readStoredSpec(doc []byte) (Spec, error) {
	var s Spec
	if err := json.Unmarshal(doc, &s); err != nil {
		return s, err
	}
	if len(s.RuntimeEnv) > 0 {
		env, err := CheckEnv(s.RuntimeEnv)
		if err != nil {
			return s, err
		}
		s.RuntimeEnv = env
	}
	return s, nil
}

// change is one transaction that changes what is configured.
type change struct {
	ctx  context.Context
	q    *dbgen.Queries
	rows map[string]*row // those that Specs were given for, or all
	gone []string
}

// row is a cluster's row while it is changed.
type row struct {
	dbgen.ClustersToChangeRow
	spec   Spec
	doc    []byte // spec as it is written
	file   []byte // what the file says now; nil: as before
	forget bool   // its status: it is of another address
	dirty  bool
}

// change runs f on the rows of the given clusters, or of all, and keeps what it changed. Changes follow one another,
// on all servers.
func (r *Registry) change(ctx context.Context, specs []Spec, everything bool, f func(*change) error) error {
	names, docs := make([]string, len(specs)), make([]string, len(specs))
	for i, s := range specs {
		doc, err := jsonOf(s)
		if err != nil {
			return err
		}
		names[i], docs[i] = s.Name, string(doc)
	}
	written := false
	err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		c := &change{ctx: ctx, q: r.q.WithTx(tx), rows: map[string]*row{}}
		if err := c.q.LockClusterChanges(ctx); err != nil {
			return err
		}
		there, err := c.q.ClustersToChange(ctx, dbgen.ClustersToChangeParams{Names: names, Specs: docs, Everything: everything})
		if err != nil {
			return err
		}
		for _, t := range there {
			spec, err := readStoredSpec(t.Spec)
			if err != nil {
				r.log.Error("a cluster in the database cannot be read", "cluster", t.Name, "error", err)
			}
			c.rows[t.Name] = &row{ClustersToChangeRow: t, spec: spec, doc: t.Spec}
		}
		if err := f(c); err != nil {
			return err
		}
		written, err = c.write()
		return err
	})
	if err != nil || !written {
		return unavailable(err)
	}
	// It is done. Should the memory not follow at once, the poll makes it.
	if err := r.reload(context.WithoutCancel(ctx)); err != nil {
		r.log.Warn("a change of clusters was made but cannot be read yet", "error", err)
		poke(r.wake)
	}
	return nil
}

// unavailable says of the database's failures what a caller can do; refusals and the ends of contexts stay as they are.
func unavailable(err error) error {
	var pg *pgconn.PgError
	var known *ledger.Error
	if err == nil || errors.As(err, &known) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if errors.As(err, &pg) && !slices.Contains([]string{"08", "40", "53", "57"}, pg.Code[:2]) {
		return fmt.Errorf("clusters: %w", err)
	}
	return fmt.Errorf("%w: %w", refuse(ledger.ErrUnavailable, "the database cannot be reached right now: look whether the change was made, and try again"), err)
}

func (c *change) write() (bool, error) {
	written := false
	for _, name := range sortedKeys(c.rows) {
		row := c.rows[name]
		if !row.dirty {
			continue
		}
		written = true
		err := c.q.WriteCluster(c.ctx, dbgen.WriteClusterParams{
			Name: name, Spec: row.doc, InFile: row.InFile, FileSpec: row.file, Source: row.Source, Removed: row.Removed,
			Held: row.Held, HoldReason: row.HoldReason, HoldActor: row.HoldActor, HeldSince: row.HeldSince, Rev: row.Rev, Forget: row.forget,
		})
		if err != nil {
			return false, err
		}
	}
	if len(c.gone) > 0 {
		written = true
		if err := c.q.DeleteClusters(c.ctx, c.gone); err != nil {
			return false, err
		}
	}
	if !written {
		return false, nil
	}
	return true, c.q.TellOfClusters(c.ctx)
}

// jsonOf is a Spec as the database keeps it.
func jsonOf(s Spec) ([]byte, error) {
	doc, err := json.Marshal(s)
	if err != nil {
		return nil, invalid("cluster", "cannot be kept (%v)", err)
	}
	return doc, nil
}

// put makes a cluster be as somebody says by hand.
func (c *change) put(s Spec, actor string) error {
	row := c.rows[s.Name]
	if row == nil {
		return c.add(s, FromAPI, false)
	}
	if row.Same && !row.Removed {
		return nil
	}
	source := FromAPI
	if row.Source == FromLocal && s.HeadAddress == row.spec.HeadAddress && s.Dashboard == row.spec.Dashboard {
		source = FromLocal // its addresses go on following the sidecar's
	}
	if row.Removed {
		row.Removed, row.forget, row.dirty = false, true, true
	}
	return row.say(s, source)
}

// add is a cluster that was not there.
func (c *change) add(s Spec, source string, inFile bool) error {
	if err := checkSpec(s); err != nil {
		return err
	}
	doc, err := jsonOf(s)
	if err != nil {
		return err
	}
	row := &row{spec: s, doc: doc, dirty: true}
	row.Name, row.Source, row.InFile, row.Rev = s.Name, source, inFile, 1
	if inFile {
		row.file = doc
	}
	c.rows[s.Name] = row
	return nil
}

func (c *change) delete(name string) {
	delete(c.rows, name)
	c.gone = append(c.gone, name)
}

// live counts the jobs of ours that are on clusters.
func (c *change) live(names ...string) (map[string]int64, error) {
	rows, err := c.q.LiveJobsOn(c.ctx, names)
	if err != nil {
		return nil, err
	}
	out := make(map[string]int64, len(rows))
	for _, row := range rows {
		out[row.Cluster] = row.Count
	}
	return out, nil
}

// say changes what is configured.
func (row *row) say(s Spec, source string) error {
	if err := checkSpec(s); err != nil {
		return err
	}
	doc, err := jsonOf(s)
	if err != nil {
		return err
	}
	if reflect.DeepEqual(row.spec, s) && row.Source == source && !row.dirty {
		return nil
	}
	if row.spec.Dashboard != s.Dashboard || row.spec.HeadAddress != s.HeadAddress {
		row.forget = true
	}
	row.spec, row.doc, row.Source, row.dirty = s, doc, source, true
	row.Rev++
	return nil
}

func (row *row) hold(h Hold) {
	row.Held, row.HoldReason, row.HoldActor, row.HeldSince = h.Held, h.Reason, h.Actor, h.Since
	row.dirty = true
	row.Rev++
}

// checkSpec looks at what no Spec may lack, whoever made it.
func checkSpec(s Spec) error {
	if why := CheckName(s.Name); why != "" {
		return &ledger.Error{Code: ledger.ErrInvalid.Code, Message: why, Fields: map[string]string{"name": why}}
	}
	switch {
	case s.HeadAddress == "":
		return invalid("head_address", "is missing")
	case s.Dashboard == "":
		return invalid("dashboard", "is missing")
	case !(s.Weight > 0 && s.Weight <= maxWeight):
		return invalid("weight", "must be a number above 0 and at most %d, not %v", maxWeight, s.Weight)
	}
	return nil
}

// SaveStatus keeps how clusters are. Names that are not there any more are left out.
func (r *Registry) SaveStatus(ctx context.Context, status map[string]Status) error {
	if len(status) == 0 {
		return nil
	}
	names := sortedKeys(status)
	docs := make([]string, len(names))
	for i, name := range names {
		doc, err := json.Marshal(status[name])
		if err != nil {
			return fmt.Errorf("the status of cluster %s: %w", name, err)
		}
		docs[i] = string(doc)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var saved []dbgen.SaveClusterStatusRow
	err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		q := r.q.WithTx(tx)
		var err error
		if saved, err = q.SaveClusterStatus(ctx, dbgen.SaveClusterStatusParams{Names: names, Statuses: docs}); err != nil {
			return err
		}
		return q.TellOfClusters(ctx)
	})
	if err != nil {
		return unavailable(err)
	}
	for _, s := range saved {
		k, ok := r.known[s.Name]
		if !ok || k.removed || k.cluster.Rev != s.Rev {
			continue // somebody changed it just now: the next reload reads it whole
		}
		k.cluster.Status, k.version = status[s.Name], s.Version
		r.known[s.Name] = k
	}
	r.publish()
	return nil
}
