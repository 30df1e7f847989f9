// Package deploy holds what runs ScheduleMesh in containers. There is no engine in
// the tests; these check what can be checked without one.
package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

const root = ".."

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

type compose struct {
	Services map[string]struct {
		Image string
		Build struct{ Context, Target string }
		// As `server help serve` calls them, for the server.
		Environment map[string]string
		DependsOn   map[string]any `yaml:"depends_on"`
		Volumes     []string
		Ports       []string
		Healthcheck map[string]any
	}
	Volumes map[string]any
}

func parseCompose(t *testing.T) compose {
	t.Helper()
	var c compose
	if err := yaml.Unmarshal([]byte(read(t, "docker-compose.yml")), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestComposeNamesWhatThereIs(t *testing.T) {
	t.Parallel()
	dockerfile := read(t, "Dockerfile")
	c := parseCompose(t)
	for _, name := range []string{"postgres", "ray", "server"} {
		if _, there := c.Services[name]; !there {
			t.Errorf("there is no service %s", name)
		}
	}
	for name, service := range c.Services {
		if target := service.Build.Target; target != "" && !strings.Contains(dockerfile, " AS "+target+"\n") {
			t.Errorf("%s is built from target %q, which the Dockerfile has not", name, target)
		}
		if service.Image == "" && service.Build.Target == "" {
			t.Errorf("%s has neither an image nor a target", name)
		}
		for other := range service.DependsOn {
			if _, there := c.Services[other]; !there {
				t.Errorf("%s depends on %s, which is no service", name, other)
			} else if c.Services[other].Healthcheck == nil {
				t.Errorf("%s waits for %s to be healthy, which has no health check", name, other)
			}
		}
		for _, volume := range service.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if path, ours := strings.CutPrefix(source, "./"); ours {
				if _, err := os.Stat(filepath.Join(root, path)); err != nil {
					t.Errorf("%s mounts %v", name, err)
				}
				continue
			}
			if _, named := c.Volumes[source]; !named {
				t.Errorf("%s mounts %s, which is not declared", name, source)
			}
		}
		for _, port := range service.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s opens %s to other machines", name, port)
			}
		}
	}
}

func TestComposeSetsOnlyVariablesTheServerReads(t *testing.T) {
	t.Parallel()
	var sources []string
	for _, dir := range []string{"cmd/server", "app"} {
		found, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil || len(found) == 0 {
			t.Fatal(dir, err)
		}
		sources = append(sources, found...)
	}
	var code strings.Builder
	for _, path := range sources {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(data)
	}
	for name := range parseCompose(t).Services["server"].Environment {
		if !strings.Contains(code.String(), `"`+name+`"`) {
			t.Errorf("the server does not read %s", name)
		}
	}
}

func TestDockerfileCopiesWhatThereIs(t *testing.T) {
	t.Parallel()
	dockerfile := read(t, "Dockerfile")
	copied := regexp.MustCompile(`(?m)^COPY ([^-].*) \S+$`).FindAllStringSubmatch(dockerfile, -1)
	if len(copied) < 3 {
		t.Fatalf("found only %d COPY lines", len(copied))
	}
	for _, line := range copied {
		for path := range strings.FieldsSeq(line[1]) {
			if _, err := os.Stat(filepath.Join(root, path)); err != nil {
				t.Errorf("COPY %s: %v", path, err)
			}
		}
	}
	users := regexp.MustCompile(`(?m)^USER (\S+)$`).FindAllStringSubmatch(dockerfile, -1)
	if len(users) != 2 || slices.ContainsFunc(users, func(u []string) bool { return u[1] == "root" || u[1] == "0" }) {
		t.Errorf("both images must name a user that is not root: %v", users)
	}
}
