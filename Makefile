# Each target creates the virtual environment first where it is missing or older than its pins.
# No target deletes results. Settings: make reproduce CORES=4 PYTHON=/path/to/python3.11
PYTHON ?= python3
VENV ?= .venv
CORES ?= 2
WORKERS ?= 2
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON312 ?= $(shell for python in python3.12 $(wildcard $(HOME)/.pyenv/versions/3.12*/bin/python); do \
  "$$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null && echo "$$python" && break; done)
VENV_OPENHANDS ?= .venv-openhands
OPENHANDS_LOCK := experiments/environments/openhands.lock.txt
OPENHANDS_STAMP := $(VENV_OPENHANDS)/.installed
# The OpenRLHF backend without a GPU has an environment of its own (Python 3.11).
OPENRLHF_VENV ?= .venv-openrlhf
OPENRLHF_PYTHON ?= python3.11
OPENRLHF_BIN := $(OPENRLHF_VENV)/bin
OPENRLHF_STAMP := $(OPENRLHF_VENV)/.installed

export PYTHONUNBUFFERED := 1
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help environment reproduce beyond smoke plan test test-main no-openhands nightly lint format \
  openhands-environment test-openhands openrlhf-environment test-openrlhf openrlhf-rows openrlhf-nightly \
  openrlhf-swe

help:
	@echo "make reproduce   create $(VENV) and run the paper's rows, tables and figures at scale cpu"
	@echo "make beyond      the rows and the table beyond the paper"
	@echo "make smoke       every row for a few updates, one seed (results/smoke)"
	@echo "make plan        runs left with estimated time, memory and disk"
	@echo "make test        create the environments, run the linters and all tests (test-main, -openrlhf, -openhands)"
	@echo "make nightly     the tests that take minutes"
	@echo "make openhands-environment   create $(VENV_OPENHANDS) for SWE-Bench (Python 3.12)"
	@echo "make test-openhands          the tests of SWE-Bench, in it"
	@echo "make openrlhf-environment   create $(OPENRLHF_VENV): Ray, vLLM and DeepSpeed without a GPU"
	@echo "make test-openrlhf          its tests, whole runs over OpenRLHF among them"
	@echo "make openrlhf-rows          every row over OpenRLHF for one update"
	@echo "make openrlhf-nightly       GRPO + DIS and VAPO over OpenRLHF for four updates, tasks of released models, the whole chain"
	@echo "make openrlhf-swe           training on tiny SWE tasks over OpenRLHF, with OpenHands (half an hour or more)"
	@echo "make lint        ruff, snakefmt, snakemake --lint, mypy"
	@echo "make format      rewrite the sources to the house format"

environment: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "$(PYTHON) is missing or older than Python 3.11; set the interpreter: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train,math,importers,slurm,dev]'
	@touch $@

openhands-environment: $(OPENHANDS_STAMP)

$(OPENHANDS_STAMP): $(OPENHANDS_LOCK)
	@"$(PYTHON312)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null || \
	  { echo "SWE-Bench needs Python 3.12, which is not here; set it: make $(MAKECMDGOALS) PYTHON312=/path/to/python3.12" >&2; exit 1; }
	test -x $(VENV_OPENHANDS)/bin/python || "$(PYTHON312)" -m venv $(VENV_OPENHANDS)
	$(VENV_OPENHANDS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $(OPENHANDS_LOCK)
	@touch $@

reproduce: $(STAMP)
	$(BIN)/snakemake --cores $(CORES)
	@echo "Tables: results/cpu/tables   Figures: results/cpu/figures   Runs: results/cpu/runs"

beyond: $(STAMP)
	$(BIN)/snakemake beyond --cores $(CORES)

smoke: $(STAMP)
	$(BIN)/snakemake all beyond --cores $(CORES) --config scale=smoke

plan: $(STAMP)
	@$(BIN)/python -m sao.grid plan

# The main tests come last, so that the output ends with their summary.
test: lint test-openrlhf $(if $(PYTHON312),test-openhands,no-openhands) test-main

test-main: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

no-openhands:
	@echo "no Python 3.12 here: the tests of SWE-Bench are left out (make test PYTHON312=/path/to/python3.12)"

test-openhands: $(OPENHANDS_STAMP)
	$(VENV_OPENHANDS)/bin/python -m pytest tests/swe

nightly: $(STAMP) $(if $(PYTHON312),$(OPENHANDS_STAMP))
	$(BIN)/python -m pytest -m slow
	$(if $(PYTHON312),$(VENV_OPENHANDS)/bin/python -m pytest -m slow tests/swe)

openrlhf-environment: $(OPENRLHF_STAMP)

$(OPENRLHF_STAMP): experiments/environments/openrlhf_cpu.sh experiments/environments/openrlhf_cpu.txt
	PYTHON=$(OPENRLHF_PYTHON) sh experiments/environments/openrlhf_cpu.sh $(OPENRLHF_VENV)
	@touch $@

test-openrlhf: $(OPENRLHF_STAMP)
	$(OPENRLHF_BIN)/python -m pytest tests/openrlhf

openrlhf-rows: $(OPENRLHF_STAMP)
	$(OPENRLHF_BIN)/python -m sao.openrlhf.rows --scale openrlhf_one_update

openrlhf-nightly: $(OPENRLHF_STAMP) $(STAMP)
	$(OPENRLHF_BIN)/python -m sao.openrlhf.rows --scale openrlhf_smoke grpo_dis vapo
	SAO_WORKFLOW_PYTHON=$(abspath $(BIN)/python) $(OPENRLHF_BIN)/python -m pytest -m slow \
	  tests/openrlhf/test_released_tasks.py tests/openrlhf/test_served_evaluation.py tests/openrlhf/test_full_disk.py \
	  tests/openrlhf/test_whole_workflow.py

openrlhf-swe: $(OPENRLHF_STAMP) $(OPENHANDS_STAMP)
	SAO_OPENHANDS_PYTHON=$(abspath $(VENV_OPENHANDS)/bin/python) \
	  $(OPENRLHF_BIN)/python -m pytest -m slow tests/openrlhf/test_swe_end_to_end.py

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/snakefmt --check Snakefile
	$(BIN)/snakemake --lint
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/snakefmt Snakefile
