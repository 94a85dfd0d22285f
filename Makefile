# Everything CI does is a target here. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
CARGO ?= cargo
# Where the demo takes its binaries from: dev builds faster, release answers faster.
PROFILE ?= dev

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: envoy
envoy: ## install the pinned Envoy and what pods need
	@tests/support/envoy/install.sh

.PHONY: build
build: ## build every binary
	$(CARGO) build --workspace --bins --locked --profile $(PROFILE)

.PHONY: demo
demo: envoy build ## a sample mesh with real Envoys: watch traffic move as a VirtualService is edited
	$(CARGO) run --quiet --locked --profile $(PROFILE) -p sluice-testkit --bin sluice-demo

.PHONY: demo-once
demo-once: envoy build ## the same, unattended; fails when anything is not as expected
	$(CARGO) run --quiet --locked --profile $(PROFILE) -p sluice-testkit --bin sluice-demo -- --once
	$(CARGO) run --quiet --locked --profile $(PROFILE) -p sluice-testkit --bin sluice-demo -- --once --gateway-only

.PHONY: test
test: envoy build ## every test
	$(CARGO) test --workspace --locked --no-fail-fast

.PHONY: parity
parity: build ## the parity table; FAMILY=service CASE=01 narrow it
	$(CARGO) test --locked --test golden -- --nocapture

.PHONY: bench-engine
bench-engine: ## the engine's benches (minutes)
	$(CARGO) bench -p sluice-engine --locked

.PHONY: fmt
fmt: ## format the source
	$(CARGO) fmt --all

.PHONY: check
check: ## formatting, lints, docs
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

.PHONY: ci
ci: check test demo-once ## what CI runs
