# What people do with twinbus.  Every target sets up what it needs, in .venv and build/ only.
#
#   make serve      run a bus here (data in ./data, port 5672); ARGS="--port 0" and so on
#   make demo       a bus, a queue, five messages there and back with the official SDK
#   make test       everything that must hold: checks, all tests, the core again compiled
#   make check      formatting, lint, types
#   make bench      speed, against the peers that are installed
#   make nightly    the tests of `make test`, larger
#   make compiled   the package with its hot modules compiled, in build/compiled

PYTHON ?= python3
BIN := .venv/bin
# Most tests wait for something, so more of them run at a time than there are cores; file by file,
# because the tests of a file share a server.  WORKERS=0 runs them one after the other.
WORKERS ?= 4
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
STAMP := .venv/installed
COMPILED := build/compiled
# Suites that run on the compiled build too: those that go through the hot modules.
CORE := $(wildcard tests/unit/amqp tests/unit/entities tests/unit/storage tests/unit/broker tests/unit/gateway \
                   tests/unit/remote tests/property tests/simulation tests/interop)
ARGS ?=

.PHONY: setup serve demo test test-pure test-spark test-compiled core-compiled check bench nightly compiled clean

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "twinbus needs Python 3.11 or later; say which with make PYTHON=...")'
	@echo "== setting up .venv"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip "setuptools>=77" "mypy>=1.18"
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

serve: setup
	$(BIN)/twinbus serve --data data $(ARGS)

demo: setup
	$(BIN)/twinbus demo

check: setup
	@echo "== check: format, lint, types"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check test-pure test-spark test-compiled
	@echo "== everything holds"

test-pure: setup
	@echo "== tests, pure Python"
	TWINBUS_PURE=1 $(PYTEST) --ignore tests/spark $(ARGS)

# Apart, since they keep both cores busy; in two processes, which have a session each.
test-spark: setup
	@echo "== tests with Spark"
	TWINBUS_PURE=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests/spark $(ARGS)

# Without a C compiler there is no compiled build, and so nothing that could fail.
test-compiled: setup
	@if command -v $(CC) > /dev/null; then $(MAKE) core-compiled; \
	else echo "== no C compiler ($(CC)): only the pure build was tested"; fi

core-compiled: compiled
	@echo "== core tests, compiled"
	PYTHONPATH=$(COMPILED) $(BIN)/python -c 'import twinbus; print(twinbus.version_text()); raise SystemExit(twinbus.build() != "compiled")'
	PYTHONPATH=$(COMPILED) $(PYTEST) $(CORE) $(ARGS)

nightly: export TWINBUS_TEST_SIZE = nightly
nightly: export PYTEST_TIMEOUT = 14400
nightly: test

# Incremental: mypyc rewrites only C files that changed, and only those are compiled again.
compiled: setup
	@echo "== compiling the hot modules into $(COMPILED)"
	@$(BIN)/python setup.py --quiet build --build-lib $(COMPILED) --build-temp build/objects

bench: compiled
	$(BIN)/python -m bench $(ARGS)

clean:
	rm -rf build .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis src/twinbus.egg-info
