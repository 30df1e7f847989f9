package db

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
)

// Key is a hash of all migrations: what a template database made by them is named by.
func Key() string {
	h := sha256.New()
	_ = fs.WalkDir(migrations, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := migrations.ReadFile(path)
		h.Write([]byte(path))
		h.Write(content)
		return err
	})
	return hex.EncodeToString(h.Sum(nil))
}
