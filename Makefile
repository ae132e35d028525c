# Two commands do everything on a fresh machine: `make up` and `make test`.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DOCS := $(VENV)/docs
AUDIT := $(VENV)/audit
ARGS ?=
COMPILE := uv pip compile --quiet --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

up: setup ## install, then run engine, keeper and dashboard until Ctrl-C (ARGS="--demo 6" for a demo fleet)
	@exec $(BIN)/sandkeeper up $(ARGS)

dev: setup ## the same with a demo fleet, restarted when a file under src changes (data in .dev)
	@exec $(BIN)/python scripts/dev.py $(ARGS)

setup: $(VENV)/.ready ## install what running needs into .venv

test: $(VENV)/.ready-dev system sdks typescript ## install, then run the whole test suite (ARGS="-k wake" for a part)
	@scripts/test $(ARGS)

test-gvisor: $(VENV)/.ready-dev system ## run the engine's suites on gVisor's kernel (needs root and runsc)
	@TEST_ISOLATION=gvisor scripts/test -n 2 tests/engine/runtime tests/engine/envd tests/engine/proxy tests/engine/control \
	  tests/engine/interpreter tests/security/test_escape_probes.py tests/security/test_identities.py $(ARGS)

test-typescript: $(VENV)/.ready-dev typescript ## test the npm package in Node against a real keeper
	@scripts/test tests/typescript $(ARGS)

clients: $(VENV)/.ready-dev system ## run programs that others wrote for E2B (smolagents, harbor, …) on the engine (needs PyPI and npm)
	@scripts/clients
	@scripts/test -n 2 tests/clients $(ARGS)

example: $(VENV)/.ready-dev typescript ## start one example with a keeper of its own (NAME=next; see examples/README.md)
	@exec $(BIN)/python scripts/example.py $(NAME)

examples: $(VENV)/.ready-dev system typescript ## install every example and try it, pages in a browser, agents with a scripted model (needs npm, PyPI and some minutes)
	@ALL_EXAMPLES=1 scripts/test tests/browser/test_examples.py tests/client/test_agent_examples.py -n 0 $(ARGS)

test-changed: $(VENV)/.ready-dev ## run the tests that belong to the files changed against main
	@tests=$$($(BIN)/python scripts/changed_tests.py) || exit 1; \
	if [ -z "$$tests" ]; then echo "no tests belong to what changed"; else scripts/test $$tests $(ARGS); fi

check: $(VENV)/.ready-dev typescript ## check format, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@if command -v npm >/dev/null; then npm run --silent check; else echo "npm is not installed: the JavaScript types are not checked"; fi

typescript: clients/typescript/dist/.ready ## build the npm package into clients/typescript/dist

types: node_modules/.ready ## write the TypeScript declarations of the pane to build/types
	npm run --silent types

docs: $(VENV)/.ready-docs ## build the documentation site into site/; a dead link fails
	@$(DOCS)/bin/python scripts/build_docs.py

audit: $(VENV)/.ready-audit ## report known vulnerabilities of the pinned Python and npm packages (needs the internet)
	@status=0; \
	$(AUDIT)/bin/pip-audit --requirement requirements.txt --disable-pip || status=1; \
	if command -v npm >/dev/null; then npm audit || status=1; else echo "npm is not installed: its packages are not checked"; fi; \
	exit $$status

dist: setup ## build the packages into dist/
	@rm -rf dist
	$(BIN)/hatchling build

bench: $(VENV)/.ready-dev ## measure, and print a table with the baseline of this machine
	$(BIN)/python -m bench $(ARGS)

soak: $(VENV)/.ready-dev ## let real sandboxes wake, work and sleep, and judge memory and latency (MINUTES, SANDBOXES)
	$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),30) --sandboxes $(or $(SANDBOXES),300)

faultlab: $(VENV)/.ready-dev ## break a running keeper on purpose (SEED, MINUTES, SECONDS of a seed, REPLICAS, DATABASE, LOGS)
	@PYTHONPATH=tests $(BIN)/python -m faultlab --seed $(or $(SEED),1) --minutes $(or $(MINUTES),1) \
	  --seconds $(or $(SECONDS),30) --replicas $(or $(REPLICAS),1) --database $(or $(DATABASE),sqlite) \
	  $(if $(LOGS),--logs $(LOGS))

