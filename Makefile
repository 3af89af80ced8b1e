# One word per job; CI calls the same words.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: check test test-full lint schemas clean

check: $(STAMP)
	$(BIN)/python examples/three_branches.py

test: $(STAMP)
	$(BIN)/python -m pytest

test-full: $(STAMP)
	$(BIN)/python -m pytest -m ""

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

schemas: $(STAMP)
	$(BIN)/fla-bot contract schema --write contracts/schemas

$(STAMP): pyproject.toml constraints/ci.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade -c constraints/ci.txt setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints/ci.txt \
	    torch triton numpy pytest ruff mypy import-linter types-PyYAML build \
	    PyGithub jsonschema-rs types-requests
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints/ci.txt --no-build-isolation -e .
	$(BIN)/python -m compileall -q bot
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist
