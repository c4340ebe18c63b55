# Everything is set up by the targets themselves: a Linux machine with Python 3.11+ (with venv) and make is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: demo test check fuzz soak soak-edges format clean
demo: $(STAMP)
	$(BIN)/sennit scenario run scenarios/first-light.toml

test: $(STAMP)
	$(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# One reader of foreign bytes, for a while: make fuzz TARGET=policy SECONDS=600; TARGET=list names them all.
TARGET ?= list
SECONDS ?= 60
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz.run $(TARGET) --seconds $(SECONDS)

# Kill everything, under load, at random moments, about ten minutes: make soak SEED=7 ROUNDS=300.
ROUNDS ?= 300
soak: $(STAMP)
	$(BIN)/python -m tests.soak.soak --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

# 24 busy edges on one node: nothing may grow.
soak-edges: $(STAMP)
	$(BIN)/python -m tests.soak.edges

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"sennit needs Python 3.11 or newer, this is {v.major}.{v.minor}: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .fuzz
