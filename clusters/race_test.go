//go:build race

package clusters_test

const raced = true
