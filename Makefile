# The few things that people type. Each installs what it needs by itself
# (setup.sh), or says what to install.
.PHONY: demo build test up down clean-test-parts

# Events through Kafka into the ledger, with a crash in the middle.
demo:
	./setup.sh demo
	cargo build --release --locked
	./target/release/postonce demo

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

# Kafka, Postgres and a consumer in containers.
up:
	docker compose up --build --detach

down:
	docker compose down

# What a killed test run may leave: its processes end by themselves, its files do not.
clean-test-parts:
	rm -rf "$${TMPDIR:-/tmp}"/postonce-postgres-* "$${TMPDIR:-/tmp}"/postonce-kafka-* "$${TMPDIR:-/tmp}"/postonce-process-* "$${TMPDIR:-/tmp}"/postonce-demo-*
	rm -rf target/kafka target/postgres18 target/python target/data
