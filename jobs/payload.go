package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
)

// A submission as Ray takes it, and the packages that must be there first.

// submission is a job as Ray takes it, and the packages that must be there first.
func (e *engine) submission(j *Job) (clusters.Submission, []string, error) {
	s := clusters.Submission{Entrypoint: j.Entrypoint, SubmissionID: j.RayID, RuntimeEnv: j.MergedEnv, Metadata: map[string]string{}}
	for k, v := range j.Metadata {
		s.Metadata[k] = v
	}
	s.Metadata[markKey], s.Metadata[ownerKey] = mark(j), e.s.o.Deployment
	if j.Reserve == ReserveEntrypoint {
		reserve(&s, j)
	}
	uris, err := packagesOf(j.MergedEnv)
	return s, uris, err
}

// reserve has Ray keep what a job asks for, in Ray's units.
func reserve(s *clusters.Submission, j *Job) {
	amount := func(thousandths int64) *float64 {
		if thousandths == 0 {
			return nil
		}
		f := float64(thousandths) / 1000
		return &f
	}
	s.NumCPUs, s.NumGPUs = amount(j.Requirements.CPU), amount(j.Requirements.GPU)
	if j.Requirements.Memory > 0 {
		bytes := j.Requirements.Memory << 20
		s.Memory = &bytes
	}
	for _, a := range j.Requirements.Other {
		if s.Resources == nil {
			s.Resources = map[string]float64{}
		}
		s.Resources[a.Name] = float64(a.Value) / 1000
	}
}

// packagesOf are the packages that a runtime environment names and that may be ours.
func packagesOf(env json.RawMessage) (uris []string, err error) {
	if len(env) == 0 {
		return nil, nil
	}
	var names struct {
		WorkingDir string   `json:"working_dir"`
		PyModules  []string `json:"py_modules"`
	}
	if err := json.Unmarshal(env, &names); err != nil {
		return nil, fmt.Errorf("the runtime_env cannot be read: %w", err)
	}
	for _, uri := range append(names.PyModules, names.WorkingDir) {
		if _, ok := PackageName(uri); ok && !slices.Contains(uris, uri) {
			uris = append(uris, uri)
		}
	}
	return uris, nil
}

// bringPackages puts onto a cluster what it does not have and we do.
func (e *engine) bringPackages(ray Ray, uris []string) error {
	for _, uri := range uris {
		if there, err := ray.HasPackage(e.ctx, uri); err != nil || there {
			if err != nil {
				return err
			}
			continue
		}
		if err := e.bringPackage(ray, uri); err != nil {
			return err
		}
	}
	return nil
}

func (e *engine) bringPackage(ray Ray, uri string) error {
	body, size, err := e.s.o.Packages.OpenPackage(e.ctx, uri)
	if errors.Is(err, ErrUnknownPackage) {
		return fmt.Errorf("neither the cluster nor this server has the package %s: pack and upload it again", uri)
	}
	if err != nil {
		return &clusters.CallError{Op: "package", Err: err} // the database's fault, not the job's
	}
	defer func() { _ = body.Close() }()
	ctx, cancel := context.WithTimeout(e.ctx, 10*time.Minute)
	defer cancel()
	return ray.PutPackage(ctx, uri, size, body)
}
