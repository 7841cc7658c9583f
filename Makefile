# From a bare Python >= 3.11: `make demo` measures this machine, `make check` lints and runs the quick tests (a minute),
# `make test` runs every check (10 to 15 minutes). Each installs what it needs.
# TORCH=system uses the torch that PYTHON already has (vendor containers) and never replaces it.

PYTHON ?= python3
TORCH ?= index
VENV ?= .venv
BIN := $(VENV)/bin
# The versions that CI last passed with. CONSTRAINTS=/dev/null installs the newest; `make constraints` records those.
CONSTRAINTS ?= constraints.txt
PIP := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check --constraint $(VENV)/constraints.txt
comma := ,
# uv takes a third of pip's time, but it does not see the packages of the system.
ifeq ($(TORCH),system)
install = $(PIP) --editable '.[$(1)]'
else
install = $(BIN)/python .ci/install.py $(VENV)/constraints.txt $(1)
endif
# Bytecode is compiled on all cores, without what dpscope rarely or never imports: half of all. Python compiles the rest on use.
RARELY_IMPORTED := tests?|_internal|_inductor|ao|triton|torchgen|scipy|sklearn|networkx|fontTools|pip|setuptools|mypyc?|debugpy|jedi|lexers|physics|combinatorics|pymdownx|backrefs|opentelemetry
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/($(RARELY_IMPORTED))/' $(VENV)/lib || true
# Let the second Python import what is installed for the first one, by a .pth file of the third name.
see_packages_of = $(1) -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
	> "$$($(2) -c 'import site; print(site.getsitepackages()[0])')/$(3).pth"
DEMO_OUT ?= runs/demo
ifeq ($(origin GPU_OUT),undefined)
GPU_OUT := runs/gpu/$(shell date -u +%Y%m%d-%H%M%S)
endif
# Test files run in parallel, those that start jobs first (tests/conftest.py sorts them), so that all cores are busy until the
# end. PYTEST_ARGS= runs one test at a time.
WORKERS := $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count(), 4))')
PYTEST_ARGS ?= -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=10
# Child processes keep the bytecode of dpscope and the tests, also where the environment turns that off.
unexport PYTHONDONTWRITEBYTECODE
# These compare times with a link's rate or planted delays, so nothing else runs next to them.
TESTED_ALONE := $(addprefix tests/end_to_end/,test_shaped_link.py test_overlap_causes.py)
# Failed tests marked `timed` are listed here and run once more with them (tests/helpers/disturbed.py).
DISTURBED := $(VENV)/disturbed-tests.txt

.PHONY: demo check check-lint check-tests test test-tests lint docs site bench gpu digits frameworks constraints clean

demo: $(VENV)/.installed
	$(BIN)/dpscope run --fresh --out $(DEMO_OUT)

# After every edit: tests without torch, without processes and not marked `long`, and one run from the command to its report.
# mypy stays in memory for an hour, so that a second check takes it seconds.
check: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory --jobs=2 check-lint check-tests

check-lint: $(VENV)/.installed-dev
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	@# After some changes of the tree mypy's daemon itself fails, with status 2: then once more, with a new one.
	$(BIN)/dmypy run --timeout 3600 || { test $$? -eq 2 && $(BIN)/dmypy run --timeout 3600; }

check-tests: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS) --quick --ignore=tests/gpu

test: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory --jobs=2 lint test-tests

