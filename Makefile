# Every step of CI is a target. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
CARGO ?= cargo
# Cargo profile of the binaries: dev builds faster, release responds faster.
PROFILE ?= dev
# The directory of that profile's binaries.
BIN = target/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
# The CRDs that sluicectl has in it, if `make cluster` has written them.
export EMBEDDED_CRDS = $(wildcard $(CURDIR)/target/cluster/crds/istio.yaml)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: envoy
envoy: ## install the pinned Envoy and the packages that pods need
	@tests/support/envoy/install.sh

.PHONY: grpc
grpc: ## install the pinned gRPC libraries for Python and, if Go is installed, for Go, for the tests without a proxy
	@tests/support/grpc/install.sh

.PHONY: browser
browser: ## install Chromium and the pinned axe-core for the tests of the web console
	@tests/support/browser/install.sh

.PHONY: build
build: ## build all binaries
	$(CARGO) build --workspace --bins --locked --profile $(PROFILE)

.PHONY: demo
demo: envoy build ## run a sample mesh with real Envoys: a VirtualService is edited, and the traffic changes
	$(BIN)/sluice-demo

.PHONY: demo-once
demo-once: envoy build ## run the demo without interaction; fails if a result is not as expected
	$(BIN)/sluice-demo --once
	$(BIN)/sluice-demo --once --gateway-only

# `cargo test` with the number of tests at a time that suits the test binary.
TEST = $(CARGO) test --config "target.'cfg(unix)'.runner = '$(CURDIR)/.ci/run-tests'" --workspace --locked

.PHONY: test
test: envoy grpc build ## run all tests
	@# The tests of the engine contain its examples.
	$(TEST) --no-fail-fast --lib --bins --tests
	$(CARGO) test --workspace --locked --doc

.PHONY: cluster
cluster: ## build etcd, kube-apiserver, kube-controller-manager and helm into target/cluster (6 minutes); needs Go
	@tests/cluster/build

.PHONY: test-cluster
test-cluster: cluster envoy build ## run the tests that need a real Kubernetes API server
	SLUICE_CLUSTER=$(CURDIR)/target/cluster $(TEST) --no-fail-fast --test cluster --test node

.PHONY: conformance
conformance: cluster envoy build ## run the conformance tests of the Gateway API and write docs/conformance.md (minutes; FLAGS=--run-test=…)
	@tests/cluster/build conformance
	SLUICE_CLUSTER=$(CURDIR)/target/cluster SLUICE_CONFORMANCE_REPORT=$(CURDIR)/target/conformance.yaml \
	  SLUICE_CONFORMANCE_PAGE=$(CURDIR)/$(if $(FLAGS),target,docs)/conformance.md SLUICE_CONFORMANCE_FLAGS="$(FLAGS)" \
	  $(CARGO) test --workspace --locked --test cluster conform_to_the_gateway_api -- --nocapture --test-threads=1

.PHONY: test-console
test-console: browser build ## test the pages of the web console in headless Chromium
	SLUICE_BROWSER=$(CURDIR)/target/browser $(CARGO) test --workspace --locked --no-fail-fast --test control_plane browser::

.PHONY: manifests
manifests: cluster ## render the charts as plain YAML, with the CRDs of Istio and of the Gateway API, into target/manifests
	@manifests/render

.PHONY: parity
parity: build ## print the parity table; FAMILY=service CASE=01 select families and cases
	$(CARGO) test --workspace --locked --test golden -- --nocapture

.PHONY: images
images: envoy ## lay out the images of sluiced, sluice-agent with Envoy and sluice-cni in target/images, without a container engine (minutes)
	$(CARGO) build --locked --release -p sluice -p sluicectl -p sluice-agent -p sluice-cni -p sluice-images --bins
	target/release/sluice-images

# Directory of the bench results.
RESULTS ?= target/bench
BENCH = target/release/sluice-bench run --sluiced target/release/sluiced
SOAK ?= 1h

.PHONY: bench-build
bench-build:
	$(CARGO) build --locked --release --target-dir target -p sluice -p sluice-bench --bins
	@mkdir -p $(RESULTS)/soak

