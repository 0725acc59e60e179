# The two commands of the README are `make demo` and `make test`; both set up what they need in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
SOURCES := pyproject.toml constraints.txt $(wildcard native/*)
BENCHMARKS := $(filter-out %_peer.py %_peers.py %_tables.py %/ps_servers.py, $(wildcard benchmarks/*.py))
CHAOS ?= --runs 100 --metric_runs 6
KILLS ?= --runs 20 --master_runs 5
ZOO ?= mnist
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint test-kills test-chaos test-jobs test-zoo test-k8s test-backends bench docs clean

demo: $(VENV)/.demo  ## Train MNIST on local processes and kill workers on the way.
	$(BIN)/python scripts/demo.py

test: $(VENV)/.dev  ## Everything that must hold, level by level, in under 15 minutes.
	$(BIN)/python scripts/test.py

lint: $(VENV)/.dev
	$(BIN)/python scripts/test.py lint

test-kills: $(VENV)/.dev  ## 20 jobs whose workers are killed, 5 whose master is killed too, each audited.
	$(BIN)/python -m tests.processes.kills $(KILLS) --report build/kills.json

test-chaos: $(VENV)/.dev  ## 100 jobs under seeded chaos, each audited; a real model's metric under chaos against its spread.
	$(BIN)/python -m tests.processes.chaos $(CHAOS) --report build/chaos.json

test-jobs: $(VENV)/.dev  ## Whole jobs that make test has no time for.
	$(BIN)/python -m pytest -q tests/processes tests/seeds tests/core tests/simulation tests/frameworks -m long

test-zoo: $(VENV)/.dev  ## Whole MNIST jobs: one worker, two, and one killed every few seconds.
	$(BIN)/python -m pytest -q tests/zoo -m long -k '$(ZOO)'

test-k8s: $(VENV)/.dev  ## On a Kubernetes cluster: the context K8S_CONTEXT, else one that is reachable, else one started for it.
	PYTHON=$(BIN)/python ELASTICDL_K8S_CONTEXT="$(or $(K8S_CONTEXT),$(ELASTICDL_K8S_CONTEXT))" scripts/test_k8s.sh

test-backends: $(VENV)-backends/.ready  ## On JAX and on TensorFlow: the Trainable contract, all-reduce jobs with a kill, a parameter-server job.
	set -e; for backend in jax tensorflow; do \
		export KERAS_BACKEND=$$backend; \
		$(VENV)-backends/bin/python -m pytest -q tests/frameworks/test_backends.py -k $$backend; \
		$(VENV)-backends/bin/python -m pytest -q tests/processes/test_allreduce_backends.py; \
		$(VENV)-backends/bin/python -m pytest -q tests/zoo/test_jobs.py -k deepfm; \
	done

bench: $(VENV)/.dev  ## Every claim about speed, measured on this machine; --out FILE of a script keeps its results.
	$(PIP) -e '.[bench]'
	for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

docs: $(VENV)/.dev
	$(BIN)/python scripts/make_reference.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python $(SOURCES)
	@echo "Setting up $(VENV) (a minute or two)"
	$(PIP) -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python $(SOURCES)
	@echo "Setting up $(VENV) (a minute or two)"
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.demo

$(VENV)-backends/.ready: $(SOURCES)
	@echo "Setting up $(VENV)-backends (a minute or two)"
	$(PYTHON) -m venv $(VENV)-backends
	$(VENV)-backends/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[jax,tensorflow]' torch pytest pytest-timeout hypothesis scikit-learn psutil
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-* build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
