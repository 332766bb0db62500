# make run         serve 127.0.0.1:4000, data in ./topics-data (TOPICS_* variables change that)
# make check       lint, types and the fast tests, in about a minute on two free cores
# make test        all checks and tests but the long ones, as CI runs them; what they need is installed where it may be
# make long        the long sweeps
# make prove       clients of a real service write a history under faults, which is checked (BAR=2 MINUTES=5 SEED=7, BAR=4 DRAWS=2000)
# make soak        a steady load of all features for MINUTES=30: which of memory, descriptors, disk and latency grows; then an overload
# make coverage    which lines and branches of the product the tests do not run (ARGS=tests/unit/shardd: only of these tests)
# make mutants     errors are put into copies of the product, and the bars of `make prove` must find them
# make demo        a year of flights through the real service, killed and restarted (examples/flights)
# make demo-cluster  three machines and an S3 server: a load through all, a join, a loss, a count (examples/cluster)
# make demo-spark  the same flights through Spark: counted, archived, replayed into another service, audited
# make spark-sessions  sessions of clicks with state in Spark (examples/spark); also: make spark-join, make spark-report
# make departures  a live departures board in the browser (examples/browser); also: make chat, make images
# make bench       the same work beside Redis, JetStream and beanstalkd: tables and plots in docs, in a quarter hour
# make bench-guard whether a path got slower than bench/guard.json says, measured against a fixed loop
# make bench-smoke throughput and latency of the main operations, in half a minute
# make bench-queues throughput of jobs, and the cost of a claim in a large queue
# make bench-claims the cost of a claim, whatever was acknowledged in front of it
# make bench-live  latency from writer to watchers, and the cost of a watcher
# make bench-routers cost of routers for the writer, and latency of copies
# make bench-forward  cost of a request through a machine that does not hold the shard
# make bench-scale  what several gateways bring on more cores, by a model that is fed with what is measured here
# make bench-replication  cost of a bucket for writers, and how long a takeover and a restore take
# make bench-machines  how long a shard takes no write when its machine is killed, joins or leaves
# make bench-growth cost of an operation and of a record as a topic grows
# make bench-spark speed of Spark on the files, compared with Parquet and JSON Lines
# make bench-protocols  commands per second over Walrus and Rog
# make reference   generate the end of docs/configuration.md from the settings, and that of docs/cli.md from the parser
# make site        build the documentation as a site, into ./site
# make dist        build what a release consists of into ./dist: wheels, source distributions, the npm package, the list of parts
# make lock        write the versions and digests of all packages that are installed here into requirements.lock and locks/; with
#                  ARGS=--upgrade the newest ones
# make audit       whether a package of the locks has a known vulnerability; asks a registry, so it needs the network
# make clean       remove installed and cached files; data stays

VENV ?= .venv
BIN := $(VENV)/bin
PIP := tools/pip-install.sh $(BIN)/python
TOOLS := $(VENV)/tools/bin
LOCKED := $(PIP) --require-hashes --requirement
# Our own projects.
OURS := $(PIP) --no-deps
ARGS ?=

.PHONY: bench run check test long coverage prove soak mutants demo demo-cluster demo-spark spark-sessions spark-join spark-report departures chat images reference site dist lock audit clean
.DEFAULT_GOAL := run

run: $(VENV)/.run
	@exec $(BIN)/topics serve $(ARGS)

check: $(VENV)/.test
	@tools/check.sh $(BIN) fast $(ARGS)

test: $(VENV)/.test
	@tools/check.sh $(BIN) whole $(ARGS)

long: $(VENV)/.fuzz $(VENV)/.demo
	@tools/install-lake.sh $(VENV)/lake delta && tools/install-lake.sh $(VENV)/iceberg iceberg || true
	@$(BIN)/python -m pytest -m long $(ARGS)

coverage: $(VENV)/.coverage
	@tools/coverage.sh $(BIN) $(ARGS)

BAR ?= 1
MINUTES ?= 1
DRAWS ?= 100
SEED ?= 0
prove: $(VENV)/.test
	@PYTHONPATH=packages/topics-history $(BIN)/python -m tests.history.prove --bar $(BAR) --minutes $(MINUTES) --draws $(DRAWS) --seed $(SEED) $(ARGS)

soak: $(VENV)/.test $(VENV)/.bench
	@PYTHONPATH=packages/topics-history $(BIN)/python -m tests.history.soak --minutes $(MINUTES) --seed $(SEED) $(ARGS)

