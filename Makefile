# Everything here sets itself up: a virtual environment in .venv, with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow tables-quick mutants check docs format clean

demo: $(READY)  ## stream the bundled recordings through the shipped model
	$(BIN)/headsync demo

test: $(READY)  ## the tests
	$(BIN)/python -m pytest -n 2 --dist loadscope

test-slow: $(READY)  ## the tests, with those that train for minutes
	$(BIN)/python -m pytest -n 2 --dist loadscope --slow

tables-quick: $(READY)  ## a small comparison of two systems, from training to tables
	test -e runs/data/toy/test.jsonl || $(BIN)/headsync prepare toy runs/data/toy
	$(BIN)/headsync compare recipes/tables/quick.toml

mutants: $(READY)  ## whether the tests notice seeded faults; WORDS="beam ctc" selects some
	$(BIN)/python tests/mutants.py --jobs 2 $(WORDS)

check: $(READY)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=src $(BIN)/mypy --config-file= --ignore-missing-imports benchmarks recipes

docs: $(READY)  ## the documentation site in build/site; every warning is an error
	$(BIN)/python -m sphinx -W --keep-going -n -q -c docs . build/site

format: $(READY)  ## put the style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)
