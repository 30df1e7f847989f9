package api

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

// maxFigures is the most an agent may report at once, in bytes of JSON.
const maxFigures = 64 << 10

// maxReporters bounds what is kept; the agent heard of longest ago goes first.
const maxReporters = 20_000

// MemoryMetrics keeps the latest figures of each agent in memory: they are worth
// nothing after a restart, when agents report again within seconds.
type MemoryMetrics struct {
	mu     sync.Mutex
	now    func() time.Time
	latest map[reporter]figures
}

type reporter struct{ ns, agent string }

type figures struct {
	json json.RawMessage
	at   time.Time
}

// NewMemoryMetrics returns an empty store.
func NewMemoryMetrics(now func() time.Time) *MemoryMetrics {
	return &MemoryMetrics{now: now, latest: map[reporter]figures{}}
}

// Report takes an agent's figures in place of its earlier ones.
func (m *MemoryMetrics) Report(_ context.Context, ns, agent string, f json.RawMessage) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := reporter{ns, agent}
	if _, known := m.latest[k]; !known && len(m.latest) >= maxReporters {
		m.forget()
	}
	m.latest[k] = figures{f, m.now()}
	return nil
}

// forget drops the oldest tenth, so that a full store does not search at each report.
func (m *MemoryMetrics) forget() {
	var oldest, newest time.Time
	for _, f := range m.latest {
		if oldest.IsZero() || f.at.Before(oldest) {
			oldest = f.at
		}
		if f.at.After(newest) {
			newest = f.at
		}
	}
	cut := oldest.Add(newest.Sub(oldest) / 10)
	for k, f := range m.latest {
		if !f.at.After(cut) {
			delete(m.latest, k)
		}
	}
}

// Latest gives an agent's latest figures.
func (m *MemoryMetrics) Latest(ns, agent string) (json.RawMessage, time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.latest[reporter{ns, agent}]
	return f.json, f.at
}
