package auth

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// readOrCreateToken reads the file, or makes it with a random token. Two servers
// that start at once end up with the same token: only one of them makes the file.
func readOrCreateToken(path string, log *slog.Logger) (string, error) {
	t, err := readToken(path, log)
	if !errors.Is(err, fs.ErrNotExist) {
		return t, err
	}
	if err := createToken(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("token file: %w", err)
	}
	return readToken(path, log)
}

func readToken(path string, log *slog.Logger) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	t := strings.TrimSpace(string(data))
	if err := checkToken(t); err != nil {
		return "", fmt.Errorf("token file %s: %w; delete the file to get a new token", path, err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		log.Warn("others can read the token file; run chmod 600", "file", path, "mode", info.Mode().Perm().String())
	}
	return t, nil
}

// createToken writes a complete file under another name and links it into place:
// nobody ever reads half a token, and an existing file is never replaced.
func createToken(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".token-*") // made with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if _, err := tmp.WriteString("sm_" + base64.RawURLEncoding.EncodeToString(secret) + "\n"); err != nil {
		tmp.Close()
		return err
	}
	if err := tmp.Sync(); err != nil {
		tmp.Close()
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Link(tmp.Name(), path)
}

func checkToken(t string) error {
	if len(t) < minToken {
		return fmt.Errorf("a token needs at least %d characters, this one has %d", minToken, len(t))
	}
	for _, c := range t {
		if c <= ' ' || c > '~' {
			return fmt.Errorf("a token consists of visible ASCII characters; this one has %q in it", c)
		}
	}
	return nil
}
