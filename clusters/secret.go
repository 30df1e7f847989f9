package clusters

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// tokenVariable keeps other secrets of the server, such as its database's, from being sent to a cluster.
var tokenVariable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,199}$`)

func (r *specReader) token(v *value) *Secret {
	if v.kind != isObject {
		r.bad(v, "token", "must not stand here itself, since configurations are kept and shown; write token: {env: NAME} for an environment variable of the server, or token: {file: PATH}")
		return nil
	}
	var s Secret
	for _, p := range v.pairs {
		switch p.key {
		case "env":
			s.Env = r.text(p.value, "token.env")
			if p.value.kind == isText && (!tokenVariable.MatchString(s.Env) || !strings.Contains(strings.ToUpper(s.Env), "TOKEN")) {
				r.bad(p.value, "token.env", "must be the name of an environment variable with TOKEN in it, such as RAY_GPU_TOKEN; no other may be sent to a cluster")
			}
		case "file":
			s.File = r.text(p.value, "token.file")
			if p.value.kind == isText && (!filepath.IsAbs(s.File) && !strings.HasPrefix(s.File, "~/") || strings.ContainsFunc(s.File, unprintable)) {
				r.bad(p.value, "token.file", "must be an absolute path on the server, such as /run/secrets/ray-token")
			}
		default:
			r.bad(p.at, "token."+p.key, "is an unknown field; token has env or file")
		}
	}
	if (s.Env == "") == (s.File == "") && len(r.problems) == 0 {
		r.bad(v, "token", "must have one of env and file")
	}
	return &s
}

// maxTokenBytes bounds what is read as a token.
const maxTokenBytes = 4096

// Read fetches the secret from where it is. Errors say where that is and never what was there.
func (s Secret) Read() (string, error) {
	where, secret := "the environment variable "+s.Env, ""
	if s.Env != "" {
		secret = os.Getenv(s.Env)
	} else {
		where = "the file " + s.File
		text, err := readSecret(s.File)
		if err != nil {
			return "", fmt.Errorf("the token cannot be read: %w", err)
		}
		secret = text
	}
	secret = strings.TrimSpace(secret)
	if secret == "" {
		return "", fmt.Errorf("%s, where the token should be, is empty or not set", where)
	}
	if len(secret) > maxTokenBytes || strings.ContainsFunc(secret, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "", fmt.Errorf("%s has no token in it: that is one line without spaces, of at most %d bytes", where, maxTokenBytes)
	}
	return secret, nil
}

func readSecret(path string) (string, error) {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		path = filepath.Join(home, rest)
	}
	if info, err := os.Stat(path); err != nil {
		return "", err
	} else if !info.Mode().IsRegular() || info.Size() > 2*maxTokenBytes {
		return "", fmt.Errorf("%s is not a small file", path)
	}
	text, err := os.ReadFile(path)
	return string(text), err
}
