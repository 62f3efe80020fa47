# make train   runs the main job on the embedded data set
# make test    runs every check: ruff, mypy, import-linter, pytest
# make fuzz    mutates what readers of foreign bytes get, under 10 minutes, counts into docs/robustness.md (SECONDS=540)
# make test-chaos       kills, freezes and cuts off 20 federations at random, on both transports, under 8 minutes
# make audit-dependencies  asks what is known about the pinned packages and writes sbom.cdx.json
# make test-faults      kills aggregator and parties at every step of a run, on both transports
# make bench   measures speed and memory against their bars, about 10 minutes, into benchmarks/RESULTS.md
# make ui      shows the runs of mlflow.db in MLflow's pages, on http://127.0.0.1:5000 (PORT=...)
# make test-ui looks at those pages in a headless browser; installs chromium where it may (SCREENSHOTS=folder keeps pictures)
# make demo-federation  starts an aggregator and three parties as processes, with fresh keys
# make demo-secure      the same with parties that share their noise under masks
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

.PHONY: train ui browser test test-ui test-faults test-chaos fuzz audit-dependencies demo-federation demo-secure lint install bench clean help

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
	$(PYTHON) -m pytest -n 2 -m "not faults and not chaos and not ui"

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
test test-faults test-chaos test-ui fuzz: export OMP_NUM_THREADS = 1

bench: $(DEVELOPING)
	$(PYTHON) benchmarks/run_all.py

PORT ?= 5000

ui: $(INSTALLED)
	@echo "MLflow shows the runs on http://127.0.0.1:$(PORT) (Ctrl-C ends it)"
	MLFLOW_DISABLE_TELEMETRY=true $(PYTHON) -m mlflow server --backend-store-uri sqlite:///mlflow.db \
		--host 127.0.0.1 --port $(PORT) --workers 1

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

clean:
	rm -rf out mlflow.db mlartifacts
