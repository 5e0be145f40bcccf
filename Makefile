# Everything runs in .venv, which is built from the hashed requirements; nothing else is touched.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Where compiled modules are not kept, each of the many processes compiles all of ours anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo up test test-all test-spark test-floors lint format bench lock clean
.DELETE_ON_ERROR:

help: ## say what can be made
	@sed -n 's/^\([a-zA-Z%-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

demo: $(READY) ## run the main job: flights through Spark, Kafka and a plain Python job
	@$(BIN)/sluiceway demo

up: $(READY) ## run a broker and the gateway until Ctrl-C; the data are kept
	@$(BIN)/sluiceway up

PYTEST := $(BIN)/python -m pytest --numprocesses 5 --dist loadfile --no-loadscope-reorder --durations 25
test: $(READY) ## run the tests, on a real Kafka broker, SQLite and PostgreSQL
	@$(PYTEST) -m "not long"

test-all: test ## run the tests, then long ones, and property tests with many examples
	@$(PYTEST) -m "long or hypothesis" --hypothesis-profile many

SPARK ?= 4.3.0
test-spark: .venv-spark-$(SPARK)/.ready ## run the tests of Spark on another version: SPARK=4.2.1
	@$(<D)/bin/python -m pytest tests/spark tests/cluster

test-floors: .venv-floors/.ready ## run the client's tests on the oldest packages it works with
	@$(<D)/bin/python -m pytest tests/client tests/codecs

lint: $(READY) ## check style, types and formatting
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(READY) ## put the code into its one form
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: bench-python bench-spark bench-streaming bench-gateway bench-offsets bench-endpoints bench-readers bench-facades bench-long ## run every benchmark, one after the other

bench-%: $(READY) ## run one benchmark (python, spark, streaming, gateway, offsets, endpoints, readers, facades, long); writes bench/results/NAME.json
	@$(BIN)/python -m bench.$*

# Spark 4.1 is what the benchmarks' JVM connector runs on. Images get the part of it that they need.
SPARKS := $(patsubst requirements/spark-%.txt,%,$(wildcard requirements/spark-*.txt))
LOCK := uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
	--no-annotate --no-emit-index-url --quiet
lock: ## resolve the requirements anew (needs uv)
	@$(LOCK) pyproject.toml --extra dev --constraint requirements/constraints.txt \
		--output-file requirements/dev.txt
	@$(LOCK) pyproject.toml --extra gateway --constraint requirements/dev.txt \
		--output-file requirements/gateway.txt
	@$(LOCK) pyproject.toml --extra spark --constraint requirements/dev.txt \
		--output-file requirements/spark.txt
	@sed -n 's/^requires = \["\(.*\)"\]/\1/p' pyproject.toml | $(LOCK) - \
		--constraint requirements/dev.txt --output-file requirements/build.txt
	@echo 'pandas==2.2.0' | $(LOCK) pyproject.toml - --resolution lowest-direct \
		--output-file requirements/floors.txt
	@for version in $(SPARKS); do echo "pyspark==$$version" | $(LOCK) - \
		--output-file requirements/spark-$$version.txt; done

clean: ## remove what was built, not what was fetched
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

# Environments on top of the usual one: their own packages come first.
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