.PHONY: bench
bench: bench-build ## measure how changes reach 100 and 1,000 simulated proxies (minutes); results in target/bench
	$(BENCH) --proxies 100 --repeat 3 --storms reconnect --json $(RESULTS)/m1-100.json
	$(BENCH) --proxies 1000 --repeat 3 --storms reconnect,restart,rush --json $(RESULTS)/m1-1000.json
	target/release/sluice-bench report $(RESULTS)/m1-100.json $(RESULTS)/m1-1000.json --out $(RESULTS)/report.html

.PHONY: bench-full
bench-full: bench ## measure further mesh sizes, both drivers and further storms (hours)
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

# Clients of the benches of ambient mode. Fewer of them need fewer services, with 100 services for each waypoint.
WAYPOINTS ?= 100
WAYPOINT_SERVICES ?= 10000
ZTUNNELS ?= 1000
ZTUNNEL_SERVICES ?= 10000

.PHONY: bench-ambient
bench-ambient: bench-build ## measure 100 waypoints with 10,000 Services, and 1,000 ztunnels with 50,000 pods (WAYPOINTS=… ZTUNNELS=…)
	$(BENCH) --services $(WAYPOINT_SERVICES) --endpoints 1 --proxies 0 --gateways 0 --waypoints $(WAYPOINTS) \
	  --changes waypoint-endpoint,waypoint-route,no-op --repeat 5 --json $(RESULTS)/ambient-waypoints.json
	$(BENCH) --services $(ZTUNNEL_SERVICES) --endpoints 5 --proxies 0 --gateways 0 --ztunnels $(ZTUNNELS) --window 64 --timeout 900 \
	  --changes workload,no-op --repeat 5 --json $(RESULTS)/ambient-ztunnels.json
	target/release/sluice-bench report $(RESULTS)/ambient-waypoints.json $(RESULTS)/ambient-ztunnels.json \
	  --out $(RESULTS)/ambient-report.html

.PHONY: soak
soak: bench-build ## apply random changes for an hour (SOAK=10m): memory stays constant, and the state equals that of a new server
	target/release/sluice-bench soak --sluiced target/release/sluiced --services 200 --duration $(SOAK) --json $(RESULTS)/soak/soak.json

.PHONY: soak-sources
soak-sources: build ## apply random changes to a source of configuration for an hour (SOAK_SECONDS=600), whose server is killed again and again
	SLUICE_SOAK_SECONDS=$(or $(SOAK_SECONDS),3600) $(CARGO) test --locked --test control_plane \
	  random_changes_arrive_exactly_although_the_server_is_killed -- --nocapture

# Duration of each fault.
HOLD ?= 10s

.PHONY: faults
faults: envoy bench-build ## inject faults while 200 proxies are connected and objects change (minutes; FAULTS=api-frozen,… HOLD=10s)
	target/release/sluice-bench faults --sluiced target/release/sluiced --services 200 --hold $(HOLD) \
	  $(if $(FAULTS),--faults $(FAULTS)) --json $(RESULTS)/faults.json
	@# Only debug builds of the server inject panics.
	$(if $(FAULTS),,$(CARGO) build --locked --bin sluiced)
	$(if $(FAULTS),,target/release/sluice-bench faults --sluiced target/debug/sluiced --services 200 --faults task-panics,fatal-panics \
	  --json $(RESULTS)/faults-panics.json)

.PHONY: fuzz
fuzz: build ## test with mutated objects and requests; TARGET=objects|patches|epochs|xds|csr|jwt|identity|yaml|analysis|memory FUZZ_SECONDS=60 SEED=1
	$(BIN)/sluice-fuzz $(or $(TARGET),objects) --seconds $(or $(FUZZ_SECONDS),60) --seed $(or $(SEED),1)

COVERAGE_TARGET = $(or $(TARGET),json)
COVERAGE_DIR = target/fuzz/coverage

.PHONY: fuzz-coverage-build
fuzz-coverage-build:
	RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/tests/fuzz/coverage/instrument $(CARGO) build --workspace --locked \
	  --bin sluice-fuzz-coverage --features sluice-fuzz-coverage/libfuzzer

