# Each target sets up what it needs in .venv, and does that again only when the pins change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test mutants fuzz bench lint format docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# An environment for using the package, and one (in the same place) for working on it.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[demo]'
	@touch $@
$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo ## The prox at work, and real digits: a live table, demo/report.html (two minutes at most)
	$(BIN)/weightshare demo

test: $(VENV)/.dev ## All tests (properties, docstring examples), under 10 minutes on 2 cores
	$(BIN)/python -m pytest -n 2

mutants: $(VENV)/.dev ## Plant faults one by one; each must turn the tests red
	$(BIN)/python tests/mutation.py

fuzz: $(VENV)/.dev ## 100,000 generated cases against the exact twin, 10,000 mutated files (about 12 minutes)
	$(BIN)/python tests/certified/fuzz.py --cases 100000
	$(BIN)/python tests/compress/fuzz.py --cases 10000

bench: $(VENV)/.dev ## Benchmarks, as ratios to a peer in the same run; writes results/
	$(BIN)/python -m benchmarks

lint: $(VENV)/.dev ## Format and lint (ruff), types (mypy strict)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev ## Rewrite the files as `make lint` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev ## Build the documentation into build/docs; warnings are errors
	$(BIN)/sphinx-build -W -q -b html docs build/docs

clean: ## Remove the environment and everything built
	rm -rf $(VENV) build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
