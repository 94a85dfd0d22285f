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

# What the benches write their results to.
RESULTS ?= target/bench
BENCH = target/release/sluice-bench run --sluiced target/release/sluiced
SOAK ?= 1h

.PHONY: bench-build
bench-build:
	$(CARGO) build --locked --release --target-dir target -p sluice -p sluice-bench --bins
	@mkdir -p $(RESULTS)/soak

.PHONY: bench
bench: bench-build ## how changes reach 100 and 1,000 simulated proxies (minutes); results in target/bench
	$(BENCH) --proxies 100 --repeat 3 --storms reconnect --json $(RESULTS)/m1-100.json
	$(BENCH) --proxies 1000 --repeat 3 --storms reconnect,restart,rush --json $(RESULTS)/m1-1000.json
	target/release/sluice-bench report $(RESULTS)/m1-100.json $(RESULTS)/m1-1000.json --out $(RESULTS)/report.html

.PHONY: bench-full
bench-full: bench ## the same over sizes of mesh, both drivers and all storms (hours)
	$(BENCH) --proxies 1000 --virtual-hosts --repeat 3 --json $(RESULTS)/m1-1000-vhds.json
	$(BENCH) --proxies 1000 --protocol sotw --repeat 3 --storms slow --json $(RESULTS)/m1-1000-sotw.json
	$(BENCH) --proxies 5000 --changes none --storms reconnect,restart --json $(RESULTS)/m1-5000.json
	$(BENCH) --services 10000 --endpoints 2 --namespaces 50 --proxies 100 --storms reconnect,slow --json $(RESULTS)/s10000-100.json
	for driver in directory kube; do \
	  $(BENCH) --services 10000 --endpoints 2 --namespaces 50 --proxies 10 --changes endpoint-ready,vs --driver $$driver --starts 5 \
	    --json $(RESULTS)/start-$$driver.json || exit; \
	done
	target/release/sluice-bench scale --sluiced target/release/sluiced --out $(RESULTS)/scale --resume --repeat 3 --window 256 --timeout 900
	target/release/sluice-bench report $(RESULTS)/*.json $(RESULTS)/scale/*.json --out $(RESULTS)/report.html

.PHONY: soak
soak: bench-build ## random changes for an hour (SOAK=10m): memory stays flat, the state is that of a fresh server
	target/release/sluice-bench soak --sluiced target/release/sluiced --services 200 --duration $(SOAK) --json $(RESULTS)/soak/soak.json

.PHONY: fuzz
fuzz: build ## mutated objects and requests; TARGET=objects|patches|xds|csr|jwt|identity|yaml FUZZ_SECONDS=60 SEED=1
	$(CARGO) run --quiet --locked -p sluice-fuzz -- $(or $(TARGET),objects) --seconds $(or $(FUZZ_SECONDS),60) --seed $(or $(SEED),1)

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

TOOLS = target/tools/bin

.PHONY: tools
tools: ## install the pinned cargo-deny and cargo-shear into target/tools
	@.ci/install-tools

.PHONY: deny
deny: tools ## bans, licences and sources of dependencies (deny.toml)
	$(TOOLS)/cargo-deny --locked --workspace check -D unmatched-skip bans licenses sources

.PHONY: audit
audit: tools ## advisories about dependencies; needs GitHub, so CI does not run it
	$(TOOLS)/cargo-deny --locked --workspace check advisories

.PHONY: unused
unused: tools ## dependencies without a user
	$(TOOLS)/cargo-shear shear --locked

.PHONY: check-crates
check-crates: ## each crate compiles alone: no feature comes from another crate of the workspace
	@for crate in $$($(CARGO) metadata --no-deps --format-version 1 --locked | \
	  python3 -c 'import json, sys; print(*[package["name"] for package in json.load(sys.stdin)["packages"]])'); do \
	  echo "check $$crate"; $(CARGO) check --quiet --locked -p $$crate || exit 1; \
	done

.PHONY: ci
ci: check deny unused test demo-once ## what CI runs
