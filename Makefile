# make bench   install into .venv and time the kernels on the device that is there
# make test    install the test tools too, and run every check
# make tutorial   run the notebooks and store what they print
# make docs    build the documentation into build/site; make serve shows it, and follows changes
# Settings: PYTHON (any Python >= 3.11), VENV, WORKERS (test processes), THREADS (of the BLAS in each), BENCH and PYTEST (more arguments)

VENV    ?= .venv
WORKERS ?= 2
THREADS ?= 1
BENCH   ?=
PYTEST  ?=

NEW_ENOUGH = import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do $$p -c "$(NEW_ENOUGH)" 2>/dev/null && echo $$p && break; done)

BIN     := $(VENV)/bin
EXTRAS  := $(if $(shell command -v nvidia-smi),cuda,lab)
INSTALL  = $(BIN)/pip install --quiet --constraint constraints.txt --editable

.PHONY: bench test lint tutorial docs serve
.DELETE_ON_ERROR:

bench: $(VENV)/.installed-bench
	$(BIN)/trigemm bench $(BENCH)

test: lint
	OMP_NUM_THREADS=$(THREADS) $(BIN)/pytest -n $(WORKERS) --dist loadgroup $(PYTEST)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site
	@echo build/site/index.html

serve: $(VENV)/.installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --watch src --watch benchmarks

tutorial: $(VENV)/.installed-test
	$(BIN)/jupyter nbconvert --to notebook --execute --inplace --ExecutePreprocessor.record_timing=False tutorial/*.ipynb

$(VENV)/pyvenv.cfg:
	@test -n "$(PYTHON)" || { echo "trigemm needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c "$(NEW_ENOUGH)" || { echo "trigemm needs Python 3.11 or newer, and $(PYTHON) is older or missing" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-bench: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	$(INSTALL) '.[$(EXTRAS)]'
	@touch $@

$(VENV)/.installed-test: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	$(INSTALL) '.[$(EXTRAS),dev]'
	@touch $@ $(VENV)/.installed-bench
