# Everything is done from here; `make help` says what there is.

SHELL := bash
.DEFAULT_GOAL := help

# Packages whose tests run with the race detector: those full of goroutines.
RACE ?= agents app bridge clusters handlers jobs ledger

TOOL := go tool -modfile=tools/go.mod
CONDUCT = go build -o bin/test ./scripts/test && exec bin/test -race "$(RACE)"

.PHONY: help
help: ## This list
	@echo "Two commands do most of it:"
	@echo "  make run    everything on this machine, and a link to it; Ctrl-C stops it"
	@echo "  make test   everything that can be tested, against real Postgres and real Ray"
	@echo
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: build ## Postgres, Ray, sidecar and server on this machine, and the link to sign in
	@exec bin/server up --parent $$PPID

.PHONY: test
test: ## Linters, generated code, Go and Python tests; what is missing is skipped with a word (never with CI=true)
	@$(CONDUCT)

.PHONY: test-go
test-go: ## Only the Go tests
	@$(CONDUCT) -only go

.PHONY: test-python
test-python: ## Only the Python tests
	@$(CONDUCT) -only python

.PHONY: e2e
e2e: ## Only the tests in a real browser (Chromium), against a whole server
	@$(CONDUCT) -only go -packages ./e2e/...

.PHONY: lint
lint: ## Only the linters: Go, templates, SQL, shell, Python
	@$(CONDUCT) -only lint

.PHONY: fmt
fmt: ## Format Go, templates, shell and Python
	gofmt -w $$(go list -f '{{.Dir}}' ./...)
	$(TOOL) templ fmt web
	$(TOOL) shfmt -w -i 2 -ci .ci/run $$(git ls-files scripts | grep -v '\.go$$')
	.venv/bin/ruff check --fix python examples bench
	.venv/bin/ruff format python examples bench

.PHONY: build
build: ## The server, as bin/server
	@go build -o bin/server ./cmd/server

.PHONY: wheel
wheel: ## Python wheels with the server and its Postgres in them, in dist/ (PLATFORMS="linux-amd64 …" for some)
	@go run ./scripts/wheel $(ARGS) $(PLATFORMS)

.PHONY: generate
generate: ## Make generated code anew: queries (sqlc), templates (templ)
	scripts/generate

.PHONY: check-generated
check-generated: ## Fail when generated code is not what `make generate` makes
	scripts/check-generated

.PHONY: lock
lock: ## Pin the Python packages anew (add ARGS=--upgrade for newer ones)
	scripts/lock $(ARGS)

.PHONY: demo
demo: build ## A training that makes way and comes back: on the server of `make run`, or on one of its own
	@exec .venv/bin/python examples/training_preemption_demo.py

.PHONY: bench
bench: build ## Measure it as its users meet it: admission and preemption, beside plain ways
	@go build -o bin/bench ./bench && exec bin/bench

.PHONY: screenshots
screenshots: ## Take the pictures in docs/images anew, in a real browser
	@export SCHEDULEMESH_SCREENSHOTS=$(CURDIR)/docs/images; $(CONDUCT) -only go -packages ./e2e/... -run Story

.PHONY: clean
clean: ## Remove everything these commands made, the data included
	@scripts/clean
