# Every target sets up what it needs in .venv; a fresh machine needs only Python 3.11+ and make.
# (test-gpu and test-gpu-all leave .venv alone where the Python at hand has torch with a CUDA device.)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.installed
DOCS_SETUP := $(VENV)/.installed-docs
WORKERS ?= 2

.PHONY: demo test coverage test-all test-interpreter test-tensorflow test-jax test-keras test-gpu test-gpu-all gpu-tests lint typecheck docs docs-links docs-links-online evidence bench build clean

# `make demo` installs only what it needs, unless everything is there already. `make test` adds the rest later.
DEMO_SETUP := $(if $(wildcard $(SETUP)),$(SETUP),$(VENV)/.installed-demo)
demo: $(DEMO_SETUP)  ## train a small ViT on digits with seven methods and three seeds, and compare
	PYTHONDONTWRITEBYTECODE= $(BIN)/attentiondrop compare digits --size demo --workers $(WORKERS)

# Without byte code: Python writes it when it first imports a module (`demo` and the tests allow that), and compiling all of
# torch takes longer.
$(VENV)/.installed-demo: pyproject.toml constraints.txt
	$(MAKE_VENV)
	$(BIN)/python -m pip install --progress-bar on --no-compile -c constraints.txt -e ".[experiments]"
	touch $@

define MAKE_VENV
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ". Use make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
endef

test: lint  ## everything that CI runs
	$(QUICK_COMPILER) $(PYTEST) -m "not gpu and not slow" -n $(WORKERS) --dist worksteal --durations=15
	@echo "Side by side, each shown when it is done: Triton's interpreter, Keras on TensorFlow, Keras on JAX, mypy"
	@$(MAKE) --no-print-directory --jobs=$(WORKERS) $(TOGETHER) --keep-going test-interpreter test-tensorflow test-jax typecheck

# The output of a stage in one piece, where this make can do that.
TOGETHER := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest
# Inductor compiles in the process that asks, and without vector instructions, of which it would try each kind first.
QUICK_COMPILER := TORCHINDUCTOR_COMPILE_THREADS=1 TORCHINDUCTOR_VEC_ISA_OK=0

# Stages that have a process of their own, because the backend of Keras and the interpreter are chosen for a whole process.
# One process for each instead of several workers: importing TensorFlow or JAX takes a good part of their time.
test-interpreter: $(SETUP)
	TRITON_INTERPRET=1 $(PYTEST) tests/torch/kernels --ignore tests/torch/kernels/short -m "not gpu and not slow"

test-tensorflow: $(SETUP)
	KERAS_BACKEND=tensorflow $(PYTEST) $(KERAS_TESTS) -m "not slow"

test-jax: $(SETUP)
	KERAS_BACKEND=jax $(PYTEST) tests/keras $(JAX_QUICK) -m "not slow"

KERAS_TESTS := tests/keras src/attentiondrop/keras
KERAS_BACKENDS := tensorflow jax torch

# Compiling dominates on JAX; what is left out here runs on TensorFlow, and on JAX and torch by `make test-keras`.
JAX_QUICK := $(foreach part,stock_suites documentation attach examples schedules training,--ignore tests/keras/test_$(part).py)

# Not in `make test`: tracing nearly doubles the time of the tests. (Under the interpreter it would triple it.)
coverage: $(SETUP)  ## which lines and branches the tests reach; fails below the share in pyproject.toml
	$(QUICK_COMPILER) $(PYTEST) -m "not gpu and not slow" -n $(WORKERS) --dist worksteal --cov --cov-report= --cov-fail-under=0
	KERAS_BACKEND=tensorflow $(PYTEST) $(KERAS_TESTS) -m "not slow" --cov --cov-append --cov-report=term

test-all: test test-keras coverage  ## and what is more of the same
	$(PYTEST) -m "slow and not gpu" -n $(WORKERS)
	TRITON_INTERPRET=1 $(PYTEST) tests/torch/kernels -m "slow and not gpu" -n $(WORKERS)