.PHONY: fuzz-coverage
fuzz-coverage: fuzz-coverage-build ## fuzz with coverage feedback; TARGET=json|yaml|objects|xds|csr|jwt|xfcc FUZZ_SECONDS=60; INPUT=file repeats a finding
	@mkdir -p $(COVERAGE_DIR)
	@# A backtrace takes long: libFuzzer would report a timeout and not the panic.
	RUST_BACKTRACE=0 SLUICE_FUZZ_TARGET=$(COVERAGE_TARGET) SLUICE_FUZZ_CORPUS=$(COVERAGE_DIR)/$(COVERAGE_TARGET) \
	  target/debug/sluice-fuzz-coverage \
	  -max_total_time=$(or $(FUZZ_SECONDS),60) -timeout=10 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 \
	  -dict=$(COVERAGE_DIR)/$(COVERAGE_TARGET).dict -artifact_prefix=$(COVERAGE_DIR)/$(COVERAGE_TARGET)- $(FUZZ_ARGS) \
	  $(or $(INPUT),$(COVERAGE_DIR)/$(COVERAGE_TARGET))

.PHONY: pictures
pictures: bench-build ## draw the dashboard of a server under load into docs/pictures (4 minutes); needs Prometheus (Debian: prometheus)
	manifests/dashboards/pictures

.PHONY: pictures-console
pictures-console: browser build ## write pictures of the web console into docs/pictures
	SLUICE_BROWSER=$(CURDIR)/target/browser SLUICE_PICTURES=$(CURDIR)/docs/pictures \
	  $(CARGO) test --workspace --locked --test control_plane browser::pictures

.PHONY: bench-engine
bench-engine: ## run the benches of the engine (minutes)
	$(CARGO) bench -p sluice-engine --locked

.PHONY: fmt
fmt: ## format the source
	$(CARGO) fmt --all

# Both commands of `check` have the same features, so that they share what they compile.
ALL_FEATURES = --features sluice-fuzz-coverage/harness
# What `cargo clippy` sets: `cargo doc` then reads the crates as clippy has compiled them, and does not compile them again.
AS_CLIPPY = RUSTC_WORKSPACE_WRAPPER="$$(rustc --print sysroot)/bin/clippy-driver" \
  CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__

.PHONY: check
check: ## check formatting, lints and docs
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets $(ALL_FEATURES) --locked -- -D warnings
	$(AS_CLIPPY) RUSTDOC=$(CURDIR)/.ci/rustdoc-check RUSTDOCFLAGS="-D warnings" \
	  $(CARGO) doc --workspace --no-deps $(ALL_FEATURES) --locked

TOOLS = target/tools/bin

.PHONY: tools
tools: ## install the pinned cargo-deny and cargo-shear into target/tools
	@.ci/install-tools

.PHONY: deny
deny: tools ## check bans, licences and sources of dependencies (deny.toml)
	$(TOOLS)/cargo-deny --locked --workspace check -D unmatched-skip bans licenses sources

.PHONY: audit
audit: tools ## check advisories about dependencies; needs GitHub, so CI does not run it
	$(TOOLS)/cargo-deny --locked --workspace check advisories

.PHONY: unused
unused: tools ## check for unused dependencies
	$(TOOLS)/cargo-shear shear --locked

# The crates without I/O. CI checks these alone; the others use most features of their dependencies in any case.
PURE_CRATES = $(addprefix sluice-,proto model engine parse patch envoy graph template xds-protocol)

.PHONY: check-crates
check-crates: ## check each crate alone: it compiles without features from other crates (13 minutes; CRATES=…, default all)
	@for crate in $(or $(CRATES),$$($(CARGO) metadata --no-deps --format-version 1 --locked | \
	  python3 -c 'import json, sys; print(*[package["name"] for package in json.load(sys.stdin)["packages"]])')); do \
	  echo "check $$crate"; $(CARGO) check --quiet --locked -p $$crate || exit 1; \
	done

.PHONY: check-pure-crates
check-pure-crates: ## check each crate without I/O alone
	@$(MAKE) --no-print-directory check-crates CRATES="$(PURE_CRATES)"

CI_STEPS = check check-pure-crates deny unused test test-console test-cluster demo-once

.PHONY: ci
ci: ## run all checks of CI, and print how long each took
	@for step in $(CI_STEPS); do \
	  begin=$$SECONDS; $(MAKE) --no-print-directory $$step || exit; echo "== $$step: $$((SECONDS - begin)) s"; \
	done
