# make demo, make test: each sets up everything it needs in .venv, once.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -n auto -q

.PHONY: demo check test plain full lint tutorials clean

demo: .venv/installed
	$(BIN)/tinyprop demo

check: .venv/installed  # the quick tests
	$(PYTEST) -m "not slow"

test: .venv/installed
	$(PYTEST)

plain: .venv/installed  # everything without any override
	TINYPROP_PLAIN=1 $(PYTEST)

full: test plain  # and many more random examples
	HYPOTHESIS_PROFILE=thorough $(PYTEST) tests/engine tests/functional tests/nn

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

tutorials: .venv/installed  # execute the lessons, and write their notebooks
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[tutorials]'
	$(BIN)/python tutorials/build.py

.venv/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tinyprop needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv runs
