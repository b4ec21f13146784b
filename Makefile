# The few commands of this project. `make` alone lists them.

CARGO ?= cargo
# Tests wait much of the time, so more run at once than there are cores. How many servers they have at work
# is bounded by the testbed's pool, or elections would time out.
export RUST_TEST_THREADS ?= 3
# A broker lives for seconds there: what Java's second compiler costs is never gained back.
export JAVA_TOOL_OPTIONS ?= -XX:TieredStopAtLevel=1
# What is passed on: `make demo ARGS=--json`, `make bench ARGS=--json`, `make test ARGS=cutover`.
ARGS ?=

IMAGO = $(CARGO) run --locked --release --package imago --
# The demos that show a move need no optimised program, which takes twice as long to build.
DEMO = $(CARGO) run --locked $(if $(filter store adapt tune provision,$(ARGS)),--release) --package imago --

# Tests are built by clippy, which is the compiler with more warnings: what is tested is linted in one go, and
# dependencies need not be checked for clippy and then built for the tests.
TEST = RUSTC_WORKSPACE_WRAPPER=clippy-driver \
	CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__ $(CARGO) test
FORMATTED = $(CARGO) fmt --all --check

# The store's threads by drawn schedules: of the workspace it builds the store alone anew, with its locks and
# queues exchanged.
SCHEDULES = --locked --workspace --features imago-store/shuttle --test schedules

.DEFAULT_GOAL := help
.PHONY: help setup setup-build setup-demo build install dist lint tidy check quick test test-long demo bench

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

setup: ## install what is missing (servers for tests, Debian packages when root); quick when nothing is
	@scripts/setup.sh

# The program alone needs no server.
setup-build:
	@scripts/setup.sh build

# Each demo needs servers of its own.
setup-demo:
	@scripts/setup.sh build $(if $(filter tune,$(ARGS)),cassandra,$(if $(filter provision,$(ARGS)),mongod redis,$(if \
		$(filter store adapt,$(ARGS)),,mongod)))

build: setup-build ## the optimised program, as target/release/imago
	$(CARGO) build --locked --release --package imago

# Where `make install` puts the program: below bin.
PREFIX ?= $(HOME)/.local

install: setup-build ## the program with link-time optimisation, as $(PREFIX)/bin/imago
	$(CARGO) build --locked --profile dist --package imago --no-default-features
	install -D target/dist/imago $(PREFIX)/bin/imago

dist: setup-build ## an archive and a Debian package with manual pages, completions and units, in target/dist
	$(CARGO) build --locked --profile dist --package imago --no-default-features
	scripts/dist.sh

lint: setup # formatting, clippy and the links of comments, every warning an error
	$(FORMATTED)
	$(CARGO) clippy --locked --workspace --all-targets --quiet -- -D warnings
	$(CARGO) clippy --locked --package imago --no-default-features --quiet -- -D warnings
	$(CARGO) clippy $(SCHEDULES) --quiet -- -D warnings
	RUSTDOCFLAGS="-D rustdoc::broken_intra_doc_links" $(CARGO) doc --locked --workspace --no-deps \
		--document-private-items --quiet

# Over the whole workspace, because one crate alone would build the dependencies with other features.
tidy: setup # the layout rules of CONTRIBUTING.md
	$(TEST) --locked --workspace --test tidy

check: lint tidy ## formatting, clippy without a warning, layout rules

# One path through each verb on real servers, by parts of the names of tests.
QUICK = cli:: demo::a_store_changes reshard_plan:: job::jobs_are_listed load::an_undisturbed \
	testbed::a_cluster_stands cutover::forward::the_block_stays faults::steering::a_cancelled \
	reshard::plain::a_collection_gets store::tools:: store::transactions::smallbank_has bench::a_verification

# Searches of all states, and simulations that take seconds: `make test` has them.
SLOW = exhaustive:: site::tests:: store::tests:: adapt::tests:: sophia:: provision::reuse:: surrogate:: \
	against_simulator damage_anywhere outlives_crashes differential:: memory_is_bounded rows::tests:: kafka::tests:: \
	engine::tests::apart:: procedures::tests::

quick: setup ## after a change: clippy, layout rules, the quick unit tests, and one path through each verb on real servers
	$(TEST) --locked --workspace --lib --bins --test tidy --test copy_model --test verbs --no-run
	$(TEST) --locked --workspace --lib --bins --test tidy --test copy_model -- $(addprefix --skip ,$(SLOW))
	$(TEST) --locked --workspace --test verbs -- $(QUICK)

test: setup ## everything that must pass: formatting, clippy, then all tests against real servers
	$(FORMATTED)
	$(TEST) --locked --workspace --no-fail-fast $(ARGS)
	$(TEST) $(SCHEDULES) $(ARGS)

# As a job of its own: an hour of one cluster after the other on two cores.
test-long: setup ## ten thousand simulations of the store, and 74 deaths in changes of shape, sixty of a store
	IMAGO_SEEDS=10000 $(TEST) --locked --workspace --lib -- site::tests --skip adaptation
	IMAGO_SEEDS=1000 $(TEST) --locked --workspace --lib -- site::tests::adaptation
	IMAGO_LONG=1 $(TEST) $(SCHEDULES)
	IMAGO_LONG=1 $(TEST) --locked --package imago-store --lib -- fuzz
	IMAGO_LONG=1 $(TEST) --locked --workspace --test servers -- --include-ignored cassandra::
	IMAGO_LONG=1 $(TEST) --locked --workspace --test verbs -- --include-ignored --nocapture --test-threads 1 tune::
	IMAGO_LONG=1 $(TEST) --locked --workspace --test verbs -- --include-ignored --nocapture reshard:: $(ARGS)
	IMAGO_LONG=1 $(TEST) --locked --workspace --test verbs -- --include-ignored --nocapture demo:: cutover:: faults:: store::apart:: store::deaths:: store::crashes:: store::takeover:: store::transfers:: bench:: $(ARGS)
	IMAGO_LONG=1 $(TEST) --locked --workspace --test verbs -- --include-ignored --nocapture --test-threads 1 storm:: tutorials:: $(ARGS)

demo: setup-demo ## move a live, busy collection between two real clusters, and prove it
	$(DEMO) demo $(ARGS)

bench: setup ## measure copy, replay, verify and reshard beside floors and competitors, and what decides
	$(IMAGO) bench run copy $(ARGS)
	$(IMAGO) bench run replay $(ARGS)
	$(IMAGO) bench run verify $(ARGS)
	$(IMAGO) bench run reshard $(ARGS)
	$(IMAGO) bench run placement $(ARGS)
	$(IMAGO) bench run flows $(ARGS)
	$(IMAGO) bench run flows-real $(ARGS)
