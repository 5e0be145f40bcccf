# Everything runs in .venv, which is built from the hashed requirements; nothing else is touched.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo up test lint format bench lock clean
.DELETE_ON_ERROR:

help: ## say what can be made
	@sed -n 's/^\([a-zA-Z%-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

demo: $(READY) ## run the main job: flights through Spark, Kafka and a plain Python job
	@$(BIN)/sluiceway demo

up: $(READY) ## run a broker and the gateway until Ctrl-C; the data are kept
	@$(BIN)/sluiceway up

test: $(READY) ## run all tests, on a real Kafka broker, SQLite and PostgreSQL
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

lint: $(READY) ## check style, types and formatting
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(READY) ## put the code into its one form
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: bench-python bench-spark ## run every benchmark, one after the other

bench-%: $(READY) ## run one benchmark (python, spark); writes bench/results/NAME.json
	@$(BIN)/python -m bench.$*

# Spark 4.1 is what the benchmarks' JVM connector runs on.
lock: ## resolve the requirements anew (needs uv)
	@uv pip compile pyproject.toml --extra dev --upgrade --universal --python-version 3.11 \
		--constraint requirements/constraints.txt --generate-hashes --no-header --no-annotate \
		--no-emit-index-url --quiet --output-file requirements/dev.txt

clean: ## remove what was built, not what was fetched
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): requirements/dev.txt pyproject.toml
	@PYTHON="$(PYTHON)" tools/prerequisites
	@echo "Building $(VENV) from requirements/dev.txt (about two minutes the first time)"
	@"$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		--requirement requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --editable .
	@touch $@