mutants: $(VENV)/.test
	@PYTHONPATH=packages/topics-history $(BIN)/python -m tests.mutants.hunt $(ARGS)

demo: $(VENV)/.demo
	@$(BIN)/python examples/flights/demo.py $(ARGS)

demo-cluster: $(VENV)/.test
	@$(BIN)/python examples/cluster/demo.py $(ARGS)

demo-spark: $(VENV)/.demo $(VENV)/.test
	@JAVA_HOME="$$(tools/find-java.sh)" && export JAVA_HOME && $(BIN)/python examples/flights/spark_demo.py $(ARGS)

spark-sessions spark-join spark-report: $(VENV)/.demo $(VENV)/.test
	@JAVA_HOME="$$(tools/find-java.sh)" && export JAVA_HOME && exec $(BIN)/python examples/spark/$(@:spark-%=%).py $(ARGS)

reference: $(VENV)/.run
	@$(BIN)/python -m supervisor.config.reference docs/configuration.md
	@PYTHONPATH=packages/topics-client $(BIN)/python -m supervisor.cli.reference docs/cli.md

site: $(VENV)/.test
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet && echo "the site is in ./site: open site/index.html"

dist: $(VENV)/.made
	@tools/dist.sh $(BIN)/python dist

# Each starts a service on a free port and a page on port 8000; ARGS=--help tells the rest.
departures chat images: $(VENV)/.demo
	@exec $(BIN)/python examples/browser/$@.py $(ARGS)

lock: $(VENV)/.tools
	@$(TOOLS)/python tools/locks.py $(ARGS)

audit: $(VENV)/.tools
	@tools/audit.sh $(TOOLS) requirements.lock locks/*.lock deploy/container/build.lock

bench-spark bench-lake: $(VENV)/.test

bench: $(VENV)/.bench
	@tools/install-ops.sh bench || true # a system that is missing is left out
	@$(BIN)/python bench/compare.py $(ARGS)

bench-%: $(VENV)/.run
	@$(BIN)/python bench/$*.py $(ARGS)

clean:
	rm -rf $(VENV) build dist site packages/*/build packages/*/dist packages/*/node_modules *.egg-info packages/*/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .schemathesis spark-warehouse metastore_db
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: each records that a set of packages is installed for the present pyproject.toml.
$(VENV)/.made:
	@tools/make-venv.sh $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.made pyproject.toml requirements.lock
	@echo "installing topics"
	@$(LOCKED) requirements.lock
	@$(OURS) --editable .
	@$(BIN)/python -m compileall -q proto gateway shardd supervisor topics_server
	@touch $@

$(VENV)/.test: $(VENV)/.run locks/test.lock packages/pyspark-topics/pyproject.toml packages/topics-client/pyproject.toml packages/topics-history/pyproject.toml
	@echo "installing what tests need"
	@$(LOCKED) locks/test.lock
	@$(OURS) --editable packages/pyspark-topics --editable packages/topics-client --editable packages/topics-history
	@touch $@

$(VENV)/.fuzz: $(VENV)/.test locks/fuzz.lock
	@echo "installing what fuzzing needs"
	@$(LOCKED) locks/fuzz.lock
	@touch $@

# A supervisor passes on variables whose names begin with PYTHON, so its processes are measured too.
$(VENV)/.coverage: $(VENV)/.test locks/coverage.lock
	@echo "installing what measures coverage"
	@$(LOCKED) locks/coverage.lock
	@echo 'import os; "PYTHONCOVERAGE" in os.environ and os.environ.setdefault("COVERAGE_PROCESS_START", os.environ["PYTHONCOVERAGE"])' \
	    >"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/a0_coverage.pth"
	@touch $@

$(VENV)/.bench: $(VENV)/.run locks/bench.lock
	@echo "installing what the comparison needs"
	@$(LOCKED) locks/bench.lock
	@touch $@

$(VENV)/.demo: $(VENV)/.run locks/demo.lock packages/topics-client/pyproject.toml
	@echo "installing what the demo needs"
	@$(LOCKED) locks/demo.lock --no-deps
	@$(OURS) --editable packages/topics-client
	@touch $@

# An environment of their own: they share no package with the service.
$(VENV)/.tools: $(VENV)/.made locks/tools.lock
	@tools/make-venv.sh $(VENV)/tools
	@tools/pip-install.sh $(TOOLS)/python --require-hashes --requirement locks/tools.lock
	@touch $@