# Jobs and their nodes also wait, for each other and for time limits: one more process than cores keeps these busy.
test-tests: WORKERS := $(shell echo $$(($(WORKERS) + 1)))
test-tests: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS) $(addprefix --ignore=,$(TESTED_ALONE) tests/gpu) --repeat-alone=$(DISTURBED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(TESTED_ALONE) @$(DISTURBED)

lint: $(VENV)/.installed-dev
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

# dpscope itself checked on this machine's GPUs, in ten minutes, in 35 on several; without a GPU every test reports why it is
# skipped. Verdicts, JUnit, runs and the support bundle go to GPU_OUT. VIRTUAL=4 runs the checks on four virtual GPUs instead, to
# test the checks (tests/virtual_gpu): no time is a GPU's then, and limits are longer, since kernels are launched by few cores.
ifdef VIRTUAL
gpu: export DPSCOPE_GPU_PATIENCE ?= 8
gpu: ON_NODE := $(BIN)/python -m tests.virtual_gpu $(VIRTUAL)
endif
gpu: $(VENV)/.installed-dev
	@mkdir -p $(GPU_OUT)
	DPSCOPE_GPU_OUT=$(GPU_OUT) $(ON_NODE) $(BIN)/python -m pytest tests/gpu -vv --junit-xml=$(GPU_OUT)/junit.xml; \
	status=$$?; $(BIN)/python -m tests.gpu.support $(GPU_OUT) && exit $$status

# Nine trainings on real digits, five minutes on two quiet cores: every strategy learns, and the same.
digits: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/digits_accuracy.py

# Peers are measured in a separate environment: they pin other versions of what dpscope uses.
bench: $(VENV)/.installed .venv-bench/.installed
	$(BIN)/python benchmarks/whole_process.py
	$(BIN)/python benchmarks/trace_reading.py --gib --hta-python .venv-bench/bin/python
	$(BIN)/python benchmarks/many_ranks.py
	$(BIN)/python benchmarks/thousand_ranks.py
	$(BIN)/python benchmarks/tracer_cost.py
	$(BIN)/python benchmarks/timed_pass_cost.py
	$(BIN)/python benchmarks/prediction.py
	$(BIN)/python benchmarks/attached_scripts.py

.venv-bench/.installed:
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check HolisticTraceAnalysis==0.5.0
	@touch $@

# `dpscope attach` on trainings by other packages, in a separate environment: they pull in dozens of packages.
frameworks: $(VENV)/.installed-dev
	$(BIN)/python -m venv .venv-frameworks
	@$(call see_packages_of,$(BIN)/python,.venv-frameworks/bin/python,dpscope)
	.venv-frameworks/bin/python -m pip install --quiet --disable-pip-version-check accelerate lightning transformers
	OMP_NUM_THREADS=1 .venv-frameworks/bin/python -m pytest tests/launch/attach/test_frameworks.py

docs: $(VENV)/.installed
	$(BIN)/python examples/published/audit.py
	$(BIN)/python docs/_tools/cell_values.py
	$(BIN)/python docs/_tools/pages.py
	$(BIN)/python docs/_tools/commands_docs.py

# The documents as pages with search, in build/site; a broken link is an error.
site: $(VENV)/.installed
	$(PIP) --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("dpscope needs Python 3.11 or later; this is " + sys.version.split()[0] + ": give another with PYTHON=python3.12")'
ifeq ($(TORCH),system)
	@$(PYTHON) -c 'import torch' || { echo 'TORCH=system: $(PYTHON) has no torch; omit TORCH=system to install one' >&2; exit 2; }
	$(PYTHON) -m venv --system-site-packages $(VENV)
	@# An environment that PYTHON itself belongs to is not among the system's packages.
	@$(call see_packages_of,$(PYTHON),$(BIN)/python,packages_of_python)
else
	$(PYTHON) -m venv $(VENV)
endif
	@touch $@

ifeq ($(TORCH),system)
$(VENV)/constraints.txt: $(VENV)/.created $(CONSTRAINTS)
	@$(PYTHON) .ci/constraints.py keep $(CONSTRAINTS) > $@
else
$(VENV)/constraints.txt: $(VENV)/.created $(CONSTRAINTS)
	@cp $(CONSTRAINTS) $@
endif

# The newest versions of everything, as a fresh environment gets them: run `make test` with them, then commit the file.
constraints:
	rm -rf .venv-newest && $(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install -qq --disable-pip-version-check --editable '.[digits,dev,docs]'
	.venv-newest/bin/python .ci/constraints.py installed > constraints.txt
	rm -rf .venv-newest

$(VENV)/.installed: $(VENV)/constraints.txt pyproject.toml
	@echo 'Installing dpscope and its dependencies into $(VENV), once$(if $(filter system,$(TORCH)),: the torch of $(PYTHON) is used, (with torch 5 GB: about two minutes))'
	$(call install,digits)
	@$(COMPILE)
	@touch $@

# All of it at once, so that packages are looked up and built once.
$(VENV)/.installed-dev: $(VENV)/constraints.txt pyproject.toml
	@echo 'Installing dpscope, its dependencies and what checks it into $(VENV), once'
	$(call install,digits$(comma)dev)
	@$(COMPILE)
	@touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) .venv-bench .venv-frameworks build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
