# make train   runs the main job on the embedded data set
# make test    runs every check: ruff, mypy, import-linter, pytest
# make test-faults      kills aggregator and parties at every step of a run, on both transports
# make bench   measures speed and memory against their bars, about 10 minutes, into benchmarks/RESULTS.md
# make ui      shows the runs of mlflow.db in MLflow's pages, on http://127.0.0.1:5000 (PORT=...)
# make test-ui looks at those pages in a headless browser; installs chromium where it may (SCREENSHOTS=folder keeps pictures)
# make demo-federation  starts an aggregator and three parties as processes, with fresh keys
# make clean   removes what runs left here, but for the ledger: the lifetime budget is in it
# What runs Python makes a .venv unless a virtual environment is active, and then uses that.

ifdef VIRTUAL_ENV
VENV := $(VIRTUAL_ENV)
else
VENV := .venv
endif
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.homo_dp_installed
export OMP_NUM_THREADS ?= 1

.PHONY: train ui browser test test-ui test-faults demo-federation lint install bench clean help

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

PORT ?= 5000

ui: $(INSTALLED)
	@echo "MLflow shows the runs on http://127.0.0.1:$(PORT) (Ctrl-C ends it)"
	MLFLOW_DISABLE_TELEMETRY=true $(PYTHON) -m mlflow server --backend-store-uri sqlite:///mlflow.db \
		--host 127.0.0.1 --port $(PORT) --workers 1

test-ui: $(INSTALLED) browser
	SCREENSHOTS=$(SCREENSHOTS) $(PYTHON) -m pytest -m ui tests/ui

browser:
	@{ command -v chromium && command -v chromedriver; } >/dev/null || { \
		test "$$(id -u)" = 0 || { echo "chromium and chromedriver are missing: install them (Debian: chromium chromium-driver)"; exit 2; }; \
		apt-get update -q && apt-get install -y -q --no-install-recommends chromium chromium-driver fonts-dejavu-core; }

demo-federation: $(INSTALLED)
	$(PYTHON) pipelines/demo_federation.py

clean:
	rm -rf out mlflow.db mlartifacts
