# Two commands are enough on a fresh machine with Python 3.11+ and make: `make demo`, `make test`.
# Each builds .venv first, which takes a few minutes once and nothing afterwards.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
TORCH := $(shell grep '^torch==' constraints.txt)
SETUPTOOLS := $(shell grep '^setuptools==' constraints.txt)
WORKERS ?= 2

# One thread a process: figures do not depend on the machine's cores, and processes do not fight.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false
export HF_HUB_OFFLINE := 1

.PHONY: help demo test zoo lint format ci clean

help: ## this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(READY) ## plan GPT-2, train on two processes, cut a pretrained model (under 3 minutes)
	@$(BIN)/python -m examples.demo

test: $(READY) ## the tests, on WORKERS processes (2); under 10 minutes
	@$(BIN)/python -m pytest -m "not zoo" -n $(WORKERS) --dist worksteal

zoo: $(READY) ## the larger part of the model zoo, each model split three ways
	@$(BIN)/python -m pytest -m zoo -n $(WORKERS) --dist worksteal tests/zoo

lint: $(READY) ## ruff, mypy --strict and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports --no-logo

format: $(READY) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

ci: ## what the server runs
	@bash .ci/run

clean: ## forget everything that was built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# torch is installed first and by itself, at its exact version: left to a dependency's range, pip
# may take a much larger build than this machine needs.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Stagecut needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 ...")'
	@echo "Building $(VENV) with $(TORCH) (once, a few minutes) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) $(TORCH) $(SETUPTOOLS)
	@$(PIP) --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $(READY)
