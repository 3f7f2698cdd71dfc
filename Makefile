SHELL := /bin/bash
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# The lock that is installed; otherwise the one for this machine, with or without an NVIDIA GPU.
LOCK ?= $(or $(patsubst .venv/.installed-%,%,$(firstword $(wildcard .venv/.installed-*))),\
  $(if $(wildcard /proc/driver/nvidia/gpus/*),dev-cuda,dev-cpu))
# With CHECKED=1, `make test` leaves out what `make check` runs.
# Arguments for demo, up, test, fuzz, chaos and bench: `make test ARGS="-k outbox"`.
ARGS ?=

BIN := .venv/bin
INSTALLED := .venv/.installed-$(LOCK)
ROOMS := shared gateway dispatcher worker cli batchyard

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: $(INSTALLED) ## install everything into .venv, by the hashes in locks/; LOCK=dev-cuda for a GPU

.PHONY: demo
demo: $(INSTALLED) ## start the fleet, run two batches of support tickets, show what comes back
	@spent=$$(cat .venv/.spent 2>/dev/null); rm -f .venv/.spent; \
	INSTALL_SECONDS=$$spent exec $(BIN)/batchyard demo $(ARGS)

.PHONY: up
up: $(INSTALLED) ## start the fleet and keep it running until Ctrl-C
	@exec $(BIN)/batchyard up $(ARGS)

.PHONY: credentials
credentials: ## write the secrets of compose.yaml into .env; needs only Python
	@$(PYTHON) -m cli.credentials compose

.PHONY: check
check: $(INSTALLED) ## lint, types, import rules, architecture and unit tests: under a minute when warm
	@$(MAKE) --no-print-directory -j2 --output-sync=target others types shared architecture lint

.PHONY: types others shared architecture lint
types:
	$(BIN)/mypy

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	git ls-files -z '*.yaml' '*.yml' | xargs -0 -r $(BIN)/yamllint --strict

# Two halves of the unit tests, which take longest, for two processors.
others: TESTS = tests/unit --ignore=tests/unit/shared
shared: TESTS = tests/unit/shared
architecture: TESTS = tests/architecture
others shared architecture: %:
	$(BIN)/python -m pytest -q -o cache_dir=.pytest_cache/$* $(TESTS)

.PHONY: servers
servers: $(INSTALLED) ## install RabbitMQ, Redis and Ceph from Debian's packages if they are missing
	@$(BIN)/python -m cli.install

.PHONY: test
test: $(INSTALLED) ## run all tests against real servers; ARGS="tests/unit -k name" runs some
	@$(BIN)/python -m cli.install || echo "Tests that need the missing servers are skipped."
	$(BIN)/python -m $(if $(ARGS),pytest $(ARGS),tests $(if $(CHECKED),--checked))

.PHONY: test-stack
test-stack: $(INSTALLED) ## build the images, bring compose.yaml up and break it, in a container engine: half an hour
	TEST_STACK=1 $(BIN)/python -m pytest -s -rs $(or $(ARGS),tests/stack)

.PHONY: fuzz
fuzz: $(INSTALLED) ## a million random lines and forms, and thousands of random calls; for a night run
	$(BIN)/python -m tests.fuzz $(ARGS)
	$(BIN)/python -m pytest -q -m hypothesis --hypothesis-profile many tests/unit
	FUZZ_EXAMPLES=$(or $(EXAMPLES),1000) $(BIN)/python -m pytest -rP tests/contract/test_schema.py

.PHONY: faults
faults: $(INSTALLED) ## the slow tests that kill, block, flood and cut off the servers: minutes
	$(BIN)/python -m pytest -s -m on_demand tests/faults $(ARGS)

.PHONY: chaos
chaos: $(INSTALLED) ## kill, freeze and cut off everything for MINUTES=5, then prove that nothing was lost; SEED=7 repeats a plan
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: outages
outages: $(INSTALLED) ## take each service away for a minute under load, and stop two processes out of four
	$(BIN)/python -m tests.chaos.outages $(ARGS)

.PHONY: bench
bench: $(INSTALLED) ## measure against the bare engine and raw storage; writes benchmarks/results.json
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: bench-gpu
bench-gpu: $(INSTALLED) ## measure the fleet on this machine's GPU beside bare engines; writes benchmarks/results-gpu.json
	$(BIN)/python -m benchmarks.gpu $(ARGS)

.PHONY: docs
docs: $(INSTALLED) ## regenerate what is generated in docs: lifecycle, settings, fields, outcomes, metrics, commands, AsyncAPI, schemas and rights
	$(BIN)/python -m shared.lifecycle > docs/lifecycle.md
	$(BIN)/python -m tests.architecture.test_docs_configuration
	$(BIN)/python -m tests.architecture.test_docs_compatibility
	$(BIN)/python -m tests.architecture.test_docs_engine_compatibility
	$(BIN)/python -m tests.architecture.test_docs_metrics
	$(BIN)/python -m cli.client.reference docs/cli.md
	$(BIN)/python -m shared.bus.asyncapi
	$(BIN)/python -m benchmarks.gpu.report
	$(BIN)/batchyard lane-logins redis > k8s/base/lane.acl

.PHONY: lock
lock: ## regenerate locks/*.txt from pyproject.toml
	@locks/compile.sh $(ARGS)

.PHONY: clean
clean: ## remove caches and build outputs; .venv and .batchyard stay
	rm -rf build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find $(ROOMS) tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(INSTALLED): locks/$(LOCK).txt pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
	  echo "Batchyard needs Python 3.11 to 3.13, and '$(PYTHON)' is another version." \
	    "Install python3.11, or name one: make install PYTHON=/path/to/python3.11" >&2; exit 1; }
	@set -e; began=$$SECONDS; echo "installing $(LOCK) into .venv: a minute or two, about 3 GB"; \
	locks/install.sh "$(LOCK)" "$(PYTHON)"; \
	rm -f .venv/.installed-*; echo $$((SECONDS - began)) > .venv/.spent; touch $@; \
	echo "installed in $$((SECONDS - began)) s"
