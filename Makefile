# make train   runs the main job on the embedded data set
# make test    runs every check: ruff, mypy, import-linter, pytest
# make test-fast  a change in hand: ruff and the tests of changed files, under 60 s (TESTS=tests/... names others)
# make test-slow  scikit-learn's checks of the estimators
# make test-sql   tables in databases, with a real PostgreSQL (installs it where it may)
# make dist    wheel and sdist into dist/
# make docs    the site into build/site; a broken link is an error
# make examples  runs the notebooks of examples/ and keeps their outputs
# make fuzz    mutates what readers of foreign bytes get, under 10 minutes, counts into docs/robustness.md (SECONDS=540)
# make test-chaos       kills, freezes and cuts off 20 federations at random, on both transports, under 8 minutes
# make audit-dependencies  asks what is known about the pinned packages and writes sbom.cdx.json
# make test-faults      kills aggregator and parties at every step of a run, on both transports
# make bench   measures speed and memory against their bars, about 10 minutes, into benchmarks/RESULTS.md
# make ui      shows the runs of mlflow.db in MLflow's pages, on http://127.0.0.1:5000 (PORT=...)
# make test-ui looks at those pages in a headless browser; installs chromium where it may (SCREENSHOTS=folder keeps pictures)
# make demo-federation  starts an aggregator and three parties as processes, with fresh keys
# make demo-secure      the same with parties that share their noise under masks
# make demo-flower      the same on Flower: a SuperLink and three SuperNodes on loopback, in an environment of its own
# make test-flower      stops a run, kills a SuperNode, a party and the SuperLink; TLS, SuperNode authentication, masks; under 4 minutes
# make clean   removes what runs left here, but for the ledger: the lifetime budget is in it
# What runs Python makes a .venv unless a virtual environment is active, and then uses that.

ifdef VIRTUAL_ENV
VENV := $(VIRTUAL_ENV)
else
VENV := .venv
endif
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.homo_dp_installed
DEVELOPING := $(VENV)/.homo_dp_developing

.PHONY: train ui browser test test-fast test-slow test-sql dist docs examples test-ui test-faults test-chaos fuzz audit-dependencies demo-federation demo-secure demo-flower test-flower lint install bench clean help

help:
	@sed -n 's/^# make/make/p' Makefile

install: $(INSTALLED)

# What training needs; then what the checks need besides.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(PYTHON) || python3 -m venv $(VENV)
	$(PYTHON) -m pip install -c constraints.txt -e .
	touch $@

$(DEVELOPING): $(INSTALLED)
	$(PYTHON) -m pip install -c constraints.txt -e .[dev]
	touch $@

train: $(INSTALLED)
	$(PYTHON) -m homo_dp.train

lint: $(DEVELOPING)
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(VENV)/bin/lint-imports

test: lint
	$(PYTHON) -m pytest -n 2 -m "not faults and not chaos and not ui and not slow and not flower"

# The tests that mirror what is not committed yet (or TESTS), else the quick heart of the privacy rules.
TESTS ?= $(shell $(PYTHON) pipelines/changed_tests.py)

test-fast: $(DEVELOPING)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m pytest -q -x -n 2 -m "not faults and not chaos and not ui and not slow and not flower" $(TESTS)

test-slow: $(DEVELOPING)
	$(PYTHON) -m pytest -n 2 -m slow

dist: $(DEVELOPING)
	rm -rf dist
	$(PYTHON) -m build --no-isolation

docs: $(DEVELOPING)
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

examples: $(DEVELOPING)
	$(PYTHON) pipelines/run_examples.py

# The real PostgreSQL of Debian; make test skips that test where the server is not installed.
test-sql: $(DEVELOPING)
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { \
		test "$$(id -u)" = 0 || { echo "PostgreSQL's server is missing: install it (Debian: postgresql)"; exit 2; }; \
		apt-get update -q && apt-get install -y -q --no-install-recommends postgresql; }
	$(PYTHON) -m pytest tests/data/test_databases.py

test-faults: $(DEVELOPING)
	$(PYTHON) -m pytest -n 2 -m faults tests/test_faults.py tests/processes

test-chaos: $(DEVELOPING)
	timeout 480 $(PYTHON) -m pytest -n 2 -m chaos tests/test_chaos.py

SECONDS ?= 540

fuzz: $(DEVELOPING)
	$(PYTHON) -m tests.fuzz.run --seconds $(SECONDS) --record docs/robustness.md

audit-dependencies: $(INSTALLED)
	$(PYTHON) pipelines/audit_dependencies.py

# Two workers on two cores: one thread each.
test test-fast test-slow test-sql test-faults test-chaos test-ui test-flower fuzz: export OMP_NUM_THREADS = 1

bench: $(DEVELOPING)
	$(PYTHON) benchmarks/run_all.py

PORT ?= 5000

ui: $(INSTALLED)
	$(PYTHON) -m homo_dp.ui --port $(PORT)

test-ui: $(DEVELOPING) browser
	SCREENSHOTS=$(SCREENSHOTS) $(PYTHON) -m pytest -m ui tests/ui

browser:
	@{ command -v chromium && command -v chromedriver; } >/dev/null || { \
		test "$$(id -u)" = 0 || { echo "chromium and chromedriver are missing: install them (Debian: chromium chromium-driver)"; exit 2; }; \
		apt-get update -q && apt-get install -y -q --no-install-recommends chromium chromium-driver fonts-dejavu-core; }

demo-federation: $(INSTALLED)
	$(PYTHON) pipelines/demo_federation.py

demo-secure: $(INSTALLED)
	$(PYTHON) -m pipelines.demo_secure

# flwr pins older versions than constraints.txt has of six packages we share, so it has an environment and a lock of its own.
FLOWER := .venv-flower/bin/python

.venv-flower/.homo_dp_installed: pyproject.toml constraints-flower.txt
	test -x $(FLOWER) || python3 -m venv .venv-flower
	$(FLOWER) -m pip install -c constraints-flower.txt -e .[flower] pytest pytest-timeout
	touch $@

demo-flower: .venv-flower/.homo_dp_installed
	$(FLOWER) -m pipelines.demo_flower

test-flower: .venv-flower/.homo_dp_installed
	$(FLOWER) -m pytest -m "flower and not slow" --confcutdir=tests/flower tests/flower

clean:
	rm -rf out mlflow.db mlartifacts
