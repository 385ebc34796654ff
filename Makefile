# make demo, make test: each sets up everything it needs in .venv, once.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal -q

.PHONY: demo check test coverage plain bare full lint release tutorials site lock clean

demo: .venv/installed
	$(BIN)/tinyprop demo

check: .venv/installed  # the quick tests, in less than a minute, with 5 examples of each property
	HYPOTHESIS_PROFILE=check $(PYTEST) -m "not slow"

test: .venv/installed  # all tests, with 20 examples of each property
	$(PYTEST)

coverage: .venv/installed  # the fraction of statements and branches that tests cover; lessons run in other processes
	$(PYTEST) --cov --cov-report=term:skip-covered --ignore=tests/test_tutorials.py --ignore=tests/functional/test_opinfo.py

plain: .venv/installed  # everything without any override
	TINYPROP_PLAIN=1 $(PYTEST)

bare: .venv/installed  # the quick tests in a copy of the source without tinyprop/kernels/
	folder=$$(mktemp -d) && trap "rm -rf $$folder" EXIT && \
		git ls-files -z | tar --create --null --files-from=- | tar --extract --directory=$$folder && \
		rm -r $$folder/tinyprop/kernels && cd $$folder && \
		HYPOTHESIS_PROFILE=check PYTHONPATH=$$folder $(PYTEST:$(BIN)/%=$(CURDIR)/$(BIN)/%) -m "not slow"

full: test plain bare release  # and what is exhaustive: docs/architecture.md lists it
	TINYPROP_FULL=1 $(PYTEST) tests/train tests/data/test_formats.py tests/test_cli.py tests/parallel \
		tests/instruments/test_compare.py tests/experiments/test_evidence.py tests/functional/test_opinfo.py \
		tests/test_standins.py tests/test_site.py tests/test_tutorials.py
	HYPOTHESIS_PROFILE=thorough $(PYTEST) -m "not slow" tests/engine tests/functional tests/nn

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive tinyprop

release: .venv/installed  # build dist/; run the README with only the wheel, and the quick tests of the sdist
	$(BIN)/python .ci/release.py

tutorials: .venv/installed  # execute the lessons and solutions, and write their notebooks
	$(BIN)/pip install --disable-pip-version-check -e '.[tutorials]'
	$(BIN)/python tutorials/build.py

site: .venv/installed  # the course, the reference and the laboratory, for any static host; needs npm
	$(BIN)/pip install --disable-pip-version-check --quiet -e '.[docs]'
	$(BIN)/python docs/build.py

lock:  # resolve the versions in requirements-dev.lock again, for all Pythons and systems
	$(PYTHON) -m venv .venv/lock
	.venv/lock/bin/pip install --disable-pip-version-check --quiet uv
	.venv/lock/bin/uv pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11 --extra dev \
		--custom-compile-command "make lock" --output-file requirements-dev.lock pyproject.toml

.venv/installed: pyproject.toml requirements-dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tinyprop needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo "Installing tinyprop and its tools into .venv; this takes a minute or two, once."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check --require-hashes --no-deps -r requirements-dev.lock
	$(BIN)/pip install --disable-pip-version-check --no-deps -e .
	@touch $@

clean:
	rm -rf .venv runs dist site jupyter_execute docs/node_modules