rolling: $(VENV)/.ready-dev ## replace every replica under load, and count missed events and failed writes (REPLICAS, STREAMS, WRITES)
	ROLLING_REPLICAS=$(or $(REPLICAS),3) ROLLING_STREAMS=$(or $(STREAMS),150) ROLLING_WRITES=$(or $(WRITES),40) \
	  $(BIN)/pytest tests/acceptance/test_rolling_upgrade.py -q -n 0 -s -k replacing

smoke: $(VENV)/.ready-dev $(VENV)/.ready-smoke system ## start all of deploy/ on loopback, without a container engine, and prove it
	@$(BIN)/python deploy/smoke.py

image: ## build the image from a Debian base made here, start it with a read-only root, and ask for its health
	@scripts/image

format: $(VENV)/.ready-dev ## format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

pins: ## resolve the dependencies again and write the pins (needs uv)
	$(COMPILE) pyproject.toml --group build -o requirements.txt
	$(COMPILE) pyproject.toml --group build --group dev --extra inngest --extra sdk -c requirements.txt -o requirements-dev.txt
	$(COMPILE) --group docs -o requirements-docs.txt
	$(COMPILE) --group audit -o requirements-audit.txt
	$(COMPILE) --group smoke -o deploy/requirements-smoke.txt
	$(COMPILE) pyproject.toml --extra sdk examples/agents/python/requirements.in -o examples/agents/python/requirements.txt
	$(COMPILE) --universal --only-binary :all: --group interpreter -o src/sandkeeper/engine/interpreter/packages.txt
	for input in tests/clients/*/requirements.in; do \
	  version=$$(sed -n 's/^# python //p' $$input); \
	  $(COMPILE) --universal --python-version $${version:-3.11} $$input -o $${input%.in}.txt; \
	done

vendor: ## fetch the dashboard's third-party modules as src/sandkeeper/web/vendor.json names them (needs npm)
	$(PYTHON) scripts/vendor.py

# The stamps make a second setup free: only a changed pin or a changed pyproject.toml runs pip again.
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

# An environment of its own: the site's packages and ours may need different versions of the same one.
$(VENV)/.ready-docs: requirements-docs.txt
	@echo "installing the documentation tools into $(DOCS) …"
	@$(PYTHON) -m venv --clear $(DOCS)
	@$(DOCS)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.txt
	@touch $@

$(VENV)/.ready-audit: requirements-audit.txt
	@echo "installing the audit tools into $(AUDIT) …"
	@$(PYTHON) -m venv --clear $(AUDIT)
	@$(AUDIT)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-audit.txt
	@touch $@

$(VENV)/.ready-smoke: deploy/requirements-smoke.txt
	@echo "installing the bucket of the smoke run …"
	@$(PYTHON) -m venv --clear $(VENV)/smoke
	@$(VENV)/smoke/bin/pip install --quiet --disable-pip-version-check --require-hashes -r deploy/requirements-smoke.txt
	@touch $@

node_modules/.ready: package.json clients/typescript/package.json
	@if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --ignore-scripts; fi
	@mkdir -p node_modules && touch $@

clients/typescript/dist/.ready: node_modules/.ready docs/openapi.json $(wildcard src/sandkeeper/web/static/*.js) \
  $(wildcard src/sandkeeper/web/static/*.ts) $(filter-out %/openapi.ts,$(wildcard clients/typescript/src/*.ts)) \
  $(wildcard clients/typescript/words/*.js) clients/typescript/scripts/build.mjs clients/typescript/tsconfig.json
	@if command -v npm >/dev/null; then npm run --silent build --workspace sandkeeper && touch $@; \
	else echo "npm is not installed: the npm package is not built"; fi

system: node_modules/.ready ## install the system packages that tests need, where possible
	@scripts/system

desktop: ## install what desktop sandboxes need (asks for root if necessary)
	@scripts/desktop

interpreter: setup ## install IPython, numpy, pandas, … for sandboxes of the template code-interpreter-v1
	@$(BIN)/sandkeeper engine interpreter

sdks: $(VENV)/.ready-dev
	@scripts/sdks

clean: ## remove what setup and runs left in this folder
	rm -rf $(VENV) node_modules clients/typescript/dist site dist .cache .dev .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build

.PHONY: help up dev setup test test-gvisor clients test-typescript typescript example examples test-changed check types docs audit dist bench soak faultlab rolling smoke image format pins vendor system desktop interpreter sdks clean
