# `make help` lists the targets. Everything is installed in $(VENV) and nothing outside the checkout is touched, but
# for Java where root on Debian lacks it: see conf/java.sh.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Installations that wait for the network, and Java's archive of classes, go on at the same time.
MAKEFLAGS += --jobs=3
.PHONY: help demo test test-all references gpu check stubs docs notebooks compat clean

PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
OLDEST ?= .venv-oldest
# The demo needs the runtime alone; every other target needs all extras.
RUNTIME := $(VENV)/.runtime
INSTALLED := $(VENV)/.installed
CLASSES := build/classes.jsa

# Somebody's own Spark must not leak in: with their SPARK_HOME, its configuration or its Python path, the demo and the
# tests would run on another Spark than the one that is pinned.
unexport SPARK_HOME SPARK_CONF_DIR PYSPARK_SUBMIT_ARGS PYTHONPATH
# If imports wrote no bytecode, each process would compile PyTorch again.
unexport PYTHONDONTWRITEBYTECODE
# Driver and executors run the Python that has sparkdl, wherever the PATH leads.
export PYSPARK_PYTHON := $(abspath $(BIN))/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
# Every Spark process stays on this machine, whatever its host name resolves to.
export SPARK_LOCAL_IP := 127.0.0.1
# spark-submit's own JVM, the driver, logs warnings alone.
export SPARK_SUBMIT_OPTS := -Dlog4j2.configurationFile=$(abspath conf/log4j2.properties)

WITH_JAVA = JAVA_HOME="$$(conf/java.sh)" && export JAVA_HOME &&
SUBMIT = $(WITH_JAVA) $(BIN)/spark-submit --properties-file conf/spark/local.conf

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(RUNTIME) ## write digits as Parquet, train on two Spark executors, predict
	rm -rf build/demo
	$(BIN)/python examples/digits_to_parquet.py build/demo/data
	$(SUBMIT) --py-files examples/digits_net.py jobs/train.py --config conf/train/digits.yaml
	$(SUBMIT) --conf spark.sparkdl.modules=digits_net --py-files examples/digits_net.py \
		jobs/predict.py --model build/demo/model --data.path build/demo/data/test \
		--output build/demo/predictions --label label

notebooks: $(INSTALLED) $(CLASSES) ## execute examples/*.ipynb, and write them in place with what comes out
	$(WITH_JAVA) $(BIN)/python -m tests.notebooks.executing

test: $(INSTALLED) $(CLASSES) ## the fast tests, never retried
	$(WITH_JAVA) $(BIN)/python tests/parallel.py --fast

test-all: $(INSTALLED) $(CLASSES) $(OLDEST)/.installed ## every test that needs no GPU; failed cluster and chaos tests get one retry
	$(WITH_JAVA) $(BIN)/python tests/parallel.py --oldest $(OLDEST)/bin/python

references: $(INSTALLED) $(CLASSES) ## trainings to an accuracy, before a change of training is merged
	$(WITH_JAVA) $(BIN)/python -m pytest tests/references

# On a bare machine with a GPU: PYTHON has pytest and what sparkdl itself imports, and nothing is installed.
gpu: ## the tests that need a GPU, with $(PYTHON) as it is, without Spark and Java
	$(PYTHON) -m pytest -c tests/gpu/pytest.ini --rootdir . --noconftest -p no:cacheprovider tests/gpu

check: $(INSTALLED) docs ## style, types, layers, sizes and the documentation, in about a minute
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest -q tests/style
	$(BIN)/pytest -qq --collect-only tests/references > /dev/null # make references runs them

STUBS = sparkdl/ml/params.pyi sparkdl/ml/tuning/params.pyi sparkdl/ensembles/declarations.pyi
stubs: $(INSTALLED) ## accessors and constructors of Params, for type checkers, editors and pages
	$(BIN)/python -m docs.param_stubs sparkdl.ml.params sparkdl.ml.tuning.params sparkdl.ensembles.declarations \
		docs/params.md docs/search.md docs/ensembles.md
	$(BIN)/ruff format --quiet $(STUBS)
	$(BIN)/ruff check --quiet --fix $(STUBS)

docs: $(INSTALLED) ## the site, build/docs/index.html; a warning is an error
	$(BIN)/sphinx-build --quiet --fail-on-warning -c docs -d build/doctrees . build/docs

compat: export PYSPARK_PYTHON := $(abspath $(OLDEST))/bin/python
compat: $(OLDEST)/.installed ## all tests on Spark with the oldest pyspark that is supported, in $(OLDEST)
	$(WITH_JAVA) $(OLDEST)/bin/python -m pytest -m "cluster and not chaos and not gpu and not notebook" \
		tests/spark tests/ml tests/ensembles tests/rounds tests/cli/pipeline tests/connect

clean: ## remove outputs and caches; the virtual environment stays
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .coverage .coverage.* spark-warehouse
	rm -rf $(VENV)/lib/python*/site-packages/pyspark/work # what local-cluster executors leave behind
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# Spark's classes, loaded and verified once for all JVMs of the tests.
$(CLASSES): $(RUNTIME) tests/class_archive.py
	@echo "writing Spark's classes into $@, which takes a minute"
	$(WITH_JAVA) $(BIN)/python -m tests.class_archive

# The runtime first, then all extras: two targets never install into $(VENV) at the same time. Everything is pinned, so
# that no second torch can come in as a dependency of a dependency. To compile all modules takes two more minutes: the
# recipe compiles the modules that most processes import, before several processes compile them at a time.
$(RUNTIME): EXTRAS := spark,examples
$(INSTALLED): EXTRAS := dev
$(INSTALLED): $(RUNTIME)
$(RUNTIME) $(INSTALLED): setup.cfg conf/constraints.txt
	$(if $(shell $(PYTHON) -c 'import sys; print("ok" * (sys.version_info >= (3, 11)))' 2>/dev/null),,$(error \
	the pinned versions need Python 3.11 or later and PYTHON=$(PYTHON) is not: set PYTHON))
	@echo "installing the pinned versions for [$(EXTRAS)] into $(VENV), which takes a few minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint conf/constraints.txt --editable '.[$(EXTRAS)]'
	$(BIN)/python -c 'import sparkdl.cli.plan, sparkdl.cli.train'
	touch $@

# The oldest Spark alone, before all other packages of $(VENV). Its client of Connect rejects protobuf 7.
$(OLDEST)/.installed: $(RUNTIME) conf/oldest.txt
	@echo "installing the oldest pyspark that is supported into $(OLDEST), which takes a minute"
	$(BIN)/python -m venv --without-pip --clear $(OLDEST)
	$(BIN)/pip --python $(OLDEST) install --quiet --no-compile "$$(grep ^pyspark== conf/oldest.txt)" protobuf==6.33.6
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$($(OLDEST)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/pinned.pth"
	touch $@
