# What people do with twinbus.  Every target sets up what it needs, in .venv and build/ only.
#
#   make demo       the drill: an outage, rehearsed in two minutes; ARGS="--duration 60" and so on
#   make serve      run a bus here (data in ./data, port 5672); ARGS="--port 0" and so on
#   make test       everything that must hold: checks, and every test
#   make check      formatting, lint, types
#   make bench      speed, against the peers that are installed
#   make nightly    the tests of `make test`, larger, and all of them on both builds
#   make fresh      the README's two commands as on a new machine: empty home, no Java
#   make compiled   the package with its hot modules compiled, in build/compiled
#   make dist       sdist and wheels, pure and compiled, in dist/
#   make docs       the documentation as a site, in build/site

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
ARGS ?=

# The build under test.  TWINBUS_PURE=1 has Python's modules loaded wherever the compiled ones are.
# Compiled for tests means unoptimized: the same C, in a tenth of the time.
COMPILED := build/compiled
QUICK := build/quick
WITH_pure := TWINBUS_PURE=1
WITH_compiled := PYTHONPATH=$(CURDIR)/$(QUICK)
# Without a C compiler there is no compiled build, and so nothing that could fail.
BUILDS := pure $(if $(shell command -v $(CC)),compiled)
BUILD ?= $(lastword $(BUILDS))

# Suites without a server.  Of these, CORE goes through the hot modules, and is run on both builds.
QUIET := tests/unit tests/property tests/simulation tests/docs
CORE := $(addprefix tests/unit/,amqp message entities storage links broker gateway test_compiled.py) \
        $(addprefix tests/unit/pipeline/test_,rows.py encoding.py sink_keys.py) tests/property
# Suites that talk to real servers: once, on one build (`make nightly`: on both).
LIVE := tests/interop tests/security tests/crash tests/browser tests/packaging

# File by file, because the tests of a file share a server.  Those that talk to servers mostly wait,
# so two of them run at a time for each core; with three, now and then one came too late for an SDK's
# timeout.  WORKERS=0: one after the other.
LIVE_WORKERS := $(shell cores=$$(nproc 2> /dev/null || echo 2); echo $$((cores < 4 ? 2 * cores : 8)))
PYTEST = $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder -p tests.proven \
         --proven build/proven/$@.json

.PHONY: setup serve demo test talking computing quiet core live spark nightly fresh check bench quick compiled dist docs browser clean

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
	$(BIN)/twinbus drill $(ARGS)

check: setup
	@echo "== check: format, lint, types"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Tests with servers mostly wait.  What only computes fills the gaps, politely, and reports at its end.
test: check
	@rm -rf build/proven && mkdir -p build
	@$(MAKE) $(if $(filter compiled,$(BUILDS)),quick)
	@$(MAKE) --no-print-directory --jobs 2 talking computing
	@echo "== everything holds"
	@$(BIN)/python -m tests.proven build/proven

talking:
	@$(MAKE) --jobs 1 live spark

computing:
	@echo "== beside them, at low priority: tests without a server; their report follows"
	@nice -n 15 $(MAKE) --jobs 1 WORKERS=$(or $(WORKERS),1) quiet core > build/computing.log 2>&1; code=$$?; \
	  cat build/computing.log; exit $$code

quiet: setup
	@echo "== tests without a server, pure Python"
	$(WITH_pure) $(PYTEST) -n $(or $(WORKERS),3) $(QUIET) $(ARGS)

core: setup $(if $(filter compiled,$(BUILDS)),quick)
ifneq ($(filter compiled,$(BUILDS)),)
	@echo "== the core again, compiled"
	$(WITH_compiled) $(BIN)/python -c 'import twinbus; print(twinbus.version_text()); raise SystemExit(twinbus.build() != "compiled")'
	$(WITH_compiled) $(PYTEST) -n $(or $(WORKERS),3) $(CORE) $(ARGS)
else
	@echo "== no C compiler ($(CC)): only the pure build is tested"
endif

live: setup browser $(if $(filter compiled,$(BUILD)),quick)
	@echo "== tests with real servers, $(BUILD)"
	$(WITH_$(BUILD)) $(PYTEST) -n $(or $(WORKERS),$(LIVE_WORKERS)) $(LIVE) $(ARGS)

# Apart, since they keep both cores busy; in two processes, which have a session each.
spark: setup $(if $(filter compiled,$(BUILD)),quick)
	@echo "== tests with Spark, $(BUILD)"
	$(WITH_$(BUILD)) $(PYTEST) -n $(or $(WORKERS),2) tests/spark $(ARGS)

nightly: export TWINBUS_TEST_SIZE = nightly
nightly: export PYTEST_TIMEOUT = 14400
nightly: test fresh
	$(MAKE) live BUILD=pure
	$(MAKE) core CORE=tests/simulation

fresh: setup
	$(BIN)/python -m tests.fresh

# The page is tested in a real browser: Debian's Chromium, installed here if that is possible.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name > /dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "== installing Chromium, in which the page is tested"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium > /dev/null; \
	else \
	  echo "The page is tested in Chromium, which is not installed: apt-get install chromium" >&2; exit 1; \
	fi

# Incremental: mypyc rewrites only C files that changed, and only those are compiled again.
compiled: setup
	@echo "== compiling the hot modules into $(COMPILED)"
	@$(BIN)/python setup.py --quiet build --parallel 2 --build-lib $(COMPILED) --build-temp build/objects

quick: setup
	@echo "== compiling the hot modules for tests into $(QUICK)"
	@TWINBUS_OPT_LEVEL=0 $(BIN)/python setup.py --quiet build --parallel 2 --build-lib $(QUICK) --build-temp build/quick-objects

# The compiled wheel is for this machine's Python and kind of processor, the pure one for all.
dist: setup
	rm -rf dist build/lib*
	TWINBUS_PURE=1 $(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	$(if $(filter compiled,$(BUILDS)),$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .)
	TWINBUS_PURE=1 $(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("dist")'
	@ls -1 dist

docs: setup
	$(BIN)/mkdocs build --strict --quiet --site-dir build/site
	@echo "build/site/index.html"

bench: compiled
	$(BIN)/python -m bench $(ARGS)

clean:
	rm -rf build .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis src/twinbus.egg-info
