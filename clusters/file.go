package clusters

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// fileState is the configuration file that is watched here.
type fileState struct {
	sync.Mutex
	path, problem string
}

// FileProblem says what is wrong with the watched file ("": nothing), and which file that is ("": none is watched here).
func (r *Registry) FileProblem() (problem, path string) {
	r.file.Lock()
	defer r.file.Unlock()
	return r.file.problem, r.file.path
}

func (r *Registry) setFile(path, problem string) {
	r.file.Lock()
	changed := r.file.problem != problem
	had := r.file.problem != ""
	r.file.path, r.file.problem = path, problem
	r.file.Unlock()
	switch {
	case !changed:
		return
	case problem != "":
		r.log.Warn("the configuration of clusters cannot be used", "file", path, "problem", problem)
	case had && path != "":
		r.log.Info("the configuration of clusters can be used again", "file", path)
	}
	r.listeners.Lock()
	defer r.listeners.Unlock()
	for ch := range r.changed {
		poke(ch)
	}
}

// settle is how long a file must have stayed as it is: an editor may be in the middle of writing it.
const settle = 100 * time.Millisecond

// WatchFile applies a configuration file now and whenever it changes, until ctx ends. Only the server that looks
// after jobs may run it. A file that is broken or gone changes nothing, and FileProblem says so.
func (r *Registry) WatchFile(ctx context.Context, path string) {
	defer r.setFile("", "")
	w := fileWatch{r: r, path: path}
	tick := time.NewTicker(r.o.FileEvery)
	defer tick.Stop()
	for {
		problem := w.look(ctx)
		if ctx.Err() != nil {
			return
		}
		r.setFile(path, problem)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

type fileWatch struct {
	r       *Registry
	path    string
	seen    [sha256.Size]byte // the text that problem is about; zero: none
	problem string            // with that text
	specs   []Spec            // applied last; nil: none were
	leaving bool              // clusters wait for their jobs to end, then they go
}

// look applies the file when it says something new. It returns what is wrong with it.
func (w *fileWatch) look(ctx context.Context) (problem string) {
	text, err := readConfigFile(w.path)
	if err != nil {
		w.seen = [sha256.Size]byte{} // when it is back it is read again
		return err.Error() + "; the clusters stay as they are"
	}
	sum := sha256.Sum256(text)
	if sum == w.seen && !w.leaving {
		return w.problem
	}
	if sum != w.seen {
		sleep(ctx, settle)
		again, err := readConfigFile(w.path)
		if ctx.Err() != nil || err != nil || sha256.Sum256(again) != sum {
			return w.problem // it is being written: the next look will do
		}
		w.problem = ""
		specs, err := ReadConfig(filepath.Base(w.path), text)
		if err != nil {
			w.seen, w.problem, w.leaving = sum, err.Error()+"; the clusters stay as they are until this is put right", false
			return w.problem
		}
		w.specs = specs
	}
	w.leaving, err = w.r.applyFile(ctx, w.path, w.specs)
	if err != nil {
		w.seen = [sha256.Size]byte{} // tried again
		return fmt.Sprintf("what the file says could not be saved: %v", err)
	}
	w.seen = sum
	return ""
}

// readConfigFile reads a file whose size is bounded.
func readConfigFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is not there", path)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot be opened: %w", err)
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	return text, nil
}

// leftBy is the actor of holds on clusters whose entries are gone from the file while jobs are there.
const leftBy = "clusters.yaml"

// ApplyFile makes the clusters be what a configuration file says. An edit by hand stands until the file's entry
// itself changes; a cluster whose entry is gone goes, or, while jobs of ours are live there, is held and goes when
// it is applied after their end.
func (r *Registry) ApplyFile(ctx context.Context, path string, specs []Spec) error {
	_, err := r.applyFile(ctx, path, specs)
	return err
}

func (r *Registry) applyFile(ctx context.Context, path string, specs []Spec) (leaving bool, err error) {
	err = r.change(ctx, specs, true, func(c *change) error {
		listed := make(map[string]bool, len(specs))
		for _, s := range specs {
			listed[s.Name] = true
			if err := c.fromFile(s); err != nil {
				return err
			}
		}
		var gone []string
		for _, name := range sortedKeys(c.rows) {
			if row := c.rows[name]; row.InFile && !listed[name] {
				gone = append(gone, name)
			}
		}
		live, err := c.live(gone...)
		if err != nil {
			return err
		}
		leaving = false
		for _, name := range gone {
			row := c.rows[name]
			if live[name] == 0 || row.Removed {
				r.log.Info("a cluster is gone from the configuration", "cluster", name, "file", path)
				c.delete(name)
				continue
			}
			leaving = true
			if !row.Held {
				now := time.Now()
				row.hold(Hold{Held: true, Reason: "its entry in the configuration file is gone; it goes when its jobs have ended", Actor: leftBy, Since: &now})
			}
		}
		return nil
	})
	return leaving, err
}

// fromFile makes a cluster be as its entry says, if that is new.
func (c *change) fromFile(s Spec) error {
	row := c.rows[s.Name]
	if row == nil {
		return c.add(s, FromFile, true)
	}
	if row.Held && row.HoldActor == leftBy {
		row.hold(Hold{}) // its entry is back
	}
	if row.InFile && row.SameFile {
		return nil
	}
	file, err := jsonOf(s)
	if err != nil {
		return err
	}
	if row.Removed {
		row.Removed, row.forget = false, true
	}
	row.InFile, row.file, row.dirty = true, file, true
	return row.say(s, FromFile)
}
