# Two commands do everything on a fresh machine: `make up` and `make test`.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

up: setup ## set up, then run engine, keeper and dashboard until Ctrl-C (ARGS="--demo 6" for a demo fleet)
	@exec $(BIN)/sandkeeper up $(ARGS)

setup: $(VENV)/.ready ## install what running needs into .venv

test: $(VENV)/.ready-dev system sdks ## set up, then run the whole test suite (ARGS="-k wake" for a part)
	@scripts/test $(ARGS)

check: $(VENV)/.ready-dev node_modules/.ready ## lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@if command -v npm >/dev/null; then npm run --silent check; else echo "npm not found: the JavaScript types are not checked"; fi

types: node_modules/.ready ## write the TypeScript declarations of the pane to build/types
	npm run --silent types

bench: $(VENV)/.ready-dev ## measure, and print a table beside the floors of this machine
	$(BIN)/python -m bench $(ARGS)

format: $(VENV)/.ready-dev ## format the code and apply safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

pins: ## resolve the dependencies again and write the pins (needs uv)
	uv pip compile pyproject.toml --quiet --group build --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate -o requirements.txt
	uv pip compile pyproject.toml --quiet --group build --group dev --extra inngest --extra sdk --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate -c requirements.txt -o requirements-dev.txt

# The stamps make a second set-up free: only a changed pin or a changed pyproject runs pip again.
$(VENV)/.ready: requirements.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) …"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready requirements-dev.txt
	@echo "installing the test tools …"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	@touch $@

node_modules/.ready: package.json
	@if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --ignore-scripts; fi
	@mkdir -p node_modules && touch $@

system: node_modules/.ready ## install the system packages that tests need, where it may
	@scripts/system

desktop: ## install what desktop sandboxes need (asks for root where it must)
	@scripts/desktop

sdks: $(VENV)/.ready-dev
	@scripts/sdks

clean: ## remove what set-up and runs left in this folder
	rm -rf $(VENV) node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build

.PHONY: help up setup test check types bench format pins system desktop sdks clean
