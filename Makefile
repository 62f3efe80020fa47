# make train   runs the main job on the embedded data set
# make test    runs every check: ruff, mypy, import-linter, pytest
# make test-faults      kills aggregator and parties at every step of a run, on both transports
# make bench   measures speed and memory against their bars, about 10 minutes, into benchmarks/RESULTS.md
# make demo-federation  starts an aggregator and three parties as processes, with fresh keys
# Both make a .venv unless a virtual environment is active, and then use that.

ifdef VIRTUAL_ENV
VENV := $(VIRTUAL_ENV)
else
VENV := .venv
endif
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.homo_dp_installed
export OMP_NUM_THREADS ?= 1

.PHONY: train test test-faults demo-federation lint install bench clean help

help:
	@sed -n 's/^# make/make/p' Makefile

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(PYTHON) || python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet -c constraints.txt -e .[dev]
	touch $@

train: $(INSTALLED)
	$(PYTHON) -m homo_dp.train

lint: $(INSTALLED)
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(VENV)/bin/lint-imports

test: lint
	$(PYTHON) -m pytest -n 2 -m "not faults and not ui"

test-faults: $(INSTALLED)
	$(PYTHON) -m pytest -n 2 -m faults tests/test_faults.py

bench: $(INSTALLED)
	$(PYTHON) benchmarks/run_all.py

demo-federation: $(INSTALLED)
	$(PYTHON) pipelines/demo_federation.py

clean:
	rm -rf out mlflow.db mlartifacts ledger.sqlite ledger.sqlite.head
