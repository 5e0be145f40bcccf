# Everything runs in .venv, built from hashed requirements.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Without cached bytecode, each of many processes would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
# The number of schedules of `make model`.
N ?= 10000
CHAOS_MINUTES ?= 15
.PHONY: help demo up test test-all test-cost test-units test-pythons model chaos test-spark test-floors lint format bench lock clean
.DELETE_ON_ERROR:
# Files that only pattern rules name, such as environments, stay.
.SECONDARY:

help: ## list the targets
	@sed -n 's/^\([a-zA-Z%-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

demo: $(READY) ## send real flights through Spark, Kafka and a plain Python job (examples/demo)
	@$(BIN)/sluiceway demo

up: $(READY) ## run a broker and the gateway until Ctrl-C; keep their data
	@$(BIN)/sluiceway up

# Without a restart: after the crash of a process, pytest-xdist would wait forever for its tests.
PYTEST := $(BIN)/python -m pytest --numprocesses 6 --dist loadfile --no-loadscope-reorder \
	--max-worker-restart 0 --durations 25
test: $(READY) ## run the tests, on a real Kafka broker, SQLite and PostgreSQL
	@$(PYTEST) -m "not long"

UNITS := -m "unit and not long" tests/client tests/gateway
test-units: $(READY) ## run the tests that start no broker, database or gateway
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(UNITS)

test-cost: $(READY) ## run the tests, and print their processor time by folder
	@$(BIN)/python tools/cost.py $(PYTEST) -m "not long"

test-all: test test-pythons ## run the tests, then long ones, those of units on other versions of Python, and property tests with many examples
	@$(PYTEST) -m "long or hypothesis" --hypothesis-profile many

# Of the supported versions, those that are installed. The package of pykafka needs Python 3.11.
PYTHONS := $(foreach version,3.12 3.13 3.14,$(shell python$(version) -c 'print("$(version)")' 2>/dev/null))
test-pythons: $(PYTHONS:%=test-python-%) ## run the tests of units on the installed versions of Python above 3.11: PYTHONS=3.13
	@for version in $(filter-out $(PYTHONS),3.12 3.13 3.14); do \
		echo "Python $$version is not installed, and so not tested"; done

test-python-%: .venv-python-%/.ready
	@.venv-python-$*/bin/python -m pytest --numprocesses 2 --dist loadfile $(UNITS) \
		--ignore tests/client/broker/test_pykafka.py

model: $(READY) ## run seeded schedules of exactly-once delivery against its rules: N=100000
	@$(BIN)/python -m tests.model --schedules $(N)

chaos: $(READY) ## run jobs under faults, and check that each record becomes visible once: CHAOS_MINUTES=60 SEED=7
	@PYTHONPATH=tests/support $(BIN)/python -W ignore -m tests.chaos --minutes $(CHAOS_MINUTES) $(if $(SEED),--seed $(SEED))

SPARK ?= 4.3.0
test-spark: .venv-spark-$(SPARK)/.ready ## run the Spark tests on another version: SPARK=4.2.1
	@$(<D)/bin/python -m pytest tests/client/spark tests/cluster

test-floors: .venv-floors/.ready ## run the client's tests on the oldest supported packages
	@$(<D)/bin/python -m pytest tests/client --ignore=tests/client/spark

lint: $(READY) ## check style, formatting and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(READY) ## apply formatter and safe fixes
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: bench-python bench-spark bench-streaming bench-gateway bench-offsets bench-endpoints bench-readers bench-facades bench-exactly-once bench-latency bench-aio bench-dashboard bench-long ## run all benchmarks

bench-%: $(READY) ## run one benchmark (python, spark, streaming, gateway, offsets, endpoints, readers, facades, exactly-once, latency, aio, dashboard, long); writes bench/results/NAME.json
	@$(BIN)/python -m bench.$(subst -,_,$*)

# The benchmarks' JVM connector needs Spark 4.1. Images get the part of the lock that they need.
SPARKS := $(patsubst requirements/spark-%.txt,%,$(wildcard requirements/spark-*.txt))
LOCK := uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
	--no-annotate --no-emit-index-url --quiet
lock: ## resolve the requirements again (needs uv)
	@$(LOCK) pyproject.toml --extra dev --constraint requirements/constraints.txt \
		--output-file requirements/dev.txt
	@$(LOCK) pyproject.toml --extra gateway --extra otel \
		--constraint requirements/dev.txt --output-file requirements/gateway.txt
	@$(LOCK) pyproject.toml --extra spark --constraint requirements/dev.txt \
		--output-file requirements/spark.txt
	@sed -n 's/^requires = \["\(.*\)"\]/\1/p' pyproject.toml | $(LOCK) - \
		--constraint requirements/dev.txt --output-file requirements/build.txt
	@echo 'pandas==2.2.0' | $(LOCK) pyproject.toml - --resolution lowest-direct \
		--output-file requirements/floors.txt
	@for version in $(SPARKS); do echo "pyspark==$$version" | $(LOCK) - \
		--output-file requirements/spark-$$version.txt; done

clean: ## remove built files, but not the download cache
	@rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): requirements/dev.txt pyproject.toml
	@PYTHON="$(PYTHON)" tools/prerequisites
	@echo "Building $(VENV) from requirements/dev.txt (about two minutes the first time)"
	@"$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		--requirement requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --editable .
	@touch $@

.venv-python-%/.ready: requirements/dev.txt pyproject.toml
	@echo "Building .venv-python-$* from requirements/dev.txt"
	@python$* -m venv .venv-python-$*
	@.venv-python-$*/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		--requirement requirements/dev.txt
	@.venv-python-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --editable .
	@touch $@

# Environments on top of .venv, whose own packages come first.
PURELIB := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
.venv-%/.ready: requirements/%.txt $(READY)
	@echo "Building .venv-$* from requirements/$*.txt"
	@"$(PYTHON)" -m venv .venv-$*
	@.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		--requirement $<
	@echo "import site; site.addsitedir('$$($(BIN)/python $(PURELIB))')" \
		> "$$(.venv-$*/bin/python $(PURELIB))/base.pth"
	@touch $@

requirements/spark-%.txt:
	@echo "Spark $* is not among those that can be tested: $(SPARKS); add it: touch requirements/spark-$*.txt; make lock" >&2
	@false
