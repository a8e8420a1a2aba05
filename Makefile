# mcflow: make sweep runs the main experiments, make test checks everything. Both set up .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Names of experiments/*.yaml, or paths of your own files.
EXPERIMENT ?= overflow-vs-epsilon lmsys-overflow
OUT ?= results
FILES = $(foreach e,$(EXPERIMENT),$(if $(findstring /,$(e))$(findstring .yaml,$(e)),$(e),experiments/$(e).yaml))

.PHONY: setup sweep test lint types bench clean

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mcflow needs Python 3.11 or newer; say make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check --disable-pip-version-check
	@touch $(READY)

sweep: setup
	@for file in $(FILES); do $(BIN)/mcflow run $$file --out $(OUT) || exit $$?; done

test: setup
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
