# The few things that people type. Each installs what it needs by itself
# (setup.sh), or says what to install.
.PHONY: demo watch build test soak bench dashboards watch-check up down clean-test-parts

# Events through Kafka into the ledger, with a crash in the middle.
demo:
	./setup.sh demo
	cargo build --release --locked
	./target/release/postonce demo

# The same parts at work without end, to be looked at: `q` ends it.
watch:
	./setup.sh demo
	cargo build --release --locked
	PATH="$$PATH:$(CURDIR)/target/prometheus/usr/bin" ./target/release/postonce demo --watch

build:
	./setup.sh demo
	cargo build --release --locked

# Everything, on real Apache Kafka and real Postgres.
test:
	./setup.sh test
	cargo build --workspace --locked
	cargo test --workspace --locked
	@set -e; for file in schema/testdata/*.py; do \
		[ -e "$$file" ] || continue; \
		echo "python3 $$file"; python3 "$$file"; \
	done

# Faults in a random order: `make soak MINUTES=30 SEED=7`. `make test` has a short one.
MINUTES ?= 10
SEED ?= $(shell date +%s)
soak:
	./setup.sh test
	cargo build --locked
	POSTONCE_SOAK_MINUTES=$(MINUTES) POSTONCE_SOAK_SEED=$(SEED) \
		cargo test --locked -p postonce-tests --test real_parts -- --exact soak::survives_faults_in_any_order

# Against named baselines, in under half an hour; `make bench SIZE=full` has growth to 20
# million events and takes hours, `make bench SIZE=tiny` only shows that all of it works.
# ONLY=1,2,3 measures these alone. The result is in target/bench/report.json, too, and the growth
# runs are drawn in growth.svg beside it.
SIZE ?= default
ONLY ?=
# A tiny run judges no times, so it takes the build that the tests have made.
BENCH_PROFILE = $(if $(filter tiny,$(SIZE)),dev,release)
BENCH_PROGRAMS = target/$(if $(filter tiny,$(SIZE)),debug,release)
bench:
	./setup.sh bench
	cargo build --locked --workspace --profile $(BENCH_PROFILE)
	cargo bench --locked --workspace --profile $(BENCH_PROFILE) --bench client -- $(if $(filter tiny,$(SIZE)),--quick)
	mkdir -p target/bench
	$(BENCH_PROGRAMS)/postonce-bench --size $(SIZE) $(if $(ONLY),--only $(ONLY)) \
		--json-file target/bench/report.json --plot-file target/bench/growth.svg

# Go's usual place, where nobody has put it into PATH.
GO = PATH="$$PATH:/usr/local/go/bin" go -C grafana/generator

# grafana/dashboards/*.json from grafana/generator.
dashboards:
	$(GO) run . write

# What needs neither Grafana nor a run: dashboards, alarms, runbooks and metrics fit together.
watch-check:
	./setup.sh watch
	PATH="$(CURDIR)/target/prometheus/usr/bin:$$PATH" $(GO) run . check

# Kafka, Postgres and a consumer in containers.
up:
	docker compose up --build --detach

down:
	docker compose down

# What a killed test run may leave: its processes end by themselves, its files do not.
clean-test-parts:
	rm -rf "$${TMPDIR:-/tmp}"/postonce-postgres-* "$${TMPDIR:-/tmp}"/postonce-kafka-* "$${TMPDIR:-/tmp}"/postonce-process-* "$${TMPDIR:-/tmp}"/postonce-demo-*
	rm -rf target/kafka target/prometheus target/postgres18 target/python target/data
