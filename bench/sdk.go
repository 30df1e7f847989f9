package main

import (
	"context"
	_ "embed"
	"os"
	"os/exec"

	"github.com/schedulemesh/schedulemesh/local"
)

//go:embed sdk.py
var sdkBeside string

//go:embed groups.py
var groupsBeside string

//go:embed jobs.py
var jobsScript string

// sdk compares the Python SDK, as a script uses it, with plain Ray on the same cluster.
func (b *bench) sdk(ctx context.Context) error { return b.beside(ctx, sdkBeside) }

// groups does so for placement groups of a pool.
func (b *bench) groups(ctx context.Context) error { return b.beside(ctx, groupsBeside) }

// beside runs a script that measures both on one cluster, and prints what it says.
func (b *bench) beside(ctx context.Context, source string) error {
	ray, err := local.StartRay(ctx, local.RayOptions{Python: b.python, NumCPUs: 8})
	if err != nil {
		return err
	}
	defer func() { _ = ray.Stop(context.WithoutCancel(ctx)) }()
	database, err := b.database(ctx)
	if err != nil {
		return err
	}
	s, err := b.listen(ctx, database, "--python", b.python, "--ray-address", ray.Address())
	if err != nil {
		return err
	}
	defer s.stop()
	if err := s.ready(); err != nil {
		return err
	}
	return b.script(ctx, source, ray.Address(), append(ray.Env(), "SCHEDULEMESH_URL=http://"+s.addr, "SCHEDULEMESH_TOKEN="+benchToken, "SCHEDULEMESH_LOG_LEVEL=ERROR",
		"SCHEDULEMESH_SERVER="+b.server, "DATABASE_URL="+database)) // for `server verify`
}

// script runs Python that prints figures.
func (b *bench) script(ctx context.Context, source, argument string, env []string) error {
	script := exec.CommandContext(ctx, b.python, "-c", source, argument)
	script.Env = append(os.Environ(), env...)
	script.Stdout, script.Stderr = os.Stdout, os.Stderr
	return script.Run()
}
