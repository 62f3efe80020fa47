# make train   runs the main job on the embedded data set (TORCH=cuda: with CUDA, not the build of torch for CPUs)
# make test    runs every check: ruff, mypy, import-linter, pytest
# make test-fast  a change in hand: ruff and the tests of changed files, under 60 s (TESTS=tests/... names others)
# make test-slow  scikit-learn's checks of the estimators
# make test-sql   tables in databases, with a real PostgreSQL (installs it where it may)
# make test-install  installs from the locks into empty environments (/usr/bin/python3 and python3) and trains there
# make test-pages  runs every command block of README and of the tutorials, as pasted, in about 5 minutes
# make dist    wheel and sdist into dist/
# make docs    the site into build/site; a broken link is an error
# make examples  runs the notebooks of examples/ and keeps their outputs
# make fuzz    mutates what readers of foreign bytes get, about 10 minutes, counts into docs/robustness.md (SECONDS=540)
# make test-chaos       kills, freezes, clutters and cuts off 100 federations at random, on both transports (RUNS=20: some minutes)
# make locks   resolves pyproject.toml again into constraints.txt and locks/ (UPGRADE="NAME ..." takes newer versions)
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
DOCUMENTING := $(VENV)/.homo_dp_documenting
LOCKED := $(PYTHON) -m pip install --require-hashes

.PHONY: train ui browser test test-fast test-slow test-sql test-install test-pages locks dist docs examples test-ui test-faults test-chaos fuzz audit-dependencies demo-federation demo-secure demo-flower test-flower lint install bench clean help

help:
	@sed -n 's/^# make/make/p' Makefile

install: $(INSTALLED)

# What training needs. The stamp names the build of torch; another one that TORCH names is installed in its place.
BUILD := $(or $(TORCH),$(shell cat $(INSTALLED) 2>/dev/null),cpu)
ifneq ($(TORCH),)
ifneq ($(TORCH),$(shell cat $(INSTALLED) 2>/dev/null))
.PHONY: $(INSTALLED)
endif
endif

$(INSTALLED): pyproject.toml locks/run.txt locks/torch-cpu.txt locks/torch-cuda.txt
	test -x $(PYTHON) || python3 -m venv $(VENV)
	$(PYTHON) pipelines/install.py --editable --torch $(BUILD)
	echo $(BUILD) > $@

# What the checks need besides.
$(DEVELOPING): $(INSTALLED) locks/dev.txt
	$(LOCKED) -r locks/dev.txt
	touch $@

# What the site needs; it has no need of torch.
$(DOCUMENTING): locks/docs.txt
	test -x $(PYTHON) || python3 -m venv $(VENV)
	$(LOCKED) -r locks/docs.txt
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

docs: $(DOCUMENTING)
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

examples: $(DEVELOPING)
	$(PYTHON) pipelines/run_examples.py

# The real PostgreSQL of Debian; make test skips that test where the server is not installed.
test-sql: $(DEVELOPING)
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { \
		test "$$(id -u)" = 0 || { echo "PostgreSQL's server is missing: install it (Debian: postgresql)"; exit 2; }; \
		apt-get update -q && apt-get install -y -q --no-install-recommends postgresql; }
	$(PYTHON) -m pytest tests/data/test_databases.py

test-install:
	python3 pipelines/try_install.py

test-pages: $(INSTALLED)
	$(PYTHON) -m tests.pasted_commands

test-faults: $(DEVELOPING)
	$(PYTHON) -m pytest -n 2 -m faults tests/test_faults.py tests/processes

RUNS ?= 100

test-chaos: $(DEVELOPING)
	CHAOS_RUNS=$(RUNS) timeout $$((240 + 12 * $(RUNS))) $(PYTHON) -m pytest -n 2 -m chaos tests/test_chaos.py

SECONDS ?= 540

fuzz: $(DEVELOPING)
	$(PYTHON) -m tests.fuzz.run --seconds $(SECONDS) --record docs/robustness.md

audit-dependencies: $(INSTALLED)
	$(PYTHON) pipelines/audit_dependencies.py

locks: $(INSTALLED)
	$(PYTHON) pipelines/lock.py $(if $(UPGRADE),--upgrade $(UPGRADE))

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

# flwr needs older versions of six packages that we share, so it has an environment of its own. What locks/flower.txt does
# not name, torch above all, is that of $(VENV).
FLOWER := .venv-flower/bin/python

.venv-flower/.homo_dp_installed: $(INSTALLED) locks/flower.txt
	$(PYTHON) pipelines/flower_environment.py .venv-flower
	touch $@

demo-flower: .venv-flower/.homo_dp_installed
	$(FLOWER) -m pipelines.demo_flower

test-flower: .venv-flower/.homo_dp_installed $(DEVELOPING)
	$(FLOWER) -m pytest -m "flower and not slow" --confcutdir=tests/flower tests/flower

clean:
	rm -rf out mlflow.db mlartifacts
