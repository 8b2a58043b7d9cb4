# What a person does with this project. `make help` lists it; every target builds .venv by itself when it is missing.
# On Debian neither root nor python3-venv is needed: pip installs into an environment made without ensurepip.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
export PYTHONPATH := $(CURDIR)/src:$(CURDIR)/packages/weft-lab/src
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 2
MUTANTS ?= 15
# A small sample scatters: where four in five are noticed in truth, fewer than 9 of 15 are once in fifty commits.
LEAST_NOTICED ?= 0.6

.PHONY: help setup demo test mutants test-slow test-long test-root test-kube kube-assets check format bench verify pictures docs clean

help:  ## Say what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP)  ## Build .venv with weft and everything the tests need

$(STAMP): pyproject.toml packages/weft-lab/pyproject.toml
	@echo "setup: building $(VENV) with $(PYTHON) (once; a minute)"
	@test -n "$(PYTHON)" || { echo "setup: Python 3.11 or newer is needed" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "setup: $(PYTHON) is older than 3.11; run make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv --without-pip $(VENV)
	@$(PYTHON) -m pip --disable-pip-version-check -qq --python $(BIN)/python install 'pip>=25.1'
	@$(PIP) install --group test --group check --editable '.[train,sim,cluster,kubernetes,doctor,ui]' \
	    --editable packages/weft-lab
	@echo "setup: compiling the simulator and the transport (once; two minutes on two cores)"
	@PYTHONPATH= $(BIN)/weft compile --into src/weft/compiled_code
	@touch $@

demo: $(STAMP)  ## Six acts in four minutes: design, simulate, train, break and mend, equal bits, 131,072 GPUs
	@$(BIN)/python examples/demo.py build/demo $(if $(LIVE),--live)

test: $(STAMP)  ## Run the tests (fast ones; under ten minutes on two cores)
	@echo "test: the fast tests on $(WORKERS) workers"
	@$(PYTEST) -n $(WORKERS) -m "not slow and not root and not kube"

mutants: $(STAMP)  ## Change a rule here and there, drawn from the commit, and see whether the tests notice
	@PYTHONPATH=$(PYTHONPATH):$(CURDIR) $(BIN)/python -m verification.mutation --sample $(MUTANTS) --workers $(WORKERS) \
	    --seed "$$(git rev-parse HEAD)" --floor $(LEAST_NOTICED)

test-slow: $(STAMP)  ## Run the tests that take long
	@$(PYTEST) -n $(WORKERS) --timeout 900 -m "slow and not long and not root and not kube"

test-long: $(STAMP)  ## Run the tests that take very long: drawn disturbances, deaths inside a step, hostile files
	@$(PYTEST) -n $(WORKERS) --timeout 900 -m "long and not root and not kube"

test-root: $(STAMP)  ## Run the tests that need root and iproute2 (network namespaces)
	@$(PYTEST) -m "root"

kube-assets:  ## Build a real kube-apiserver, etcd and kube-scheduler into a cache folder (once; four minutes)
	@scripts/kube-assets

test-kube: $(STAMP)  ## Run the tests against a real API server (make kube-assets builds it)
	@$(PYTEST) -n $(WORKERS) --dist loadfile --timeout 300 -m kube

check: $(STAMP)  ## Lint, format, types, import contracts, spelling, dead code
	@echo "check: format";    $(BIN)/ruff format --check --quiet .
	@echo "check: lint";      $(BIN)/ruff check --quiet .
	@echo "check: types";     env -u PYTHONPATH $(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --summary=none
	@echo "check: imports";   $(BIN)/lint-imports --no-cache >$(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }
	@echo "check: spelling";  $(BIN)/typos
	@echo "check: dead code"; $(BIN)/vulture
	@echo "check: fine"

format: $(STAMP)  ## Put the sources into the house format
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .

bench: $(STAMP)  ## Run the benchmarks; each prints ratios measured in one run
	@for program in benchmarks/*.py; do echo "bench: $$program"; $(BIN)/python $$program || exit 1; done

verify: $(STAMP)  ## Check published results against the simulator and write docs/verification.md (minutes)
	@$(PIP) install --editable '.[sim]'
	@PYTHONPATH=$(PYTHONPATH):$(CURDIR) $(BIN)/python -m verification

pictures: $(STAMP)  ## Make the pictures of README.md and the documentation again, from real runs (minutes)
	@$(BIN)/python scripts/pictures.py

docs: $(STAMP)  ## Build the documentation into build/docs
	@$(PIP) install --group docs
	@mkdir -p build
	@rm -rf build/pages && cp -R docs build/pages
	@$(BIN)/python scripts/generated_pages.py build/pages
	@$(BIN)/python scripts/typeset.py build/pages
	@$(BIN)/zensical build --strict --clean
	@echo "docs: build/docs/index.html"

clean:  ## Remove what was built
	@rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
