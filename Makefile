# `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup lab test test-full check test-gpu-lock test-hosted test-clients gpu-check gpu-parcels plan pipeline notebooks labs translations grade progress verify bench site frames slides audit repo-url clean

# Looked up before .venv/bin comes first on PATH, because set-up replaces what is in there.
ifndef PYTHON
PYTHON := $(or $(shell command -v python3),python3)
endif
COURSE := .venv/bin/python
# Tests run in this many processes, which share the cores. Each takes up to 5 GB of memory.
WORKERS ?= 2
# Waiting threads sleep instead of spinning, so that two programs on two cores don't slow each other.
export OMP_WAIT_POLICY ?= PASSIVE
export KMP_BLOCKTIME ?= 0
export TOKENIZERS_PARALLELISM ?= false
# JupyterLab's settings for the course; a learner is not shown what is for instructors.
LAB_CONFIG := $(CURDIR)/tools/jupyter$(if $(INSTRUCTOR),,:$(CURDIR)/tools/jupyter/learner)
export PATH := $(CURDIR)/.venv/bin:$(PATH)

help: ## list the targets
	@awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Learn

setup: ## virtual environment, exact packages, model (repeatable; the others call it); with Triton: KERNELS=1
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 8) and "Set-up begins with Python 3.8 or newer, and this is " + sys.version.split()[0] + ". Name another one, such as with: make setup PYTHON=python3.12")'
	@$(PYTHON) tools/setup.py
	@$(if $(KERNELS),$(COURSE) -m utils.environments.kernels)

lab: setup ## open JupyterLab on the start page; with nbgrader's menus: make lab INSTRUCTOR=1
	@JUPYTER_CONFIG_PATH="$(LAB_CONFIG)$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH}" \
		$(COURSE) tools/lab.py --ip=127.0.0.1 --ServerApp.root_dir="$(CURDIR)" \
		--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb \
		$(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_OPTIONS)

progress: setup ## a map of the labs that you have solved, from the record that their checks write
	@$(COURSE) -m utils.checks.kit.progress

verify: setup ## run your labs anew, and write a page that anybody can check; one: make verify LAB=02
	@$(COURSE) -m tools.verification.verify $(LAB) $(if $(LABS),"--labs=$(LABS)") $(if $(TRUST),--trust)

plan: setup ## what the pipeline would do, and what it needs: make plan PROFILE=gpu CARD=T4
	@$(COURSE) -m utils.pipeline --dry-run $(if $(PROFILE),--profile $(PROFILE)) $(if $(CARD),--card $(CARD))

pipeline: setup ## fine-tune, merge, quantize, evaluate and serve; ends in a table and a figure
	@$(COURSE) -m utils.pipeline

##@ Teach

grade: setup ## grade what came back of a lab, student by student: make grade LAB=02_kv_cache
	@$(COURSE) -m tools.grading.grade $(LAB) $(if $(ACCEPT),--accept=$(ACCEPT)) $(if $(TRUST),--trust)

slides: ## make a talk of each lesson, from its own figures: build/slides (no set-up needed)
	@$(PYTHON) tools/slides/build.py

##@ Test

test: setup ## prove every promise once: every test, notebook, lab and solution, and the pipeline
	@$(COURSE) -m utils.environments.kernels
	@$(COURSE) -m tools.proof.run --workers $(WORKERS)

check: setup ## for contributors: style, types, house rules, and the tests of what changed
	@$(COURSE) tools/check.py

test-full: setup ## `make test` at full size, part by part; goes on where it stopped: make test-full PART=pipeline
	@$(COURSE) -m tools.proof.run --full --workers $(WORKERS) $(if $(PART),--part $(PART))

test-clients: setup ## guidellm, lm-eval, litellm and vLLM's benchmark against the course's server (2 GB)
	@$(COURSE) tools/clients/check.py $(CLIENTS)

test-hosted: setup ## run Part I on imitations of Colab and Kaggle, with their Python and packages (3 GB)
	@$(COURSE) tools/hosted/check.py $(HOST)

test-gpu-lock: setup ## install the GPU lock beside everything, and import it all (9 GB; no GPU needed)
	@$(COURSE) tools/gpu/check_lock.py

gpu-check: $(if $(OFFLINE),,setup) ## on a machine with a card: tests, pipeline, benchmark; without internet there: OFFLINE=1
	@$(if $(OFFLINE),$(PYTHON) tools/gpu/offline.py $(if $(STEPS),--steps $(STEPS)) \
		$(if $(PARCELS),--parcels "$(PARCELS)"),$(COURSE) tools/gpu/check.py) $(if $(PRETEND),--pretend)

gpu-parcels: setup ## what `make gpu-check OFFLINE=1` needs beside this repository, in parcels of 30 MB
	@$(COURSE) tools/gpu/pack.py

audit: ## look the locked versions up among known vulnerabilities, and write bills of materials (needs the network)
	@$(PYTHON) tools/audit.py

##@ Make the course

notebooks: setup ## re-execute the notebooks and solutions, and save their outputs
	@$(COURSE) tools/notebooks.py

labs: setup ## generate labs/ from solutions/
	@$(COURSE) tools/make_labs.py

translations: setup ## build the lessons in other languages, and say what is left to translate
	@$(COURSE) tools/translate.py

site: ## build the website from the committed notebooks into build/site/html (no set-up needed)
	@$(PYTHON) site/build.py

frames: setup ## record the widgets that are not in step with their lessons, for the site
	@$(COURSE) -m tools.frames.record $(LESSON)

bench: setup ## run the benchmarks, and save their JSON
	@failed=; for script in benchmarks/*.py; do $(COURSE) $$script || failed="$$failed $$script"; done; \
	test -z "$$failed" || { echo "Without a result:$$failed"; exit 1; }

repo-url: setup ## set the repository's address everywhere: make repo-url URL=https://github.com/you/course
	@$(COURSE) tools/set_repository_url.py "$(URL)"

clean: ## remove what was generated here (environment, artifacts, caches); the model's cache stays
	rm -rf .venv .cache artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name .ipynb_checkpoints -type d -prune -exec rm -rf {} +