test-keras: $(SETUP)  ## the Keras tests alone, on each backend
	for backend in $(KERAS_BACKENDS); do KERAS_BACKEND=$$backend $(PYTEST) $(KERAS_TESTS) -n $(WORKERS) --dist worksteal || exit 1; done

test-gpu: GPU_MARKS = gpu and not slow
test-gpu:  ## the tests that need a CUDA device: one of each kind, in minutes
	$(GPU_TESTS)

test-gpu-all: GPU_MARKS = gpu
test-gpu-all:  ## and all of their grids: far more kernels to compile
	$(GPU_TESTS)

# Compiling kernels takes nearly all of the time, and takes CPU cores: one process for each of them, all on one GPU. Tests that
# compile the most come first; handed out one at a time, none of them waits behind another for long.
GPU_WORKERS ?= 16
HAS_CUDA := import sys, torch; sys.exit(not torch.cuda.is_available())
SPREAD := import os, xdist; print("-n", min($(GPU_WORKERS), len(os.sched_getaffinity(0))), "--dist load --maxschedchunk 1")
define GPU_TESTS
	@for python in $(PYTHON) python; do \
		if $$python -c '$(HAS_CUDA)' 2> /dev/null; then exec $(MAKE) gpu-tests GPU_PYTHON=$$python GPU_MARKS='$(GPU_MARKS)'; fi; \
	done; \
	$(MAKE) $(SETUP) && $(MAKE) gpu-tests GPU_PYTHON=$(BIN)/python GPU_MARKS='$(GPU_MARKS)'
endef

gpu-tests:
	PYTHONPATH=$(CURDIR)/src OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 $(GPU_PYTHON) -m pytest tests -m '$(GPU_MARKS)' \
		--durations=15 $$($(GPU_PYTHON) -c '$(SPREAD)' 2> /dev/null)

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(SETUP)
	$(BIN)/mypy

# -E: parts of pages come from the code, and Sphinx cannot know when that has changed.
docs: $(DOCS_SETUP)  ## the site, in docs/_build/html; a warning is an error. Needs no internet
	$(BIN)/sphinx-build -W --keep-going -n -E docs docs/_build/html

docs-links: docs  ## and check that every link within the site leads somewhere
	$(BIN)/python docs/site_pages/check_links.py docs/_build/html

docs-links-online: $(DOCS_SETUP)  ## links to other sites: needs the internet
	$(BIN)/sphinx-build -b linkcheck docs docs/_build/linkcheck

evidence: $(SETUP)  ## every table and figure of docs/evidence, and the tables of docs/speed.md, from the committed result files
	$(BIN)/python docs/evidence/write.py

bench: $(SETUP)  ## ratios of step times on this machine
	$(BIN)/attentiondrop bench attention

build: $(SETUP)  ## wheel and source distribution
	$(BIN)/python -m build

# Which Pythons: make release-check PYTHONS="python3.11 python3.12 python3.13"
PYTHONS ?= $(PYTHON)
.PHONY: release-check
release-check: build  ## install the wheel in empty environments, and try it there
	$(BIN)/python tests/release/check_wheel.py --pythons $(PYTHONS)

clean:
	rm -rf $(VENV) dist build runs docs/_build docs/benchmarks docs/examples

# pip leaves the environment half-built if it is interrupted: the stamp is written last, so the next make goes on.
$(SETUP): pyproject.toml constraints.txt
	$(MAKE_VENV)
	$(PIP) --quiet --no-deps $(LARGE) & $(PIP) --progress-bar on --no-warn-conflicts torch; status=$$?; wait $$! && exit $$status
	$(PIP) --progress-bar on -e ".[dev]"
	touch $@

# pip unpacks on one core. While it is busy with torch, a second one fetches the largest of the rest, without what they depend
# on: that comes last, so no two of them ever install the same package.
PIP = $(BIN)/python -m pip install --no-compile -c constraints.txt
LARGE := tensorflow jaxlib ray playwright transformers scipy scikit-learn matplotlib keras keras-hub mypy sphinx babel

# Fewer packages than for the tests: neither TensorFlow nor JAX.
$(DOCS_SETUP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --progress-bar on --no-compile -c constraints.txt -e ".[docs]"
	touch $@
