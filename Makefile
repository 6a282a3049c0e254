# `make` lists the targets. Everything runs from .venv, which is made from the pinned requirements.

SHELL       := /bin/bash
VENV        ?= .venv
BIN         := $(VENV)/bin
# Tests wait more than they compute.
JOBS        ?= $(shell echo $$(( $$(nproc) * 2 )))
ROUNDS      ?=
PYTEST_ARGS ?=
LOCKS       := pyproject.toml requirements/base.txt requirements/build.txt
export VENV
# Tests start hundreds of our processes: each would compile the tree again if nothing were kept.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint format typecheck layers bench crash docs docs-check lock clean system

help: ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | \
	  while IFS=$$'\t' read -r name text; do printf '  make %-11s %s\n' "$$name" "$$text"; done

demo: system $(VENV)/.base-ready ## run oracle and nop on the quickstart benchmark and compare their scores
	@$(BIN)/valkyrie demo

test: system $(VENV)/.dev-ready ## the test suite without the slow parts (a few minutes)
	@# Not reordered: tests/conftest.py puts long ones first, and the many short ones fill the gaps.
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow" $(PYTEST_ARGS)

test-all: system $(VENV)/.dev-ready ## every suite and check, one line each (PYTEST_ARGS, ROUNDS)
	@scripts/setup-system --docker --browser >&2
	@CRASH_ROUNDS=$(or $(ROUNDS),12) $(BIN)/python scripts/test_suites.py

lint: $(VENV)/.dev-ready ## ruff: mistakes and formatting; import-linter: the layers; names and docstrings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/check_structure.py

format: $(VENV)/.dev-ready ## let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(VENV)/.dev-ready ## mypy, strict
	$(BIN)/mypy

bench: system $(VENV)/.dev-ready ## measure, one JSON object per line; PEERS=1 measures Inspect too
	@PEERS=$(PEERS) $(BIN)/python -m benchmarks

crash: system $(VENV)/.dev-ready ## kill -9 at ROUNDS (50) random instants, then check that nothing is lost
	CRASH_ROUNDS=$(or $(ROUNDS),50) $(BIN)/python -m pytest tests/crash -p no:xdist -s $(PYTEST_ARGS)

docs: $(VENV)/.dev-ready ## regenerate the pages that are made from the code
	@for page in scripts/generate_*.py; do echo "$$page"; $(BIN)/python "$$page" || exit 1; done

docs-check: $(VENV)/.dev-ready ## fail when a generated page is stale or a link leads nowhere
	@for page in scripts/generate_*.py; do echo "$$page --check"; $(BIN)/python "$$page" --check || exit 1; done
	@$(BIN)/python scripts/check_links.py

lock: ## pin all dependencies again (LOCK_ARGS=--upgrade takes the newest)
	@scripts/lock $(LOCK_ARGS)

clean: ## remove .venv, caches and build results
	rm -rf $(VENV) .cache .demo dist build crash-report .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks scripts -name __pycache__ -prune -exec rm -rf {} +

system:
	@scripts/setup-system >&2

$(VENV)/.base-ready: $(LOCKS)
	@scripts/make-venv base >&2

$(VENV)/.dev-ready: $(LOCKS) requirements/dev.txt
	@scripts/make-venv dev >&2
